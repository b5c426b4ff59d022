"""Stochastic gradient descent as Wei, Li, Mao and Wang print it (Algorithm 2 without its noise).

For each entry in random order, one after the other, each from the parameters as they are by then:

    4, 5, 8.  row_m <- row_m - step grad_{row_m} f     for m = 0 .. N-1
    9.        core  <- core  - step grad_core f

with f = (x - value)^2 + ridge sum_m |row_m|^2 + core_ridge |core|^2 and a fixed step. Departures: any
order, not three; a mean, biases and prior means if they are asked for (the paper has none).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.data.layout import Site
from sfumato.errors import SettingError
from sfumato.models.entrywise import (
    bias_sum,
    design,
    dot,
    evaluate,
    locate,
    row_width,
    step_core,
    workspace,
)
from sfumato.models.multilinear import Multilinear
from sfumato.parallel import kernel, run
from sfumato.solvers.base import PublicShape
from sfumato.solvers.passes import PassQuery, PassResult, PassSolver, Penalty

Array = NDArray[Any]


@kernel
def _visit_in_turn(
    p: Any,
    core: Array,
    mean: Any,
    coordinates: Array,
    values: Array,
    sequence: Array,
    step: Any,
    penalty: Any,
    fit_biases: bool,
    out: Array,
) -> None:
    order, width = len(p.offsets), row_width(p)
    rows, biases, uniform, means = p.rows, p.biases, penalty.uniform, penalty.means
    index, work = np.empty(order, np.int64), workspace(p)
    d = np.zeros(order * width, rows.dtype)  # by mode: with unequal ranks the padding differs
    squares = 0.0
    for entry in sequence:
        locate(p, coordinates, entry, index)
        for m in range(order):
            design(p, index, m, work, d, m * width)
            value = mean + bias_sum(p, index) + dot(rows, index[m] * width, d, m * width, width)
            error = values[entry] - value
            if m == 0:
                squares += error * error
            for r in range(width):
                away = rows[index[m], r] - means[m, r]
                rows[index[m], r] += 2 * step * (error * d[m * width + r] - uniform[m] * away)
            if fit_biases:
                biases[index[m]] += 2 * step * (error - penalty.bias * biases[index[m]])
        if core.shape[0] > 0:
            error = values[entry] - mean - bias_sum(p, index) - evaluate(p, index, work)
            step_core(p, work, 1 - 2 * step * penalty.core, 2 * step * error)
    out[0] = squares


def visit_in_turn_reference(
    model: Multilinear,
    coordinates: Array,
    values: Array,
    step: float,
    penalty: Penalty,
    fit_biases: bool,
) -> None:
    """Readable twin of the kernel, in the given order, in place."""
    for cell, x in zip(coordinates.T, values, strict=True):
        entry = cell[:, None]
        for m, level in enumerate(cell):
            error = float(x) - float(model.predict_reference(entry)[0])
            row = model.factors[m][level]
            gradient = -2 * error * model.design(m, entry)[0]
            gradient += 2 * penalty.uniform[m] * (row - penalty.means[m, : len(row)])
            row -= step * gradient
            if fit_biases:
                bias = model.mode_biases[m]
                bias[level] += 2 * step * (error - penalty.bias * bias[level])
        error = float(x) - float(model.predict_reference(entry)[0])
        core, kronecker = model.free_core, model.kronecker(entry)[0]
        core += 2 * step * (error * kronecker - penalty.core * core)


@dataclass(frozen=True)
class SequentialSGD(PassSolver):
    """Settings of paper W: 100 passes, step 0.005, ridge 0.01, standard normal start.

    ``ridge_per_entry`` is the paper's lambda (lambda_o for Tucker), ``core_ridge`` its lambda_g. It
    is here to reproduce the paper; ``SGD`` and ``MinibatchSGD`` are faster and more accurate.
    """

    passes: int = 100
    step: float = 0.005
    ridge_per_entry: Any = 0.01
    core_ridge: float = 0.001
    init_scale: float = 1.0
    name: ClassVar[str] = "sequential"

    standardises: ClassVar[bool] = False

    def check(self, shape: PublicShape) -> None:
        super().check(shape)
        if any(shape.per_mode(self.ridge, "ridge", 0.0)):
            raise SettingError("the paper has no penalty of a whole row: use ridge_per_entry")

    def step_at(self, done: int) -> float:  # noqa: ARG002
        return self.step

    def make_pass(self, query: PassQuery, site: Site) -> PassResult:
        tensor, model = site.tensor, query.model
        penalty = self.penalty(query, site)
        sequence = np.random.default_rng(query.seed).permutation(tensor.n_entries)
        number = model.dtype.type
        squares = np.zeros(1)
        task = partial(
            _visit_in_turn,
            model.arrays,
            model.free_core,
            number(query.mean),
            tensor.coordinates,
            tensor.values,
            sequence,
            number(query.step),
            penalty,
            query.shape.fit_biases,
            squares,
        )
        run([task], 1)
        return PassResult(model, float(squares[0]), tensor.n_entries)
