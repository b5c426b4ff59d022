"""A fit of entries that were privatised before they came, by the likelihood of their channels.

The same fit that input perturbation ends with, of whatever mixture of channels and clean entries there
is. It needs no budget: all that it sees of a privatised value is what has left its owner.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import ClassVar

import numpy as np

from sfumato.checks import check_count, given
from sfumato.data.channels import Channel, Geometric, Response
from sfumato.data.privatised import Passed, Privatised
from sfumato.errors import SettingError
from sfumato.models.multilinear import Multilinear
from sfumato.models.shape import Shape
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.sites.received import ReceivedSite
from sfumato.solvers.behind.evidence import (
    Evidence,
    Frame,
    Located,
    MixedEvidence,
    NormalEvidence,
    TableEvidence,
    located,
)
from sfumato.solvers.behind.fitting import Held, Length, Work, usual_length
from sfumato.solvers.behind.scoring import fit_constant
from sfumato.solvers.least_squares import als
from sfumato.solvers.protocol import Finished, Info, Run
from sfumato.types import Array

_LITTLE = 0.1  # noise of a channel, as a share of the values' own, up to which squares are least
_ENOUGH = 2000  # entries, for some that are held out to tell which start is best
_HELD, _HELD_STREAM = 0.1, 0x4E1D  # share of the entries, and the stream of random numbers that picks


@record
@dataclass(frozen=True)
class ReceivedQuery:
    """Ask for everything: it has left its owners, or is the site's own."""

    def answer(self, site: ReceivedSite) -> Privatised:
        return site.received


@dataclass(frozen=True)
class State:
    """``trial`` compares starts on a part of the entries; ``work`` is the fit of all of them."""

    shape: Shape
    run: Run
    received: Privatised | None = None
    trial: Work | None = None
    work: Work | None = None


@record
@dataclass(frozen=True)
class Received:
    """Settings of a fit behind channels.

    Parameters
    ----------
    entries : how many there are, which settles how long it goes on.
    sweeps, starts : of each start, and how many; by default more for small problems.
    """

    entries: int
    sweeps: int | None = None
    starts: int | None = None

    name: ClassVar[str] = "received"
    tolerance: ClassVar[None] = None

    def check(self, shape: Shape) -> None:
        check_count(**given(sweeps=self.sweeps, starts=self.starts))
        als.ALS().check(shape)

    def _length(self, shape: Shape) -> Length:
        usual = usual_length(shape, self.entries)
        return Length(self.sweeps or usual.sweeps, self.starts or usual.starts)

    def _tries(self, shape: Shape) -> bool:
        """Whether starts are compared by entries that are held out of a fit."""
        return self.entries >= _ENOUGH and self._length(shape).starts > 1

    def rounds(self, shape: Shape) -> int:
        length = self._length(shape)
        return 1 + length.rounds + (length.sweeps if self._tries(shape) else 0)

    def init(self, run: Run, shape: Shape) -> State:
        self.check(shape)
        return State(shape, run)

    def ask(self, state: State) -> ReceivedQuery:  # noqa: ARG002
        return ReceivedQuery()

    def update(self, state: State, received: Privatised) -> tuple[State, Info]:
        if state.trial is None and state.work is None:
            return self._begun(state, received), Info(0)
        if state.trial is not None and not state.trial.done:
            trial, info = state.trial.swept()
            after = replace(state, trial=trial)
            return (self._decided(after, received) if trial.done else after), info
        work, info = _begun(state).swept()
        tried = 0 if state.trial is None else state.trial.completed
        return replace(state, work=work), replace(info, completed=info.completed + tried)

    def _begun(self, state: State, received: Privatised) -> State:
        length, frame = self._length(state.shape), frame_of(received)
        if not self._tries(state.shape):
            return replace(state, work=self._work(state, received, frame, length))
        held = np.random.default_rng([state.run.seed, _HELD_STREAM]).random(received.n_entries) < _HELD
        other = received.take(held)
        judge = Held(evidence_of(other, frame._replace(asked=None)), _site(other, state))
        trial = self._work(state, received.take(~held), frame, length, judge)
        return replace(state, trial=trial)

    def _decided(self, state: State, received: Privatised) -> State:
        """All entries, from the start that was best."""
        sweeps, best = self._length(state.shape).sweeps, _begun(state).best
        work = self._work(state, received, frame_of(received), Length(sweeps, 1))
        return replace(state, work=replace(work, first=best.start or 0))

    def _work(
        self,
        state: State,
        received: Privatised,
        frame: Frame,
        length: Length,
        held: Held | None = None,
    ) -> Work:
        evidence, site = evidence_of(received, frame), _site(received, state)
        return Work.begun(state.shape, state.run, length, site, evidence, held)

    def finish(self, state: State) -> Finished[Multilinear]:
        return Finished(_begun(state).best.model)


