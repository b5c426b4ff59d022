"""Private fits of several relations: what they are charged, what they find, what they shrink away."""

from math import isclose

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sfumato as sf
from sfumato.privacy.accounting import epsilon_of
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.events import Composed, GaussianEvent
from sfumato.privacy.ledger import Charge, Draw
from sfumato.privacy.mechanisms import Gaussian, Laplace
from sfumato.sites.memory import Site
from sfumato.sites.several import RelationSites
from sfumato.solvers.private.coupled import Drawn, alongside

USERS, ITEMS, TAGS = 300, 60, 20


def planted(seed, *, helps, cold=0, users=USERS):
    """Ratings and counts of the same users: from the same factors, or from others."""
    g = np.random.default_rng(seed)
    taste, other = g.standard_normal((2, users, 2))
    items, tags = g.standard_normal((ITEMS, 2)), g.standard_normal((TAGS, 2))
    counts = g.poisson(np.exp(0.5 + 0.6 * (taste if helps else other) @ tags.T)).clip(0, 20)
    values = 3 + 0.4 * g.standard_normal(ITEMS) + 0.6 * taste @ items.T
    values = (values + 0.5 * g.standard_normal(values.shape)).clip(0, 6)
    known = g.random(values.shape) < 0.5
    known[:cold] = False
    modes = {name: sf.Mode(name, n) for name, n in (("user", users), ("item", ITEMS), ("tag", TAGS))}

    def tensor(numbers, there, name, bounds):
        cells = np.stack(np.nonzero(there))
        return sf.SparseTensor(cells, numbers[there], (modes["user"], modes[name]), bounds)

    ratings = tensor(values, known, "item", (0.0, 6.0))
    side = tensor(counts.astype(float), np.ones_like(counts, bool), "tag", (0.0, 20.0))
    train, test = ratings.split(0.2, seed=seed)
    return train, test, side, tensor(values, ~known, "item", (0.0, 6.0))


def privacy(train, side, unit, epsilon=3.0, public=(), users=USERS, **rest):
    labels = {"user": range(users), "item": range(ITEMS), "tag": range(TAGS)}
    said = {"ratings": sf.Public(entries=train.n_entries), "tags": sf.Public(entries=side.n_entries)}
    said |= dict.fromkeys(public, True)
    if "local" not in rest:
        rest["local"] = "user"
    return sf.Privacy(
        epsilon, 1e-6, unit=unit, seed=0, public=sf.Public(labels=labels, relations=said), **rest
    )


def single(train, unit, epsilon=3.0, users=USERS):
    labels = {"user": range(users), "item": range(ITEMS)}
    public = sf.Public(labels=labels, entries=train.n_entries)
    return sf.Privacy(epsilon, 1e-6, unit=unit, local="user", seed=0, public=public)


def _sizes(train):
    return sf.Public(labels={"user": range(USERS), "item": range(ITEMS)}, entries=train.n_entries)


# -- charges --------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0.5, 50), st.sets(st.integers(0, 2), min_size=1)), min_size=1))
@settings(max_examples=100, deadline=None)
def test_charges_alongside_add_up_to_the_largest_sum_at_every_moment(draws):
    for law, power in ((Gaussian, -2), (Laplace, -1)):
        drawn = tuple(
            Drawn(0, tuple(concerns), Charge("draw", law(multiplier))) for multiplier, concerns in draws
        )
        spent, charged = np.zeros(3), 0.0
        for each, charge in zip(drawn, alongside(drawn, 3), strict=True):
            assert charge.mechanism.noise_multiplier == each.charge.mechanism.noise_multiplier
            spent[list(each.concerns)] += each.charge.mechanism.noise_multiplier**power
            event = charge.mechanism.event
            charged += event.noise_multiplier**-2 if isinstance(event, GaussianEvent) else event.epsilon
            assert isclose(charged, spent.max(), rel_tol=1e-9)


@pytest.mark.parametrize("unit", ["entry", "user"])
def test_a_plan_spends_its_budget_and_no_relation_more(unit):
    train, _, side, _ = planted(0, helps=True)
    plan = sf.Coupled(privacy=privacy(train, side, unit)).plan({"ratings": train, "tags": side})
    assert 2.9 < epsilon_of(plan.event, 1e-6) <= 3.0
    solver, facts = plan.task.solver, plan.task.facts
    for part in range(2):
        seen = [each.charge.mechanism for each in solver.draws(facts) if part in each.concerns]
        if unit == "user":
            seen = [each.charge.mechanism for each in solver.draws(facts)]
        event = Composed(tuple(GaussianEvent(each.noise_multiplier) for each in seen))
        assert epsilon_of(event, 1e-6) <= 3.0 * (1 + 1e-9)


