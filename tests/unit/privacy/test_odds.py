"""Odds: what a curve says of beliefs and attacks, against closed forms and mechanisms counted out."""

import json
from dataclasses import replace
from math import exp, inf, log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from promised import PROMISED
from scipy.stats import norm

import sfumato as sf
from sfumato.privacy.accounting import epsilon_of, gaussian_multiplier
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
from sfumato.privacy.odds import Odds, curve_points, pair_points

USER = "all entries of one user, their presence included"
BUDGETS = [(0.1, 1e-6), (1.0, 1e-6), (3.0, 1e-5), (8.0, 1e-7)]


def odds_of(event, delta=0.0):
    return Odds(USER, False, delta, curve_points(event, delta))


def gaussian(epsilon, delta, noise=1.0):
    return GaussianEvent(noise * gaussian_multiplier(sf.Budget(epsilon, delta)))


# -- attacks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
@pytest.mark.parametrize("alarms", [0.001, 0.01, 0.1, 0.5])
def test_the_best_attack_on_a_gaussian_is_that_of_its_trade_off(epsilon, delta, alarms):
    event = gaussian(epsilon, delta)
    exact = norm.cdf(norm.ppf(alarms) + 1 / event.noise_multiplier)
    stated = odds_of(event, delta).true_positives(alarms)
    assert exact <= stated <= 1.01 * exact
    # Noise a third less or more is far outside of that.
    for noise in (2 / 3, 4 / 3):
        other = odds_of(gaussian(epsilon, delta, noise), delta).true_positives(alarms)
        assert not exact <= other <= 1.01 * exact


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_the_best_attack_on_randomised_response(epsilon):
    stated = odds_of(PureEvent(epsilon))
    for alarms in (0.0, 0.001, 0.01, 0.3, 0.9):
        exact = min(exp(epsilon) * alarms, 1 - exp(-epsilon) * (1 - alarms))
        assert stated.true_positives(alarms) == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_the_best_attack_on_laplace_noise(epsilon):
    stated = odds_of(LaplaceEvent(1 / epsilon))
    for alarms in (0.01, 0.1, 0.3, 0.45):
        # Alarms above a threshold: the tail of one law is e^epsilon of the other until its middle.
        threshold = -log(2 * alarms)
        shifted = threshold - epsilon
        exact = exp(-shifted) / 2 if shifted > 0 else 1 - exp(shifted) / 2
        assert exact - 1e-12 <= stated.true_positives(alarms) <= 1.005 * exact


def test_two_draws_of_laplace_noise_allow_less_than_their_sum():
    twice = Repeated(LaplaceEvent(2.0), 2)
    assert odds_of(twice).true_positives(0.3) < 0.9 * odds_of(PureEvent(1.0)).true_positives(0.3)


# -- beliefs --------------------------------------------------------------------------------------


def counted_out(law, shift, chance, factor, width=60.0, cells=400_001):
    """How often a release makes odds grow by more than the factor: every outcome, one by one."""
    at = np.linspace(-width, width, cells)
    with_unit, without = law(at - shift), law(at)
    grown = with_unit > factor * without
    return float(with_unit[grown].sum() / with_unit.sum())


def normal(deviation):
    return lambda at: np.exp(-((at / deviation) ** 2) / 2)


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS[1:])
def test_no_outcome_of_a_gaussian_passes_the_stated_belief_more_often_than_stated(epsilon, delta):
    event = gaussian(epsilon, delta)
    stated = odds_of(event, delta)
    assert stated.chance == delta
    assert stated.factor > exp(epsilon)  # e^epsilon would be passed more often than with delta
    deviation = event.noise_multiplier
    assert counted_out(normal(deviation), 1.0, delta, exp(epsilon)) > delta
    assert counted_out(normal(deviation), 1.0, delta, stated.factor) <= delta
    assert counted_out(normal(deviation * 2 / 3), 1.0, delta, stated.factor) > delta
    for prior in (0.01, 0.5, 0.9):
        after = stated.posterior(prior)
        assert after / (1 - after) == pytest.approx(stated.factor * prior / (1 - prior))


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_no_outcome_of_laplace_noise_passes_the_stated_belief(epsilon):
    stated = odds_of(LaplaceEvent(1 / epsilon))

    def law(scale):
        return lambda at: np.exp(-np.abs(at) / scale)

    assert stated.chance == 0
    limit = stated.factor * (1 + 1e-9)
    assert counted_out(law(1 / epsilon), 1.0, 0.0, limit) == 0
    assert counted_out(law(2 / (3 * epsilon)), 1.0, 0.0, limit) > 0.1


