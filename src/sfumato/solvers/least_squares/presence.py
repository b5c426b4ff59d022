"""What the positions of a row's entries say of the row, before any of their values is looked at.

Whoever rates much rates differently, and films that the same people have seen are alike. So rows
shrink towards a linear map of what is known of them from presence alone,

    row_m[i] ~ N(prior mean + features_m[i] . weights_m, 1 / precisions_m)
    weights_m[f, r] ~ N(0, 1 / (precisions_m[r] relevance_m[f]))

whose weights have a normal posterior and whose relevances follow by empirical Bayes: features that say
nothing are shrunk away. The features of level i of mode m, which has n entries, are

- one, and log(1 + n);
- its coordinates in the space of levels that occur together: leading eigenvectors of D^-1/2 A D^-1/2,
  where A counts how often two levels of different modes have an entry in common, and D sums up its rows,
  as far as their eigenvalues are above what entries at random places have;
- the sum of the designs of its entries, over n^0.3: what the model makes of where the entries are. Not
  in small tables, where it would be fitted to itself.

All but the first are standardised. Designs change with the rows of other modes, which do not feel that
they are in this prior: they count as given, and no single bound falls at every sweep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from sfumato.kernels.numba.presence import neighbour_sums
from sfumato.kernels.numba.simd import aligned_zeros, padded_width
from sfumato.models.multilinear import Multilinear
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.types import Array

_SPARE = 4  # vectors beyond those wanted: they make the search for these faster
_ITERATIONS = 10
_DAMPING = 0.3  # of levels with few entries, as a share of the mean number
_DESIGN_POWER = 0.3
_ENTRIES_PER_WEIGHT = 20
_FAR = 3.0  # standard deviations at which coordinates are cut where a fit starts from them
_ROUNDS = 3  # of empirical Bayes in a sweep
_MOST_RELEVANCE = 1e8
_NO_SPREAD = 1e-5  # relative to size: rounding errors are not blown up to features

SEARCH_ROUNDS = 2 + 2 * _ITERATIONS


# -- which levels occur together ------------------------------------------------------------------


@record
@dataclass(frozen=True, eq=False)
class LevelSums:
    """A vector for each level, mode after mode."""

    sums: Array

    def __add__(self, other: LevelSums) -> LevelSums:
        return LevelSums(self.sums + other.sums)


@record
@dataclass(frozen=True, eq=False)
class NeighboursQuery:
    """Ask each level for the sum, over its entries, of the vectors of the other modes' levels."""

    vectors: Array

    def answer(self, site: Site) -> LevelSums:
        return LevelSums(neighbour_sums(self.vectors, site))


