"""Private fits over sites of several owners, played in one process: what is drawn and promised."""

from dataclasses import replace
from functools import cache
from math import sqrt

import numpy as np
import pytest

import sfumato as sf
from sfumato.engines.local import Local
from sfumato.errors import SettingError
from sfumato.fit.completion import carry_out_private
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.mechanisms import Gaussian, Laplace
from sfumato.sites.memory import Site
from sfumato.sites.parts import dealt_by

EACH = sf.Trust("each site", 4)
SHARES = sf.Trust("secure shares", 4, 1)
UNITS = pytest.mark.parametrize("unit", ["entry", "user"])


@cache
def ratings():
    """Planted ratings between public bounds."""
    generator = np.random.default_rng(0)
    cells = np.array(np.unravel_index(generator.permutation(6000)[:3000], (200, 30)), np.int32)
    rows = generator.normal(size=(200, 2)), generator.normal(size=(30, 2))
    values = 3 + (rows[0][cells[0]] * rows[1][cells[1]]).sum(1) + 0.5 * generator.normal(size=3000)
    modes = (sf.Mode("user", 200), sf.Mode("item", 30))
    return sf.SparseTensor(cells, np.clip(values, 1, 5), modes, (1.0, 5.0))


def private(unit="entry", trust=None, epsilon=8.0, delta=1e-5, **rest):
    public = sf.Public(labels={"item": range(30), "user": range(200)}, entries=3000)
    settings = {} if trust is None else {"trust": trust}
    settings |= {"local": "user", "seed": 3, **rest}
    privacy = sf.Privacy(epsilon, delta, unit=unit, public=public, **settings)
    return sf.CP(privacy=privacy)


def plan_of(**settings):
    data = ratings()
    return private(**settings).plan(data.modes, bounds=data.bounds)


@UNITS
def test_one_site_that_adds_all_noise_is_the_plain_fit(unit):
    plain, one = (private(unit, trust).fit(ratings()) for trust in (None, sf.Trust("each site", 1)))
    for a, b in zip(plain.model_.parameters, one.model_.parameters, strict=True):
        assert np.array_equal(a, b)


@UNITS
@pytest.mark.parametrize("trust", [EACH, SHARES], ids=lambda trust: trust.kind)
def test_epsilon_is_not_multiplied_by_the_sites(unit, trust):
    plain, apart = plan_of(unit=unit), plan_of(unit=unit, trust=trust)
    ledger = Ledger(apart.task.unit, apart.budget)
    guarantee = apart.guarantee(ledger, Entropy(1))
    assert guarantee.epsilon <= 8.0
    assert guarantee.epsilon == pytest.approx(plain.guarantee(ledger, Entropy(1)).epsilon, rel=1e-3)
    assert guarantee.trust == trust.in_words()
    assert set(trust.assumptions) <= set(guarantee.assumptions)
    assert guarantee.proof.endswith("proofs/shares.md")


@pytest.mark.parametrize(
    ("trust", "more"), [(EACH, 2.0), (SHARES, sqrt(4 / 3))], ids=lambda x: getattr(x, "kind", None)
)
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_solvers_know_the_noise_of_the_sum(trust, more, epsilon):
    """The same draws cost the same; what a solver takes for its noise is that of all sites together."""
    plan = plan_of(trust=trust, epsilon=epsilon)
    told = plan.task.solver.charges(plan.task.facts)
    for charge, whole in zip(plan.charges, told, strict=True):
        assert isinstance(charge.mechanism, Gaussian | Laplace)
        assert whole.mechanism.noise_multiplier == pytest.approx(
            more * charge.mechanism.noise_multiplier
        )


class Counted(Local):
    """Keeps what was released of each question beside the sums without noise."""

    def __init__(self, *sites):
        super().__init__(*sites)
        self.seen = []

    def released(self, query, draw, trust):
        exact = self.clipped(query).numbers
        made = super().released(query, draw, trust)
        self.seen.append((made.values - exact, made.deviation))
        return made


@pytest.mark.parametrize("trust", [EACH, SHARES], ids=lambda trust: trust.kind)
@pytest.mark.parametrize("factor", [1.0, 2 / 3, 3 / 2])
def test_noise_in_sums_is_what_is_said(trust, factor):
    """Chi-square at false-alarm rate 1e-9; two thirds and three halves of the noise are noticed."""
    from scipy import stats

    plan = plan_of(trust=trust, epsilon=1.0, method="alternating")
    engine = Counted(*(Site(part, 1) for part in dealt_by(ratings(), 0, trust.sites)))
    carry_out_private(plan, engine, Ledger(plan.task.unit, plan.budget), Entropy(5))
    parts = [noise.ravel() / (deviation * factor) for noise, deviation in engine.seen]
    noise = np.concatenate([part for part in parts if part.size])
    law = stats.chi2(noise.size)
    assert noise.size > 100
    accepted = 2 * min(law.cdf(noise @ noise), law.sf(noise @ noise)) > 1e-9
    assert accepted == (factor == 1)


