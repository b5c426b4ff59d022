"""Output perturbation with private or public other factors."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import sfumato as sf
from sfumato.engines.local import Local
from sfumato.errors import SettingError
from sfumato.models.multilinear import CPModel
from sfumato.models.shape import Shape
from sfumato.privacy.accounting import calibrate, epsilon_of
from sfumato.privacy.budgets import Budget
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.events import Composed
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.mechanisms import Gaussian, RowwiseVectorLaplace
from sfumato.privacy.units import Entry, Unit, UnitValues, Value
from sfumato.sites.memory import Site
from sfumato.solvers.as_printed.wei import PaperGradient
from sfumato.solvers.private.output import PrivateOutput
from sfumato.solvers.private.passes import PrivatePasses
from sfumato.solvers.protocol import Run

START = 50_000  # wei(seed) and a start of the same seed draw the same numbers: never use one for both
UNITS = [Value(), UnitValues("mode0", 40), Entry(), Unit("mode2", 200), Unit("mode0", 200)]


def facts_of(tensor, unit=None, **rest):
    given = {"bounds": (-1.0, 1.0), "entries": tensor.n_entries, **rest}
    unit = Value() if unit is None else unit
    shape = Shape.of(tensor.modes, (3, 3, 3), "cp", fit_mean=False, fit_biases=False)
    return Facts(shape, unit, **given)


def event(solver, facts):
    return Composed(tuple(charge.mechanism.event for charge in solver.charges(facts)))


def fitted(solver, facts, tensor, budget, seed):
    solver = solver.balanced(facts, budget)
    noise = calibrate(lambda x: event(replace(solver, noise=x), facts), budget)
    solver = replace(solver, noise=noise)
    local, state = Local(Site(tensor, 1)), solver.init(Run(START + seed), facts)
    with Ledger(facts.unit, budget).reserve(solver.charges(facts), Entropy(START + seed)) as reservation:
        for _ in range(solver.rounds(facts)):
            query = solver.ask(state)
            state, _ = solver.update(state, reservation.ask(partial(local.released, query)))
    made = solver.finish(state)
    assert made.own_prior is None
    return made.model


def true_features(seed):
    """The factors that wei(seed) planted, the last one left out: an oracle, to see the second stage."""
    rng = np.random.default_rng(seed)
    factors = [rng.standard_normal((20, 3)) for _ in range(3)]
    factors = [f / np.linalg.norm(f, axis=0) for f in factors]
    return CPModel.from_factors([*factors[:2], np.zeros((20, 3))])


def useless_features(seed):
    rng = np.random.default_rng(90_000 + seed)
    factors = [rng.standard_normal((20, 3)) for _ in range(2)]
    return CPModel.from_factors([*factors, np.zeros((20, 3))])


def ratio(others, epsilon, seed, unit=None, delta=0.0, **rest):
    data = sf.synthetic.wei("cp", seed=seed)
    facts = facts_of(data.train, unit, **rest)
    stage = others(seed) if callable(others) else others
    model = fitted(PrivateOutput(stage), facts, data.train, Budget(epsilon, delta), seed)
    truth = data.truth[tuple(data.test.coordinates)]
    miss = model.predict(data.test.coordinates) - truth
    return float(np.sqrt(np.mean(miss**2) / np.mean(truth**2)))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.key)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_never_far_beyond_predicting_zero(unit, epsilon):
    seeds = range(100, 104)
    assert np.mean([ratio(useless_features, epsilon, seed, unit) for seed in seeds]) <= 1.03
    if unit == Value():
        assert np.mean([ratio(PrivatePasses(), epsilon, seed, unit) for seed in seeds]) <= 1.03


@pytest.mark.parametrize(("unit", "most"), [(Value(), 0.4), (Entry(), 0.6)])
def test_good_features_are_put_to_use(unit, most):
    assert np.mean([ratio(true_features, 10.0, seed, unit) for seed in range(100, 104)]) < most


@pytest.mark.parametrize("unit", [Unit("mode2", 200), Unit("mode0", 200), UnitValues("mode0", 40)])
def test_good_features_are_put_to_use_for_whole_units(unit):
    assert np.mean([ratio(true_features, 1000.0, seed, unit) for seed in range(100, 103)]) < 0.7


def test_with_gaussian_noise_too():
    data = sf.synthetic.wei("cp", seed=100)
    facts = facts_of(data.train, Unit("mode2", 200))
    budget = Budget(50.0, 1e-5)
    solver = replace(PrivateOutput(true_features(100)), noise_law="gaussian", output_noise=0.2)
    assert isinstance(solver.charges(facts)[-1].mechanism, Gaussian)
    assert np.isfinite(fitted(solver, facts, data.train, budget, 1).rows).all()


def test_the_other_factors_are_charged_first():
    facts = facts_of(sf.synthetic.wei("cp").train)
    solver = PrivateOutput(PrivatePasses(passes=3, noise=2.0), output_noise=0.5, noise=4.0)
    charges = solver.charges(facts)
    assert [c.label for c in charges[:-1]] == [c.label for c in PrivatePasses(passes=3).charges(facts)]
    assert charges[-1].mechanism == RowwiseVectorLaplace(2.0)
    assert epsilon_of(event(solver, facts), 0.0) == pytest.approx(1 / 8 + 1 / 2)
    assert len(PrivateOutput(true_features(0)).charges(facts)) == 1


@pytest.mark.parametrize("budget", [Budget(1.0), Budget(1.0, 1e-6), Budget(0.1, 1e-3)])
def test_balanced_stages_spend_their_shares(budget):
    facts = facts_of(sf.synthetic.wei("cp").train)
    solver = PrivateOutput(PrivatePasses()).balanced(facts, budget, share=0.25)
    first, second = event(solver.stage, facts), solver.charges(facts)[-1].mechanism.event
    assert epsilon_of(first, 0.75 * budget.delta) <= 0.75 * budget.epsilon
    assert epsilon_of(first, 0.75 * budget.delta) >= 0.74 * budget.epsilon
    assert epsilon_of(second, 0.25 * budget.delta) <= 0.25 * budget.epsilon * (1 + 1e-12)
    assert epsilon_of(event(solver, facts), budget.delta) <= budget.epsilon * (1 + 1e-9)


def test_post_processing_of_the_first_stage_comes_before_the_last_question():
    """A stage with a round after its charges."""

    class Slow(PrivatePasses):
        def rounds(self, facts):
            return super().rounds(facts) + 2

        def update(self, state, released):
            if released is None:
                return replace(state, keep=state.keep / 2), None
            return super().update(state, released)

    data = sf.synthetic.wei("cp", seed=1).train
    facts = facts_of(data)
    models = []
    for stage in (PrivatePasses(noise=1e-6), Slow(noise=1e-6)):
        solver = PrivateOutput(stage, output_noise=1e12)  # the second stage changes nothing
        state, local = solver.init(Run(5), facts), Local(Site(data, 1))
        with Ledger(Value()).reserve(solver.charges(facts), Entropy(5)) as reservation:
            for _ in range(solver.rounds(facts)):
                query = solver.ask(state)
                state, _ = solver.update(state, reservation.ask(partial(local.released, query)))
        models.append(solver.finish(state).model)
    np.testing.assert_allclose(models[1].factors[0], models[0].factors[0] / 4)
    assert models[0].factors[0].any()


def test_every_row_gets_noise_where_presence_is_hidden():
    """Two data sets, one with entries in a single level: what is released has no row without noise."""
    data = sf.synthetic.wei("cp", seed=1).train
    lone = data.take(np.flatnonzero(data.coordinates[2] == 4))
    facts = facts_of(data, Entry())
    solver = PrivateOutput(true_features(1))
    with Ledger(Entry()).reserve(solver.charges(facts), Entropy(5)) as reservation:
        query = solver.ask(solver.init(Run(), facts))
        answer = reservation.ask(partial(Local(Site(lone, 1)).released, query))
    assert answer.values.shape == (20, 3)
    assert (answer.values != 0).all()
    assert np.isfinite(answer.deviation)  # one for all rows
    assert answer.public == ()  # neither how far each row can move, nor what was seen of it


def test_what_it_cannot_do_is_refused():
    facts = facts_of(sf.synthetic.wei("cp").train)
    public = true_features(0)
    for changed, message in (
        ({"unit": Unit("mode0")}, "max_entries"),
        ({"unit": Entry(), "entries": None}, "public number of entries"),
        ({"local": 1}, "every factor"),
    ):
        with pytest.raises(SettingError, match=message):
            PrivateOutput(public).check(replace(facts, **changed))
    with pytest.raises(SettingError, match="proven"):
        PrivateOutput(PaperGradient()).check(facts)
    with pytest.raises(SettingError, match="public model"):
        PrivateOutput(CPModel.zeros((3, 3, 3), 2)).check(facts)
    with pytest.raises(SettingError, match="noise_law must be one of"):
        PrivateOutput(public, noise_law="normal").check(facts)
