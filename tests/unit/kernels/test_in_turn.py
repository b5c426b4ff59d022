"""Designs found in turn: the pass of every order and width of core equals its readable twin."""

import numpy as np
import pytest

from sfumato.data.tensor import Mode, SparseTensor
from sfumato.kernels.reference.sequential import visit_in_turn_reference
from sfumato.models.multilinear import TuckerModel
from sfumato.models.shape import Shape
from sfumato.sites.memory import Site
from sfumato.solvers.gradient.passes import PassQuery
from sfumato.solvers.gradient.sequential import SequentialSGD


@pytest.mark.parametrize("ranks", [(3, 2), (10, 9, 11), (1, 1, 1), (2, 3, 1, 2)])
def test_a_pass_equals_its_readable_twin(ranks):
    rng = np.random.default_rng(4)
    sizes = [rank + 2 for rank in ranks]
    factors = [0.5 * rng.normal(size=(n, r)) for n, r in zip(sizes, ranks, strict=True)]
    model = TuckerModel.from_factors(factors, 0.5 * rng.normal(size=ranks))
    slow = model.copy()
    modes = tuple(Mode(f"m{m}", n) for m, n in enumerate(sizes))
    cells = np.stack([rng.integers(0, n, 40) for n in sizes])
    tensor = SparseTensor(cells, rng.normal(size=40), modes)
    site = Site(tensor, 1)
    shape = Shape(modes, ranks, "tucker", fit_mean=False, fit_biases=False)
    solver = SequentialSGD(core_ridge=0.02)
    query = PassQuery(solver, shape, model, 0.0, 1.0, 0.01, 8, None)
    order = np.random.default_rng(8).permutation(40)
    penalty = solver.penalty(query, site)
    cells = tensor.coordinates[:, order]
    visit_in_turn_reference(slow, cells, tensor.values[order], 0.01, penalty, False)
    before = model.copy()
    model = query.answer(site).model
    np.testing.assert_array_equal(query.model.rows, before.rows)  # the query stays what it was
    np.testing.assert_array_equal(query.model.free_core, before.free_core)
    assert np.abs(model.free_core - before.free_core).max() > 1e-3
    np.testing.assert_allclose(model.free_core, slow.free_core, rtol=0, atol=1e-12)
    np.testing.assert_allclose(model.rows, slow.rows, rtol=0, atol=1e-12)  # the padding stays zero
