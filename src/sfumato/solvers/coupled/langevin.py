"""Samples from the posterior of coupled factors by stochastic gradient Langevin dynamics (SGLD).

B. Ermis, "Bayesian approaches for privacy preserving data sharing", Eq. 3.16 to 3.18: every parameter
moves along the gradient of the log posterior, estimated from random entries of each relation, and by
Gaussian noise,

    theta <- theta + kappa_t (sum_v C_v / B sum_{batch} grad log p(x | theta) + grad log p(theta)) + psi,
    psi ~ N(0, 2 kappa_t),        kappa_t = a (b + t)^-c,  0.5 < c <= 1,

so that the steps sum to infinity and their squares do not. Two models (Sections 4.1.2 and 4.2.1):

    poisson   x ~ Poisson(v),     theta ~ Gamma(shape, mean), and iterates are mirrored at zero
    normal    x ~ N(v, 1 / tau),  theta ~ N(0, 1 / lambda) with one lambda for each component of a mode
              (or each mode) and each core; lambda and tau ~ Gamma, drawn from their conditional laws

A lambda is drawn at every step: its law depends on parameters alone. A tau needs the residuals of all
entries. Those of a batch would widen its law by entries over batch, so it is drawn at every ``thin``-th
step, when all entries are looked at anyway for the log density.

Preconditioned steps are kappa G grad with noise N(0, 2 kappa G). G is learnt in the burn-in and fixed
after it: the chain that samples are taken from has the right law for any fixed G, without the term for
changes of G that is left out in practice. Choices are:

    none        G = 1
    rmsprop     G = 1 / (damping + sqrt(mean square of the gradient))     (Li, Chen, Carlson, Carin 2016)
    curvature   normal: G = 1 / (lambda + s), with s the diagonal of the Hessian h plus the variance of
                gradients from batches, about h times entries over batch; poisson: G = theta / (rate + s)
                with sums of designs in place of h, and kappa dG/dtheta in the drift (as Patterson and
                Teh 2013 for simplices): gradients that are infinite at zero become finite.
                The noise is N(0, (2 kappa - kappa^2) G): the same in the limit, and less by what the
                length of a step and the noise of batches add to the variance of a coordinate by itself.
                So kappa has no unit: it lies between 0 and 1, whatever the data.

A drift of more than ten standard deviations of the noise is cut to that (not in Poisson by curvature,
where drifts are bounded): it happens far from where the posterior lies and where gradients are
infinite, and never in the limit of small steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from sfumato.checks import (
    as_pair,
    check_choice,
    check_count,
    check_flag,
    check_number,
    check_positive,
    given,
)
from sfumato.data.relations import Relation
from sfumato.errors import SettingError
from sfumato.models.coupled import CoupledModel
from sfumato.models.posterior import Family, Posterior
from sfumato.models.shape import Shape
from sfumato.records import record
from sfumato.solvers.coupled.langevin_queries import (
    DIVERGENCE,
    Batch,
    Losses,
    LossQuery,
    SlopeQuery,
    check_values,
)
from sfumato.solvers.coupled.shape import (
    Block,
    CoupledShape,
    check_room,
    coupled_shape,
    positive_start,
    sample_bytes,
    values_of,
)
from sfumato.solvers.coupled.slopes import Slopes
from sfumato.solvers.protocol import DivergedError, Finished, Info, Run, start_generator
from sfumato.surface import either
from sfumato.types import Array

Preconditioner = Literal["none", "rmsprop", "curvature"]
_WHAT = "Langevin samples"
_STEPS: dict[Preconditioner, float] = {"none": 1e-3, "rmsprop": 1e-2, "curvature": 0.3}
_DAMPING = 1e-5
_FURTHEST = 10.0  # standard deviations of the noise that a drift may reach
_LEAST = 1e-16


@dataclass(eq=False)
class Chain:
    """One chain: where it is, its hyperparameters, and how its steps are scaled."""

    model: CoupledModel
    generator: np.random.Generator
    precisions: list[
        Array
    ]  # lambda of every block, a number or one for each component; empty for Poisson
    noise: Array  # tau of every relation
    averages: list[Array]
    priors: list[tuple[Array, Array]]  # of rows and cores: lambda and nothing, or shape and rate
    fixed: list[Array] | None = None

    @property
    def parameters(self) -> list[Array]:
        """Rows of all modes, then the cores (views)."""
        return [self.model.rows[:, : self.model.rank], *self.model.cores]


@dataclass(frozen=True, eq=False)
class State:
    shape: CoupledShape
    seed: int
    chains: tuple[Chain, ...]
    kept: Posterior
    steps: int = 0
    looks: int = 0  # at all entries


@record
@dataclass(frozen=True)
class Langevin:
    """Settings of Langevin dynamics.

    Memory: ``chains * samples * parameters`` numbers are kept (``sample_bytes``), two gigabytes at most.

    Parameters
    ----------
    model : str
        "normal" (relations of divergence 0) or "poisson" (of divergence 1).
    samples, burn_in, thin : int
        Of each chain, how many samples are kept, one at every ``thin``-th step after ``burn_in``
        steps.
    chains : int
        From different random starts; two or more, or they could not be compared.
    batch : int, str or None
        Entries of each relation at every step, drawn with replacement, and as many of the cells that
        are unknown among zeros; "all" for all of them, None for a quarter of the largest number, at
        least 1000. Small batches do not pay: noise is drawn for all parameters at every step, and
        chains move on by kappa in the time of one pass over the entries at best.
    step, offset, decay : float or None
        kappa_t = step (1 + t / offset)^-decay, the same as a (b + t)^-c with b = offset, c = decay.
        None for the preconditioner's usual step and for the burn-in as offset. A decay of 0 keeps
        steps constant: such a chain samples from a law near the posterior only, the nearer the
        smaller the step.
    preconditioner : str
        "none", "rmsprop" or "curvature".
    prior_shape, prior_mean : float or mapping
        Gamma prior of the Poisson model, one for all parameters or by mode name.
    prior_precision : float, mapping or None
        The lambda of the Normal model where it is known, one for all or by mode name.
    precision_prior, noise_prior : pair of float
        Shape and rate of the Gamma laws of lambda and of tau.
    by_component : bool
        Whether each component of a mode has a lambda of its own, as in the paper.
    dispersion : float or None
        For a single tensor 1 / tau of the Normal model; None to sample it. Relations say their own,
        None again for one that is sampled.
    start_scale : float
        Of the random start of the Normal model.

    Examples
    --------
    >>> import sfumato as sf
    >>> modes = {"visits": ("user", "place"), "profile": ("user", "interest")}
    >>> sizes = {"user": 20, "place": 15, "interest": 9}
    >>> made = sf.synthetic.coupled(modes, sizes, rank=1, missing=0.3)
    >>> tables = sf.Relations({k: v.tensor for k, v in made.items()}, divergence=0)
    >>> model = sf.Coupled(1, sf.Langevin(samples=20, burn_in=100, thin=2)).fit(
    ...     tables
    ... )
    >>> value, low, high = model.predict("visits", user=3, place=7, interval=0.9)
    >>> bool(low <= value <= high)
    True
    """

    model: Family = "normal"
    samples: int = 100
    burn_in: int = 2000
    thin: int = 20
    chains: int = 2
    batch: Batch = None
    step: float | None = None
    offset: float | None = None
    decay: float = 0.55
    preconditioner: Preconditioner = "curvature"
    prior_shape: float | Mapping[str, float] = 1.0
    prior_mean: float | Mapping[str, float] = 1.0
    prior_precision: float | Mapping[str, float] | None = None
    precision_prior: tuple[float, float] = (1.0, 1.0)
    noise_prior: tuple[float, float] = (1.0, 0.01)
    by_component: bool = True
    dispersion: float | None = None
    start_scale: float = 0.3
    name: ClassVar[str] = "langevin"
    tolerance: ClassVar[None] = None  # how long a chain runs is settled beforehand

    @property
    def steps(self) -> int:
        """Steps of each chain."""
        return self.burn_in + self.samples * self.thin

    def rounds(self, shape: Shape | CoupledShape) -> int:  # noqa: ARG002
        self._check()
        return self.steps + ceil(self.burn_in / self.thin) + self.samples

    def sample_bytes(self, shape: Shape | CoupledShape) -> int:
        """Memory that the kept samples take."""
        return sample_bytes(self._shape(shape), self.chains, self.samples)

    def step_at(self, done: int) -> float:
        """kappa after some steps."""
        first = _STEPS[self.preconditioner] if self.step is None else self.step
        offset = max(self.burn_in, 1) if self.offset is None else self.offset
        return float(first * (1 + done / offset) ** -self.decay)

    # -- the four functions -----------------------------------------------------------------------

    def init(self, run: Run, shape: Shape | CoupledShape) -> State:
        self.check(shape)
        coupled = self._shape(shape)
        chains = tuple(self._start(coupled, run.seed, number) for number in range(self.chains))
        kept = Posterior.empty(coupled.zeros(), self.model, self.chains, self.samples)
        return State(coupled, run.seed, chains, kept)

    def ask(self, state: State) -> SlopeQuery | LossQuery:
        models = tuple(chain.model for chain in state.chains)
        if self._looks_due(state.steps) > state.looks:
            return LossQuery(models, self.model)
        learning = self.preconditioner == "curvature" and state.steps < max(self.burn_in, 1)
        noise = tuple(chain.noise for chain in state.chains)
        seed = (state.seed, state.steps)
        return SlopeQuery(models, self.model, noise, seed, self.batch, learning)

    def update(self, state: State, statistics: tuple[Slopes, ...] | Losses) -> tuple[State, Info]:
        if isinstance(statistics, Losses):
            return self._look(state, statistics)
        kappa = self.step_at(state.steps)
        for chain, found in zip(state.chains, statistics, strict=True):
            self._learn(chain, found, state)
            self._move(chain, found.gradients, kappa)
            if self.model == "normal":
                self._draw_precisions(state.shape, chain)
        return replace(state, steps=state.steps + 1), Info(state.looks)

    def finish(self, state: State) -> Finished[CoupledModel]:
        """The last sample, and all that were kept: cells are predicted by the mean over them."""
        return Finished(state.kept.model(0, self.samples - 1).copy(), state.kept)

    # -- checks -----------------------------------------------------------------------------------

    def _shape(self, shape: Shape | CoupledShape) -> CoupledShape:
        coupled = coupled_shape(shape, DIVERGENCE[self.model], _WHAT)
        if isinstance(shape, CoupledShape):
            return coupled
        alone = 1.0 if self.model == "poisson" else self.dispersion
        return replace(coupled, dispersions=(alone,))

    def check(self, shape: Shape | CoupledShape) -> None:
        """Refuse settings that are impossible, or do not fit the shape."""
        self._check()
        self._check_shape(self._shape(shape))

    def _check(self) -> None:
        check_choice(get_args(Family), model=self.model)
        check_choice(get_args(Preconditioner), preconditioner=self.preconditioner)
        check_flag(by_component=self.by_component)
        check_count(samples=self.samples, thin=self.thin, chains=self.chains)
        check_count(0, burn_in=self.burn_in)
        if not (isinstance(self.batch, str) and self.batch == "all"):
            check_count(**given(batch=self.batch))
        check_number(0, 1, decay=self.decay)
        if 0 < self.decay <= 0.5:
            raise SettingError(
                "decay is above 0.5, or the squares of the steps would have no finite sum, and 1 at "
                f"most, or the steps would have one; got {self.decay}. 0 keeps steps constant, for "
                "samples from near the posterior"
            )
        check_positive(**given(step=self.step, offset=self.offset, dispersion=self.dispersion))
        check_positive(start_scale=self.start_scale)
        if self.preconditioner == "curvature" and self.step is not None and self.step > 1:
            raise SettingError(f"steps by curvature are at most 1, got {self.step}")
        for what in ("precision_prior", "noise_prior"):
            first, second = as_pair(what, getattr(self, what), "a shape and a rate")
            check_positive(**{f"the shape of {what}": first, f"the rate of {what}": second})

    def _check_shape(self, shape: CoupledShape) -> None:
        wanted = DIVERGENCE[self.model]
        for part, p, phi in zip(shape.parts, shape.divergences, shape.dispersions, strict=True):
            if p != wanted:
                raise SettingError(
                    f"the {self.model} model needs divergence={wanted:g} of every relation, but "
                    f"{part.name!r} has {p:g}: set it in Relations, or choose another model, "
                    'Langevin(model="normal") for any numbers or "poisson" for counts'
                )
            if self.model == "poisson" and phi != 1:
                raise SettingError(
                    f"a Poisson law has dispersion 1, but relation {part.name!r} has "
                    f"{'an estimated one' if phi is None else phi}"
                )
        self._known(shape)
        self._gamma(shape)
        check_room(shape, self.chains, self.samples)

    def check_relation(self, relation: Relation) -> None:
        """Refuse values that the model cannot have."""
        check_values(self.model, relation)

    # -- priors -----------------------------------------------------------------------------------

    def _known(self, shape: CoupledShape) -> list[float | None]:
        """The precision of every block where it is not sampled."""
        known = shape.per_mode(self.prior_precision, "prior_precision")
        for each in known:
            check_positive(prior_precision=1.0 if each is None else each)
        return known

    def _gamma(self, shape: CoupledShape) -> list[tuple[float, float]]:
        """Shape and rate of the Gamma prior of every block."""
        shapes = [1.0 if a is None else a for a in shape.per_mode(self.prior_shape, "prior_shape")]
        means = [1.0 if b is None else b for b in shape.per_mode(self.prior_mean, "prior_mean")]
        for a, b in zip(shapes, means, strict=True):
            check_positive(prior_shape=a, prior_mean=b)
        return [(a, a / b) for a, b in zip(shapes, means, strict=True)]

    def _start(self, shape: CoupledShape, seed: int, number: int) -> Chain:
        own = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        noise = np.array([1.0 if phi is None else 1 / phi for phi in shape.dispersions])
        if self.model == "poisson":
            model, precisions = positive_start(shape, own), list[Array]()
            priors = _spread(
                shape, [(np.array([a]), np.array([rate])) for a, rate in self._gamma(shape)]
            )
        else:
            model, start = shape.zeros(), start_generator(own)
            for block in shape.blocks:
                values = values_of(model, block)
                values[:] = self.start_scale * start.standard_normal(values.shape)
            precisions = [np.ones(shape.rank if self._several(block) else 1) for block in shape.blocks]
            for mine, known in zip(precisions, self._known(shape), strict=True):
                mine[:] = 1.0 if known is None else known
            priors = _spread(shape, [(mine, np.zeros(1)) for mine in precisions])
        averages = [np.zeros((model.rows.shape[0], model.rank)), *map(np.zeros_like, model.cores)]
        generator = np.random.default_rng([own, 1])
        return Chain(model, generator, precisions, noise, averages, priors)

    def _several(self, block: Block) -> bool:
        return self.by_component and block.mode is not None

    def _draw_precisions(self, shape: CoupledShape, chain: Chain) -> None:
        """Every lambda that is not known, given the parameters."""
        a, b = self.precision_prior
        for block, mine, known in zip(shape.blocks, chain.precisions, self._known(shape), strict=True):
            if known is None:
                values = values_of(chain.model, block)
                squares = np.square(values, dtype=np.float64).sum(
                    axis=0 if self._several(block) else None
                )
                count = values.size / mine.size
                mine[:] = chain.generator.gamma(a + count / 2, size=mine.shape) / (b + squares / 2)
        chain.priors = _spread(shape, [(mine, np.zeros(1)) for mine in chain.precisions])

    # -- steps ------------------------------------------------------------------------------------

    def _learn(self, chain: Chain, found: Slopes, state: State) -> None:
        """Average what steps are scaled by over the burn-in, later steps more than earlier ones."""
        if self.preconditioner == "none" or chain.fixed is not None:
            return
        news = found.scales
        if self.preconditioner == "rmsprop":
            news = tuple(np.square(slope) for slope in self._whole_gradients(chain, found.gradients))
        weight = 2 / (state.steps + 2)
        for mean, new in zip(chain.averages, news, strict=True):
            mean[:] += weight * (new - mean)
        if state.steps + 1 >= self.burn_in:
            chain.fixed = self._pace(chain)

    def _pace(self, chain: Chain) -> list[Array]:
        """G of every parameter; for Poisson by curvature what theta is multiplied by."""
        if chain.fixed is not None:
            return chain.fixed
        if self.preconditioner == "none":
            return [np.ones(1) for _ in chain.averages]
        if self.preconditioner == "rmsprop":
            return [1 / (_DAMPING + np.sqrt(mean)) for mean in chain.averages]
        place = 0 if self.model == "normal" else 1
        return [
            1 / (prior[place] + mean) for prior, mean in zip(chain.priors, chain.averages, strict=True)
        ]

    def _whole_gradients(self, chain: Chain, gradients: tuple[Array, ...]) -> list[Array]:
        """With the prior's."""
        if self.model == "normal":
            pulls = [-prior[0] * x for prior, x in zip(chain.priors, chain.parameters, strict=True)]
        else:
            pulls = [
                (prior[0] - 1) / np.maximum(x, _LEAST) - prior[1]
                for prior, x in zip(chain.priors, chain.parameters, strict=True)
            ]
        return [slope + pull for slope, pull in zip(gradients, pulls, strict=True)]

    def _move(self, chain: Chain, gradients: tuple[Array, ...], kappa: float) -> None:
        """One step of all parameters."""
        by_curvature = self.preconditioner == "curvature"
        if by_curvature and self.model == "poisson":
            self._move_scaled(chain, gradients, kappa)
            return
        variance = 2 * kappa - kappa**2 if by_curvature else 2 * kappa
        for values, slope, pace in zip(
            chain.parameters, self._whole_gradients(chain, gradients), self._pace(chain), strict=True
        ):
            deviation = np.sqrt(variance * pace)
            drift = np.clip(kappa * pace * slope, -_FURTHEST * deviation, _FURTHEST * deviation)
            moved = values + drift + deviation * chain.generator.standard_normal(values.shape)
            values[:] = moved if self.model == "normal" else np.abs(moved)

    def _move_scaled(self, chain: Chain, gradients: tuple[Array, ...], kappa: float) -> None:
        """One step of the Poisson model with G = theta times a pace.

        theta times the gradient of the prior is shape - 1 - rate theta, and 1 is the change of G with
        theta, so that nothing is divided by theta.
        """
        for values, slope, pace, (shape, rate) in zip(
            chain.parameters, gradients, self._pace(chain), chain.priors, strict=True
        ):
            drift = kappa * pace * (shape + values * (slope - rate))
            deviation = np.sqrt((2 * kappa - kappa**2) * pace * values)
            values[:] = np.abs(
                values + drift + deviation * chain.generator.standard_normal(values.shape)
            )

    # -- looks at all entries ---------------------------------------------------------------------

    def _looks_due(self, steps: int) -> int:
        """Looks at the burn-in's last step, and at every thin-th one before and after it."""
        before = ceil(self.burn_in / self.thin)
        if steps >= self.burn_in:
            return before + (steps - self.burn_in) // self.thin
        return before - ceil((self.burn_in - steps) / self.thin)

    def _look(self, state: State, losses: Losses) -> tuple[State, Info]:
        draw = state.looks - ceil(self.burn_in / self.thin)
        total = 0.0
        for number, chain in enumerate(state.chains):
            if self.model == "normal":
                self._draw_noise(state.shape, chain, losses.sums[number], losses.cells)
            density = self.log_density(state.shape, chain, losses.sums[number], losses.cells)
            if not np.isfinite(density):
                raise DivergedError(
                    "a chain left the range of floating-point numbers: "
                    + either('take a smaller step, or preconditioner="curvature"', "take another --seed")
                )
            total += density
            if draw >= 0:
                state.kept.keep(number, draw, chain.model)
                state.kept.noise[number, draw] = chain.noise
                state.kept.log_density[number, draw] = density
        info = Info(state.looks + 1, objective=-total / self.chains)
        return replace(state, looks=state.looks + 1), info

    def _draw_noise(self, shape: CoupledShape, chain: Chain, sums: Array, cells: Array) -> None:
        """Every tau that is not known, given all residuals; ``sums`` are of half their squares."""
        a, b = self.noise_prior
        for v, phi in enumerate(shape.dispersions):
            if phi is None:
                chain.noise[v] = chain.generator.gamma(a + cells[v] / 2) / (b + sums[v])

    def log_density(self, shape: CoupledShape, chain: Chain, sums: Array, cells: Array) -> float:
        """Of parameters, hyperparameters and data together, up to a constant of the data.

        ``sums`` are the divergences of relations (half of squared errors, or Kullback-Leibler).
        """
        if self.model == "poisson":
            density = -float(sums.sum())
            for block, (a, rate) in zip(shape.blocks, self._gamma(shape), strict=True):
                values = values_of(chain.model, block).astype(np.float64)
                logs = np.log(np.maximum(values, _LEAST))
                density += float(((a - 1) * logs - rate * values).sum())
            return density
        density = float((cells / 2 * np.log(chain.noise) - chain.noise * sums).sum())
        for v, phi in enumerate(shape.dispersions):
            if phi is None:
                density += float(_log_gamma(chain.noise[v], *self.noise_prior))
        for block, known, mine in zip(shape.blocks, self._known(shape), chain.precisions, strict=True):
            values = np.square(values_of(chain.model, block), dtype=np.float64)
            squares = values.sum(axis=0 if self._several(block) else None)
            count = values.size / mine.size
            density += float((count / 2 * np.log(mine) - mine / 2 * squares).sum())
            if known is None:
                density += float(_log_gamma(mine, *self.precision_prior).sum())
        return density


def _spread(shape: CoupledShape, blocks: list[tuple[Array, Array]]) -> list[tuple[Array, Array]]:
    """Numbers of blocks as those of all rows, then of the cores."""
    modes = len(shape.modes)
    rows = [
        np.repeat(np.stack(numbers), shape.sizes, axis=0)
        for numbers in zip(*blocks[:modes], strict=True)
    ]
    cores, left = list[tuple[Array, Array]](), iter(blocks[modes:])
    for part in shape.parts:
        cores.append(next(left) if part.tucker else (np.ones(1), np.ones(1)))
    return [(rows[0], rows[1]), *cores]


def _log_gamma(value: Array, shape: float, rate: float) -> Any:
    """Log density of a Gamma law, up to a constant."""
    return (shape - 1) * np.log(value) - rate * value
