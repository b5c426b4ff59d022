"""What a network is shown of an example: a row of numbers of about length one, on a grid.

Each row is made of its own example and of public numbers alone, so that making it costs no privacy; the
mean of all rows, which is subtracted afterwards, is charged (:mod:`sfumato.solvers.network.queries`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sfumato.kernels.grid import INPUT_STEP
from sfumato.records import record
from sfumato.types import Array

_LEAST = 1e-9
_FLOOR = 1e-5  # variance of a group of features below which it is taken for flat
_STRETCH, _HIDDEN_STRETCH = 2.5, 5.0  # of columns within bounds, which use a part of these
_PICTURES = 4096  # that are scaled at once
_LONGEST = 0.6  # times the stretch is how long a row of columns may be


class Features(Protocol):
    """How rows are made of examples, in two steps: alone, and once the mean is known."""

    @property
    def size(self) -> int: ...

    def rows(self, examples: Any) -> NDArray[np.int16]:
        """Rows in whole steps, none longer than one."""

    def centred(self, rows: Array, mean: Array) -> NDArray[np.int16]:
        """The same around a mean."""


def as_steps(values: Array) -> NDArray[np.int16]:
    """Numbers as whole steps, towards zero, so that no length grows."""
    most = np.iinfo(np.int16).max
    return np.clip(np.trunc(values / INPUT_STEP), -most, most).astype(np.int16)


@record
@dataclass(frozen=True)
class Column:
    """One column: numbers within public bounds, or one of some public categories."""

    name: str
    bounds: tuple[float, float] | None = None
    categories: tuple[str | int, ...] = ()

    @property
    def size(self) -> int:
        return 1 if self.bounds is not None else len(self.categories)

    def scaled(self, values: Array) -> Array:
        """Rows of length one at most: numbers between -1 and 1, or a one for a category.

        Whatever is none of these, missing values among them, is a row of zeros.
        """
        if self.bounds is None:
            places = places_of(values, self.categories)[:, None]
            return np.asarray(places == np.arange(len(self.categories)), np.float32)
        low, high = self.bounds
        middle, half = low / 2 + high / 2, high / 2 - low / 2
        # Clipped once more: of bounds that lie close beside their size, the middle is rounded.
        numbers = np.clip((np.clip(as_numbers(values), low, high) - middle) / half, -1, 1)
        return np.where(np.isnan(numbers), 0.0, numbers)[:, None]


def as_numbers(values: Any) -> Array:
    """Numbers, each by itself; what is none is missing, and nothing is said of it."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return values.astype(np.float64)
    return np.array([_number(value) for value in _listed(values)], np.float64)


def _number(value: Any) -> float:
    try:
        return float(value)
    except Exception:  # of whatever kind: it may be anything
        return np.nan


def places_of(values: Any, categories: Sequence[str | int]) -> NDArray[np.int32]:
    """Which of some categories each value is, -1 for none: words or whole numbers, and 2.0 is 2."""
    places: dict[Any, int] = {category: place for place, category in enumerate(categories)}
    return np.array([places.get(label_of(value), -1) for value in _listed(values)], np.int32)


def _listed(values: Any) -> list[Any]:
    listed: list[Any] = values.tolist() if isinstance(values, np.ndarray) else list(values)
    return listed


def label_of(value: Any) -> str | int | None:
    """A value as categories are written; None for what can be no category."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, str | int) else None


@record
@dataclass(frozen=True)
class Columns:
    """Columns of a table, each scaled by public numbers."""

    columns: tuple[Column, ...]
    hidden: bool = False  # whether there are hidden layers, which take longer rows

    @property
    def size(self) -> int:
        return sum(column.size for column in self.columns)

    def rows(self, examples: Any) -> NDArray[np.int16]:
        """Of the values of each column."""
        made = np.zeros((len(examples[0]), self.size), np.int16)
        begin = 0
        for column, values in zip(self.columns, examples, strict=True):
            end = begin + column.size
            made[:, begin:end] = as_steps(column.scaled(values) / sqrt(len(self.columns)))
            begin = end
        return made

    def centred(self, rows: Array, mean: Array) -> NDArray[np.int16]:
        stretch = _HIDDEN_STRETCH if self.hidden else _STRETCH
        moved = (rows * INPUT_STEP - mean) * stretch
        lengths = np.sqrt(np.einsum("nd,nd->n", moved, moved))
        return as_steps(moved * np.minimum(1, _LONGEST * stretch / np.maximum(lengths, _LEAST))[:, None])


@record
@dataclass(frozen=True)
class Pictures:
    """Scattering of pictures of one channel, within public bounds (``kernels/jax/scattering.py``)."""

    height: int
    width: int
    low: float
    high: float
    scales: int = 2
    angles: int = 8

    @property
    def paths(self) -> int:
        pairs = self.scales * (self.scales - 1) // 2
        return 1 + self.scales * self.angles + pairs * self.angles**2

    @property
    def size(self) -> int:
        unit = 1 << self.scales
        return self.paths * ((self.height + unit) // unit - 1) * ((self.width + unit) // unit - 1)

    def rows(self, examples: Any) -> NDArray[np.int16]:
        from sfumato.kernels.jax.scattering import scattered

        scaled = self._scaled(np.asarray(examples).reshape(len(examples), -1))
        rows = np.empty((len(scaled), self.size), np.int16)
        begin = 0
        for some in scattered(scaled, self.scales, self.angles):
            rows[begin : begin + len(some)] = self._normalised(some)
            begin += len(some)
        return rows

    def _scaled(self, pictures: Array) -> Array:
        """Pixels from 0 to 1, what is none of them 0; some pictures at a time, for the memory."""
        scaled = np.empty((len(pictures), self.height, self.width), np.float32)
        for begin in range(0, len(pictures), _PICTURES):
            some = pictures[begin : begin + _PICTURES]
            pixels = as_numbers(some.reshape(-1)).reshape(-1, self.height, self.width)
            within = (np.clip(pixels, self.low, self.high) - self.low) / (self.high - self.low)
            scaled[begin : begin + _PICTURES] = np.where(np.isnan(within), 0.0, within)
        return scaled

    def _normalised(self, paths: Array) -> NDArray[np.int16]:
        """Groups of paths that differ in one angle, of mean 0 and variance 1 each; then length 1."""
        flat = paths.reshape(len(paths), self.paths, -1)
        groups = [flat[:, :1], *np.split(flat[:, 1:], (self.paths - 1) // self.angles, axis=1)]
        made = np.concatenate([_standard(group) for group in groups], axis=1)
        return as_steps(_shortened(made))

    def centred(self, rows: Array, mean: Array) -> NDArray[np.int16]:
        return as_steps(_shortened(rows * np.float32(INPUT_STEP) - mean.astype(np.float32)))


def _standard(group: Array) -> Array:
    moved = group - group.mean((1, 2), keepdims=True)
    spread = np.sqrt(group.var((1, 2), keepdims=True) + _FLOOR)
    return np.asarray((moved / spread).reshape(len(group), -1))


def _shortened(rows: Array) -> Array:
    """Rows of length one; a hair less, for roundings in single precision."""
    lengths = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    return np.asarray(rows * ((1 - 2.0**-12) / np.maximum(lengths, _LEAST))[:, None])
