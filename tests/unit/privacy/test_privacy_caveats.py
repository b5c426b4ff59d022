"""Promises that are worth little are warned of, from public numbers alone."""

import warnings

import numpy as np
import pytest

import sfumato as sf
from sfumato.auditing.trials import released
from sfumato.privacy.caveats import caveats, warn_of, without_warnings
from sfumato.privacy.guarantee import Guarantee


def ratings(users=20):
    return sf.synthetic.ratings_like(users, 15, 6, 300)


def privacy(epsilon=1.0, unit="user", users=20, **more):
    public = sf.Public(labels=True, units=users if unit == "user" else None)
    return sf.Privacy(epsilon, 1e-6, unit=unit, method="bias", public=public, **more)


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        (sf.Budget(20), False),
        (sf.Budget(20.5), True),
        (sf.Budget(1e6, 1e-6), True),
        (sf.ZCDP(0.5), False),
        (sf.ZCDP(10), True),
    ],
)
def test_an_epsilon_above_twenty_says_what_it_allows(budget, said):
    found = caveats(budget, sf.Entry())
    assert len(found) == said
    if said:
        assert "times as likely" in found[0]


def test_a_delta_that_lets_whole_units_through_is_warned_of():
    assert "delta 0.5 promises next to nothing" in caveats(sf.Budget(1, 0.5), sf.Entry())[0]
    assert not caveats(sf.Budget(1, 0.01), sf.Entry())


def test_the_size_of_a_huge_epsilon_is_told():
    assert "10^11 times" in caveats(sf.Budget(25), sf.Entry())[0]
    assert "10^434294 times" in caveats(sf.Budget(1e6), sf.Entry())[0]


@pytest.mark.parametrize("unit", [sf.Unit("user"), sf.UnitValues("user", 3)])
def test_few_levels_of_the_units_mode(unit):
    assert "user has at most 49 levels" in caveats(sf.Budget(1), unit, 49)[0]
    assert not caveats(sf.Budget(1), unit, 50)
    assert not caveats(sf.Budget(1), unit, None)
    assert not caveats(sf.Budget(1), sf.Entry(), 3)


def test_a_plan_and_a_fit_warn_and_the_guarantee_repeats_it():
    estimator = sf.CP(1, privacy=privacy(30.0))
    with pytest.warns(sf.PrivacyWarning) as told:
        estimator.plan(ratings().modes, bounds=(1, 5))
    said = [str(each.message) for each in told]
    assert ["epsilon 30" in said[0], "levels, which are few" in said[1], len(said)] == [True, True, 2]
    with pytest.warns(sf.PrivacyWarning) as told:
        guarantee = estimator.fit(ratings()).guarantee_
    assert guarantee.warnings == tuple(str(each.message) for each in told)
    assert "warning        epsilon 30 promises next to nothing" in str(guarantee)
    assert Guarantee.from_json(guarantee.to_json()) == guarantee


def test_what_is_usual_is_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = sf.CP(1, privacy=privacy(3.0, users=60)).fit(ratings(60))
        sf.CP(1, privacy=privacy(3.0, unit="entry")).fit(ratings())
    assert fitted.guarantee_.warnings == ()
    assert "warning" not in str(fitted.guarantee_)


def test_warnings_do_not_depend_on_the_entries():
    whole = ratings()
    less = whole.take(np.arange(whole.n_entries) % 3 > 0)
    said = []
    for tensor in (whole, less):
        with pytest.warns(sf.PrivacyWarning) as told:
            sf.CP(1, privacy=privacy()).fit(tensor)
        said.append([str(each.message) for each in told])
    assert said[0] == said[1]


def test_a_search_warns_once_of_its_whole_budget():
    search = sf.PrivateSearch([sf.CP(1), sf.CP(2)], privacy(25.0))
    with pytest.warns(sf.PrivacyWarning) as told:
        plan = search.plan(ratings().modes, bounds=(1, 5))
    assert len(told) == 2
    assert plan.caveats[0].startswith("epsilon 25")


def test_components_warn_of_their_epsilon():
    tensor = np.zeros((4, 4, 4))
    tensor[0, 0, 0] = 1.0
    settings = sf.Privacy(30, 1e-6, unit=sf.TensorEntry(0.1), seed=0)
    with pytest.warns(sf.PrivacyWarning, match="epsilon 30"):
        fitted = sf.PowerMethod(1, privacy=settings).fit(tensor)
    assert len(fitted.guarantee_.warnings) == 1


def test_attacks_and_baselines_are_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert released(sf.CP(1, privacy=privacy(30.0)), ratings(), 0)
        with without_warnings():
            warn_of(("something",))
    with pytest.warns(sf.PrivacyWarning, match="something"):
        warn_of(("something",))
