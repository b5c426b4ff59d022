"""What solvers of coupled models share: the public shape, blocks of parameters, and their start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike

from sfumato.checks import is_number, wrong
from sfumato.data.privatised import CLEAN
from sfumato.data.relations import Relation, Relations
from sfumato.data.tensor import Mode
from sfumato.errors import DataError, SettingError
from sfumato.models.coupled import CoupledModel, Part
from sfumato.models.multilinear import Multilinear
from sfumato.models.shape import Shape
from sfumato.records import record
from sfumato.sites.coupled import CoupledSite
from sfumato.sites.memory import Site
from sfumato.solvers.protocol import Solver, start_generator
from sfumato.surface import either
from sfumato.types import Array

_MOST_BYTES = 1 << 31  # of samples that are kept


@record
@dataclass(frozen=True)
class CoupledShape:
    """What a solver may know before it sees data: modes, relations, rank and settings.

    ``modes`` ends with one mode for the weights of every weighted relation.
    """

    modes: tuple[Mode, ...]
    parts: tuple[Part, ...]
    divergences: tuple[float, ...]
    dispersions: tuple[float | None, ...]
    rank: int
    dtype: str = "float64"

    @classmethod
    def of(cls, relations: Relations, rank: int, dtype: DTypeLike = np.float64) -> CoupledShape:
        modes, parts = [mode.unlabelled for mode in relations.modes], list[Part]()
        for relation in relations.values():
            own = relation.modes
            if relation.weighted:
                own = (*own, len(modes))
                modes.append(Mode(f"weights of {relation.name}", 1))
            tucker = relation.structure == "tucker"
            parts.append(Part(relation.name, own, tucker, relation.weighted))
        return cls(
            tuple(modes),
            tuple(parts),
            tuple(relation.divergence for relation in relations.values()),
            tuple(relation.dispersion for relation in relations.values()),
            rank,
            np.dtype(dtype).name,
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(mode.size for mode in self.modes)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All parameters: the factor of every mode, then the cores."""
        modes = [Block(d, -1) for d in range(len(self.modes))]
        return (*modes, *(Block(None, v) for v, part in enumerate(self.parts) if part.tucker))

    @property
    def steps(self) -> int:
        """Of a sweep: an update for every block, and then the objective."""
        return len(self.blocks) + 1

    def place(self, round: int) -> tuple[int, int | None]:
        """Sweeps that are done at a round, and the block that is next; None for the objective."""
        done, step = divmod(round, self.steps)
        return done, None if step == len(self.blocks) else step

    def zeros(self) -> CoupledModel:
        return CoupledModel.zeros(self.sizes, self.rank, self.parts, self.dtype)

    def per_mode(self, setting: float | Mapping[str, float] | None, what: str) -> list[float | None]:
        """A setting given as one number for all blocks, or as a mapping from mode names."""
        names = [mode.name for mode in self.modes] + [
            f"core of {part.name}" for part in self.parts if part.tucker
        ]
        by_name = setting if isinstance(setting, Mapping) else dict.fromkeys(names, setting)
        unknown = set(by_name) - set(names)
        if unknown:
            listed = sorted(unknown, key=str)
            raise SettingError(f"{what} names {listed}, but there are {', '.join(names)}")
        if not all(each is None or is_number(each) for each in by_name.values()):
            raise wrong(what, "a number, or numbers by mode name", setting)
        return [by_name.get(name) for name in names]


class CoupledSolver(Solver[Any, Any], Protocol):
    """A solver of several tensors that share modes."""

    def check_relation(self, relation: Relation) -> None:
        """Refuse values that it cannot fit."""


@record
class Block(NamedTuple):
    """Parameters that are updated together: the factor of a mode, or else the core of a part."""

    mode: int | None
    part: int


def coupled_shape(shape: Shape | CoupledShape, divergence: float, what: str) -> CoupledShape:
    """The shape of a single tensor as that of one relation."""
    if isinstance(shape, CoupledShape):
        return shape
    if shape.fit_mean or shape.fit_biases:
        raise SettingError(f"{what}: neither a mean nor biases are fitted, say mean=False, biases=False")
    if len(set(shape.ranks)) > 1:
        raise SettingError(f"{what}: the rank has to be the same in every mode, got {shape.ranks}")
    parts = (Part("", tuple(range(shape.order)), shape.kind == "tucker"),)
    return CoupledShape(shape.modes, parts, (divergence,), (1.0,), shape.ranks[0], shape.dtype)


def coupled_site(
    site: Site | CoupledSite, divergence: float, check: Callable[[Relation], None]
) -> CoupledSite:
    """The entries of a single tensor as those of one relation, which are checked as such."""
    if isinstance(site, CoupledSite):
        return site

    def make() -> CoupledSite:
        nowhere, modes = site.tensor.coordinates[:, :0], tuple(range(site.tensor.order))
        check(Relation("tensor", site.tensor, nowhere, modes, "cp", divergence, 1.0, "missing"))
        return CoupledSite.of(site, divergence)

    return site.kept(("coupled", divergence), make)


