"""Models of several relations, each with a mean and biases of its own, of one private fit."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato.models.doubts import Errors
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_means import OwnMeans
from sfumato.models.own_prior import OwnPrior
from sfumato.records import record
from sfumato.types import Array


@record
@dataclass(frozen=True, eq=False)
class Several:
    """One model for each relation, in the order in which they were given.

    ``own_priors`` say how owners solve their rows, where these stay with them, and ``own_means`` what is
    expected of them by their entries in other relations; those rows are zero in what is released.
    ``errors`` are what intervals are made of, where they were asked for.
    """

    models: tuple[Multilinear, ...]
    own_priors: tuple[OwnPrior | None, ...]
    own_means: tuple[OwnMeans | None, ...] = ()
    errors: tuple[Errors | None, ...] = ()

    @property
    def parameters(self) -> tuple[Array, ...]:
        """All arrays of numbers that a fit changes."""
        return tuple(part for model in self.models for part in model.parameters)

    def means_of(self, part: int) -> OwnMeans | None:
        """How owners find what other relations say of their rows in one, where these say something."""
        return self.own_means[part] if self.own_means else None

    def errors_of(self, part: int) -> Errors | None:
        """What intervals of one relation are made of, where they were asked for."""
        return self.errors[part] if self.errors else None

    def predict(self, part: int, coordinates: Array, *, threads: int = 1) -> Array:
        """Values of one relation at the entries ``coordinates[:, e]``."""
        return self.models[part].predict(coordinates, threads=threads)
