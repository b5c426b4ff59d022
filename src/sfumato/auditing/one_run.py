"""An audit by a single fit with many canaries, for data too large to be fitted a thousand times.

Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run", 2023: each of many canaries,
units all of them, is put in by a coin of its own. Who sees the release guesses the coins that it tells
most about; that too many guesses are right refutes the promise.

The coins and the noise of the fit under attack are drawn once; the few further fits only teach the
adversary what to look for, with coins of their own. How many coins are guessed has to be settled
beforehand: four numbers are tried, and the error is divided among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.auditing.bounds import one_run_bound, one_run_p_value
from sfumato.auditing.canaries import Canaries, place_canaries
from sfumato.auditing.coin_scores import coin_scores
from sfumato.auditing.subject import Subject, check_common, made_ready, unit_of
from sfumato.auditing.trials import released, seed_from
from sfumato.auditing.verdict import CarriedOut, Promise
from sfumato.auditing.views import View
from sfumato.checks import check_count
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.estimators.base import TensorEstimator
from sfumato.fit.admit import with_labels_of
from sfumato.fit.request import Privacy
from sfumato.processes import each_done
from sfumato.report.colours import ACCENT, FAINT, INK
from sfumato.solvers.protocol import DivergedError
from sfumato.types import Array

Tell = Callable[[str, int, int], None]
_LEAST_CANARIES = 10
_LEAST_REFERENCES = 2
_MOST_CANARIES = 10_000_000
_GUESSED = (1.0, 0.5, 0.2, 0.05)  # shares of the coins that are guessed: each is a try of its own
_CELLS, _COINS, _NOISE = range(3)  # what a seed is for: none of them may follow from another


def audit_one_run(
    estimator: TensorEstimator,
    data: SparseTensor | Sequence[int | Mode],
    *,
    canaries: int = 500,
    references: int = 4,
    delta: float | None = None,
    confidence: float = 0.95,
    bounds: tuple[float, float] = (-1.0, 1.0),
    seed: int | None = 0,
    whole_fits: bool = False,
    processes: int | None = None,
    tell: Tell = lambda _what, _done, _of: None,
) -> OneRunAudit:
    """A lower bound on the epsilon that a private fit really has, from one fit with many canaries.

    It needs ``1 + references`` fits where :func:`audit` needs hundreds, and finds less: with m canaries
    the bound cannot exceed about the logarithm of m / 5, and small epsilons take thousands of canaries.

    Parameters
    ----------
    estimator : TensorEstimator
        With ``privacy=...``: the fit to attack. Nothing is charged to its ledger.
    data : SparseTensor or sequence of int or Mode
        A tensor with bounds, or a public shape, for which data are made up.
    canaries : int
        How many; see :mod:`sfumato.auditing.canaries` for what they are.
    references : int
        Fits that the adversary makes to learn what to look for; they enter no count.
    delta : float or None
        At which epsilon is bounded; by default the budget's. For another one the promise is what the
        accountant says there.
    bounds : pair of float
        Of made-up data.
    seed : int or None
        Of coins and noise; None draws them in secret, which cannot be repeated.
    whole_fits : bool
        Whether input and output perturbation fit as long as ever after their noise is drawn.
    tell : callable
        Hears what is done, how many fits of it, and of how many.
    confidence : float
        With which the bound is to hold.
    processes : int or None
        How many run at once; all cores by default.

    Returns
    -------
    OneRunAudit
        The bound, and whether the promise is refuted.

    Examples
    --------
    >>> import sfumato as sf
    >>> privacy = sf.Privacy(epsilon=2, unit="value", method="bias")
    >>> found = sf.audit_one_run(
    ...     sf.Biases(privacy=privacy), (30, 20), canaries=50, processes=1
    ... )
    >>> 0 <= found.measured <= 2, found.violated
    (True, False)
    """
    check_count(_LEAST_CANARIES, _MOST_CANARIES, canaries=canaries)
    check_count(_LEAST_REFERENCES, references=references)
    check_common(confidence, delta, seed, whole_fits, processes, tell)
    privacy, tensor = made_ready(estimator, data, bounds)
    unit = unit_of(tensor, privacy)
    placed = place_canaries(tensor, unit, canaries, _seed(seed, _CELLS))
    known = _with_public(privacy, placed) if unit.hides_presence else privacy
    subject = Subject.on(estimator, known, placed.tensor, whole_fits=whole_fits)
    promise = subject.promise(delta)
    generator = np.random.default_rng(_seed(seed, _COINS))
    coins = generator.random((1 + references, canaries)) < 0.5
    views = _fitted(subject.estimator, placed, coins, seed, processes, tell)
    scores = coin_scores(placed, views[0], views[1:], coins[1:])
    return OneRunAudit(promise, scores, coins[0], confidence, references, seeded=seed is not None)


def _seed(seed: int | None, purpose: int, number: int = 0) -> int | None:
    return None if seed is None else seed_from(seed, purpose, number)


def _with_public(privacy: Privacy, canaries: Canaries) -> Privacy:
    """The labels of the data, canaries included, and about how many entries there will be, are public.

    Neither depends on coins: labels are those of all canaries, entries those that coins add on average.
    """
    public = with_labels_of(canaries.tensor.modes, privacy.public)
    entries = None if public.entries is None else public.entries + canaries.expected_entries
    return replace(privacy, public=replace(public, entries=entries))


def _fitted(
    estimator: TensorEstimator,
    canaries: Canaries,
    coins: Array,
    seed: int | None,
    processes: int | None,
    tell: Tell,
) -> list[View]:
    """The releases of the fit under attack and of the references, each by coins of its own."""
    jobs = [(estimator, canaries, own, _seed(seed, _NOISE, number)) for number, own in enumerate(coins)]
    made: dict[int, View] = {}
    for number, files in each_done(_release, jobs, processes):
        made[number] = View.of(files)
        tell("one run and its references", len(made), len(jobs))
    return [made[number] for number in range(len(jobs))]


def _release(job: tuple[TensorEstimator, Canaries, Array, int | None]) -> dict[str, bytes]:
    estimator, canaries, coins, noise_seed = job
    try:
        return released(estimator, canaries.data(coins), noise_seed)
    except DivergedError as error:
        raise DivergedError(f"one run has no release to attack: {error}") from error


# -- what was found -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Guesses:
    """So many coins guessed, and how many of them rightly; ``error`` is this try's share of all."""

    canaries: int
    guesses: int
    correct: int
    delta: float
    error: float

    @property
    def bound(self) -> float:
        return one_run_bound(self.canaries, self.guesses, self.correct, self.delta, self.error)

    def to_json(self) -> dict[str, Any]:
        return {
            "guesses": self.guesses,
            "correct": self.correct,
            "epsilon_at_least": self.bound,
            "error": self.error,
        }


