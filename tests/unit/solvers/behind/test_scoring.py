"""The fit to released data: what it equals without noise, what it falls back to with much."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

import sfumato as sf
from sfumato.models.shape import Shape
from sfumato.sites.memory import Site
from sfumato.solvers.behind import scoring
from sfumato.solvers.behind.evidence import Terms
from sfumato.solvers.least_squares import als
from sfumato.solvers.protocol import Run

PLANTED = sf.synthetic.cp((14, 12, 10), 2, entries=900, snr=9.0, biases=0.5, shift=1.0, seed=1)
TENSOR = PLANTED.tensor
SHAPE = Shape(TENSOR.modes, (2, 2, 2))


class NormalEvidence:
    """Values themselves, as normal numbers: then a sweep is one of Bayesian ALS."""

    bounds, centre, mean_precision, guess = (-20.0, 20.0), 0.0, 1e-4, 0.0

    def __init__(self, values, deviations):
        self.values, self.deviations = values, np.asarray(deviations)

    def terms(self, level, means):
        s, miss = self.deviations[level], self.values - means
        density = norm.logpdf(miss, scale=s)
        return Terms(density, miss / s**2, np.full(means.size, 1 / s**2))

    def about_spread(self, level, means, variances):
        return 0.0

    @property
    def start(self):
        return self


def fitted(evidence, shape=SHAPE, sweeps=25, eager=False, seed=0, presence=True):
    site = Site(TENSOR, 1)
    constant = scoring.fit_constant(evidence, TENSOR.n_entries, shape.fit_mean)
    fit, bounds = scoring.begin(Run(seed), shape, constant, evidence, Site(TENSOR, 1), eager=eager), []
    if not presence:
        fit = replace(fit, inner=replace(fit.inner, presence=None))
    for _ in range(sweeps):
        fit = scoring.sweep(fit, evidence, site, sweeps)
        bounds.append(fit.bound)
    return constant, fit, bounds


def test_the_constant_is_the_mean_and_its_level_the_spread():
    deviations = np.geomspace(0.1, 4, 40)
    constant = scoring.fit_constant(NormalEvidence(TENSOR.values, deviations), TENSOR.n_entries, True)
    assert constant.mean == pytest.approx(TENSOR.values.mean(), abs=1e-3)
    nearest = np.abs(np.log(deviations / TENSOR.values.std())).argmin()
    assert constant.level == nearest
    without = scoring.fit_constant(NormalEvidence(TENSOR.values, deviations), TENSOR.n_entries, False)
    assert without.mean == 0


@pytest.mark.parametrize("eager", [False, True])
def test_clean_normal_values_are_fitted_as_by_bayesian_als(eager):
    evidence = NormalEvidence(TENSOR.values, np.geomspace(0.05, 4, 60))
    _, fit, bounds = fitted(evidence, sweeps=60, eager=eager)
    other = sf.CP(2, solver=sf.ALS(sweeps=60)).fit(TENSOR).model_
    cells = np.stack(np.nonzero(np.isnan(TENSOR.to_dense())))
    truth = PLANTED.truth(cells)
    ours, theirs = (
        np.sqrt(np.mean((model.predict(cells) - truth) ** 2)) for model in (fit.inner.model, other)
    )
    assert ours < 1.1 * theirs < 0.5 * truth.std()
    assert bounds[-1] > bounds[10]


def test_the_bound_rises_with_every_sweep():
    """At a fixed noise level a sweep is coordinate ascent; Tucker's variances are approximate, and a map
    of presence has no one bound.
    """
    evidence = NormalEvidence(TENSOR.values, [0.5])
    _, _, bounds = fitted(evidence, sweeps=20, presence=False)
    assert (np.diff(bounds[4:]) > -1e-6).all()


def test_tucker_is_fitted_too():
    shape = replace(SHAPE, kind="tucker")
    constant, fit, _ = fitted(NormalEvidence(TENSOR.values, np.geomspace(0.05, 4, 60)), shape)
    assert fit.bound > constant.bound + 100


def test_with_little_to_learn_factors_shrink_away_and_the_bound_gains_nothing():
    noisy = TENSOR.values + np.random.default_rng(0).normal(0, 30, TENSOR.n_entries)
    constant, fit, _ = fitted(NormalEvidence(noisy, np.geomspace(25, 40, 20)), sweeps=60)
    assert fit.bound < constant.bound + 2
    interactions = fit.inner.model.predict(TENSOR.coordinates)
    interactions -= fit.inner.model.mean + fit.inner.model.bias_sum(TENSOR.coordinates)
    assert np.abs(interactions).max() < 0.01


def test_divergence_is_that_of_normal_numbers():
    state = als.ALS().init(Run(), SHAPE)
    rng = np.random.default_rng(0)
    rank = state.model.ranks[0]
    state.uncertainty.rows[:, :rank] = rng.uniform(0.1, 2, state.uncertainty.rows[:, :rank].shape)
    state.uncertainty.biases[:] = rng.uniform(0.1, 2, state.uncertainty.biases.shape)
    total = 0.0
    for mode, ridge in enumerate(state.ridges):
        here = state.model.span(mode)
        for mean, variance, precision in (
            (state.model.rows[here, :rank], state.uncertainty.rows[here, :rank], ridge.constant[:rank]),
            (state.model.biases[here], state.uncertainty.biases[here], ridge.bias_constant),
        ):
            prior = 1 / np.sqrt(precision)
            ours = np.sqrt(variance)
            total += np.sum(np.log(prior / ours) + (variance + mean**2) / (2 * prior**2) - 0.5)
    assert scoring.divergence(state) == pytest.approx(float(total))
