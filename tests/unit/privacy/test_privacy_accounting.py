"""Accounting against closed forms, published values and dp-accounting's own accountants."""

import subprocess
import sys
from math import exp, expm1, inf, log, sqrt

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant
from scipy.integrate import quad
from scipy.special import log_ndtr
from scipy.stats import binom, norm

from sfumato.errors import SettingError
from sfumato.privacy import curves
from sfumato.privacy.accounting import (
    advanced,
    basic,
    calibrate,
    covers,
    delta_of,
    epsilon_of,
    gaussian_multiplier,
    rho_of,
    rounds_of_noise,
)
from sfumato.privacy.budgets import ZCDP, Budget
from sfumato.privacy.curves import (
    LossCurve,
    RenyiCurve,
    gaussian_delta,
    gaussian_epsilon,
    surpasses,
)
from sfumato.privacy.events import (
    ApproximateEvent,
    Composed,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    Repeated,
    SampledGaussianEvent,
    ZCDPEvent,
)


def sampled(multiplier, rate, steps, replaces=False):
    return Repeated(SampledGaussianEvent(multiplier, rate, replaces), steps)


# -- Gaussians ------------------------------------------------------------------------------------


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_gaussian_delta_is_the_hockey_stick_integral(multiplier, epsilon):
    def integrand(x):
        near = norm.pdf(x, 1, multiplier)
        return max(0.0, near - exp(epsilon) * norm.pdf(x, 0, multiplier))

    kink = multiplier**2 * epsilon + 0.5
    expected, _ = quad(integrand, kink, kink + 15 * multiplier, epsabs=1e-14)
    assert gaussian_delta(multiplier, epsilon) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_gaussian_calibration_is_analytic(epsilon, delta):
    found = gaussian_multiplier(Budget(epsilon, delta))
    assert gaussian_delta(found, epsilon) <= delta
    assert gaussian_delta(found * 0.999, epsilon) > delta


def test_published_gaussian_calibration():
    # Printed by the program that Balle and Wang (2018) published, at epsilon 1 and delta 1e-5.
    assert gaussian_multiplier(Budget(1.0, 1e-5)) == pytest.approx(3.730631634816464, rel=3e-4)


def test_gaussians_compose_to_one_gaussian():
    many = Composed((Repeated(GaussianEvent(10.0), 60), Repeated(GaussianEvent(5.0), 10)))
    assert epsilon_of(many, 1e-6) == gaussian_epsilon(1.0, 1e-6)
    split = rounds_of_noise(2.0, [1, 2, 3])
    assert epsilon_of(Composed(tuple(map(GaussianEvent, split))), 1e-6) == pytest.approx(
        gaussian_epsilon(2.0, 1e-6)
    )


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-8, 1e-10, 1e-12])
def test_loss_distributions_are_never_below_the_exact_curve(delta):
    # 200,000 compositions: without an allowance for Fourier transforms the last two would be.
    curve = LossCurve({GaussianEvent(300.0): 200_000})
    exact = gaussian_epsilon(300 / sqrt(200_000), delta)
    assert exact <= curve.epsilon(delta)
    if delta >= 1e-8:
        assert curve.epsilon(delta) < exact * 1.01
    assert curve.delta(exact) >= delta * (1 - 1e-6)


# -- pure and approximate -------------------------------------------------------------------------


def test_pure_epsilons_add_up():
    event = Composed((PureEvent(0.5), Repeated(LaplaceEvent(4.0), 3)))
    assert epsilon_of(event, 0.0) == 1.25
    assert delta_of(event, 1.25) == 0.0
    assert covers(Budget(1.25), event)
    assert not covers(Budget(1.2499), event)
    assert epsilon_of(event, 1e-6) <= 1.25


def test_sums_may_miss_the_last_digit():
    parts = Budget(0.7).split(*range(1, 30))
    assert covers(Budget(0.7), Composed(tuple(PureEvent(part.epsilon) for part in parts)))


