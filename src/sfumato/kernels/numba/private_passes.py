"""Passes of noisy steps, entry by entry, as ``solvers/private/passes.py`` makes them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sfumato.kernels.grid import MOST_SUM
from sfumato.kernels.numba.compiler import kernel
from sfumato.kernels.numba.entrywise import (
    add_kronecker,
    bias_sum,
    evaluate,
    locate,
    row_width,
    workspace,
)
from sfumato.kernels.numba.threads import run
from sfumato.kernels.numba.vector_noise import add_vector_noise
from sfumato.records import record
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.models.multilinear import Multilinear


GRID = 2.0**-30  # what residuals are cut to, over the most that one can change
MOST_VALUE = 2.0**18  # ranges of values: larger fitted ones would round residuals


@record
class Settings(NamedTuple):
    """What a kernel needs to know of a pass; values are in the model's unit."""

    clip: float
    width: float  # of the range of values
    epsilon: float
    vector: bool
    step: float
    ridge: float
    fit_biases: bool


@kernel
def _noisy_pass(
    p: Any,
    core: Array,
    ranks: Array,
    means: Array,
    coordinates: Array,
    targets: Array,
    sequence: Array,
    settings: Any,
    noise: Array,
    stream: Any,
) -> None:
    order, width, parameters = len(p.offsets), row_width(p), core.shape[0]
    for m in range(order):
        parameters += ranks[m] + (1 if settings.fit_biases else 0)
    rows, biases = p.rows, p.biases
    index, work = np.empty(order, np.int64), workspace(p)
    kronecker = np.zeros(core.shape[0], rows.dtype)
    j, direction = np.zeros(parameters), np.zeros(parameters)
    step = settings.step
    pull = step * settings.ridge
    most = MOST_VALUE * settings.width
    for number, entry in enumerate(sequence):
        locate(p, coordinates, entry, index)
        value = evaluate(p, index, work)
        if settings.fit_biases:
            value += bias_sum(p, index)
        # The direction: designs of all modes, ones for the biases, the core's Kronecker product.
        at = 0
        for m in range(order):
            for r in range(ranks[m]):
                j[at] = work[m * width + r]
                at += 1
            if settings.fit_biases:
                j[at] = 1.0
                at += 1
        for q in range(core.shape[0]):
            kronecker[q] = 0
        add_kronecker(p, work, rows.dtype.type(1), kronecker)
        for q in range(core.shape[0]):
            j[at + q] = kronecker[q]
        squares = 0.0
        for k in range(parameters):
            squares += j[k] * j[k]
        length = np.sqrt(squares)
        # 6. One number, of which |error J| <= clip.
        error = min(max(targets[entry], -most), most) - min(max(value, -most), most)
        reach = settings.clip / length if length > 0 else np.inf
        error = min(max(error, -reach), reach)
        change = min(2 * reach, settings.width)
        # 7, 8.
        if settings.vector:
            for k in range(parameters):
                j[k] *= error
            add_vector_noise(j, parameters, change * length / settings.epsilon, direction, stream)
        else:
            whole = np.int64(error / change / GRID) + noise[number]
            error = change * GRID * min(max(whole, -MOST_SUM), MOST_SUM)
            for k in range(parameters):
                j[k] *= error
        gain = step / (1 + step * squares)
        at = 0
        for m in range(order):
            row = index[m]
            for r in range(ranks[m]):
                rows[row, r] += gain * j[at] + pull * (means[m] - rows[row, r])
                at += 1
            if settings.fit_biases:
                biases[row] += gain * j[at] - pull * biases[row]
                at += 1
        for q in range(core.shape[0]):
            core[q] += gain * j[at + q] - pull * core[q]


def noisy_pass(
    model: Multilinear,
    means: Array,
    coordinates: Array,
    targets: Array,
    sequence: Array,
    settings: Settings,
    noise: Array,
    stream: np.random.Generator,
) -> None:
    """One step for each entry of a sequence, writing to the model; ``means`` are the modes' priors.

    ``noise`` has whole steps of ``GRID`` for each entry, that go on a residual over the most that it can
    change; vector noise comes from ``stream`` instead.
    """
    task = partial(
        _noisy_pass,
        model.arrays,
        model.free_core,
        np.array(model.ranks),
        means,
        coordinates,
        targets,
        sequence,
        settings,
        noise,
        stream,
    )
    run([task], 1)
