"""Readable twins of the kernels of private steps: dense, every row moved at every step.

Equal to ``kernels/numba/private_steps.py`` without noise, and in law with it; tests hold them to that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from sfumato.kernels.numba.private_moves import JITTER, KEEP, OF_BIAS, PACE, Moves, Scale
from sfumato.kernels.reference.normals import exponentials_reference
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.models.multilinear import Multilinear


def batch_reference(units: int, rate: float, sampler: Iterator[float]) -> Array:
    """Units that take part in a step, drawn as the kernels draw them, from exponential numbers."""
    mean = 0.0 if rate == 1 else -1 / np.log1p(-rate)
    chosen, at = [], int(next(sampler) * mean)
    while at < units:
        chosen.append(at)
        at += 1 + int(next(sampler) * mean)
    return np.array(chosen, np.int64)


def contribution_reference(
    model: Multilinear,
    moves: Moves,
    cells: Array,
    targets: Array,
    weight: float,
    clip: float,
    fit_biases: bool,
    local: int | None,
) -> tuple[Array, Array, Array]:
    """One unit's clipped gradient of rows, biases and core, dense, in the metric's coordinates."""
    error = weight * (targets - model.predict_reference(cells))
    rows, biases = np.zeros(model.rows.shape), np.zeros(model.biases.shape)
    for m, levels in enumerate(cells):
        if m != local:
            metric = np.sqrt(moves.square[m, : model.ranks[m]])
            at = levels + model.offsets[m]
            change = error[:, None] * model.design(m, cells) * metric
            np.add.at(rows[:, : model.ranks[m]], at, change)
            np.add.at(biases, at, error * np.sqrt(moves.bias_square) * fit_biases)
    core = np.sqrt(moves.core[3]) * (error @ model.kronecker(cells))
    length = np.sqrt(np.square(rows).sum() + np.square(biases).sum() + np.square(core).sum())
    factor = clip / max(length, clip)
    return factor * rows, factor * biases, factor * core


def step_reference(
    model: Multilinear,
    moves: Moves,
    contributions: list[tuple[Array, Array, Array]],
    noise: np.random.Generator,
    fit_biases: bool,
    local: int | None,
) -> None:
    """One step: every row moves, whether a contribution touched it or not, with noise of its own."""
    paces = moves.paces
    for m in range(model.order):
        if m == local:
            continue
        span, rank = model.span(m), model.ranks[m]
        here, metric, home = paces[span], np.sqrt(moves.square[m, :rank]), moves.home[m, :rank]
        keep, pace, jitter = here[:, KEEP], here[:, PACE], here[:, JITTER]
        gradient = sum((rows[span, :rank] for rows, _, _ in contributions), np.zeros((1, rank)))
        moved = model.factors[m] + pace[:, None] * metric * gradient - home
        normal = noise.standard_normal(moved.shape)
        model.factors[m][:] = home + keep[:, None] * moved + jitter[:, None] * metric * normal
        if fit_biases:
            keep, pace, jitter = here[:, OF_BIAS : OF_BIAS + 3].T
            metric, home = np.sqrt(moves.bias_square), moves.bias_home[span]
            gradient = sum((biases[span] for _, biases, _ in contributions), np.zeros(1))
            moved = model.biases[span] + pace * metric * gradient - home
            normal = noise.standard_normal(moved.shape)
            model.biases[span] = home + keep * moved + jitter * metric * normal
    keep, pace, jitter, square = moves.core
    gradient = sum((core for _, _, core in contributions), np.zeros(1))
    normal = noise.standard_normal(model.free_core.shape)
    model.free_core[:] = keep * (model.free_core + pace * np.sqrt(square) * gradient)
    model.free_core[:] += jitter * np.sqrt(square) * normal


def targets_reference(values: Array, scale: Scale) -> Array:
    """Values as the model explains them."""
    targets: Array = (np.clip(values, scale.low, scale.high) - scale.middle) * scale.unit
    return targets


def entry_steps_reference(
    model: Multilinear,
    moves: Moves,
    scale: Scale,
    coordinates: Array,
    values: Array,
    rate: float,
    steps: int,
    clip: float,
    fit_biases: bool,
    sampler: np.random.Generator,
    noise: np.random.Generator,
) -> None:
    """Twin of :func:`entry_steps`: equal without noise, in law with it."""
    targets, drawn = targets_reference(values, scale), exponentials_reference(sampler)
    for _ in range(steps):
        contributions = [
            contribution_reference(
                model, moves, coordinates[:, [e]], targets[[e]], 1.0, clip, fit_biases, None
            )
            for e in batch_reference(len(values), rate, drawn)
        ]
        step_reference(model, moves, contributions, noise, fit_biases, None)


def unit_steps_reference(
    model: Multilinear,
    moves: Moves,
    scale: Scale,
    coordinates: Array,
    values: Array,
    mode: int,
    typical: float,
    local: bool,
    ridge: tuple[float, float],
    rate: float,
    steps: int,
    clip: float,
    fit_biases: bool,
    sampler: np.random.Generator,
    noise: np.random.Generator,
) -> None:
    """Twin of :func:`unit_steps`: equal without noise, in law with it."""
    targets, drawn = targets_reference(values, scale), exponentials_reference(sampler)
    for _ in range(steps):
        contributions = []
        for level in batch_reference(model.shape[mode], rate, drawn):
            mine = coordinates[mode] == level
            if mine.any():
                cells, how = coordinates[:, mine], (mode, typical, local, ridge, clip, fit_biases)
                contributions.append(
                    unit_contribution_reference(model, moves, cells, targets[mine], *how)
                )
        step_reference(model, moves, contributions, noise, fit_biases, mode if local else None)


def unit_contribution_reference(
    model: Multilinear,
    moves: Moves,
    cells: Array,
    targets: Array,
    mode: int,
    typical: float,
    local: bool,
    ridge: tuple[float, float],
    clip: float,
    fit_biases: bool,
) -> tuple[Array, Array, Array]:
    """A unit's clipped gradient; a local row is solved first, and is zero afterwards."""
    if local:
        _fit_own_reference(model, moves, cells, targets, mode, ridge, fit_biases)
    weight, own = min(1.0, np.sqrt(typical / len(targets))), mode if local else None
    made = contribution_reference(model, moves, cells, targets, weight, clip, fit_biases, own)
    if local:
        model.rows[model.span(mode)] = 0
        model.biases[model.span(mode)] = 0
    return made


def _fit_own_reference(
    model: Multilinear,
    moves: Moves,
    cells: Array,
    targets: Array,
    mode: int,
    ridge: tuple[float, float],
    fit_biases: bool,
) -> None:
    level, rank = cells[mode, 0], model.ranks[mode]
    x = model.design(mode, cells)
    penalty, home = np.full(rank, ridge[0]), moves.home[mode, :rank]
    if fit_biases:
        x = np.concatenate([x, np.ones((len(targets), 1))], axis=1)
        penalty, home = np.append(penalty, ridge[1]), np.append(home, 0.0)
        targets = targets - model.bias_sum(cells)
    solution = np.linalg.solve(x.T @ x + np.diag(penalty), x.T @ targets + penalty * home)
    model.factors[mode][level] = solution[:rank]
    if fit_biases:
        model.mode_biases[mode][level] = solution[rank]
