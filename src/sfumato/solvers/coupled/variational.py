"""Variational Bayes of the Poisson-Gamma model, for one tensor or several that share modes.

B. Ermis, "Bayesian approaches for privacy preserving data sharing", Eq. 3.7 to 3.12. Every parameter
has a Gamma prior of shape A and mean B; a cell is Poisson with the model's value. The posterior is taken
to be independent Gamma laws. In turn, each factor (or Tucker core) gets

    shape  A     + L * numerator of the model L          L = exp E[log theta]
    rate   A / B + denominator of the model E            E = E[theta]

with the sums of ``sums.py`` at p = 1. No update lowers the evidence lower bound

    sum over observed cells of (x log v_L - v_E - log x!) - KL(posterior, prior),

in which log x! is lgamma(x + 1), so that values need not be whole. Of a count that was released through
a channel as z, E[x | z, v_L] stands for x in the numerator, and in the bound the sum over all x,

    log sum_x exp(x log v_L - v_E - log x!) P(z | clip x) = log P(z | v_L) + v_L - v_E.

The bound, unlike the likelihood,
does not reward components that the data have no need of: it can be used to choose the rank.

A and B of a block are learnt by raising the bound as well. A level without any observed cell has its
prior as its posterior: the mean B in every component.

All numbers are float64, whatever the data's type: geometric means are as small as exp(-1 / A).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy.special import digamma, gammaln, polygamma, xlogy

from sfumato.checks import check_count, check_flag, check_positive, given
from sfumato.data.relations import Relation
from sfumato.errors import SettingError
from sfumato.kernels.numba.coupled_sums import Sums
from sfumato.models.coupled import CoupledModel
from sfumato.models.gamma_posterior import GammaPosterior, blocks_of
from sfumato.models.multilinear import Multilinear
from sfumato.models.shape import Shape
from sfumato.records import record
from sfumato.sites.coupled import CoupledSite, RelationSite
from sfumato.sites.memory import Site
from sfumato.solvers.coupled.shape import (
    Block,
    CoupledShape,
    check_not_negative,
    check_poisson,
    coupled_shape,
    coupled_site,
    even_start,
    finished,
)
from sfumato.solvers.coupled.sums import Models, block_sums, log_probabilities
from sfumato.solvers.protocol import Finished, Info, Run
from sfumato.types import Array

_WHAT = "variational Bayes"
_SHAPES = (1e-2, 1e6)  # of priors; below, products of geometric means would leave the range of numbers
_LEAST = 1e-300
_START_SHAPE = 10.0
PRIOR_SHAPE, PRIOR_MEAN = 0.5, 1.0


@record
@dataclass(frozen=True)
class SumsQuery:
    """Ask for the sums of a block at the geometric and the plain means of a posterior."""

    models: Models
    block: Block

    def answer(self, site: Site | CoupledSite) -> Sums:
        entries = coupled_site(site, 1.0, check_relation)
        return block_sums(self.models, entries, self.block, np.ones(len(entries.parts)))


@record
@dataclass(frozen=True)
class LikelihoodQuery:
    """Ask for what the data say of a posterior."""

    models: Models

    def answer(self, site: Site | CoupledSite) -> float:
        return _likelihood(self.models, coupled_site(site, 1.0, check_relation))


def check_relation(relation: Relation) -> None:
    """Refuse what is not Poisson."""
    check_poisson(relation.name, relation.divergence, relation.dispersion, _WHAT)
    check_not_negative(relation)


@dataclass(frozen=True, eq=False)
class State:
    given: Shape | CoupledShape
    shape: CoupledShape
    posterior: GammaPosterior
    round: int = 0


@record
@dataclass(frozen=True)
class Variational:
    """Settings of variational Bayes.

    Parameters
    ----------
    sweeps : int
        Times that every factor is updated.
    prior_shape, prior_mean : float or mapping
        Of the Gamma prior on every parameter, one for all or by mode name (the usual one for those
        left out); the first ones where priors are learnt. Shapes below one favour few large
        parameters.
    learn_prior : bool
        Whether the prior of each factor follows the data.
    tolerance : float or None
        Stop when a sweep raises the bound by a smaller part of it than this.

    Examples
    --------
    >>> import sfumato as sf
    >>> modes = {"visits": ("user", "place"), "profile": ("user", "interest")}
    >>> sizes = {"user": 20, "place": 15, "interest": 9}
    >>> made = sf.synthetic.coupled(modes, sizes, rank=1, missing=0.3)
    >>> tables = {
    ...     k: v.tensor.with_values((v.tensor.values**2).round())
    ...     for k, v in made.items()
    ... }
    >>> model = sf.Coupled(1, sf.Variational(sweeps=30)).fit(tables)
    >>> value, low, high = model.predict("visits", user=3, place=7, interval=0.9)
    >>> bool(low <= value <= high)
    True
    """

    sweeps: int = 100
    prior_shape: float | Mapping[str, float] = PRIOR_SHAPE
    prior_mean: float | Mapping[str, float] = PRIOR_MEAN
    learn_prior: bool = True
    tolerance: float | None = 1e-6
    name: ClassVar[str] = "variational"

    def rounds(self, shape: Shape | CoupledShape) -> int:
        return self.sweeps * coupled_shape(shape, 1.0, _WHAT).steps

    def check(self, shape: Shape | CoupledShape) -> None:
        """Refuse settings that are impossible, or do not fit the shape."""
        check_count(sweeps=self.sweeps)
        check_flag(learn_prior=self.learn_prior)
        check_positive(**given(tolerance=self.tolerance))
        coupled = coupled_shape(shape, 1.0, _WHAT)
        for part, p, phi in zip(coupled.parts, coupled.divergences, coupled.dispersions, strict=True):
            check_poisson(part.name, p, phi, _WHAT)
        self._priors(coupled)

    def check_relation(self, relation: Relation) -> None:
        """Refuse what is not Poisson."""
        check_relation(relation)

    def init(self, run: Run, shape: Shape | CoupledShape) -> State:
        self.check(shape)
        coupled = replace(coupled_shape(shape, 1.0, _WHAT), dtype="float64")
        shapes, rates, means = coupled.zeros(), coupled.zeros(), even_start(coupled, run.seed)
        for each, rate, mean in zip(*map(blocks_of, (shapes, rates, means)), strict=True):
            each[:], rate[:] = _START_SHAPE, _START_SHAPE / mean
        return State(shape, coupled, GammaPosterior(shapes, rates, *self._priors(coupled)))

    def ask(self, state: State) -> SumsQuery | LikelihoodQuery:
        _, number = state.shape.place(state.round)
        models = _models(state.posterior)
        if number is None:
            return LikelihoodQuery(models)
        return SumsQuery(models, state.shape.blocks[number])

    def update(self, state: State, statistics: Any) -> tuple[State, Info]:
        _, number = state.shape.place(state.round)
        after = replace(state, round=state.round + 1)
        done, _ = state.shape.place(after.round)
        if number is None:
            return after, Info(done, objective=state.posterior.prior_divergence - statistics)
        self._update_block(state.posterior, number, statistics)
        return after, Info(done)

    def _update_block(self, posterior: GammaPosterior, number: int, sums: Sums) -> None:
        a, b = posterior.prior_shapes, posterior.prior_means
        counts = blocks_of(posterior.geometric)[number] * sums.numerator
        # Sums over all cells less the unknown ones may end just below zero.
        exposures = np.maximum(sums.denominator, 0.0)
        posterior.set(number, a[number] + counts, a[number] / b[number] + exposures)
        if not self.learn_prior:
            return
        seen = (exposures > 0).any(axis=-1)  # levels; a core counts as one
        a[number], b[number] = _learnt_prior(
            *(blocks_of(model)[number][seen] for model in (posterior.means, posterior.geometric))
        )
        # Levels that no observed cell speaks of keep to the prior.
        posterior.set(number, a[number], a[number] / b[number], ~seen)

    def finish(self, state: State) -> Finished[CoupledModel | Multilinear]:
        """The model of posterior means, and the laws of all parameters."""
        means = state.posterior.means
        if not isinstance(state.given, CoupledShape):
            return Finished(finished(means, state.given), state.posterior)
        model = state.given.zeros()
        for mine, found in zip(blocks_of(model), blocks_of(means), strict=True):
            mine[:] = found
        return Finished(model, state.posterior)

    def _priors(self, shape: CoupledShape) -> tuple[Array, Array]:
        """Shapes and means of every block's prior."""
        shapes = _or_usual(shape.per_mode(self.prior_shape, "prior_shape"), PRIOR_SHAPE)
        means = _or_usual(shape.per_mode(self.prior_mean, "prior_mean"), PRIOR_MEAN)
        low, high = _SHAPES
        if not ((shapes >= low) & (shapes <= high)).all():
            raise SettingError(
                f"prior_shape lies between {low:g} and {high:,.0f}, got {self.prior_shape}"
            )
        check_positive(prior_mean=means.min())
        return shapes, means


