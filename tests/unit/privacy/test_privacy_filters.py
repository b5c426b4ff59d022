"""Filters and the odometer, against strategies that choose each fit by the last release, exactly."""

import json
from math import exp, fsum, inf, log

import numpy as np
import pytest
from scipy.stats import norm

from sfumato.errors import SettingError
from sfumato.privacy import filters
from sfumato.privacy.account import ASSUMED, ASSUMED_OF_TOTAL, Account, Charged
from sfumato.privacy.accounting import calibrate, delta_of, epsilon_of
from sfumato.privacy.budgets import ZCDP, Budget
from sfumato.privacy.events import (
    ApproximateEvent,
    Composed,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    RepeatAndSelect,
    Repeated,
    SampledGaussianEvent,
    ZCDPEvent,
)
from sfumato.privacy.filters import Filter, dominating_gaussian

LIMIT = Budget(1.0, 0.01)
BY_SUM = Account("value", LIMIT, format=1)  # as sums were compared with limits before


def begun(kind, limit=LIMIT):
    """A ledger whose first fit made it one of this kind."""
    first = GaussianEvent(30.0) if kind == "gaussian" else PureEvent(0.5)
    account = Account("value", limit).begun([first])
    assert account.filter.kind == kind
    return account


def outcomes(event):
    """The worst mechanism of its kind: probabilities of each outcome for either of two neighbours."""
    fails = getattr(event, "delta", 0.0)
    true = (1 - fails) / (1 + exp(-event.epsilon))
    false = 1 - fails - true
    pairs = [(true, false), (false, true), (fails, 0.0), (0.0, fails)]
    return [pair for pair in pairs if pair != (0.0, 0.0)]


def after(account, event):
    """The ledger with one more fit of one draw, or None where it is refused."""
    costs = account.admits([event])
    if costs is None:
        return None
    return account.charged(Charged(account.fits + 1, "", event, False, *costs))


def worst(account, events, depth, p=1.0, q=1.0, epsilon=LIMIT.epsilon):
    """Delta at epsilon of the best strategy of so many fits: each is chosen by all that was seen."""
    value = max(0.0, p - exp(epsilon) * q)
    if depth == 0 or q == 0.0 or p == 0.0:
        return value
    for event in events:
        later = after(account, event)
        if later is not None:
            value = max(
                value,
                sum(worst(later, events, depth - 1, p * a, q * b, epsilon) for a, b in outcomes(event)),
            )
    return value


def whole_first(first, second):
    """A second fit that takes all that a sum leaves after the first one."""
    noise = calibrate(lambda x: Composed((first, second(x))), LIMIT)
    return second(noise)


# -- limits -----------------------------------------------------------------------------------------


def test_sums_are_passed_by_who_looks_and_filters_are_not():
    first = PureEvent(1.0)
    if_true = whole_first(first, lambda x: PureEvent(1 / x))
    if_false = ApproximateEvent(0.0, 0.0099)
    events = [first, if_true, if_false]
    # Each branch by itself is within the limit; together they are not.
    assert all(BY_SUM.sum_within(LIMIT, [first, second]) for second in (if_true, if_false))
    assert worst(BY_SUM, events, 2) > 1.25 * LIMIT.delta
    known = 0.01 + 0.0099 / (1 + exp(1))  # 0.01266: the second fit by whether the first was true
    assert worst(BY_SUM, events, 2) >= known * 0.99
    for kind in ("epsilon", "gaussian"):
        assert worst(begun(kind), events, 2) <= LIMIT.delta
    account = after(Account("value", LIMIT).begun([first]), first)
    assert account.admits([if_true]) is None
    assert account.admits([if_false]) is None


@pytest.mark.parametrize("kind", ["epsilon", "gaussian"])
@pytest.mark.parametrize("seed", range(6))
def test_no_strategy_passes_a_filter(kind, seed):
    rng = np.random.default_rng(seed)
    pure = [PureEvent(float(e)) for e in rng.choice([0.02, 0.05, 0.1, 0.2, 0.3, 0.45], 2, False)]
    failing = [ApproximateEvent(float(rng.choice([0.0, 0.1, 0.2])), float(rng.choice([1e-4, 1.6e-3])))]
    assert worst(begun(kind), [*pure, *failing], 4) <= LIMIT.delta


