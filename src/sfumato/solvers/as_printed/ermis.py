"""Algorithms 1 (DP-CMF) and 2 (DP-CTF) as Ermis prints them (paper E), for reproduction.

Several holders (sites) fit one CP model by Langevin steps on minibatches. Factors of some modes are
shared by all, the others are each holder's own. Their epsilons are *claimed*: ``docs/papers/ermis.md``
says where the analysis fails, and what the proven methods are.

Of both algorithms, by the paper's lines:

3.           T passes, each of C / B steps, C the records of a site
5, 6.        step lengths and noise: :func:`schedule`
7.           a batch of B records of each site, all different
9, 10.       site level: own factors by plain steps kappa_t, noise of variance 2 kappa_t (4.10, 4.21)
11 to 13.    user level: own factors are clipped and noised as shared ones (4.12 to 4.14, 4.23 to 4.25)
15, 16, 19.  shared factors: each site's gradient, clipped to G, times eta_t, and noise; all summed

Choices where nothing is printed, and departures:

- the prior's gradient is added for the rows that a batch is about; noise is added to all rows;
- Algorithm 1: rows are mirrored at zero, since counts have no negative mean; beta is a rate; the
  constants c2 and c4 that the theorems hide are 0.953, from the one step length printed (0.103);
- Algorithm 2: precisions of factors are set to their conditional mean after every pass, b0 being a rate;
  the noise "sigma^2 v eta" is the greater of the two;
- zCDP in Algorithm 2: sigma by appendix E as it is meant, times eta C / B and the sensitivity 2 G;
- factors begin with uniform random numbers, whatever the data; negative ones would have to be undone.

``steps="as run"`` is *our reading* of what may have been run, since the steps of Eq. 4.27 stand still:
lengths kappa_0 / (pass^rho C), every record clipped to G before the sum (as the appendices assume),
noise of 2 G sigma on that sum, sigma by the recipe of the composition. No text says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log, sqrt
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from sfumato.checks import check_choice, check_count, check_positive
from sfumato.data.tensor import SparseTensor
from sfumato.errors import SettingError
from sfumato.kernels.numba.printed_langevin import (
    SHARED,
    Holdings,
    Law,
    Scratch,
    Walk,
    bring_all,
    walk_on,
)
from sfumato.solvers.as_printed.ermis_noise import BY_COMPOSITION, Setting
from sfumato.types import Array

HIDDEN = 0.953  # c2: S 50,000, T 10,000, G 1, epsilon 0.1, delta 1e-5 have steps below 0.103 (4.1.3)
PHASE = 0.9  # alpha of Eq. 4.27: samples are collected after this share of the run
STILL = 0.02, 1e-3  # a factor: where gradients move it by no more in all, or by this share of its noise
BEYOND = 1e6  # numbers of factors; what is larger has left every scale
START = {1: (0.5, 1.5), 2: (0.0, 1.3)}  # between which numbers factors begin
Level = Literal["site", "user", "open"]


@dataclass(frozen=True)
class PaperLangevin:
    """Settings of Algorithm 1 or 2. The level ``open`` is neither clipped nor private.

    Parameters
    ----------
    prior : Algorithm 1: alpha and beta of all factors. Algorithm 2: a0 and b0 of their precisions.
    first_step, decay : kappa_0 and its exponent (gamma, rho) of own factors' steps.
    noise : 0 takes the noise of the *claim* away, to see what the gradients do.
    """

    algorithm: Literal[1, 2] = 2
    epsilon: float = 1.0
    delta: float = 1e-3
    level: Level = "user"
    composition: Literal["ac", "zcdp"] = "zcdp"
    steps: Literal["decreasing", "fixed", "as run"] = "decreasing"
    rank: int = 5
    passes: int = 6
    batch: int = 100
    clip: float = 2.0
    first_step: float = 0.1
    decay: float = 1.0
    prior: tuple[float, float] = (1.0, 0.01)
    precision: float = 1.0
    noise: float = 1.0

    name: ClassVar[str] = "Langevin steps as printed by Ermis"
    proven: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.algorithm not in (1, 2):
            raise SettingError(f"the paper's algorithms are 1 and 2, got {self.algorithm!r}")
        check_choice(("site", "user", "open"), level=self.level)
        check_choice(tuple(BY_COMPOSITION), composition=self.composition)
        check_choice(("decreasing", "fixed", "as run"), steps=self.steps)
        check_count(rank=self.rank, passes=self.passes, batch=self.batch)
        check_positive(epsilon=self.epsilon, delta=self.delta, clip=self.clip)
        check_positive(first_step=self.first_step, precision=self.precision)
        if self.algorithm == 2 and self.steps == "fixed":
            raise SettingError(
                "Algorithm 2 has the steps of Eq. 4.27 alone: fixed ones are Algorithm 1's"
            )

    @property
    def counts(self) -> bool:
        return self.algorithm == 1

    def iterations(self, records: float) -> int:
        """Steps of all passes over so many records."""
        return self.passes * self.each_pass(records)

    def each_pass(self, records: float) -> int:
        return max(1, ceil(records / self.batch - 1e-9))

    def sigma(self, records: int, iterations: int) -> float:
        """Noise beside the sensitivity, by the recipe of the composition."""
        rate = min(1.0, self.batch / records)
        setting = Setting("", iterations, rate, self.delta)
        return BY_COMPOSITION[self.composition](setting, self.epsilon)


# -- lines 5 and 6: step lengths and noise --------------------------------------------------------


class Schedule(NamedTuple):
    """By step: how far, and the variance of the noise, of shared factors and of own ones."""

    shared: Array
    shared_variance: Array
    own: Array
    own_variance: Array


def schedule(settings: PaperLangevin, records: int, iterations: int) -> Schedule:
    """Of a site with so many records."""
    if settings.steps == "as run":
        hidden, plain = _as_run(settings, records, iterations), _passes(settings, records, iterations)
    else:
        printed = _algorithm_1 if settings.algorithm == 1 else _algorithm_2
        hidden = printed(settings, records, iterations)
        plain = settings.first_step / np.arange(1.0, iterations + 1) ** settings.decay
    steps, variances = hidden[0], settings.noise * hidden[1]
    if settings.level == "open":
        return Schedule(plain, 2 * plain, plain, 2 * plain)
    if settings.level == "site":
        return Schedule(steps, variances, plain, 2 * plain)
    return Schedule(steps, variances, steps, variances)


def _algorithm_1(settings: PaperLangevin, records: int, iterations: int) -> tuple[Array, Array]:
    """Theorems 4.1 and 4.2 at their bounds; the noise of line 6, with its 1 / S^2."""
    budget = settings.epsilon**2 / (HIDDEN**2 * settings.clip**2 * log(1 / settings.delta))
    t = np.arange(1.0, iterations + 1)
    if settings.steps == "fixed":
        steps = np.full(iterations, budget * records / iterations)
        times = HIDDEN * sqrt(log(1 / settings.delta)) / settings.epsilon  # eta_0 / q
        return steps, (times * settings.clip * steps) ** 2
    longest = records / settings.clip**2
    steps = np.minimum(longest, budget * records * t ** (-1 / 3) / iterations ** (2 / 3))
    return steps, iterations ** (2 / 3) * t ** (1 / 3) * steps**2 / (budget * records**2)


def _algorithm_2(settings: PaperLangevin, records: int, iterations: int) -> tuple[Array, Array]:
    """Eq. 4.27 with L = G; the noise of appendix C, or of Eq. 4.28 and 4.29."""
    batches = records / settings.batch  # C / B; with T passes there are C T / B steps
    width = log(2.5 * batches * settings.passes / settings.delta)
    tail, epsilon, bound = log(2 / settings.delta), settings.epsilon, settings.clip
    steps = PHASE * epsilon**2 / (128 * bound**2 * width * tail * np.arange(1.0, iterations + 1))
    if settings.composition == "ac":
        sigma = bound * sqrt(128 * batches * settings.passes * width * 2 * tail) / epsilon
    else:
        sigma = 2 * bound * batches * settings.sigma(records, iterations)
    return steps, np.maximum((sigma * steps) ** 2, steps)


def _as_run(settings: PaperLangevin, records: int, iterations: int) -> tuple[Array, Array]:
    """Our reading: 2 G sigma on the sum of a batch."""
    steps = _passes(settings, records, iterations)
    batches = records / min(settings.batch, records)
    spread = 2 * settings.clip * settings.sigma(records, iterations) * batches
    return steps, (spread * steps) ** 2


def _passes(settings: PaperLangevin, records: int, iterations: int) -> Array:
    passes = 1 + np.arange(iterations) * settings.passes // iterations
    return settings.first_step / (passes.astype(float) ** settings.decay * records)


# -- the run --------------------------------------------------------------------------------------

Factors = Mapping[str, Array]


class Sample(NamedTuple):
    """All factors after a pass, of each site by the name of the mode; views of what goes on changing."""

    passes: int
    sites: tuple[Factors, ...]
    epsilon: float  # claimed

    def predict(self, site: int, modes: Sequence[str], cells: Array) -> Array:
        rows = [self.sites[site][name][levels] for name, levels in zip(modes, cells, strict=True)]
        return np.asarray(np.prod(rows, axis=0).sum(axis=1))


class _Rows(NamedTuple):
    """Where each site's factors lie in the matrix of all rows, and whose each row is."""

    places: tuple[dict[str, slice], ...]
    kinds: Array

    def factors(self, rows: Array) -> tuple[Factors, ...]:
        return tuple({name: rows[at] for name, at in site.items()} for site in self.places)