def test_gaussians_have_no_pure_epsilon():
    assert epsilon_of(GaussianEvent(5.0), 0.0) == inf
    assert epsilon_of(ZCDPEvent(1.0), 0.0) == inf
    assert delta_of(Composed(()), 0.0) == 0.0
    assert epsilon_of(Composed(()), 1e-6) == 0.0


def test_laplace_alone():
    # 1 - exp((epsilon - 1/b) / 2) for one coordinate.
    for epsilon in (0.2, 0.5, 0.9):
        expected = -expm1((epsilon - 1) / 2)
        assert delta_of(LaplaceEvent(1.0), epsilon) == pytest.approx(expected, rel=1e-3)
        assert delta_of(LaplaceEvent(1.0), epsilon) >= expected * (1 - 1e-12)


def test_randomised_response_composes_as_binomial():
    # Kairouz, Oh and Viswanath (2015): the optimal composition of pure mechanisms.
    epsilon, times = 0.11, 50
    truth = exp(epsilon) / (1 + exp(epsilon))
    k = np.arange(times + 1)
    losses = (2 * k - times) * epsilon
    for target in (0.5, 1.0, 2.0):
        weights = np.maximum(0.0, -np.expm1(target - losses))
        exact = float(weights @ binom.pmf(k, times, truth))
        found = delta_of(Repeated(PureEvent(epsilon), times), target)
        assert exact <= found <= exact * 1.02


def test_approximate_events_fail_with_their_delta():
    event = Repeated(ApproximateEvent(0.1, 1e-8), 10)
    assert epsilon_of(event, 1e-8) == inf
    assert epsilon_of(event, 0.0) == inf
    assert epsilon_of(event, 1e-6) < 1.0
    assert delta_of(event, 1.0) == pytest.approx(1e-7, rel=1e-3)
    assert RenyiCurve({ApproximateEvent(0.1, 1e-8): 10}).epsilon(1e-6) < 1.2
    assert RenyiCurve({ApproximateEvent(0.1, 1e-8): 10}).epsilon(1e-7) == inf
    assert ApproximateEvent(0.5, 0.0) == ApproximateEvent(0.5, 0.0)
    assert epsilon_of(ApproximateEvent(0.5, 0.0), 0.0) == 0.5


# -- sampling -------------------------------------------------------------------------------------


@pytest.mark.parametrize("multiplier", [0.8, 2.0, 10.0])
def test_rate_one_is_no_sampling(multiplier):
    added = sampled(multiplier, 1.0, 5)
    replaced = sampled(multiplier, 1.0, 5, replaces=True)
    assert epsilon_of(added, 1e-6) == pytest.approx(
        gaussian_epsilon(multiplier / sqrt(5), 1e-6), rel=2e-3
    )
    # A replaced unit moves the sum by up to twice its norm.
    assert epsilon_of(replaced, 1e-6) == pytest.approx(
        gaussian_epsilon(multiplier / 2 / sqrt(5), 1e-6), rel=2e-3
    )


def mixture_delta(multiplier, rate, epsilon, replaces):
    """One step's delta by numerical integration over the worst pair of neighbours."""

    def mixed(x, shift):
        return (1 - rate) * norm.pdf(x, 0, multiplier) + rate * norm.pdf(x, shift, multiplier)

    pairs = [(1, -1)] if replaces else [(1, 0), (0, 1)]
    x = np.linspace(-12 * multiplier - 1, 12 * multiplier + 1, 400_001)
    gaps = (np.maximum(0.0, mixed(x, a) - exp(epsilon) * mixed(x, b)) for a, b in pairs)
    return max(float(np.trapezoid(gap, x)) for gap in gaps)


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5])
def test_one_sampled_step_is_the_mixtures_divergence(replaces, epsilon):
    expected = mixture_delta(1.0, 0.05, epsilon, replaces)
    found = delta_of(SampledGaussianEvent(1.0, 0.05, replaces), epsilon)
    assert expected * (1 - 1e-6) <= found <= expected * 1.02 + 1e-9


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize(("multiplier", "rate", "steps"), [(1.0, 0.01, 1000), (4.0, 0.01, 5000)])
def test_agrees_with_dp_accountings_own_accountant(multiplier, rate, steps, replaces):
    relation = NeighboringRelation.REPLACE_ONE if replaces else NeighboringRelation.ADD_OR_REMOVE_ONE
    theirs = PLDAccountant(relation)
    step = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(multiplier))
    theirs.compose(step, steps)
    ours = epsilon_of(sampled(multiplier, rate, steps, replaces), 1e-6)
    assert ours == pytest.approx(theirs.get_epsilon(1e-6), rel=3e-3)


