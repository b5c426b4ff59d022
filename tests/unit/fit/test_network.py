"""Private networks: what is charged, drawn, planned and released."""

import json
import struct
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import sfumato as sf
from sfumato.errors import BudgetError, DataError, ReleaseError
from sfumato.fit import network as fitting
from sfumato.privacy.accounting import epsilon_of
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.mechanisms import SampledGaussian
from sfumato.privacy.units import Sample
from sfumato.sites import examples as examples_module
from sfumato.sites.examples import Examples
from sfumato.solvers.network.settings import Training

FALSE_ALARMS = 1e-9
GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(-1, 1, (60, 3))
Y = (X.sum(1) > 0).astype(int)
GROUPS = np.arange(60) // 4
SHORT = Training(0.5, 4, 0.3, 0.5, centre=1.0)


def privacy(epsilon=1.0, **settings):
    settings = {"unit": "example", "public": sf.Public(entries=60), **settings}
    return sf.Privacy(epsilon, 1e-3, **settings)


def classifier(training=SHORT, hidden=(), bounds=(-1, 1), classes=(0, 1), **settings):
    asked = privacy(**settings)
    return sf.PrivateClassifier(
        hidden, privacy=asked, classes=list(classes), bounds=bounds, training=training
    )


# -- batches and noise --------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.03, 0.5, 0.99])
def test_every_unit_is_in_a_batch_with_the_rate(rate):
    """Chi-square over how often each unit was there, over how large batches were, and over all."""
    mechanism, units, batches = SampledGaussian(1.0, rate), 400, 500
    entropy = Entropy(7)
    there = np.zeros((batches, units))
    for each in there:
        each[mechanism.batch(units, entropy)] = 1

    def accepted(expected):
        variance = expected * (1 - expected)
        by_unit = ((there.mean(0) - expected) ** 2).sum() * batches / variance
        by_batch = ((there.mean(1) - expected) ** 2).sum() * units / variance
        in_all = (there.mean() - expected) ** 2 * there.size / variance
        found = stats.chi2.sf([by_unit, by_batch, in_all], [units, batches, 1])
        return found.min() > FALSE_ALARMS / 3

    assert accepted(rate)
    assert not accepted(0.9 * rate)


def test_a_rate_is_never_rounded_up():
    for rate in (1e-25, 1e-3, 1 / 3, np.nextafter(1, 0)):
        assert int(rate * (1 << 63)) / (1 << 63) <= rate
    assert SampledGaussian(1.0, 1e-25).batch(1000, Entropy(0)).size == 0
    assert SampledGaussian(1.0, 1.0).batch(5, Entropy(0)).tolist() == [0, 1, 2, 3, 4]


def nobody(width):
    """Without examples a step releases its noise and nothing else."""
    return np.zeros((0, width)), np.zeros(0, int)


def test_a_step_has_the_noise_that_it_is_charged_for(monkeypatch):
    """Parameters after one step of a whole fit, by their law; two thirds of the noise are rejected."""
    drawn = []
    taken = fitting.beginning
    monkeypatch.setattr(fitting, "beginning", lambda noisy, *n: drawn.append(noisy) or taken(noisy, *n))
    training = Training(0.25, 1, 0.3, 0.5, momentum=0.0, centre=2.0)
    model = classifier(training, bounds=(0, 1), seed=5).fit(*nobody(1000))
    noise = model._noise
    start = np.zeros_like(model.iterates_[-1].parameters, float)
    start[-2:] = taken(drawn[0], 60, 2).constant
    steps = (start - model.iterates_[-1].parameters) / training.length(0)
    sums = steps * training.rate * 60 / training.clip
    assert stats.kstest(sums, stats.norm(0, noise).cdf).pvalue > FALSE_ALARMS
    assert stats.kstest(sums * 2 / 3, stats.norm(0, noise).cdf).pvalue < FALSE_ALARMS
    assert stats.kstest(sums * 3 / 2, stats.norm(0, noise).cdf).pvalue < FALSE_ALARMS
    centre = stats.norm(0, 2 * noise * 2**0.5)  # of inputs and targets, each of length one
    assert drawn[0].values.size == 1002
    assert stats.kstest(drawn[0].values, centre.cdf).pvalue > FALSE_ALARMS
    assert stats.kstest(drawn[0].values * 2 / 3, centre.cdf).pvalue < FALSE_ALARMS


def test_the_noise_is_what_the_budget_asks_for():
    """A third less is not within it."""
    plan = classifier().plan(60, 3)
    events = plan.task.training.charged(plan.task.noise)
    assert 0.98 < epsilon_of(events, 1e-3) <= 1.0
    assert epsilon_of(plan.task.training.charged(plan.task.noise * 2 / 3), 1e-3) > 1.2


# -- charges ------------------------------------------------------------------------------------------


