"""Multiplicative updates of non-negative factors, for one tensor or several that share modes.

B. Ermis, "Bayesian approaches for privacy preserving data sharing", Eq. 3.2 and Table 3.1: in turn, each
factor is multiplied by a ratio of two sums over the observed cells of its relations,

    factor <- factor * (sum_v numerator_v / phi_v / sum_v denominator_v / phi_v)^e,

and so are Tucker cores. The exponent e is 1 for p up to 2 and 1 / p beyond: with it the divergence never
grows where all relations have the same p (Fevotte and Idier 2011). Relations with several p take the
smallest exponent of theirs, 1 / p from p = 1 on, as a precaution: for them nothing is proven.

A Gamma prior of shape A and mean B on every parameter adds (A - 1) / factor to the numerator (for A < 1
its negative to the denominator) and A / B to the denominator: the posterior mode (MAP).

Of counts that were released through a channel, p = 1, the updates are those of an EM algorithm: x is
what the model expects behind a noisy z, and the divergence -log P(z | v).

What is lowered, and reported, is minus the logarithm of likelihood and priors up to a constant,

    sum_v divergence_v / phi_v  +  sum over estimated phi_v of cells_v / 2 log phi_v
                                +  sum over parameters with a prior of A / B theta - (A - 1) log theta.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.checks import check_count, check_positive, given
from sfumato.data.relations import Relation, check_divergence
from sfumato.errors import SettingError
from sfumato.kernels.numba.coupled_sums import Sums
from sfumato.models.coupled import CoupledModel
from sfumato.models.multilinear import Multilinear
from sfumato.models.shape import Shape
from sfumato.records import record
from sfumato.sites.coupled import CoupledSite
from sfumato.sites.memory import Site
from sfumato.solvers.coupled.shape import (
    Block,
    CoupledShape,
    check_not_negative,
    coupled_shape,
    coupled_site,
    finished,
    positive_start,
    values_of,
)
from sfumato.solvers.coupled.sums import block_sums, divergence
from sfumato.solvers.protocol import Finished, Info, Run
from sfumato.types import Array

_WHAT = "multiplicative updates"
_LEAST = 1e-16  # parameters stay above zero: from zero nothing comes back
_ROUNDING = 1e-10  # what sums over all cells less the unknown ones leave of nothing


@record
@dataclass(frozen=True, eq=False)
class Divergences:
    """Of each relation the sum over its observed cells, and how many these are."""

    sums: Array
    cells: Array

    def __add__(self, other: Divergences) -> Divergences:
        return Divergences(self.sums + other.sums, self.cells + other.cells)


@record
@dataclass(frozen=True)
class SumsQuery:
    """Ask for the sums of a block. ``divergence`` is a single tensor's; relations say their own."""

    model: CoupledModel
    block: Block
    scales: Array
    divergence: float

    def answer(self, site: Site | CoupledSite) -> Sums:
        entries = coupled_site(site, self.divergence, check_not_negative)
        return block_sums(self.model, entries, self.block, self.scales)


@record
@dataclass(frozen=True)
class DivergenceQuery:
    """Ask for the divergence of every relation."""

    model: CoupledModel
    divergence: float

    def answer(self, site: Site | CoupledSite) -> Divergences:
        entries = coupled_site(site, self.divergence, check_not_negative)
        sums = [divergence(self.model, entries, v) for v in range(len(entries.parts))]
        return Divergences(np.array(sums), np.array([part.cells for part in entries.parts]))


@dataclass(frozen=True, eq=False)
class State:
    given: Shape | CoupledShape
    shape: CoupledShape
    model: CoupledModel
    dispersions: Array
    seen: tuple[Array, ...]  # rows of each mode that some observed cell speaks of
    round: int = 0


