"""Stochastic gradient descent as Wei, Li, Mao and Wang print it (Algorithm 2).

For each entry in random order, one after the other, each from the parameters as they are by then:

    4, 5, 8.  row_m <- row_m - step grad_{row_m} f     for m = 0 .. N-1
    9.        core  <- core  - step grad_core f

with f = (x - value)^2 + ridge sum_m |row_m|^2 + core_ridge |core|^2 and a fixed step. Departures: any
order, not three; a mean, biases and prior means if they are asked for (the paper has none).

Steps 6 and 7, which clip the gradient of one mode and add noise to it, are there for ``paper.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from sfumato.errors import SettingError
from sfumato.kernels.numba.entrywise import (
    bias_sum,
    dot,
    locate,
    row_width,
)
from sfumato.kernels.numba.in_turn import (
    begin_turn,
    put_core_back,
    row_moved,
    turn_core,
    turn_design,
    turn_memory,
)
from sfumato.kernels.numba.parallel import kernel, run
from sfumato.kernels.numba.vector_noise import (
    add_vector_noise,
    clip_norm,
    clipped_reference,
    vector_noise_reference,
)
from sfumato.models.multilinear import Multilinear
from sfumato.models.shape import Shape
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.gradient.passes import PassQuery, PassResult, PassSolver, Penalty
from sfumato.types import Array


class Perturbation(NamedTuple):
    """Clip the gradient of one mode's row to ``clip``, then add vector noise of the given scale."""

    mode: int
    rank: int
    clip: float
    scale: float


UNPERTURBED = Perturbation(-1, 0, np.inf, 0.0)


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
    perturbation: Any,
    stream: Any,
    out: Array,
) -> None:
    order, width = len(p.offsets), row_width(p)
    rows, biases, uniform, means = p.rows, p.biases, penalty.uniform, penalty.means
    index, (turned, before, after, product) = np.empty(order, np.int64), turn_memory(p)
    d = np.zeros(order * width, rows.dtype)  # by mode: with unequal ranks the padding differs
    gradient, direction = np.zeros(width, rows.dtype), np.zeros(width)
    squares, largest = 0.0, 0.0
    for entry in sequence:
        locate(p, coordinates, entry, index)
        begin_turn(p, index, turned, before, after)
        for m in range(order):
            turn_design(p, index, m, turned, before, after, product, d, m * width)
            value = mean + bias_sum(p, index) + dot(rows, index[m] * width, d, m * width, width)
            error = values[entry] - value
            if m == 0:
                squares += error * error
            for r in range(width):
                away = rows[index[m], r] - means[m, r]
                gradient[r] = 2 * (uniform[m] * away - error * d[m * width + r])
            if m == perturbation.mode:
                largest = max(largest, clip_norm(gradient, perturbation.rank, perturbation.clip))
                if perturbation.scale > 0:
                    add_vector_noise(gradient, perturbation.rank, perturbation.scale, direction, stream)
            for r in range(width):
                rows[index[m], r] -= step * gradient[r]
            if fit_biases:
                biases[index[m]] += 2 * step * (error - penalty.bias * biases[index[m]])
            row_moved(p, index, m, before, product)
        if core.shape[0] > 0:
            last = order - 1
            value = mean + bias_sum(p, index) + dot(rows, index[last] * width, d, last * width, width)
            scale = 2 * step * (values[entry] - value)
            turn_core(p, index, turned, product, 1 - 2 * step * penalty.core, scale)
    put_core_back(p, turned)
    out[0], out[1] = squares, largest


def visit_in_turn_reference(
    model: Multilinear,
    coordinates: Array,
    values: Array,
    step: float,
    penalty: Penalty,
    fit_biases: bool,
    perturbation: Perturbation = UNPERTURBED,
    stream: np.random.Generator | None = None,
) -> None:
    """Readable twin of the kernel, in the given order, in place."""
    for cell, x in zip(coordinates.T, values, strict=True):
        entry = cell[:, None]
        for m, level in enumerate(cell):
            error = float(x) - float(model.predict_reference(entry)[0])
            row = model.factors[m][level]
            gradient = -2 * error * model.design(m, entry)[0]
            gradient += 2 * penalty.uniform[m] * (row - penalty.means[m, : len(row)])
            if m == perturbation.mode:
                gradient = clipped_reference(gradient, perturbation.clip)
                if stream is not None:
                    gradient += vector_noise_reference(len(row), perturbation.scale, stream)
            row -= step * gradient
            if fit_biases:
                bias = model.mode_biases[m]
                bias[level] += 2 * step * (error - penalty.bias * bias[level])
        error = float(x) - float(model.predict_reference(entry)[0])
        core, kronecker = model.free_core, model.kronecker(entry)[0]
        core += 2 * step * (error * kronecker - penalty.core * core)


@record
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

    def check(self, shape: Shape) -> None:
        super().check(shape)
        if any(shape.per_mode(self.ridge, "ridge", 0.0)):
            raise SettingError("the paper has no penalty of a whole row: use ridge_per_entry")

    def step_at(self, done: int) -> float:  # noqa: ARG002
        return self.step

    def make_pass(self, query: PassQuery, site: Site) -> PassResult:
        return self.perturbed_pass(query, site, UNPERTURBED, np.random.default_rng(0))[0]

    def perturbed_pass(
        self, query: PassQuery, site: Site, perturbation: Perturbation, stream: np.random.Generator
    ) -> tuple[PassResult, float]:
        """A pass, and the largest norm of the clipped gradients of the perturbation's mode."""
        tensor, model = site.tensor, query.model
        penalty = self.penalty(query, site)
        sequence = np.random.default_rng(query.seed).permutation(tensor.n_entries)
        number = model.dtype.type
        met = np.zeros(2)
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
            perturbation,
            stream,
            met,
        )
        run([task], 1)
        return PassResult(model, float(met[0]), tensor.n_entries), float(met[1])
