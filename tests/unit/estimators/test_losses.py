"""Counts, yes and no, and what was seen: what estimators make of them."""

import numpy as np
import pytest

import sfumato as sf
from sfumato.models.losses import LOSSES, mean_of_root
from sfumato.models.own_prior import Certainty
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.own_rows import solve_own
from sfumato.solvers.least_squares.seen import SeenALS

MODES = (sf.Mode("user", 120), sf.Mode("item", 40))
ALL = {"user": list(range(120)), "item": list(range(40))}


def seen(seed=0):
    """Two tastes: who has a level of one half has others of it."""
    rng = np.random.default_rng(seed)
    chance = np.where(np.arange(120)[:, None] % 2 == np.arange(40) % 2, 0.5, 0.05)
    cells = np.stack(np.nonzero(rng.random(chance.shape) < chance)).astype(np.int32)
    return sf.SparseTensor(cells, rng.uniform(1, 5, cells.shape[1]), MODES, (1.0, 5.0))


def halves(tensor):
    held = np.random.default_rng(1).random(tensor.n_entries) < 0.3
    return tensor.take(~held), tensor.take(held)


def private(epsilon=20.0, unit="user", **more):
    public = sf.Public(labels=ALL, entries=1000)
    return sf.Privacy(epsilon, 1e-6, unit=unit, local="user", public=public, seed=0, **more)


@pytest.mark.parametrize("unit", ["user", "entry"])
def test_what_was_seen_together_beats_popularity_and_stays_below_the_open_fit(unit):
    train, test = halves(seen())
    fits = {
        "popularity": sf.Biases(loss="seen", privacy=private(unit=unit)),
        "private": sf.CP(4, loss="seen", privacy=private(60.0, unit, method=sf.PrivateSeen(levels=40))),
        "open": sf.CP(3, loss="seen"),
    }
    found = {name: fit.fit(train).list_scores(test)["ndcg"] for name, fit in fits.items()}
    assert found["popularity"] < 0.8 * found["private"]
    assert found["private"] < 1.05 * found["open"]


def test_where_noise_would_drown_it_the_fit_is_popularity_to_the_bit():
    train, _ = halves(seen())
    fits = [
        sf.CP(loss="seen", privacy=private(0.5, method=method)).fit(train)
        for method in ("auto", "popularity")
    ]
    np.testing.assert_array_equal(*(fit.model_.mode_biases[1] for fit in fits))
    assert [fit.method_ for fit in fits] == ["popularity", "popularity"]
    np.testing.assert_array_equal(*(fit.lists(5).levels for fit in fits))


def test_values_play_no_part():
    train, _ = halves(seen())
    other = train.with_values(np.full(train.n_entries, 5.0), train.bounds)
    fits = [sf.CP(2, loss="seen", privacy=private()).fit(each) for each in (train, other)]
    np.testing.assert_array_equal(fits[0].model_.rows, fits[1].model_.rows)


