"""Repeat and select: what it costs, against the theorem and against exact laws; how it is drawn."""

from math import exp, expm1, inf, log, tanh

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from on_grid import on_grid
from scipy.optimize import minimize_scalar
from scipy.stats import chisquare, norm, poisson

from sfumato.errors import SettingError
from sfumato.privacy.accounting import calibrate, covers, delta_of, epsilon_of, rho_of
from sfumato.privacy.budgets import Budget
from sfumato.privacy.entropy import Entropy
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
from sfumato.privacy.ledger import BudgetError, Charge, Ledger
from sfumato.privacy.mechanisms import Gaussian
from sfumato.privacy.selection import RunCharges, SelectBest, repetitions, select_best
from sfumato.privacy.units import Entry

DELTA = 1e-6


def chosen(*events, rate=6.0):
    return RepeatAndSelect(events, rate)


# -- what it costs --------------------------------------------------------------------------------


@pytest.mark.parametrize("multiplier", [0.5, 2.0, 10.0])
@pytest.mark.parametrize("rate", [1.0, 6.0, 30.0])
def test_cost_is_the_theorems_formula(multiplier, rate):
    """Theorem 6 of Papernot and Steinke for a Gaussian, written down anew, at the best order."""

    def bound(log_order_less_one):
        order = 1 + exp(log_order_less_one)
        at = log(order / (order - 1))
        mu = 1 / multiplier
        delta = norm.cdf(mu / 2 - at / mu) - exp(at) * norm.cdf(-mu / 2 - at / mu)
        mean = rate / -expm1(-rate)
        divergence = order / (2 * multiplier**2) + rate * delta + log(mean) / (order - 1)
        return divergence + log(1 - 1 / order) - (log(DELTA) + log(order)) / (order - 1)

    best = minimize_scalar(bound, bounds=(-3, 8), method="bounded").fun
    found = epsilon_of(chosen(GaussianEvent(multiplier), rate=rate), DELTA)
    assert best * (1 - 1e-6) <= found <= best * 1.001


@pytest.mark.parametrize("multiplier", [1.0, 4.0])
@pytest.mark.parametrize("rate", [2.0, 8.0])
def test_the_best_of_gaussians_costs_no_more_and_with_less_noise_it_would(multiplier, rate):
    """Runs whose output is its own score: the law of their maximum is known exactly.

    With many runs these are not the worst ones, and the bound has room to spare.
    """

    def true_delta(multiplier, epsilon):
        x, step = np.linspace(-14 * multiplier, 14 * multiplier + 1, 400_001, retstep=True)

        def density(shift):
            above = norm.sf(x, shift, multiplier)
            return rate / -expm1(-rate) * np.exp(-rate * above) * norm.pdf(x, shift, multiplier)

        left, right = density(0), density(1)
        gains = (np.maximum(0, a - exp(epsilon) * b).sum() for a, b in ((left, right), (right, left)))
        return max(gains) * step

    claimed = epsilon_of(chosen(GaussianEvent(multiplier), rate=rate), DELTA)
    assert true_delta(multiplier, claimed) <= DELTA
    if rate == 2:
        assert true_delta(multiplier * 2 / 3, claimed) > DELTA


@pytest.mark.parametrize("seed", range(8))
def test_the_best_of_pure_runs_costs_no_more(seed):
    """Finite laws whose probabilities differ by at most e^epsilon: the best one's law, exactly."""
    rng = np.random.default_rng(seed)
    epsilon, rate = rng.uniform(0.1, 1.5), rng.uniform(0.5, 8)
    wide = rng.random(7) < 0.5  # extreme pairs: each probability at one end of what is allowed
    low = rng.dirichlet(np.ones(7))
    up = low * np.where(wide, exp(epsilon / 2), exp(-epsilon / 2))
    pair = low, up / up.sum()
    ratio = max(abs(np.log(pair[0] / pair[1])))

    def best(law):
        below = np.concatenate([[0.0], np.cumsum(law)])
        return np.diff(np.expm1(rate * below) / expm1(rate))

    left, right = best(pair[0]), best(pair[1])
    event = chosen(PureEvent(ratio), rate=rate)
    pure = epsilon_of(event, 0.0)
    assert pure == pytest.approx(ratio + rate * tanh(ratio / 2))
    assert max(abs(np.log(left / right))) <= pure
    for delta in (0.1, 1e-3):
        at = epsilon_of(event, delta)
        assert np.maximum(0, left - exp(at) * right).sum() <= delta
        assert np.maximum(0, right - exp(at) * left).sum() <= delta


@pytest.mark.parametrize("multiplier", [1.0, 5.0])
def test_never_more_than_dp_accounting(multiplier):
    accountant = RdpAccountant(np.concatenate([1 + np.geomspace(0.01, 1, 50), np.arange(3, 300)]))
    accountant.compose(dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(multiplier), 6, inf))
    base = epsilon_of(GaussianEvent(multiplier), DELTA)
    assert base < epsilon_of(chosen(GaussianEvent(multiplier)), DELTA) <= accountant.get_epsilon(DELTA)


def test_more_runs_and_less_noise_cost_more():
    costs = [epsilon_of(chosen(GaussianEvent(3.0), rate=rate), DELTA) for rate in (1, 2, 5, 20)]
    assert sorted(costs) == costs
    costs = [epsilon_of(chosen(GaussianEvent(noise)), DELTA) for noise in (8.0, 4.0, 1.0)]
    assert sorted(costs) == costs


