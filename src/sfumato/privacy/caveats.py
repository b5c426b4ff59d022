"""What a promise is worth: plain words where its numbers say that it is little.

They follow from the budget, the unit and the public number of levels, never from the data.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from math import log

from sfumato.errors import PrivacyWarning
from sfumato.privacy.budgets import ZCDP, Budget
from sfumato.privacy.units import AnyUnit, Unit, UnitValues

LARGE_EPSILON, LARGE_DELTA = 20.0, 0.01
FEW_LEVELS = 50
REPORTED_DELTA = 1e-6  # at which a zCDP budget is also told as epsilon


def caveats(budget: Budget | ZCDP, unit: AnyUnit, levels: int | None = None) -> tuple[str, ...]:
    """What to warn of; ``levels`` is the public number of levels of the unit's mode, if it has one."""
    said = []
    epsilon = budget.epsilon if isinstance(budget, Budget) else budget.epsilon(REPORTED_DELTA)
    if epsilon > LARGE_EPSILON:
        said.append(
            f"epsilon {epsilon:.4g} promises next to nothing: it allows what is released to be "
            f"10^{epsilon / log(10):.0f} times as likely with the data of one unit as without, which "
            "is enough to tell the two apart. Budgets of 10 at most are usual, and 1 is a good one"
        )
    if isinstance(budget, Budget) and budget.delta > LARGE_DELTA:
        said.append(
            f"delta {budget.delta:.3g} promises next to nothing: with that probability the data of a "
            "unit may be shown as they are. Take less than one over the number of units, such as 1e-6"
        )
    if isinstance(unit, Unit | UnitValues) and levels is not None and levels < FEW_LEVELS:
        said.append(
            f"{unit.mode} has at most {levels:,} levels, which are few: noise that hides one of them "
            "hides most of what they have in common, so that a fit may do no better than a constant, "
            "and what is learnt from all of them is about few"
        )
    return tuple(said)


@contextmanager
def without_warnings() -> Iterator[None]:
    """For fits that are no releases, or whose caveats were told before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        yield


def warn_of(said: tuple[str, ...]) -> None:
    for caveat in said:
        warnings.warn(caveat, PrivacyWarning, stacklevel=3)
