"""What is made of noisy squares of own rows (``own_squares``): post-processing."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sfumato.privacy.mechanisms import Noisy
from sfumato.solvers.least_squares.own_rows import ASKED_ROWS, OWN_SQUARES
from sfumato.types import Array

_MOST_PULL = 3.0  # of what is asked about
_DOUBT_OF_VARIANCE = 0.7  # how far prior variances may be from the truth, as a share of them
_DOUBT_OF_SCATTER = 0.3  # the same of the scatter
_LEAST_SCATTER = 0.2
_VARIANCES = 0.02, 4.0  # between which what is learnt of them has to lie


class OwnScales(NamedTuple):
    """By group of columns: variances over those of the prior, and how far rows go along with means."""

    variances: Array
    pulls: Array


class _Squares(NamedTuple):
    """Sums over owners, by group (see ``own_squares``)."""

    rows: Array
    moved: Array
    twice: Array
    told: Array
    pulls: Array  # how far rows go along with what is expected of them

    @property
    def around(self) -> Array:
        """Squares of rows about what is expected of them."""
        around: Array = self.rows - self.pulls**2 * self.told
        return around

    @property
    def scattered(self) -> Array:
        """Squares of rows that would be there without any differences between owners."""
        return self.moved - self.twice


def of_groups(noisy: Noisy, first: int, end: int | None = None) -> Noisy:
    """What was released of some of the groups."""
    numbers = noisy.values.reshape(OWN_SQUARES, -1)[:, first:end]
    return replace(noisy, values=numbers.ravel())


def read_scatter(noisy: Noisy, owners: int) -> float:
    """What all columns leave of the values, over the scatter that rows were solved with: from 0.2 to 1.

    Rows that do not differ at all have mean squares of T (1 - T) times this. Some are smaller where the
    scatter was taken for too large, as it is where columns explain much of it: the smallest tells.
    """
    found = _squares(noisy, owners, 0.0)
    left = np.maximum(found.scattered, 1e-9)
    kept = 1 / (1 + 2 * (noisy.deviation / (_DOUBT_OF_SCATTER * left)) ** 2)
    return float(np.clip(np.min(1 + kept * (found.around / left - 1)), _LEAST_SCATTER, 1.0))


def read_squares(noisy: Noisy, owners: int, usual: float = 0.0, scatter: float = 1.0) -> OwnScales:
    """How much owners differ along each group of columns, over what was taken for granted, and how far
    they go along with what is expected of them.

    With T the share of a row that its entries tell and t what is expected (see ``own_squares``),
    rows of v times the prior's variance and k times what is expected have the mean products k t^2 with
    t, and the mean squares v T^2 + s T (1 - T) + k^2 t^2, s being the ``scatter`` over that which rows
    were solved with. Where noise hides it, k is the ``usual``.
    """
    found = _squares(noisy, owners, usual)
    guess = (found.around - scatter * found.scattered) / found.twice
    error = 2 * (noisy.deviation / found.twice) ** 2
    kept = _DOUBT_OF_VARIANCE**2 / (_DOUBT_OF_VARIANCE**2 + error)
    return OwnScales(np.clip(1 + kept * (guess - 1), *_VARIANCES), found.pulls)


def _squares(noisy: Noisy, owners: int, usual: float) -> _Squares:
    number = noisy.values.shape[0] // OWN_SQUARES
    squares, moved, twice, along, against, told = np.maximum(
        noisy.values.reshape(OWN_SQUARES, number), 1e-9
    )
    # The square of a number between zero and one is smaller than it, but not in the mean of many.
    twice = np.clip(twice, moved**2 / min(owners, ASKED_ROWS), moved)
    told = np.maximum(told, 1e-3 * twice)
    pulls = usual + ((along - against) / told - usual) / (1 + 2 * (noisy.deviation / told) ** 2)
    pulls = np.clip(pulls, -_MOST_PULL, _MOST_PULL)
    return _Squares(squares, moved, twice, told, pulls)
