"""The power method carried out: on a tensor, on a stream that is read again, on one that goes by.

A private plan is calibrated before any data is seen; noise and guarantee both derive from its charges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from sfumato.errors import DataError
from sfumato.fit.loop import Progress, Rounds, loop
from sfumato.fit.plan import PrivatePlan, Promise
from sfumato.kernels.numba.power import exact_sum
from sfumato.privacy.budgets import Budget
from sfumato.privacy.clipping import Clipped, rounded
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.ledger import Charge, Draw, Ledger
from sfumato.privacy.mechanisms import Gaussian, GaussianPerBlock, Noisy
from sfumato.privacy.units import PowerUnit, TensorEntry
from sfumato.records import record
from sfumato.solvers.power.iteration import (
    Kind,
    PowerIteration,
    PowerSettings,
    PowerState,
    Query,
    Whitening,
    ask,
    begin,
    update,
)
from sfumato.solvers.power.moments import Batch, Moment, SumInDoubles, check_sums
from sfumato.solvers.power.sensitivity import InDoubles, printed_multiplier, printed_sensitivity
from sfumato.solvers.power.tensors import TensorSource, answered
from sfumato.solvers.protocol import Info, Run
from sfumato.types import Array

Answer = Callable[[Query], Noisy]

# Noise of each kind of answer, relative to the others. Whitening is at the bottom of all that follows,
# and weights are large beside their noise. Chosen on invented tensors and streams, as were the numbers
# of restarts and iterations of a private fit.
_RELATIVE_NOISE: dict[Kind, float] = {"second moment": 0.5, "directions": 1.0, "weights": 2.0}
_PRINTED_PROOF = (
    "the proof of Theorem 4.1 sums less than advanced composition does; that its noise is enough, and "
    "how much less would be, is in proofs/power.md"
)


# -- the loop -------------------------------------------------------------------------------------


def carry_out_power(
    settings: PowerSettings,
    run: Run,
    answer: Answer,
    progress: Progress | None = None,
    whitening: Whitening | None = None,
) -> PowerState:
    """Ask until all components are found."""
    method = PowerIteration(settings)
    rounds = Rounds(settings.rounds, settings.rounds, progress)
    return loop(method, method.init(run, whitening), rounds, answer).state


def from_tensor(source: TensorSource) -> Answer:
    """Answers of a tensor."""
    return lambda query: Noisy(answered(source, query), 0.0)


def from_stream(batches: Callable[[], Iterable[Batch]], moment: Moment) -> Answer:
    """Answers of a stream that is read once for each question."""

    def answer(query: Query) -> Noisy:
        running = Running(moment, query)
        for batch in batches():
            running.add(batch)
        return Noisy(running.mean(), 0.0)

    return answer


class Running:
    """The sum of the samples' answers to one question; ``before`` samples answered earlier ones.

    Of ``private`` samples nothing is said.
    """

    def __init__(self, moment: Moment, query: Query, before: int = 0, *, private: bool = False) -> None:
        self._moment, self._query, self._before, self._private = moment, query, before, private
        self._total: Array = np.zeros(())
        self._lost: Array = np.zeros(())  # by rounding the total, which a stream of batches adds up
        self.samples = self._counted = 0

    def add(self, batch: Batch) -> None:
        """Add a batch; one that cannot be used leaves the sum as it was."""
        with np.errstate(over="ignore", invalid="ignore"):  # sums are checked
            prepared = self._moment.prepared(batch, self._query.basis)
            part = self._moment.summed(prepared, self._query)
        # In double precision, whatever the samples are in: a stream may have any number of batches.
        with np.errstate(over="ignore", invalid="ignore"):
            total, lost = exact_sum(self._total, part.astype(np.float64))
        if not self._private:
            check_sums(total, batch, self._before + self.samples)
        self._total, self._lost = total, self._lost + lost
        self.samples += batch.shape[0]
        self._counted += self._moment.counted(prepared)

    def mean(self) -> Array:
        if not self._counted:
            raise DataError("no sample of the stream can be used: documents need three words or more")
        return self._sum() / self._counted

    def _sum(self) -> Array:
        total: Array = self._total + self._lost
        return total

    def whole(self) -> Array:
        """The sum, which is zero for no samples at all."""
        rows = self._query.directions.shape
        if self._query.basis is not None:
            rows = (self._query.basis.shape[1], rows[1])
        shape = rows[1:] if self._query.kind == "weights" else rows
        return np.zeros(shape) + self._sum()


# -- privately ------------------------------------------------------------------------------------


@record
@dataclass(frozen=True)
class Decomposition:
    """What will be asked for components, with how much noise: everything but the data.

    Parameters
    ----------
    sensitivity : how much one unit moves the answer to a query.
    count : public number of samples by which sums are divided: of the stream, or of one block of it.
    in_blocks : whether every question is put to samples of its own.
    claimed : of Algorithm 3 as printed, the epsilon that it claims; every direction has noise of its own
        size then.
    """

    settings: PowerSettings
    unit: PowerUnit
    sensitivity: InDoubles | SumInDoubles
    what: str
    count: int = 1
    in_blocks: bool = False
    claimed: float | None = None
    assumptions: tuple[str, ...] = ()
    noise: float = 1.0

    @property
    def printed(self) -> bool:
        return self.claimed is not None

    def with_noise(self, noise: float) -> Decomposition:
        return replace(self, noise=noise)

    def check(self) -> None:
        """Settings were checked when they were made."""

    @property
    def units(self) -> int | None:
        return None

    @property
    def rounds(self) -> int:
        return self.settings.rounds

    def mechanism(self, kind: Kind) -> Gaussian:
        """The noise of an answer; of all directions together."""
        if self.in_blocks:
            return GaussianPerBlock(self.noise)
        if self.printed:  # one query for each direction
            return Gaussian(self.noise / sqrt(self.settings.restarts))
        return Gaussian(self.noise * _RELATIVE_NOISE[kind])

    @property
    def charges(self) -> tuple[Charge, ...]:
        if self.in_blocks:
            return (Charge(f"every block of {self.what}s", self.mechanism("directions")),)
        settings = self.settings
        kinds: list[Kind] = ["second moment"] * settings.subspace
        each: list[Kind] = [*["directions"] * settings.iterations, "weights"]  # type: ignore[list-item]
        return tuple(Charge(kind, self.mechanism(kind)) for kind in kinds + each * settings.components)

    def released(self, query: Query, values: Array, release: Callable[[Clipped], Noisy]) -> Noisy:
        """An answer with its noise, divided by the public number of samples."""
        if self.printed:
            bound = printed_sensitivity(query.directions, query.kind, self.settings.order)
            bound = bound * (self.unit.change if isinstance(self.unit, TensorEntry) else 1.0)
            most = self.sensitivity.most(query) / float(bound.min())
            noisy = release(rounded(values / bound, sqrt(self.settings.restarts), most=most))
            return Noisy(noisy.values * bound, noisy.deviation * float(bound.max()))
        noisy = release(rounded(values, self.sensitivity(query), most=self.sensitivity.most(query)))
        return Noisy(noisy.values / self.count, noisy.deviation / self.count)

    @property
    def in_words(self) -> str:
        settings = self.settings
        sizes = " x ".join(f"{size:,}" for size in settings.sizes)
        return (
            f"{settings.components} components of a tensor of order {settings.order} ({sizes}); "
            f"{settings.restarts} restarts of {settings.iterations} iterations each"
        )

    @property
    def settings_in_words(self) -> tuple[str, ...]:
        return (f"{self.rounds} questions, noise {self.noise:.3g} times sensitivity",)

    def _bounding(self) -> str:
        """What is done to data that lie beyond public bounds."""
        if isinstance(self.unit, TensorEntry):
            return f" on entries cut at {self.unit.most * self.unit.change:g} either way"
        norm = self.unit.norm
        return "" if norm is None else f" on {self.what}s shortened to length {norm:g}"

    @property
    def promise(self) -> Promise:
        """What the components and weights promise; so would all iterates."""
        return Promise(
            unit=str(self.unit).replace("sample", self.what),
            neighbours=self.unit.neighbours.replace("sample", self.what),
            released=("components", "weights"),
            method=f"noisy power iteration of {self.rounds} rounds{self._bounding()}",
            proven=not self.printed,
            proof=_PRINTED_PROOF if self.printed else "proofs/power.md",
            exact=True,
            assumptions=self.assumptions,
            claimed=self.claimed,
        )


def as_printed(task: Decomposition, budget: Budget, run: Run) -> PrivatePlan[Decomposition]:
    """The plan with the noise that the paper prints for a budget."""
    queries = task.settings.rounds * task.settings.restarts
    printed = replace(task, claimed=budget.epsilon, noise=printed_multiplier(budget, queries))
    return PrivatePlan(printed, budget, run)


def answers_with_noise(
    plan: PrivatePlan[Decomposition],
    values: Callable[[Query], Array],
    ask_for: Callable[[Callable[[Draw], Noisy]], Noisy],
) -> Answer:
    """Answers whose noise is charged before the data are looked at; ``ask_for`` is a reservation's."""

    def answer(query: Query) -> Noisy:
        return ask_for(lambda draw: plan.task.released(query, values(query), draw.release))

    return answer


