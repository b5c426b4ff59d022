"""Samples from the posterior of the Poisson-Gamma model by Gibbs sampling; values may be noisy counts.

For every cell and component k of a CP part (and every q of a Tucker core, in the same way)

    y_k ~ Poisson(prod_d theta_d[i_d, k]),     x = sum_k y_k,     theta_d[i, k] ~ Gamma(a_d, a_d / m_dk)

with shape a_d and mean m_dk. What is observed is x, or what came out of a noisy channel: the raw count
was clipped to bounds, where there are any, and z ~ P(z | clip x) released (B. Ermis, "Bayesian
approaches for privacy preserving data sharing", Section 4.1.4, which prints neither the sampler nor the
clipping). A sweep draws, each given all the others,

    x | z      a Poisson law weighted by P(z | clip x)              ``kernels/numba/noisy_counts.py``
    y | x      multinomial, in proportion to the components         ``kernels/numba/gibbs.py``
    theta | y  Gamma(a + sum of y, a / m + sum of designs), one factor after the other
    m | theta  1 / m ~ Gamma(c + a n, d + a sum of theta)
    a | theta  by a slice, on the logarithm: no grid that it could stick to

so that every step is exact. Absent cells that are zeros have no events, and their part in the sums of
designs is a closed form.

Behind strong noise such sweeps hardly move: counts that nobody sees follow the rates, and these follow
the counts. Where noise leaves less than a fifth of what counts tell, every other sweep moves rows
instead, with all counts summed out. From a Gamma(a, a / m) number comes another of the same law that
resembles it,

    theta' = B theta + G,   B ~ Beta(a s, a (1 - s)),   G ~ Gamma(a (1 - s), a / m),

which is reversible, so that a row is moved with probability min(1, P(z | theta') / P(z | theta)). How
much of a row stays, s, is learnt for each of them before the first sample, and then fixed.

Means are learnt in as few modes as fix the scale of every relation, and are one in the others: factors
of two modes could otherwise grow and shrink against each other, which no data would hinder. These modes
are chosen by their size, the largest first. Chains begin at rates that are right on average: behind
strong noise they would take long to get there, as counts that nobody sees follow the rate. Parameters
are float64 whatever the data's type is; samples are kept in the type that was asked for.

Table D.1 of the paper has three constructions of the noisy count. The first, x plus two-sided geometric
noise, is the mechanism. The second, x + g1 - g2 with g ~ Poisson(t) and t exponential of mean
r / (1 - r), is the same law, since a Poisson number of such a rate is geometric. The third,
Skellam(t1 + rate, t2), gives z without ever giving x: it simulates what is released where the rate is
known, but cannot privatise a count that is there, and is not offered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import exp, inf, lgamma, log, sqrt
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.checks import as_pair, check_count, check_positive
from sfumato.data.relations import Relation
from sfumato.models.coupled import CoupledModel
from sfumato.models.posterior import Posterior
from sfumato.models.shape import Shape
from sfumato.records import record
from sfumato.solvers.coupled.gibbs_queries import (
    WHAT,
    Events,
    EventsQuery,
    ExposureQuery,
    MoveQuery,
    Rates,
    ScaleQuery,
    check_relation,
)
from sfumato.solvers.coupled.shape import (
    Block,
    CoupledShape,
    check_poisson,
    check_room,
    coupled_shape,
    even_start,
    sample_bytes,
    values_of,
)
from sfumato.solvers.protocol import Finished, Info, Run
from sfumato.types import Array

_LEAST = 1e-300
_SHAPES = (1e-2, 1e4)  # between which shapes are learnt
_SHAPE = 1.0  # to begin with, where it is learnt
_WIDTH = 0.5  # of a slice, in logarithms
_FAINT = 0.2  # share of the information that is left, below which rows are moved as well
_MOVED = 0.35  # of the rows, that should be
_LEARNS = 3.0  # how fast what stays of a row is learnt, at first


@dataclass(eq=False)
class Chain:
    """One chain: where it is, and the priors of its blocks."""

    model: CoupledModel
    generator: np.random.Generator
    shapes: Array
    means: list[Array]  # one for each component of a mode; of a core one
    learns_shape: NDArray[np.bool_]
    learns_mean: NDArray[np.bool_]
    stays: list[Array]  # of each row of a block, when it moves, as the logarithm of odds


@dataclass(frozen=True, eq=False)
class State:
    shape: CoupledShape
    seed: int
    chains: tuple[Chain, ...]
    kept: Posterior
    events: Events | None = None
    faint: bool = False
    round: int = 0


@record
@dataclass(frozen=True)
class Gibbs:
    """Settings of Gibbs sampling.

    Memory: ``chains * samples * parameters`` numbers are kept (``sample_bytes``), two gigabytes at most.

    Parameters
    ----------
    samples, burn_in, thin : int
        Of each chain, how many samples are kept, one at every ``thin``-th sweep after ``burn_in``
        sweeps.
    chains : int
        From different random starts; two or more, or they could not be compared.
    prior_shape, prior_mean : float, mapping or None
        Of the Gamma prior on every parameter, one for all or by mode name; None for those that are
        learnt.
    shape_prior : pair of float
        Shape and rate of the Gamma law of shapes that are learnt. Where data tell little of them,
        larger ones would make intervals too narrow: factors would be taken for all alike.
    mean_prior : pair of float
        Shape and rate of the Gamma law of one over the means that are learnt.

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
    >>> model = sf.Coupled(1, sf.Gibbs(samples=20, burn_in=20)).fit(tables)
    >>> value, low, high = model.predict("visits", user=3, place=7, interval=0.9)
    >>> bool(low <= value <= high)
    True
    """

    samples: int = 150
    burn_in: int = 150
    thin: int = 2
    chains: int = 2
    prior_shape: float | Mapping[str, float] | None = None
    prior_mean: float | Mapping[str, float] | None = None
    shape_prior: tuple[float, float] = (1.0, 1.0)
    mean_prior: tuple[float, float] = (1.0, 0.5)
    name: ClassVar[str] = "gibbs"
    tolerance: ClassVar[None] = None  # how long a chain runs is settled beforehand

    @property
    def sweeps(self) -> int:
        """Sweeps of each chain."""
        return self.burn_in + self.samples * self.thin

    def rounds(self, shape: Shape | CoupledShape) -> int:
        """Scales and counts to begin with; and in every sweep all blocks, then counts again."""
        self._check()
        return 2 + self.sweeps * coupled_shape(shape, 1.0, WHAT).steps

    def sample_bytes(self, shape: Shape | CoupledShape) -> int:
        """Memory that the kept samples take."""
        return sample_bytes(coupled_shape(shape, 1.0, WHAT), self.chains, self.samples)

    # -- the four functions -----------------------------------------------------------------------

    def init(self, run: Run, shape: Shape | CoupledShape) -> State:
        self.check(shape)
        coupled = coupled_shape(shape, 1.0, WHAT)
        chains = tuple(self._start(coupled, run.seed, number) for number in range(self.chains))
        kept = Posterior.empty(coupled.zeros(), "poisson", self.chains, self.samples)
        return State(coupled, run.seed, chains, kept)

    def ask(self, state: State) -> ScaleQuery | EventsQuery | ExposureQuery | MoveQuery:
        if state.round == 0:
            return ScaleQuery()
        models = tuple(chain.model for chain in state.chains)
        done, number = self._place(state)
        if number is None:
            return EventsQuery(models, (state.seed, done), (done - self.burn_in) % self.thin == 0)
        block = state.shape.blocks[number]
        if _moves(state, done):
            moved = tuple(model.copy() for model in models)
            for c, model in enumerate(moved):
                values_of(model, block)[:] = _proposed(state, c, done, number)
            return MoveQuery(models, moved, block)
        return ExposureQuery(models, block)

    def update(self, state: State, statistics: Rates | Events | Array) -> tuple[State, Info]:
        done, number = self._place(state)
        after = replace(state, round=state.round + 1)
        if isinstance(statistics, Rates):
            for chain in state.chains:
                self._scale(chain, state.shape, statistics.values)
            return replace(after, faint=bool(statistics.information.min() < _FAINT)), Info(done)
        if isinstance(statistics, Events):
            return replace(after, events=statistics), self._look(state, statistics, done)
        assert number is not None
        assert state.events is not None
        block = state.shape.blocks[number]
        for c, chain in enumerate(state.chains):
            if _moves(state, done):
                self._move(chain, block, number, _proposed(state, c, done, number), statistics[c], done)
            else:
                events = state.events.of(chain.model, block, c)
                self._draw_block(chain, block, number, events, statistics[c])
            self._draw_prior(chain, block, number)
        return after, Info(done)

    def finish(self, state: State) -> Finished[CoupledModel]:
        """The last sample, and all that were kept: cells are predicted by the mean over them."""
        return Finished(state.kept.model(0, self.samples - 1).copy(), state.kept)

    def _place(self, state: State) -> tuple[int, int | None]:
        """Sweeps that are done, and the block that is next; None for counts."""
        if state.round < 2:
            return 0, None
        done, number = state.shape.place(state.round - 2)
        return (done + 1, None) if number is None else (done, number)

    # -- checks -----------------------------------------------------------------------------------

    def check(self, shape: Shape | CoupledShape) -> None:
        """Refuse settings that are impossible, or do not fit the shape."""
        self._check()
        coupled = coupled_shape(shape, 1.0, WHAT)
        for part, p, phi in zip(coupled.parts, coupled.divergences, coupled.dispersions, strict=True):
            check_poisson(part.name, p, phi, WHAT)
        for what in ("prior_shape", "prior_mean"):
            for each in coupled.per_mode(getattr(self, what), what):
                check_positive(**{what: 1.0 if each is None else each})
        check_room(coupled, self.chains, self.samples)

    def _check(self) -> None:
        check_count(samples=self.samples, thin=self.thin, chains=self.chains)
        check_count(0, burn_in=self.burn_in)
        for what in ("shape_prior", "mean_prior"):
            first, second = as_pair(what, getattr(self, what), "a shape and a rate")
            check_positive(**{f"the shape of {what}": first, f"the rate of {what}": second})

    def check_relation(self, relation: Relation) -> None:
        """Refuse what is no Poisson law of counts."""
        check_relation(relation)

    # -- draws ------------------------------------------------------------------------------------

    def _start(self, shape: CoupledShape, seed: int, number: int) -> Chain:
        own = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        model = even_start(replace(shape, dtype="float64"), own)
        shapes = shape.per_mode(self.prior_shape, "prior_shape")
        means = shape.per_mode(self.prior_mean, "prior_mean")
        sizes = [1 if block.mode is None else shape.rank for block in shape.blocks]
        return Chain(
            model,
            np.random.default_rng([own, 1]),
            np.array([_SHAPE if a is None else a for a in shapes]),
            [np.full(n, 1.0 if m is None else m) for n, m in zip(sizes, means, strict=True)],
            np.array([a is None for a in shapes]),
            np.array([m is None for m in means]) & _scaling(shape),
            [np.zeros(len(_as_rows(model, block))) for block in shape.blocks],
        )

    def _scale(self, chain: Chain, shape: CoupledShape, rates: Array) -> None:
        """Bring the values of every relation to its typical rate."""
        model, blocks = chain.model, np.flatnonzero(_scaling(shape))
        cells = [
            np.prod([shape.sizes[mode] for mode in part.modes], dtype=float) for part in shape.parts
        ]
        now = np.array([model.total(v) for v in range(len(shape.parts))]) / cells
        logarithms = np.linalg.lstsq(_products(shape)[:, blocks], np.log(rates / now), rcond=None)[0]
        for number, factor in zip(blocks, np.exp(logarithms), strict=True):
            values_of(model, shape.blocks[number])[:] *= factor
            if chain.learns_mean[number]:
                chain.means[number] *= factor

    def _draw_block(
        self, chain: Chain, block: Block, number: int, events: Array, exposure: Array
    ) -> None:
        """The parameters of a block, given counts."""
        values, a = values_of(chain.model, block), chain.shapes[number]
        # Sums over all cells less the unknown ones may end just below zero.
        rates = a / chain.means[number] + np.maximum(exposure, 0.0)
        values[:] = np.maximum(chain.generator.standard_gamma(a + events) / rates, _LEAST)

    def _move(
        self, chain: Chain, block: Block, number: int, there: Array, gains: Array, done: int
    ) -> None:
        """Rows to what was proposed, where the data agree."""
        agreed = -chain.generator.standard_exponential(gains.shape) < gains
        rows = _as_rows(chain.model, block)
        rows[agreed] = there.reshape(rows.shape)[agreed]
        if done < self.burn_in:
            chain.stays[number] -= _LEARNS * (agreed - _MOVED) / sqrt(1 + done // 2)

    def _draw_prior(self, chain: Chain, block: Block, number: int) -> None:
        """What is learnt of the prior of a block."""
        values, a = values_of(chain.model, block), chain.shapes[number]
        table = values.reshape(values.shape[0], -1)
        if chain.learns_mean[number]:
            c, d = self.mean_prior
            drawn = chain.generator.standard_gamma(c + a * table.shape[0], table.shape[1])
            chain.means[number][:] = (d + a * table.sum(axis=0)) / drawn
        if chain.learns_shape[number]:
            chain.shapes[number] = self._drawn_shape(chain, number, table)

    def _drawn_shape(self, chain: Chain, number: int, values: Array) -> float:
        ratios = values / chain.means[number]
        n, spread = ratios.size, float(np.log(ratios).sum() - ratios.sum())
        s, rate = self.shape_prior

        def density(logarithm: float) -> float:
            a = exp(logarithm)
            if not _SHAPES[0] <= a <= _SHAPES[1]:
                return -inf
            return n * (a * logarithm - lgamma(a)) + a * (spread - rate) + s * logarithm

        return exp(_slice(density, log(chain.shapes[number]), chain.generator))

    # -- samples ----------------------------------------------------------------------------------

    def _look(self, state: State, events: Events, done: int) -> Info:
        """Keep where chains are, where that is due."""
        since = done - self.burn_in
        if since % self.thin:
            return Info(done)
        total = 0.0
        for c, chain in enumerate(state.chains):
            density = float(events.log_likelihood[c]) + self._log_prior(state.shape, chain)
            total += density
            if since > 0:
                state.kept.keep(c, since // self.thin - 1, chain.model)
                state.kept.log_density[c, since // self.thin - 1] = density
        return Info(done, objective=-total / self.chains)

    def _log_prior(self, shape: CoupledShape, chain: Chain) -> float:
        """Log density of parameters and of what is learnt of their priors, up to a constant."""
        total = 0.0
        for number, block in enumerate(shape.blocks):
            values, a = values_of(chain.model, block), float(chain.shapes[number])
            ratios = values / chain.means[number]
            total += values.size * (a * log(a) - lgamma(a))
            total += float((a * (np.log(ratios) - ratios) - np.log(values)).sum())
            if chain.learns_mean[number]:
                c, d = self.mean_prior
                total -= float(((c - 1) * np.log(chain.means[number]) + d / chain.means[number]).sum())
            if chain.learns_shape[number]:
                s, rate = self.shape_prior
                total += (s - 1) * log(a) - rate * a
        return total


def _moves(state: State, done: int) -> bool:
    """Whether the sweep after so many is one of moves."""
    return state.faint and done % 2 == 1


def _as_rows(model: CoupledModel, block: Block) -> Array:
    """The parameters of a block, by the rows that move for themselves; a core is one."""
    values = values_of(model, block)
    return values[None] if block.mode is None else values


def _proposed(state: State, c: int, done: int, number: int) -> Array:
    """Where a chain would move a block: the same whenever it is asked."""
    chain, block = state.chains[c], state.shape.blocks[number]
    generator = np.random.default_rng([state.seed, done, c, number])
    rows, a = _as_rows(chain.model, block), chain.shapes[number]
    stays = a / (1 + np.exp(-chain.stays[number][:, None]))
    fresh = generator.standard_gamma(a - stays, rows.shape) * chain.means[number] / a
    kept = generator.beta(stays, a - stays, rows.shape) * rows
    moved: Array = np.maximum(kept + fresh, _LEAST)
    return moved.reshape(values_of(chain.model, block).shape)


def _products(shape: CoupledShape) -> Array:
    """Which blocks (columns) the values of a relation (rows) are products of."""
    return np.array(
        [
            [
                v == block.part if block.mode is None else block.mode in part.modes
                for block in shape.blocks
            ]
            for v, part in enumerate(shape.parts)
        ],
        np.float64,
    )


def _scaling(shape: CoupledShape) -> NDArray[np.bool_]:
    """Blocks whose scales can be told from the data if those of all other blocks are fixed.

    That is so where their columns of the products are independent; cores come first, then modes by size.
    """
    products, blocks = _products(shape), shape.blocks

    def size(number: int) -> float:
        mode = blocks[number].mode
        return inf if mode is None else float(shape.sizes[mode])

    chosen = list[int]()
    for number in sorted(range(len(blocks)), key=lambda number: (-size(number), -number)):
        if np.linalg.matrix_rank(products[:, [*chosen, number]]) > len(chosen):
            chosen.append(number)
    found = np.zeros(len(blocks), bool)
    found[chosen] = True
    return found


def _slice(density: Callable[[float], float], place: float, generator: np.random.Generator) -> float:
    """The next place of a chain by slice sampling with stepping out (R. M. Neal, 2003)."""
    level = density(place) - generator.standard_exponential()
    left = place - _WIDTH * generator.random()
    right = left + _WIDTH
    while density(left) > level:
        left -= _WIDTH
    while density(right) > level:
        right += _WIDTH
    while True:
        there = left + (right - left) * generator.random()
        if density(there) > level:
            return there
        if there < place:
            left = there
        else:
            right = there
