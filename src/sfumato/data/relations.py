"""Several tensors that share modes, fitted together.

Modes of the same name are the same things: users of one table are users of the other. Their labels are
brought into one order, also where each table knows only some of them, so that a level means the same in
every relation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from sfumato.checks import check_choice, check_positive, given, is_number, shown
from sfumato.data.prepare import merge_duplicates
from sfumato.data.privatised import Privatised
from sfumato.data.shared_labels import levels_among, shared_modes
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import DataError, SettingError
from sfumato.surface import either

Absent = Literal["missing", "zero"]
Structure = Literal["cp", "tucker"]
_T = TypeVar("_T")
MOST_DIVERGENCE = 3.0
_MOST_CELLS = 2**63  # that are counted


@dataclass(frozen=True, eq=False)
class Relation:
    """One tensor among several.

    Parameters
    ----------
    tensor : its entries, with modes that all relations share.
    unknown : cells that are not observed although absent ones count as zeros: a column for each.
    modes : which of the relations' modes it has, in the order of the tensor's.
    structure : "cp" or "tucker".
    divergence : p of the beta divergence: 0 Euclidean, 1 Kullback-Leibler, 2 Itakura-Saito.
    dispersion : by which the divergence is divided; None for one that is estimated.
    absent : whether cells without an entry are "missing" or "zero".
    weighted : whether its components have weights of their own; they do where all of its modes are
        shared, since its scale would have no other place.
    privatised : its entries with what their values have passed, where they have passed anything.
    """

    name: str
    tensor: SparseTensor
    unknown: NDArray[np.int32]
    modes: tuple[int, ...]
    structure: Structure
    divergence: float
    dispersion: float | None
    absent: Absent
    weighted: bool = False
    privatised: Privatised | None = None

    @property
    def cells(self) -> int:
        """Observed cells."""
        if self.absent == "missing":
            return self.tensor.n_entries
        return int(prod(self.tensor.shape)) - int(self.unknown.shape[1])

    def observed_counts(self, position: int) -> NDArray[np.int64]:
        """Observed cells at each level of the mode at a position of the tensor."""
        counts = self.tensor.counts(self.tensor.mode_names[position])
        if self.absent == "missing":
            return counts
        size = self.tensor.shape[position]
        unknown = np.bincount(self.unknown[position], minlength=size)
        return prod(self.tensor.shape) // size - unknown


class Relations(Mapping[str, Relation]):
    """Tensors by name, with equal mode names for what they share.

    Parameters
    ----------
    tensors : mapping
        The tensors by name. An entry whose value is NaN is a cell that was not observed. Values may
        have passed a channel (:class:`~sfumato.data.privatised.Privatised`).
    structure, divergence, dispersion, absent
        See :class:`Relation`; one for all, or a mapping from relation names (the usual one for those
        that it leaves out).

    Examples
    --------
    >>> import sfumato as sf
    >>> modes = {"ratings": ("user", "item"), "features": ("item", "feature")}
    >>> made = sf.synthetic.coupled(
    ...     modes, {"user": 30, "item": 20, "feature": 4}, rank=2, missing=0.5
    ... )
    >>> relations = sf.Relations(
    ...     {name: each.tensor for name, each in made.items()}, divergence=0
    ... )
    >>> print(relations)
              user  item  feature
    ratings    x     x       .     300 entries, cp, p 0, absent missing
    features   .     x       x     40 entries, cp, p 0, absent missing
               30    20      4     levels
    >>> relations.coupling
    array([[ True,  True, False],
           [False,  True,  True]])
    """

    def __init__(
        self,
        tensors: Mapping[str, SparseTensor | Privatised],
        *,
        structure: Structure | Mapping[str, Structure] = "cp",
        divergence: float | Mapping[str, float] = 1.0,
        dispersion: float | Mapping[str, float | None] | None = 1.0,
        absent: Absent | Mapping[str, Absent] = "missing",
    ) -> None:
        if not isinstance(tensors, Mapping) or not tensors:
            raise SettingError('give tensors by name: Relations({"visits": tensor, ...})')
        for name, tensor in tensors.items():
            if not isinstance(name, str):
                raise SettingError(f"names of relations are text, got {shown(name)}")
            if not isinstance(tensor, SparseTensor | Privatised):
                raise DataError(f"relation {name!r} is no SparseTensor: read it with sfumato.read")
        self.modes = shared_modes({name: _entries(tensor) for name, tensor in tensors.items()})
        numbers = {mode.name: d for d, mode in enumerate(self.modes)}
        settings: list[dict[str, Any]] = [
            _for_each(tensors, structure, "cp", "structure"),
            _for_each(tensors, divergence, 1.0, "divergence"),
            _for_each(tensors, dispersion, 1.0, "dispersion"),
            _for_each(tensors, absent, "missing", "absent"),
        ]
        self._relations = {
            name: _relation(name, tensor, self.modes, numbers, *(setting[name] for setting in settings))
            for name, tensor in tensors.items()
        }
        self._check_connected()
        self._give_weights()

    def _check_connected(self) -> None:
        first, *rest = self.values()
        reached, left = set(first.modes), list(rest)
        while left:
            near = [relation for relation in left if reached & set(relation.modes)]
            if not near:
                names = ", ".join(repr(relation.name) for relation in left)
                raise DataError(
                    f"{names} shares no mode with {first.name!r}, directly or through others: fit it by "
                    "itself, or give what they share the same mode name"
                )
            for relation in near:
                reached |= set(relation.modes)
                left.remove(relation)

    def _give_weights(self) -> None:
        uses = self.coupling.sum(axis=0)
        for name, relation in self._relations.items():
            shared = len(self) > 1 and all(uses[d] > 1 for d in relation.modes)
            self._relations[name] = replace(relation, weighted=shared and relation.structure == "cp")

    # -- what it is -----------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Relation:
        if name not in self._relations:
            raise SettingError(f"there is no relation {name!r}; there are {', '.join(self._relations)}")
        return self._relations[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._relations)

    def __len__(self) -> int:
        return len(self._relations)

    @cached_property
    def coupling(self) -> NDArray[np.bool_]:
        """The coupling matrix R: whether a relation (row) has a mode (column)."""
        matrix = np.zeros((len(self), len(self.modes)), bool)
        for v, relation in enumerate(self.values()):
            matrix[v, list(relation.modes)] = True
        return matrix

    def __repr__(self) -> str:
        names, sizes = zip(*((mode.name, f"{mode.size:,}") for mode in self.modes), strict=True)
        widths = [max(map(len, column)) for column in zip(names, sizes, strict=True)]

        def row(cells: Sequence[str]) -> str:
            return "  ".join(cell.center(width) for cell, width in zip(cells, widths, strict=True))

        left = max(len(name) for name in self)
        lines = [f"{'':{left}}  {row(names).rstrip()}"]
        for name, has in zip(self, self.coupling, strict=True):
            relation = self[name]
            about = f"{relation.structure}, p {relation.divergence:g}, absent {relation.absent}"
            marks = row(["x" if there else "." for there in has])
            lines.append(f"{name:{left}}  {marks}  {relation.tensor.n_entries:,} entries, {about}")
        lines.append(f"{'':{left}}  {row(sizes)}  levels")
        return "\n".join(lines)


def _for_each(tensors: Mapping[str, Any], setting: Any, usual: _T, what: str) -> dict[str, _T]:
    if not isinstance(setting, Mapping):
        return dict.fromkeys(tensors, setting)
    unknown = sorted(set(setting) - set(tensors), key=str)
    if unknown:
        raise SettingError(f"{what} names {unknown}, but the relations are {', '.join(tensors)}")
    return {name: setting.get(name, usual) for name in tensors}


def _entries(given: SparseTensor | Privatised) -> SparseTensor:
    return given.tensor if isinstance(given, Privatised) else given


def _relation(
    name: str,
    data: SparseTensor | Privatised,
    modes: Sequence[Mode],
    numbers: Mapping[str, int],
    structure: Structure,
    divergence: float,
    dispersion: float | None,
    absent: Absent,
) -> Relation:
    check_choice(get_args(Structure), **{f"the structure of {name!r}": structure})
    check_choice(get_args(Absent), **{f"absent of {name!r}": absent})
    check_divergence(name, divergence)
    check_positive(**given(**{f"the dispersion of {name!r} (or None)": dispersion}))
    tensor = _entries(data)
    own = tuple(numbers[mode] for mode in tensor.mode_names)
    aligned = _aligned(merge_duplicates(tensor, "error"), [modes[d] for d in own])
    known = ~np.isnan(aligned.values)
    if not known.any():
        raise DataError(f"relation {name!r} has no value that was observed: leave it out")
    if absent == "zero" and prod(aligned.shape) >= _MOST_CELLS:
        raise DataError(
            f"relation {name!r} has {prod(aligned.shape):.1e} cells, too many to count as zeros: leave "
            f"modes out, or use " + either("absent='missing'", f"--absent {name}=missing")
        )
    unknown = aligned.coordinates[:, ~known]
    kept = aligned if known.all() else aligned.take(known)
    made = Relation(name, kept, unknown, own, structure, float(divergence), dispersion, absent)
    if not isinstance(data, Privatised):
        return made
    if absent == "zero":
        raise SettingError(
            f"cells of {name!r} without an entry are missing, since its values are noisy and no cell is "
            "known to be zero: privatise zeros like other values, or use "
            + either("absent='missing'", f"--absent {name}=missing")
        )
    which = _aligned(tensor.with_values(data.numbers), aligned.modes).values[known]
    return replace(made, privatised=Privatised(kept, data.passed, which.astype(np.int16), data.promises))


def check_divergence(name: str, divergence: float) -> None:
    """Refuse a p for which there are no updates."""
    if not (is_number(divergence) and 0 <= divergence <= MOST_DIVERGENCE):
        raise SettingError(
            f"the divergence of {name!r} is a number between 0 and 3 (0 Euclidean, 1 Kullback-Leibler, "
            f"2 Itakura-Saito), got {shown(divergence)}"
        )


def _aligned(tensor: SparseTensor, modes: Sequence[Mode]) -> SparseTensor:
    """The tensor with the levels of other modes of the same names."""
    if tuple(tensor.modes) == tuple(modes):
        return tensor
    return SparseTensor(levels_among(tensor, modes), tensor.values, tuple(modes), tensor.bounds)