def private_from_tensor(
    plan: PrivatePlan[Decomposition],
    source: TensorSource,
    ledger: Ledger,
    entropy: Entropy,
    progress: Progress | None,
) -> PowerState:
    """Algorithm 3; every draw is charged to the ledger before it is made."""
    return _private(plan, lambda query: answered(source, query), ledger, entropy, progress)


def private_from_stream(
    plan: PrivatePlan[Decomposition],
    batches: Callable[[], Iterable[Batch]],
    moment: Moment,
    ledger: Ledger,
    entropy: Entropy,
    progress: Progress | None,
) -> PowerState:
    """The same on a stream that is read once for each question."""

    def values(query: Query) -> Array:
        running = Running(moment, query, private=True)
        for batch in batches():
            running.add(batch)
        return running.whole()

    return _private(plan, values, ledger, entropy, progress)


def _private(
    plan: PrivatePlan[Decomposition],
    values: Callable[[Query], Array],
    ledger: Ledger,
    entropy: Entropy,
    progress: Progress | None,
) -> PowerState:
    with ledger.reserve(plan.charges, entropy, proven=plan.proven) as reservation:
        answer = answers_with_noise(plan, values, reservation.ask)
        return carry_out_power(plan.task.settings, plan.run, answer, progress)


# -- a stream that goes by ------------------------------------------------------------------------


