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

from sfumato.types import Array

_LEAST_DIRECTION = 1e-6  # of a design's variance, over its largest one


class Coordinates(NamedTuple):
    """W, which takes designs to features, and what takes rows to their coordinates."""

    designs: Array
    rows: Array


def coordinates_of(designs: Array, rows: Array) -> Coordinates:
    """Those in which designs are white and rows uncorrelated, by the second moments of both."""
    variances, axes = np.linalg.eigh(designs)
    variances = np.maximum(variances, _LEAST_DIRECTION * variances[-1] + 1e-300)
    root = (axes * np.sqrt(variances)) @ axes.T
    turn = np.linalg.eigh(root @ rows @ root)[1]
    return Coordinates((axes / np.sqrt(variances)) @ axes.T @ turn, root @ turn)


def weighted_moment(rows: Array, counts: Array) -> Array:
    """Second moment of rows, by how many entries they have."""
    moment: Array = rows.T @ (rows * counts[:, None]) / counts.sum()
    return moment


@dataclass(frozen=True)
class Block:
    """What is known of a block beside its parameters.

    ``noise``: variance of the noise in the average of the sums so far, by level. ``doubts``: variance
    of each coordinate given all that was released, averaged over entries; ``level_doubts``: what the
    uncertainty of each level adds to the residuals of its entries.
    """

    noise: Array | float = 0.0
    doubts: Array | None = None
    level_doubts: Array | None = None


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

    def _nearer(self, at: Array, sums: Array, noise: Array, power: Array) -> tuple[Array, Array]:
        """A step towards the best linear guess, and what is not known of that; row by row.

        The ridge of a row is (scatter + noise / n) / power: all is multiplied by the power.
        """
        n = self.counts[:, None]
        doubt = self.scatter + noise[:, None] / n
        whole = n * power
        whole += doubt
        moved = power * sums
        moved -= doubt * at
        moved /= whole
        moved *= self.step
        moved += at
        return moved, np.divide(doubt * power, whole, out=whole)

    def by_gradients(self, rows: Array, biases: Array, sums: Array, block: Block) -> Moved:
        """From sums of gradients, those of the biases last; rows as deviations from their prior mean."""
        noise = self._averaged(block)
        moved, doubts = self._nearer(rows, sums[:, : rows.shape[1]], noise, self.power)
        if not self.bias_weight:
            return Moved(moved, biases, self._known(noise, doubts, 0.0))
        pull, bias_doubts = self._nearer(
            (biases - self.bias_means)[:, None],
            sums[:, -1:] / self.bias_weight,
            noise / self.bias_weight**2,
            self.bias_variances[:, None],
        )
        moved_biases = self.bias_means + pull[:, 0]
        return Moved(moved, moved_biases, self._known(noise, doubts, bias_doubts[:, 0]))

    def _known(self, noise: Array, doubts: Array, bias_doubts: Array | float) -> Block:
        average = self.counts @ doubts / self.counts.sum()
        return Block(noise, average, doubts.sum(axis=1) + bias_doubts)
