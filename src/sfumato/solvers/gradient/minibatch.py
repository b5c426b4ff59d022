"""Minibatch gradient descent with momentum.

Every entry of a batch is seen at the same parameters. With g the sum over the batch's entries of
``e d_m - ridge (row_m - prior mean)`` a row moves by

    velocity = momentum velocity + g / max(1, expected entries of the row in a batch)
    row     += step velocity

so that a row with many entries takes their average and a row with few takes plain steps. The error e
is divided by ``1 + step / (1 - momentum) sum_m |d_m|^2``, the factor by which a full step along all
designs would overshoot; this keeps a large step or start from diverging.

Rows that a batch does not touch only coast. Their moves are made up in closed form when they are
next read, and at the end of a pass, so that a step costs as much as its batch, not as the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sfumato.checks import check_count, check_share, given
from sfumato.kernels.numba.minibatch import Motion, motion_at_rest, run_batches
from sfumato.models.shape import Shape
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.gradient.passes import PassQuery, PassResult, PassSolver
from sfumato.types import Array


@record
@dataclass(frozen=True)
class MinibatchSGD(PassSolver):
    """Settings of minibatch gradient descent.

    Parameters
    ----------
    passes : int
        Passes over the data.
    step : float
        First step; it falls to zero along half a cosine over the passes.
    batch : int or None
        Entries in a batch; by default a two-hundredth of the data, at least 16, at most 4096.
    momentum : float
        Share of a row's velocity that is left after a step.
    ridge_per_entry, ridge, bias_ridge, core_ridge, prior_mean, init_scale, tolerance
        As in SGD.

    Examples
    --------
    >>> import sfumato as sf
    >>> train, test = sf.synthetic.ratings_like(60, 40, 5, 4000).split(0.2)
    >>> model = sf.CP(rank=2, solver=sf.MinibatchSGD(passes=20, batch=32)).fit(
    ...     train
    ... )
    >>> model.method_, bool(model.rmse(test) < test.values.std())
    ('minibatch', True)
    """

    passes: int = 60
    step: float = 0.02
    ridge_per_entry: Any = 0.06
    batch: int | None = None
    momentum: float = 0.9
    name: ClassVar[str] = "minibatch"

    def check(self, shape: Shape) -> None:
        super().check(shape)
        check_share(True, momentum=self.momentum)
        check_count(**given(batch=self.batch))

    def step_at(self, done: int) -> float:
        """Step of the pass that follows ``done`` passes."""
        return self.step * 0.5 * (1 + float(np.cos(np.pi * done / self.passes)))

    def make_pass(self, query: PassQuery, site: Site) -> PassResult:
        """Visit all entries, a batch at a time."""
        model, n = query.model, site.tensor.n_entries
        size = min(n, self.batch or min(4096, max(16, n // 200)))
        grid = site.grid(1, 0)  # shuffled as a whole
        # A copy, like the model: the query stays what it was.
        motion = Motion(*map(np.copy, query.memory)) if query.memory else motion_at_rest(model)
        squares = run_batches(
            model,
            motion,
            grid,
            query.mean,
            query.spread,
            batch_edges(n, size, query.seed),
            np.maximum(1, site.counts * (size / n)),
            query.step,
            self.momentum,
            self.penalty(query, site),
            query.shape.fit_biases,
        )
        return PassResult(model, squares, n, motion)


def batch_edges(entries: int, size: int, seed: int) -> tuple[Array, Array]:
    """First entries of a pass's batches, in random order, and the entries past their last ones.

    Where the batches are cut is random as well; the first and the last may be short.
    """
    generator = np.random.default_rng(seed)
    cuts = np.arange(int(generator.integers(0, size)), entries, size)
    edges = np.unique(np.concatenate([[0], cuts, [entries]]))
    order = generator.permutation(edges.shape[0] - 1)
    return edges[order], edges[order + 1]