@record
@dataclass(frozen=True)
class Multiplicative:
    """Settings of multiplicative updates.

    Parameters
    ----------
    sweeps : int
        Times that every factor is updated.
    divergence : float
        The p of a single tensor; relations say their own.
    prior_shape, prior_mean : float, mapping or None
        Of a Gamma prior on every parameter, one for all or by mode name; None for no prior (maximum
        likelihood).
    tolerance : float or None
        Stop when a sweep lowers the objective by a smaller part than this.

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
    >>> model = sf.Coupled(
    ...     1, sf.Multiplicative(sweeps=30, prior_shape=2.0, prior_mean=1.0)
    ... ).fit(tables)
    >>> bool((model.factor("user") >= 0).all())
    True
    """

    sweeps: int = 100
    divergence: float = 1.0
    prior_shape: float | Mapping[str, float] | None = None
    prior_mean: float | Mapping[str, float] | None = None
    tolerance: float | None = 1e-6
    name: ClassVar[str] = "multiplicative"

    def rounds(self, shape: Shape | CoupledShape) -> int:
        return self.sweeps * self._shape(shape).steps

    def check(self, shape: Shape | CoupledShape) -> None:
        """Refuse settings that are impossible, or do not fit the shape."""
        check_count(sweeps=self.sweeps)
        check_positive(**given(tolerance=self.tolerance))
        self._priors(self._shape(shape))

    def _shape(self, shape: Shape | CoupledShape) -> CoupledShape:
        check_divergence("tensor", self.divergence)
        return coupled_shape(shape, self.divergence, _WHAT)

    def check_relation(self, relation: Relation) -> None:
        """Refuse values that these updates cannot fit."""
        check_not_negative(relation)

    def init(self, run: Run, shape: Shape | CoupledShape) -> State:
        self.check(shape)
        coupled = self._shape(shape)
        dispersions = np.array([1.0 if phi is None else phi for phi in coupled.dispersions])
        seen = tuple(np.zeros(size, bool) for size in coupled.sizes)
        return State(shape, coupled, positive_start(coupled, run.seed), dispersions, seen)

    def ask(self, state: State) -> SumsQuery | DivergenceQuery:
        _, number = state.shape.place(state.round)
        if number is None:
            return DivergenceQuery(state.model, self.divergence)
        block = state.shape.blocks[number]
        return SumsQuery(state.model, block, 1 / state.dispersions, self.divergence)

    def update(self, state: State, statistics: Any) -> tuple[State, Info]:
        done, number = state.shape.place(state.round)
        if number is None:
            return self._end_sweep(state, statistics)
        block = state.shape.blocks[number]
        parameters = values_of(state.model, block)
        if block.mode is not None and not done:
            state.seen[block.mode][:] = _spoken_of(statistics.denominator)
        above, below = self._with_prior(state.shape, number, parameters, statistics)
        known = below > 0
        ratio = np.divide(above, below, out=np.ones_like(above), where=known) ** self._exponent(
            state.shape
        )
        parameters[:] = np.maximum(parameters * ratio, _LEAST)
        return replace(state, round=state.round + 1), Info(done)

    def _end_sweep(self, state: State, found: Divergences) -> tuple[State, Info]:
        dispersions, objective = state.dispersions.copy(), self._prior_objective(state)
        for v, phi in enumerate(state.shape.dispersions):
            if phi is None:  # the most likely one, by the saddlepoint form of Tweedie laws
                dispersions[v] = max(2 * found.sums[v] / found.cells[v], 1e-12)
                objective += found.cells[v] / 2 * np.log(dispersions[v])
        objective += float((found.sums / dispersions).sum())
        done, _ = state.shape.place(state.round + 1)
        new = replace(state, dispersions=dispersions, round=state.round + 1)
        return new, Info(done, objective=objective)

    def finish(self, state: State) -> Finished[CoupledModel | Multilinear]:
        """Rows that no observed cell speaks of become the average of their mode, if it has no prior."""
        priors = self._priors(state.shape)
        for mode, seen in enumerate(state.seen):
            factor = state.model.factor(mode)
            if seen.any() and not seen.all() and priors[mode] is None:
                factor[~seen] = factor[seen].mean(axis=0)
        return Finished(finished(state.model, state.given))

    # -- priors -----------------------------------------------------------------------------------

    def _priors(self, shape: CoupledShape) -> list[tuple[float, float] | None]:
        """Shape and rate for every block."""
        shapes = shape.per_mode(self.prior_shape, "prior_shape")
        means = shape.per_mode(self.prior_mean, "prior_mean")
        priors = list[tuple[float, float] | None]()
        for a, b in zip(shapes, means, strict=True):
            if (a is None) != (b is None):
                raise SettingError(
                    "a Gamma prior has a shape and a mean: give prior_shape and prior_mean"
                )
            if a is None or b is None:
                priors.append(None)
                continue
            check_positive(prior_shape=a, prior_mean=b)
            priors.append((a, a / b))
        return priors

    def _with_prior(
        self, shape: CoupledShape, number: int, parameters: Array, sums: Sums
    ) -> tuple[Array, Array]:
        above, below = sums.numerator, np.maximum(sums.denominator, 0.0)
        prior = self._priors(shape)[number]
        if prior is None:
            return above, below
        a, rate = prior
        pull = (a - 1) / np.maximum(parameters, _LEAST)
        return above + np.maximum(pull, 0.0), below + rate + np.maximum(-pull, 0.0)

    def _prior_objective(self, state: State) -> float:
        """Minus the logarithm of all priors, up to a constant."""
        total = 0.0
        for block, prior in zip(state.shape.blocks, self._priors(state.shape), strict=True):
            if prior is not None:
                (a, rate), values = prior, values_of(state.model, block).astype(np.float64)
                total += float((rate * values - (a - 1) * np.log(values)).sum())
        return total

    def _exponent(self, shape: CoupledShape) -> float:
        largest = max(shape.divergences)
        if len(set(shape.divergences)) == 1 and largest <= 2:
            return 1.0
        return 1 / max(1.0, largest)


def _spoken_of(denominators: Array) -> NDArray[np.bool_]:
    """Which rows have an observed cell, from the sums of the first sweep.

    Later ones would not tell: with p below one they vanish too where all observed cells are zero.
    """
    largest = denominators.max(axis=1)
    return np.asarray(largest > _ROUNDING * largest.max())
