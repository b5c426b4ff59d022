"""Events: frozen records of what a mechanism does, all that accounting needs to know of it.

Noise multipliers are noise over sensitivity, the sensitivity being that of the unit's neighbours
(replaced or added and removed); only a sampled event has to know which of the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import expm1
from typing import Any

from sfumato.checks import LEAST_SIZE, MOST_SIZE
from sfumato.errors import SettingError

MOST_REPETITIONS = 500  # more on average than anybody would run
_MOST_TIMES = 10**12  # that an event is repeated
_DEEPEST = 50  # compositions of compositions in a record


@dataclass(frozen=True)
class GaussianEvent:
    """Gaussian noise; multiplier: standard deviation over L2 sensitivity."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        _check(LEAST_SIZE <= float(self.noise_multiplier) <= MOST_SIZE, self)


@dataclass(frozen=True)
class LaplaceEvent:
    """Laplace noise where one coordinate changes; multiplier: scale over its largest change."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        _check(LEAST_SIZE <= float(self.noise_multiplier) <= MOST_SIZE, self)


@dataclass(frozen=True)
class PureEvent:
    """Any mechanism that is epsilon-private."""

    epsilon: float

    def __post_init__(self) -> None:
        _check(0 <= float(self.epsilon) <= MOST_SIZE, self)


@dataclass(frozen=True)
class ApproximateEvent:
    """Any mechanism that is (epsilon, delta)-private."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _check(0 <= float(self.epsilon) <= MOST_SIZE and 0 <= self.delta < 1, self)


@dataclass(frozen=True)
class ZCDPEvent:
    """Any mechanism that is rho-zero-concentrated private (Bun and Steinke 2016)."""

    rho: float

    def __post_init__(self) -> None:
        _check(0 <= float(self.rho) <= MOST_SIZE, self)


@dataclass(frozen=True)
class SampledGaussianEvent:
    """A sum over units that take part independently with probability ``rate``, plus Gaussian noise.

    Multiplier: standard deviation over the largest norm of one unit's contribution, also where the
    unit is replaced.
    """

    noise_multiplier: float
    rate: float
    replaces: bool

    def __post_init__(self) -> None:
        _check(LEAST_SIZE <= float(self.noise_multiplier) <= MOST_SIZE, self)
        _check(LEAST_SIZE <= float(self.rate) <= 1 and self.replaces in (False, True), self)


@dataclass(frozen=True)
class RepeatAndSelect:
    """Runs of a mechanism, a random number of them, of which the best output alone is released.

    The number is Poisson with parameter ``rate``, drawn anew where it is zero. One run costs any two
    neighbours what one of ``events`` does at most; which one may depend on the neighbours, and on a
    choice that is part of the run.
    """

    events: tuple[Event, ...]
    rate: float

    def __post_init__(self) -> None:
        _check(len(self.events) > 0 and LEAST_SIZE <= float(self.rate) <= MOST_REPETITIONS, self)
        for event in self.events:  # neither has divergences that a bound could be made from
            inner = [part for part, _ in flattened(event)]
            _check(not any(isinstance(part, ApproximateEvent | RepeatAndSelect) for part in inner), self)

    @property
    def mean(self) -> float:
        """Runs on average."""
        return self.rate / -expm1(-self.rate)


@dataclass(frozen=True)
class Repeated:
    """The same event several times, each on the result of those before."""

    event: Event
    times: int

    def __post_init__(self) -> None:
        _check(0 <= self.times <= _MOST_TIMES and int(self.times) == self.times, self)


@dataclass(frozen=True)
class Composed:
    """Events one after the other, each may depend on the results of those before."""

    events: tuple[Event, ...]


Event = (
    GaussianEvent
    | LaplaceEvent
    | PureEvent
    | ApproximateEvent
    | ZCDPEvent
    | SampledGaussianEvent
    | RepeatAndSelect
    | Repeated
    | Composed
)


def flattened(event: Event, times: int = 1) -> Iterator[tuple[Event, int]]:
    """The simple events of a composition, with how often each occurs."""
    if isinstance(event, Composed):
        for part in event.events:
            yield from flattened(part, times)
    elif isinstance(event, Repeated):
        yield from flattened(event.event, times * event.times)
    elif times > 0:
        yield event, times


_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        GaussianEvent,
        LaplaceEvent,
        PureEvent,
        ApproximateEvent,
        ZCDPEvent,
        SampledGaussianEvent,
    )
}


def event_to_json(event: Event) -> Any:
    """An event as plain lists and dictionaries."""
    if isinstance(event, Composed):
        return {"kind": "Composed", "events": [event_to_json(part) for part in event.events]}
    if isinstance(event, Repeated):
        return {"kind": "Repeated", "event": event_to_json(event.event), "times": event.times}
    if isinstance(event, RepeatAndSelect):
        runs = [event_to_json(part) for part in event.events]
        return {"kind": "RepeatAndSelect", "events": runs, "rate": event.rate}
    return {"kind": type(event).__name__, **asdict(event)}


def event_from_json(data: Any, depth: int = 0) -> Event:
    """The inverse of :func:`event_to_json`; whatever else it is given is an error in words."""
    try:
        _check(depth < _DEEPEST, "compositions within compositions without end")
        kind, rest = data["kind"], {key: value for key, value in data.items() if key != "kind"}
        if kind == "Composed":
            return Composed(_inner(rest, depth))
        if kind == "Repeated":
            return Repeated(event_from_json(rest["event"], depth + 1), _whole(rest["times"]))
        if kind == "RepeatAndSelect":
            return RepeatAndSelect(_inner(rest, depth), _number(rest["rate"]))
        numbers = {key: value if key == "replaces" else _number(value) for key, value in rest.items()}
        event: Event = _KINDS[kind](**numbers)
    except (AttributeError, KeyError, TypeError, OverflowError) as error:
        raise SettingError(f"not a record of a private event: {str(data)[:200]}") from error
    return event


def _inner(record: dict[str, Any], depth: int) -> tuple[Event, ...]:
    return tuple(event_from_json(part, depth + 1) for part in record["events"])


def _whole(value: Any) -> int:
    number = _number(value)
    if int(number) != number:
        raise TypeError(f"not a whole number: {value!r}")
    return int(number)


def _number(value: Any) -> float:
    """A number of a record, as a float: whole numbers may be larger than any of these."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"not a number: {value!r}")
    return float(value)


def _check(holds: bool, event: object) -> None:
    if not holds:
        raise SettingError(f"such an event cannot be: {event!r}")
