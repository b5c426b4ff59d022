"""What the loop and the store know of a model, whatever it predicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sfumato.types import Array


class Model(Protocol):
    """Numbers that a fit has found: a CP or Tucker model, a coupled one, a posterior, a network.

    Models are records, so that they can be sent and compared like queries. Their arrays are those of
    their fields.
    """

    @property
    def parameters(self) -> tuple[Array, ...]:
        """All arrays that a fit changes; where a number is not finite, the fit has diverged."""

    @property
    def predict(self) -> Callable[..., Array]:
        """Values at cells, which it is told as this kind of model needs them."""
