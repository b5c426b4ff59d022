"""What training asks of the examples: where they lie, and which way to go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from math import hypot, inf, sqrt
from typing import Any

import numpy as np

from sfumato.checks import check_count
from sfumato.kernels.grid import ERROR_STEP, INPUT_STEP, MOST_CHUNK
from sfumato.kernels.numba import dense
from sfumato.models.network import Architecture
from sfumato.privacy.clipping import Clipped
from sfumato.privacy.ledger import Draw
from sfumato.privacy.mechanisms import Noisy
from sfumato.records import record
from sfumato.sites.examples import Examples
from sfumato.solvers.protocol import NoisyQuery, SumQuery
from sfumato.types import Array


@contextmanager
def _kernels() -> Iterator[Any]:
    """Those of JAX where it finds something faster than processors, which have some of their own."""
    from sfumato.kernels.jax import accelerated, double_precision

    if not accelerated():
        yield dense
        return
    with double_precision():
        from sfumato.kernels.jax import dense as on_jax

        yield on_jax


_UP = 1 + 2.0**-20  # so that what is rounded to single precision is not smaller than it was


@record
@dataclass(frozen=True)
class CentreQuery(SumQuery):
    """The sum of all inputs and targets: where examples lie, and what a constant would say of them.

    Examples whose inputs are longer than ``reach`` are left out; there should be none. Targets are one
    number from -1 to 1, or a one for the class (``outputs`` of them).
    """

    reach: float
    outputs: int

    def clipped(self, site: Examples) -> Clipped:
        reach = hypot(self.reach, 1.0) * _UP
        return Clipped(site.summed(self.outputs, self.reach), inf, reach, INPUT_STEP)


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

    def __post_init__(self) -> None:
        check_count(1, MOST_CHUNK, chunk=self.chunk)

    def noisy(self, site: Examples, draw: Draw) -> Noisy:
        return draw.sampled(site.units, lambda *secret: self.clipped(site, *secret))

    def clipped(self, site: Examples, units: Array, secret: np.random.Generator) -> Clipped:
        """What some units add up to; factors of dropout are drawn anew for each of their examples."""
        total, rows = np.zeros(self.architecture.parameters, np.int64), site.of_units(units)
        parts = [part for layer in self.architecture.layers(total) for part in layer]
        with _kernels() as kernels:
            divided = self._divided(site, rows, secret, kernels)
            for given, by in zip(self._given(site, rows, secret, kernels), divided, strict=True):
                kernels.add_clipped_sums(parts, *given, np.float32(self.clip), *self._kind, *by)
        return Clipped(total, inf, 1.0, INPUT_STEP * ERROR_STEP)

    @property
    def _kind(self) -> tuple[str, str]:
        return self.architecture.activation, self.architecture.loss

    def _given(
        self, site: Examples, rows: Array, secret: np.random.Generator, kernels: Any
    ) -> Iterator[tuple[Any, ...]]:
        """What kernels take, chunk by chunk; the same when it is asked for again."""
        layers = [tuple(map(np.float32, layer)) for layer in self.architecture.layers(self.parameters)]
        generator = deepcopy(secret)
        for chunk in site.chunks(rows, self.chunk, kernels.ONE_SIZE):
            yield layers, chunk, self._factors(generator, len(chunk.present))

    def _factors(self, generator: np.random.Generator, number: int) -> list[Array] | None:
        """For so many examples; those of the others of a chunk are drawn as well, and thrown away."""
        if not self.dropout:
            return None
        shapes = [(self.chunk, size) for size in self.architecture.sizes[:-1]]
        spread = np.float32(sqrt(self.dropout))
        drawn = (generator.standard_normal(shape, np.float32) for shape in shapes)
        return [1 + spread * each[:number] for each in drawn]

    def _divided(
        self, site: Examples, rows: Array, secret: np.random.Generator, kernels: Any
    ) -> list[tuple[Array, Array] | tuple[()]]:
        """Where units have several examples, by chunk: what each gradient is divided by, and its share.

        That is the sum of the norms of all gradients of its unit, or the clip; shares of a unit's
        examples come to one at most.
        """
        begins = range(0, len(rows), self.chunk)
        if site.owners is None:
            return [()] * len(begins)
        given = self._given(site, rows, secret, kernels)
        found = [np.asarray(kernels.norms(*each, *self._kind)) for each in given]
        each = np.concatenate([*found, np.zeros(0)]).astype(np.float64)
        owners, own = site.owners[rows], slice(0, len(rows))
        lengths, shares = np.full((2, len(each)), [[self.clip], [0.0]])
        with np.errstate(invalid="ignore", over="ignore"):  # what is not finite adds nothing
            together = np.bincount(owners, each[own], 1)[owners]
            lengths[own] = np.maximum(together, self.clip) * _UP
            shares[own] = each[own] / lengths[own]
            single = lengths.astype(np.float32)
        pieces = [slice(begin, begin + self.chunk) for begin in begins]
        return [(single[piece], shares[piece]) for piece in pieces]
