"""Lists of what each owner would see next, and how many of them were seen after all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfumato.checks import check_count
from sfumato.data.tensor import Mode, find_mode
from sfumato.errors import DataError, SettingError, UnknownLabelError
from sfumato.estimators.predicting import coordinates_of
from sfumato.kernels.numba.lists import NOBODY, Held, best_levels, list_gains
from sfumato.models.multilinear import Multilinear
from sfumato.sites.device import predicted_there
from sfumato.surface import either, setting
from sfumato.types import Array

if TYPE_CHECKING:
    import pyarrow as pa

_AT_ONCE = 1 << 16  # owners, or places in lists, that are worked on at a time


@dataclass(frozen=True, eq=False)
class Lists:
    """For each level of one mode the best levels of another: a row each, best first, -1 for none."""

    levels: Array
    owners: Mode
    items: Mode
    choice: Choice

    def of(self, label: object) -> list[Any]:
        """The list of one owner, by label."""
        row = self.owners.find(np.array([label], object if self.owners.labels is not None else None))
        if row[0] < 0:
            raise DataError(f"{self.owners.name} has no level {label!r}")
        return [self.items.label(int(level)) for level in self.levels[row[0]] if level != NOBODY]


class Choice(NamedTuple):
    """Lists of levels of ``mode`` for each level of ``of``, at one level of every other mode."""

    mode: int
    of: int
    at: Mapping[int, int]

    def cells(self, order: int, owners: Array, levels: Array | int = 0) -> NDArray[np.int32]:
        """Cells of some owners, at levels of the mode that lists are of."""
        made = np.zeros((order, len(owners)), np.int32)
        for mode, level in self.at.items():
            made[mode] = level
        made[self.of], made[self.mode] = owners, levels
        return made

    def held(self, cells: Array, owners: int) -> Held:
        """What of some cells each owner has where this looks."""
        here = np.ones(cells.shape[1], np.bool_)
        for mode, level in self.at.items():
            here &= cells[mode] == level
        return _held(cells[self.of, here], cells[self.mode, here], owners)


def chosen(
    modes: tuple[Mode, ...], mode: str, of: str | None, labels: Mapping[str, Any], local: int | None
) -> Choice:
    """Levels of a mode for each of another: the one named, or the only one without a label."""
    names, m = [each.name for each in modes], find_mode(modes, mode)
    where = {find_mode(modes, name): label for name, label in labels.items()}
    if any(np.ndim(label) for label in where.values()):
        raise SettingError("lists take one label of each mode that is given")
    left = [other for other in range(len(modes)) if other != m and other not in where]
    if of is not None:
        o = find_mode(modes, of)
    elif local in left:
        o = local
    else:
        o = left[0] if len(left) == 1 else m
    if missing := [names[other] for other in left if other != o]:
        which = "" if o != m else f", or say for which of them lists are: {either('of', '--for')}"
        how = either(f"{missing[0]}=...", f"--at {missing[0]}=LABEL")
        raise SettingError(f"give a label of {' and '.join(missing)}, {how}{which}")
    if o == m or o in where:
        raise SettingError(
            f"lists of {mode} are for each level of another mode, whose label is not given"
        )
    for each in (m, o):
        if not modes[each].size:
            raise SettingError(
                f"rows of {names[each]} stay with their owners, and this release has none: use the "
                f"folder of the whole model, or bring entries of their own with {setting('own')}"
            )
    at = {}
    for other, label in where.items():
        at[other] = int(modes[other].find(np.array([label], object))[0])
        if at[other] < 0:
            raise UnknownLabelError(f"mode {names[other]!r} has no level {label!r}")
    return Choice(m, o, at)


def lists_of(
    model: Multilinear,
    modes: tuple[Mode, ...],
    choice: Choice,
    seen: Array,
    k: int,
    threads: int,
    device: str = "cpu",
) -> Lists:
    """The best levels of a mode for each level of another, without those that were seen."""
    check_count(k=k)
    everyone = np.arange(modes[choice.of].size)
    held = choice.held(seen, len(everyone))
    nowhere = empty_places(modes[choice.mode])
    biases = np.where(nowhere, -np.inf, model.mode_biases[choice.mode])  # behind all others
    what = model.factors[choice.mode], biases
    best = [np.empty((0, k), np.int64)]
    best_of = _kernel(device, len(everyone) * modes[choice.mode].size)
    for begin in range(0, len(everyone), _AT_ONCE):
        some = everyone[begin : begin + _AT_ONCE]
        owners = model.design(choice.mode, choice.cells(len(modes), some))
        theirs = Held(held.starts[begin : begin + len(some) + 1], held.levels)
        best.append(best_of(owners, *what, theirs, k, threads))
    levels = np.concatenate(best)
    levels[nowhere[levels] & (levels != NOBODY)] = NOBODY
    levels[empty_places(modes[choice.of])] = NOBODY
    return Lists(levels, modes[choice.of], modes[choice.mode], choice)


def _kernel(device: str, scores: int) -> Callable[..., Array]:
    if not predicted_there(device, scores):
        return best_levels
    from sfumato.kernels.jax import predictions

    return predictions.best_levels


def empty_places(mode: Mode) -> NDArray[np.bool_]:
    """Which places of a mode no owner has: a fit makes them up to a number of owners that is public.

    It calls them (nobody 1), (nobody 2) and so on, with strokes behind nobody where an owner's own
    label begins like that.
    """
    if mode.labels is None:
        return np.zeros(mode.size, np.bool_)
    names, nobody = [str(label) for label in mode.labels], "(nobody"
    while any(name.startswith(f"{nobody}' ") for name in names):
        nobody += "'"
    found = np.array([name.startswith(f"{nobody} ") for name in names], np.bool_)
    made_up = {f"{nobody} {number + 1})" for number in range(int(found.sum()))}
    if not made_up.issubset(names):  # an owner is called so
        found[:] = False
    return found


def as_table(
    lists: Lists, modes: tuple[Mode, ...], values: Callable[[NDArray[np.int32]], Array]
) -> pa.Table:
    """A row for each place in a list: whose it is, its rank from one on, the level, the prediction."""
    import pyarrow as pa

    places = np.argwhere(lists.levels != NOBODY)
    owners, levels = places[:, 0], lists.levels[tuple(places.T)]
    found = [np.empty(0)]
    for begin in range(0, len(owners), _AT_ONCE):
        some = slice(begin, begin + _AT_ONCE)
        found.append(values(lists.choice.cells(len(modes), owners[some], levels[some])))
    columns = {
        lists.owners.name: lists.owners.labels_at(owners),
        "rank": places[:, 1] + 1,
        lists.items.name: lists.items.labels_at(levels),
        "prediction": np.concatenate(found),
    }
    if len(columns) < 4:
        raise SettingError(
            "a table of lists has columns rank and prediction: rename the modes called so"
        )
    return pa.table(columns)


def scored(lists: Lists, wanted: Array) -> dict[str, float]:
    """Mean recall and NDCG over owners that want something."""
    held = lists.choice.held(wanted, lists.owners.size)
    there = np.diff(held.starts) > 0
    if not there.any():
        raise DataError("none of the held-out entries has labels that the model knows")
    recall, ndcg = list_gains(lists.levels, held)[there].mean(axis=0)
    return {"recall": float(recall), "ndcg": float(ndcg)}


def seen_cells(
    seen: Any, modes: tuple[Mode, ...], fitted: Array | None, *, needed: bool
) -> NDArray[np.int32]:
    """Cells that are left out of lists: those given, or those that were fitted.

    Cells with a label that the model does not know are in no list anyway.
    """
    if seen is None:
        if fitted is not None:
            return fitted
        if needed:
            raise SettingError(
                f"a model that was loaded does not know what was seen: give {setting('seen')}, a tensor "
                "or a table with a column of labels for each mode"
            )
        return np.zeros((len(modes), 0), np.int32)
    cells = coordinates_of(seen, modes, "bias")
    known: NDArray[np.int32] = cells[:, (cells >= 0).all(axis=0)]
    return known


def _held(owners: Array, levels: Array, size: int) -> Held:
    """Levels by owner, in order and each once."""
    pairs = np.unique(np.stack([owners, levels]).astype(np.int64), axis=1)
    starts = np.searchsorted(pairs[0], np.arange(size + 1))
    return Held(starts.astype(np.int64), np.ascontiguousarray(pairs[1]))
