"""Gibbs sweeps over noisy counts: entries a second and core, on planted data of MovieLens 100K's size.

Seconds are those of the processor, of one thread: what others do on the machine is left out.
"""

from __future__ import annotations

from time import process_time
from typing import Any

import numpy as np

import sfumato as sf
from benchmarks.report import Figure, say
from sfumato.data.channels import Geometric, Response
from sfumato.data.privatised import Passed, Privatised
from sfumato.sites.coupled import CoupledSite
from sfumato.solvers.coupled.shape import CoupledShape
from sfumato.solvers.protocol import Run

SHAPE, RANK, ENTRIES = (943, 1682), 3, 90_570
BAR = 7.0  # million entries a second and core, of five levels
RANGE = (0.0, 4.0)
CHANNELS = {
    "five levels, response": Passed(
        Response((0.5, 1.5, 2.5, 3.5), 3.0), RANGE, 1.0, (0.0, 1.0, 2.0, 3.0, 4.0)
    ),
    "five levels, geometric": Passed(Geometric(*RANGE, 1.0, 4 / 3), RANGE, 1.0),
    "one event, geometric": Passed(Geometric(0.0, None, 1.0, 1.0), None, 1.0),
    "clean": None,
}


def run(quick: bool) -> list[Figure]:
    figures = []
    for name, passed in CHANNELS.items():
        sweeps = Sweeps(_data(passed))
        best = min(sweeps() for _ in range(5 if quick else 60))
        rate = ENTRIES / best / 1e6
        say(
            f"Gibbs, {name}: {1e3 * best:.2f} ms a sweep of {ENTRIES:,} entries, rank {RANK}, one thread"
        )
        figures.append(
            Figure(
                f"Gibbs, {name}: entries a second and core",
                rate,
                f"{rate:.1f} million",
                BAR if name.startswith("five") else None,
                higher_is_better=True,
            )
        )
    return figures


class Sweeps:
    """A chain that goes on for as long as it is asked to; each call is one sweep, in seconds."""

    def __init__(self, data: Privatised | sf.SparseTensor) -> None:
        relations = sf.Relations({"x": data})
        shape = CoupledShape.of(relations, RANK)
        self._solver: Any = sf.Gibbs(samples=1, burn_in=1 << 20, thin=1000, chains=1)
        self._site = CoupledSite(relations, 1, np.dtype(np.float64))
        self._state = self._solver.init(Run(0, 1), shape)
        self._steps = shape.steps
        for _ in range(2 + 3 * self._steps):
            self._step()

    def __call__(self) -> float:
        begin = process_time()
        for _ in range(self._steps):
            self._step()
        return process_time() - begin

    def _step(self) -> None:
        answer = self._solver.ask(self._state).answer(self._site)
        self._state, _ = self._solver.update(self._state, answer)


def _data(passed: Passed | None) -> Privatised | sf.SparseTensor:
    """Counts like missing stars, made noisy by NumPy: this is about time."""
    generator = np.random.default_rng(0)
    cells = np.stack(np.unravel_index(generator.choice(np.prod(SHAPE), ENTRIES, False), SHAPE))
    users = generator.gamma(4.0, 1 / 4, (SHAPE[0], RANK))
    items = generator.gamma(4.0, 1.47 / RANK / 4, (SHAPE[1], RANK))
    counts = np.minimum(generator.poisson((users[cells[0]] * items[cells[1]]).sum(axis=1)), 4)
    if passed is not None and isinstance(passed.channel, Geometric):
        hit = 1 - passed.channel.ratio
        counts = counts + generator.geometric(hit, ENTRIES) - generator.geometric(hit, ENTRIES)
    elif passed is not None:
        truth = generator.random(ENTRIES) < passed.channel.matrix[0, 0] - passed.channel.matrix[0, 1]
        counts = np.where(truth, counts, generator.integers(0, 5, ENTRIES))
    modes = sf.Mode("user", SHAPE[0]), sf.Mode("film", SHAPE[1])
    tensor = sf.SparseTensor(cells, counts.astype(float), modes)
    return tensor if passed is None else Privatised(tensor, (passed,))