def _laid_out(tensors: Sequence[SparseTensor], shared: Sequence[str]) -> _Rows:
    places, kinds, known, size = [], list[int](), dict[str, slice](), 0
    for number, tensor in enumerate(tensors):
        site = dict[str, slice]()
        for mode in tensor.modes:
            common = mode.name in shared
            if common and mode.name in known:
                site[mode.name] = known[mode.name]
                continue
            site[mode.name] = slice(size, size + mode.size)
            size += mode.size
            kinds += [SHARED if common else 1 + number] * mode.size
            if common:
                known[mode.name] = site[mode.name]
        places.append(site)
    return _Rows(tuple(places), np.array(kinds))


def _held(tensors: Sequence[SparseTensor], rows: _Rows, public: int) -> Holdings:
    most = max(tensor.order for tensor in tensors)
    cells = []
    for tensor, places in zip(tensors, rows.places, strict=True):
        first = [places[mode.name].start for mode in tensor.modes]
        own = np.zeros((most, tensor.n_entries), np.int32)
        own[: tensor.order] = tensor.coordinates + np.array(first)[:, None]
        cells.append(own)
    return Holdings(
        np.concatenate(cells, axis=1),
        np.concatenate([np.asarray(tensor.values, np.float64) for tensor in tensors]),
        np.concatenate([[0], np.cumsum([tensor.n_entries for tensor in tensors])]),
        np.array([tensor.order for tensor in tensors]),
        np.arange(len(tensors)) >= len(tensors) - public,
    )


