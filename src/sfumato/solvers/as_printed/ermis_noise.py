"""How much noise paper E's private chapters add: its recipes, of which neither is proven as used.

Both size Gaussian noise for T steps, each on a share nu of the data: one composes by advanced
composition (AC), one by what the paper calls zCDP (B. Ermis, appendix E).
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log, sqrt
from typing import NamedTuple


class Setting(NamedTuple):
    """So many steps, each on this share of the data."""

    name: str
    steps: int
    rate: float
    delta: float


def advanced_composition(setting: Setting, epsilon: float) -> float:
    """Sigma by the recipe for advanced composition, where delta is halved."""
    steps, delta = setting.steps, setting.delta
    spread = sqrt(2 * steps * log(2 / delta))
    return _sigma(setting, _least_root(2 * steps, spread, epsilon))


def concentrated(setting: Setting, epsilon: float) -> float:
    """Sigma by the recipe for zCDP, as it is meant and, it seems, was run."""
    width = log(1.25 / (setting.rate * _delta_of_step(setting)))
    spread = sqrt(setting.steps * log(1 / setting.delta) / width)
    return _sigma(setting, _least_root(setting.steps / (4 * width), spread, epsilon))


def concentrated_as_printed(setting: Setting, epsilon: float) -> float:
    """The same with the divisor outside of the root, as appendix E has it: less noise."""
    width = log(1.25 / (setting.rate * _delta_of_step(setting)))
    spread = sqrt(setting.steps * log(1 / setting.delta)) / width
    return _sigma(setting, _least_root(setting.steps / (4 * width), spread, epsilon))


def _least_root(square: float, linear: float, epsilon: float) -> float:
    """Epsilon of one step, samples not counted: the positive root of a quadratic equation."""
    return (-linear + sqrt(linear**2 + 4 * square * epsilon)) / (2 * square)


def _delta_of_step(setting: Setting) -> float:
    return setting.delta / (2 * setting.steps * setting.rate)


def _sigma(setting: Setting, step: float) -> float:
    """Of the Gaussian mechanism whose step has this epsilon after sampling."""
    own = log((exp(step) - 1) / setting.rate + 1)
    return sqrt(2 * log(1.25 / _delta_of_step(setting))) / own


BY_COMPOSITION: dict[str, Callable[[Setting, float], float]] = {
    "ac": advanced_composition,
    "zcdp": concentrated,
}