@dataclass(frozen=True, eq=False)
class Search:
    """Subspace iteration for leading eigenvectors; in turn vectors and their images are asked about.

    Multiplied by B + B^2, eigenvalues -s of B, which a matrix has beside every s, fall behind. The first
    eigenvector, roots of degrees, says no more than the counts do and is taken out.
    """

    vectors: Array  # without padding, orthonormal
    modes: tuple[int, ...]  # that take part
    part: Array  # one at their levels, zero elsewhere
    degrees: Array | None = None
    image: Array | None = None
    round: int = 0

    @classmethod
    def of(cls, model: Multilinear, prior_means: Sequence[float]) -> Search:
        """A start for as many coordinates as the model has columns; the same for every seed of a fit.

        Modes that shrink towards another value than zero, such as times, would be told apart by who was
        there when: they take no part where two others do.
        """
        modes = tuple(mode for mode, mean in enumerate(prior_means) if mean == 0)
        modes = modes if len(modes) > 1 else tuple(range(model.order))
        part, levels = np.zeros((sum(model.shape), 1)), sum(model.shape)
        for mode in modes:
            part[model.span(mode)] = 1
        columns = max(1, min(max(model.ranks) + _SPARE, levels - 1))
        return cls(np.random.default_rng(0).standard_normal((levels, columns)), modes, part)

    def ask(self) -> NeighboursQuery:
        if self.degrees is None:
            return NeighboursQuery(_padded(self.part))
        asked = self.vectors if self.image is None else self.image
        return NeighboursQuery(_padded(asked * self.part / _roots(self.degrees)))

    def answered(self, seen: LevelSums) -> Search:
        after = replace(self, round=self.round + 1)
        if self.degrees is None:
            degrees = np.array(seen.sums[:, 0])
            return replace(after, degrees=degrees, vectors=self._orthonormal(self.vectors, degrees))
        image = self.part * seen.sums[:, : self.vectors.shape[1]] / _roots(self.degrees)
        if self.image is None:
            return replace(after, image=image)
        return replace(after, vectors=self._orthonormal(self.image + image, self.degrees), image=None)

    def _orthonormal(self, vectors: Array, degrees: Array) -> Array:
        first = self.part[:, 0] * np.sqrt(degrees)
        first /= max(np.linalg.norm(first), 1e-300)
        basis: Array = np.linalg.qr(self.part * vectors - np.outer(first, first @ vectors))[0]
        return basis

    def counts(self) -> Array:
        """Entries of each level: each has met the levels of the modes that take part, but its own."""
        if self.degrees is None:
            raise AssertionError("the search begins with degrees")
        counts: Array = self.degrees / np.maximum(1, len(self.modes) - self.part[:, 0])
        return counts

    def coordinates(self, wanted: int, noise: float) -> Array:
        """The leading eigenvectors in the space that was found, of eigenvalues above ``noise``."""
        if self.image is None:
            raise AssertionError("the search ends with images of its vectors")
        inner = self.vectors.T @ self.image
        values, turn = np.linalg.eigh((inner + inner.T) / 2)
        leading = [number for number in np.argsort(-values)[:wanted] if values[number] > noise]
        found: Array = self.vectors @ turn[:, leading]
        return found


def noise_edge(entries: float, sizes: Sequence[int]) -> float:
    """What the largest eigenvalue stays below where entries lie at random.

    Of a normalised matrix, the sum of the roots of one over the mean counts of its two modes.
    """
    roots = [np.sqrt(size / max(entries, 1)) for size in sizes]
    others, everyone = max(1, len(sizes) - 1), sum(roots)
    return float(max(root + (everyone - root) / others for root in roots))


def _roots(degrees: Array) -> Array:
    roots: Array = np.sqrt(np.maximum(degrees, 1))[:, None]
    return roots


def _padded(vectors: Array) -> Array:
    rows = aligned_zeros((vectors.shape[0], padded_width(vectors.shape[1], np.float64)), np.float64)
    rows[:, : vectors.shape[1]] = vectors
    return rows


# -- the map --------------------------------------------------------------------------------------


class Map(NamedTuple):
    """From features to what rows (and, last, biases) are expected to have beyond their prior means."""

    centre: Array  # of designs
    scale: Array
    weights: Array
    relevance: Array


