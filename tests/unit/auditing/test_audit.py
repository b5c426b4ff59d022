"""Audits as a whole: mechanisms that are not private as they say are found out, and others are not.

Seeds are fixed. What a broken mechanism's bound is about is written beside it: all lie well above the
promise, so that a change of the attacks has some room.
"""

import re
from functools import cache

import mechanisms
import numpy as np
import pytest
from mechanisms import RowSums
from scipy import stats

import sfumato as sf
from sfumato.auditing import audit
from sfumato.auditing.attacks import Change, Prediction, attacks, honest_scores
from sfumato.auditing.audit import _best_candidate, attacked
from sfumato.auditing.bounds import Counts
from sfumato.auditing.likelihood import _PassRatio, known_ratio
from sfumato.auditing.neighbours import neighbours
from sfumato.auditing.subject import Subject
from sfumato.auditing.trials import Trial, _stacked, carry_out
from sfumato.auditing.verdict import Audit, Finding
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import SettingError
from sfumato.privacy.mechanisms import Gaussian, Laplace
from sfumato.solvers.as_printed.wei import PaperGradient
from sfumato.solvers.gradient.sequential import SequentialSGD
from sfumato.solvers.private.passes import PrivatePasses

pytestmark = pytest.mark.usefixtures("few_trees")

# Twelve values near the middle, and one that is alone in its row and its column.
CELLS = np.concatenate([np.indices((4, 3)).reshape(2, -1), [[4], [3]]], axis=1)
VALUES = np.append(np.linspace(-0.1, 0.1, 12), 0.0)
NARROW = SparseTensor(CELLS, VALUES, (Mode("row", 5), Mode("column", 4)), (-1.0, 1.0))
SHAPE = (5, 4, 4)


def audited(method, epsilon, runs, data=NARROW, **options):
    estimator = sf.CP(1, privacy=sf.Privacy(epsilon=epsilon, unit="value", method=method))
    return audit(estimator, data, **{"runs": runs, "canaries": ["least"], "processes": 1, **options})


# -- it can fail ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "epsilon", "runs", "data"),
    [
        (mechanisms.HalfNoise(), 1.5, 800, NARROW),  # 2.1
        (mechanisms.QuarterNoiseInPasses(), 1.0, 400, SHAPE),  # 1.5
        (mechanisms.ClipNotEnforced(), 1.0, 400, NARROW),  # 2
        (mechanisms.NoiseReused(), 1.0, 300, NARROW),  # 2.8, as much as there are runs for
        (mechanisms.BoundsOfTheData(), 1.0, 300, NARROW),  # 2.7
        (mechanisms.PassesForgotten(), 1.0, 400, NARROW),  # 2.1
        (mechanisms.LeaksElsewhere(), 1.0, 600, (30, 6, 5)),  # 1.7
    ],
    ids=["half the noise", "quarter in passes", "clip", "reused", "bounds", "passes", "elsewhere"],
)
def test_a_broken_mechanism_is_found_out(method, epsilon, runs, data):
    found = audited(method, epsilon, runs, data)
    assert found.promise.proven
    assert found.promise.accounted == pytest.approx(epsilon, rel=1e-3)
    assert found.violated, found
    assert found.measured > 1.2 * epsilon


@pytest.mark.parametrize(
    ("method", "data"),
    [
        (RowSums(), NARROW),
        (RowSums(within=0.25), NARROW),
        (RowSums(passes=10), NARROW),
        (PrivatePasses(passes=1), SHAPE),
    ],
    ids=["sums", "cut to a quarter", "ten passes", "gradient"],
)
def test_the_same_mechanism_done_right_passes(method, data):
    """Each at 98.75%: in all of them a false alarm of 5% at most."""
    found = audited(method, 1.0, 200, data, confidence=0.9875)
    assert not found.violated, found


def test_a_mechanism_that_shows_all_it_may_is_measured_at_half_of_it_or_more():
    assert 1.0 < audited(RowSums(), 2.0, 600).measured <= 2.0