@pytest.mark.parametrize(
    ("users", "items", "epsilon", "asks"),
    [(1500, 100, 2.0, True), (1500, 100, 0.5, False), (120, 40, 8.0, False), (400, 40, 8.0, True)],
)
def test_popularity_is_called_so_where_nothing_else_would_be_heard(users, items, epsilon, asks):
    """From public numbers alone, and the method and rank say which it is."""
    modes = [sf.Mode("user", users), sf.Mode("item", items)]
    public = sf.Public(labels=True, units=users, entries=users * items // 6)
    privacy = sf.Privacy(epsilon, 1e-6, unit="user", public=public)
    plan = sf.CP(loss="seen", privacy=privacy).plan(modes, bounds=(0, 1))
    assert plan.task.solver.name == ("seen together" if asks else "private popularity")
    assert plan.task.facts.shape.ranks[0] == (33 if asks else 1)


def test_own_rows_have_seen_all_other_cells_as_zeros():
    """Solved from entries and a prior, against the sum over all cells written out."""
    rng = np.random.default_rng(0)
    model = sf.CP(3, loss="seen", solver=SeenALS(sweeps=2)).fit(seen()).model_
    solver, mine = SeenALS(), np.array([3, 5, 11])
    tensor = sf.SparseTensor(
        np.stack([np.zeros(3, int), mine]), np.ones(3), (sf.Mode("user", 1), MODES[1])
    )
    empty = model.with_rows(0, np.zeros((1, 3)), np.zeros(1))
    found = solve_own(empty, solver.own_prior(model, 0), Site(tensor, 1)).factors[0][0]
    q = model.factors[1]

    def loss(a):
        return (
            np.sum((q @ a) ** 2) + solver.weight * np.sum((1 - q[mine] @ a) ** 2) + solver.ridge * a @ a
        )

    for step in rng.normal(scale=1e-3, size=(20, 3)):
        assert loss(found) < loss(found + step)


def test_lists_and_top_leave_out_what_was_seen(tmp_path):
    train, test = halves(seen())
    fit = sf.CP(3, loss="seen").fit(train)
    mine = set(train.coordinates[1][train.coordinates[0] == 7])
    assert not mine & {label for label, _ in fit.top("item", 40, user=7)}
    assert [label for label, _ in fit.top("item", 6, user=7)] == fit.lists(6).of(7)
    again = sf.load(fit.save(tmp_path / "model"))
    with pytest.raises(sf.SettingError, match="does not know what was seen: give seen"):
        again.top("item", 6, user=7)
    assert again.top("item", 6, seen=train, user=7) == fit.top("item", 6, user=7)
    assert again.list_scores(test, seen=train) == fit.list_scores(test)


def test_a_release_solves_rows_of_whoever_brings_entries(tmp_path):
    train, _ = halves(seen())
    fit = sf.CP(4, loss="seen", privacy=private(60.0, method=sf.PrivateSeen(levels=40))).fit(train)
    mine = train.take(train.coordinates[0] == 7)
    release = sf.load(fit.release(tmp_path / "release", force=True))
    cells = {"user": [7] * 40, "item": list(range(40))}
    np.testing.assert_allclose(release.predict(cells, own=mine), fit.predict(cells), atol=1e-9)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss": "absolute"}, "loss"),
        ({"loss": "seen", "solver": "sgd"}, "has a solver of its own"),
        ({"solver": SeenALS()}, 'loss="seen"'),
        ({"loss": "seen", "privacy": private(method="bias")}, "no private method"),
        ({"privacy": private(method="seen")}, 'loss="seen"'),
    ],
)
def test_what_does_not_go_together_is_refused(settings, words):
    with pytest.raises(sf.SettingError, match=words):
        sf.CP(2, **settings).fit(seen())


def test_seen_cells_are_of_two_modes_and_of_owners():
    modes = (*MODES, sf.Mode("day", 3))
    privacy = sf.Privacy(1.0, 1e-6, unit="user", public=sf.Public(labels=True, units=120))
    with pytest.raises(sf.SettingError, match="two modes"):
        sf.CP(loss="seen", privacy=privacy).plan(modes, bounds=(0, 1))
    everything = sf.Privacy(1.0, 1e-6, unit="entry", public=sf.Public(labels=ALL))
    with pytest.raises(sf.SettingError, match="name the owners' mode"):
        sf.CP(loss="seen", privacy=everything).plan(MODES, bounds=(0, 1))


# -- counts, yes and no ----------------------------------------------------------------------------


def counts(law, seed=0):
    rng = np.random.default_rng(seed)
    rates = np.exp(rng.normal(0.5, 0.7, (120, 1)) + rng.normal(0, 0.7, 40))
    values = rng.poisson(rates) if law == "poisson" else rng.random(rates.shape) < rates / (1 + rates)
    cells = np.indices(rates.shape).reshape(2, -1)
    return sf.SparseTensor(
        cells, values.ravel().astype(float), MODES, (0.0, 60.0 if law == "poisson" else 1)
    )


@pytest.mark.parametrize("loss", ["poisson", "logistic"])
def test_a_private_fit_in_the_losss_own_metric_beats_a_constant(loss):
    train, test = halves(counts(loss))
    fit, constant = (
        kind(loss=loss, privacy=private(5.0, "entry")).fit(train)
        for kind in (sf.Biases, lambda **rest: sf.Biases(sweeps=0, **rest))
    )
    assert fit.error(test) < 0.95 * constant.error(test)
    assert fit.guarantee_.proven
    predicted = fit.predict(test)
    assert predicted.min() > 0
    assert abs(predicted.mean() - test.values.mean()) < 0.25 * test.values.mean()


def without_structure(law, seed):
    """Counts of one mean, or yes and no as it comes: there is nothing to learn but a constant."""
    rng = np.random.default_rng(seed)
    values = rng.poisson(1.65, 4800) if law == "poisson" else rng.random(4800) < 0.5
    cells = np.indices((120, 40)).reshape(2, -1)
    return sf.SparseTensor(cells, values.astype(float), MODES, (0.0, 100.0 if law == "poisson" else 1))


