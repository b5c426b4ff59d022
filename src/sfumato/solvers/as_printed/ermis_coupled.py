"""Paper E's Algorithms 1 and 2 as a private method of several relations: claimed, never proven.

Each relation is a site. Factors of modes that several relations have are shared; at *site level* those
of the local mode stay where they are, unclipped and without noise, at *user level* all are noised. The
whole run is one draw, charged at the epsilon that the paper claims for it: why that does not hold is in
``docs/papers/ermis.md``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from sfumato.errors import SettingError
from sfumato.models.multilinear import CPModel
from sfumato.models.several import Several
from sfumato.privacy.events import ApproximateEvent, Event
from sfumato.privacy.facts import CoupledFacts
from sfumato.privacy.ledger import Charge, Draw
from sfumato.privacy.units import Entry, Value
from sfumato.records import record
from sfumato.sites.several import RelationSites
from sfumato.solvers.as_printed.ermis import PaperLangevin, samples
from sfumato.solvers.protocol import DivergedError, Finished, Info, NoisyQuery, Run
from sfumato.types import Array

_BELOW = 0.999  # of the claimed delta, so that accounting at that delta has room for its rounding


@record
@dataclass(frozen=True)
class ClaimedSteps:
    """A run that a paper claims to be private."""

    epsilon: float
    delta: float

    @property
    def event(self) -> Event:
        return ApproximateEvent(self.epsilon, self.delta)


@dataclass(frozen=True)
class PrintedStepsQuery(NoisyQuery):
    """Ask for the factors after all steps, each made as printed."""

    settings: PaperLangevin
    shared: tuple[str, ...]

    def noisy(self, site: RelationSites, draw: Draw) -> tuple[tuple[Array, ...], ...]:
        seed = int(draw.stream().integers(2**63))
        tensors = [part.tensor for part in site.parts]
        last = None
        for sample in samples(tensors, self.shared, self.settings, seed):
            last = sample
        if last is None or last.passes < self.settings.passes:
            raise DivergedError("the steps as printed left the range of floating-point numbers")
        return tuple(
            tuple(factors[mode.name].copy() for mode in tensor.modes)
            for factors, tensor in zip(last.sites, tensors, strict=True)
        )


@dataclass(frozen=True)
class State:
    facts: CoupledFacts
    factors: tuple[tuple[Array, ...], ...] = ()


@record
@dataclass(frozen=True)
class PaperCoupled:
    """Settings of Algorithms 1 and 2; ``steps`` are those of :class:`PaperLangevin`.

    Epsilon is one over ``noise``, which calibration finds, and the level follows from whether rows are
    local.
    """

    steps: PaperLangevin = field(default_factory=PaperLangevin)
    delta: float = 1e-3
    noise: float = 1.0

    name: ClassVar[str] = PaperLangevin.name
    proof: ClassVar[str] = "docs/papers/ermis.md"
    proven: ClassVar[bool] = False
    exact: ClassVar[bool] = False
    always_fits: ClassVar[tuple[str, ...]] = ()

    def check(self, facts: CoupledFacts) -> None:
        if not isinstance(facts.unit, Entry | Value):
            raise SettingError(
                "the paper's analyses are about one record: use the unit 'entry', or the proven analysis"
            )
        if not 0 < self.delta < 1:
            raise SettingError("the paper's recipes need a delta above zero, such as 1e-3")
        if any(part.shape.kind != "cp" for part in facts.parts):
            raise SettingError("the paper's private algorithms are of CP models")

    def charges(self, facts: CoupledFacts) -> tuple[Charge, ...]:  # noqa: ARG002
        label = f"all steps (claimed: paper E, Algorithm {self.steps.algorithm})"
        return (Charge(label, ClaimedSteps(1 / self.noise, _BELOW * self.delta)),)

    def rounds(self, facts: CoupledFacts) -> int:  # noqa: ARG002
        return 1

    def assumes(self, facts: CoupledFacts) -> tuple[str, ...]:  # noqa: ARG002
        return ("the paper's proof, which does not hold", "neither mean nor biases are fitted")

    def in_words(self, facts: CoupledFacts) -> tuple[str, ...]:
        made = self.settings(facts)
        return (f"{made.level} level, {made.composition} recipe, {made.passes} passes of {made.batch}",)

    def adds_up(self, facts: CoupledFacts) -> bool:  # noqa: ARG002
        return False

    def settings(self, facts: CoupledFacts) -> PaperLangevin:
        local = any(part.local is not None for part in facts.parts)
        return replace(
            self.steps,
            epsilon=1 / self.noise,
            delta=self.delta,
            level="site" if local else "user",
            rank=facts.parts[0].shape.ranks[0],
        )

    def shared(self, facts: CoupledFacts) -> tuple[str, ...]:
        """Modes whose factors leave the sites: those of several relations, but never local ones."""
        names = Counter(mode.name for part in facts.parts for mode in part.modes)
        local = {part.modes[part.local].name for part in facts.parts if part.local is not None}
        kept = [name for name in names if name not in local]
        return tuple(name for name in kept if names[name] > 1) or tuple(kept)

    def init(self, run: Run, facts: CoupledFacts) -> State:  # noqa: ARG002
        self.check(facts)
        return State(facts)

    def ask(self, state: State) -> PrintedStepsQuery:
        return PrintedStepsQuery(self.settings(state.facts), self.shared(state.facts))

    def update(self, state: State, released: Any) -> tuple[State, Info]:
        return replace(state, factors=released), Info(1)

    def finish(self, state: State) -> Finished[Several]:
        models = tuple(
            CPModel.from_factors(
                factors, mean=0.0, biases=[np.zeros(factor.shape[0]) for factor in factors]
            )
            for factors in state.factors
        )
        return Finished(Several(models, (None,) * len(models)))
