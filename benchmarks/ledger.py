"""How many fits a ledger admits: by its filter, and by the sum for fits that were planned in advance."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.report import Figure
from sfumato.privacy.account import Account, Charged
from sfumato.privacy.accounting import calibrate, epsilon_of
from sfumato.privacy.budgets import Budget
from sfumato.privacy.events import (
    Event,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    RepeatAndSelect,
    Repeated,
    SampledGaussianEvent,
)

LIMIT = Budget(1.0, 1e-6)
LAWS: dict[str, Callable[[float], Event]] = {
    "Gaussian noise": GaussianEvent,
    "500 batches of 1%": lambda x: Repeated(SampledGaussianEvent(x, 0.01, False), 500),
    "100 batches of 10%, replaced": lambda x: Repeated(SampledGaussianEvent(x, 0.1, True), 100),
    "100 steps of Laplace noise": lambda x: Repeated(LaplaceEvent(x), 100),
    "randomised response": lambda x: PureEvent(1 / x),
    "best of five Gaussian runs": lambda x: RepeatAndSelect((GaussianEvent(x),), 5.0),
}


def run(quick: bool) -> list[Figure]:
    sizes = (0.2,) if quick else (0.3, 0.2, 0.1)
    return [_compared(name, law, epsilon) for epsilon in sizes for name, law in LAWS.items()]


def _compared(name: str, law: Callable[[float], Event], epsilon: float) -> Figure:
    event = law(calibrate(law, Budget(epsilon, LIMIT.delta)))
    by_sum = _last(lambda n: epsilon_of(Repeated(event, n), LIMIT.delta) <= LIMIT.epsilon)
    account, fits = Account("entry", LIMIT).begun([event]), 0
    while (costs := account.admits([event])) is not None:
        fits += 1
        account = account.charged(Charged(fits, name, event, False, *costs))
    assert account.filter is not None
    odometer = f"odometer {account.odometer(LIMIT.delta):.2f}"
    return Figure(
        f"fits of epsilon {epsilon:g} within {LIMIT}: {name} ({account.filter.kind})",
        fits,
        f"{fits} by the filter, {by_sum} by the sum, {odometer}",
    )


def _last(holds: Callable[[int], bool]) -> int:
    """The largest number for which something holds that ends somewhere."""
    number = 1
    while holds(number + 1):
        number += 1
    return number