@dataclass(frozen=True, eq=False)
class OneRunAudit(CarriedOut):
    """The outcome of an audit by one run. It depends on the data: it is for whoever holds them.

    Parameters
    ----------
    promise : Promise
        What was attacked.
    scores : array
        Higher for canaries whose coins look like heads.
    coins : array
        What they showed.
    confidence : float
        With which the bound holds.
    references : int
        Fits that the adversary made to learn from.
    seeded : bool
        Whether the noise can be repeated.

    Examples
    --------
    >>> import sfumato as sf
    >>> privacy = sf.Privacy(epsilon=2, unit="value", method="bias")
    >>> found = sf.audit_one_run(
    ...     sf.Biases(privacy=privacy), (30, 20), canaries=50, processes=1
    ... )
    >>> found.violated, found.canaries
    (False, 50)
    """

    promise: Promise
    scores: Array
    coins: Array
    confidence: float
    references: int
    seeded: bool

    @property
    def canaries(self) -> int:
        """How many there were."""
        return int(self.coins.size)

    @property
    def tries(self) -> tuple[Guesses, ...]:
        """What each number of guesses gave."""
        numbers = sorted({max(2, round(share * self.canaries)) for share in _GUESSED}, reverse=True)
        error = (1 - self.confidence) / len(numbers)
        return tuple(
            Guesses(self.canaries, number, self.correct(number), self.promise.delta, error)
            for number in numbers
        )

    def correct(self, guesses: int) -> int:
        """How many of the guesses are right: heads for the highest scores, tails for the lowest.

        Parameters
        ----------
        guesses : int
            How many canaries are guessed, from both ends.

        Returns
        -------
        int
            The right ones.
        """
        order = np.argsort(self.scores, kind="stable")
        low, high = order[: guesses // 2], order[self.canaries - (guesses - guesses // 2) :]
        return int(np.count_nonzero(~self.coins[low]) + np.count_nonzero(self.coins[high]))

    @property
    def strongest(self) -> Guesses:
        """The number of guesses with the largest bound."""
        return max(self.tries, key=lambda tried: tried.bound)

    @property
    def measured(self) -> float:
        """What epsilon is at least, with the stated confidence."""
        return self.strongest.bound

    def __str__(self) -> str:
        best = self.strongest
        found = [
            f"  strongest  {best.correct} of {best.guesses} coins guessed rightly",
            f"  canaries   {self.canaries} in one run; {self.references} other fits taught what to "
            "look for",
        ]
        return self._said(found, seeded=self.seeded)

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain data."""
        return {
            **self._outcome(),
            "canaries": self.canaries,
            "references": self.references,
            "seeded": self.seeded,
            "tries": [tried.to_json() for tried in self.tries],
        }

    def picture(self, path: str | PathLike[str]) -> Path:
        """Draw the share of right guesses against their number, beside the most that is allowed.

        Parameters
        ----------
        path : path
            Where to.

        Returns
        -------
        Path
            The file.
        """
        return self._drawn(path, lambda axes: _draw_guesses(axes, self))


def _draw_guesses(axes: Any, audit: OneRunAudit) -> None:
    promise, tries = audit.promise, audit.tries
    numbers = np.unique(np.geomspace(2, audit.canaries, 120).round().astype(int))
    most = np.array([_most_allowed(audit.canaries, int(n), promise, tries[0].error) for n in numbers])
    allowed = most / numbers
    right = np.array([audit.correct(int(n)) for n in numbers]) / numbers
    axes.fill_between(numbers, allowed, 1.0, color=ACCENT, alpha=0.08, linewidth=0)
    axes.plot(numbers, allowed, color=ACCENT, linewidth=2, label=f"the most that {promise} allows")
    axes.plot(numbers, right, color=INK, label="guesses that were right")
    axes.plot(
        [tried.guesses for tried in tries],
        [tried.correct / tried.guesses for tried in tries],
        "o",
        color=INK,
        markersize=5,
        label="numbers of guesses that count",
    )
    axes.axhline(0.5, color=FAINT, linewidth=1, linestyle=(0, (4, 3)), label="guessing")
    axes.set_xscale("log")
    axes.set_xlim(2, audit.canaries)
    axes.set_ylim(min(0.4, float(right.min()) - 0.02), 1.02)
    axes.set_xlabel("coins guessed, the clearest first", color=INK)
    axes.set_ylabel("share of the guesses that were right", color=INK)
    axes.set_title(f"{audit.canaries} canaries in one run", loc="left", fontsize=10, color=INK)
    axes.legend(loc="lower right", frameon=False, fontsize=9)


def _most_allowed(canaries: int, guesses: int, promise: Promise, error: float) -> int:
    """The most right guesses that do not refute a promise."""
    low, high = 0, guesses + 1  # allowed, and not (or not possible)
    while high - low > 1:
        middle = (low + high) // 2
        surprise = one_run_p_value(canaries, guesses, middle, promise.epsilon, promise.delta)
        low, high = (middle, high) if surprise >= error else (low, middle)
    return low
