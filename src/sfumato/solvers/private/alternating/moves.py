"""How a block moves by its noisy sums: post-processing of what was released, all of it.

Coordinates. The designs d of a block have the second moment S, as far as what was released says. With
the symmetric root S^(1/2), features x = W'd with W = S^(-1/2) Q have unit variance in every direction,
and a row a has the coordinates b = Q' S^(1/2) a, so that a . d = b . x. The rotation Q makes the rows'
own second moment diagonal: its diagonal is the *power* of each coordinate, the variance that it
explains.

A row with n entries, residual variance s, and noise of variance v in (the average of) its sums has the
best linear guess  b = z / (n + s / power + v / (n power)),  where z is the sum of its gradients at zero.
A step of length eta goes that share of the way from where the row is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sfumato.kernels.numba.row_moves import Pull, move_rows, weighted_products
from sfumato.types import Array

_LEAST_DIRECTION = 1e-6  # of a design's variance, over its largest one


class Coordinates(NamedTuple):
    """W, which takes designs to features, what takes rows to coordinates, and the power of each."""

    designs: Array
    rows: Array
    powers: Array


def coordinates_of(designs: Array, rows: Array) -> Coordinates:
    """Those in which designs are white and rows uncorrelated, by the second moments of both."""
    variances, axes = np.linalg.eigh(designs)
    variances = np.maximum(variances, _LEAST_DIRECTION * variances[-1] + 1e-300)
    root = (axes * np.sqrt(variances)) @ axes.T
    powers, turn = np.linalg.eigh(root @ rows @ root)
    return Coordinates((axes / np.sqrt(variances)) @ axes.T @ turn, root @ turn, powers)


def weighted_moment(rows: Array, counts: Array) -> Array:
    """Second moment of rows, by how many entries they have."""
    moment: Array = weighted_products(rows, counts) / counts.sum()
    return moment


@dataclass(frozen=True)
class Block:
    """What is known of a block beside its parameters.

    ``noise``: variance of the noise in the average of the sums so far, by level. ``doubts``: variance
    of each coordinate given all that was released, averaged over entries; ``level_doubts``: what the
    uncertainty of each level adds to the residuals of its entries; ``level_data``: what it would add
    without noise.
    """

    noise: Array | float = 0.0
    doubts: Array | None = None
    level_doubts: Array | None = None
    level_data: Array | None = None


class Moved(NamedTuple):
    """Coordinates and biases after a step, and what is known of the block then."""

    rows: Array
    biases: Array
    block: Block


@dataclass(frozen=True)
class Move:
    """One step of a block.

    ``counts`` and ``scatter``: entries of each level, and variance of what is left of one. ``noise``:
    variance of the noise in this round's sums, by level; ``bias_noise`` the same for biases, infinite
    where they are left alone. ``bias_means`` and ``bias_variances`` are the biases' priors.
    """

    step: float
    counts: Array
    scatter: float
    power: Array
    noise: Array
    bias_weight: float
    bias_means: Array
    bias_variances: Array

    def _averaged(self, block: Block) -> Array:
        """Variance of the noise in the sums' average, after this step."""
        averaged: Array = (1 - self.step) ** 2 * block.noise + self.step**2 * self.noise
        return averaged

    def by_gradients(self, rows: Array, biases: Array, sums: Array, block: Block) -> Moved:
        """From sums of gradients, those of the biases last; rows as deviations from their prior mean."""
        noise = self._averaged(block)
        moved = move_rows(rows, sums, Pull(self.step, self.counts, self.scatter, noise, self.power))
        doubts, data = moved.level_doubts, moved.level_data
        if self.bias_weight:
            biases, bias_doubts = self._nearer_biases(biases, sums[:, -1], noise)
            doubts, data = doubts + bias_doubts, data + self._left(self.bias_variances)
        return Moved(moved.rows, biases, Block(noise, moved.doubts, doubts, data))

    def _nearer_biases(self, biases: Array, sums: Array, noise: Array) -> tuple[Array, Array]:
        """The same of a bias, which is one coordinate with a power and a mean for each level."""
        n, power, weight = self.counts, self.bias_variances, self.bias_weight
        doubt = self.scatter + noise / weight**2 / n
        whole, away = n * power + doubt, biases - self.bias_means
        pull = away + self.step * (power * sums / weight - doubt * away) / whole
        return self.bias_means + pull, doubt * power / whole

    def _left(self, power: Array) -> Array:
        """What entries without noise would leave of such a variance."""
        left: Array = self.scatter * power / (self.counts * power + self.scatter)
        return left