@pytest.mark.parametrize("epsilon", [10.0, 1.0, 0.1])
@pytest.mark.parametrize("unit", ["user", "entry"])
@pytest.mark.parametrize("loss", ["poisson", "logistic"])
def test_where_there_is_nothing_to_learn_a_private_fit_is_no_worse_than_the_constant(
    loss, unit, epsilon
):
    """By no more than 6% of what own rows of 28 entries follow by chance, in the mean of three.

    Means that were larger by a scatter that nobody has measured lost 20% of the deviance.
    """
    ratios = []
    for seed in range(3):
        train, test = halves(without_structure(loss, seed))
        privacy = private(epsilon, unit)
        fit = sf.CP(loss=loss, privacy=privacy).fit(train)
        constant = sf.Biases(sweeps=0, loss=loss, privacy=privacy).fit(train)
        ratios.append(fit.error(test) / constant.error(test))
    assert np.mean(ratios) < 1.06


def test_counts_grow_by_a_scatter_that_was_learnt_and_by_no_other():
    poisson, root = LOSSES["poisson"], 1.2
    usual = float(mean_of_root(np.array([root]))[0]) - root**2
    sure = Certainty(0.0, 0.0)
    assert poisson.excess(root, usual, sure) == 0
    assert poisson.excess(root, usual + 0.3, sure) == pytest.approx(0.3 / root**2)
    assert 0 < poisson.excess(root, usual + 0.3, Certainty(0.2, 0.1)) < 0.2 / root**2
    assert poisson.excess(root, usual + 0.3, Certainty(0.0, 0.31)) == 0
    assert LOSSES["squared"].excess(root, 9.0, sure) == 0
    # Whose scatter is assumed, as with little budget, says how little is known of it.
    train, _ = halves(counts("poisson"))
    fits = [sf.CP(loss="poisson", privacy=private(eps)).fit(train) for eps in (0.05, 50.0)]
    drowned, known = (fit.own_prior_.certainty.scatter / fit.own_prior_.scatter for fit in fits)
    assert drowned > 1
    assert known < 0.5


@pytest.mark.parametrize("loss", ["poisson", "logistic"])
def test_tucker_models_are_fitted_by_losses_with_and_without_privacy(loss, tmp_path):
    train, test = halves(counts(loss))
    constant = sf.Biases(sweeps=0, loss=loss, privacy=private(20.0, "entry")).fit(train)
    for privacy in (None, private(20.0, "entry")):
        fit = sf.Tucker(2, loss=loss, privacy=privacy).fit(train)
        assert fit.error(test) < 0.95 * constant.error(test)
        again = sf.load(fit.save(tmp_path / loss, force=True))
        np.testing.assert_allclose(again.predict(test), fit.predict(test))


def test_means_of_roots_are_turned_back():
    for mean in (0.02, 0.5, 3.0, 40.0, 300.0):
        k = np.arange(2000)
        from scipy.stats import poisson

        root = poisson.pmf(k, mean) @ np.sqrt(k)
        assert mean_of_root(np.array([root]))[0] == pytest.approx(mean, rel=2e-3)


@pytest.mark.parametrize("value", [np.nan, -3.0, np.inf, 1e9])
@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_a_private_fit_says_nothing_of_values_that_cannot_be(loss, value):
    tensor = counts("logistic")
    values = tensor.values.copy()
    values[3] = value
    odd = tensor.with_values(values, (0.0, 1.0))
    fit = sf.Biases(loss=loss, privacy=private(5.0, "entry")).fit(odd)
    assert np.isfinite(fit.predict(user=0, item=0))


@pytest.mark.parametrize(("loss", "value"), [("poisson", -1.0), ("logistic", 0.5)])
def test_an_open_fit_says_what_is_wrong_with_values(loss, value):
    tensor = counts("logistic")
    values = tensor.values.copy()
    values[3] = value
    with pytest.raises(sf.DataError, match="values are"):
        sf.Biases(loss=loss).fit(tensor.with_values(values))


@pytest.mark.parametrize(("loss", "bounds"), [("poisson", (-1.0, 5.0)), ("logistic", (1.0, 5.0))])
def test_bounds_that_cannot_be_are_refused(loss, bounds):
    tensor = counts("logistic")
    with pytest.raises(sf.SettingError, match="bound"):
        sf.CP(loss=loss).fit(tensor.with_values(np.ones(tensor.n_entries), bounds))
