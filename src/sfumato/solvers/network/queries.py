"""What training asks of the examples: where they lie, and which way to go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import numpy as np

from sfumato.kernels.grid import ERROR_STEP, INPUT_STEP
from sfumato.models.network import Architecture
from sfumato.privacy.clipping import Clipped
from sfumato.privacy.ledger import Draw
from sfumato.privacy.mechanisms import Noisy
from sfumato.records import record
from sfumato.sites.examples import Examples
from sfumato.solvers.protocol import NoisyQuery, SumQuery
from sfumato.types import Array

_UP = 1 + 2.0**-20  # so that what is rounded to single precision is not smaller than it was


@record
@dataclass(frozen=True)
class CentreQuery(SumQuery):
    """The sum of all inputs, none longer than ``reach``."""

    reach: float

    def clipped(self, site: Examples) -> Clipped:
        return Clipped(site.summed(), inf, self.reach, INPUT_STEP)


@record
@dataclass(frozen=True, eq=False)
class GradientQuery(NoisyQuery):
    """The sum of clipped gradients over a random batch, over the clip: a unit changes it by one at most.

    ``chunk`` examples are looked at at once.
    """

    architecture: Architecture
    parameters: Array
    clip: float
    chunk: int
    dropout: float = 0.0

    def noisy(self, site: Examples, draw: Draw) -> Noisy:
        return draw.sampled(site.units, lambda *secret: self.clipped(site, *secret))

    def clipped(self, site: Examples, units: Array, secret: np.random.Generator) -> Clipped:
        """What some units add up to; factors of dropout are drawn anew for each of their examples."""
        from sfumato.kernels.jax import double_precision
        from sfumato.kernels.jax.dense import clipped_sums

        total, rows = np.zeros(self.architecture.parameters, np.int64), site.of_units(units)
        seed = int(secret.integers(1 << 62))
        with double_precision():
            lengths = self._lengths(site, rows, seed)
            for number, given in enumerate(self._given(site, rows, seed)):
                own = None if lengths is None else lengths[number]
                sums = clipped_sums(*given, np.float32(self.clip), *self._kind, own)
                total += np.concatenate([np.asarray(part).ravel() for part in sums])
        return Clipped(total, inf, 1.0, INPUT_STEP * ERROR_STEP)

    @property
    def _kind(self) -> tuple[str, str]:
        return self.architecture.activation, self.architecture.loss

    def _given(self, site: Examples, rows: Array, seed: int) -> Iterator[tuple[Any, ...]]:
        """What kernels take, chunk by chunk; the same when it is asked for again."""
        layers = [tuple(map(np.float32, layer)) for layer in self.architecture.layers(self.parameters)]
        generator = np.random.default_rng(seed)
        for chunk in site.chunks(rows, self.chunk):
            yield layers, chunk, self._factors(generator)

    def _factors(self, generator: np.random.Generator) -> list[Array] | None:
        if not self.dropout:
            return None
        shapes = [(self.chunk, size) for size in self.architecture.sizes[:-1]]
        spread = np.float32(sqrt(self.dropout))
        return [1 + spread * generator.standard_normal(shape, np.float32) for shape in shapes]

    def _lengths(self, site: Examples, rows: Array, seed: int) -> list[Array] | None:
        """Where units have several examples: the norms of a unit's gradients together, or the clip."""
        if site.owners is None:
            return None
        from sfumato.kernels.jax.dense import norms

        found = [np.asarray(norms(*given, *self._kind)) for given in self._given(site, rows, seed)]
        each = np.concatenate([*found, np.zeros(0)])[: len(rows)].astype(np.float64)
        owners = site.owners[rows]
        together = np.bincount(owners, each)[owners] * _UP if len(rows) else each
        lengths = np.full(len(found) * self.chunk, self.clip, np.float32)
        lengths[: len(rows)] = np.maximum(together, self.clip * _UP)
        return list(lengths.reshape(len(found), self.chunk))
