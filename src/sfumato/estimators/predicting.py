"""Predictions of a fitted model by label, and with rows of those who bring entries of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfumato.data import prepare
from sfumato.data.cells import labels_in
from sfumato.data.io.read import read_entries
from sfumato.data.tensor import Mode, SparseTensor, find_levels, find_mode, locate
from sfumato.errors import SettingError
from sfumato.fit.own import OwnRows
from sfumato.models.doubts import Errors, Interval
from sfumato.models.losses import LOSSES, Bounds, Loss
from sfumato.models.multilinear import Multilinear
from sfumato.sites.device import predicted_there
from sfumato.surface import either
from sfumato.types import Array

UNSEEN = ("error", "bias")  # what labels that were not in training lead to


def coordinates_of(cells: Any, modes: tuple[Mode, ...], fallback: str) -> NDArray[np.int32]:
    """Where the cells of a tensor or of a table are among the modes of a model."""
    if isinstance(cells, SparseTensor) and cells.modes == modes:
        return cells.coordinates
    return _located(modes, labels_in(cells, modes), fallback)


def _located(modes: Sequence[Mode], labels: Mapping[str, Any], fallback: str) -> NDArray[np.int32]:
    """Coordinates of labelled cells, -1 where a label is unknown and that is no error."""
    if fallback == "error":
        # Of rows that stay with their owners a release knows nobody: that is no error.
        kept = {mode.name for mode in modes if not mode.size}
        known = [mode for mode in modes if mode.size]
        locate(known, {name: column for name, column in labels.items() if name not in kept})
    return find_levels(modes, labels)


def values_at(
    model: Multilinear, coordinates: NDArray[np.int32], threads: int, device: str = "cpu"
) -> Array:
    """Values of cells; mean and known biases where a level is unknown."""
    known = (coordinates >= 0).all(axis=0)
    if known.all():
        return _known_values(model, coordinates, threads, device)
    values = np.empty(coordinates.shape[1], model.dtype)
    values[known] = _known_values(model, coordinates[:, known], threads, device)
    values[~known] = _bias_prediction(model, coordinates[:, ~known])
    return values


def _known_values(
    model: Multilinear, coordinates: NDArray[np.int32], threads: int, device: str
) -> Array:
    if not predicted_there(device, coordinates.shape[1]):
        return model.predict(coordinates, threads=threads)
    from sfumato.kernels.jax.predictions import predict_cells

    return predict_cells(model, coordinates)


def _bias_prediction(model: Multilinear, coordinates: NDArray[np.int32]) -> Array:
    biases = [
        np.where(levels >= 0, bias[levels], 0) if bias.size else np.zeros(levels.shape)
        for bias, levels in zip(model.mode_biases, coordinates, strict=True)
    ]
    total: Array = model.mean + np.sum(biases, axis=0)
    return total


def within(bounds: Bounds, values: Array) -> Array:
    """Values within the data's bounds, where it has some."""
    return values if bounds is None else np.clip(values, *bounds)


class KnownModes(NamedTuple):
    """What a fit knows of the cells that it predicts: labels, bounds, whose rows stay with their owners,
    and how many entries each of these has, where intervals need it.
    """

    modes: tuple[Mode, ...]
    bounds: Bounds
    local: int | None
    own_entries: Array | None


# -- intervals -------------------------------------------------------------------------------------


class Deviations(NamedTuple):
    """Standard deviations at cells: what the noise of privacy adds, and what data scatter."""

    noise: Array
    scatter: Array


def check_told(errors: Errors | None) -> None:
    """Refuse an interval of a private fit that nothing was released for."""
    if errors is None:
        raise SettingError(
            "this release does not say how far values lie from its predictions: fit again with "
            + either("Privacy(intervals=True)", "--intervals")
        )


def deviations_at(
    errors: Errors, coordinates: NDArray[np.int32], own_entries: Array | None
) -> Deviations:
    """What is expected of cells; -1 is a level of which nothing is known."""
    return Deviations(*map(np.sqrt, errors.variances(coordinates, own_entries)))