def check_poisson(name: str, divergence: float, dispersion: float | None, what: str) -> None:
    """Refuse settings of a relation that are not those of a Poisson law."""
    if divergence != 1 or dispersion != 1:
        raise SettingError(
            f"{what} is for Poisson data, so divergence 1 and dispersion 1; {name!r} has divergence "
            f"{divergence:g} and dispersion {dispersion or 'estimated'}: set these, or use "
            "multiplicative updates"
        )


def check_counts(relation: Relation) -> None:
    """Refuse values that are no counts, where they are clean."""
    values, data = relation.tensor.values, relation.privatised
    clean = values if data is None else values[data.numbers == CLEAN]
    if not np.isfinite(values).all() or not (clean == np.floor(clean)).all():
        raise DataError(f"{relation.name!r} holds values that are no counts: these are whole numbers")
    if clean.size and clean.min() < 0:
        raise DataError(f"{relation.name!r} holds negative values, and counts are not negative")


def check_channel(relation: Relation) -> None:
    """Refuse noisy values that are no counts of a Poisson law."""
    if relation.divergence != 1 or relation.dispersion != 1:
        raise SettingError(
            f"{relation.name!r} holds values behind a noisy channel, which are fitted as counts: they "
            "need divergence 1 and dispersion 1"
        )
    check_counts(relation)


def check_not_negative(relation: Relation) -> None:
    """Values that the divergence of non-negative factors is defined for."""
    if relation.privatised is not None:
        check_channel(relation)
        return
    values, name = relation.tensor.values, relation.name
    if not np.isfinite(values).all():
        raise DataError(f"{name!r} holds infinite values: leave them out")
    if values.min() < 0:
        raise DataError(
            f"{name!r} holds negative values, and these factors are not negative: shift the values "
            "first, or use "
            + either('Langevin(model="normal") with divergence=0', "--solver langevin --divergence 0")
        )
    zeros = relation.absent == "zero" or not values.all()
    if zeros and relation.divergence >= 2:
        raise DataError(
            f"{name!r} holds zeros, for which the divergence with p = {relation.divergence:g} has no "
            "minimum: use a p below 2, or only values above zero (absent cells as missing)"
        )


def positive_start(shape: CoupledShape, seed: int) -> CoupledModel:
    """Positive random parameters; the data play no part.

    They differ by much: where all are about equal, a Tucker core takes long to leave that.
    """
    model, generator = shape.zeros(), start_generator(seed)
    for part in (*model.factors, *model.cores):
        part[:] = 0.1 + generator.standard_exponential(part.shape)
    return model


def even_start(shape: CoupledShape, seed: int) -> CoupledModel:
    """Positive random parameters that differ little; the data play no part.

    Factors that differ much would soon take hold where they happen to be large, and spare components
    would stay. A Tucker core, though, begins near that of a CP model, so that components differ.
    """
    model, generator = shape.zeros(), start_generator(seed)
    for factor in model.factors:
        factor[:] = generator.uniform(0.5, 1.5, factor.shape)
    for part, core in zip(model.parts, model.cores, strict=True):
        if part.tucker:
            core[:] = 0.1 * (0.1 + generator.standard_exponential(core.shape))
            core.reshape((shape.rank,) * part.order)[(np.arange(shape.rank),) * part.order] *= 10
    return model


def check_room(shape: CoupledShape, chains: int, samples: int) -> None:
    """Refuse more samples than fit into memory."""
    size = sample_bytes(shape, chains, samples)
    if size > _MOST_BYTES:
        raise SettingError(
            f"{chains} chains with {samples} samples would take {size / 2**30:.1f} GiB: "
            + either("keep fewer samples and thin more, or use float32", "use fewer --rounds")
        )


def sample_bytes(shape: CoupledShape, chains: int, samples: int) -> int:
    """Memory that kept samples take."""
    cores = sum(shape.rank**part.order for part in shape.parts if part.tucker)
    numbers: int = chains * samples * (sum(shape.sizes) * shape.rank + cores)
    return numbers * int(np.dtype(shape.dtype).itemsize)


def values_of(model: CoupledModel, block: Block) -> Array:
    """The parameters of a block (a view)."""
    return model.cores[block.part] if block.mode is None else model.factor(block.mode)


def finished(model: CoupledModel, shape: Shape | CoupledShape) -> CoupledModel | Multilinear:
    """The model as its caller knows it: of a single tensor a CP or Tucker model."""
    if isinstance(shape, CoupledShape):
        return model
    single = shape.zeros()
    for mine, found in zip(single.factors, model.factors, strict=True):
        mine[:] = found
    single.free_core[:] = model.cores[0]
    return single
