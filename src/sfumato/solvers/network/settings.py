"""How a network is trained, from public numbers alone.

With inputs of about length one and gradients clipped, the noise of privacy moves an example's logits by
about ``path / (mu n)`` in all, however many steps there are: ``path`` is the sum of the lengths of all
steps, as far as clipping lets them go, n the number of units, and ``mu`` the ratio of what one unit adds
to the noise, over all steps together. So the budget settles the length of the path, and the number of
steps is a matter of computing time. Constants were chosen on invented pictures of letters
(``python -m benchmarks networks letters``).

Classes of pictures are certain, and gradients are clipped hard: which class it is counts, and not by how
much. What a table says is rarely certain, and hard clips would make a likely class a sure one: there
they are wider, and paths shorter, so that noise moves logits by about one at most. Numbers that are
predicted lie between -1 and 1, and paths are a tenth of that. Steps are short enough not to overshoot.
Constants of tables were chosen on invented ones, of three to thirty columns of several laws, with signal
from none to strong.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import NamedTuple

from sfumato.checks import check_count, check_positive, check_share, given
from sfumato.errors import SettingError
from sfumato.models.network import Architecture
from sfumato.privacy.accounting import calibrate
from sfumato.privacy.budgets import ZCDP, Budget
from sfumato.privacy.events import Composed, Event, Repeated
from sfumato.privacy.mechanisms import Gaussian, SampledGaussian
from sfumato.records import record

_BATCH = 2500  # units: with more of them noise is hardly less, unless it is below a unit's own part
_LEAST_NOISE = 1.1  # times a unit's part: below that, sampling loses more than it hides
_MOST_RATE = 0.25  # that it is raised to for that
_WHOLE = 0.5  # rate from which on all units take part in every step
_STEPS = 600
_CENTRE = 0.06  # share of the budget that goes into the mean of inputs
_UNCLIPPED = 4.0  # which gradients of classes or numbers from -1 to 1 rarely reach
_LAST_STEPS = 0.3  # share of the steps that are shorter


class _Rule(NamedTuple):
    """How far and how fast: the path over mu n, the clip, and the longest step.

    Below a mu n of ``least`` there is little to learn, and paths shrink with it; they hardly grow beyond
    one of ``most``.
    """

    path: float
    clip: float
    longest: float = inf
    least: float = 0.0
    most: float = 60_000.0


# By what is shown or predicted, without and with hidden layers.
_HIDDEN = _Rule(1.2, 0.5, least=5.0, most=200_000.0)
_PICTURES = {False: _Rule(2.5, 0.1, most=120_000.0), True: _HIDDEN}
_TABLES = {False: _Rule(1.0, 1.0, 2.1, least=5.0), True: _HIDDEN}
_NUMBERS = dict.fromkeys((False, True), _Rule(0.1, 0.2, 1.0, least=10.0))


@record
@dataclass(frozen=True)
class Training:
    """Settings of noisy gradient steps.

    Parameters
    ----------
    rate : probability that a unit takes part in a step.
    steps : how many there are.
    clip : norm that a unit's gradient, of all parameters together, is scaled down to.
    step_length : of the first steps; it is ``last`` times that in the final 30% of them.
    momentum : share of the step before that is kept.
    average : weight of the past in the running average of the parameters that is released.
    prior_scale : standard deviation of a normal prior on all parameters; None for none.
    dropout : variance of the Gaussian factors around one that what goes into layers is multiplied by.
    centre : noise of the private mean of inputs over that of a step's sum; None for no such mean.
    """

    rate: float
    steps: int
    clip: float
    step_length: float
    momentum: float = 0.9
    last: float = 0.3
    average: float = 0.98
    prior_scale: float | None = None
    dropout: float = 0.0
    centre: float | None = None

    def check(self) -> None:
        check_positive(rate=self.rate, clip=self.clip, step_length=self.step_length, last=self.last)
        check_positive(**given(prior_scale=self.prior_scale, centre=self.centre))
        check_count(steps=self.steps)
        check_share(True, momentum=self.momentum, average=self.average)
        if self.rate > 1:
            raise SettingError(f"a rate is at most 1, got {self.rate:g}")
        if not 0 <= self.dropout < 10:
            raise SettingError(f"dropout is a variance from 0 on, got {self.dropout:g}")

    def length(self, step: int) -> float:
        """Of a step, counted from zero."""
        return self.step_length * (1.0 if step < (1 - _LAST_STEPS) * self.steps else self.last)

    def charged(self, noise: float) -> Event:
        """All draws at a noise multiplier of the steps."""
        steps = Repeated(SampledGaussian(noise, self.rate).event, self.steps)
        if self.centre is None:
            return steps
        return Composed((Gaussian(self.centre * noise).event, steps))

    def noise_within(self, budget: Budget | ZCDP) -> float:
        """The least noise multiplier that a budget covers."""
        return calibrate(self.charged, budget)


def usual_training(
    architecture: Architecture,
    units: int,
    budget: Budget | ZCDP,
    *,
    steps: int | None = None,
    dropout: float = 0.0,
    prior_scale: float | None = None,
    table: bool = False,
    openly: bool = False,
) -> Training:
    """Settings for a number of units, which is public, and a budget.

    ``table``: examples are no pictures. ``openly``: there is no noise, and so no need to clip.
    """
    numbers, steps = architecture.loss == "numbers", steps or _STEPS
    rules = _NUMBERS if numbers else _TABLES if table else _PICTURES
    rule = rules[bool(architecture.hidden)]
    rate = min(1.0, _BATCH / units)
    plan = _at_rate(rate, steps)
    while plan.rate < _MOST_RATE and plan.noise_within(budget) < _LEAST_NOISE:
        plan = _at_rate(1.5 * plan.rate, steps)
    signal = units * plan.rate * sqrt(steps) / plan.noise_within(budget)
    if openly and rule.longest < inf:
        rule = rule._replace(clip=_UNCLIPPED, path=inf)
    path = rule.path * signal / (1 + signal / rule.most + rule.least / signal)
    return replace(
        plan,
        clip=rule.clip,
        step_length=min(rule.longest, path * (1 - plan.momentum) / (rule.clip * steps)),
        dropout=dropout,
        prior_scale=prior_scale,
    )


def _at_rate(rate: float, steps: int) -> Training:
    rate = 1.0 if rate > _WHOLE else rate
    centre = sqrt((1 - _CENTRE) / _CENTRE) / (rate * sqrt(steps))
    average = 1 - min(0.1, 6 / steps)
    return Training(rate, steps, 1.0, 1.0, average=average, centre=centre)