def test_a_filter_leaves_room():
    assert (
        worst(begun("epsilon"), [PureEvent(0.5), ApproximateEvent(0.0, 0.0045)], 3) > 0.4 * LIMIT.delta
    )
    assert worst(begun("gaussian"), [PureEvent(0.2)], 4) == 0.0  # epsilon 0.8 in all, and no fifth
    assert worst(begun("gaussian"), [PureEvent(0.2)], 5, epsilon=0.79) > 0.0


def at_random(account, rng, depth, p=1.0, q=1.0):
    """Delta of a strategy whose fits are of any size, another one after each answer."""
    event = PureEvent(float(rng.choice([0.01, 0.03, 0.06, 0.1, 0.2, 0.4])))
    later = after(account, event)
    if depth == 0 or later is None:
        return max(0.0, p - exp(LIMIT.epsilon) * q)
    return sum(at_random(later, rng, depth - 1, p * a, q * b) for a, b in outcomes(event))


@pytest.mark.parametrize("kind", ["epsilon", "gaussian"])
def test_random_strategies_of_many_fits(kind):
    rng = np.random.default_rng(5)
    for _ in range(20):
        assert at_random(begun(kind), rng, 9) <= LIMIT.delta


def test_one_fit_may_take_all_and_is_the_last():
    account = Account("value", LIMIT)
    search = calibrate(lambda x: RepeatAndSelect((GaussianEvent(x),), 5.0), LIMIT)
    event = RepeatAndSelect((GaussianEvent(search),), 5.0)
    draws = [event, PureEvent(0.0)]
    account = account.begun(draws)
    costs = account.admits(draws)
    assert costs == [inf, 0.0]
    # Also where it ended after its first draw: how it went on may have been decided by that.
    account = account.charged(Charged(1, "", event, False, costs[0]))
    assert account.left == 0
    assert account.admits([PureEvent(1e-6)]) is None
    assert account.odometer(LIMIT.delta) == LIMIT.epsilon
    assert "whatever they were planned by: within the limit" in str(account)


def test_what_has_a_price_only_as_a_whole_is_paid_at_its_first_draw():
    steps = Repeated(SampledGaussianEvent(2.0, 0.01, False), 100)
    costs = begun("gaussian").filter.costs([GaussianEvent(10.0), steps, GaussianEvent(20.0), steps], 1)
    assert costs[0] == pytest.approx(0.01)
    assert costs[1] == dominating_gaussian(Composed((steps, steps)), 0.0001) ** 2
    assert costs[2] == pytest.approx(0.0025)
    assert costs[3] == 0


def test_the_kind_is_that_of_which_the_first_fit_takes_less():
    limit = Budget(1.0, 1e-6)
    assert Filter.within(limit, [PureEvent(0.1)]).kind == "epsilon"
    assert Filter.within(limit, [GaussianEvent(20.0)]).kind == "gaussian"
    assert Filter.within(Budget(1.0), [PureEvent(0.1)]) == Filter("epsilon", 1.0, 0.0)
    assert Filter.within(ZCDP(0.5), [GaussianEvent(2.0)]) == Filter("rho", 0.5, 0.0)
    assert Filter.within(ZCDP(0.5), []).costs([GaussianEvent(2.0), PureEvent(0.2)], 1) == [
        0.125,
        0.2**2 / 2,
    ]
    assert Filter.within(None, []).total == inf


@pytest.mark.parametrize("wrong", [("mu", 1.0, 0.0), ("rho", 0.0, 0.0), ("rho", 1.0, 1.0)])
def test_impossible_filters_are_refused(wrong):
    with pytest.raises(SettingError, match="cannot be"):
        Filter(*wrong)