class _Chain:
    """The factors, and how they go on."""

    def __init__(
        self,
        tensors: Sequence[SparseTensor],
        shared: Sequence[str],
        settings: PaperLangevin,
        seed: int,
        public: Sequence[SparseTensor],
    ) -> None:
        if not tensors:
            raise SettingError("there has to be a site")
        self.settings, self.stream = settings, np.random.default_rng(seed)
        self.each = settings.each_pass(sum(tensor.n_entries for tensor in tensors) / len(tensors))
        every = [*tensors, *public]
        self.where = _laid_out(every, shared)
        self.holdings = _held(every, self.where, len(public))
        self.walk = self._begun([tensor.n_entries for tensor in every], len(public))
        self.scratch = Scratch.of(self.holdings, self.walk, settings.batch)
        self.precisions = np.ones_like(self.walk.rows)
        self.done = 0

    def _begun(self, records: Sequence[int], public: int) -> Walk:
        """Rows before the first step, and what all steps will add in noise, by kind."""
        settings, iterations = self.settings, self.each * self.settings.passes
        variances = np.zeros((1 + len(records), iterations + 1))
        shared_steps, own_steps = [], []
        for number, count in enumerate(records):
            plan = schedule(settings, count, iterations)
            if number >= len(records) - public:
                plain = _passes(settings, count, iterations)
                plan = plan._replace(own=plain, own_variance=2 * plain)
            else:  # every site adds noise of its own
                variances[SHARED, 1:] += np.cumsum(plan.shared_variance)
            variances[1 + number, 1:] = np.cumsum(plan.own_variance)
            shared_steps.append(plan.shared)
            own_steps.append(plan.own)
        shape = self.where.kinds.size, settings.rank
        rows = self.stream.uniform(*START[settings.algorithm], shape)
        given, steps = np.zeros(shape[0]), (np.array(shared_steps), np.array(own_steps))
        return Walk(rows, self.where.kinds, given, variances, *steps)

    def law(self) -> Law:
        settings = self.settings
        return Law(
            settings.counts,
            settings.precision,
            float(settings.prior[0]),
            float(settings.prior[1]),
            self.precisions,
            settings.clip,
            settings.steps == "as run",
            settings.level == "user",
            settings.counts and settings.steps != "as run",
        )

    @property
    def stands_still(self) -> bool:
        """Whether all gradients of the run together, clipped as they are, move next to nothing."""
        settings = self.settings
        if settings.level != "user" or settings.steps == "as run" or self.holdings.public.any():
            return False
        most, share = STILL
        noise = np.sqrt(self.walk.variances[:, -1].max() * self.walk.rows.size)
        return bool(settings.clip * self.walk.shared_steps.sum() < max(most, share * noise))

    def on(self, steps: int, *, noise_alone: bool = False) -> None:
        """So many steps; all rows have their noise then."""
        last, law, stream = self.done + steps, self.law(), self.stream
        if not noise_alone:
            batch = self.settings.batch
            walk_on(self.holdings, law, self.walk, self.scratch, batch, self.done, last, stream)
        bring_all(self.walk, last, law.counts, stream)
        self.done = last

    def learn_precisions(self) -> None:
        """Conditional means of the precisions of each factor's columns, given what is released of it."""
        a, b = self.settings.prior
        for site in self.where.places:
            for at in site.values():
                rows = self.walk.rows[at]
                mean = (a + len(rows) / 2) / (b + (rows**2).sum(axis=0) / 2)
                self.precisions[at] = mean

    def sample(self) -> Sample:
        sites = self.where.factors(self.walk.rows)
        return Sample(self.done // self.each, sites, self.settings.epsilon)


def samples(
    tensors: Sequence[SparseTensor],
    shared: Sequence[str],
    settings: PaperLangevin,
    seed: int,
    public: Sequence[SparseTensor] = (),
) -> Iterator[Sample]:
    """The factors after each pass. Ends early where they grow beyond all bounds.

    ``tensors`` are the sites'; ``public`` ones take part without clipping and noise (Model 3). Of a run
    whose gradients could move next to nothing (``STILL``), the noise alone is drawn.
    """
    chain = _Chain(tensors, shared, settings, seed, public)
    for _ in range(settings.passes):
        with np.errstate(all="ignore"):
            chain.on(chain.each, noise_alone=chain.stands_still)
            if not (np.abs(chain.walk.rows) < BEYOND).all():
                return
            if not settings.counts:
                chain.learn_precisions()
        yield chain.sample()


def released(
    tensors: Sequence[SparseTensor], shared: Sequence[str], settings: PaperLangevin, seed: int
) -> dict[str, Array]:
    """All iterates of what leaves the sites, the start first: for audits of small data.

    At site level those are the shared factors: own ones are among the printed outputs, but stay where
    they are by the text.
    """
    chain = _Chain(tensors, shared, settings, seed, ())
    kept = [chain.walk.rows.copy()]
    for _ in range(chain.each * settings.passes):
        chain.on(1)
        kept.append(chain.walk.rows.copy())
    found = np.array(kept)
    names: dict[str, slice] = {}
    for number, site in enumerate(chain.where.places):
        for name, at in site.items():
            if name in shared:
                names[name] = at
            elif settings.level == "user":
                names[f"{name} of site {number + 1}"] = at
    return {name: found[:, at] for name, at in names.items()}