def deviations_with_own(
    errors: Errors,
    modes: tuple[Mode, ...],
    rows: OwnRows,
    cells: Any,
    fallback: str,
    own_entries: Array | None,
) -> Deviations:
    """The same where some labels are those of owners who bring entries."""
    labels = labels_in(cells, modes)
    mine = find_levels(rows.modes, labels)[rows.mode] >= 0
    found = np.empty((2, mine.shape[0]))
    for part, by, entries in ((mine, rows.modes, rows.entries), (~mine, modes, own_entries)):
        there = {name: np.asarray(column)[part] for name, column in labels.items()}
        found[:, part] = deviations_at(errors, _located(by, there, fallback), entries)
    return Deviations(*found)


def interval_of(
    errors: Errors, bounds: Bounds, values: Array, expected: Deviations, level: float
) -> Interval:
    """Predictions with what lies about them, within the data's bounds."""
    below, above = errors.bounds(level)
    whole = np.hypot(*expected)
    low, high = (within(bounds, values + ends * whole) for ends in (below, above))
    return Interval(values, low, high, *expected)


def interval_at(
    errors: Errors,
    known: KnownModes,
    cells: Any,
    rows: OwnRows | None,
    fallback: str,
    values: Array,
    level: float,
) -> Interval:
    """The same from the cells themselves, some of which may be of owners who bring entries."""
    if rows is not None and rows.mode == known.local:
        by = errors, known.modes, rows, cells, fallback, known.own_entries
        return interval_of(errors, known.bounds, values, deviations_with_own(*by), level)
    # Labels of whoever brings entries to a mode that was released need not be known.
    coordinates = coordinates_of(cells, known.modes, fallback if rows is None else "bias")
    expected = deviations_at(errors, coordinates, known.own_entries)
    return interval_of(errors, known.bounds, values, expected, level)


def normal_interval(bounds: Bounds, values: Array, scatter: float, level: float) -> Interval:
    """Of a fit without privacy: normal residuals of one variance."""
    from scipy.stats import norm

    deviation = np.full(values.shape, scatter**0.5)
    apart = float(norm.ppf((1 + level) / 2)) * deviation
    low, high = (within(bounds, values + sign * apart) for sign in (-1, 1))
    return Interval(values, low, high, np.zeros(values.shape), deviation)


# -- own rows --------------------------------------------------------------------------------------


def owners_mode(modes: Sequence[Mode], local: int | None, name: str | None) -> int:
    """The mode whose rows own entries solve: the local one, or else the one named, or the first."""
    if local is None:
        return 0 if name is None else find_mode(modes, name)
    if name not in (None, modes[local].name):
        raise SettingError(
            f"rows of {modes[local].name} stay with their owners: own entries solve these, not those of "
            f"{name}"
        )
    return local


def read_own(
    own: Any,
    value: str | None,
    modes: tuple[Mode, ...],
    bounds: Bounds,
    duplicates: prepare.DuplicatePolicy | None,
    loss: Loss = LOSSES["squared"],
) -> SparseTensor:
    """Own entries on the scale that was fitted, clipped to its bounds; several at one cell are merged,
    or with None all kept.
    """
    tensor = read_entries(own, modes, value)
    prepare.check_values(tensor.with_values(tensor.values))  # without bounds, which clip
    tensor = tensor.with_values(loss.fitted(tensor.values))
    if bounds is not None:
        tensor = prepare.clip(tensor, bounds)
    return tensor if duplicates is None else prepare.merge_duplicates(tensor, duplicates)


def values_with_own(
    model: Multilinear,
    modes: tuple[Mode, ...],
    rows: OwnRows,
    cells: Any,
    fallback: str,
    threads: int,
    device: str = "cpu",
) -> Array:
    """Values of cells: by the owners' rows where the label is an owner's, else as ever."""
    labels = labels_in(cells, modes)
    mine = find_levels(rows.modes, labels)[rows.mode] >= 0
    values = np.empty(mine.shape[0], model.dtype)
    for part, by, by_modes in ((mine, rows.model, rows.modes), (~mine, model, modes)):
        there = {name: np.asarray(column)[part] for name, column in labels.items()}
        values[part] = values_at(by, _located(by_modes, there, fallback), threads, device)
    return values
