"""Independent Gamma laws of the parameters of a coupled model: pure mathematics, no data.

A Gamma law is given by its shape and its rate; its mean is their ratio. A prior is given by its shape
and its mean, one pair for each block of parameters: the factor of every mode, then the core of every
Tucker part.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np

from sfumato.errors import SettingError
from sfumato.models.clipped_counts import clipped_mean
from sfumato.models.coupled import CoupledModel
from sfumato.records import record
from sfumato.types import Array

_AT_ONCE = 1 << 20  # numbers of a Tucker part's cores that are in memory at a time


@record
@dataclass(frozen=True, eq=False)
class GammaPosterior:
    """What is known of the parameters once data have been seen.

    Parameters
    ----------
    shapes, rates : of every parameter, laid out like a model.
    prior_shapes, prior_means : of the prior of each block.
    means : E[theta], the model that predicts.
    geometric : exp E[log theta], by which a cell's value is shared out among components.
    """

    shapes: CoupledModel
    rates: CoupledModel
    prior_shapes: Array
    prior_means: Array
    means: CoupledModel = field(init=False)
    geometric: CoupledModel = field(init=False)

    def __post_init__(self) -> None:
        for derived in ("means", "geometric"):
            object.__setattr__(self, derived, self.shapes.copy())
        for number, (shapes, rates) in enumerate(
            zip(blocks_of(self.shapes), blocks_of(self.rates), strict=True)
        ):
            self.set(number, shapes, rates)

    def set(self, number: int, shapes: Array, rates: Array, levels: Any = ...) -> None:
        """Give a block, or some levels of it, other laws."""
        from scipy.special import digamma

        models = (self.shapes, self.rates, self.means, self.geometric)
        found = (shapes, rates, shapes / rates, np.exp(digamma(shapes)) / rates)
        for model, values in zip(models, found, strict=True):
            blocks_of(model)[number][levels] = values

    @property
    def parameters(self) -> tuple[Array, ...]:
        return (*self.shapes.parameters, *self.rates.parameters)

    @property
    def prior_divergence(self) -> float:
        """Kullback-Leibler divergence of all parameters' laws from their priors."""
        blocks = zip(
            blocks_of(self.shapes),
            blocks_of(self.rates),
            self.prior_shapes,
            self.prior_shapes / self.prior_means,
            strict=True,
        )
        return float(sum(_divergence(*block).sum() for block in blocks))

    # -- predictions ------------------------------------------------------------------------------

    def predict(
        self,
        part: int,
        coordinates: Array,
        *,
        threads: int = 1,
        bounds: tuple[float, float] | None = None,
    ) -> Array:
        """Posterior mean of a part's values at the entries ``coordinates[:, e]``.

        With ``bounds``, of counts with that mean which are clipped to them.
        """
        return clipped_mean(self.means.predict(part, coordinates, threads=threads), bounds)

    def interval(
        self, part: int, coordinates: Array, level: float = 0.9, *, threads: int = 1
    ) -> tuple[Array, Array]:
        """Bounds between which a cell's value lies with a probability, as much above as below.

        Those of the Gamma law with the same mean and variance.
        """
        if not (isinstance(level, Real) and 0 < level < 1):
            raise SettingError(f"the level of an interval lies between 0 and 1, got {level!r}")
        from scipy.special import gammaincinv

        mean = np.maximum(self.predict(part, coordinates, threads=threads), 1e-300)
        variance = np.maximum(self.variance(part, coordinates, threads=threads), 1e-300)
        low, high = (
            np.asarray(gammaincinv(mean**2 / variance, tail) * (variance / mean))
            for tail in ((1 - level) / 2, (1 + level) / 2)
        )
        return low, high

    def variance(self, part: int, coordinates: Array, *, threads: int = 1) -> Array:
        """Variance of a part's intensity at the entries ``coordinates[:, e]``; exact for this posterior.

        A count that is still to be observed has the variance mean + this.
        """
        squares = self._each(lambda shapes, rates: (shapes / rates) ** 2)
        seconds = self._each(lambda shapes, rates: shapes * (shapes + 1) / rates**2)
        if not self.shapes.parts[part].tucker:  # components are independent
            second = seconds.predict(part, coordinates, threads=threads)
            return np.asarray(second - squares.predict(part, coordinates, threads=threads))
        seconds.cores[part][:] = self.shapes.cores[part] / self.rates.cores[part] ** 2
        of_core = seconds.predict(part, coordinates, threads=threads)
        at_once = max(1, _AT_ONCE // self.means.cores[part].size)
        pieces = [
            self._variance_of_rows(part, coordinates[:, low : low + at_once])
            for low in range(0, coordinates.shape[1], at_once)
        ]
        return np.asarray(of_core + np.concatenate([np.empty(0), *pieces]))

    def _each(self, formula: Any) -> CoupledModel:
        made = self.shapes.copy()
        for out, shapes, rates in zip(
            blocks_of(made), blocks_of(self.shapes), blocks_of(self.rates), strict=True
        ):
            out[:] = formula(shapes, rates)
        return made

    def _variance_of_rows(self, part: int, coordinates: Array) -> Array:
        """Variance of a Tucker part's values with the core at its mean.

        With mean a and variances s of a row, E[row row'] = a a' + diag(s): the second moment is the
        quadratic form of the core with the Kronecker product of these, applied mode by mode.
        """
        core, modes = self.means.core(part), self.means.parts[part].modes
        spread = np.broadcast_to(core, (coordinates.shape[1], *core.shape))
        squared = spread
        for position, (mode, levels) in enumerate(zip(modes, coordinates, strict=True), start=1):
            mean = self.means.factor(mode)[levels]
            variance = mean / self.rates.factor(mode)[levels]
            wide = [slice(None) if axis in (0, position) else None for axis in range(spread.ndim)]
            of_mean = mean[tuple(wide)]
            spread = of_mean * (of_mean * spread).sum(position, keepdims=True) + (
                variance[tuple(wide)] * spread
            )
            squared = of_mean * (of_mean * squared).sum(position, keepdims=True)
        axes = tuple(range(1, spread.ndim))
        return np.asarray(((spread - squared) * core).sum(axis=axes))


def blocks_of(model: CoupledModel) -> tuple[Array, ...]:
    """The parameters block by block (views): the factor of every mode, then the cores."""
    cores = zip(model.parts, model.cores, strict=True)
    return (*model.factors, *(core for part, core in cores if part.tucker))


def _divergence(shapes: Array, rates: Array, prior_shape: float, prior_rate: float) -> Array:
    """Kullback-Leibler divergence of Gamma laws from one Gamma law."""
    from scipy.special import digamma, gammaln

    spread = (shapes - prior_shape) * digamma(shapes) - gammaln(shapes) + gammaln(prior_shape)
    place = prior_shape * np.log(rates / prior_rate) + shapes * (prior_rate / rates - 1)
    return np.asarray(spread + place)