@dataclass(frozen=True, eq=False)
class Presence:
    """What is known of all levels, mode after mode, and the map of each mode once it is learnt.

    ``designs`` are those of the latest sweep; they are written to as rows are solved.
    """

    damped: Array  # number of entries to the power 0.3
    fixed: Array  # one, log count, coordinates
    designs: Array
    maps: tuple[Map | None, ...]

    @classmethod
    def found(cls, search: Search, model: Multilinear) -> Presence:
        counts = search.counts()
        edge = noise_edge(counts.sum() / model.order, [model.shape[mode] for mode in search.modes])
        together = search.coordinates(max(model.ranks), edge)
        fixed = np.ones((counts.shape[0], 2 + together.shape[1]), model.dtype)
        for mode in range(model.order):
            here = model.span(mode)
            n = counts[here]
            fixed[here, 1] = standardised(np.log1p(n)[:, None], np.ones_like(n))[:, 0]
            scale = np.sqrt(np.maximum(n, 1) + _DAMPING * n.mean())[:, None]
            fixed[here, 2:] = standardised(together[here] / scale, n)
        damped = np.maximum(counts, 1).astype(model.dtype) ** model.dtype.type(_DESIGN_POWER)
        # A row of few entries lies where their designs are, whatever the truth: a map from them is
        # learnt only where entries are many beside its weights.
        weights = sum(rank * (rank + 1) for rank in model.ranks)
        enough = counts.sum() / model.order >= _ENTRIES_PER_WEIGHT * weights
        designs = np.zeros((counts.shape[0], max(model.ranks) if enough else 0), model.dtype)
        return cls(damped, fixed, designs, (None,) * model.order)

    def with_features(self, more: Array) -> Presence:
        """The same with further features of all levels, which somebody else has found out."""
        return replace(self, fixed=np.hstack([self.fixed, more.astype(self.fixed.dtype)]))

    def start(self, model: Multilinear, prior_means: list[float], scale: float) -> None:
        """Add the coordinates to a random start, but for the first mode: its rows are solved at once."""
        for mode in range(1, model.order):
            if prior_means[mode] == 0:
                together = self.fixed[model.span(mode), 2 : 2 + model.ranks[mode]]
                model.factors[mode][:, : together.shape[1]] += scale * np.clip(together, -_FAR, _FAR)

    def see(self, here: slice, design_sums: Array) -> None:
        """Keep the sums of designs at some levels."""
        sums = design_sums[:, : self.designs.shape[1]]
        self.designs[here] = sums / self.damped[here, None]

    def expected(self, model: Multilinear, mode: int, here: slice) -> Array | None:
        """What rows and biases of some levels are expected to have; None while there is no map."""
        found = self.maps[mode]
        return None if found is None else self._features(model, mode, here, found) @ found.weights

    def _features(self, model: Multilinear, mode: int, here: slice, found: Map) -> Array:
        designs = self.designs[here, : model.ranks[mode]].astype(np.float64)
        return np.hstack([self.fixed[here], (designs - found.centre) / found.scale])

    def learnt(
        self, model: Multilinear, mode: int, beyond: Array, precisions: Array
    ) -> tuple[Presence, Array, Array]:
        """Learn a mode's map from what its rows and biases have ``beyond`` their prior means.

        Returns the new presence, what it expects, and of each column the variance that the doubt about
        the map adds to a level's expectation, on average.
        """
        here, before = model.span(mode), self.maps[mode]
        designs = self.designs[here, : model.ranks[mode]].astype(np.float64)
        centre, scale = _moments(designs, np.ones(designs.shape[0]))
        features = np.hstack([self.fixed[here], (designs - centre) / scale])
        relevance = np.ones(features.shape[1]) if before is None else before.relevance
        weights, relevance, doubt = regression(features, beyond, precisions, relevance)
        maps = list(self.maps)
        maps[mode] = Map(centre, scale, weights, relevance)
        return replace(self, maps=tuple(maps)), features @ weights, doubt / precisions


def regression(
    features: Array, targets: Array, precisions: Array, relevance: Array
) -> tuple[Array, Array, float]:
    """Bayesian regression of all columns of the targets at once, by empirical Bayes.

    Returns the weights, the relevances, and the mean over levels of x' C x, where C / precision is the
    covariance of a column's weights.
    """
    columns = targets.shape[1]
    gram, cross = features.T @ features, features.T @ targets
    for _ in range(_ROUNDS):
        covariance = np.linalg.inv(gram + np.diag(relevance))
        weights: Array = covariance @ cross
        size = np.square(weights) @ precisions + columns * np.diag(covariance)
        relevance = np.minimum(columns / size, _MOST_RELEVANCE)
    return weights, relevance, float(np.sum(covariance * gram)) / features.shape[0]


def _moments(x: Array, weights: Array) -> tuple[Array, Array]:
    """Mean and standard deviation down the columns; where there is no spread to speak of, infinity."""
    share = weights / max(weights.sum(), 1e-300)
    centre: Array = share @ x
    spread = np.sqrt(share @ np.square(x - centre))
    size = np.sqrt(share @ np.square(x))
    return centre, np.where(spread > _NO_SPREAD * size, spread, np.inf)


def standardised(x: Array, weights: Array) -> Any:
    """Columns of mean zero and deviation one; of those without any spread, zeros."""
    centre, scale = _moments(x, weights)
    return (x - centre) / scale