def lower_bound(posterior: GammaPosterior, site: Site | CoupledSite) -> float:
    """The evidence lower bound: never above the logarithm of the probability of the data."""
    entries = coupled_site(site, 1.0, check_not_negative)
    return _likelihood(_models(posterior), entries) - posterior.prior_divergence


def _models(posterior: GammaPosterior) -> Models:
    return Models(posterior.geometric, posterior.means, _LEAST)


def _or_usual(given: list[float | None], usual: float) -> Array:
    return np.array([usual if each is None else each for each in given], np.float64)


# -- the data's part of the bound -----------------------------------------------------------------


def _likelihood(models: Models, site: CoupledSite) -> float:
    """Sum of x log v_L - v_E - log x! over all observed cells."""
    return sum(_likelihood_of(models, v, holder) for v, holder in enumerate(site.parts))


def _likelihood_of(models: Models, v: int, holder: RelationSite) -> float:
    geometric, means = models.numerator, models.denominator
    entries = holder.entries
    cells = entries.tensor.coordinates[: means.parts[v].order]
    shared = geometric.predict(v, cells, threads=entries.threads)
    if holder.noisy is not None:
        found = float(log_probabilities(geometric, v, holder).sum() + shared.sum())
        return found - _expected(means, v, holder)
    explained = float(xlogy(entries.tensor.values, np.maximum(shared, _LEAST)).sum(dtype=np.float64))
    return explained - _expected(means, v, holder) - _log_factorials(holder)


