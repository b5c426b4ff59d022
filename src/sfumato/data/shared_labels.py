"""Modes of several tensors: what has the same name is the same, with labels in one order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import DataError


def shared_modes(tensors: Mapping[str, SparseTensor], *, may_be_apart: bool = False) -> tuple[Mode, ...]:
    """All modes in the order in which they first occur, each with the labels of all its relations.

    That no label is in more than one of them is an error, unless they ``may_be_apart``.
    """
    found: dict[str, list[tuple[str, Mode]]] = {}
    for relation, tensor in tensors.items():
        for mode in tensor.modes:
            found.setdefault(mode.name, []).append((relation, mode))
    return tuple(_united(name, given, may_be_apart) for name, given in found.items())


def _united(name: str, given: Sequence[tuple[str, Mode]], may_be_apart: bool) -> Mode:
    (first_relation, first), *others = given
    for relation, mode in others:
        if mode.bin != first.bin:
            raise DataError(
                f"mode {name!r} has times by {first.bin or 'no bin'} in {first_relation!r} and by "
                f"{mode.bin or 'no bin'} in {relation!r}: read both with the same bin"
            )
        if (mode.labels is None) != (first.labels is None):
            raise DataError(
                f"mode {name!r} has labels in one of {first_relation!r} and {relation!r} only: what is "
                "the same cannot be told; give labels to both, or rename one mode"
            )
        if mode.labels is None and mode.size != first.size:
            raise DataError(
                f"mode {name!r} has {first.size:,} levels in {first_relation!r}, {mode.size:,} in "
                f"{relation!r}, and no labels that say which are the same: give labels, or rename one "
                "mode"
            )
    if first.labels is None or all(mode == first for _, mode in others):
        return first
    labels = [mode.labels for _, mode in given if mode.labels is not None]
    if len({kind.dtype.kind for kind in labels}) > 1:  # numbers in one table, text in another
        labels = [np.array([str(label) for label in kind.tolist()], object) for kind in labels]
    united = np.unique(np.concatenate(labels))
    if (
        len(united) == sum(map(len, labels)) and not may_be_apart
    ):  # nothing is shared: often "u1" here and "U1" there
        found = ", ".join(
            f"{relation!r} (such as {levels[0]!r})"
            for (relation, _), levels in zip(given, (each.tolist() for each in labels), strict=True)
        )
        raise DataError(
            f"no label of mode {name!r} is in more than one of {found}: write labels the same way in "
            "all tables, or rename the mode where it means something else"
        )
    return Mode(name, len(united), united, first.bin)


def levels_among(tensor: SparseTensor, modes: Sequence[Mode]) -> NDArray[np.int32]:
    """Coordinates of a tensor's entries, in their order, at levels of other modes of the same names."""
    return np.stack(
        [
            levels if old == new else new.find(old.labels_at(np.arange(old.size)))[levels]
            for levels, old, new in zip(tensor.coordinates, tensor.modes, modes, strict=True)
        ]
    )
