"""What is expected of noisy values, and what is chosen where values are protected one by one."""

import numpy as np
import pytest

import sfumato as sf
from sfumato.data.profile import Profile
from sfumato.data.tensor import Mode
from sfumato.fit.outlook import Outlook
from sfumato.fit.values import best_for_values, expected_input
from sfumato.models.shape import Shape
from sfumato.privacy.facts import Facts
from sfumato.privacy.units import Value

LARGE, SMALL, CUBE = ((943, 1682), 90_000), ((140, 12), 1_300), ((52, 52, 46), 11_000)


def facts_of(sizes, entries, local=None, **settings):
    modes = tuple(Mode(f"m{i}", size) for i, size in enumerate(sizes))
    shape = Shape.of(modes, (2,) * len(sizes), "cp", **settings)
    return Facts(shape, Value(), (0.0, 10.0), entries, local=local)


@pytest.mark.parametrize("case", [LARGE, SMALL, CUBE])
def test_more_information_is_expected_to_leave_less_error(case):
    outlook = Outlook(facts_of(*case))
    errors = [expected_input(outlook, passed, 3).error for passed in (0.02, 0.1, 0.5, 1.0)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] > outlook.profile.noise  # what nothing explains
    explained = [expected_input(outlook, 1.0, rank).explained for rank in (1, 3, 6)]
    assert explained == sorted(explained)


@pytest.mark.parametrize("case", [LARGE, SMALL, CUBE])
@pytest.mark.parametrize("budget", [sf.Budget, lambda epsilon: sf.Budget(epsilon, 1e-6)])
def test_from_some_epsilon_on_values_are_perturbed_and_never_below(case, budget):
    chosen = [best_for_values(facts_of(*case), budget(e)).method for e in np.geomspace(0.05, 20, 12)]
    assert chosen[0] in ("constant", "bias")
    first = chosen.index("input") if "input" in chosen else len(chosen)
    assert "input" not in chosen[:first]
    if case != CUBE:  # where hardly any interaction can be found, biases do as well
        assert set(chosen[first:]) == {"input"}


def test_with_few_entries_noise_on_values_pays_sooner():
    assert best_for_values(facts_of(*LARGE), sf.Budget(2.0)).method == "bias"
    assert best_for_values(facts_of(*SMALL), sf.Budget(2.0)).method == "input"


def test_ranks_are_at_most_what_was_asked_for():
    best = best_for_values(facts_of(*LARGE), sf.Budget(10.0))
    assert best.rank >= 5
    assert best_for_values(facts_of(*LARGE), sf.Budget(10.0), most=2).rank == 2
    assert best_for_values(facts_of(*LARGE), sf.Budget(0.1)).rank is None
    small = facts_of((40, 3), 110)
    assert best_for_values(small, sf.Budget(10.0)).rank == 3


def test_what_an_owner_keeps_is_not_perturbed():
    kept = facts_of(*LARGE, local=0)
    assert best_for_values(kept, sf.Budget(10.0)).method == "bias"


def test_a_profile_without_interactions_makes_biases_do():
    plain = Profile(biases=0.3, interactions=0.0)
    assert best_for_values(facts_of(*LARGE), sf.Budget(3.0), profile=plain).method == "bias"
    assert best_for_values(facts_of(*LARGE), sf.Budget(3.0)).method == "input"


def test_zcdp_budgets_choose_too():
    assert best_for_values(facts_of(*LARGE), sf.ZCDP(1e-3)).method == "bias"
    assert best_for_values(facts_of(*LARGE), sf.ZCDP(200.0)).method == "input"


def test_the_expectation_is_what_planted_fits_reach():
    """Two shapes that follow the profile, at one budget or two: within a tenth of what is expected.

    The average of two draws; the spread of single ones is about a hundredth.
    """
    shapes = ((200, 120, 7_000, (10.0,)), (120, 80, 3_000, (3.0, 10.0)))
    for users, items, entries, epsilons in shapes:
        ratings = sf.synthetic.ratings_like(users, items, 5, entries, seed=3)
        train, test = ratings.split(0.2, seed=0)
        constant = sf.Biases(sweeps=0).fit(train).rmse(test)
        shape = Shape.of(train.modes, (5,) * train.order, "cp")
        for epsilon in epsilons:
            facts = Facts(shape, Value(), (1.0, 5.0), train.n_entries)
            solver = sf.InputPerturbation(1 / epsilon)
            expected = expected_input(Outlook(facts), solver.passed(facts), 5).error ** 0.5
            reached = []
            for seed in range(2):
                method = sf.InputPerturbation(starts=2)
                privacy = sf.Privacy(epsilon, unit="value", method=method, seed=seed)
                reached.append(sf.CP(5, privacy=privacy).fit(train.with_values(train.values, (1, 5))))
            ratio = np.mean([model.rmse(test) for model in reached]) / constant
            assert ratio == pytest.approx(expected, rel=0.1)
