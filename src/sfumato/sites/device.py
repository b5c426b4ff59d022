"""A holder of entries that keeps them on a GPU, where sums over them are made.

What has no kernel there is answered by the processor, from the same entries: the answers are the same
numbers, to the rounding of single precision.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from sfumato.data.tensor import SparseTensor
from sfumato.errors import SettingError
from sfumato.kernels.numba.alternating import Features
from sfumato.kernels.numba.normal import NormalEquations, Uncertainty
from sfumato.models.multilinear import Multilinear
from sfumato.sites.memory import Site
from sfumato.surface import setting
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.kernels.cuda.entrywise import Entries
    from sfumato.kernels.jax.entrywise import Chunks

Device = Literal["cpu", "gpu", "auto"]
DEVICES = get_args(Device)
_SHARE = 0.6  # of a device's free memory that entries may take
_SCRATCH = 3 << 30  # bytes that chunks take while they are worked on, at rank 64


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
    from sfumato.kernels.jax import accelerated

    if not accelerated() and device == "gpu":
        import jax

        found = ", ".join(sorted({each.platform for each in jax.devices()}))
        raise SettingError(
            f"{setting('device', 'gpu')} finds no GPU: JAX has {found} alone. Check `nvidia-smi` and "
            f"that JAX has CUDA (pip install 'sfumato[gpu]'), or use {setting('device', 'auto')}"
        )
    return bool(accelerated())


def by_hand(model: Multilinear) -> bool:
    """Whether private sums of a model are made by hand: of CP of small rank, where numba-cuda is."""
    from sfumato.kernels.cuda import MOST_RANK, installed

    return not model.free_core.size and model.ranks[0] <= MOST_RANK and model.order > 1 and installed()


class DeviceSite(Site):
    """Entries whose sums by mode are made on JAX's first device."""

    def __init__(self, tensor: SparseTensor, threads: int) -> None:
        super().__init__(tensor, threads)
        # Held by the device for one mode after the other as they are asked for; all or none stay.
        from sfumato.kernels.jax import free_memory
        from sfumato.kernels.jax.entrywise import needed_bytes

        free = free_memory()
        needed = tensor.order * needed_bytes(tensor.n_entries, tensor.order, bool(self.weights.size))
        self._resident = free is None or needed <= _SHARE * free

    def chunks(self, mode: int) -> Chunks:
        """The entries sorted by a mode, for kernels on the device."""
        from sfumato.kernels.jax.entrywise import Chunks

        return self.kept(("chunks", mode), lambda: Chunks(self.by_mode(mode), mode, self._resident))

    def entries(self, mode: int) -> Entries:
        """The same for sums by hand."""
        from sfumato.kernels.cuda.entrywise import Entries

        return self.kept(("entries", mode), lambda: Entries(self.by_mode(mode), mode, self._resident))

    def normal_equations(
        self, model: Multilinear, uncertainty: Uncertainty, mode: int, low: int, high: int
    ) -> NormalEquations:
        if uncertainty.present and model.free_core.size:  # its designs' variances have no kernel there
            return super().normal_equations(model, uncertainty, mode, low, high)
        from sfumato.kernels.jax.normal import normal_equations

        self._check_memory(model, model.shape[mode] * (model.ranks[mode] + 3) * model.ranks[mode] * 12)
        counts = np.asarray(self.by_mode(mode).total_weights)
        sums = NormalEquations(*normal_equations(model, uncertainty, self.chunks(mode), counts))
        return sums if (low, high) == (0, model.shape[mode]) else sums.part(low, high)

    def residual_sums(self, model: Multilinear, uncertainty: Uncertainty) -> tuple[float, float]:
        if uncertainty.present and model.free_core.size:
            return super().residual_sums(model, uncertainty)
        from sfumato.kernels.jax.normal import residual_sums

        return residual_sums(model, uncertainty, self.chunks(0))

    def entry_sums(self, model: Multilinear, block: int, features: Features) -> Array:
        size = model.shape[max(block, 0)] * (features.metric.shape[1] + 1) * 16
        self._check_memory(model, size)
        if by_hand(model):
            from sfumato.kernels.cuda import alternating

            return alternating.entry_sums(model, block, features, self.entries(block))
        from sfumato.kernels.jax.alternating import entry_sums

        return entry_sums(model, block, features, self.chunks(max(block, 0)))

    def _check_memory(self, model: Multilinear, sums: int) -> None:
        """That parameters, sums and the scratch of a chunk fit; by public sizes alone."""
        from sfumato.kernels.jax import total_memory

        total, needed = total_memory(), sums + 2 * model.rows.nbytes + _SCRATCH
        sizes = " x ".join(f"{n:,}" for n in model.shape)
        if total is not None and needed > total:
            raise SettingError(
                f"the sums of {sizes} levels take {needed / 2**30:.1f} GiB on the GPU, which has "
                f"{total / 2**30:.1f}: use a smaller rank, or "
                f"{setting('device', 'cpu')}"
            )
