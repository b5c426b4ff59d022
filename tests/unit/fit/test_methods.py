"""Which method serves which unit and budget."""

import numpy as np
import pytest

import sfumato as sf
from sfumato.fit.admit import Protected
from sfumato.fit.choose import Choice, choose, make_facts, make_plan
from sfumato.models.shape import Shape
from sfumato.privacy.facts import Facts
from sfumato.solvers.private.free_columns import SLOPES
from sfumato.solvers.private.moments.settings import usual_rank
from sfumato.solvers.protocol import Run

MODES = (sf.Mode("user", 6000), sf.Mode("item", 4000))


def facts(unit, entries=800_000, *, local=None, **fitted):
    return Facts(Shape(MODES, (2, 2), **fitted), unit, (1, 5), entries, local=local)


def test_factors_where_noise_is_thin_and_biases_elsewhere():
    assert choose(facts(sf.Entry()), sf.Budget(3.0, 1e-6)).method == "alternating"
    assert choose(facts(sf.Entry()), sf.Budget(0.1, 1e-6)).method == "bias"
    assert choose(facts(sf.Entry(), entries=8_000), sf.Budget(3.0, 1e-6)).method == "bias"


@pytest.mark.parametrize(("unit", "enough"), [(sf.Entry(), 3.0), (sf.Unit("user"), 10.0)], ids=str)
def test_where_rows_stay_with_their_owners_moments_are_taken_with_columns_or_without(unit, enough):
    many, few = facts(unit, local=0), facts(unit, entries=8_000, local=0)
    assert choose(many, sf.Budget(enough, 1e-6)) == Choice("moments", usual_rank(many))
    assert choose(many, sf.Budget(0.1, 1e-6)) == Choice("moments", 2)  # slopes on biases and counts
    assert choose(few, sf.Budget(enough, 1e-6)) == Choice("moments", 2)
    assert choose(many, sf.Budget(enough, 1e-6), most=5) == Choice("moments", 5)


def test_where_all_rows_of_a_unit_are_released_factors_come_from_gradients():
    assert choose(facts(sf.Unit("user")), sf.Budget(10.0, 1e-6)).method == "gradient"
    assert choose(facts(sf.Unit("user")), sf.Budget(0.1, 1e-6)).method == "bias"
    assert choose(facts(sf.Entry(), fit_biases=False), sf.Budget(10.0, 1e-6)).method == "gradient"


def test_a_rank_that_is_given_is_the_most_and_one_that_is_not_is_planned():
    budget = sf.Budget(10.0, 1e-6)
    free = choose(facts(sf.Entry()), budget).rank
    assert free > 2
    assert choose(facts(sf.Entry()), budget, most=2).rank == 2
    assert choose(facts(sf.Entry()), budget, most=100).rank == free


def planned(estimator, epsilon, method="auto", sizes=(6000, 4000), entries=800_000, **more):
    modes = [sf.Mode(name, n) for name, n in zip(("user", "item"), sizes, strict=True)]
    public = sf.Public(entries=entries, labels=True, **more)
    privacy = sf.Privacy(epsilon, 1e-6, unit="entry", method=method, public=public)
    plan = estimator.set_params(privacy=privacy).plan(modes, bounds=(1, 5))
    return plan, plan.task.facts.shape.zeros().ranks


def test_the_model_has_the_rank_that_was_planned():
    plan, free = planned(sf.CP(), 10.0)
    assert plan.task.solver.name == "alternating"
    assert free[0] == choose(plan.task.facts, plan.budget).rank
    assert planned(sf.CP(2), 10.0)[1] == (2, 2)
    assert planned(sf.CP(), 10.0, "alternating")[1] == free
    assert planned(sf.CP(7), 1.0, "alternating")[1] == (7, 7)  # asked for by name: as it is
    found = free[0] - SLOPES  # the others rest on released biases and counts, of CP models alone
    assert planned(sf.Tucker(), 10.0)[1] == (found, found)
    assert planned(sf.Tucker([2, 3]), 10.0)[1] == (2, 3)


