"""Fitting a model to released data by the likelihood of what was released.

The same variational inference as Bayesian ALS, for evidence that is not normal. Every sweep replaces
each entry's log-likelihood by the parabola of Fisher scoring at its predicted mean m,

    weight w = I(m),  working response z = m + score / w,

and solves weighted least squares for each mode in turn. Prior precisions and the noise level of the
clean values are learnt. Several starts are compared with each other, and with the constant, by the
variational bound on the log-likelihood of the released data: where noise drowns what there is to
learn, the constant wins. All of it is post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sfumato.kernels.numba.normal import normal_equations
from sfumato.kernels.numba.residuals import predictions
from sfumato.models.multilinear import Multilinear
from sfumato.models.shape import Shape
from sfumato.sites.memory import Site, WeightedSite
from sfumato.solvers.behind.evidence import Evidence
from sfumato.solvers.least_squares import als
from sfumato.solvers.least_squares.core import core_equations
from sfumato.solvers.least_squares.questions import Rows
from sfumato.solvers.protocol import Moments, Run
from sfumato.types import Array

_CONSTANT_STEPS = 25
_SLACK = 0.5  # by which a step may lower the likelihood: a prior plays a part as well
_WARM_SWEEPS = 3  # before precisions are learnt
_FIRST_PRECISION = 4.0  # of an entry at first, relative to the values' spread
_MOST_EMPHASIS = 50.0
_FAR = 0.25  # share of the sweeps in which what is far away is looked for
_FALLEN = 0.6  # share of the sweeps after which the noise level may be any
_COOLING = 0.75  # share of the sweeps until entries count as what they are


@dataclass(frozen=True)
class Fit:
    """One start: the parameters and penalties (``inner``), the noise level, and how good it is.

    Entries count for more than they are worth at first; in an ``eager`` start, for most of the sweeps.
    ``highest`` is the constant's noise level: that of a model falls from there, not at once.
    """

    inner: als.State
    level: int
    highest: int
    eager: bool
    bound: float = -np.inf
    failed: bool = False

    def least(self, sweeps: int) -> int:
        """The noise level that it may fall to: what is far from its mean must not be taken for noise."""
        return int(self.highest * max(0.0, 1 - self.inner.sweep / (_FALLEN * sweeps)))


@dataclass(frozen=True)
class Constant:
    """The best constant (or zero, where no mean is fitted) and the noise level that goes with it."""

    mean: float
    level: int
    bound: float


def fit_constant(evidence: Evidence, entries: int, fit_mean: bool) -> Constant:
    """Scoring for a single mean, in turn with the noise level."""
    mean, certain = evidence.guess if fit_mean else 0.0, np.zeros(entries)
    sure = evidence.mean_precision
    level = _best_level(evidence, len(evidence.deviations) // 2, np.full(entries, mean), certain)
    for _ in range(_CONSTANT_STEPS if fit_mean else 0):
        terms, before = evidence.terms(level, np.full(entries, mean)), (level, mean)
        slope = terms.score.sum() - sure * (mean - evidence.centre)
        mean = _risen(evidence, level, mean, slope / (terms.information.sum() + sure), entries)
        level = _best_level(evidence, level, np.full(entries, mean), certain)
        if level == before[0] and abs(mean - before[1]) < 1e-4 * float(evidence.deviations[level]):
            break
    bound = expected_log(evidence, level, np.full(entries, mean), certain)
    return Constant(mean, level, bound)


def _risen(evidence: Evidence, level: int, mean: float, step: float, entries: int) -> float:
    """A mean one step further, or as much of a step as does not lower the likelihood.

    A few values that are far out make steps too long, to where a likelihood is flat and tells nothing.
    """

    def likelihood(at: float) -> float:
        return float(evidence.terms(level, np.full(entries, at)).log.sum())

    before = likelihood(mean)
    for share in (1.0, 0.25, 0.05, 0.01):
        after = float(np.clip(mean + share * step, *evidence.bounds))
        if likelihood(after) >= before - _SLACK:
            return after
    return mean


def begin(
    run: Run, shape: Shape, constant: Constant, evidence: Evidence, site: Site, *, eager: bool
) -> Fit:
    """A random start on the scale of the values; where entries are is public, and tells of rows."""
    solver = als.ALS()
    deviation = float(evidence.deviations[constant.level])
    moments = Moments(1, constant.mean if shape.fit_mean else 0.0, deviation**2)
    inner = solver.scaled(solver.searched(solver.init(run, shape), site), moments)
    inner = replace(inner, ridges=tuple(ridge._replace(noise=1.0) for ridge in inner.ridges))
    return Fit(inner, constant.level, constant.level, eager)


def sweep(fit: Fit, evidence: Evidence, site: Site, sweeps: int) -> Fit:
    """All modes once, then the core, the precisions and the noise level; one of ``sweeps``."""
    inner = fit.inner
    if inner.sweep < _FAR * sweeps:
        evidence = evidence.start
    means, _ = predictions(inner.model, inner.uncertainty, site)
    terms = evidence.terms(fit.level, means)
    weights = terms.information
    # Where a mean has left the bounds, the response calls it back.
    means = np.clip(means, *evidence.bounds)
    responses = means + terms.score / weights
    if fit.eager or inner.sweep < _WARM_SWEEPS:
        weights = weights * _emphasis(inner, float(weights.mean()), sweeps)
    dtype = inner.model.dtype
    _solve(inner, WeightedSite(site, responses.astype(dtype), weights.astype(dtype)))
    if inner.sweep >= _WARM_SWEEPS:
        inner = _learn(inner)
    means, variances = predictions(inner.model, inner.uncertainty, site)
    level = _best_level(evidence, fit.level, means, variances, fit.least(sweeps))
    bound = expected_log(evidence, level, means, variances) - divergence(inner)
    return replace(fit, inner=replace(inner, sweep=inner.sweep + 1), level=level, bound=bound)


def _emphasis(inner: als.State, weight: float, sweeps: int) -> float:
    """How much more entries count than they are worth; falls to one along a geometric schedule.

    Else weak components would shrink away before they have found their directions.
    """
    most = min(max(1.0, _FIRST_PRECISION / (inner.power * weight)), _MOST_EMPHASIS)
    return float(most ** max(0.0, 1 - inner.sweep / (_COOLING * sweeps)))


def _solve(inner: als.State, site: WeightedSite) -> None:
    model, uncertainty = inner.model, inner.uncertainty
    for step in inner.schedule:
        if isinstance(step, Rows):
            entries = site.by_mode(step.mode)
            block = normal_equations(
                model, uncertainty, entries, step.mode, step.low, step.high, site.threads
            )
            als.solve_block(inner, step, block)
        elif isinstance(step, als.Core):
            als.solve_core(inner, core_equations(model, uncertainty, site))


def _learn(inner: als.State) -> als.State:
    """Empirical Bayes, as in ALS; the noise is in the weights already."""
    ridges, presence = [], inner.presence
    for mode, ridge in enumerate(inner.ridges):
        presence, learnt = als.learn_prior(presence, ridge, inner.model, inner.uncertainty, mode)
        ridges.append(learnt)
    core_precision, core = inner.core_precision, inner.model.free_core
    if core.size:
        core_precision = float(1 / als.second_moment(core, inner.uncertainty.core))
    return replace(inner, ridges=tuple(ridges), core_precision=core_precision, presence=presence)


# -- how good it is -------------------------------------------------------------------------------


def expected_log(evidence: Evidence, level: int, means: Array, variances: Array) -> float:
    """Log-likelihood expected under the posterior, to second order: E log P = log P - v I / 2."""
    terms = evidence.terms(level, means)
    entries = float((terms.log - 0.5 * variances * terms.information).sum())
    return entries + evidence.about_spread(level, means, variances)


def _best_level(evidence: Evidence, level: int, means: Array, variances: Array, least: int = 0) -> int:
    """The noise level with the largest expected log-likelihood, looked for step by step."""
    best = expected_log(evidence, level, means, variances)
    for step in (1, -1):
        start = level
        while least <= level + step < len(evidence.deviations):
            value = expected_log(evidence, level + step, means, variances)
            if value <= best:
                break
            level, best = level + step, value
        if level != start:
            break
    return level


def divergence(inner: als.State) -> float:
    """Kullback-Leibler divergence of the posterior of all parameters from their prior."""
    model, uncertainty, total = inner.model, inner.uncertainty, 0.0
    for mode, ridge in enumerate(inner.ridges):
        here, rank = model.span(mode), model.ranks[mode]
        rows, biases = model.rows[here, :rank] - ridge.mean, model.biases[here]
        expected = None if inner.presence is None else inner.presence.expected(model, mode, here)
        if expected is not None:
            rows, biases = rows - expected[:, :rank], biases - expected[:, rank:].sum(axis=1)
        total += _divergence(rows, uncertainty.rows[here, :rank], ridge.constant[:rank])
        if np.isfinite(ridge.bias_constant):
            total += _divergence(biases, uncertainty.biases[here], ridge.bias_constant)
    return total + _divergence(model.free_core, uncertainty.core, inner.core_precision)


def _divergence(means: Array, variances: Array, precision: Any) -> float:
    ratio = precision * variances
    terms = precision * np.square(means, dtype=np.float64) + ratio - 1 - np.log(ratio)
    return 0.5 * float(terms.sum())


# -- the constant as a model ----------------------------------------------------------------------


def constant_model(shape: Shape, constant: Constant) -> Multilinear:
    """A model that predicts the constant everywhere."""
    model = shape.zeros()
    return model.with_mean(constant.mean) if shape.fit_mean else model
