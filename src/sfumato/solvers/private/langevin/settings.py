"""Settings of private Langevin dynamics, and what they follow from."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from sfumato.models.posterior import Family
from sfumato.privacy.facts import CoupledFacts
from sfumato.solvers.private.langevin.joint import Joint

_CALM = 0.02  # thinness at which settings are half-way between those for little and for much noise
_WHOLE_UNITS = 3  # times as thin: units of many entries are clipped harder


@dataclass(frozen=True)
class Settings:
    """What a fit's public numbers lead to; see :func:`derive`."""

    passes: int
    rate: float
    clip: float
    step: float
    last_step: float
    bias_share: float
    bias_part: float
    typical: float
    tail: float
    keep: int

    @property
    def steps_per_pass(self) -> int:
        return max(1, round(1 / self.rate))

    @property
    def averaged(self) -> int:
        """Passes at the end whose iterates are averaged."""
        return max(1, round(self.tail * self.passes))


def thinness(facts: CoupledFacts, noise: float) -> float:
    """Noise over the entries of an average row of all modes, as :meth:`Facts.thinness` of one tensor."""
    joint = Joint(facts)
    entries = sum(part.expected_entries for part in facts.parts)
    rows = sum(joint.sizes) / len(joint.sizes)
    return noise * rows / entries * (_WHOLE_UNITS if facts.parts[0].whole_units else 1)


def derive(facts: CoupledFacts, noise: float, family: Family = "normal") -> Settings:
    """Settings from public numbers alone, found on invented ratings.

    The thinner the data under the noise, the smaller the steps, the sooner gradients are clipped, and
    the more goes to means and biases. Shares may depend on the noise because more noise still means more
    noise in every question.
    """
    thin = thinness(facts, noise)
    calm, order = 1 / (1 + thin / _CALM), max(map(len, facts.sizes))
    share = 0.1 + 0.8 * thin / (thin + 0.08) if family == "normal" else 0.1 + 0.4 * (1 - calm)
    # Poisson curvature differs from row to row, so that rows of average length come on slowly.
    first, last = (min(0.5, 1.5 / order), 0.1) if family == "normal" else (0.8, 0.2)
    typical, clip = 1.0, 0.8 + 0.6 * calm
    if facts.parts[0].unit_mode is not None:
        entries = sum(part.expected_entries for part in facts.parts)
        typical = max(4.0, entries / facts.parts[0].expected_units / 4)
        clip *= sqrt(typical)
    return Settings(
        passes=60,
        rate=1.0,
        clip=clip,
        step=first * calm**0.75,
        last_step=last * calm**0.75,
        bias_share=share,
        bias_part=0.15 + 0.25 * (1 - calm),
        typical=typical,
        tail=0.25,
        keep=10,
    )