@pytest.mark.parametrize(
    "run",
    [
        ZCDPEvent(0.05),
        Repeated(LaplaceEvent(20.0), 3),
        Repeated(SampledGaussianEvent(2.0, 0.05, False), 40),
        Composed((GaussianEvent(4.0), PureEvent(0.1))),
    ],
)
def test_all_kinds_of_runs_have_a_cost(run):
    event = chosen(run)
    found = epsilon_of(event, DELTA)
    assert epsilon_of(run, DELTA) < found < inf
    assert delta_of(event, found) <= DELTA * 1.01
    assert epsilon_of(Composed((event, GaussianEvent(5.0))), DELTA) > found


def test_the_dearest_kind_of_run_counts():
    cheap, dear = GaussianEvent(5.0), GaussianEvent(3.0)
    assert epsilon_of(chosen(cheap, dear), DELTA) == epsilon_of(chosen(dear), DELTA)
    mixed = epsilon_of(chosen(GaussianEvent(3.0), PureEvent(0.5)), DELTA)
    assert mixed >= max(
        epsilon_of(chosen(GaussianEvent(3.0)), DELTA), epsilon_of(chosen(PureEvent(0.5)), DELTA)
    )


@pytest.mark.parametrize("budget", [Budget(0.1, DELTA), Budget(3.0, DELTA)])
def test_calibration_spends_the_budget_and_no_more(budget):
    noise = calibrate(lambda noise: chosen(GaussianEvent(noise)), budget)
    assert covers(budget, chosen(GaussianEvent(noise)))
    assert not covers(budget, chosen(GaussianEvent(0.999 * noise)))


def test_there_is_no_concentration_and_no_pure_epsilon_of_gaussians():
    event = chosen(GaussianEvent(2.0))
    assert epsilon_of(event, 0.0) == rho_of(event) == inf


@pytest.mark.parametrize(
    ("events", "rate"),
    [
        ((), 3.0),
        ((GaussianEvent(1.0),), 0.0),
        ((GaussianEvent(1.0),), inf),
        ((ApproximateEvent(1.0, 1e-6),), 3.0),
        ((Composed((chosen(GaussianEvent(1.0)),)),), 3.0),
    ],
)
def test_what_has_no_bound_is_refused(events, rate):
    with pytest.raises(SettingError):
        RepeatAndSelect(events, rate)


# -- how it is drawn ------------------------------------------------------------------------------


def test_the_number_of_runs_is_poisson_and_never_zero():
    """False alarm once in 1,000 seeds; a rate of 2.7 or 3.3 instead of 3 is seen."""
    generator = np.random.default_rng(5)
    drawn = np.array([repetitions(3, generator) for _ in range(6000)])
    seen = np.bincount(np.minimum(drawn, 9), minlength=10)
    assert seen[0] == 0

    def fits(rate):
        law = poisson.pmf(np.arange(10), rate)
        law[9] += poisson.sf(9, rate)
        return chisquare(seen[1:], 6000 * law[1:] / law[1:].sum()).pvalue

    assert fits(3) > 1e-3
    assert max(fits(2.7), fits(3.3)) < 1e-3


def two_candidates(first=1.0, second=1.0, **settings):
    runs = [
        RunCharges((Charge("fit", Gaussian(noise)),), Charge("score", Gaussian(2.0)))
        for noise in (first, second)
    ]
    return SelectBest(tuple(runs), **{"rate": 4, "disjoint": False, **settings})


def test_cost_follows_from_the_draws_of_the_runs():
    fits = [Composed((GaussianEvent(noise), GaussianEvent(2.0))) for noise in (1.0, 3.0)]
    assert two_candidates(1.0, 3.0).event == RepeatAndSelect(tuple(fits), 4.0)
    apart = two_candidates(1.0, 3.0, disjoint=True).event
    assert apart == RepeatAndSelect(
        (Composed((GaussianEvent(1.0),)), GaussianEvent(2.0), Composed((GaussianEvent(3.0),))), 4.0
    )


def test_the_lowest_score_is_kept_and_all_is_charged_once_before(tmp_path):
    path = tmp_path / "ledger"
    ledger, made, charged = Ledger(Entry(), path=path), [], []
    nothing = on_grid(np.zeros(1), 1.0, 1.0)

    def run(number, reservation):
        charged.append(path.read_text().count("RepeatAndSelect"))
        reservation.ask(lambda draw: draw.release(nothing))
        score = float(reservation.ask(lambda draw: draw.release(nothing)).values[0])
        with pytest.raises(BudgetError):
            reservation.ask(lambda draw: draw.release(nothing))
        made.append((score, number))
        return score, score

    with ledger.reserve([Charge("search", two_candidates(rate=12))], Entropy(3)) as reservation:
        number, score = reservation.ask(lambda draw: select_best(draw, run))
    assert (score, number) == min(made)
    assert len(made) > 3
    assert {number for _, number in made} == {0, 1}
    assert set(charged) == {1}
    assert len(ledger.events) == 1
    assert Ledger(Entry(), path=path).events == [two_candidates(rate=12).event]


def test_a_crash_in_a_run_leaves_the_whole_charge(tmp_path):
    ledger = Ledger(Entry(), path=tmp_path / "ledger")
    with (
        pytest.raises(ZeroDivisionError),
        ledger.reserve([Charge("search", two_candidates())], Entropy(3)) as reservation,
    ):
        reservation.ask(lambda draw: select_best(draw, lambda number, inner: 1 / 0))
    assert ledger.events == [two_candidates().event]


@pytest.mark.parametrize("rate", [0, -1, 2.5, 1000])
def test_impossible_numbers_of_runs(rate):
    with pytest.raises(SettingError, match="repetitions"):
        two_candidates(rate=rate)
