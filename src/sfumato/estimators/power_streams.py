"""Streams whose moment the power method decomposes: what they have to be, and those that go by."""

from __future__ import annotations

from typing import Any, NamedTuple, SupportsIndex

from sfumato.checks import check_count
from sfumato.data.samples import Samples
from sfumato.errors import DataError, SettingError
from sfumato.fit.plan import PrivatePlan
from sfumato.fit.power import Decomposition, Online
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.guarantee import Guarantee
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.mechanisms import Noisy
from sfumato.solvers.power.iteration import PowerSettings, PowerState, Query
from sfumato.types import Array


def check_rereadable(samples: Samples, settings: PowerSettings) -> None:
    """A stream of which every question reads all."""
    if not samples.rereadable:
        raise SettingError(
            f"an iterator can be read once, and {settings.rounds} questions are put to the whole "
            "stream: give an array, a file, a list or a function that returns an iterator, or let "
            "each question have samples of its own (reuse=False)"
        )


def check_blocks(samples: Samples) -> None:
    """A private stream of which every question reads a part."""
    if not samples.given_blocks:
        raise SettingError(
            "with privacy each question needs a block of samples that was cut beforehand, by time "
            "or at random: give a list or an iterator of arrays, or reuse the whole stream "
            "(reuse=True)"
        )


def samples_each(given: int | None, settings: PowerSettings, count: int | None) -> int:
    """Samples that answer a question: those given, or an equal share of what is there."""
    if given is not None:
        check_count(samples=given)
        return int(given)
    if count is None:
        raise SettingError("say how many samples answer each question: samples=...")
    if count < settings.rounds:
        raise DataError(
            f"{count} samples cannot answer {settings.rounds} questions one after the other: reuse "
            "them (reuse=True), or look for fewer components with fewer iterations"
        )
    return count // settings.rounds


def ended_early(settings: PowerSettings, state: PowerState, each: str) -> DataError:
    """The error for a stream that is shorter than its questions."""
    return DataError(
        f"the stream ended after {state.answered} of {settings.rounds} questions were answered: each "
        f"takes {each}. Give a longer stream, look for fewer components with fewer iterations, or reuse "
        "the samples (reuse=True)"
    )


class OpenStream(NamedTuple):
    """A stream that goes by, without privacy."""

    size: int
    machine: Online
    guarantee: None = None

    def add(self, samples: Samples) -> None:
        self.machine.add(samples.batches())


class PrivateStream(NamedTuple):
    """A stream that goes by in blocks; all of its noise was charged when it began."""

    size: int
    machine: Online
    guarantee: Guarantee
    plan: PrivatePlan[Decomposition]
    noise: Entropy

    @classmethod
    def begin(
        cls, plan: PrivatePlan[Decomposition], machine: Online, ledger: Ledger, entropy: Entropy
    ) -> PrivateStream:
        with ledger.reserve(plan.charges, entropy) as reservation:
            noise = reservation.ask(lambda draw: draw.source())
        guarantee = plan.guarantee(ledger, entropy)
        return cls(plan.task.settings.sizes[0], machine, guarantee, plan, noise)

    def __deepcopy__(self, memo: Any) -> PrivateStream:
        self._check_finished()
        return self  # nothing will be drawn any more

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        self._check_finished()
        return object.__reduce_ex__(self, protocol)

    def _check_finished(self) -> None:
        if not self.machine.done:
            raise SettingError(
                "a private stream that is under way cannot be copied: two copies that read the same "
                "block would draw noise twice for one charge. Copy it when finished_ is True"
            )

    def add(self, samples: Samples) -> None:
        self.add_block(samples.batches())

    def read(self, samples: Samples, settings: PowerSettings) -> None:
        """All questions, each from a block."""
        for block in samples.blocks():
            if self.machine.done:
                break
            self.add_block(block)
        if not self.machine.done:
            raise ended_early(settings, self.machine.state, "a block")

    def add_block(self, block: Any) -> None:
        self.machine.add_block(block, self._release)

    def _release(self, query: Query, total: Array) -> Noisy:
        mechanism = self.plan.task.mechanism(query.kind)
        return self.plan.task.released(
            query, total, lambda clipped: mechanism.release(clipped, self.noise)
        )
