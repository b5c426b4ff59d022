"""Iterates of private Langevin dynamics that were kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sfumato.models.several import Several
from sfumato.records import record
from sfumato.types import Array


@record
@dataclass(frozen=True, eq=False)
class PrivateSamples:
    """Models of some of the last steps, one as private as all of them together.

    Where noise is as large as privacy asks for they are no samples of the posterior: ``temperatures``
    are the least, the median and the largest ratio, over rows, of the variance of noise to what samples
    would need. Where that is one or less, noise was added up to one. Nothing is promised of how far they
    spread.
    """

    models: tuple[Several, ...]
    temperatures: tuple[float, float, float]

    @property
    def parameters(self) -> tuple[Array, ...]:
        return tuple(array for model in self.models for array in model.parameters)

    def predict(self, part: int, coordinates: Array, *, threads: int = 1) -> Array:
        """Mean over the samples of one relation's values at the entries ``coordinates[:, e]``."""
        made = [model.predict(part, coordinates, threads=threads) for model in self.models]
        mean: Array = np.mean(made, axis=0)
        return mean
