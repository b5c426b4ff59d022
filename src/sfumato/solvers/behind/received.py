"""A fit of entries that were privatised before they came, by the likelihood of their channels.

The same fit that input perturbation ends with, of whatever mixture of channels and clean entries there
is. It needs no budget: all that it sees of a privatised value is what has left its owner.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar

import numpy as np

from sfumato.checks import check_count, given
from sfumato.data.channels import Channel, Geometric, Response
from sfumato.data.privatised import Passed, Privatised
from sfumato.models.multilinear import Multilinear
from sfumato.models.shape import Shape
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.sites.received import ReceivedSite
from sfumato.solvers.behind.evidence import (
    Evidence,
    Frame,
    MixedEvidence,
    NormalEvidence,
    TableEvidence,
    located,
)
from sfumato.solvers.behind.fitting import Length, Work, usual_length
from sfumato.solvers.least_squares import als
from sfumato.solvers.protocol import Finished, Info, Run
from sfumato.types import Array

_MOST_LEVELS = 128  # of clean values that are taken for the steps that they are


@record
@dataclass(frozen=True)
class ReceivedQuery:
    """Ask for everything: it has left its owners, or is the site's own."""

    def answer(self, site: ReceivedSite) -> Privatised:
        return site.received


@dataclass(frozen=True)
class State:
    shape: Shape
    run: Run
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

    def rounds(self, shape: Shape) -> int:
        return 1 + self._length(shape).rounds

    def init(self, run: Run, shape: Shape) -> State:
        self.check(shape)
        return State(shape, run)

    def ask(self, state: State) -> ReceivedQuery:  # noqa: ARG002
        return ReceivedQuery()

    def update(self, state: State, received: Privatised) -> tuple[State, Info]:
        if state.work is None:
            tensor = received.tensor
            site = Site(tensor.with_values(tensor.values.astype(state.shape.dtype)), state.run.threads)
            evidence = evidence_of(received)
            work = Work.begun(state.shape, state.run, self._length(state.shape), site, evidence)
            return replace(state, work=work), Info(0)
        work, info = state.work.swept()
        return replace(state, work=work), info

    def finish(self, state: State) -> Finished[Multilinear]:
        if state.work is None:
            raise ValueError("the first round has to be answered by the data")
        return Finished(state.work.best.model)


def evidence_of(received: Privatised) -> Evidence:
    """What received entries say of their means: each part by its own channel, all in one frame."""
    bounds, values = received.bounds, received.tensor.values.astype(np.float64)
    parts = [(_passed(passed, bounds, received.step), here) for passed, here in received.parts()]
    numbers, noise = np.empty(values.shape), np.empty(values.shape)
    for passed, here in parts:
        numbers[here], noise[here] = _unbiased(passed, values[here], bounds)
    channels = [passed.channel for passed, _ in parts if passed is not None]
    resolution = min([channel.resolution for channel in channels], default=0.0)
    frame = Frame.about(located(numbers, noise, bounds), bounds, received.step, resolution)
    evidence = [(_evidence(passed, values[here], frame), np.flatnonzero(here)) for passed, here in parts]
    if len(evidence) == 1:
        return evidence[0][0]
    return MixedEvidence(evidence, frame, received.n_entries)


def _passed(passed: Passed | None, bounds: tuple[float, float], step: float) -> Passed | None:
    """A channel whose range is known; clean values of few levels have passed one that tells all."""
    if passed is not None:
        channel = passed.channel
        if isinstance(channel, Geometric):
            channel = replace(channel, high=bounds[1]) if channel.high is None else channel
        return replace(passed, channel=channel)
    levels = round((bounds[1] - bounds[0]) / step) + 1
    if levels > _MOST_LEVELS or levels < 2:
        return None
    places = bounds[0] + step * np.arange(levels)
    cuts = (places[1:] + places[:-1]) / 2
    return Passed(Response(tuple(cuts.tolist()), inf), bounds, step, tuple(places.tolist()))


def _unbiased(passed: Passed | None, values: Array, bounds: tuple[float, float]) -> tuple[Array, float]:
    if passed is None:
        return values, 0.0
    channel: Channel = passed.channel
    which = np.zeros(values.shape, np.int64)
    return channel.unbiased(passed.released(values), which, (bounds[1] - bounds[0]) / 4)


def _evidence(passed: Passed | None, values: Array, frame: Frame) -> Evidence:
    if passed is None:
        return NormalEvidence(values, 0.0, frame)
    return TableEvidence(passed.channel, passed.released(values), frame)
