"""How well a network predicts examples that it has not seen; for the eyes of who holds them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sfumato.errors import DataError
from sfumato.metrics import calibration_error, rmse
from sfumato.models.features import as_numbers, places_of
from sfumato.types import Array

if TYPE_CHECKING:
    from rich.console import Group

_LEAST = 1e-12  # probability that is told from zero
FOR_YOU_ALONE = "These are for you alone, not for release: no guarantee covers them."


@dataclass(frozen=True)
class Measured:
    """Measures by name, of the network and of a constant: the shares of classes, or the mean."""

    examples: int
    network: dict[str, float]
    constant: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "for_release": False}


def measured_classes(chances: Array, classes: Any, said: Any, before: Any) -> Measured:
    """Of probabilities for examples; ``said`` are their classes, ``before`` those of training."""
    places, trained = places_of(said, classes), places_of(before, classes)
    known = places >= 0
    if not known.any():
        raise DataError("no example of the test file is of one of the classes")
    shares = np.bincount(trained[trained >= 0], minlength=len(classes)) / max((trained >= 0).sum(), 1)
    constant = np.broadcast_to(shares, (int(known.sum()), len(classes)))
    return Measured(
        int(known.sum()),
        _of_classes(chances[known], places[known]),
        _of_classes(constant, places[known]),
    )


def _of_classes(chances: Array, places: Array) -> dict[str, float]:
    likely = chances[np.arange(len(places)), places]
    return {
        "accuracy": float((chances.argmax(1) == places).mean()),
        "negative log likelihood": float(-np.log(np.maximum(likely, _LEAST)).mean()),
        "expected calibration error": calibration_error(places, chances),
    }


def measured_numbers(predicted: Array, said: Any, before: Any) -> Measured:
    """Of numbers predicted for examples."""
    numbers, trained = as_numbers(said), as_numbers(before)
    known, mean = np.isfinite(numbers), trained[np.isfinite(trained)]
    if not known.any():
        raise DataError("no example of the test file has a number to compare with")
    constant = np.full(int(known.sum()), mean.mean() if mean.size else 0.0)
    return Measured(
        int(known.sum()),
        _of_numbers(numbers[known], predicted[known]),
        _of_numbers(numbers[known], constant),
    )


def _of_numbers(numbers: Array, predicted: Array) -> dict[str, float]:
    error, spread = rmse(numbers, predicted), float(numbers.std())
    return {"RMSE": error, "R2": 1 - (error / spread) ** 2 if spread > 0 else float(error == 0)}


def measured_table(found: Measured) -> Group:
    """Measures to print."""
    from rich.console import Group

    from sfumato.report.text import plain_table

    table = plain_table("", *found.network)
    for name, each in {"constant, not private": found.constant, "network": found.network}.items():
        table.add_row(name, *(f"{number:.4f}" for number in each.values()))
    return Group("", f"{found.examples:,} other examples", table, "", FOR_YOU_ALONE)
