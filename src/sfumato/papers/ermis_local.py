"""Paper E's local privacy: every value is noised before it leaves its site, and fitted thereafter.

LDP1: everybody fits what has left all sites. LDP2: a site fits its own raw values beside what has left
the others; what comes of it never leaves the site. In three ways:

- ``z as clean``: as the thesis fits them. Two-sided geometric noise on values, negative ones cut to
  zero, and a Poisson-Gamma model that takes them for clean. Its Gibbs sampler is variational Bayes
  here, of the same model, with learnt priors unless they are given. The ratio is the one that epsilon
  needs: the printed one is epsilon itself, with which the law is zero everywhere at epsilon 1.
- ``geometric``: the same noise, and a fit that knows it.
- ``best channel``: the channel that lets most through, and a fit that knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from sfumato.data.privatised import Privatised, together
from sfumato.data.relations import Relations
from sfumato.data.tensor import SparseTensor
from sfumato.estimators.completion import CP
from sfumato.estimators.coupled import Coupled
from sfumato.fit.privatising import privatise
from sfumato.papers.ermis_claimed import Site
from sfumato.solvers.coupled.variational import Variational
from sfumato.types import Array

ALL, OWN = "LDP1", "LDP2"
NAIVE, GEOMETRIC, BEST = "z as clean", "geometric", "best channel"
NOISY_MEAN = "noisy mean"  # of what has left all sites: the least that a fit has to beat
RANK, SWEEPS = 5, 120  # of the thesis
LEAST_MEAN = 0.5  # of a count, where a fit that knows no counts has less
_VALUES = "values"


class Local(NamedTuple):
    """A row: which method of the thesis, and how what has left is fitted."""

    method: str
    way: str

    def __str__(self) -> str:
        return f"{self.method}, {self.way}"

    @property
    def channel(self) -> Literal["auto", "geometric"]:
        return "auto" if self.way == BEST else "geometric"


def rows(method: str, *ways: str) -> tuple[str, ...]:
    return tuple(str(Local(method, way)) for way in ways)


EVERYBODY = (*rows(ALL, NAIVE, GEOMETRIC, BEST), NOISY_MEAN)  # the same however many sites there are
BESIDE_RAW = rows(OWN, NAIVE, GEOMETRIC, BEST)


def is_local(row: str) -> bool:
    return row == NOISY_MEAN or row.startswith((f"{ALL}, ", f"{OWN}, "))


def local_of(row: str) -> Local:
    """What a row of this name is."""
    method, _, way = (str(Local(ALL, GEOMETRIC)) if row == NOISY_MEAN else row).partition(", ")
    return Local(method, way)


class Asked(NamedTuple):
    """What a value is promised: ``value`` within the data's bounds, or ``event`` of a count."""

    epsilon: float
    unit: Literal["value", "event"]
    seed: int


def received(row: str, trains: Sequence[SparseTensor], own: int, asked: Asked) -> Privatised:
    """What a site (``own``, from 0 on) has to fit: all that has left; by LDP2 its own raw values too."""
    local = local_of(row)
    return together(
        *(
            train
            if local.method == OWN and number == own
            else privatise(
                train, asked.epsilon, unit=asked.unit, channel=local.channel, seed=asked.seed + number
            )
            for number, train in enumerate(trains)
        )
    )


Prior = tuple[float, float]  # shape and rate
Predictor = Callable[[SparseTensor], Array]


def fitted(row: str, there: Privatised, prior: Prior | None = None) -> Predictor:
    """A row's fit of what is there: what it says of held-out entries."""
    if row == NOISY_MEAN:
        mean = float(there.tensor.values.mean())
        return lambda test: np.full(test.n_entries, mean)
    if local_of(row).way == NAIVE:
        return poisson_gamma(there.tensor.with_values(np.maximum(there.tensor.values, 0.0)), prior)
    return CP(threads=1).fit(there).predict


def poisson_gamma(train: SparseTensor, prior: Prior | None = None) -> Predictor:
    """The thesis' model of counts, with all priors learnt unless one is given."""
    solver = Variational(SWEEPS)
    if prior is not None:
        shape, rate = prior
        solver = Variational(SWEEPS, prior_shape=shape, prior_mean=shape / rate, learn_prior=False)
    return partial(Coupled(RANK, solver, threads=1).fit(Relations({_VALUES: train})).predict, _VALUES)


def means_of_counts(row: str, sites: Sequence[Site], asked: Asked, prior: Prior | None = None) -> Array:
    """Of the first site's held-out counts; none of them is at zero or below."""
    there = received(row, [site.train for site in sites], 0, asked)
    return np.maximum(fitted(row, there, prior)(sites[0].test), LEAST_MEAN)


def to_json() -> dict[str, Any]:
    """What all rows depend on."""
    return {"local_rank": RANK, "local_sweeps": SWEEPS, "least_mean": LEAST_MEAN}