def _expected(means: CoupledModel, v: int, holder: RelationSite) -> float:
    """Sum of the values of a relation's observed cells."""

    def at(site: Site) -> float:
        cells = site.tensor.coordinates[: means.parts[v].order]
        return float(means.predict(v, cells, threads=site.threads).sum())

    if not holder.closed:
        return at(holder.entries)
    return means.total(v) - (0.0 if holder.unknown is None else at(holder.unknown))


def _log_factorials(holder: RelationSite) -> float:
    """Sum of log x!, found once."""
    values = holder.entries.tensor.values
    return holder.entries.kept("log factorials", lambda: float(gammaln(values + 1.0).sum(dtype=float)))


# -- priors ---------------------------------------------------------------------------------------


def _learnt_prior(means: Array, geometric: Array) -> tuple[float, float]:
    """Shape and mean of the prior under which the laws of a block have the largest bound.

    The mean is the average of the means; the shape solves log A - digamma(A) = gap, by Newton's method
    for 1 / A (Minka 2002), from a start that is 1.5% off at most.
    """
    mean = float(means.mean())
    gap = float(np.log(mean) - np.log(geometric).mean())
    low, high = _SHAPES
    if gap <= 0.5 / high:  # log A - digamma(A) is 1 / (2 A) for large A
        return high, mean
    shape = (3 - gap + np.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap)
    for _ in range(5):
        excess = np.log(shape) - digamma(shape) - gap
        shape = 1 / (1 / shape + excess / (shape - shape**2 * polygamma(1, shape)))
    # The bound has one maximum in A: if that lies outside, the nearest end is the best.
    return float(np.clip(shape, low, high)), mean
