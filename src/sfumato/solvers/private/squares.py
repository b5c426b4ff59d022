"""What is made of noisy squares of own rows (``own_squares``): post-processing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sfumato.privacy.mechanisms import Noisy
from sfumato.solvers.least_squares.own_rows import ASKED_ROWS, OWN_SQUARES
from sfumato.types import Array

_MOST_PULL = 3.0  # of what is asked about
_DOUBT_OF_VARIANCE = 0.7  # how far prior variances may be from the truth, as a share of them
_VARIANCES = 0.02, 4.0  # between which what is learnt of them has to lie


class OwnScales(NamedTuple):
    """By group of columns: variances over those of the prior, and how far rows go along with means."""

    variances: Array
    pulls: Array


def read_squares(noisy: Noisy, owners: int, usual: float = 0.0) -> OwnScales:
    """How much owners differ along each group of columns, over what was taken for granted, and how far
    they go along with what is expected of them.

    With T the share of a row that its entries tell and t what is expected (see ``own_squares``),
    rows of v times the prior's variance and k times what is expected have the mean products k t^2 with
    t, and the mean squares v T^2 + T (1 - T) + k^2 t^2. Where noise hides it, k is the ``usual``.
    """
    number = noisy.values.shape[0] // OWN_SQUARES
    squares, moved, twice, along, against, told = np.maximum(
        noisy.values.reshape(OWN_SQUARES, number), 1e-9
    )
    # The square of a number between zero and one is smaller than it, but not in the mean of many.
    twice = np.clip(twice, moved**2 / min(owners, ASKED_ROWS), moved)
    told = np.maximum(told, 1e-3 * twice)
    pulls = usual + ((along - against) / told - usual) / (1 + 2 * (noisy.deviation / told) ** 2)
    pulls = np.clip(pulls, -_MOST_PULL, _MOST_PULL)
    guess = (squares - pulls**2 * told - moved + twice) / twice
    error = 2 * (noisy.deviation / twice) ** 2
    kept = _DOUBT_OF_VARIANCE**2 / (_DOUBT_OF_VARIANCE**2 + error)
    return OwnScales(np.clip(1 + kept * (guess - 1), *_VARIANCES), pulls)