def test_no_factors_are_kept_where_none_are_worth_it():
    plan, ranks = planned(sf.CP(), 0.1)
    assert plan.task.solver.name == "private biases"
    assert ranks == (1, 1)


def test_methods_that_are_not_planned_have_the_usual_rank():
    assert planned(sf.CP(), 1.0, "gradient")[1] == (8, 8)
    assert planned(sf.CP(), 1.0, "gradient", sizes=(6000, 5))[1] == (5, 5)
    assert planned(sf.Tucker(), 1.0, "gradient", sizes=(6000, 3))[1] == (4, 3)


def test_what_is_assumed_of_the_data_moves_the_choice():
    dull = sf.Profile(biases=0.5, interactions=0.01)
    assert planned(sf.CP(), 3.0)[0].task.solver.name == "alternating"
    assert planned(sf.CP(), 3.0, profile=dull)[0].task.solver.name == "private biases"


@pytest.mark.parametrize("unit", [sf.Entry(), sf.Unit("user"), sf.Value()])
@pytest.mark.parametrize("local", [None, 0])
def test_more_budget_or_more_entries_never_lead_back_to_a_simpler_method(unit, local):
    simple = ["constant", "bias"]

    def steps(entries, epsilon):
        method = choose(facts(unit, int(entries), local=local), sf.Budget(epsilon, 1e-6)).method
        return simple.index(method) if method in simple else len(simple)

    for entries in (10_000, 1_000_000):
        by_budget = [steps(entries, epsilon) for epsilon in np.geomspace(0.05, 20, 8)]
        assert by_budget == sorted(by_budget)
    for epsilon in (0.3, 3.0):
        by_entries = [steps(entries, epsilon) for entries in np.geomspace(1e3, 2e7, 8)]
        assert by_entries == sorted(by_entries)


def test_values_are_perturbed_where_that_is_worth_it():
    assert choose(facts(sf.Value()), sf.Budget(5.0)).method == "input"
    assert choose(facts(sf.Value()), sf.Budget(0.5)).method == "bias"
    assert choose(facts(sf.Value(), fit_biases=False), sf.Budget(1.0)).method == "input"
    assert choose(facts(sf.Value(), fit_biases=False), sf.Budget(0.5)).method == "constant"
    bare = facts(sf.Value(), fit_biases=False, fit_mean=False)
    assert choose(bare, sf.Budget(0.5)).method == "input"


def test_without_a_delta_only_biases_hide_presence():
    assert choose(facts(sf.Entry()), sf.Budget(10.0)).method == "bias"
    assert choose(facts(sf.UnitValues("user", 9)), sf.Budget(10.0, 1e-6)).method == "bias"


def test_zcdp_budgets_choose_too():
    assert choose(facts(sf.Entry()), sf.ZCDP(1.0)).method == "alternating"
    assert choose(facts(sf.Entry()), sf.ZCDP(1e-4)).method == "bias"


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"method": "gradient"}, "delta"),
        ({"method": "alternating"}, "delta"),
        ({"method": "output"}, "delta"),
        ({"method": "input", "unit": "value", "noise": "gaussian"}, "delta"),
        ({"method": "input", "unit": "value", "noise": "vector"}, "one of"),
        ({"method": "bias", "noise": "laplace"}, "one of"),
        ({"method": "bias", "analysis": "paper"}, "paper"),
        ({"method": "gradient", "noise": "residual"}, "value"),
        ({"method": "input"}, "cells"),
    ],
)
def test_what_no_method_serves_is_said_with_what_would(settings, match):
    privacy = sf.Privacy(
        **{"epsilon": 1.0, "unit": "entry", "public": sf.Public(labels=True), **settings}
    )
    protected = Protected.by(privacy, MODES)
    known = make_facts(Shape(MODES, (2, 2)), protected, (1, 5), 800_000)
    with pytest.raises(sf.SettingError, match=match):
        make_plan(known, protected, privacy, privacy.method, Run())
