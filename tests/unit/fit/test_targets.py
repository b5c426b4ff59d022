"""The epsilon that a target asks for."""

from dataclasses import replace
from math import exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sfumato as sf
from sfumato.fit.targets import expected_at, least_of
from sfumato.privacy.caveats import LARGE_EPSILON

MODES = (sf.Mode("user", 600), sf.Mode("item", 400))
ENTRIES = 40_000


def plan_of(unit="entry", delta=1e-6, local="user", entries=ENTRIES, modes=MODES, **asked):
    public = sf.Public(entries=entries, labels=True, units=600 if local else None, **asked)
    privacy = sf.Privacy(5.0, delta, unit=unit, local=local, public=public)
    return sf.CP(privacy=privacy).plan(modes, bounds=(-2, 2))


PLANS = {
    "entry": plan_of(),
    "user": plan_of("user", 1e-5),
    "pure": plan_of(delta=0.0, local=None),
}


@pytest.mark.parametrize("name", list(PLANS))
def test_the_least_epsilon_that_is_expected_to_reach_an_error(name):
    plan = PLANS[name]
    found = sf.epsilon_for(plan, rmse=0.88)
    low, high = found.band
    assert low < found.rmse <= 0.88 < high
    assert high - low < 0.1
    less = sf.Budget(0.98 * found.epsilon, plan.budget.delta)
    assert expected_at(plan.task.facts, less).rmse > 0.88
    made = sf.CP(privacy=_asked(found.epsilon, name)).plan(MODES, bounds=(-2, 2))
    assert made.task.solver.name == {"bias": "private biases"}.get(found.method, found.method)
    assert f"epsilon {found.epsilon:g} at least" in found.in_words()


def _asked(epsilon, name):
    plan = PLANS[name]
    unit, local = ("user", "user") if name == "user" else ("entry", None if name == "pure" else "user")
    public = sf.Public(entries=ENTRIES, labels=True, units=600 if local else None)
    return sf.Privacy(epsilon, plan.budget.delta, unit=unit, local=local, public=public)


def test_errors_are_in_the_units_of_the_values():
    wide = plan_of(spread=0.5)
    found, same = sf.epsilon_for(wide, rmse=0.44), sf.epsilon_for(PLANS["entry"], rmse=0.88)
    assert found.epsilon == pytest.approx(same.epsilon, rel=0.15)
    assert found.rmse == pytest.approx(same.rmse / 2, rel=1e-2)


@settings(max_examples=5, deadline=None)
@given(
    name=st.sampled_from(list(PLANS)),
    kind=st.sampled_from(["rmse", "share"]),
    two=st.tuples(*[st.floats(0.0, 1.0)] * 2),
)
def test_a_stricter_target_never_has_a_smaller_epsilon(name, kind, two):
    strict, lax = sorted(two)
    asked = (
        (0.8 + 0.3 * strict, 0.8 + 0.3 * lax)
        if kind == "rmse"
        else (0.3 - 0.3 * strict, 0.3 - 0.3 * lax)
    )
    found = [sf.epsilon_for(PLANS[name], **{kind: max(0.01, each)}).epsilon for each in asked]
    epsilons = [LARGE_EPSILON + 1 if each is None else each for each in found]
    assert epsilons[0] >= epsilons[1]


@given(seed=st.integers(0, 1000), aims=st.tuples(*[st.floats(0, 1)] * 2))
def test_the_search_is_monotone_whatever_it_looks_at(seed, aims):
    """Also where what is expected is no function of epsilon that falls, but any at all."""
    values = np.random.default_rng(seed).random(2000)

    def bumpy(epsilon):
        return values[int(200 * log(epsilon * 1000)) % len(values)]

    strict, lax = (least_of(lambda e, aim=aim: bumpy(e) <= aim) for aim in sorted(aims))
    assert (strict or 100) >= (lax or 100)