def test_responses_that_fail_are_within_what_a_pair_says():
    """The worst mechanism of an (epsilon, delta) pair: it shows the truth with delta."""
    epsilon, delta = 1.0, 1e-3
    stated = Odds(USER, False, delta, pair_points(epsilon, delta))
    assert stated.chance == 10 * delta
    assert stated.factor == pytest.approx(exp(epsilon) / 0.9)
    assert stated.growth(delta) == inf  # a pair says nothing of how losses lie above epsilon
    assert stated.true_positives(0.01) == pytest.approx(exp(epsilon) * 0.01 + delta)
    known = odds_of(ApproximateEvent(epsilon, delta / 1.01), delta)
    assert known.true_positives(0.01) <= stated.true_positives(0.01) * (1 + 1e-4)


@given(
    epsilon=st.floats(0.01, 8.0),
    delta=st.sampled_from([1e-3, 1e-5, 1e-8]),
    alarms=st.floats(0.0, 0.999),
    prior=st.floats(0.001, 0.999),
)
def test_a_curve_says_no_less_than_one_pair_of_it(epsilon, delta, alarms, prior):
    event = gaussian(epsilon, delta)
    whole = odds_of(event, delta)
    pair = Odds(USER, False, delta, pair_points(epsilon_of(event, delta), delta))
    assert alarms <= whole.true_positives(alarms) <= pair.true_positives(alarms) * (1 + 1e-5)
    assert prior <= whole.posterior(prior, 10 * delta) <= pair.posterior(prior) * (1 + 1e-5)
    assert whole.posterior(prior, 10 * delta) <= whole.posterior(prior) <= 1


@pytest.mark.parametrize(
    "event",
    [
        Composed((GaussianEvent(5.0), LaplaceEvent(4.0))),
        Repeated(SampledGaussianEvent(1.0, 0.01, False), 100),
        ZCDPEvent(0.02),
        RepeatAndSelect((GaussianEvent(8.0),), 3.0),
        ApproximateEvent(0.5, 1e-7),
    ],
)
def test_every_kind_of_event_has_odds(event):
    stated = odds_of(event, 1e-5)
    epsilon = epsilon_of(event, 1e-5)
    assert exp(0.4 * epsilon) < stated.factor < exp(1.6 * epsilon)
    assert 0.01 < stated.true_positives() <= 0.01 * exp(epsilon) + 1e-5


# -- guarantees -----------------------------------------------------------------------------------


TENSOR = sf.synthetic.typical([sf.Mode("user", 40), sf.Mode("item", 30)], 500).tensor


def fitted_guarantee(**asked):
    privacy = sf.Privacy(**{"epsilon": 1.0, "unit": "entry", "public": sf.Public(labels=True)} | asked)
    return sf.Biases(privacy=privacy).fit(TENSOR).guarantee_


def test_a_guarantee_keeps_the_curve_of_its_fit(recwarn):
    found = fitted_guarantee(delta=1e-6, seed=1)
    again = sf.Guarantee.from_json(json.loads(json.dumps(found.to_json())))
    assert again == found
    assert again.odds() == found.odds()
    assert len(found.curve) > 20
    pair = replace(found, curve=())
    assert found.odds().true_positives() < pair.odds().true_positives()
    old = found.to_json()
    del old["curve"]
    assert sf.Guarantee.from_json(old) == pair


def test_what_a_plan_says_is_what_its_noise_gives():
    """Odds of a plan of Gaussians alone, against the noise that its charges draw."""
    public = sf.Public(labels=True, entries=500)
    privacy = sf.Privacy(epsilon=1.0, delta=1e-6, unit="entry", method="alternating", public=public)
    plan = sf.CP(2, privacy=privacy).plan(TENSOR.modes, bounds=TENSOR.bounds)
    drawn = [charge.mechanism.noise_multiplier for charge in plan.charges]
    assert all(type(charge.mechanism).__name__ == "Gaussian" for charge in plan.charges)
    distance = sqrt(sum(noise**-2 for noise in drawn))
    exact = norm.cdf(norm.ppf(0.01) + distance)
    less = norm.cdf(norm.ppf(0.01) + distance * 3 / 2)
    assert exact <= plan.odds.true_positives() <= 1.01 * exact < less


@pytest.mark.parametrize(
    "curve",
    [
        [[0.0, 0.1], [0.0, 0.05]],
        [[1.0, 0.1], [0.5, 0.05]],
        [[0.0, 0.1], [1.0, 0.2]],
        [[0.0, 1.0]],
        [[-1.0, 0.1]],
        [[float("nan"), 0.1]],
        [[float("inf"), 0.1]],
        [[0.0]],
        [[0.0, "0.1"]],
        [0.0, 0.1],
        "none",
    ],
)
def test_what_is_no_curve_is_refused(curve):
    with pytest.raises(sf.SettingError, match="not a guarantee"):
        sf.Guarantee.from_json({**PROMISED.to_json(), "curve": curve})


