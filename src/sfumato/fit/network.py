"""Networks, trained privately: what is planned, and how it is carried out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sfumato.errors import SettingError
from sfumato.fit.loop import Answer, Progress, Rounds, loop
from sfumato.fit.plan import PrivatePlan, Promise
from sfumato.kernels.grid import INPUT_STEP
from sfumato.models.features import Features
from sfumato.models.network import Architecture, Network
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.ledger import Charge, Ledger, Reservation
from sfumato.privacy.mechanisms import Gaussian, Noisy, SampledGaussian
from sfumato.privacy.units import Sample, Unit
from sfumato.records import record
from sfumato.sites.examples import Examples
from sfumato.solvers.network.queries import CentreQuery, GradientQuery
from sfumato.solvers.network.settings import Training
from sfumato.solvers.network.solver import GradientSteps, State
from sfumato.types import Array

_REACH = 1 + 2.0**-20  # of rows before they are centred
_LEAST_SHARE = 1e-3  # of a class, to begin with
_ROW_BY_ROW = (
    "single-precision arithmetic gives an example the same gradient wherever in a batch it lies"
)


@record
@dataclass(frozen=True)
class Learning:
    """A network to be trained on about ``count`` units, which is public; the task of a private plan."""

    architecture: Architecture
    training: Training
    unit: Sample | Unit
    count: int
    noise: float = 1.0
    assumptions: tuple[str, ...] = ()

    def check(self) -> None:
        self.training.check()
        if isinstance(self.unit, Unit) and self.unit.max_entries is not None:
            raise SettingError("a network needs no cap on examples: leave max_entries out")

    def with_noise(self, noise: float) -> Learning:
        return replace(self, noise=noise)

    @property
    def units(self) -> int | None:
        return self.count if isinstance(self.unit, Unit) else None

    @property
    def rounds(self) -> int:
        return len(self.charges)

    @property
    def charges(self) -> tuple[Charge, ...]:
        training = self.training
        step = Charge("sum of clipped gradients over a random batch", self.step)
        steps = (step,) * training.steps
        if training.centre is None:
            return steps
        return Charge("sum of inputs and targets", Gaussian(self.noise * training.centre)), *steps

    @property
    def step(self) -> SampledGaussian:
        return SampledGaussian(self.noise, self.training.rate)

    @property
    def in_words(self) -> str:
        return f"network {self.architecture}"

    @property
    def settings_in_words(self) -> tuple[str, ...]:
        training = self.training
        return (
            f"{training.steps:,} steps of length {training.step_length:.3g}, each on a random "
            f"{training.rate:.3g} of about {self.count:,} units; gradients cut at {training.clip:g}",
        )

    @property
    def promise(self) -> Promise:
        return Promise(
            unit=in_examples(str(self.unit)),
            neighbours=in_examples(self.unit.neighbours),
            released=("parameters", "iterates", "means of inputs and targets"),
            method=f"{self.training.steps:,} noisy gradient steps on random batches",
            proven=True,
            proof="proofs/networks.md",
            exact=True,
            assumptions=(*self.assumptions, _ROW_BY_ROW),
        )


def in_examples(words: str) -> str:
    """What units are called where there are examples, instead of entries or samples of a stream."""
    return (
        words.replace("sample of the stream", "example")
        .replace("sample", "example")
        .replace("entries", "examples")
    )


class Learnt(NamedTuple):
    """A network, the iterates that were kept, and the mean that was taken from its inputs."""

    network: Network
    iterates: tuple[Network, ...]
    mean: Array


def learn_privately(
    plan: PrivatePlan[Learning],
    features: Features,
    examples: Examples,
    ledger: Ledger,
    entropy: Entropy,
    progress: Progress | None = None,
) -> Learnt:
    """Train; every draw is charged to the ledger before it is made."""
    with ledger.reserve(plan.charges, entropy, proven=plan.proven) as reservation:
        return draw_network(plan.task, plan.run.seed, features, examples, reservation, progress)


def draw_network(
    task: Learning,
    seed: int,
    features: Features,
    examples: Examples,
    reservation: Reservation,
    progress: Progress | None = None,
) -> Learnt:
    """Train with draws that were reserved for it; inputs of the examples are written over."""
    outputs = task.architecture.outputs
    noisy = Noisy(np.zeros(features.size + outputs), 0.0)
    if task.training.centre is not None:
        query = CentreQuery(_REACH, outputs)
        noisy = reservation.ask(lambda draw: draw.release(query.clipped(examples)))
    begin = beginning(noisy, task.count, outputs)
    centred = examples.mapped(lambda rows: features.centred(rows, begin.centre))

    def answer(query: GradientQuery) -> Noisy:
        return reservation.ask(lambda draw: query.noisy(centred, draw))

    return _trained(task, seed, answer, begin, progress)


def learn_openly(
    architecture: Architecture,
    training: Training,
    features: Features,
    examples: Examples,
    seed: int,
    progress: Progress | None = None,
) -> Learnt:
    """The same steps without noise, on batches that anybody may know."""
    count = examples.units
    task = Learning(architecture, training, Sample(), count)
    whole = Noisy(examples.summed(architecture.outputs) * INPUT_STEP, 0.0)
    begin = beginning(whole, max(count, 1), architecture.outputs)
    centred = examples.mapped(lambda rows: features.centred(rows, begin.centre))
    entropy = Entropy(seed)

    def answer(query: GradientQuery) -> Noisy:
        batch, generator = task.step.batch(count, entropy), entropy.generator()
        return Noisy(query.clipped(centred, batch, generator).numbers, 0.0)

    return _trained(task, seed, answer, begin, progress)


def _trained(
    task: Learning, seed: int, answer: Answer, begin: Beginning, progress: Progress | None
) -> Learnt:
    steps = GradientSteps(task.architecture, task.training, task.count)
    rounds = Rounds(task.training.steps, task.training.steps, progress)
    start = steps.init(seed, begin.constant)
    state: State = loop(steps, start, rounds, answer).state
    return Learnt(steps.finish(state), steps.samples(state), begin.centre)


class Beginning(NamedTuple):
    """Where training begins: the mean of inputs, and what a constant says (intercepts of outputs)."""

    centre: Array
    constant: Array


def beginning(noisy: Noisy, count: int, outputs: int) -> Beginning:
    """Means of inputs and targets, less by as much as noise is likely to have made them more."""
    means, noise = noisy.values / count, noisy.deviation / count
    inputs, targets = np.split(means, [means.size - outputs])
    if outputs == 1:
        return Beginning(_shrunk(inputs, noise), np.clip(_shrunk(targets, noise), -1, 1))
    # Shares that are not above the noise are as likely to be of its size.
    shares = np.log(np.maximum(targets, max(noise, _LEAST_SHARE)))
    return Beginning(_shrunk(inputs, noise), shares - shares.mean())


def _shrunk(means: Array, noise: float) -> Array:
    square = float(means @ means)
    return np.asarray(means * max(0.0, 1 - means.size * noise**2 / square)) if square > 0 else means