def test_published_dp_sgd():
    # Abadi et al. 2016, section 1 and figure 2: q = 0.01, sigma = 4, delta = 1e-5; the moments
    # accountant gives 1.26 after 10,000 steps. Exact accounting can only be lower, and is close.
    assert 0.9 < epsilon_of(sampled(4.0, 0.01, 10_000), 1e-5) < 1.26
    # TensorFlow Privacy's tutorial: 60,000 examples, batches of 250, 15 epochs, noise 1.3, 1.18 by
    # moments at delta 1e-5.
    moments = RenyiCurve({SampledGaussianEvent(1.3, 250 / 60_000, False): 3600})
    assert moments.epsilon(1e-5) < 1.18
    assert epsilon_of(sampled(1.3, 250 / 60_000, 3600), 1e-5) < moments.epsilon(1e-5)


@pytest.mark.parametrize(("multiplier", "rate", "steps"), [(1.1, 0.01, 1000), (4.0, 0.02, 300)])
def test_renyi_agrees_with_dp_accountings_own_accountant(multiplier, rate, steps):
    theirs = RdpAccountant(orders=list(range(2, 200)))
    step = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(multiplier))
    theirs.compose(step, steps)
    ours = RenyiCurve({SampledGaussianEvent(multiplier, rate, False): steps})
    assert ours.epsilon(1e-6) == pytest.approx(theirs.get_epsilon(1e-6), rel=1e-2)


# -- where there is no loss distribution ----------------------------------------------------------


@pytest.mark.parametrize("rho", [0.001, 0.1, 2.0])
@pytest.mark.parametrize("delta", [1e-4, 1e-8])
def test_zcdp_conversion_lies_between_the_gaussian_and_the_classical_one(rho, delta):
    found = epsilon_of(ZCDPEvent(rho), delta)
    assert gaussian_epsilon(sqrt(1 / (2 * rho)), delta) < found < ZCDP(rho).epsilon(delta)
    # The best order, by brute force (Canonne, Kamath and Steinke 2020, Proposition 12).
    a = 1 + np.geomspace(1e-4, 1e6, 200_000)
    best = np.min(rho * a + np.log1p(-1 / a) - (log(delta) + np.log(a)) / (a - 1))
    assert best <= found <= best * 1.001
    assert delta_of(ZCDPEvent(rho), found) == pytest.approx(delta, rel=0.02)


def test_zcdp_adds_up_with_gaussians_and_pure_events():
    gaussians = Composed((ZCDPEvent(0.05), GaussianEvent(sqrt(1 / (2 * 0.15)))))
    assert epsilon_of(gaussians, 1e-6) == pytest.approx(epsilon_of(ZCDPEvent(0.2), 1e-6))
    mixed = Composed((ZCDPEvent(0.05), PureEvent(0.1), sampled(2.0, 0.01, 100), LaplaceEvent(9.0)))
    alone = Composed((PureEvent(0.1), sampled(2.0, 0.01, 100), LaplaceEvent(9.0)))
    assert epsilon_of(alone, 1e-6) < epsilon_of(mixed, 1e-6)
    assert epsilon_of(mixed, 1e-6) < epsilon_of(ZCDPEvent(rho_of(mixed)), 1e-6)