@pytest.mark.parametrize(
    ("law", "least"),
    [
        (GaussianEvent, 1.0),
        (lambda x: Repeated(SampledGaussianEvent(x, 0.01, False), 500), 0.9),
        (lambda x: Repeated(SampledGaussianEvent(x, 0.1, True), 100), 0.9),
        (lambda x: Repeated(LaplaceEvent(x), 100), 0.9),
    ],
)
def test_as_many_fits_as_by_the_sum(law, least):
    """Fits of 0.2 each within (1, 1e-6); the table of proofs/ledger.md."""
    limit = Budget(1.0, 1e-6)
    event = law(calibrate(law, Budget(0.2, 1e-6)))
    by_sum = next(n for n in range(1, 40) if epsilon_of(Repeated(event, n + 1), 1e-6) > 1.0)
    account, count = Account("value", limit).begun([event]), 0
    while (later := after(account, event)) is not None:
        account, count = later, count + 1
    assert least * by_sum <= count <= by_sum
    assert account.epsilon(1e-6) <= 1.0


# -- what is nearly Gaussian ------------------------------------------------------------------------

EVENTS = [
    PureEvent(0.1),
    PureEvent(3.0),
    LaplaceEvent(1.0),
    ApproximateEvent(0.3, 1e-7),
    ZCDPEvent(0.01),
    Repeated(SampledGaussianEvent(1.1, 0.01, False), 300),
    Repeated(SampledGaussianEvent(5.0, 0.2, True), 20),
    RepeatAndSelect((GaussianEvent(20.0),), 3.0),
    Composed((PureEvent(0.2), Repeated(LaplaceEvent(20.0), 10))),
]


@pytest.mark.parametrize("event", EVENTS, ids=str)
@pytest.mark.parametrize("slack", [1e-6, 1e-9])
def test_a_gaussian_dominates_but_for_the_slack(event, slack):
    change = dominating_gaussian(event, slack)
    if not change < inf:
        assert getattr(event, "delta", 0.0) > slack
        return
    at = np.concatenate([np.linspace(0, 3, 61), np.geomspace(1e-4, 30, 60)])
    gaussian = norm.cdf(change / 2 - at / change) - np.exp(at + norm.logcdf(-at / change - change / 2))
    exact = np.array([delta_of(event, float(epsilon)) for epsilon in at])
    # delta_of is itself an upper bound, of losses on another grid and with an allowance for rounding
    assert (exact <= (slack + (1 - slack) * gaussian) * (1 + 1e-3) + 1e-11).all()


def test_randomised_response_is_dominated_by_the_gaussian_of_the_same_distance():
    for epsilon in (0.1, 1.0, 3.0):
        exact = -2 * norm.ppf(1 / (1 + exp(epsilon)))
        assert dominating_gaussian(PureEvent(epsilon), 1e-9) == pytest.approx(exact, rel=2e-3)


def test_extreme_records_have_a_cost():
    for event in (
        Repeated(PureEvent(1e-9), 10**12),
        GaussianEvent(1e-60),
        SampledGaussianEvent(1e60, 1e-60, True),
    ):
        for limit in (None, LIMIT, Budget(1.0), ZCDP(1.0), Budget(1e60, 0.999)):
            account = Account("value", limit).begun([event])
            assert all(cost >= 0 for cost in account.filter.costs([event], 1))
            assert str(account.charged(Charged(1, "", event, False, 1.0)))


# -- the odometer -----------------------------------------------------------------------------------


def ever_above(bounds, epsilon):
    """Chance that the loss of randomised responses is ever above a bound, by how many there were."""
    true = 1 / (1 + exp(-epsilon))
    below, above = {0: 1.0}, 0.0
    for bound in bounds:
        then = {}
        for steps, p in below.items():
            for step, chance in ((1, true), (-1, 1 - true)):
                then[steps + step] = then.get(steps + step, 0.0) + p * chance
        above += fsum(p for steps, p in then.items() if steps * epsilon > bound)
        below = {steps: p for steps, p in then.items() if steps * epsilon <= bound}
    return above


