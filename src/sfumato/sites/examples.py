"""Examples to learn from: inputs on a grid, targets, and whose they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import DataError
from sfumato.kernels.grid import INPUT_STEP
from sfumato.types import Array

_UP = 1 + 2.0**-20  # squares that are rounded to single precision are not smaller than they were
_ROWS = 8192  # that are worked on at once
_MOST_UNITS = 1 << 25  # each adds 2^36 steps at most: no sum leaves the range of what can be released


class Chunk(NamedTuple):
    """Some examples, and rows of nothing that fill a chunk up: they are not ``present``."""

    inputs: Array
    squares: Array
    targets: Array
    present: Array


class Examples:
    """Inputs in whole steps, with the square of their length, and targets.

    ``owners`` numbers whose each example is, from zero on; None where each is a unit by itself.
    """

    def __init__(
        self, inputs: NDArray[np.int16], targets: Array, owners: NDArray[np.int64] | None = None
    ) -> None:
        self.inputs, self.targets, self.owners = inputs, targets, owners
        self.squares = np.empty(len(inputs), np.float32)
        for rows in _pieces(len(inputs)):
            whole = inputs[rows].astype(np.float64)
            self.squares[rows] = (np.einsum("nd,nd->n", whole, whole) * INPUT_STEP**2 + 1) * _UP
        if owners is not None:
            self._order = np.argsort(owners, kind="stable")
            self._ends = np.concatenate([[0], np.cumsum(np.bincount(owners))])
        if self.units > _MOST_UNITS:
            raise DataError(f"{self.units:,} units are more than the proofs cover, {_MOST_UNITS:,}")

    @property
    def units(self) -> int:
        """How many there are that privacy is about."""
        return len(self.inputs) if self.owners is None else len(self._ends) - 1

    def of_units(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """The examples of some units."""
        if self.owners is None:
            return units
        begins, sizes = self._ends[units], np.diff(self._ends)[units]
        before = np.cumsum(sizes) - sizes
        rows: NDArray[np.int64] = self._order[np.arange(sizes.sum()) + np.repeat(begins - before, sizes)]
        return rows

    def chunks(self, rows: NDArray[np.int64], size: int, one_size: bool = True) -> Iterator[Chunk]:
        """Some examples, so many at a time; what the last chunk lacks of it is filled with nothing."""
        for begin in range(0, len(rows), size):
            some = rows[begin : begin + size]
            chosen = np.zeros(size if one_size else len(some), np.int64)
            chosen[: len(some)] = some
            present = (np.arange(len(chosen)) < len(some)).astype(np.float32)
            yield Chunk(self.inputs[chosen], self.squares[chosen], self.targets[chosen], present)

    def summed(self, outputs: int, reach: float = inf) -> NDArray[np.int64]:
        """Sum of all inputs, then of targets, in steps; an owner's count together as much as one does.

        Targets are a number from -1 to 1, or a one for the class. Examples whose inputs are longer than
        ``reach`` are left out.
        """
        total = np.zeros(self.inputs.shape[1] + outputs, np.int64)
        for rows in _pieces(len(self.inputs)):
            near = self.squares[rows] <= 1 + reach**2
            shown = np.concatenate([self.inputs[rows], self._target_steps(rows, outputs)], axis=1)
            some = shown * near[:, None]
            if self.owners is not None:
                each = np.diff(self._ends)[self.owners[rows]]
                some = np.trunc(some / each[:, None])  # towards zero: no length grows
            total += some.sum(0, dtype=np.int64)
        return total

    def _target_steps(self, rows: slice, outputs: int) -> NDArray[np.int16]:
        if outputs == 1:
            numbers = np.clip(self.targets[rows].reshape(-1, 1), -1, 1)
            return np.trunc(numbers / INPUT_STEP).astype(np.int16)
        one = np.int16(1 / INPUT_STEP)
        return np.asarray((self.targets[rows][:, None] == np.arange(outputs)) * one, np.int16)

    def of(self, units: NDArray[np.bool_]) -> Examples:
        """The examples of some units, which a mask says."""
        if self.owners is None:
            return Examples(self.inputs[units], self.targets[units])
        rows = units[self.owners]
        owners = np.unique(self.owners[rows], return_inverse=True)[1]
        return Examples(self.inputs[rows], self.targets[rows], owners)

    def copied(self) -> Examples:
        """With inputs of its own."""
        return Examples(self.inputs.copy(), self.targets, self.owners)

    def by_unit(self, values: Array) -> Array:
        """The mean over each unit's examples of one number for each example."""
        if self.owners is None:
            return values
        return np.asarray(np.bincount(self.owners, values, self.units) / np.diff(self._ends))

    def mapped(self, through: Callable[[Array], Array]) -> Examples:
        """With other inputs, made of each example's own; they take the place of the old ones."""
        return Examples(mapped(self.inputs, through), self.targets, self.owners)


def _pieces(number: int) -> Iterator[slice]:
    return (slice(begin, begin + _ROWS) for begin in range(0, number, _ROWS))


def mapped(inputs: NDArray[np.int16], through: Callable[[Array], Array]) -> NDArray[np.int16]:
    """Inputs made of each row's own, some at a time; they take the place of the old ones."""
    for rows in _pieces(len(inputs)):
        inputs[rows] = through(inputs[rows])
    return inputs