@pytest.mark.parametrize(
    "event", [GaussianEvent(3.0), LaplaceEvent(2.0), PureEvent(0.7), ApproximateEvent(0.7, 0.0)]
)
def test_renyi_divergences_are_above_the_loss_distribution(event):
    for times in (1, 20):
        parts = {event: times}
        tight, wide = LossCurve(parts).epsilon(1e-6), RenyiCurve(parts).epsilon(1e-6)
        assert tight <= wide * 1.001
        assert wide < 1.6 * tight


def test_replaced_samples_are_taken_as_unsampled_by_renyi():
    parts = {SampledGaussianEvent(4.0, 0.1, True): 10}
    full = {GaussianEvent(2.0): 10}
    assert RenyiCurve(parts).epsilon(1e-6) == pytest.approx(RenyiCurve(full).epsilon(1e-6), rel=0.01)


def test_tiny_deltas_and_huge_losses_still_have_a_bound():
    assert epsilon_of(sampled(2.0, 0.01, 1000), 1e-15) < 30
    assert epsilon_of(Composed((GaussianEvent(0.01), PureEvent(1.0))), 1e-6) < 7000
    assert epsilon_of(Composed((PureEvent(1e6), GaussianEvent(1.0))), 1e-6) < 1.001e6 + 10


def test_many_different_events_are_rounded_to_the_safe_side():
    epsilons = np.linspace(0.01, 0.02, 3000)
    event = Composed(tuple(PureEvent(float(e)) for e in epsilons))
    found = epsilon_of(event, 1e-6)
    at_least = epsilon_of(Repeated(PureEvent(0.01), 3000), 1e-6)
    at_most = epsilon_of(Repeated(PureEvent(0.0202), 3000), 1e-6)
    assert at_least < found < at_most
    for make in (PureEvent, LaplaceEvent, lambda x: SampledGaussianEvent(x + 1, x / 10, True)):
        alike = Composed(tuple(make(0.5 + i * 1e-9) for i in range(40)))  # all rounded to one
        exact = epsilon_of(Repeated(make(0.5), 40), 1e-6)
        assert exact < epsilon_of(alike, 1e-6) < exact * 1.06
    steps = Composed(tuple(sampled(2 + i / 100, 0.01, 10) for i in range(40)))
    assert epsilon_of(steps, 1e-6) == pytest.approx(epsilon_of(sampled(2.2, 0.01, 400), 1e-6), rel=0.03)


# -- calibration ----------------------------------------------------------------------------------


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_calibrated_noise_spends_nearly_all_and_never_more(epsilon, replaces):
    def event_of(noise):
        return Composed((GaussianEvent(30 * noise), sampled(noise, 0.01, 1000, replaces)))

    noise = calibrate(event_of, Budget(epsilon, 1e-6))
    assert 0.999 * epsilon < epsilon_of(event_of(noise), 1e-6) <= epsilon


@pytest.mark.parametrize(
    ("event_of", "budget", "noise"),
    [
        (lambda x: PureEvent(1 / x), Budget(2.0), 0.5),
        (lambda x: Repeated(LaplaceEvent(x), 4), Budget(0.5), 8.0),
        (GaussianEvent, ZCDP(0.125), 2.0),
        (lambda x: ZCDPEvent(1 / (2 * x**2)), ZCDP(0.125), 2.0),
        (lambda x: GaussianEvent(1e5 * x), ZCDP(0.125), 2e-5),
        (lambda x: GaussianEvent(1e-5 * x), ZCDP(0.125), 2e5),
    ],
)
def test_calibration_by_formula(event_of, budget, noise):
    found = calibrate(event_of, budget)
    assert noise * (1 - 1e-12) <= found < noise * 1.001
    assert covers(budget, event_of(found))


def test_calibration_skips_over_jumps():
    def event_of(noise):  # whole numbers of rounds: the cost jumps
        return Repeated(PureEvent(1.0), max(1, int(100 / noise)))

    found = calibrate(event_of, Budget(7.5))
    assert epsilon_of(event_of(found), 0.0) == 7.0


