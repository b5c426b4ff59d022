"""Paper E's pictures of digits, and how they are classified: as printed, proven, without privacy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import sqrt
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfumato.data import datasets
from sfumato.estimators.network import PrivateClassifier
from sfumato.fit.request import Privacy
from sfumato.privacy.units import Public
from sfumato.solvers.as_printed.dropout import PaperDropout
from sfumato.solvers.as_printed.ermis_noise import Setting, advanced_composition, concentrated
from sfumato.types import Array

MNIST, DIGITS = "MNIST", "DIGITS"
CLASSES = 10
_TEST_DIGITS = 360  # of 1,797; the thesis has 1,439 + 360, two too many


# -- data -----------------------------------------------------------------------------------------


class Pictures(NamedTuple):
    """Grey levels from 0 to ``top``, and which digit each picture is; some are held out."""

    train: NDArray[Any]
    labels: NDArray[np.int64]
    test: NDArray[Any]
    test_labels: NDArray[np.int64]
    top: float

    def rows(self, *, held_out: bool) -> NDArray[np.float32]:
        """Pixels between 0 and 1, a row for each picture."""
        some = self.test if held_out else self.train
        return (some.reshape(len(some), -1) / self.top).astype(np.float32)

    @property
    def constant(self) -> float:
        """How often the class that is most common in training is right."""
        return float(np.mean(self.test_labels == np.bincount(self.labels).argmax()))


@lru_cache(1)
def pictures(name: str, seed: int) -> Pictures:
    """MNIST as it is split, or DIGITS, split at random."""
    if name == MNIST:
        found = datasets.mnist()
        labels = (found.train_labels.astype(np.int64), found.test_labels.astype(np.int64))
        return Pictures(found.train_images, labels[0], found.test_images, labels[1], 255.0)
    from sklearn.datasets import load_digits

    loaded = load_digits()
    order = np.random.default_rng(seed).permutation(len(loaded.target))
    train, test = order[_TEST_DIGITS:], order[:_TEST_DIGITS]
    images, target = loaded.images, loaded.target.astype(np.int64)
    return Pictures(images[train], target[train], images[test], target[test], 16.0)


# -- as printed -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Thesis:
    """Section 8.1's settings of a data set; ``examples`` are those that its sampling rate implies."""

    name: str
    examples: int
    hidden: tuple[int, ...]
    passes: int
    batch: int
    clip: float
    first_step: float
    delta: float = 1e-4

    @property
    def setting(self) -> Setting:
        """What the recipes of noise are told."""
        steps, rate = self.passes * self.each_pass, self.batch / self.examples
        return Setting(self.name, steps, rate, self.delta)

    @property
    def each_pass(self) -> int:
        return max(1, round(self.examples / self.batch))


THESIS = {
    MNIST: Thesis(MNIST, 60_000, (1000,), 200, 600, 3.0, 0.1),
    DIGITS: Thesis(DIGITS, 2_000, (500,), 100, 100, 2.0, 0.05),  # nu = 0.05, where 100 / 1437 is 0.07
}
Kind = Literal["as printed", "as meant", "as run"]
PRINTED: Kind = "as printed"
MEANT: Kind = "as meant"
RUN: Kind = "as run"
KINDS = (PRINTED, MEANT, RUN)
AC, ZCDP, SGLD, TOGETHER = "DPD-AC", "DPD-zCDP", "SGLD-zCDP", "zCDP, together"
_RECIPES = {AC: advanced_composition, ZCDP: concentrated, SGLD: concentrated, TOGETHER: concentrated}
SIZED_FOR = 380 / 20_000  # of the steps: what the sigmas in the text, 10.88 and 3.23, are for


class Claim(NamedTuple):
    """A row whose epsilon is claimed.

    *As printed* is Algorithm 3. *As meant*: examples are clipped one by one, and steps become shorter
    from pass to pass. *As run* is our guess, which comes nearest to what is printed: the same with steps
    that stay as they are, and noise that is sized for a fiftieth of them.
    """

    kind: Kind
    method: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.method}"

    def sigma(self, thesis: Thesis, epsilon: float) -> float:
        """By the recipe; the epsilons of hidden layers that are clipped apart are added up."""
        setting = thesis.setting
        if self.kind == RUN:
            setting = setting._replace(steps=max(1, round(SIZED_FOR * setting.steps)))
        return _RECIPES[self.method](setting, epsilon / (len(thesis.hidden) if self.apart else 1))

    @property
    def apart(self) -> bool:
        return self.method != TOGETHER

    def settings(self, thesis: Thesis, epsilon: float | None) -> PaperDropout:
        """Without an epsilon nothing is clipped, and there is no noise."""
        return PaperDropout(
            hidden=thesis.hidden,
            sigma=None if epsilon is None else self.sigma(thesis, epsilon),
            passes=thesis.passes,
            each_pass=thesis.each_pass,
            batch=thesis.batch,
            clip=thesis.clip,
            first_step=thesis.first_step,
            clipping="batch" if self.kind == PRINTED else "example",
            decay=0.0 if self.kind == RUN else 1.0,
            apart=self.apart and len(thesis.hidden) > 1,
            langevin=self.method == SGLD and epsilon is not None,
        )


def claim_of(row: str) -> Claim:
    """The claim that a row of this name is."""
    kind, _, method = row.partition(": ")
    named: Any = kind
    return Claim(named, method)


def is_claim(row: str) -> bool:
    return row.partition(": ")[0] in KINDS


def multiplier(settings: PaperDropout) -> float:
    """Noise beside what one picture, added or removed, can change.

    The noise is 2 G sigma. A whole batch's gradient that is clipped to G may turn round, so that 2 G is
    what it changes by; the sum of examples' clipped gradients changes by G. Layers that are clipped
    apart change together.
    """
    each = settings.sigma or 0.0
    alone = 1 if settings.clipping == "batch" else 2
    return alone * each / sqrt(len(settings.hidden) + 1 if settings.apart else 1)


# -- proven, and without privacy ------------------------------------------------------------------


def fitted(
    data: Pictures, hidden: tuple[int, ...], epsilon: float | None, delta: float, seed: int
) -> tuple[PrivateClassifier, float]:
    """A classifier and its accuracy: of pixels with hidden layers, of the scattering without."""
    if epsilon is None:
        privacy = None
    else:
        public = Public(entries=len(data.train))
        privacy = Privacy(epsilon, delta, unit="example", public=public, seed=seed)
    train, test = (part.reshape(len(part), -1) if hidden else part for part in (data.train, data.test))
    model = PrivateClassifier(
        hidden, privacy=privacy, classes=list(range(CLASSES)), bounds=(0.0, data.top), seed=seed
    ).fit(train, data.labels)
    return model, model.score(test, data.test_labels)


def changed(thesis: Thesis, axis: str, value: float) -> Thesis:
    """The settings with one of them changed, as in figures 8.4 and 8.5."""
    hidden = thesis.hidden[0]
    ways: dict[str, Any] = {
        "hidden units": {"hidden": (int(value),)},
        "passes": {"passes": int(value)},
        "G": {"clip": float(value)},
        "batch": {"batch": int(value)},
        "hidden layers": {"hidden": (hidden,) * int(value)},
        "epsilon": {},
    }
    return replace(thesis, **ways[axis])


def alpha_of(noise: float, weights: list[Array]) -> float:
    """The dropout that noise on weights amounts to: the median of its variance over their squares."""
    squares = np.concatenate([np.square(each, dtype=np.float64).ravel() for each in weights])
    return float(noise**2 / max(np.median(squares), np.finfo(np.float64).tiny))