def test_paper_w_is_refuted_where_all_factors_are_released():
    """Claimed 0.1, by noise on one factor: the others show the value as if there were none."""
    gradient = PaperGradient(SequentialSGD(passes=10))
    estimator = sf.CP(
        2, privacy=sf.Privacy(epsilon=0.1, unit="value", method=gradient, analysis="paper")
    )
    options = {"runs": 80, "processes": 1, "canaries": ["least"]}
    whole = audit(estimator, (6, 5, 4), **options)
    assert whole.violated
    assert not whole.promise.proven
    assert whole.promise.accounted is None
    assert whole.measured > 1
    noisy = audit(estimator, (6, 5, 4), sees=["factor_2"], **options)
    assert not noisy.violated
    assert noisy.measured == 0


# -- halves ---------------------------------------------------------------------------------------


def made_up(count, seed=0, shift=3.0):
    """Runs as they come out of a folder: one number that tells, and one that does not."""
    generator = np.random.default_rng(seed)
    return [
        {
            "side": number % 2,
            "form": "usual",
            "prediction": generator.normal(shift * (number % 2), 1.0, 1),
            "rest": generator.normal(size=3),
        }
        for number in range(count)
    ]


def findings_of(runs):
    pair = neighbours(NARROW, sf.Value(), "least")
    plan = Subject.of(_plain(), NARROW, (-1, 1), whole_fits=False).plan
    return attacked(_stacked(runs), pair, None, plan, 0.0, 0.05, gaussian=False)


@cache
def _plain():
    return sf.CP(1, privacy=sf.Privacy(epsilon=1.0, unit="value", method=RowSums()))


def test_what_the_second_half_shows_chooses_nothing():
    runs = made_up(200)
    before = findings_of(runs)
    assert before[0].bound > 1
    spoilt = [dict(run) for run in runs]
    for run in spoilt[100:]:  # numbers that tell more, and one of another shape
        run["rest"] = np.full(3, 100.0 * run["side"])
    spoilt[150]["prediction"] = np.zeros(2)
    after = findings_of(spoilt)
    assert [f.attack for f in after] == [f.attack for f in before]
    # A half that says nothing gives no bound, whatever the first half said.
    silent = [dict(run) for run in runs]
    for run, other in zip(silent[100:], made_up(100, 1, 0.0), strict=True):
        run["prediction"] = other["prediction"]
    assert max(f.bound for f in findings_of(silent)) == 0


def test_both_directions_are_looked_at():
    for shift in (3.0, -3.0):
        assert max(f.bound for f in findings_of(made_up(240, shift=shift))) > 1.5


def test_equal_scores_are_counted_alike():
    """Scores of three values only: none may count for one neighbour and not for the other."""
    runs = made_up(400, shift=0.0)
    for run in runs:
        run["prediction"] = np.round(run["prediction"])
        run["rest"] = np.round(run["rest"])
    assert max(f.bound for f in findings_of(runs)) == 0


def test_a_form_that_one_neighbour_never_has_gives_it_away():
    runs = made_up(400, shift=0.0)
    for run in runs[1::4]:
        run["form"] = "diverged"
        del run["prediction"], run["rest"]
    best = max(findings_of(runs), key=lambda f: f.bound)
    assert best.attack == "form of the release"
    assert best.bound > 1


def test_the_error_is_divided_among_canaries_and_attacks():
    found = audited(RowSums(), 1.0, 40, canaries=["least", "edge"])
    assert len(found.findings) == 4
    assert sum(f.error for f in found.findings) == pytest.approx(0.05)


# -- the likelihood ratio -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_pass():
    estimator = sf.CP(2, privacy=sf.Privacy(epsilon=4.0, unit="value", method=PrivatePasses(passes=1)))
    subject = Subject.of(estimator, (6, 5, 4), (-1.0, 1.0), whole_fits=False)
    pair = neighbours(subject.tensor, subject.unit, "least")
    runs = carry_out(Trial(subject.estimator, pair), 500, processes=1)
    return subject, pair, runs


