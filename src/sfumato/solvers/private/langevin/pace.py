"""How parameters move in a private Langevin step: metric, lengths of steps, ridges, and least noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import numpy as np

from sfumato.records import record
from sfumato.solvers.private.langevin.beginning import Begun
from sfumato.solvers.private.langevin.joint import Joint
from sfumato.types import Array

CELLS = 4096  # public random cells of a relation at which designs are measured
LEAST_POWER = 0.01  # variance of a component, in residual variances, that shrinking starts from
_LEAST_PART = 0.25  # of its mean that a Poisson row is taken for at least, where the prior would blow up


@record
class Lines(NamedTuple):
    """Of each row, or each bias: what a step keeps of it, how far it goes along a gradient, how much it
    shakes at least, and the precision of its prior; in the metric's coordinates.
    """

    keep: Array
    length: Array
    shake: Array
    ridge: Array


@record
@dataclass(frozen=True, eq=False)
class Pace:
    """How all parameters move; made of what was released and of public numbers."""

    metric: Array  # a line for each mode
    bias_metric: Array
    homes: Array  # of each mode
    bias_homes: Array
    rows: Lines
    biases: Lines
    step: float

    def temperatures(self, noise: float) -> Array:
        """Variance of the noise that privacy asks for, over that of samples from the posterior."""
        drawn = (self.rows.length * noise) ** 2
        there = self.rows.shake > 0
        found: Array = drawn[there] / self.rows.shake[there] ** 2
        return found


@dataclass(frozen=True)
class Stepping:
    """Share of a Newton step, probability of taking part, and noise in a step's sums."""

    step: float
    rate: float
    noise: float

    def lines(self, information: Array, prior: Array | float) -> Lines:
        """How coordinates move on which the data have so much information, and the prior so much.

        The ridge is the best linear one for what is known: the scatter of values, and the noise in an
        iterate under steps of this length. Noise is at least that of Langevin dynamics, less what the
        length of a step adds to it by itself.
        """
        shaking = self.step / (2 - self.step) * (self.noise / self.rate) ** 2
        ridge = prior * (1 + shaking / information)
        whole = information + ridge
        length = self.step / (self.rate * whole)
        shake = np.sqrt(self.step * (2 - self.step) / whole)
        return Lines(1 - self.step * ridge / whole, length, shake, ridge)


def still(size: int) -> Lines:
    """Of rows that do not move."""
    return Lines(np.ones(size), np.zeros(size), np.zeros(size), np.ones(size))


def joined(lines: Sequence[Lines]) -> Lines:
    return Lines(*(np.concatenate(each) for each in zip(*lines, strict=True)))


def draw_cells(begun: Sequence[Begun], seed: int) -> tuple[Array, ...]:
    """Cells of each relation, levels as often as they occur."""
    generator, cells = np.random.default_rng([seed, 1]), list[Array]()
    for relation in begun:
        shares = (count / count.sum() for count in relation.counts)
        cells.append(np.array([generator.choice(share.size, CELLS, p=share) for share in shares]))
    return tuple(cells)


def designs_at(joint: Joint, rows: Array, v: int, cells: Array) -> Array:
    """Products of the other modes' rows at cells of a relation: [mode, cell, column]."""
    spans = [joint.span(block) for block in joint.blocks[v]]
    there = [rows[span][levels] for span, levels in zip(spans, cells, strict=True)]
    others = [
        np.prod([part for j, part in enumerate(there) if j != m], axis=0) for m in range(len(there))
    ]
    return np.array(others)


class Curvature(NamedTuple):
    """Information that an entry has of a column on average: of each mode of each relation, and mode."""

    of_relation: tuple[tuple[Array, ...], ...]
    of_block: tuple[Array, ...]


def measure(
    joint: Joint, begun: Sequence[Begun], rows: Array, cells: Sequence[Array], poisson: bool
) -> Curvature:
    """Measured at public cells."""
    found = list[tuple[Array, ...]]()
    for v, relation in enumerate(begun):
        designs = designs_at(joint, rows, v, cells[v])
        weights = np.full(CELLS, 1 / relation.scatter)
        if poisson:
            first = rows[joint.span(joint.blocks[v][0])][cells[v][0]]
            values = (designs[0] * first).sum(axis=1)
            weights = 1 / np.maximum(values, 0.1 * relation.scatter)
        found.append(tuple(np.mean(weights[:, None] * each**2, axis=0) for each in designs))
    together = []
    for block in range(len(joint.names)):
        having = list(joint.having(block))
        entries = np.array([joint.facts.parts[v].expected_entries for v, _ in having])
        each = np.average([found[v][m] for v, m in having], axis=0, weights=entries)
        together.append(np.maximum(each, 1e-3 * each.mean() + 1e-12))
    return Curvature(tuple(found), tuple(together))