def test_what_is_planned_is_what_is_asked():
    """Charges are listed before relations are fitted, and noise is drawn by them."""
    train, _, side, _ = planted(0, helps=True)
    model = sf.Coupled(privacy=privacy(train, side, "entry"))
    plan = model.plan({"ratings": train, "tags": side})
    solver, facts = plan.task.solver, plan.task.facts
    state = solver.init(plan.run, facts)
    site = RelationSites([train, side], 1)
    for drawn, charge in zip(solver.draws(facts), plan.charges, strict=True):
        beside = state.solver.charges(facts.parts[drawn.part])
        assert drawn.charge.label.endswith(beside[state.done].label)
        assert charge.mechanism.noise_multiplier == beside[state.done].mechanism.noise_multiplier
        query = solver.ask(state)
        state, _ = solver.update(state, Draw(charge, Entropy(1)).release(query.clipped(site)))
    assert state.current is None


# -- one relation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["entry", "user", "value"])
def test_one_relation_has_the_bits_of_the_single_fit(unit):
    train, test, _, _ = planted(1, helps=True, users=60)
    own = (
        single(train, unit, users=60) if unit != "value" else sf.Privacy(3.0, 1e-6, unit="value", seed=0)
    )
    alone = sf.CP(privacy=own).fit(train)
    coupled = sf.Coupled(privacy=own).fit({"ratings": train})
    (model,) = coupled.model_.models
    assert np.array_equal(model.rows, alone.model_.rows)
    assert np.array_equal(model.biases, alone.model_.biases)
    assert coupled.guarantee_ == alone.guarantee_
    assert coupled.rmse("ratings", test) == alone.rmse(test)


# -- effects of pairs ------------------------------------------------------------------------------


def visits(seed, *, told=1.0):
    """Owners at places, who differ there by themselves; a public table tells of the places."""
    g = np.random.default_rng(seed)
    sizes = (150, 40, 5)
    pairs = np.stack([g.integers(0, n, 700) for n in sizes[:2]])
    cells = np.vstack([np.repeat(pairs, 3, 1), g.integers(0, 5, 2100)])
    cells = np.unique(cells, axis=1)
    hidden, taste = g.standard_normal((40, 2)), g.standard_normal((150, 2))
    effects = g.standard_normal(sizes[:2]) + told * taste @ hidden.T
    values = 3 + 0.7 * effects[cells[0], cells[1]] + 0.4 * g.standard_normal(cells.shape[1])
    modes = tuple(sf.Mode(n, s) for n, s in zip(("user", "place", "part"), sizes, strict=True))
    main = sf.SparseTensor(cells, np.clip(values, 0, 6), modes, (0.0, 6.0))
    about = hidden @ g.standard_normal((2, 8)) + 0.3 * g.standard_normal((40, 8))
    every = np.indices(about.shape).reshape(2, -1)
    return main, sf.SparseTensor(every, about.ravel(), (modes[1], sf.Mode("tag", 8)))


def of_visits(main, local, **rest):
    labels = {"user": range(150), "place": range(40), "part": range(5), "tag": range(8)}
    said = {"visits": sf.Public(entries=main.n_entries), "tags": True}
    public = sf.Public(labels=labels, relations=said)
    return sf.Privacy(10.0, 1e-5, unit="entry", local=local, seed=0, public=public, **rest)


def alone(main, local):
    labels = {mode.name: range(mode.size) for mode in main.modes}
    public = sf.Public(labels=labels, entries=main.n_entries)
    return sf.Privacy(10.0, 1e-5, unit="entry", local=local, seed=0, public=public)


def test_owners_solve_effects_of_pairs_and_slopes_on_tables_together():
    main, side = visits(0)
    train, test = main.split(0.2, seed=0)
    single = sf.CP(privacy=alone(train, "user")).fit(train)
    assert single.method_ == "pairs"
    model = sf.Coupled(privacy=of_visits(train, "user")).fit({"visits": train, "tags": side})
    only = of_visits(train, "user", method="bias")
    slopes = sf.Coupled(privacy=only).fit({"visits": train, "tags": side})
    reached = model.rmse("visits", test)
    assert reached < 0.97 * min(single.rmse(test), slopes.rmse("visits", test))


def test_released_pairs_are_those_of_the_fit_without_tables_and_the_plan_says_so():
    """The same draws, and with the same noise the same model."""
    main, side = visits(1)
    beside = sf.Coupled(privacy=of_visits(main, None)).plan({"visits": main, "tags": side})
    single = sf.CP(privacy=alone(main, None)).plan(main.modes, bounds=main.bounds)
    assert any("not asked about" in line for line in beside.task.settings_in_words)
    assert beside.charges == single.charges
    made = []
    for plan in (beside, single):
        solver, state = plan.task.solver, plan.task.solver.init(plan.run, plan.task.facts)
        for number, charge in enumerate(plan.charges):
            answer = solver.ask(state).clipped(Site(main, 1))
            state, _ = solver.update(state, Draw(charge, Entropy(number)).release(answer))
        made.append(solver.finish(state).model)
    assert np.array_equal(made[0].rows, made[1].rows)
    assert np.any(made[0].rows)