def test_what_no_noise_can_do_is_said():
    with pytest.raises(SettingError, match="name a delta"):
        calibrate(GaussianEvent, Budget(1.0))
    with pytest.raises(SettingError, match="no amount of noise"):
        calibrate(lambda x: Composed((GaussianEvent(x), PureEvent(2.0))), Budget(1.0, 1e-6))
    with pytest.raises(SettingError, match="no amount of noise"):
        calibrate(lambda x: ApproximateEvent(1 / x, 1e-3), ZCDP(1.0))
    with pytest.raises(SettingError, match="delta"):
        epsilon_of(GaussianEvent(1.0), 1.0)


def test_noise_that_costs_nothing_is_small():
    assert calibrate(lambda x: Composed(()), Budget(1.0)) <= 1e-6


# -- the papers' compositions ---------------------------------------------------------------------


def test_classical_compositions():
    assert basic([Budget(1.0, 1e-6), Budget(0.5)]) == Budget(1.5, 1e-6)
    composed = advanced(Budget(0.1, 1e-8), 100, 1e-6)
    assert composed.epsilon == pytest.approx(sqrt(200 * log(1e6)) * 0.1 + 10 * expm1(0.1))
    assert composed.delta == pytest.approx(2e-6)
    assert epsilon_of(Repeated(PureEvent(0.1), 100), 1e-6) < composed.epsilon
    with pytest.raises(SettingError, match="slack"):
        advanced(Budget(1.0), 2, 0.0)


def test_rho():
    event = Composed((GaussianEvent(2.0), PureEvent(1.0), LaplaceEvent(2.0), ZCDPEvent(0.25)))
    assert rho_of(event) == pytest.approx(0.125 + 0.5 + 0.125 + 0.25)
    assert rho_of(sampled(2.0, 0.01, 3)) == pytest.approx(3 / 8)
    assert rho_of(sampled(2.0, 0.01, 3, replaces=True)) == pytest.approx(3 / 2)
    assert rho_of(ApproximateEvent(1.0, 1e-6)) == inf
    assert rho_of(ApproximateEvent(1.0, 0.0)) == 0.5


def test_heavy_libraries_are_loaded_when_needed():
    program = (
        "import sys; from sfumato.privacy import accounting, ledger, mechanisms, budgets;"
        "accounting.gaussian_multiplier(budgets.Budget(1.0, 1e-6));"
        "print([m for m in ('dp_accounting', 'opendp', 'randomgen') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


# -- where a loss curve need not be made ----------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_pure_parts_do_without_a_loss_curve_only_where_it_says_no_less_than_their_sum(seed):
    rng = np.random.default_rng(seed)
    epsilons = 10 ** rng.uniform(-3, 0.5, rng.integers(1, 6))
    parts = {PureEvent(float(each)): int(rng.integers(1, 4)) for each in epsilons}
    total, delta = sum(part.epsilon * n for part, n in parts.items()), float(10 ** rng.uniform(-12, -1))
    if surpasses(parts, total, delta):
        assert LossCurve(parts).epsilon(delta) > total
    event = Composed(tuple(Repeated(part, times) for part, times in parts.items()))
    expected = min(epsilon_of(event, 0.0), LossCurve(parts).epsilon(delta))
    assert epsilon_of(event, delta) == expected


def test_a_few_pure_parts_do_without_a_loss_curve():
    assert surpasses({PureEvent(0.31): 1, PureEvent(0.12): 3}, 0.67, 1e-6)
    assert not surpasses({PureEvent(0.31): 1}, 0.31, 0.5)
    assert not surpasses({PureEvent(0.01): 1000}, 10.0, 1e-6)  # composed, they cost far less
    assert not surpasses({PureEvent(0.31): 1, GaussianEvent(1.0): 1}, 0.31, 1e-6)


def test_the_tail_of_a_normal_number_has_its_logarithm_everywhere():
    """Against SciPy's, beside the place where the series takes over and far beyond."""
    x = np.concatenate([np.linspace(0, 60, 601), [29.999999, 30.0, 30.000001, 1e3, 1e6, 1e150]])
    expected = log_ndtr(-x)
    found = [curves._log_tail(float(each)) for each in x]
    np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-14)
