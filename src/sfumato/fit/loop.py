"""The one loop: ask, get an answer, update. It knows neither data nor noise nor models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from sfumato.solvers.protocol import Info

State = TypeVar("State")
Progress = Callable[[int, int, Info], None]  # rounds done, rounds in all, what the last one reported
Watch = Progress | bool | None  # of an estimator: True for a bar, on a terminal or in a notebook
Answer = Callable[[Any], Any]  # a query's answer, whoever gives it


class Stepping(Protocol[State]):
    """What the loop needs of a solver."""

    def ask(self, state: State) -> Any: ...

    def update(self, state: State, answer: Any) -> tuple[State, Info]: ...


@dataclass(frozen=True)
class Rounds:
    """How often the loop goes round, and how it is watched.

    The first ``asked`` rounds ask; what comes after them is post-processing. ``before`` of ``whole``
    rounds were made by earlier loops of the same fit.
    """

    number: int
    asked: int
    progress: Progress | None = None
    before: int = 0
    whole: int | None = None

    def tell(self, done: int, info: Info) -> None:
        if self.progress is not None:
            self.progress(self.before + done, self.whole or self.number, info)


@dataclass(frozen=True)
class Looped(Generic[State]):
    """The state after the last round, and what each completed sweep or pass reported."""

    state: State
    history: tuple[Info, ...]


def loop(
    solver: Stepping[State],
    state: State,
    rounds: Rounds,
    answer: Answer,
    settled: Callable[[list[Info]], bool] = lambda _: False,
) -> Looped[State]:
    """Go round until the rounds are over, or until their history has settled."""
    history = list[Info]()
    for number in range(rounds.number):
        given = answer(solver.ask(state)) if number < rounds.asked else None
        state, info = solver.update(state, given)
        rounds.tell(number + 1, info)
        if info.completed > len(history):
            history.append(info)
            if settled(history):
                break
    return Looped(state, tuple(history))
