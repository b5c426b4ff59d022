"""Algorithm 3 (differentially private dropout, DPD) as Ermis prints it (paper E), for reproduction.

A network of dense layers is trained by noisy steps on minibatches. The noise is called Gaussian dropout;
it is that of a gradient step, and its epsilon is *claimed*: ``docs/papers/ermis.md`` says where the
analysis fails, and :class:`sfumato.PrivateClassifier` is what is proven.

By the paper's lines:

4.      a batch of B examples, all different
5.      the gradient of log p(theta) + N / B times the batch's log-likelihood (Eq. 5.4); prior N(0, I)
6.      the whole gradient is clipped to G
7, 8.   noise N(0, 4 G^2 sigma^2 I) is added to it; a step of eta_t / 2, eta_t = eta_0 / t

``clipping="example"`` is *our reading* of what was meant: every example's gradient is clipped to G
before the sum, as the sensitivity 2 G of a "gradient sum" wants; the sum with its noise is divided by B,
the prior's gradient by N; and t counts passes, the "rounds" of section 8.1.1. No text says so. ``decay``
is the exponent of t, which is 1 in print.

SGLD "with no dropout" (table 8.1) is not defined. Here Langevin's own noise, N(0, eta_t), is added
beside that of privacy; where gradients are means, as above, its variance is eta_t / N.

Choices where nothing is printed: weights begin with normal numbers of variance 2 / inputs, intercepts
with zero. Pixels lie between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from sfumato.checks import check_choice, check_count, check_positive
from sfumato.errors import SettingError
from sfumato.types import Array

Single = NDArray[np.float32]


@dataclass(frozen=True)
class PaperDropout:
    """Settings of Algorithm 3.

    Parameters
    ----------
    hidden : sizes of the hidden layers, of rectified linear units.
    sigma : noise beside the sensitivity; None for neither clipping nor noise.
    passes, each_pass, batch : passes, steps in each, and examples in a step.
    clip, first_step : G and eta_0.
    clipping : "batch" as printed, "example" as meant.
    decay : gamma, the exponent by which steps become shorter.
    apart : whether each layer's gradient is clipped to G by itself.
    langevin : whether Langevin's own noise is added.
    """

    hidden: tuple[int, ...]
    sigma: float | None
    passes: int
    each_pass: int
    batch: int
    clip: float
    first_step: float
    clipping: Literal["batch", "example"] = "batch"
    decay: float = 1.0
    apart: bool = False
    langevin: bool = False

    name: ClassVar[str] = "private dropout as printed by Ermis"
    proven: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_count(passes=self.passes, each_pass=self.each_pass, batch=self.batch)
        for size in self.hidden:
            check_count(hidden=size)
        check_positive(clip=self.clip, first_step=self.first_step)
        check_choice(("batch", "example"), clipping=self.clipping)
        if self.sigma is not None and not self.sigma >= 0:
            raise SettingError(f"sigma must be 0 or more, got {self.sigma!r}")

    @property
    def means(self) -> bool:
        """Whether a step goes along the mean of gradients, rather than their scaled sum."""
        return self.sigma is None or self.clipping == "example"

    def length(self, step: int) -> float:
        """Eta of a step, counted from zero."""
        rounds = 1 + (step // self.each_pass if self.means else step)
        return float(self.first_step / rounds**self.decay)

    def noise_of_step(self, step: int) -> float:
        """Standard deviation of what privacy adds to a parameter in a step."""
        divisor = self.batch if self.means else 1
        return self.length(step) / 2 * 2 * self.clip * (self.sigma or 0.0) / divisor


class Walked(NamedTuple):
    """A network after a pass; the weights go on changing."""

    passes: int
    weights: list[Single]

    def accuracy(self, rows: Single, labels: Array) -> float:
        """Share of examples whose class is right."""
        return float(np.mean(_logits(self.weights, rows).argmax(1) == labels))


def walk(
    rows: Single, labels: Array, classes: int, settings: PaperDropout, seed: int
) -> Iterator[Walked]:
    """The network after every pass; rows are of float32."""
    generator = np.random.default_rng(seed)
    weights = _start((rows.shape[1], *settings.hidden, classes), generator)
    targets = np.eye(classes, dtype=np.float32)[labels]
    batch = min(settings.batch, len(rows))
    for step in range(settings.passes * settings.each_pass):
        chosen = generator.choice(len(rows), batch, replace=False, shuffle=False)
        gradients = _clipped(weights, rows[chosen], targets[chosen], settings, len(rows) / batch)
        _move(weights, gradients, settings, step, len(rows), generator)
        if (step + 1) % settings.each_pass == 0:
            yield Walked((step + 1) // settings.each_pass, weights)


def _start(sizes: Sequence[int], generator: np.random.Generator) -> list[Single]:
    """Weights by layer; the last row of each is the intercepts."""
    found = []
    for into, out in pairwise(sizes):
        layer = generator.standard_normal((into + 1, out), np.float32) * np.float32(sqrt(2 / into))
        layer[-1] = 0
        found.append(layer)
    return found


def _with_one(rows: Single) -> Single:
    return np.concatenate([rows, np.ones((len(rows), 1), np.float32)], axis=1)


def _logits(weights: Sequence[Single], rows: Single) -> Single:
    into = rows
    for layer in weights[:-1]:
        into = np.maximum(into @ layer[:-1] + layer[-1], 0)
    return np.asarray(into @ weights[-1][:-1] + weights[-1][-1])


def _slopes(weights: Sequence[Single], rows: Single, targets: Single) -> list[tuple[Single, Single]]:
    """By layer, what goes in, and the slope of the log-likelihood by what comes out, of each example."""
    inputs = [_with_one(rows)]
    for layer in weights[:-1]:
        inputs.append(_with_one(np.maximum(inputs[-1] @ layer, 0)))
    back = targets - softmax(inputs[-1] @ weights[-1], axis=1)
    found = [(inputs[-1], back)]
    for into, layer in zip(inputs[-2::-1], weights[:0:-1], strict=True):
        active = found[-1][0][:, :-1] > 0
        back = (found[-1][1] @ layer[:-1].T) * active
        found.append((into, back))
    return found[::-1]


def _clipped(
    weights: Sequence[Single], rows: Single, targets: Single, settings: PaperDropout, scale: float
) -> list[Single]:
    """Lines 5 and 6: by layer, the clipped gradient; ``scale`` is N / B."""
    slopes = _slopes(weights, rows, targets)
    if settings.sigma is None:
        return [into.T @ back for into, back in slopes]
    if settings.clipping == "batch":
        sums = [scale * (into.T @ back) - w for (into, back), w in zip(slopes, weights, strict=True)]
        factors = _factors([np.square(each).sum() for each in sums], settings)
        return [factor * each for factor, each in zip(factors, sums, strict=True)]
    squares = [np.square(into).sum(1) * np.square(back).sum(1) for into, back in slopes]
    factors = _factors(squares, settings)
    return [
        into.T @ (back * factor[:, None]) for factor, (into, back) in zip(factors, slopes, strict=True)
    ]


def _factors(squares: Sequence[Array], settings: PaperDropout) -> list[Single]:
    """By layer, what scales a gradient of such a squared norm down to G."""
    whole = np.asarray(sum(squares))
    norms = [np.sqrt(square if settings.apart else whole) for square in squares]
    return [np.asarray(1 / np.maximum(1, norm / settings.clip), np.float32) for norm in norms]


def _move(
    weights: Sequence[Single],
    gradients: Sequence[Single],
    settings: PaperDropout,
    step: int,
    examples: int,
    generator: np.random.Generator,
) -> None:
    """Lines 7 and 8."""
    length = settings.length(step)
    along = length / 2 / (settings.batch if settings.means else 1)
    own = length / (examples if settings.means else 1) if settings.langevin else 0.0
    deviation = sqrt(settings.noise_of_step(step) ** 2 + own)
    shrink = length / 2 / examples if settings.means else 0.0  # the prior; as printed it is clipped
    for layer, gradient in zip(weights, gradients, strict=True):
        np.multiply(layer, np.float32(1 - shrink), out=layer)
        np.add(layer, np.float32(along) * gradient, out=layer)
        if deviation > 0:
            noise = generator.standard_normal(layer.shape, np.float32)
            np.add(layer, np.float32(deviation) * noise, out=layer)