class Online:
    """Algorithm 2: each question is answered by the next samples, and they are forgotten.

    What comes after the last question is left unread.
    """

    def __init__(
        self,
        settings: PowerSettings,
        run: Run,
        moment: Moment,
        samples: int | None,
        progress: Progress | None = None,
    ) -> None:
        self.state = begin(settings, run.seed)
        self.samples_seen = 0
        self._moment, self._samples, self._progress = moment, samples, progress
        self._running = Running(moment, ask(self.state))

    @property
    def done(self) -> bool:
        return self.state.done

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """What raises an error inside leaves everything as it was: samples that could not be read to
        their end, or a callback, or an interruption. Given again, the same samples count once.
        """
        before = self.state, self.samples_seen, copy(self._running)
        try:
            yield
        except BaseException:
            self.state, self.samples_seen, self._running = before
            raise

    def add(self, batches: Iterable[Batch]) -> None:
        """Use the samples of batches, for as many questions as they answer: all of them or none."""
        with self.all_or_nothing():
            for batch in batches:
                self._add(batch)
                if self.done:
                    break

    def _add(self, batch: Batch) -> None:
        if self._samples is None:
            raise DataError("how many samples answer a question was not said: give blocks of them")
        start = 0
        while start < batch.shape[0] and not self.done:
            stop = min(batch.shape[0], start + self._samples - self._running.samples)
            self._running.add(batch[start:stop])
            self.samples_seen += stop - start  # before the next question, which counts from there
            if self._running.samples == self._samples:
                self._next(Noisy(self._running.mean(), 0.0))
            start = stop

    def add_block(self, block: Iterable[Batch], release: Callable[[Query, Array], Noisy]) -> None:
        """Use a block of samples, whatever their number, for one question.

        Its sum lives no longer than this call: what a block left behind that could not be read to its
        end would count again when it is given again, and the last sum would stay without noise. A block
        counts as used when this call ends without an error, and not before.
        """
        query = ask(self.state)
        running = Running(self._moment, query, private=True)
        for batch in block:
            running.add(batch)
        self._next(release(query, running.whole()))

    def _next(self, answer: Noisy) -> None:
        state = update(self.state, answer)
        # Told before it counts: of a callback that raises an error nobody could say whether the block
        # was used, and given once more it would answer two questions under the charge of one.
        if self._progress is not None:
            self._progress(state.answered, state.settings.rounds, Info(len(state.weights)))
        self.state = state
        if not self.done:
            self._running = Running(self._moment, ask(self.state), self.samples_seen)
