"""Data of paper W's study, and the settings of every model of them.

What is not printed there is our choice: rank 3 on invented data and 10 on MovieLens, clipping constant
0.1, a standard normal start (smaller for the rows of Tucker models, which diverge from it).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from sfumato.data import datasets, synthetic
from sfumato.data.scaling import BiScale
from sfumato.data.tensor import SparseTensor
from sfumato.estimators.base import TensorEstimator
from sfumato.estimators.completion import CP, Tucker
from sfumato.privacy.units import Public
from sfumato.solvers.gradient.sequential import SequentialSGD
from sfumato.solvers.least_squares.als import ALS
from sfumato.solvers.private.input.solver import InputPerturbation
from sfumato.types import Array

KINDS: dict[str, Any] = {"cp": CP, "tucker": Tucker}
SPLITS = ("ua", "ub")
FIRST_SEED = 100  # of the data sets that are scored; settings were chosen on others, from 1000 on
NOISE_SEEDS = 50_000  # added to the data's seed


@dataclass(frozen=True)
class Models:
    """How one kind of model is fitted to one kind of data: as printed, by us, and without privacy.

    ``settings`` are of our estimators; ``input`` are those of the fit to noisy values, which the
    defaults would make from more starts than a study with a thousand fits has time for.
    """

    kind: str
    rank: int
    descent: SequentialSGD
    own_rank: int
    settings: Mapping[str, Any]
    input: InputPerturbation
    best: TensorEstimator
    noisy_mode: str | None = None

    def printed(self, **settings: Any) -> TensorEstimator:
        """The paper's model: neither mean nor biases."""
        made: TensorEstimator = KINDS[self.kind](
            self.rank, mean=False, biases=False, threads=1, **settings
        )
        return made

    def ours(self, **settings: Any) -> TensorEstimator:
        made: TensorEstimator = KINDS[self.kind](
            self.own_rank, threads=1, **{**self.settings, **settings}
        )
        return made


@dataclass(frozen=True)
class Problem:
    """One draw of the data, as it is (``plain``), as the paper's methods see it (``printed``, without
    bounds) and as ours do (``bounded``).

    ``undo`` takes what is predicted from ``printed`` to the units of ``truth``.
    """

    plain: SparseTensor
    printed: SparseTensor
    bounded: SparseTensor
    test: SparseTensor
    truth: Array
    models: Models
    seed: int
    undo: Callable[[Array], Array]
    public: Public

    @property
    def noise_seed(self) -> int:
        return NOISE_SEEDS + self.seed

    def error(self, predicted: Array | float) -> float:
        return float(np.sqrt(np.mean(np.square(predicted - self.truth, dtype=np.float64))))

    def printed_error(self, predicted: Array) -> float:
        return self.error(self.undo(predicted))


# -- invented data --------------------------------------------------------------------------------

STARS = (1.0, 5.0)  # of ratings
BOUNDS = {"minmax": (0.0, 1.0), "magnitude": (-1.0, 1.0)}


def _invented_models(kind: str, scaling: str) -> Models:
    mean = scaling == "minmax"  # scaled by magnitude the truth has mean zero, and that is known
    # The start is not printed. From standard normal rows and core, one fit in eight diverges.
    tucker: dict[str, Any] = {"ridge_per_entry": 0.001, "core_ridge": 0.0001, "init_scale": 0.5}
    settings = {"mean": mean, "biases": False}
    return Models(
        kind=kind,
        rank=3,
        descent=SequentialSGD(passes=100, step=0.005, **({} if kind == "cp" else tucker)),
        own_rank=3,
        settings=settings,
        input=InputPerturbation(sweeps=60, starts=8 if kind == "cp" else 4),
        # Cells are missing at random: which are there says nothing.
        best=KINDS[kind](3, solver=ALS(sweeps=60, presence=False), starts=4, threads=1, **settings),
    )


def invented(kind: str, scaling: str, missing: float, repetition: int) -> Problem:
    """The paper's tensor of 20 x 20 x 20; RMSE is against the true values of the held-out cells."""
    seed = FIRST_SEED + repetition
    data = synthetic.wei(kind, missing=missing, scaling=scaling, seed=seed)  # type: ignore[arg-type]
    bounds = BOUNDS[scaling]
    return Problem(
        plain=data.train,
        printed=data.train,
        bounded=data.train.with_values(np.clip(data.train.values, *bounds), bounds),
        test=data.test,
        truth=data.truth_at(data.test),
        models=_invented_models(kind, scaling),
        seed=seed,
        undo=lambda predicted: predicted,
        public=Public(),
    )


# -- MovieLens ------------------------------------------------------------------------------------


def _days_models(kind: str) -> Models:
    # From a standard normal start a core of 10 x 10 x 10 diverges in the first pass: values then have a
    # variance of 1000. From this one it is about one.
    shorter: dict[str, Any] = {} if kind == "cp" else {"sweeps": 15, "starts": 1}
    tucker: dict[str, Any] = {"step": 0.003, "core_ridge": 0.001, "init_scale": 0.3}
    return Models(
        kind=kind,
        rank=10,
        descent=SequentialSGD(passes=100, ridge_per_entry=0.01, **({} if kind == "cp" else tucker)),
        own_rank=10 if kind == "cp" else 4,
        settings={},
        input=InputPerturbation(step=1.0, **shorter),
        best=CP(10, threads=1),  # of both kinds: a Tucker model is no better, and much slower
        noisy_mode="user",  # the last mode in the authors' program, which orders movie x day x user
    )


def days(kind: str, repetition: int) -> Problem:
    """MovieLens 100K by user, item and day; ratings, so that errors are those of ratings.

    Repetitions take the splits in turn. The paper's methods see ratings that were bi-scaled by day.
    """
    train, test, scaled, scale = _split(SPLITS[repetition % len(SPLITS)])
    low, high = STARS
    return Problem(
        plain=train,
        printed=scaled,
        bounded=train,
        test=test,
        truth=test.values,
        models=_days_models(kind),
        seed=FIRST_SEED + repetition,
        undo=lambda predicted: np.clip(scale.inverse(predicted, test.coordinates), low, high),
        public=Public(step=1.0),
    )


@lru_cache(len(SPLITS))
def _split(split: str) -> tuple[SparseTensor, SparseTensor, SparseTensor, BiScale]:
    train, test = datasets.movielens_split("100k", split, time="day")
    scale = BiScale.fit(train, slices="day")
    return train, test, scale.transform(train), scale
