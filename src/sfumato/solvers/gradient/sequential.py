"""Stochastic gradient descent as Wei, Li, Mao and Wang print it (Algorithm 2).

For each entry in random order, one after the other, each from the parameters as they are by then:

    4, 5, 8.  row_m <- row_m - step grad_{row_m} f     for m = 0 .. N-1
    9.        core  <- core  - step grad_core f

with f = (x - value)^2 + ridge sum_m |row_m|^2 + core_ridge |core|^2 and a fixed step. Departures: any
order, not three; a mean, biases and prior means if they are asked for (the paper has none).

Steps 6 and 7, which clip the gradient of one mode and add noise to it, are there for
``as_printed/wei.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sfumato.errors import SettingError
from sfumato.kernels.numba.sequential import UNPERTURBED, Perturbation, run_in_turn
from sfumato.models.shape import Shape
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.gradient.passes import PassQuery, PassResult, PassSolver


@record
@dataclass(frozen=True)
class SequentialSGD(PassSolver):
    """Settings of paper W: descent entry by entry, from a standard normal start.

    It is here to reproduce the paper; ``SGD`` and ``MinibatchSGD`` are faster and more accurate.

    Parameters
    ----------
    passes : int
        Passes over the data.
    step : float
        Of all passes.
    ridge_per_entry
        The paper's lambda (lambda_o for Tucker).
    core_ridge : float
        Its lambda_g.
    ridge, bias_ridge, prior_mean, init_scale, tolerance
        As in SGD.

    Examples
    --------
    >>> import sfumato as sf
    >>> data = sf.synthetic.wei("cp", size=10)
    >>> solver = sf.SequentialSGD(passes=20)
    >>> sf.CP(rank=3, solver=solver, mean=False, biases=False).fit(
    ...     data.train
    ... ).method_
    'sequential'
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
        """The step, which is that of all passes."""
        return self.step

    def make_pass(self, query: PassQuery, site: Site) -> PassResult:
        """Visit all entries, one after the other."""
        return self.perturbed_pass(query, site, UNPERTURBED, np.random.default_rng(0))[0]

    def perturbed_pass(
        self, query: PassQuery, site: Site, perturbation: Perturbation, stream: np.random.Generator
    ) -> tuple[PassResult, float]:
        """A pass, and the largest norm of the clipped gradients of the perturbation's mode."""
        tensor, model = site.tensor, query.model
        squares, largest = run_in_turn(
            model,
            tensor.coordinates,
            tensor.values,
            np.random.default_rng(query.seed).permutation(tensor.n_entries),
            query.mean,
            query.step,
            self.penalty(query, site),
            query.shape.fit_biases,
            perturbation,
            stream,
        )
        return PassResult(model, squares, tensor.n_entries), largest
