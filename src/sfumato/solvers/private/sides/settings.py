"""Settings of fits beside other relations, and what they ask: from public numbers alone."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, Literal, NamedTuple

from sfumato.data.tensor import passing_times
from sfumato.privacy.facts import Facts
from sfumato.privacy.units import UnitValues
from sfumato.solvers.private.alternating.solver import PrivateAlternating
from sfumato.solvers.private.moments.settings import share_of_biases
from sfumato.solvers.private.moments.solver import PrivateMoments

# Chosen on invented data of several shapes.
_SHARE = 0.03  # of the budget, for what is asked about side columns
_BARE_SHARE, _MOST_SHARE = 0.3, 0.5  # the same where biases are all that is fitted besides
_MOMENT_SHARE = 0.1  # of that
_OWN_SHARE = 0.02  # of the budget, for how large own rows are along all columns
CLIP, UNIT_CLIP = 1.2, 2.0  # of residuals, over their deviation
UNIT_LENGTH, LENGTH = 0.6, 0.8  # that an owner's residuals are shortened to, over what is usual
REACH = 1.0  # of features, over the root of their number: the length that white ones have on average
POWER = 0.2  # variance that all columns of a mode explain together, over that of residuals
# What clipping leaves of the sums: of residuals, of them shortened by owner, and of units'.
GAIN, OWN_GAIN, UNIT_GAIN = 0.77, 0.6, 0.64
RIDGE, UNIT_RIDGE = 20.0, 5.0  # entries that an owner's numbers of zero count as much as
OWN_VARIANCE = 0.3  # of own rows about what is expected of them, over the variance of that
SLOPE_VARIANCE = 1 / 80  # of own slopes on features, over the variance of what is left
OWN_LENGTH = 0.45  # that an owner's squares are shortened to, over what they are if entries tell all
TELLING = 2.0  # the same where they tell a part, over that part: some tell more
LONGEST = 1.2  # what one entry's numbers are shortened to, over what would be usual
RAW_REACH = 0.08  # of own numbers before they are white, over the root of their number
EXPECTED, SLOPES = 0, 1  # groups of columns: what own rows are expected to have, features themselves
GROUPS = 2
MOST_STRENGTH = 2.0  # of what is expected
LEAST_FEATURES, MOST_FEATURES = 2, 8  # of a mode, or of owners
WORTH = 0.7  # noise in a column, over the deviation of residuals, times the number of columns


class Step(NamedTuple):
    """One draw after the relation's own: a question, about which modes, and its share of the budget."""

    asks: Literal["moment", "cross", "own"]
    by: int
    mode: int
    share: float


def side_share(inner: Any, facts: Facts, noise: float) -> float:
    """Of the budget: what a relation's own fit can spare for columns from others.

    Where biases are all that is fitted, as much as they do not need to be about as good.
    """
    if isinstance(inner, PrivateAlternating) or asks_own(inner, facts):
        return _SHARE
    return min(_MOST_SHARE, max(_BARE_SHARE, 1 - share_of_biases(facts, noise)))


def asks_own(inner: Any, facts: Facts) -> bool:
    """Whether a relation's own fit asks how large own rows are."""
    return isinstance(inner, PrivateMoments) and inner.has_columns(facts)


def side_steps(facts: Facts, features: Sequence[int], sources: bool, share: float) -> tuple[Step, ...]:
    """What is asked of a relation beside its own fit, where these modes have features.

    How large own rows are is asked once, along all columns: a relation's own fit leaves it to this. A
    Tucker model is fitted by itself: its ranks are those of its core.
    """
    if isinstance(facts.unit, UnitValues) or facts.shape.kind != "cp":  # a core has no free columns
        return ()
    local, times = facts.local, passing_times(facts.modes)
    modes = [m for m, size in enumerate(facts.sizes) if m != local and not times[m] and size > 1]
    steps: list[Step] = []
    if local is not None and (sources or local in features):
        pairs = [(local, m) for m in modes]
    elif local is None and facts.unit_mode is None:
        pairs = [(d, m) for d in sorted(set(features)) for m in modes if m != d]
    else:
        pairs = []
    slopes = local is not None and any(mode != local for mode in features)
    if sources and pairs:
        steps.append(Step("moment", local or 0, local or 0, share * _MOMENT_SHARE))
        share *= 1 - _MOMENT_SHARE
    whole = sum(sqrt(facts.sizes[m]) for _, m in pairs)
    steps += [Step("cross", d, m, share * sqrt(facts.sizes[m]) / whole) for d, m in pairs]
    if local is not None and (pairs or slopes):
        steps.append(Step("own", local, local, _OWN_SHARE))
    return tuple(steps)


def label(facts: Facts, step: Step) -> str:
    if step.asks == "moment":
        return "second moment of own numbers"
    if step.asks == "own":
        return "squares of own rows"
    by, mode = facts.modes[step.by].name, facts.modes[step.mode].name
    return f"residuals by {mode}, times what is known of {by}"
