"""Settings of alternating private fits, and the draws that they lead to: from public numbers alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import sqrt
from typing import Literal, NamedTuple

import numpy as np

from sfumato.data.tensor import passing_times
from sfumato.kernels.numba.alternating import CORE
from sfumato.privacy.facts import Facts
from sfumato.solvers.private.biases import enough_for_biases
from sfumato.solvers.private.free_columns import SLOPES
from sfumato.types import Array

# Chosen on invented data of several shapes; errors are flat around them, and close to the best that a
# search finds (benchmarks/settings.py). Those of time modes were settled with MovieLens 100K in view.
_LOCAL_SHARE = 0.7  # of another mode's, for rows that are solved again by their owners in the end
_TIME_SHARE = 0.4  # the same for a time mode, which starts near its end
_CORE_SHARE = 0.2  # of an average mode's, for a core, which has few numbers
LEAST_SHARE = 1e-9  # of the budget: with less, noise leaves the range of double precision
SCATTER_SHARE, OWN_SHARE = 0.005, 0.02  # of the budget, for residuals and for own rows' moments
_WEIGHT_POWER = 0.4  # units' entries weigh less at popular levels: by count^-0.4
_TAIL = 3.0  # a product with one more factor has a fourth moment this many times as large


@dataclass(frozen=True)
class Settings:
    """What a fit's public numbers lead to; see :func:`derive`."""

    sweeps: int
    held_sweeps: int
    last_step: float
    residual_clip: float
    feature_clip: float
    unit_clip: float
    bias_weight: float
    bias_share: float
    growth: float

    def step_length(self, number: int) -> float:
        """Share of the way that a block goes in a round."""
        falling = max(0, number + 1 - self.held_sweeps) / max(1, self.sweeps - self.held_sweeps)
        return 1 - (1 - self.last_step) * min(1.0, falling)


def derive(facts: Facts, noise: float) -> Settings:
    """Settings from public numbers alone.

    The thinner the data lie under the noise, the sooner entries are clipped, the fewer rounds there are,
    and the more goes to the biases: at least what they need to be about as good as with everything.
    Products of three and more factors that may all change take long to find their direction from a
    random start: the step is then held at one for most of the sweeps, and there are more. They also have
    longer tails, which carry what there is to learn, and are clipped later.
    """
    if any(mode.labels is not None for mode in facts.modes):  # nothing hangs on these
        plain = tuple(mode.unlabelled for mode in facts.modes)
        facts = replace(facts, shape=replace(facts.shape, modes=plain))
    return _derived(facts, noise)


@lru_cache(maxsize=64)  # a fit asks for its settings dozens of times
def _derived(facts: Facts, noise: float) -> Settings:
    calm = facts.calm(noise)
    free = sum(mean == 0 for mean in facts.shape.prior_means(None))
    many, whole_units = free > 2, facts.whole_units
    return Settings(
        sweeps=30 if many else 12 if whole_units else round(12 + 8 * calm),
        held_sweeps=20 if many else 1,
        last_step=0.15,
        residual_clip=2.0 if whole_units else 0.7 + 0.6 * calm,
        feature_clip=(0.7 + 0.35 * calm) * sqrt(_TAIL) ** max(0, free - 2),
        unit_clip=0.6,
        bias_weight=1.4 - 0.4 * calm,
        bias_share=max(0.05 + 0.4 * (1 - calm), enough_for_biases(bias_facts(facts), noise)),
        growth=0.0 if many else 2.0,
    )


def bias_facts(facts: Facts) -> Facts:
    """As the biases see it: where entries are protected, a local mode is noised like the others."""
    return facts if facts.whole_units else replace(facts, local=None)


def free_modes(facts: Facts, means: list[float]) -> list[int]:
    """Modes whose rows are asked for and start anywhere, in the order in which they are asked.

    Of two, the one with fewer levels comes last: its biases are known best.
    """
    free = [m for m, mean in enumerate(means) if m != facts.own and mean == 0]
    return sorted(free, key=lambda m: -facts.sizes[m]) if len(free) == 2 else free


def sloped_mode(facts: Facts, means: list[float]) -> int | None:
    """The mode whose first columns are its own released biases and counts, on which rows of the other
    have slopes; None where there is no such pair of modes.

    Of a CP model, where all rows are noised: a core would turn the columns, and owners who keep their
    rows have a method of their own for slopes.
    """
    free = free_modes(facts, means)
    if len(free) != 2 or facts.own is not None or facts.shape.kind != "cp":
        return None
    return free[1]


def slopes(facts: Facts) -> int:
    """Columns that an alternating fit need not find."""
    return SLOPES if sloped_mode(facts, facts.shape.prior_means(None)) is not None else 0


class Step(NamedTuple):
    """One draw: a question and its share of the budget; ``block`` where it is about one."""

    asks: Literal["biases", "scatter", "own", "block"]
    block: int
    share: float
    round: int = 0


def schedule(facts: Facts, settings: Settings, biases: list[float], means: list[float]) -> list[Step]:
    """The draws in order, their shares adding up to one; ``biases`` are the first part's."""
    own = facts.own is not None
    steps = [Step("biases", 0, settings.bias_share * share) for share in biases]
    steps.append(Step("scatter", 0, SCATTER_SHARE))
    rest = 1 - settings.bias_share - SCATTER_SHARE - OWN_SHARE * own
    shares = block_shares(facts, means)
    rounds = 1 + settings.growth * np.linspace(0, 1, settings.sweeps)
    for number, weight in enumerate(rounds / rounds.sum()):
        if own:
            steps.append(Step("own", 0, OWN_SHARE / settings.sweeps, number))
        steps += [Step("block", b, rest * weight * f, number) for b, f in shares.items()]
    return steps


def block_shares(facts: Facts, means: list[float]) -> dict[int, float]:
    """Which blocks are asked about, in order, and their shares of a round.

    Modes with a prior mean come last: the first of the others starts at zero, where their designs are
    zero too and say nothing.
    """
    weights, times = {}, passing_times(facts.modes)
    for m in free_modes(facts, means) + [m for m, mean in enumerate(means) if mean and m != facts.own]:
        weights[m] = _LOCAL_SHARE if m == facts.local else _TIME_SHARE if times[m] else 1.0
        weights[m] *= sqrt(facts.sizes[m])  # the more levels, the fewer entries each has
    if facts.shape.core_size:
        weights[CORE] = _CORE_SHARE * float(np.mean(list(weights.values())))
    whole = sum(weights.values())
    return {block: weight / whole for block, weight in weights.items()}


def label(facts: Facts, step: Step) -> str:
    if step.asks == "scatter":
        return "squared residuals"
    if step.asks == "own":
        return "second moment of own rows"
    return "sums of the core" if step.block == CORE else f"sums by {facts.modes[step.block].name}"


def level_weights(counts: Array, deviation: float) -> Array:
    """Less for popular levels, whose rows need less; an average entry's is one.

    Not above what noise of this deviation leaves visible of a count.
    """
    weights = np.maximum(counts, deviation) ** -_WEIGHT_POWER
    normed: Array = weights / sqrt(counts @ weights**2 / counts.sum())
    return normed