def make_pace(
    joint: Joint,
    begun: Sequence[Begun],
    rows: Array,
    cells: Sequence[Array],
    stepping: Stepping,
    bias_part: float,
    poisson: bool,
    shaken: Array,
) -> Pace:
    """How parameters move from these rows on, whose noise has variances ``shaken``, in the metric.

    ``bias_part`` is that of biases in a gradient's length.
    """
    curvature = measure(joint, begun, rows, cells, poisson)
    part = 0.0 if poisson else bias_part
    blocks = max(sum(block != joint.own for block in mine) for mine in joint.blocks)
    share = (1 - part) / (blocks * joint.rank)
    metric, lines = np.zeros((len(joint.names), joint.rank)), list[Lines]()
    homes = home_of(joint, begun, poisson)
    for block in range(len(joint.names)):
        if block == joint.own:
            lines.append(still(joint.sizes[block]))
            continue
        of_block, having = curvature.of_block[block], list(joint.having(block))
        metric[block] = np.sqrt(share / of_block)
        information = sum(
            begun[v].counts[m] * float(np.mean(curvature.of_relation[v][m] * metric[block] ** 2))
            for v, m in having
        )
        there = np.concatenate([cells[v][m] for v, m in having])
        size = np.mean((rows[joint.span(block)][there] - homes[block]) ** 2, axis=0)
        # In the metric all columns have the same noise, and the same information.
        noise = float(np.mean(shaken[joint.span(block)][there])) * share
        power = max(LEAST_POWER, float(np.mean(size * of_block)) - noise)
        lines.append(stepping.lines(np.maximum(information, 1e-12), share / power))
    bias_metric, bias_lines = _bias_pace(joint, begun, stepping, part)
    bias_homes = np.concatenate([each for relation in begun for each in relation.biases])
    return Pace(metric, bias_metric, homes, bias_homes, joined(lines), joined(bias_lines), stepping.step)


def _bias_pace(
    joint: Joint, begun: Sequence[Begun], stepping: Stepping, part: float
) -> tuple[Array, list[Lines]]:
    metric, lines = np.zeros(joint.n_biases), list[Lines]()
    for v, relation in enumerate(begun):
        moved = [block != joint.own for block in joint.blocks[v]]
        for m, span in enumerate(joint.bias_spans[v]):
            if not moved[m] or part == 0:
                lines.append(still(span.stop - span.start))
                continue
            square = part / sum(moved)
            metric[span] = sqrt(square * relation.scatter)
            power = np.maximum(relation.bias_variances[m] / relation.scatter, 1e-6)
            lines.append(stepping.lines(relation.counts[m] * square, square / power))
    return metric, lines


def home_of(joint: Joint, begun: Sequence[Begun], poisson: bool) -> Array:
    """Where rows of each mode shrink to; of Poisson ones so that products are of the values' size."""
    if not poisson:
        return joint.homes
    homes = np.ones(len(joint.names))
    each = [np.log(r.scatter / joint.rank) / len(b) for r, b in zip(begun, joint.blocks, strict=True)]
    for block in range(len(joint.names)):
        homes[block] = np.exp(np.mean([each[v] for v, _ in joint.having(block)]))
    return homes


def moved(
    joint: Joint, pace: Pace, rows: Array, biases: Array, sums: tuple[Array, Array], poisson: bool
) -> tuple[Array, Array]:
    """Rows and biases after a step by noisy sums: all of them, whoever took part."""
    block_of = joint.layout.block_of
    metric, home = pace.metric[block_of], pace.homes[block_of][:, None]
    keep, length, _, ridge = (line[:, None] for line in pace.rows)
    along = length * metric * sums[0]
    if poisson:
        shape = np.maximum(home**2 * ridge / np.maximum(metric**2, 1e-200), 1.0)
        # (1 - keep) / ridge is the step over all information: prior and data move by one measure.
        slope = (shape - 1) / np.maximum(rows, _LEAST_PART * home) - shape / home
        after = np.abs(rows + along + (1 - keep) / ridge * metric**2 * slope)
    else:
        after = home + keep * (rows - home) + along
    line = pace.biases
    pulled = line.length * pace.bias_metric * sums[1]
    return after, pace.bias_homes + line.keep * (biases - pace.bias_homes) + pulled
