"""Repeat and select: a random number of private runs, of which the best one alone is released.

A run is a candidate chosen at random, its draws, and a draw of its score. The whole is one charge,
made before the first run, whatever number of runs comes out. That number, which candidates were run
and how they scored stay with the holder of the data: what is proven (``proofs/tuning.md``) is about
the best run and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from sfumato.errors import SettingError
from sfumato.privacy.events import MOST_REPETITIONS, Composed, Event, RepeatAndSelect
from sfumato.privacy.ledger import Charge, Draw, Reservation

_T = TypeVar("_T")


class RunCharges(NamedTuple):
    """The draws of one candidate's run, and that of its score, which comes last."""

    fit: tuple[Charge, ...]
    score: Charge


@dataclass(frozen=True)
class SelectBest:
    """The best of Poisson(``rate``) runs, at least one, each of a candidate chosen uniformly.

    ``disjoint``: what neighbours differ in is seen either by a run's fit or by its score, never by both.
    """

    runs: tuple[RunCharges, ...]
    rate: int
    disjoint: bool

    def __post_init__(self) -> None:
        if len(self.runs) < 2:
            raise SettingError(f"choosing takes two candidates or more, got {len(self.runs)}")
        if int(self.rate) != self.rate or not 1 <= self.rate <= MOST_REPETITIONS:
            raise SettingError(
                f"repetitions must be a whole number from 1 to {MOST_REPETITIONS}, got {self.rate}"
            )

    @property
    def event(self) -> RepeatAndSelect:
        costs: dict[Event, None] = {}  # in order, each once: equal noise is accounted once
        for run in self.runs:
            fit = tuple(charge.mechanism.event for charge in run.fit)
            score = run.score.mechanism.event
            costs |= dict.fromkeys(
                [Composed(fit), score] if self.disjoint else [Composed((*fit, score))]
            )
        return RepeatAndSelect(tuple(costs), float(self.rate))


def select_best(draw: Draw, run: Callable[[int, Reservation], tuple[_T, float]]) -> tuple[int, _T]:
    """The candidate with the lowest score, and what its run made.

    ``run(candidate, reservation)`` makes that candidate's draws, in their order, and gives back what it
    made and its score; both have to be functions of what was drawn.
    """
    mechanism, entropy = draw.mechanism, draw.source()
    generator = entropy.generator()
    found: list[tuple[float, int, _T]] = []
    for _ in range(repetitions(mechanism.rate, generator)):
        number = int(generator.integers(len(mechanism.runs)))
        charges = mechanism.runs[number]
        # Nothing more to record: the charge of the whole covers any number of runs.
        reservation = Reservation((*charges.fit, charges.score), entropy, lambda _place, _skipped: None)
        made, score = run(number, reservation)
        reservation.close()
        # Only the best is kept. Among equals the first: as runs are alike, that is as good as a random
        # one of them.
        found = [min([*found, (score, number, made)], key=lambda each: each[0])]
    ((_, number, made),) = found
    return number, made


def repetitions(rate: int, generator: np.random.Generator) -> int:
    """A Poisson number that is not zero, exactly: nothing but whole numbers is drawn."""
    while True:
        number = sum(_poisson_one(generator) for _ in range(rate))
        if number > 0:
            return number


def _poisson_one(generator: np.random.Generator) -> int:
    """Poisson with parameter one: k is proposed with 2^-(k+1) and kept with 2^(k-1) / k!."""
    while True:
        k = 0
        while generator.integers(2):
            k += 1
        if k == 0:
            kept = generator.integers(2) == 0
        else:  # 2^(k-1) / k! is the product of 2/i over i from 3 to k
            kept = all(generator.integers(i) < 2 for i in range(3, k + 1))
        if kept:
            return k