def test_secure_shares_are_gaussian():
    """Where one owner would take Laplace noise, or delta is zero."""
    entry = {"epsilon": 1.0, "method": "bias"}
    assert isinstance(plan_of(**entry).charges[0].mechanism, Laplace)
    assert isinstance(plan_of(trust=EACH, **entry).charges[0].mechanism, Laplace)
    assert isinstance(plan_of(trust=SHARES, **entry).charges[0].mechanism, Gaussian)
    with pytest.raises(SettingError, match="give a delta above zero"):
        plan_of(trust=SHARES, delta=0.0)
    assert plan_of(trust=EACH, delta=0.0).charges


@pytest.mark.parametrize("method", [sf.PrivateSGD(rate=0.1), "input", "output"], ids=str)
def test_methods_that_do_not_add_up_are_refused_before_anything_is_charged(method, tmp_path):
    ledger = tmp_path / "ledger.json"
    unit = "value" if method in ("input", "output") else "entry"
    public = sf.Public(labels=True, entries=3000)
    privacy = sf.Privacy(
        1.0, 1e-6, unit=unit, method=method, local=None, public=public, ledger=ledger, trust=EACH
    )
    with pytest.raises(SettingError, match="add up"):
        sf.CP(privacy=privacy).fit(ratings())
    assert not ledger.exists()


@pytest.mark.parametrize("unit", ["value", "entry"])
@pytest.mark.parametrize("epsilon", [0.1, 30.0])
def test_what_is_chosen_adds_up(unit, epsilon):
    public = sf.Public(labels=True, entries=3000)
    privacy = sf.Privacy(epsilon, 1e-6, unit=unit, local=None, public=public, seed=1, trust=EACH)
    fitted = sf.CP(privacy=privacy).fit(ratings())
    assert fitted.guarantee_.trust == EACH.in_words()
    assert np.isfinite(fitted.predict(ratings())).all()


def test_users_at_several_sites_need_more_noise():
    one, several = (
        plan_of(unit="user", trust=sf.Trust("each site", 4, sites_of_unit=m)) for m in (1, 4)
    )
    assert several.task.noise == pytest.approx(2 * one.task.noise, rel=1e-3)
    with pytest.raises(SettingError, match="lies at one site"):
        plan_of(trust=sf.Trust("each site", 4, sites_of_unit=2))


def test_what_is_for_one_owner_says_so():
    privacy = private(trust=EACH).privacy
    with pytest.raises(SettingError, match="a search is for one owner's data: leave trust out"):
        sf.PrivateSearch([sf.CP(1), sf.CP(2)], privacy).fit(ratings())
    decomposition = sf.Privacy(1.0, 1e-6, unit=sf.TensorEntry(1.0), trust=EACH)
    with pytest.raises(SettingError, match="the power method is for one owner's data"):
        sf.PowerMethod(2, privacy=decomposition).fit(np.zeros((3, 3, 3)))
    with pytest.raises(SettingError, match="trust must be a Trust"):
        replace(privacy, trust="each site")


def test_other_numbers_of_sites_than_planned_are_refused():
    plan, data = plan_of(trust=EACH), ratings()
    engine = Local(*(Site(part, 1) for part in dealt_by(data, 0, 3)))
    ledger = Ledger(plan.task.unit, plan.budget)
    with pytest.raises(SettingError, match="for 4 sites and the data lie in 3"):
        carry_out_private(plan, engine, ledger, Entropy(1))
    assert not ledger.events


def test_a_cluster_has_one_owner():
    pytest.importorskip("ray")
    from sfumato.engines.ray import RayEngine

    with pytest.raises(SettingError, match="for sites of several owners, and a RayEngine has one"):
        RayEngine.check_trust(object.__new__(RayEngine), EACH)
    RayEngine.check_trust(object.__new__(RayEngine), sf.Trust())


def test_sites_without_entries_are_sites_too():
    """There may be more sites than users, and levels that nobody has."""
    data = ratings()
    few = data.take(data.coordinates[0] < 20)
    fitted = private(trust=sf.Trust("each site", 8)).fit(few)
    assert np.isfinite(fitted.predict(few)).all()