def test_who_stops_when_it_suits_passes_the_sum_and_not_the_odometer():
    delta, event, fits = 0.01, PureEvent(0.1), 120
    sums = [epsilon_of(Repeated(event, n), delta) for n in range(1, fits + 1)]
    assert ever_above(sums, event.epsilon) > 2 * delta
    account, bounds = Account("value").begun([event]), []
    for _ in range(fits):
        account = after(account, event)
        bounds.append(account.odometer(delta))
    assert 0 < ever_above(bounds, event.epsilon) <= delta
    assert (np.diff(bounds) > 0).all()
    assert all(bound >= total for bound, total in zip(bounds, sums, strict=True))
    assert bounds[-1] < 3 * sums[-1]


def test_the_odometer_of_pure_fits_is_their_sum():
    account = after(after(Account("value").begun([]), PureEvent(0.25)), PureEvent(0.5))
    assert account.odometer(0.0) == 0.75
    assert account.odometer(1e-6) == 0.75
    assert account.limit is None
    assert account.left == inf


def test_the_odometer_of_rho():
    account = after(Account("value", ZCDP(1.0)).begun([]), ZCDPEvent(0.02))
    assert account.odometer(0.0) == inf
    expected = 0.02 + np.sqrt(0.041 * (2 * log(1e6) + log(41)))
    assert account.odometer(1e-6) == pytest.approx(expected)


# -- in words ---------------------------------------------------------------------------------------


def test_an_account_in_words_and_json():
    account = after(after(begun("gaussian"), GaussianEvent(10.0)), GaussianEvent(8.0))
    told = json.loads(json.dumps(account.to_json()))
    assert [fit["draws"] for fit in told["fits"]] == [1, 1]
    assert told["limit"] == [1.0, 0.01]
    assert told["limit_proven"] is True
    assert told["assumptions"] == [ASSUMED_OF_TOTAL]
    assert told["total_epsilon"] < told["odometer_epsilon"]
    assert 0 < told["left"] < 1
    text = str(account)
    assert "whatever the fits are planned by" in text
    assert "% is left" in text
    most = account.filter.largest_fit(account.spent, 3, LIMIT.delta)
    assert f"a next fit of Gaussian noise may have epsilon {most:.2f}" in text
    noise = calibrate(GaussianEvent, Budget(most * 0.999, LIMIT.delta))
    assert after(account, GaussianEvent(noise)) is not None
    assert after(account, GaussianEvent(noise * 0.99)) is None


def test_without_a_proven_limit_the_sum_is_assumed():
    unlimited = after(after(Account("value").begun([]), GaussianEvent(10.0)), GaussianEvent(8.0))
    assert unlimited.assumptions == (ASSUMED,)
    assert after(Account("value").begun([]), GaussianEvent(10.0)).assumptions == ()
    assert after(after(BY_SUM, PureEvent(0.1)), PureEvent(0.1)).assumptions == (ASSUMED,)
    kept = after(begun("epsilon"), PureEvent(0.1))
    assert kept.assumptions == ()
    assert after(kept, PureEvent(0.1)).assumptions == (ASSUMED_OF_TOTAL,)
    doubtful = begun("epsilon")
    for fit in (1, 2):
        doubtful = doubtful.charged(Charged(fit, "", PureEvent(0.1), True, 0.1))
    assert doubtful.assumptions == (ASSUMED,)
    assert "no total" in str(doubtful)
    assert "whatever" not in str(doubtful)


def test_a_limit_that_no_gaussian_keeps_is_kept_by_epsilons():
    kept = Filter.within(Budget(1e-9, 1e-12), [PureEvent(1e-10)])
    assert kept.kind == "epsilon"
    assert kept.allows(sum(kept.costs([PureEvent(1e-10)], 1)))


@pytest.mark.parametrize("seed", range(20))
def test_a_filter_is_the_one_that_the_whole_costs_tell_apart(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    events = [PureEvent(float(each)) for each in 10 ** rng.uniform(-2, 0, rng.integers(1, 5))]
    if seed % 3 == 0:
        events.append(GaussianEvent(float(10 ** rng.uniform(0, 2))))
    total = sum(event.epsilon for event in events if isinstance(event, PureEvent))
    limit = Budget(total * float(rng.uniform(1, 4)), 1e-6)
    quick = Filter.within(limit, events)
    monkeypatch.setattr(filters, "_least_square", lambda *_: 0.0)
    assert quick == Filter.within(limit, events)
