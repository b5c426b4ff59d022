"""Errors by popularity of levels, of whatever tells enough of one table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sfumato.data.tensor import Mode, SparseTensor, find_mode
from sfumato.errors import DataError, SettingError
from sfumato.models.doubts import Errors
from sfumato.report.records import Group, Groups
from sfumato.surface import either
from sfumato.types import Array

_GROUPS = 5
RELEASABLE = "from released numbers alone: may be handed out with the release"
HELD = "measured on raw held-out entries: NOT releasable, it stays with the holder"


class Told(NamedTuple):
    """What a fit tells of one table: its own, or one of several."""

    modes: tuple[Mode, ...]
    local: int | None
    errors: Errors | None
    predict: Callable[[SparseTensor], Array]


def groups_of(told: Told, mode: str, held_out: SparseTensor | None = None) -> Groups:
    """Expected errors of a private fit by released popularity; with held-out entries measured ones."""
    if told.errors is None:
        raise SettingError(
            "this model does not say how far values lie from its predictions: fit it privately with "
            + either("Privacy(intervals=True)", "--intervals")
        )
    at = find_mode(told.modes, mode)
    counts = told.errors.doubts.counts[at]
    if counts is None or not counts.size or at == told.local:
        raise SettingError(f"nothing was released of how often each {mode} occurs: name another mode")
    order = np.argsort(counts, kind="stable")
    cells = np.full((len(told.modes), counts.shape[0]), -1)
    cells[at] = np.arange(counts.shape[0])
    noise, scatter = told.errors.variances(cells)
    missed = None if held_out is None else _squares(told, held_out, at)
    made = [
        _group(counts, noise, scatter, part, missed)
        for part in np.array_split(order, min(_GROUPS, order.shape[0]))
    ]
    return Groups(mode, RELEASABLE if missed is None else HELD, tuple(made))


def _squares(told: Told, held_out: SparseTensor, at: int) -> tuple[Array, Array]:
    """Number of held-out entries and their squared errors, by level."""
    if not np.isfinite(held_out.values).all():
        raise DataError("held-out values have to be numbers, and some are NaN or infinite: remove them")
    levels = told.modes[at].find(held_out.modes[at].labels_at(held_out.coordinates[at]))
    known, size = levels >= 0, told.modes[at].size
    misses = (held_out.values - told.predict(held_out)) ** 2
    return np.bincount(levels[known], minlength=size), np.bincount(
        levels[known], misses[known], minlength=size
    )


def _group(
    counts: Array, noise: Array, scatter: Array, part: Array, missed: tuple[Array, Array] | None
) -> Group:
    measured: dict[str, Any] = {}
    if missed is not None:
        number = int(missed[0][part].sum())
        error = float(np.sqrt(missed[1][part].sum() / number)) if number else None
        measured = {"held_out": number, "measured": error}
    squares = [float(each[part].mean()) for each in (noise, scatter)]
    return Group(
        levels=int(part.shape[0]),
        counted=float(counts[part].mean()),
        noise=squares[0] ** 0.5,
        scatter=squares[1] ** 0.5,
        expected=sum(squares) ** 0.5,
        **measured,
    )


def all_groups(told: Told, held_out: SparseTensor | None = None) -> tuple[Groups, ...]:
    """Those of each mode of which enough is told."""
    if told.errors is None:
        return ()
    known = [
        mode.name
        for m, (mode, counts) in enumerate(zip(told.modes, told.errors.doubts.counts, strict=True))
        if counts is not None and counts.size and m != told.local
    ]
    return tuple(groups_of(told, name, held_out) for name in known)
