"""Attacks: from what a release shows, a score that grows the more it looks like the second neighbour.

Some need no learning: what is predicted at the canary's cells, and how far the rows of its levels have
gone from where they started, which is public. Others are fitted to runs whose neighbour is known, as an
adversary can make them who knows all data but the canary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sfumato.auditing.trials import Runs
from sfumato.models.multilinear import Multilinear
from sfumato.types import Array

_FOLDS = 4
_FEW = 40  # runs below which nothing can be learnt
_TREES = 100


class Attack(Protocol):
    """A score for each run, learnt from some runs or not."""

    @property
    def name(self) -> str: ...

    def scores(self, learn: Runs, runs: Runs) -> Array: ...


@dataclass(frozen=True)
class Prediction:
    """The value at the canary's cells, by the released model."""

    name: str = "prediction at the cell"

    def scores(self, learn: Runs, runs: Runs) -> Array:  # noqa: ARG002
        return np.asarray(runs["prediction"][:, 0])


@dataclass(frozen=True, eq=False)
class Change:
    """How far the rows of the canary's levels went from their start along the model's gradient."""

    start: Multilinear
    cells: Array
    name: str = "change of the touched rows, along the gradient"

    def scores(self, learn: Runs, runs: Runs) -> Array:  # noqa: ARG002
        total = np.zeros(runs["side"].shape[0])
        for m in range(self.start.order):
            levels = np.unique(self.cells[m])
            for name, here in ((f"factor_{m}", self._pull(m, levels)), (f"bias_{m}", 1.0)):
                if name in runs:
                    change = runs[name] - self._begin(name, levels[: runs[name].shape[1]])
                    pull = here if isinstance(here, float) else here[: runs[name].shape[1]]
                    total += (change * pull).reshape(total.shape[0], -1).sum(axis=1)
        return total

    def _pull(self, mode: int, levels: Array) -> Array:
        """The gradient of the values at the canary's cells, by the rows of a mode."""
        design = self.start.design(mode, self.cells)
        return np.stack([design[self.cells[mode] == level].sum(axis=0) for level in levels])

    def _begin(self, name: str, levels: Array) -> Array:
        m = int(name.rpartition("_")[2])
        parts = self.start.factors if name.startswith("factor") else self.start.mode_biases
        return np.asarray(parts[m][levels])


@dataclass(frozen=True, eq=False)
class Length(Change):
    """How far the rows of the canary's levels went from their start, whatever the direction."""

    name: str = "length of the touched rows' change"

    def scores(self, learn: Runs, runs: Runs) -> Array:  # noqa: ARG002
        total = np.zeros(runs["side"].shape[0])
        for m in range(self.start.order):
            name, levels = f"factor_{m}", np.unique(self.cells[m])
            if name in runs:
                change = runs[name] - self._begin(name, levels[: runs[name].shape[1]])
                total += (change**2).reshape(total.shape[0], -1).sum(axis=1)
        return np.sqrt(total)


@dataclass(frozen=True)
class Form:
    """How often a release of this form, numbers aside, was seen on each neighbour."""

    name: str = "form of the release"

    def scores(self, learn: Runs, runs: Runs) -> Array:
        forms, sides = learn["form"], learn["side"]
        weight = {
            form: np.log1p((sides[forms == form] == 1).sum())
            - np.log1p((sides[forms == form] == 0).sum())
            for form in np.unique(forms)
        }
        return np.array([weight.get(form, 0.0) for form in runs["form"]])


@dataclass(frozen=True)
class Linear:
    """Fisher's linear discriminant, with a shrunk covariance."""

    touched: bool

    @property
    def name(self) -> str:
        return f"linear discriminant, {'touched rows' if self.touched else 'whole release'}"

    def scores(self, learn: Runs, runs: Runs) -> Array:
        from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

        known, asked = _features(learn, runs, touched=self.touched)
        if known.shape[1] == 0:
            return np.zeros(asked.shape[0])
        model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(known, learn["side"])
        return np.asarray(model.decision_function(asked))


@dataclass(frozen=True)
class Classifier:
    """A small forest of random trees: it also sees what changes the spread and not the mean."""

    name: str = "random trees, touched rows"

    def scores(self, learn: Runs, runs: Runs) -> Array:
        from sklearn.ensemble import ExtraTreesClassifier

        known, asked = _features(learn, runs, touched=True)
        if known.shape[1] == 0:
            return np.zeros(asked.shape[0])
        forest = ExtraTreesClassifier(_TREES, min_samples_leaf=8, n_jobs=1, random_state=0)
        return np.asarray(forest.fit(known, learn["side"]).predict_proba(asked)[:, 1])


@dataclass(frozen=True, eq=False)
class LikelihoodRatio:
    """The logarithm of the likelihood ratio, where the mechanism and the canary's rows give it away."""

    log_ratio: Callable[[Runs], Array]
    name: str = "likelihood ratio"

    def scores(self, learn: Runs, runs: Runs) -> Array:  # noqa: ARG002
        return self.log_ratio(runs)


def attacks(
    runs: Runs, start: Multilinear | None, cells: Array, log_ratio: Callable[[Runs], Array] | None
) -> list[Attack]:
    """All attacks that can be made on what these runs show."""
    chosen: list[Attack] = [Form()]
    if "prediction" in runs:
        chosen.append(Prediction())
    if start is not None and any(name.startswith("factor") for name in runs):
        chosen += [Change(start, cells), Length(start, cells)]
    if runs["side"].shape[0] >= _FEW:
        chosen += [Linear(touched=True), Linear(touched=False), Classifier()]
    if log_ratio is not None:
        chosen.append(LikelihoodRatio(log_ratio))
    return chosen


def honest_scores(attack: Attack, runs: Runs) -> Array:
    """Scores of runs by an attack that has not learnt from them: each fold by the other ones."""
    count = runs["side"].shape[0]
    scores = np.empty(count)
    # Sides alternate, so blocks of two keep them even.
    fold = np.arange(count) // 2 % _FOLDS
    for k in range(_FOLDS):
        mine = fold == k
        if mine.any():
            scores[mine] = attack.scores(rows_of(runs, ~mine), rows_of(runs, mine))
    return scores


def rows_of(runs: Runs, wanted: Any) -> dict[str, Array]:
    """Some of the runs."""
    return {name: part[wanted] for name, part in runs.items()}


def _features(learn: Runs, runs: Runs, *, touched: bool) -> tuple[Array, Array]:
    """Standardised numbers of both, without those that are the same in all runs to learn from."""
    names = [name for name in learn if name not in ("side", "form")]
    if touched:
        names = [name for name in names if name != "rest"]
    known, asked = (_flat(part, names) for part in (learn, runs))
    # The least difference counts: a last digit that depends on the canary gives it away.
    varies = known.max(axis=0) != known.min(axis=0)
    middle = np.median(known[:, varies], axis=0)
    known, asked = known[:, varies] - middle, asked[:, varies] - middle
    spread = known.std(axis=0)
    scaled = [known / spread, asked / spread]
    return np.clip(scaled[0], -1e6, 1e6), np.clip(scaled[1], -1e6, 1e6)


def _flat(runs: Runs, names: Sequence[str]) -> Array:
    count = runs["side"].shape[0]
    return np.concatenate([np.empty((count, 0)), *(runs[n].reshape(count, -1) for n in names)], axis=1)