def test_words_are_of_the_relation_and_the_unit():
    added = replace(PROMISED, unit=USER, neighbours="all entries of one user are added or removed")
    said = " ".join(added.odds().sentences())
    assert "that the data hold all entries of one user can rise from 10% to" in said
    assert "but for a chance of 1e-05" in said
    replaced = replace(PROMISED, unit="one observed value", neighbours="it is replaced", delta=0.0)
    belief, attack = replaced.odds().sentences()
    assert "the one and not the other of two possibilities for one observed value" in belief
    assert "from 50% to 73.2%" in belief
    assert "2.72-fold" in belief
    assert "chance" not in belief
    assert "finds at most 2.8% of those" in attack
    assert "two possibilities for one observed value" in " ".join(str(replaced).split())
    assert replaced.told()["odds"]["sentences"] == [belief, attack]
    assert replaced.told()["odds"]["factor"] == pytest.approx(exp(1.0))


def test_no_comfort_where_there_is_none():
    unbounded = replace(PROMISED, epsilon=inf, delta=0.0)
    (only,) = unbounded.odds().sentences()
    assert only.startswith("nothing is promised")
    assert unbounded.odds().posterior(0.01) == 1.0
    assert unbounded.told()["odds"]["factor"] is None
    assert json.loads(json.dumps(unbounded.told()["odds"], allow_nan=False))
    huge = replace(PROMISED, epsilon=5000.0, delta=0.0)
    assert huge.odds().sentences()[0].startswith("nothing is promised")
    claimed = replace(PROMISED, proven=False).odds().sentences()
    assert claimed[0].startswith("only if what is CLAIMED holds, which is not proven: a belief")
    seeded = replace(PROMISED, seeded=True).odds().sentences()
    assert seeded[0].startswith("only to those who do not know the seed; who does can become certain")


class Measured:
    """What an audit says, as far as odds ask."""

    def __init__(self, measured, *, violated, unit=USER):
        self.measured, self.violated, self.confidence = measured, violated, 0.95
        self.promise = replace(PROMISED, unit=unit)


def test_what_an_audit_has_shown_is_one_sentence():
    stated = Odds(USER, False, PROMISED.delta, pair_points(1.0, PROMISED.delta))
    assert len(stated.sentences(Measured(0.5, violated=False))) == 3
    last = stated.sentences(Measured(0.5, violated=False))[-1]
    assert "with a confidence of 95%, that odds can grow 1.64-fold, which the promise allows" in last
    assert "REFUTES" in stated.sentences(Measured(2.0, violated=True))[-1]
    with pytest.raises(sf.SettingError, match="another unit"):
        stated.sentences(Measured(0.5, violated=False, unit="one entry"))


@pytest.mark.parametrize("other", [{"epsilon": 1.1}, {"epsilon": 20.0}, {"delta": 1e-5}, {"delta": 0.0}])
def test_what_an_audit_of_another_promise_has_shown_is_refused(other):
    """An audit at epsilon 20 may find much, all of which that promise allows."""
    stated = Odds(USER, False, PROMISED.delta, pair_points(1.0, PROMISED.delta))
    shown = Measured(0.5, violated=False)
    shown.promise = replace(shown.promise, epsilon=1.009)  # as far as accounting is exact
    assert len(stated.sentences(shown)) == 3
    shown.promise = replace(shown.promise, **other)
    with pytest.raises(sf.SettingError, match="another promise"):
        stated.sentences(shown)


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan"), "half", None])
def test_what_is_no_share_is_refused(wrong):
    stated = Odds(USER, False, 0.0, pair_points(1.0, 0.0))
    for ask in (stated.true_positives, stated.posterior, stated.growth):
        with pytest.raises((sf.SettingError, TypeError)):
            ask(wrong)


@pytest.mark.parametrize("delta", [1 / 943, 1000**-1.1, 1e-6 / 3, 0.0])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 8.0])
def test_an_audit_of_the_very_promise_is_taken_whatever_its_delta(epsilon, delta):
    """Points of a curve are rounded up: the promise's own is not to be lost by that."""
    modes = [sf.Mode("user", 40), sf.Mode("item", 30)]
    privacy = sf.Privacy(epsilon, delta, unit="value", method="bias")
    odds = sf.CP(privacy=privacy).plan(modes, bounds=(1, 5), entries=500).odds
    odds.check_audit(odds.unit, epsilon, delta)
    with pytest.raises(sf.SettingError, match="another promise"):
        odds.check_audit(odds.unit, 1.1 * epsilon, delta)