def test_every_draw_is_charged_before_it_is_made(monkeypatch, tmp_path):
    at_draw = []
    batch = SampledGaussian.batch

    def watched(self, units, entropy):
        lines = (tmp_path / "ledger").read_text().splitlines()
        at_draw.append(len(lines) - 1)  # the first says what the ledger is about
        return batch(self, units, entropy)

    monkeypatch.setattr(SampledGaussian, "batch", watched)
    model = classifier(ledger=tmp_path / "ledger", limit=sf.Budget(1.5, 1e-3)).fit(X, Y)
    assert at_draw == [2, 3, 4, 5]  # the mean of inputs was the first
    ledger = Ledger(Sample(), path=tmp_path / "ledger")
    assert len(ledger.events) == 1 + SHORT.steps == len(model.plan(60, 3).charges)
    assert ledger.events == [charge.mechanism.event for charge in model.plan(60, 3).charges]
    assert model.guarantee_.epsilon <= 1.0
    with pytest.raises(BudgetError, match="Nothing was drawn"):
        classifier(ledger=tmp_path / "ledger", limit=sf.Budget(1.5, 1e-3)).fit(X, Y)
    assert len(at_draw) == SHORT.steps
    assert len(Ledger(Sample(), path=tmp_path / "ledger").events) == 1 + SHORT.steps


def test_a_fit_that_breaks_off_has_spent_what_it_drew(monkeypatch, tmp_path):
    def broken(self, clipped, entropy):
        raise KeyboardInterrupt

    monkeypatch.setattr(SampledGaussian, "release", broken)
    with pytest.raises(KeyboardInterrupt):
        classifier(ledger=tmp_path / "ledger").fit(X, Y)
    assert len(Ledger(Sample(), path=tmp_path / "ledger").events) == 2


def test_what_is_wrong_is_said_before_anything_is_spent(tmp_path):
    asked = classifier(ledger=tmp_path / "ledger", unit="patient", public=sf.Public(units=15))
    with pytest.raises(DataError, match="whose"):
        asked.fit(X, Y)
    assert not (tmp_path / "ledger").exists()


# -- plans --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [(), (5,)])
def test_a_plan_is_what_a_fit_does(hidden):
    asked = classifier(None, hidden, seed=1)
    asked.steps = 5
    plan = asked.plan(60, 3)
    model = asked.fit(X, Y)
    assert model.training_ == plan.task.training
    assert model._noise == plan.task.noise
    assert model.network_.architecture == plan.task.architecture
    assert model.guarantee_.epsilon == plan.calibrated().guarantee(Ledger(Sample()), Entropy(1)).epsilon


def test_a_plan_follows_the_classes_that_are_asked_for():
    model = classifier().fit(X, Y)
    model.classes = [0, 1, 2]
    assert model.plan(60, 3).task.architecture.outputs == 3


# -- releases -----------------------------------------------------------------------------------------


def test_a_seeded_release_is_marked(tmp_path):
    model = classifier(seed=3).fit(X, Y)
    assert model.guarantee_.seeded
    with pytest.raises(ReleaseError):
        model.release(tmp_path / "a")
    model.release(tmp_path / "b", force=True)
    assert sf.load(tmp_path / "b").guarantee_.seeded
    assert not classifier().fit(X, Y).guarantee_.seeded


def form_of(folder):
    """All of a release but the numbers that have noise."""
    form = {}
    for file in sorted(folder.iterdir()):
        content = file.read_bytes()
        if file.suffix == ".safetensors":
            (size,) = struct.unpack("<Q", content[:8])
            form[file.name] = json.loads(content[8 : 8 + size]), len(content)
        elif "manifest" not in file.name:
            form[file.name] = content
    return form


NEIGHBOURS = {
    "one less": (X[:-1], Y[:-1], GROUPS[:-1]),
    "nobody": (X[:0], Y[:0], GROUPS[:0]),
    "an unheard-of class": (X, np.append(Y[:-1], 7), GROUPS),
    "no numbers": (np.append(X[:-1], [[np.nan, np.inf, 1e300]], axis=0), Y, GROUPS),
    "another owner": (X, Y, np.append(GROUPS[:-1], 99)),
}


@pytest.mark.parametrize("name", NEIGHBOURS)
@pytest.mark.parametrize("unit", ["example", "patient"])
def test_neighbours_releases_differ_in_numbers_with_noise_alone(name, unit, tmp_path):
    owned = unit == "patient"
    public = sf.Public(units=15) if owned else sf.Public(entries=60)
    forms = []
    for number, (inputs, targets, groups) in enumerate([(X, Y, GROUPS), NEIGHBOURS[name]]):
        model = classifier(hidden=(3,), unit=unit, public=public, seed=number)
        model.fit(inputs, targets, groups if owned else None)
        model.release(tmp_path / str(number), force=True)
        forms.append(form_of(tmp_path / str(number)))
    assert forms[0] == forms[1]


def test_targets_that_are_no_numbers_are_left_out():
    asked = sf.PrivateRegressor(
        privacy=privacy(), bounds=(-1, 1), target_bounds=(-1, 1), training=replace(SHORT, steps=1)
    )
    targets = np.array([0.5, "none", None, np.nan, np.inf] + [0.1] * 55, object)
    asked._begin(targets)
    _, known = asked._targets(targets, 60)
    assert known.tolist() == [True, False, False, False, True] + [True] * 55
    asked.fit(X, targets)


def test_more_units_than_proofs_cover_are_refused(monkeypatch):
    monkeypatch.setattr(examples_module, "_MOST_UNITS", 3)
    with pytest.raises(DataError, match="proofs"):
        Examples(np.zeros((4, 2), np.int16), np.zeros(4))
    Examples(np.zeros((4, 2), np.int16), np.zeros(4), np.array([0, 0, 1, 2]))
