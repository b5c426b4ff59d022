"""Stochastic gradient descent, entry by entry, on strata of entries that threads share out.

At an entry with error ``e = x - value`` every row of the entry takes a step along its design d_m:

    row_m += step (e d_m - ridge (row_m - prior mean))

with all designs taken before the step. A pass visits every entry once: strata in a new random
order, in each the blocks side by side, tiles of a block in a new random order. Blocks of a stratum
share no row, so the result depends on the seed and on the number of blocks (one per thread), never
on timing. All of them would write to a Tucker core: each block steps its own copy, and the stratum's
core is their average, weighted by entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sfumato.checks import check_positive
from sfumato.kernels.numba.sgd import run_pass
from sfumato.models.shape import Shape
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.gradient.passes import PassQuery, PassResult, PassSolver

_SMALL = 200_000  # entries below which a second thread costs more than it brings


@record
@dataclass(frozen=True)
class SGD(PassSolver):
    """Settings of stochastic gradient descent.

    Parameters
    ----------
    passes : int
        Passes over the data.
    step, decay : float
        The step of pass t is ``step * decay^t``.
    ridge_per_entry : float or mapping
        Penalty of a row at each of its entries; number or mapping from mode names.
    ridge : float or mapping
        Penalty of a row as a whole, as in ALS; number or mapping.
    bias_ridge, core_ridge : float
        Penalties of biases and of a Tucker core, per entry.
    prior_mean : mapping or None
        As in ALS.
    init_scale : float
        Size of the random start.
    tolerance : float or None
        As in ALS; for non-private use only.

    Examples
    --------
    >>> import sfumato as sf
    >>> train, test = sf.synthetic.ratings_like(60, 40, 5, 4000).split(0.2)
    >>> model = sf.CP(rank=2, solver=sf.SGD(passes=20, step=0.05)).fit(train)
    >>> model.method_, bool(model.rmse(test) < test.values.std())
    ('sgd', True)
    """

    decay: float = 0.95
    name: ClassVar[str] = "sgd"

    def check(self, shape: Shape) -> None:
        super().check(shape)
        check_positive(decay=self.decay)

    def step_at(self, done: int) -> float:
        """Step of the pass that follows ``done`` passes."""
        return self.step * self.decay**done

    def make_pass(self, query: PassQuery, site: Site) -> PassResult:
        """Visit all entries, in an order of its own at each pass."""
        tensor = site.tensor
        blocks = site.threads if tensor.n_entries >= _SMALL else 1
        row_bytes = query.model.rows.strides[0]
        squares = run_pass(
            query.model,
            site.grid(blocks, row_bytes),
            query.mean,
            query.spread,
            query.step,
            query.seed,
            self.penalty(query, site),
            query.shape.fit_biases,
            site.threads,
        )
        return PassResult(query.model, squares, tensor.n_entries)
