"""Whether sharing pays: what is expected of a site alone, beside fits, and how it turns with numbers."""

from dataclasses import replace
from math import sqrt

import pytest

import sfumato as sf
from sfumato.fit.outlook import Outlook
from sfumato.fit.planner import expected, expected_open
from sfumato.models.shape import Shape
from sfumato.privacy.facts import Facts

BUDGET = sf.Budget(10.0, 1e-6)


def facts(users=6000, items=3700, entries=800_000, unit=None, **trust):
    modes = (sf.Mode("user", users), sf.Mode("item", items))
    settled = sf.Trust(**trust) if trust else sf.Trust()
    return Facts(Shape(modes, (1, 1)), unit or sf.Entry(), (-2.0, 2.0), entries, 1.0, 0, settled)


@pytest.mark.parametrize(("users", "items", "entries"), [(600, 400, 32_000), (1500, 300, 60_000)])
def test_an_open_fit_comes_out_as_expected(users, items, entries):
    """On invented data of the profile: within 5%, where the values spread by one."""
    profile = sf.Profile(presence=0.0)
    public = facts(users, items, entries)
    data = sf.synthetic.typical(public.modes, entries, profile, seed=3).tensor
    train, test = data.split(0.1, seed=0)
    measured = sf.CP(16).fit(train).rmse(test) / test.values.std()
    promised = sqrt(expected_open(Outlook(replace(public, entries=train.n_entries), profile)).error)
    assert measured == pytest.approx(promised, rel=0.05)


def test_alone_is_the_limit_of_no_noise():
    """No private fit of the same entries is expected to beat it."""
    outlook = Outlook(facts())
    open_error = expected_open(outlook).error
    errors = [
        expected(outlook, sf.Budget(epsilon, 1e-6), "moments", 38).error for epsilon in (1, 10, 1000)
    ]
    assert errors == sorted(errors, reverse=True)
    assert open_error < errors[-1]


def test_a_small_site_gains_and_a_large_one_does_not():
    public = facts(sites=20)
    small, large = (sf.sharing(public, BUDGET, entries_of_site=n) for n in (8_000, 400_000))
    assert small.pays
    assert small.clear
    assert not large.pays
    assert small.together == large.together
    assert (small.people, large.people) == (60, 3000)


def test_it_pays_less_the_more_sites_have_to_add_noise_of_their_own():
    """With as many entries at the site that asks."""
    kinds = {
        kind: sf.sharing(facts(kind=kind, sites=10, tolerate=tolerate), BUDGET)
        for kind, tolerate in (("one owner", 0), ("secure shares", 1), ("each site", 0))
    }
    errors = [found.together.rmse for found in kinds.values()]
    assert errors == sorted(errors)
    assert len({found.alone for found in kinds.values()}) == 1
    assert kinds["one owner"].entries == 80_000


@pytest.mark.parametrize("unit", [sf.Entry(), sf.Unit("user")])
def test_more_budget_never_makes_it_pay_less(unit):
    public = facts(unit=unit, sites=50)
    gains = [
        (found := sf.sharing(public, sf.Budget(epsilon, 1e-6))).alone - found.together.rmse
        for epsilon in (0.1, 1, 10, 100)
    ]
    assert gains == sorted(gains)
    assert gains[0] < 0 < gains[-1]


def test_it_is_said_in_a_sentence():
    found = sf.sharing(facts(sites=20), BUDGET, entries_of_site=8_000)
    said = found.in_words(2.0, "users")
    assert said.startswith("Sharing is expected to pay for a site with 8,000 entries of 60 users: RMSE")
    assert f"{2 * found.alone:.3f} alone" in said
    poor = sf.sharing(facts(sites=2), sf.Budget(0.1, 1e-6)).in_words()
    assert "Sharing is not expected to pay for" in poor


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(sf.SettingError, match="nobody to share with"):
        sf.sharing(facts(), BUDGET)
    for entries in (0, 800_001):
        with pytest.raises(sf.SettingError, match="entries_of_site"):
            sf.sharing(facts(sites=2), BUDGET, entries_of_site=entries)
