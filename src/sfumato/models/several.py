"""Models of several relations, each with a mean and biases of its own, of one private fit."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato.models.multilinear import Multilinear
from sfumato.models.own_prior import OwnPrior
from sfumato.records import record
from sfumato.types import Array


@record
@dataclass(frozen=True, eq=False)
class Several:
    """One model for each relation, in the order in which they were given.

    ``own_priors`` say how owners solve their rows, where these stay with them; those rows are zero here.
    """

    models: tuple[Multilinear, ...]
    own_priors: tuple[OwnPrior | None, ...]

    @property
    def parameters(self) -> tuple[Array, ...]:
        """All arrays of numbers that a fit changes."""
        return tuple(part for model in self.models for part in model.parameters)

    def predict(self, part: int, coordinates: Array, *, threads: int = 1) -> Array:
        """Values of one relation at the entries ``coordinates[:, e]``."""
        return self.models[part].predict(coordinates, threads=threads)
