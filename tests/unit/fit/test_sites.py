"""Entries of other modes than a plan's are refused by every kind of fit, before they are touched."""

import numpy as np
import pytest

import sfumato as sf
from sfumato.engines.local import Local
from sfumato.errors import DataError
from sfumato.fit.completion import Completion, carry_out, carry_out_private
from sfumato.fit.plan import Plan, PrivatePlan
from sfumato.fit.search import BestOf, carry_out_search
from sfumato.models.multilinear import CPModel
from sfumato.models.own_prior import OwnPrior
from sfumato.models.shape import Shape
from sfumato.privacy.budgets import Budget
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Ledger
from sfumato.sites.coupled import CoupledSite
from sfumato.sites.memory import Site
from sfumato.solvers.coupled.shape import CoupledShape
from sfumato.solvers.least_squares.own_rows import solve_own
from sfumato.solvers.private.biases import PrivateBiases

OTHERS = "the tensor has other modes than the 4 x 3 levels"


def tensor(*sizes, bounds=(0, 5)):
    names = ("user", "item", "day")[: len(sizes)]
    cells = np.stack([np.arange(8) % size for size in sizes])
    modes = tuple(sf.Mode(name, size) for name, size in zip(names, sizes, strict=True))
    return sf.SparseTensor(cells, np.arange(8.0) % 5, modes, bounds)


def private_plan():
    facts = Facts(Shape(tensor(4, 3).modes, (1, 1)), sf.Entry(), (0.0, 5.0), entries=8)
    return PrivatePlan(Completion(PrivateBiases(noise=1.0), facts), Budget(1.0, 1e-6))


@pytest.mark.parametrize("sizes", [(9, 3), (4, 9), (3, 3), (4, 3, 2)])
def test_open_and_private_fits_and_own_rows(sizes):
    site, plan = Site(tensor(*sizes), 1), private_plan()
    with pytest.raises(DataError, match=OTHERS):
        carry_out(Plan(plan.task.facts.shape, sf.ALS(sweeps=1)), Local(site))
    ledger = Ledger(sf.Entry())
    with pytest.raises(DataError, match=OTHERS):
        carry_out_private(plan, Local(site), ledger, Entropy(1))
    assert ledger.fits == 0  # nothing was charged
    prior = OwnPrior(mode=0, precisions=np.ones(1), bias_precision=1.0, scatter=1.0)
    with pytest.raises(DataError, match=OTHERS):
        solve_own(CPModel.zeros((4, 3), 1, np.float64), prior, site)


def test_what_is_said_does_not_depend_on_the_entries():
    with pytest.raises(DataError) as first:
        Site(tensor(9, 3), 1).check_sizes((4, 3))
    with pytest.raises(DataError) as second:
        Site(tensor(5, 7), 1).check_sizes((4, 3))
    assert str(first.value) == str(second.value)


def test_a_search():
    budget = Budget(1.0, 1e-6)
    search = PrivatePlan(BestOf((private_plan(),), budget, 0.5, 2), budget)
    ledger = Ledger(sf.Entry())
    with pytest.raises(DataError, match=OTHERS):
        carry_out_search(search, tensor(9, 3), 1, ledger, Entropy(1), [None])
    assert ledger.fits == 0


def test_coupled_fits():
    small = sf.Relations({"a": tensor(4, 3, bounds=None), "b": tensor(4, 3, 2, bounds=None)})
    large = sf.Relations({"a": tensor(9, 3, bounds=None), "b": tensor(9, 3, 2, bounds=None)})
    planned = CoupledShape.of(small, 1)
    plan = Plan(planned, sf.Multiplicative(sweeps=1))
    with pytest.raises(DataError, match=r"other modes than the 4 x 3( x 1)? levels"):
        carry_out(plan, Local(CoupledSite(large, 1, np.dtype(float))))
    alone = sf.Relations({"a": tensor(4, 3, bounds=None)})
    for site in (CoupledSite(alone, 1, np.dtype(float)), Site(tensor(4, 3), 1)):
        with pytest.raises(DataError, match="made for other relations"):
            carry_out(plan, Local(site))
    assert carry_out(plan, Local(CoupledSite(small, 1, np.dtype(float)))).model is not None