def test_pairs_are_for_the_first_relation_and_refused_elsewhere():
    main, _ = visits(2)
    both = {"visits": main, "again": main}
    said = {name: sf.Public(entries=main.n_entries) for name in both}
    public = sf.Public(labels={mode.name: range(mode.size) for mode in main.modes}, relations=said)
    own = sf.Privacy(10.0, 1e-5, unit="entry", method="pairs", public=public)
    with pytest.raises(sf.SettingError, match="'pairs' serves the first"):
        sf.Coupled(privacy=own).plan(both)


# -- what it finds --------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["entry", "user"])
@pytest.mark.parametrize("public", [(), ("tags",)])
def test_a_table_that_carries_the_signal_helps(unit, public):
    train, test, side, _ = planted(2, helps=True, users=1500)
    own = privacy(train, side, unit, public=public, users=1500)
    model = sf.Coupled(privacy=own).fit({"ratings": train, "tags": side})
    alone = sf.CP(privacy=single(train, unit, users=1500)).fit(train)
    assert model.rmse("ratings", test) < 0.97 * alone.rmse(test)


@pytest.mark.parametrize("unit", ["entry", "user"])
def test_a_table_that_misleads_is_shrunk_away(unit):
    train, test, side, _ = planted(3, helps=False)
    model = sf.Coupled(privacy=privacy(train, side, unit)).fit({"ratings": train, "tags": side})
    alone = sf.CP(privacy=single(train, unit)).fit(train)
    assert model.rmse("ratings", test) < 1.03 * alone.rmse(test)


def test_who_has_rated_nothing_is_predicted_by_other_tables():
    train, _, side, hidden = planted(4, helps=True, cold=60, users=1500)
    own = privacy(train, side, "entry", epsilon=5.0, users=1500)
    model = sf.Coupled(privacy=own).fit({"ratings": train, "tags": side})
    alone = sf.CP(privacy=single(train, "entry", 5.0, users=1500)).fit(train)
    cold = hidden.take(np.flatnonzero(hidden.coordinates[0] < 60))
    assert model.rmse("ratings", cold) < 0.9 * alone.rmse(cold)


@pytest.mark.parametrize("epsilon", [0.01, 0.1])
@pytest.mark.parametrize(("unit", "local"), [("entry", "user"), ("entry", None), ("user", "user")])
def test_under_much_noise_it_is_no_worse_than_a_constant(epsilon, unit, local):
    train, test, side, _ = planted(5, helps=True)
    alone = sf.Privacy(epsilon, 1e-6, unit=unit, local=local, seed=0, public=_sizes(train))
    constant = sf.Biases(sweeps=0, privacy=alone).fit(train).rmse(test)
    for public in ((), ("tags",)):
        own = privacy(train, side, unit, epsilon, public=public, local=local)
        model = sf.Coupled(privacy=own).fit({"ratings": train, "tags": side})
        assert model.rmse("ratings", test) < 1.1 * constant


@pytest.mark.parametrize("unit", ["entry", "user"])
def test_without_a_delta_relations_are_fitted_by_themselves(unit):
    train, test, side, _ = planted(5, helps=True)
    labels = {"user": range(USERS), "item": range(ITEMS), "tag": range(TAGS)}
    own = sf.Privacy(5.0, unit=unit, local="user", seed=0, public=sf.Public(labels=labels))
    model = sf.Coupled(privacy=own).fit({"ratings": train, "tags": side})
    assert model.guarantee_.delta == 0
    assert model.guarantee_.epsilon == pytest.approx(5.0, rel=1e-3)
    assert model.rmse("ratings", test) < np.std(test.values) * 1.1


def test_order_matters_and_the_first_takes_in_the_others():
    train, test, side, _ = planted(2, helps=True, users=1500)
    own = privacy(train, side, "entry", users=1500)
    first = sf.Coupled(privacy=own).fit({"ratings": train, "tags": side})
    last = sf.Coupled(privacy=own).fit({"tags": side, "ratings": train})
    assert first.rmse("ratings", test) < last.rmse("ratings", test)


def test_the_same_for_any_number_of_threads():
    train, _, side, _ = planted(6, helps=True)
    made = [
        sf.Coupled(privacy=privacy(train, side, "entry"), threads=threads)
        .fit({"ratings": train, "tags": side})
        .release_files(force=True)["model.safetensors"]
        for threads in (1, 3)
    ]
    assert made[0] == made[1]
