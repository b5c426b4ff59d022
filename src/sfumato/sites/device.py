"""A holder of entries that keeps them on a GPU, where sums over them are made.

What has no kernel there is answered by the processor, from the same entries: the answers are the same
numbers, to the rounding of single precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from math import ceil, inf
from typing import TYPE_CHECKING, Literal, get_args
from weakref import finalize

import numpy as np

from sfumato.data.tensor import SparseTensor
from sfumato.errors import SettingError
from sfumato.kernels.numba.alternating import CORE, Features, Weighting
from sfumato.kernels.numba.normal import NormalEquations, Ridge, Uncertainty
from sfumato.kernels.numba.simd import padded_width
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_prior import OwnPrior
from sfumato.models.shape import Shape
from sfumato.sites.memory import Site
from sfumato.surface import setting
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.kernels.cuda.arrays import Memory
    from sfumato.kernels.cuda.entrywise import Entries
    from sfumato.kernels.cuda.own_rows import Expected
    from sfumato.kernels.cuda.units import InCells
    from sfumato.kernels.jax.entrywise import Chunks

Device = Literal["cpu", "gpu", "auto"]
DEVICES = get_args(Device)
_SHARE = 0.9  # of the memory that a fit leaves free: it may be free in pieces
_GIB = 2.0**30
_WORTH_COPYING = 100_000  # numbers that are predicted: fewer are sooner made here


def use_gpu(device: str) -> bool:
    """Whether a fit with this setting is to be made on a GPU; an error where it must and cannot."""
    if device == "cpu":
        return False
    if find_spec("jax") is None:
        if device == "auto":
            return False
        raise SettingError(
            f"{setting('device', 'gpu')} needs JAX with CUDA: pip install 'sfumato[gpu]', or use "
            f"{setting('device', 'auto')} to fit on processors where there is none"
        )
    from sfumato.kernels.jax import accelerated, platforms

    if not accelerated() and device == "gpu":
        found = ", ".join(sorted(platforms()))
        raise SettingError(
            f"{setting('device', 'gpu')} finds no GPU: JAX has {found or 'nothing'} alone. Check "
            "`nvidia-smi` and that JAX has CUDA (pip install 'sfumato[gpu]'), or use "
            f"{setting('device', 'auto')}"
        )
    return bool(accelerated())


def predicted_there(device: str, number: int) -> bool:
    """Whether so many predictions, or scores of lists, are to be made on a GPU."""
    return device != "cpu" and use_gpu(device) and number >= _WORTH_COPYING


def installed() -> bool:
    """Whether kernels by hand run."""
    from sfumato.kernels import cuda

    return cuda.installed()


def by_hand(ranks: Sequence[int], core_size: int) -> bool:
    """Whether private sums of a model are made by hand: of CP of small rank, where numba-cuda is."""
    from sfumato.kernels.cuda import MOST_RANK

    return not core_size and ranks[0] <= MOST_RANK and len(ranks) > 1 and installed()


def most_of_units(shape: Shape) -> str | None:
    """What kernels of units can do, where a model is too large for them."""
    from sfumato.kernels.cuda import MOST_COLUMNS, MOST_RANK

    if max(shape.ranks) > MOST_RANK:
        return f"rows of up to {MOST_RANK} numbers"
    return f"cores of up to {MOST_COLUMNS} numbers" if shape.core_size > MOST_COLUMNS else None


def solve_rows(sums: NormalEquations, ridge: Ridge, rank: int, *where: Array) -> None:
    """Write the solutions of equations that were made on a device, which solves them."""
    from sfumato.kernels.cuda import MOST_RANK
    from sfumato.kernels.jax import within_memory

    if rank <= MOST_RANK and installed():
        from sfumato.kernels.cuda.normal import solve_rows as solve
    else:
        from sfumato.kernels.jax.normal import solve_rows as solve
    with within_memory():
        solve(sums, ridge, rank, *where)


# -- memory ---------------------------------------------------------------------------------------


def working_bytes(shape: Shape, private: bool) -> int:
    """What a fit takes on a device beside entries that stay there; of public numbers alone."""
    levels, rank, every = max(shape.sizes), max(shape.ranks), sum(shape.sizes)
    parameters = 4 * every * (2 * rank + 2)  # rows and biases, each with its variance
    if private:  # those of all blocks, and in double precision all rows and those that owners solve
        wide = padded_width(rank, np.float64)
        sums = 8 * (2 * every * (rank + 1) + every * (wide + 2) + 3 * (shape.core_size + 1))
    else:  # Gram matrices; to solve with those of rows takes as much three times more
        sums = 4 * 4 * levels * rank * (rank + 3) + 3 * 8 * shape.core_size**2
    return parameters + sums + _chunk_bytes(shape, private)


def _chunk_bytes(shape: Shape, private: bool) -> int:
    """Of the chunk that is worked on, with all that is made of it, and of those that come after it."""
    from sfumato.kernels.jax.entrywise import bytes_there, chunk_size, entry_bytes

    if private and by_hand(shape.ranks, shape.core_size):
        from sfumato.kernels.cuda.entrywise import bytes_streamed

        return bytes_streamed(shape.order)
    entries = chunk_size(shape.ranks, shape.core_size)
    return entries * entry_bytes(shape.ranks, shape.core_size) + bytes_there(3 * entries, shape.order)


def lacking_memory(shape: Shape, private: bool, entries: float = 0.0, blocks: int = 0) -> str | None:
    """What to say of a fit for which a GPU has too little memory, whatever its entries are.

    ``entries``: about how many lie there for sums by owner, as far as that is public; ``blocks``: of
    how many blocks units add up what they have.
    """
    from sfumato.kernels.jax import total_memory

    total, needed = total_memory(), working_bytes(shape, private)
    if entries:
        needed = ceil(owned_bytes(shape, entries, blocks) / _SHARE)
    if total is None or needed <= total:
        return None
    sizes = " x ".join(f"{n:,}" for n in shape.sizes)
    sizes = f"{entries:,.0f} entries of {sizes}" if entries else sizes
    return (
        f"takes {needed / _GIB:.1f} GiB on the GPU for sums of {sizes} levels at rank "
        f"{max(shape.ranks)}, and JAX's share of the card is {total / _GIB:.1f} GiB "
        "(XLA_PYTHON_CLIENT_MEM_FRACTION sets it)"
    )


def owned_bytes(shape: Shape, entries: float, blocks: int = 0) -> float:
    """What sums by owner take for about so many entries, beside what a fit works with."""
    return working_bytes(shape, private=True) + entries * _by_owner_bytes(shape.order, blocks)


def _by_owner_bytes(order: int, blocks: int) -> int:
    """Of an entry as kernels of owners see it: levels and a value, its cell, and that cell's numbers.

    For blocks also what it is multiplied by, and for each the entries once more, in the order of cells.
    """
    cells = 4 * order + 8 + 4 + 3 * 8
    return cells + 2 * 8 + blocks * (4 * order + 8 + 8) if blocks else cells


# -- sums -----------------------------------------------------------------------------------------


def owned_there(shape: Shape, entries: float, blocks: int = 0) -> bool:
    """Whether what units and owners of so many entries add is summed on a device.

    By public numbers alone: kernels there round in another way, and which ones are used must not hang
    on how many entries there are.
    """
    from sfumato.kernels.jax import total_memory

    return installed() and owned_bytes(shape, entries, blocks) <= _SHARE * (total_memory() or inf)


class DeviceSite(Site):
    """Entries whose sums by mode are made on JAX's first device, for models of a planned shape.

    ``owned`` is whether what units and owners add is, too, in how many ``blocks``.
    """

    def __init__(
        self, tensor: SparseTensor, threads: int, shape: Shape, owned: bool = False, blocks: int = 0
    ) -> None:
        super().__init__(tensor, threads)
        from sfumato.kernels.jax import free_memory
        from sfumato.kernels.jax.entrywise import bytes_there, chunk_size
        from sfumato.kernels.jax.kept import let_go

        finalize(self, let_go)  # of what lies there for arrays that others hold, such as a model's rows

        self._chunk = chunk_size(shape.ranks, shape.core_size)
        # Held by the device for one mode after the other as they are asked for; all or none stay.
        free, filled = free_memory(), tensor.n_entries + self._chunk
        needed = tensor.order * bytes_there(filled, tensor.order)
        needed += tensor.n_entries * _by_owner_bytes(tensor.order, blocks) * owned
        # Private sums take less than Gram matrices: for these there is room to spare.
        left = None if free is None else free - working_bytes(shape, private=False)
        self._resident = left is None or needed <= _SHARE * left
        self._owned = owned and tensor.n_entries > 0
        if self._owned:
            from sfumato.kernels.cuda import cells, contributions

            self.contributions, self.owned = contributions, cells

    @property
    def _memory(self) -> Memory:
        from sfumato.kernels.cuda.arrays import Memory

        return self.kept("memory", Memory)

    def chunks(self, mode: int) -> Chunks:
        """The entries sorted by a mode, for kernels on the device."""
        from sfumato.kernels.jax.entrywise import Chunks

        given = mode, self._resident, self._chunk
        return self.kept(("chunks", mode), lambda: Chunks(self.by_mode(mode), *given))

    def entries(self, mode: int) -> Entries:
        """The same for sums by hand."""
        from sfumato.kernels.cuda.entrywise import Entries

        given = mode, self._resident, self._memory
        return self.kept(("entries", mode), lambda: Entries(self.by_mode(mode), *given))

    def normal_equations(
        self, model: Multilinear, uncertainty: Uncertainty, mode: int, low: int, high: int
    ) -> NormalEquations:
        from sfumato.kernels.jax import within_memory
        from sfumato.kernels.jax.normal import normal_equations

        counts = np.asarray(self.by_mode(mode).total_weights)
        with within_memory():
            sums = NormalEquations(*normal_equations(model, uncertainty, self.chunks(mode), counts))
        return sums if (low, high) == (0, model.shape[mode]) else sums.part(low, high)

    def residual_sums(self, model: Multilinear, uncertainty: Uncertainty) -> tuple[float, float]:
        from sfumato.kernels.jax import within_memory
        from sfumato.kernels.jax.normal import residual_sums

        with within_memory():
            return residual_sums(model, uncertainty, self.chunks(0))

    def core_sums(self, model: Multilinear, uncertainty: Uncertainty) -> tuple[Array, Array]:
        from sfumato.kernels.jax import within_memory
        from sfumato.kernels.jax.normal import core_sums

        with within_memory():
            return core_sums(model, uncertainty, self.chunks(0))

    def entry_sums(self, model: Multilinear, block: int, features: Features) -> Array:
        from sfumato.kernels.jax import within_memory

        with within_memory():
            if by_hand(model.ranks, model.free_core.size):
                from sfumato.kernels.cuda import alternating

                return alternating.entry_sums(model, block, features, self.entries(block))
            from sfumato.kernels.jax.alternating import entry_sums

            return entry_sums(model, block, features, self.chunks(max(block, 0)))

    def unit_sums(
        self, model: Multilinear, block: int, features: Features, weighting: Weighting, units: int
    ) -> Array:
        if not self._owned:
            return super().unit_sums(model, block, features, weighting, units)
        from sfumato.kernels.cuda.units import unit_sums
        from sfumato.kernels.jax import within_memory

        with within_memory():
            entries = self._in_cells(units, block)
            return unit_sums(model, block, features, weighting, entries, units, self._memory)

    def _in_cells(self, units: int, block: int) -> InCells:
        from sfumato.kernels.cuda.units import in_cells, in_one_cell

        def made() -> InCells:
            entries = self.by_mode(units)
            if block == CORE:
                return in_one_cell(entries)
            return in_cells(entries, self.cells(units, block), self.threads)

        return self.kept(("in cells", units, block), made)

    def own_rows(self, model: Multilinear, prior: OwnPrior) -> tuple[Array, Array] | None:
        expected = _expected(model, prior) if self._owned else None
        if expected is None:
            return None
        from sfumato.kernels.cuda.own_rows import solve_own
        from sfumato.kernels.jax import within_memory

        with within_memory():
            return solve_own(model, expected, self.by_mode(prior.mode), prior.mode, self._memory)


def _expected(model: Multilinear, prior: OwnPrior) -> Expected | None:
    """A prior as kernels by hand take it, where they can: of small rank, in double precision."""
    from sfumato.kernels.cuda import MOST_RANK
    from sfumato.kernels.cuda.own_rows import Expected

    noisy, rank = any(each is not None for each in prior.row_noise), model.ranks[prior.mode]
    if noisy or max(model.ranks) > MOST_RANK or model.dtype != np.float64 or model.order < 2:
        return None
    shift, pull, doubts = prior.as_entries, prior.pull, None
    if any(each is not None for each in prior.doubts):
        of_modes = zip(prior.doubts, model.shape, strict=True)
        doubts = np.concatenate([np.zeros(n) if each is None else each for each, n in of_modes])
    return Expected(
        constant=prior.diagonal,
        shift=np.zeros((rank, rank)) if shift is None else shift,
        mean=float(prior.mean),
        pull=None if pull is None else np.stack(pull),
        means=prior.means,
        doubts=doubts,
        scatter=float(prior.scatter),
        bias_precision=float(prior.bias_precision),
    )
