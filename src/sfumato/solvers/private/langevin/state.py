"""Where private Langevin dynamics is, what it starts from, and the average that it ends in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from sfumato.solvers.private.langevin.beginning import Begun
from sfumato.solvers.private.langevin.joint import Joint
from sfumato.solvers.private.langevin.pace import Pace, home_of
from sfumato.solvers.private.langevin.settings import Settings
from sfumato.solvers.protocol import start_generator
from sfumato.types import Array


@dataclass(frozen=True)
class Average:
    """Sums over the iterates of the last steps, and how much noise there is in them.

    ``variance`` is that of an iterate's rows, in the metric; ``along`` its covariance with the sum of
    the iterates, and ``whole`` the variance of that sum.
    """

    rows: Array
    biases: Array
    variance: Array
    along: Array
    whole: Array
    number: int = 0


@dataclass(frozen=True)
class State:
    """From the first step on; all of it was released."""

    joint: Joint
    seed: int
    begun: tuple[Begun, ...]
    cells: tuple[Array, ...]
    rows: Array
    biases: Array
    pace: Pace
    average: Average
    kept: tuple[tuple[Array, Array], ...] = ()
    done: int = 0  # passes


def averaged(state: State, rows: Array, biases: Array, noise: float, s: Settings) -> Average:
    """The average with one more pass, and the noise in it: that of a chain which forgets by its step."""
    before, line, step = state.average, state.pace.rows, state.pace.step
    shaken = np.maximum(line.length * noise, line.shake) ** 2
    left = (1 - step) ** s.steps_per_pass
    variance = left**2 * before.variance + shaken * (1 - left**2) / (step * (2 - step))
    if state.done < s.passes - s.averaged:
        return replace(before, variance=variance)
    along = left * before.along + variance
    whole = before.whole + 2 * left * before.along + variance
    sums = before.rows + rows, before.biases + biases
    return Average(*sums, variance, along, whole, before.number + 1)


def started(joint: Joint, begun: Sequence[Begun], seed: int, poisson: bool) -> Array:
    """Random rows. Of each relation one factor starts near zero, so that its products do."""
    generator, rows = start_generator(seed), np.zeros((joint.n_rows, joint.rank))
    homes = home_of(joint, begun, poisson)
    small = dict[int, float]()
    for v, blocks in enumerate(joint.blocks):
        free = [b for b in blocks if homes[b] == 0 and b != joint.own] or [blocks[-1]]
        alone = [b for b in free if len(list(joint.having(b))) == 1] or free
        if not any(b in small for b in free):
            small[alone[0]] = (0.2 if joint.own is not None else 0.03) * sqrt(begun[v].scatter)
    for b in range(len(joint.names)):
        normal = generator.standard_normal((joint.sizes[b], joint.rank))
        scale = small.get(b, 1.0 if homes[b] == 0 else 0.1)
        if poisson:
            rows[joint.span(b)] = homes[b] * np.abs(1 + 0.3 * normal)
        else:
            rows[joint.span(b)] = homes[b] + scale * normal
    if joint.own is not None:
        rows[joint.span(joint.own)] = 0.0
    return rows


def with_own_rows(joint: Joint, begun: Sequence[Begun], rows: Array, poisson: bool) -> Array:
    """The rows with made-up own ones, of the size that ridge solutions have on average."""
    own = joint.own
    if own is None:
        return rows
    homes, filled = home_of(joint, begun, poisson), rows.copy()
    drawn = np.random.default_rng([2]).standard_normal((joint.sizes[own], joint.rank))
    if poisson:
        filled[joint.span(own)] = homes[own] * np.abs(1 + 0.3 * drawn)
        return filled
    known = 0.0
    for v, _ in joint.having(own):
        others = [b for b in joint.blocks[v] if b != own]
        power = np.prod([np.mean(rows[joint.span(b)] ** 2) for b in others])
        known += joint.facts.parts[v].expected_entries / joint.sizes[own] * power / begun[v].scatter
    filled[joint.span(own)] = homes[own] + sqrt(known / (known + 1)) * drawn
    return filled


def own_precision(home: float, poisson: bool) -> float:
    """Of rows that units solve for themselves: their size is one, or that of a Poisson mean's part."""
    return 4 / home**2 if poisson else 1.0
