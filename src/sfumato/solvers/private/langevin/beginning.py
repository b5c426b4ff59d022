"""What private Langevin dynamics asks before its first step: what is known of each relation by itself.

Normal: private biases (``private/biases.py``), and how often levels of modes occur that these leave out.
Poisson: a constant, and how often levels occur. Relations are asked one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Literal, NamedTuple

import numpy as np

from sfumato.models.posterior import Family
from sfumato.privacy.facts import CoupledFacts, Facts
from sfumato.privacy.ledger import Charge
from sfumato.privacy.mechanisms import Gaussian, Noisy
from sfumato.solvers.private.bias_state import BiasState
from sfumato.solvers.private.biases import PrivateBiases
from sfumato.solvers.private.constant import COUNTED, ConstantQuery, constant_from
from sfumato.solvers.private.known import Known
from sfumato.solvers.private.level_sums import CountsQuery
from sfumato.solvers.private.of_relation import OfRelation
from sfumato.solvers.private.shrinkage import positive_counts
from sfumato.solvers.protocol import Run
from sfumato.types import Array

_COUNTS_SHARE = 0.1  # of what a relation has, for counts that its biases do not ask for
_POISSON_COUNTS = 0.7  # of the same, beside a constant
_LEAST_COUNT = 1e-3


class Asked(NamedTuple):
    """One draw: of which relation, what, and with which noise multiplier."""

    part: int
    asks: Literal["biases", "constant", "counts"]
    mode: int
    charge: Charge


@dataclass(frozen=True)
class Begun:
    """What is known of a relation, all of it released.

    ``bias_variances`` say for each level how far the true bias lies from the one that was released;
    ``counts`` how many entries it has, about; ``scatter`` is the variance of what a model leaves of a
    value, ``own_variance`` that of owners' biases.
    """

    mean: float
    biases: tuple[Array, ...]
    bias_variances: tuple[Array, ...]
    counts: tuple[Array, ...]
    scatter: float
    own_variance: float


@dataclass(frozen=True)
class Beginning:
    """Before anything is known of the levels; of each relation, what was released so far."""

    facts: CoupledFacts
    seed: int
    draws: tuple[Asked, ...]
    biases: tuple[BiasState | None, ...]
    constants: tuple[float | None, ...]
    counts: tuple[dict[int, Array], ...]
    done: int = 0

    @property
    def asked(self) -> Asked:
        return self.draws[self.done]


def _not_counted(facts: Facts, biases: PrivateBiases | None) -> list[int]:
    """Modes whose counts are hidden and not asked for by biases; that of units counts them as alike."""
    if not facts.unit.hides_presence:
        return []
    steps = [] if biases is None else biases.steps(facts)
    asked = {step.mode for step in steps if step.asks == "counts"}
    return [m for m in range(len(facts.modes)) if m not in asked and m != facts.unit_mode]


@dataclass(frozen=True)
class First:
    """The draws before the first step, which have a share of the budget."""

    facts: CoupledFacts
    noise: float
    share: float
    family: Family
    laplace: float | None = None

    def of(self, share: float) -> float:
        """The noise multiplier of a draw with a share of what this part of the fit has."""
        return self.noise / sqrt(self.share * share / len(self.facts.parts))

    def biases(self, v: int) -> PrivateBiases:
        """Private biases of a relation, with the noise that its share leaves."""
        facts = self.facts.parts[v]
        if self.laplace is not None:
            return PrivateBiases(self.laplace * self.noise / self.share * len(self.facts.parts), True)
        whole = PrivateBiases(self.of(1.0))
        share = 1 - _COUNTS_SHARE * bool(_not_counted(facts, whole))
        return PrivateBiases(self.of(share))

    def _left_for_counts(self, biases: PrivateBiases) -> float:
        """Of this part, for counts that biases do not ask for.

        Laplace noise has a price of its own: what counts take comes on top, and calibration sees it.
        """
        if self.laplace is not None:
            return _COUNTS_SHARE * (1 - self.share)
        return 1 - (biases.noise / self.of(1.0)) ** -2

    def _named(self, v: int, label: str) -> str:
        return label if len(self.facts.parts) == 1 else f"{label} of {self.facts.names[v]}"

    def draws(self) -> tuple[Asked, ...]:
        return tuple(draw for v in range(len(self.facts.parts)) for draw in self._of_relation(v))

    def _of_relation(self, v: int) -> list[Asked]:
        facts, made = self.facts.parts[v], list[Asked]()
        if self.family == "normal":
            biases = self.biases(v)
            charges, missing = biases.charges(facts), _not_counted(facts, biases)
            made += [Asked(v, "biases", -1, charge) for charge in charges]
            counts = self._left_for_counts(biases)
        else:
            missing = _not_counted(facts, None)
            counts = _POISSON_COUNTS * bool(missing)
            made.append(Asked(v, "constant", -1, Charge("constant", Gaussian(self.of(1 - counts)))))
        for m in missing:
            each = Gaussian(self.of(max(counts, 1e-12) / len(missing)))
            made.append(Asked(v, "counts", m, Charge(f"entries by {facts.modes[m].name}", each)))
        return [
            draw._replace(charge=replace(draw.charge, label=self._named(v, draw.charge.label)))
            for draw in made
        ]

    # -- the rounds -----------------------------------------------------------------------------

    def init(self, run: Run) -> Beginning:
        parts, normal = self.facts.parts, self.family == "normal"
        biases = [self.biases(v).init(run, facts) if normal else None for v, facts in enumerate(parts)]
        counts = tuple(dict[int, Array]() for _ in parts)
        return Beginning(self.facts, run.seed, self.draws(), tuple(biases), (None,) * len(parts), counts)

    def _known(self, asked: Asked) -> Known:
        """Owners have no part in what is asked here."""
        facts = replace(self.facts.parts[asked.part], local=None)
        return Known(facts, asked.charge.mechanism.noise_multiplier, False)  # type: ignore[attr-defined]

    def ask(self, state: Beginning) -> OfRelation:
        asked = state.asked
        biases = state.biases[asked.part]
        if asked.asks == "biases" and biases is not None:
            return OfRelation(asked.part, self.biases(asked.part).ask(biases))
        known = self._known(asked)
        query = ConstantQuery(known) if asked.asks == "constant" else CountsQuery(known, asked.mode)
        return OfRelation(asked.part, query)

    def update(self, state: Beginning, noisy: Noisy) -> Beginning:
        asked, facts = state.asked, self.facts.parts[state.asked.part]
        v, biases, constants = asked.part, list(state.biases), list(state.constants)
        before, counts = biases[v], [dict(each) for each in state.counts]
        if asked.asks == "biases" and before is not None:
            biases[v], _ = self.biases(v).update(before, noisy)
        elif asked.asks == "constant":
            constants[v] = constant_from(self._known(asked), noisy).mean
            public = noisy.public[1:]
            counts[v] |= {m: np.asarray(each * COUNTED) for m, each in enumerate(public)}
        else:
            likely = facts.expected_entries / facts.sizes[asked.mode]
            average = float(np.clip(noisy.values.mean(), 0.1 * likely, 10 * likely))
            guess = positive_counts(noisy.values, noisy.deviation, average, facts.expected_entries)
            counts[v][asked.mode] = guess.means
        return replace(
            state,
            biases=tuple(biases),
            constants=tuple(constants),
            counts=tuple(counts),
            done=state.done + 1,
        )

    def begun(self, state: Beginning, weight: float) -> tuple[Begun, ...]:
        """All that is known; ``weight`` is what an entry counts on average where units are levels."""
        return tuple(self._begun(state, v, weight) for v in range(len(self.facts.parts)))

    def _begun(self, state: Beginning, v: int, weight: float) -> Begun:
        facts, counts, biases = self.facts.parts[v], dict(state.counts[v]), state.biases[v]
        if biases is None:
            mean = float(state.constants[v] or facts.middle)
            # Of Poisson values as many as their mean; a mean of next to nothing says nothing of them.
            scatter = max(mean, 1e-3 * facts.width)
            nothing = tuple(np.zeros(size) for size in facts.sizes)
            made = Begun(mean, nothing, nothing, (), scatter, 1.0)
        else:
            release, known = biases.release, biases.known
            counts |= {m: each for m, each in enumerate(release.counts) if each is not None}
            usual = [known.assumed(m) for m in range(len(facts.sizes))]
            if facts.local is not None:
                usual[facts.local] = release.own.variance
            variances = tuple(
                np.where(np.isfinite(each), each**2, assumed)
                for each, assumed in zip(release.deviations, usual, strict=True)
            )
            local = facts.local is not None
            scatter = release.own.scatter if local else facts.scatter_share * release.spread**2
            shifts = tuple(np.asarray(each, np.float64) for each in release.biases)
            made = Begun(release.mean, shifts, variances, (), scatter, release.own.variance)
        return replace(made, counts=_counted(facts, counts, weight))


def _counted(facts: Facts, counts: dict[int, Array], weight: float) -> tuple[Array, ...]:
    """Entries of each level; of modes that nothing is known of, the average.

    Biases count otherwise than steps do: units by contributions, and an owner's entries at a level once.
    So counts say how levels differ, and the number of entries how many there are.
    """
    found = [
        np.maximum(counts.get(m, np.ones(size)), _LEAST_COUNT) for m, size in enumerate(facts.sizes)
    ]
    entries = facts.expected_entries
    if facts.entries is None and facts.unit_mode is None and counts:
        entries = max(float(found[m].sum()) for m in counts)
    return tuple(each * (weight * entries / each.sum()) for each in found)


def entry_weight(sizes: Sequence[float], typical: float) -> float:
    """What an entry of units weighs on average, who have so many and weigh by sqrt(typical / entries).

    As if their numbers were exponential, of which the roots are 0.89 of the root of the mean.
    """
    return min(1.0, 0.89 * sqrt(typical / max(float(np.mean(sizes)), 1e-9)))