def test_the_number_read_off_the_rows_has_the_law_that_the_ratio_is_of(one_pass):
    """The canary's noisy residual, on either neighbour: Laplace noise of the known scale on it."""
    subject, pair, runs = one_pass
    ratio = known_ratio(subject.plan, pair, subject.start, runs.keys())
    assert isinstance(ratio, _PassRatio)
    noisy = ratio._residual(runs)
    for side, target in enumerate(ratio._targets):
        noise = (noisy - ratio._error(target, runs))[runs["side"] == side] / ratio._scale
        assert stats.kstest(noise, stats.laplace.cdf).pvalue > 1e-3
        assert stats.kstest(2 * noise, stats.laplace.cdf).pvalue < 1e-3
        assert stats.kstest(noise + 0.5, stats.laplace.cdf).pvalue < 1e-3


def test_the_likelihood_ratio_is_as_good_as_any_attack_that_learns_nothing(one_pass):
    subject, pair, runs = one_pass
    ratio = known_ratio(subject.plan, pair, subject.start, runs.keys())
    tried = {a.name: a for a in attacks(runs, subject.start, pair.cells, ratio)}
    bounds = {
        name: _best_candidate(attack, honest_scores(attack, runs), runs["side"], 0.0, 0.01).bound
        for name, attack in tried.items()
    }
    others = [bounds[kind.name] for kind in (Prediction, Change)]
    assert bounds["likelihood ratio"] > 0.98 * max(others)  # the last digit is one run's
    assert bounds["likelihood ratio"] > 0.5 * 4.0


def test_the_ratio_is_not_used_where_it_is_not_known(one_pass):
    subject, pair, runs = one_pass
    edge = neighbours(subject.tensor, subject.unit, "edge")
    assert known_ratio(subject.plan, edge, subject.start, runs.keys()) is None
    assert known_ratio(subject.plan, pair, None, runs.keys()) is None
    assert known_ratio(subject.plan, pair, subject.start, ["factor_1"]) is None
    for method in (PrivatePasses(passes=2), PrivatePasses(passes=1, noise_law="vector")):
        estimator = sf.CP(2, privacy=sf.Privacy(epsilon=1.0, unit="value", method=method))
        other = Subject.of(estimator, (6, 5, 4), (-1.0, 1.0), whole_fits=False)
        assert known_ratio(other.plan, pair, other.start, runs.keys()) is None


def test_a_part_of_what_the_ratio_needs_can_be_audited():
    """The rows of one mode are not enough for it; the other attacks go on."""
    found = audited(PrivatePasses(passes=1), 1.0, 60, SHAPE, sees=["factor_1"])
    assert "likelihood ratio" not in {f.attack for f in found.findings}


# -- what is promised -----------------------------------------------------------------------------


@pytest.mark.usefixtures("few_starts")
@pytest.mark.parametrize(
    ("budget", "method", "analysis"),
    [
        ({"epsilon": 1.0, "delta": 1e-5}, "bias", "proven"),
        ({"epsilon": 0.7}, "input", "proven"),
        ({"rho": 0.123456}, "bias", "proven"),
        ({"epsilon": 0.5}, "gradient", "paper"),
    ],
)
def test_the_promise_is_the_epsilon_that_a_guarantee_prints(budget, method, analysis):
    """It used to be the budget's, of which a fit may have spent, and printed, less."""
    privacy = sf.Privacy(unit="value", method=method, seed=0, analysis=analysis, **budget)
    estimator = sf.CP(1, privacy=privacy)
    promise = Subject.of(estimator, NARROW, (-1.0, 1.0), whole_fits=True).promise(None)
    guarantee = estimator.fit(NARROW).guarantee_
    promised = " ".join(str(guarantee).split("protects")[0].split())
    (printed,) = re.findall(r"epsilon (\S+?),? ", f"{promised} ")
    assert promise.epsilon == float(printed) >= guarantee.epsilon
    assert promise.epsilon < 1.001 * guarantee.epsilon
    assert promise.accounted == (guarantee.epsilon if analysis == "proven" else None)