def _begun(state: State) -> Work:
    work = state.trial if state.work is None else state.work
    if work is None:
        raise SettingError("the first round has to be answered by the data")
    return work


def _site(received: Privatised, state: State) -> Site:
    tensor = received.tensor
    return Site(tensor.with_values(tensor.values.astype(state.shape.dtype)), state.run.threads)


# -- what was received, as evidence ---------------------------------------------------------------


def frame_of(received: Privatised) -> Frame:
    """What all entries share, from all of them: where values lie, and how far apart."""
    bounds, values = received.bounds, received.tensor.values.astype(np.float64)
    parts = [(_passed(passed, bounds), here) for passed, here in received.parts()]
    numbers, noise = np.empty(values.shape), np.empty(values.shape)
    for passed, here in parts:
        numbers[here], noise[here] = _unbiased(passed, values[here], bounds)
    finest = min(0.0 if passed is None else passed.channel.resolution for passed, _ in parts)
    # Values are rounded to their step: no noise level far below can be seen, whatever the channel.
    resolution = max(finest, received.step)
    found = located(numbers, noise, bounds)
    frame = Frame.about(found, bounds, received.step, resolution)
    return frame._replace(asked=_whole_spread(received, frame, found))


def _whole_spread(received: Privatised, frame: Frame, found: Located) -> Located:
    """The spread of clean values that all entries show together, whatever their means are.

    A channel of few outputs says so little of the noise level by itself that the approximations of the
    fit would settle it: means and noise have to make up what is there without any model of means.
    """
    constant = fit_constant(evidence_of(received, frame), received.n_entries, True)
    square = float(frame.variances(constant.level, np.array([constant.mean]))[0])
    return replace(found, mean=constant.mean, spread=sqrt(square))


def evidence_of(received: Privatised, frame: Frame) -> Evidence:
    """What received entries say of their means: each part by its own channel, all in one frame."""
    values, bounds = received.tensor.values.astype(np.float64), received.bounds
    parts = [
        (_evidence(_passed(passed, bounds), values[here], frame, bounds), np.flatnonzero(here))
        for passed, here in received.parts()
    ]
    return parts[0][0] if len(parts) == 1 else MixedEvidence(parts, frame, received.n_entries)


def _passed(passed: Passed | None, bounds: tuple[float, float]) -> Passed | None:
    """A channel whose range is known; None of clean values."""
    if passed is None or not isinstance(passed.channel, Geometric) or passed.channel.high is not None:
        return passed
    return replace(passed, channel=replace(passed.channel, high=bounds[1]))


def _unbiased(passed: Passed | None, values: Array, bounds: tuple[float, float]) -> tuple[Array, float]:
    if passed is None:
        return values, 0.0
    channel: Channel = passed.channel
    which = np.zeros(values.shape, np.int64)
    return channel.unbiased(passed.released(values), which, (bounds[1] - bounds[0]) / 4)


def _evidence(
    passed: Passed | None, values: Array, frame: Frame, bounds: tuple[float, float]
) -> Evidence:
    """Of clean values, and of channels that hide little, a sum of squares: else that of the channel.

    Squares find the means of values of any law. With next to no noise the likelihood of clipped
    normal values, as it is approximated here, was found to do worse: on ratings, and on invented
    values of that very law.
    """
    numbers, noise = _unbiased(passed, values, bounds)
    if passed is None or (_tells_levels(passed, bounds) and noise < _LITTLE * frame.spread**2):
        return NormalEvidence(numbers, noise, frame)
    return TableEvidence(passed.channel, passed.released(values), frame)


def _tells_levels(passed: Passed, bounds: tuple[float, float]) -> bool:
    """Whether it is a response with a bin for every value, so that middles of bins are values."""
    levels = round((bounds[1] - bounds[0]) / passed.step) + 1
    return isinstance(passed.channel, Response) and passed.channel.categories == levels > 2
