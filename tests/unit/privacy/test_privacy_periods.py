"""Periods in a ledger: the largest of them where a unit lies in one, their sum where it does not."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.errors import BudgetError
from sfumato.privacy.account import Account, read_ledger
from sfumato.privacy.accounting import epsilon_of
from sfumato.privacy.budgets import Budget
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.events import Composed, GaussianEvent, PureEvent
from sfumato.privacy.ledger import Charge, Ledger
from sfumato.privacy.mechanisms import Gaussian, Laplace
from sfumato.privacy.units import AnyUnit, Entry, Unit, Value

DELTA = 1e-6


def charge(ledger: Ledger, noises: list[float], period: str = "", laplace: bool = False) -> None:
    """A fit that makes its draws, of nothing."""
    mechanism = Laplace if laplace else Gaussian
    charges = [Charge("draw", mechanism(noise)) for noise in noises]
    with ledger.reserve(charges, Entropy(), period=period) as reservation:
        for _ in charges:
            reservation.ask(lambda draw: draw)


_fit = st.tuples(
    st.sampled_from(["", "a", "b", "c"]), st.lists(st.sampled_from([3.0, 5.0, 9.0]), max_size=2)
)


@given(st.lists(_fit, max_size=6), st.sampled_from([Entry(), Value(), Unit("user")]))
@settings(max_examples=25, deadline=None)
def test_totals_are_those_of_the_accountant(fits: list[tuple[str, list[float]]], unit: AnyUnit) -> None:
    """By brute force: a unit of each period is charged what was drawn of it, and of all data."""
    ledger = Ledger(unit)
    for period, noises in fits:
        charge(ledger, noises, period)
    periods = {period for period, noises in fits if noises} or {""}
    apart = not isinstance(unit, Unit)
    seen = [
        [n for period, noises in fits for n in noises if not apart or period in ("", name)]
        for name in (periods - {""} or {""} if apart else {""})
    ]
    wanted = max(epsilon_of(Composed(tuple(map(GaussianEvent, noises))), DELTA) for noises in seen)
    assert ledger.epsilon(DELTA) == pytest.approx(wanted, rel=1e-9)
    spent = max(sum(noise**-2 for noise in noises) for noises in seen)
    assert ledger.account.spent == pytest.approx(spent)


def test_the_same_period_adds_up() -> None:
    once, twice = Ledger(Entry()), Ledger(Entry())
    charge(once, [4.0], "march")
    charge(once, [4.0], "april")
    charge(twice, [4.0], "march")
    charge(twice, [4.0], "march")
    assert twice.epsilon(DELTA) > 1.3 * once.epsilon(DELTA)


def test_a_limit_is_kept_by_period(tmp_path: object) -> None:
    path = f"{tmp_path}/ledger"
    ledger = Ledger(Entry(), Budget(1.0), path)
    for period in ("a", "b", "c"):
        charge(ledger, [1.0], period, laplace=True)  # each takes all that there is
    before = ledger.account.charges
    for period in ("a", ""):
        with pytest.raises(BudgetError, match="Nothing was drawn"):
            charge(ledger, [2.0], period, laplace=True)
    assert ledger.account.charges == before
    assert read_ledger(path).epsilon(0.0) == 1.0
    assert read_ledger(path).odometer(0.0) == 1.0
    people = Ledger(Unit("user"), Budget(1.0))
    charge(people, [1.0], "a", laplace=True)
    with pytest.raises(BudgetError):
        charge(people, [1.0], "b", laplace=True)


def test_a_fit_of_all_data_counts_in_every_period() -> None:
    ledger = Ledger(Entry())
    charge(ledger, [2.0], "a", laplace=True)
    charge(ledger, [4.0], "", laplace=True)
    charge(ledger, [1.0], "b", laplace=True)
    assert ledger.epsilon(0.0) == 1.25  # 1/4 and 1/1
    assert ledger.account.epsilon(0.0, "a") == 0.75


def test_a_first_fit_that_takes_all_may_come_in_every_period() -> None:
    """A mixture that no filter prices within the limit, though the accountant does."""
    limit = Budget(epsilon_of(Composed((GaussianEvent(3.0), PureEvent(0.2))), DELTA), DELTA)
    ledger = Ledger(Entry(), limit)
    charges = [Charge("sums", Gaussian(3.0)), Charge("counts", Laplace(5.0))]
    for period in ("a", "b"):
        with ledger.reserve(charges, Entropy(), period=period) as reservation:
            reservation.ask(lambda draw: draw)
    assert ledger.fits == 2
    with pytest.raises(BudgetError), ledger.reserve(charges, Entropy(), period="a"):
        pass


def test_words_and_files(tmp_path: object) -> None:
    path = f"{tmp_path}/ledger"
    ledger = Ledger(Entry(), None, path)
    charge(ledger, [5.0], "2026-03")
    charge(ledger, [5.0], "2026-04")
    account = read_ledger(path)
    assert account.periods == ("2026-03", "2026-04")
    assert "fit 2 of 2026-04" in str(account)
    assert "one of 2 periods" in str(account)
    assert any("one period alone" in line for line in account.assumptions)
    assert account.to_json()["apart"] == ["2026-03", "2026-04"]


@given(st.one_of(st.none(), st.integers(), st.lists(st.text(max_size=3), max_size=2), st.booleans()))
@settings(max_examples=25, deadline=None)
def test_a_period_that_is_no_word_is_damage(word: object) -> None:
    from sfumato.errors import SettingError
    from sfumato.privacy.account import Charged

    line = Charged(1, "draw", GaussianEvent(2.0), False).to_json(2) | {"period": word}
    with pytest.raises(SettingError, match="words"):
        Charged.from_json(json.loads(json.dumps(line)), 2)


def test_an_account_of_nothing_has_spent_nothing() -> None:
    assert Account("entry").epsilon(DELTA) == 0.0
    assert np.isinf(Account("entry").left)