def test_odds_stay_within_what_is_asked():
    for name, plan in PLANS.items():
        found = sf.epsilon_for(plan, odds=3.0)
        made = sf.CP(privacy=_asked(found.epsilon, name)).plan(MODES, bounds=(-2, 2))
        assert made.odds.factor <= 3.0
        assert found.factor == pytest.approx(made.odds.factor)
        more = sf.CP(privacy=_asked(1.02 * found.epsilon, name)).plan(MODES, bounds=(-2, 2))
        assert more.odds.factor > 3.0
        assert found.epsilon < log(3.0)
        assert exp(found.epsilon) > (2.9 if name == "pure" else 2.2)
        assert sf.epsilon_for(plan, odds=2.0).epsilon < found.epsilon


@settings(max_examples=25, deadline=None)
@given(name=st.sampled_from(list(PLANS)), more=st.floats(-14, 14))
def test_whatever_odds_are_asked_for_are_kept_to(name, more):
    """From 1.000001 on, also where no epsilon of the grid is small enough."""
    odds = 1 + exp(more)
    found = sf.epsilon_for(PLANS[name], odds=odds)
    if found.epsilon is None:
        assert odds < found.factor < 1.01
        assert "no epsilon that is looked at keeps to it" in found.in_words()
        return
    made = sf.CP(privacy=_asked(found.epsilon, name)).plan(MODES, bounds=(-2, 2))
    assert made.odds.factor <= odds
    assert found.factor == pytest.approx(made.odds.factor)


@pytest.mark.parametrize("name", list(PLANS))
def test_odds_below_those_of_the_smallest_epsilon_are_out_of_reach(name):
    least = sf.epsilon_for(PLANS[name], odds=1.001)
    assert (least.epsilon, least.factor > 1.001) == (None, True)
    above = sf.epsilon_for(PLANS[name], odds=1.0001 * least.factor)
    assert above.epsilon >= 0.0039
    assert above.factor <= 1.0001 * least.factor


def test_bands_are_wider_where_few_entries_are_held_out():
    """By what an error that is measured at a fifth of the entries may be off, beside the planner's."""
    widths = []
    for entries in (ENTRIES, 25 * ENTRIES):
        plan = plan_of(entries=entries, modes=(sf.Mode("user", 6000), sf.Mode("item", 4000)))
        found = sf.epsilon_for(plan, rmse=0.95)
        widths.append((found.band[1] - found.band[0]) / 2 / found.rmse)
    assert 0.02 < widths[1] < 0.021
    assert widths[0] == pytest.approx((0.02**2 + 4 / (2 * ENTRIES / 4)) ** 0.5, rel=1e-6)


def test_what_is_out_of_reach_is_said_with_what_would_help():
    thin = plan_of("user", 1e-5, entries=6_000)
    found = sf.epsilon_for(thin, rmse=0.84)
    assert found.epsilon is None
    said = found.in_words()
    assert "not expected to be reached: with epsilon 20" in said
    assert "Without any privacy" in said
    assert "entries of the same levels it is expected with epsilon" in said
    hopeless = sf.epsilon_for(PLANS["user"], rmse=0.1)
    assert hopeless.epsilon is None
    assert "of the same levels" not in hopeless.in_words()
    shared = sf.epsilon_for(PLANS["user"], share=0.5)
    assert shared.epsilon is None
    assert "With entries protected one by one it is expected with epsilon" in shared.in_words()


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({}, "one target"),
        ({"rmse": 0.9, "odds": 3}, "one target"),
        ({"rmse": 0.0}, "target_rmse"),
        ({"rmse": float("nan")}, "target_rmse"),
        ({"rmse": "low"}, "target_rmse"),
        ({"share": 1.5}, "target_share"),
        ({"share": -0.5}, "target_share"),
        ({"odds": 1.0}, "target_odds"),
        ({"odds": True}, "target_odds"),
    ],
)
def test_what_is_no_target_is_refused(wrong, match):
    with pytest.raises(sf.SettingError, match=match):
        sf.epsilon_for(PLANS["entry"], **wrong)


def test_only_a_private_completion_with_an_epsilon_has_targets():
    zcdp = replace(PLANS["entry"], budget=sf.ZCDP(0.1))
    with pytest.raises(sf.SettingError, match="not with rho"):
        sf.epsilon_for(zcdp, rmse=0.9)
    with pytest.raises(sf.SettingError, match="private completion"):
        sf.epsilon_for(sf.CP(2).plan(MODES), rmse=0.9)
