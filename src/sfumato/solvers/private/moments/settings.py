"""Settings of fits by moments, and the draws that they lead to: from public numbers alone."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt, sqrt
from typing import Literal, NamedTuple

import numpy as np

from sfumato.data.tensor import passing_times
from sfumato.privacy.facts import Facts
from sfumato.solvers.private.biases import enough_for_biases
from sfumato.solvers.private.free_columns import SLOPES
from sfumato.types import Array

# Chosen on invented data of several shapes, not on ratings that anybody would be scored on.
# Errors are flat around them: half as much for presence, or for the moment of ratings, changed none by
# more than one percent.
_PRESENCE_MOMENT, _PRESENCE, _RATING_MOMENT, _RATINGS = 0.22, 0.22, 0.18, 0.38  # of what biases leave
STEPS = 2  # projections of ratings
COLUMNS = 12  # of presence, and of each projection of ratings
OWN_SHARE = 0.03  # of the budget, for how large own rows are
RIDGE = 30.0  # entries that an owner's own mean of zero counts as much as
CLIP = 1.0  # of residuals, over their deviation, where entries are the units
UNIT_CLIP = 2.0  # of the same where units are clipped as a whole
UNIT_LENGTH = 0.6  # that a unit's residuals are shortened to, over what they are on average
REACH = 0.5  # of the length of an average owner's coordinates

_WEIGHT_POWER = 0.25  # units' cells weigh less at popular levels: by count^-0.25
_LEAST_WEIGHED = 0.3  # counts below this share of the average weigh as this

Asks = Literal["biases", "presence moment", "presence", "rating moment", "ratings", "own"]


_LEAST_BIAS_SHARE, _MOST_BIAS_SHARE = 0.08, 0.8  # of the budget


class Step(NamedTuple):
    """One draw: a question and its share of the budget; ``mode`` where it is about one."""

    asks: Asks
    mode: int
    share: float


@dataclass(frozen=True)
class Layout:
    """How many columns a mode has: slopes, of presence, and of each projection of ratings."""

    slopes: int
    presence: int
    ratings: int
    steps: int

    @property
    def rank(self) -> int:
        return self.slopes + self.presence + self.steps * self.ratings


def column_modes(facts: Facts) -> list[int]:
    """Modes whose levels have columns: neither local nor times, nor of one level."""
    times = passing_times(facts.modes)
    return [m for m, size in enumerate(facts.sizes) if m != facts.local and not times[m] and size > 1]


def layout(facts: Facts, mode: int, steps: int) -> Layout:
    """What a mode's part of the rank is spent on."""
    each = facts.shape.ranks[0] // max(1, len(column_modes(facts)))
    slopes = min(SLOPES, each)
    columns = min((each - slopes) // (1 + steps), facts.sizes[mode] - 1)
    return Layout(slopes, columns, columns, steps if columns else 0)


def asked_modes(facts: Facts, steps: int) -> list[int]:
    """Modes with columns that are asked for."""
    return [m for m in column_modes(facts) if layout(facts, m, steps).presence]


def usual_rank(facts: Facts, columns: int = COLUMNS) -> int:
    """Slopes and so many columns of each kind, for every mode that has columns."""
    return max(1, (SLOPES + (1 + STEPS) * columns) * len(column_modes(facts)))


def share_of_biases(facts: Facts, noise: float) -> float:
    """Twice what biases need by themselves: columns and own means are about what they leave."""
    return min(_MOST_BIAS_SHARE, max(_LEAST_BIAS_SHARE, 2 * enough_for_biases(facts, noise)))


def schedule(facts: Facts, biases: list[float], bias_share: float, steps: int, own: bool) -> list[Step]:
    """The draws in order, their shares adding up to one; ``biases`` are the first part's.

    Where there are no columns but those that cost nothing, biases are all that is asked for.
    """
    asked = asked_modes(facts, steps)
    if not asked:
        return [Step("biases", -1, share) for share in biases]
    made = [Step("biases", -1, bias_share * share) for share in biases]
    rest = 1 - bias_share - (OWN_SHARE if own else 0.0)
    whole = sum(sqrt(facts.sizes[m]) for m in asked)
    for m in asked:
        share = rest * sqrt(facts.sizes[m]) / whole
        made.append(Step("presence moment", m, share * _PRESENCE_MOMENT))
        made.append(Step("presence", m, share * _PRESENCE))
        made.append(Step("rating moment", m, share * _RATING_MOMENT))
        made += [Step("ratings", m, share * _RATINGS / steps)] * steps
    return [*made, Step("own", -1, OWN_SHARE)] if own else made


def popular_levels(facts: Facts, mode: int) -> int:
    """Levels whose moments are asked for: so many that there are no more pairs than entries."""
    return min(facts.sizes[mode], max(2, isqrt(int(2 * max(facts.expected_entries, sum(facts.sizes))))))


def label(facts: Facts, step: Step) -> str:
    if step.asks == "own":
        return "squares of own rows"
    what = {
        "presence moment": "pairs of {} at one owner",
        "presence": "owners by {}",
        "rating moment": "products of residuals by {}",
        "ratings": "residuals by {}",
    }[step.asks]
    return what.format(facts.modes[step.mode].name)


def level_weights(counts: Array) -> Array:
    """Less for popular levels, whose columns need less; an average entry's is one."""
    weights = np.maximum(counts, _LEAST_WEIGHED * counts.mean()) ** -_WEIGHT_POWER
    normed: Array = weights / sqrt(counts @ weights**2 / counts.sum())
    return normed
