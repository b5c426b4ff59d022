"""Lower bounds on epsilon from what an adversary guessed.

An (epsilon, delta)-private mechanism M and neighbours D, D' have, for every event E,

    P[M(D) in E] <= e^epsilon P[M(D') in E] + delta

so whoever sees E often under one and seldom under the other has a lower bound on epsilon. Rates are
known from counts only; Clopper-Pearson's limits are exact for any number of runs.
"""

from __future__ import annotations

from math import exp, inf, log
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.stats import beta, binom, norm

from sfumato.errors import SettingError
from sfumato.privacy.curves import gaussian_epsilon

_LARGEST = 64.0  # epsilon beyond which nobody asks


class Counts(NamedTuple):
    """How often an event was seen under each of two neighbours; numbers, or arrays of several events."""

    first: Any
    first_runs: int
    second: Any
    second_runs: int

    def swapped(self) -> Counts:
        return Counts(self.second, self.second_runs, self.first, self.first_runs)


def lower_rate(hits: Any, runs: int, error: float) -> Any:
    """What the rate is at least, but for a probability of ``error`` (Clopper and Pearson 1934)."""
    hits = np.asarray(hits)
    return np.where(hits > 0, beta.ppf(error, np.maximum(hits, 1), runs - hits + 1), 0.0)


def upper_rate(hits: Any, runs: int, error: float) -> Any:
    """What the rate is at most, but for a probability of ``error``."""
    return 1.0 - lower_rate(runs - np.asarray(hits), runs, error)


def epsilon_bound(counts: Counts, delta: float, error: float) -> Any:
    """A lower bound on epsilon at ``delta``, wrong with probability ``error`` at most.

    The event is to be more frequent under the first neighbour. Both inequalities that it takes part in
    count, its own and its complement's; they rest on the same two limits, each with half of the error.
    Which event it is must not depend on the runs that were counted.
    """
    often = lower_rate(counts.first, counts.first_runs, error / 2)
    seldom = upper_rate(counts.second, counts.second_runs, error / 2)
    return np.maximum(_log_ratio(often - delta, seldom), _log_ratio(1 - seldom - delta, 1 - often))


def _log_ratio(above: Any, below: Any) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log(np.maximum(above, 0.0)) - np.log(below)
    return np.maximum(np.nan_to_num(found, nan=0.0, neginf=0.0, posinf=inf), 0.0)


def gaussian_bound(counts: Counts, delta: float, error: float) -> float:
    """The same for a mechanism that is known to be Gaussian: one error rate tells its whole curve.

    Two normal laws of distance mu lie behind the two rates. For any other mechanism the number means
    nothing, so that it never decides anything.
    """
    mu = float(gaussian_distance(counts, error))
    return 0.0 if mu <= 0 else gaussian_epsilon(1 / mu, delta) if delta > 0 else inf


def gaussian_distance(counts: Counts, error: float) -> Any:
    """What the distance of the two normal laws is at least."""
    often = lower_rate(counts.first, counts.first_runs, error / 2)
    seldom = upper_rate(counts.second, counts.second_runs, error / 2)
    return norm.ppf(often) - norm.ppf(seldom)


# -- many canaries in one run ---------------------------------------------------------------------


def one_run_p_value(
    canaries: int, guesses: int, correct: int, epsilon: float, delta: float = 0.0
) -> float:
    """Probability that so many guesses are right under (epsilon, delta) privacy, at most.

    Each canary was put in by a coin of its own; an adversary who saw the release guessed some of the
    coins. Without delta the number of right guesses is at most Binomial(guesses, e^eps / (1 + e^eps));
    delta adds what it can at worst (Steinke, Nasr and Jagielski 2023, Theorem 5.2).
    """
    if not 0 <= correct <= guesses <= canaries:
        raise SettingError(
            f"of {canaries} canaries {guesses} cannot have been guessed, {correct} of them rightly"
        )
    chance = 1 / (1 + exp(-epsilon))
    pure = float(binom.sf(correct - 1, guesses, chance))
    if delta == 0 or correct == 0:
        return min(pure, 1.0)
    steps = np.arange(1, correct + 1)
    between = binom.cdf(correct - 1, guesses, chance) - binom.cdf(correct - 1 - steps, guesses, chance)
    return min(1.0, pure + 2 * canaries * delta * float(np.max(between / steps)))


def one_run_bound(canaries: int, guesses: int, correct: int, delta: float, error: float) -> float:
    """The epsilon below which so many right guesses would have been a surprise."""

    def surplus(epsilon: float) -> float:
        return log(max(one_run_p_value(canaries, guesses, correct, epsilon, delta), 1e-300)) - log(error)

    if surplus(0.0) >= 0:
        return 0.0
    return _LARGEST if surplus(_LARGEST) < 0 else float(brentq(surplus, 0.0, _LARGEST, xtol=1e-6))