def test_what_is_less_than_the_budget_but_more_than_was_printed_is_refuted():
    """A method that spends nine tenths of its budget, and leaks more than that."""
    generous = sf.CP(1, privacy=sf.Privacy(epsilon=1.0, unit="value", method=_MoreNoise()))
    promise = Subject.of(generous, NARROW, (-1.0, 1.0), whole_fits=True).promise(None)
    assert promise.epsilon == pytest.approx(0.9, rel=1e-3)
    counts = Counts(5000, 10_000, 1860, 10_000)
    finding = Finding("least", "any", counts, 0.0, 0.05, ((0.0, 0.0), (1.0, 1.0)))
    found = Audit(promise, (finding,), 0.95, 20_000, seeded=True)
    assert promise.epsilon < found.measured < 1.0
    assert found.violated


class _MoreNoise(RowSums):
    """Never has less noise than nine tenths of an epsilon of 1 need."""

    def charges(self, shape):
        return (sf.privacy.ledger.Charge("sums", Laplace(max(self.noise, 1 / 0.9), single=True)),)


def test_at_another_delta_the_promise_is_what_the_accountant_says_there():
    noise = sf.Privacy(epsilon=1.0, delta=1e-5, unit="value", method=_GaussianSums())
    estimator = sf.CP(1, privacy=noise)
    options = {"runs": 40, "processes": 1, "canaries": ["least"]}
    own = audit(estimator, NARROW, **options).promise
    assert own.delta == 1e-5
    assert own.accounted <= own.epsilon <= 1.0
    assert own.accounted == pytest.approx(1.0, rel=1e-3)
    other = audit(estimator, NARROW, delta=1e-2, **options).promise
    assert other.accounted <= other.epsilon < 1.0
    assert other.epsilon == pytest.approx(other.accounted, rel=1e-3)
    with pytest.raises(SettingError, match="nothing is promised at delta = 0"):
        audit(estimator, NARROW, delta=0.0, **options)


class _GaussianSums(RowSums):
    def charges(self, shape):
        return (sf.privacy.ledger.Charge("sums", Gaussian(self.noise)),)


def test_the_gaussian_bound_is_given_where_all_noise_is_gaussian_and_nowhere_else():
    noise = sf.Privacy(epsilon=4.0, delta=1e-3, unit="value", method=_GaussianSums())
    found = audit(sf.CP(1, privacy=noise), NARROW, runs=200, processes=1, canaries=["least"])
    assert found.measured < found.gaussian < 4.0
    assert audited(RowSums(), 1.0, 40).gaussian is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runs": 39}, "runs must be a whole number from 40 on"),
        ({"confidence": 1.0}, "between 0 and 1"),
        ({"canaries": ["full"]}, "needs a unit that is a mode"),
        ({"sees": ["factor_9"]}, "no part factor_9"),
        ({"delta": -0.1}, "delta"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, message):
    with pytest.raises(SettingError, match=message):
        audited(RowSums(), 1.0, **{"runs": 40, **options})


def test_estimators_that_promise_nothing_and_data_without_bounds_are_refused():
    with pytest.raises(SettingError, match="promises no privacy"):
        audit(sf.CP(1), NARROW, runs=40)
    with pytest.raises(SettingError, match="takes an estimator"):
        audit("CP", NARROW, runs=40)
    with pytest.raises(SettingError, match="public bounds"):
        audit(_plain(), SparseTensor(CELLS, VALUES, NARROW.modes), runs=40)


def test_nothing_is_charged_to_the_estimators_ledger(tmp_path):
    privacy = sf.Privacy(epsilon=1.0, unit="value", method=RowSums(), ledger=tmp_path / "ledger")
    audit(sf.CP(1, privacy=privacy), NARROW, runs=40, processes=1, canaries=["least"])
    assert not (tmp_path / "ledger").exists()
