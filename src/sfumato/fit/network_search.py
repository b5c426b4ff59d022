"""Settings of networks chosen by looking at the data, and paid for: see :mod:`sfumato.fit.search`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from sfumato.fit.loop import Progress
from sfumato.fit.network import Learnt, draw_network
from sfumato.fit.plan import PrivatePlan
from sfumato.fit.search import Search
from sfumato.kernels.grid import cut, grid
from sfumato.models.features import Columns, Pictures
from sfumato.privacy.clipping import Clipped
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.ledger import Ledger, Reservation
from sfumato.privacy.selection import select_best
from sfumato.records import record
from sfumato.sites.examples import Examples
from sfumato.solvers.protocol import DivergedError


@record
@dataclass(frozen=True)
class BestNetwork(Search):
    """The best of several networks. A unit's examples are all learnt from, or all held out."""

    held_out: ClassVar[str] = "examples"

    @property
    def disjoint(self) -> bool:
        return True


class FoundNetwork(NamedTuple):
    """The best candidate's number and what it has learnt."""

    best: int
    learnt: Learnt


def search_networks(
    plan: PrivatePlan[BestNetwork],
    features: Sequence[Columns | Pictures],
    examples: Sequence[Examples],
    ledger: Ledger,
    entropy: Entropy,
    progress: Sequence[Progress | None],
) -> FoundNetwork:
    """Charge the whole search, then run it; each candidate has features and examples of its own."""
    search = plan.task
    # Every unit by a coin of its own, which is secret: one more or less moves no other.
    coins = entropy.generator().random(examples[0].units) < search.holdout
    parts = [(each.of(~coins), each.of(coins)) for each in examples]

    def run(number: int, reservation: Reservation) -> tuple[Learnt | None, float]:
        train, held_out = parts[number]
        task = search.plans[number].task
        try:
            seed, tell = search.plans[number].run.seed, progress[number]
            learnt = draw_network(task, seed, features[number], train.copied(), reservation, tell)
        except DivergedError:
            return None, np.inf
        wrong = misses(learnt, features[number], held_out)
        return learnt, float(reservation.ask(lambda draw: draw.release(wrong)).values[0])

    with ledger.reserve(plan.charges, entropy, proven=plan.proven) as reservation:
        best, learnt = reservation.ask(lambda draw: select_best(draw, run))
    if learnt is None:
        raise DivergedError("the private networks left the range of floating-point numbers")
    return FoundNetwork(best, learnt)


def misses(learnt: Learnt, features: Columns | Pictures, held_out: Examples) -> Clipped:
    """How many held-out examples are wrong, or by how much: from -1/2 (none) to 1/2 for each unit."""
    inputs = features.centred(held_out.inputs, learnt.mean)
    said = learnt.network.outputs(inputs)
    if learnt.network.architecture.loss == "classes":
        wrong = (said.argmax(1) != held_out.targets).astype(np.float64)
    else:  # targets lie between -1 and 1
        wrong = np.minimum(((np.clip(said, -1, 1) - held_out.targets) ** 2)[:, 0], 1.0)
    wrong = held_out.by_unit(np.where(np.isnan(wrong), 1.0, wrong)) - 0.5
    total = cut(np.clip(wrong, -0.5, 0.5), grid(0.5)).sum()
    return Clipped(np.array([total]), 0.5, 0.5, grid(0.5), single=True)
