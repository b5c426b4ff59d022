"""The estimator of coupled models: predictions, cold starts, scores, keeping."""

import copy
import json
import pickle

import numpy as np
import pytest
from made import tensor
from model_folders import edit
from sklearn.base import clone

import sfumato as sf
from sfumato import metrics
from sfumato.errors import DataError, ModelFileError, NotFittedError, SettingError, UnknownLabelError


@pytest.fixture(scope="module")
def world():
    """Counts of visits that follow users' tastes, which a table of their interests shows too."""
    generator = np.random.default_rng(0)
    users, places, hours = (generator.gamma(0.4, size=(n, 2)) for n in (60, 40, 6))
    interests = generator.gamma(0.4, size=(25, 2))
    visits = generator.poisson(4 * np.einsum("uk,pk,hk->uph", users, places, hours)).astype(float)
    known = generator.random(visits.shape) < 0.5
    known[:10] = False  # users without any visit
    table = generator.poisson(6 * users @ interests.T).astype(float)
    relations = sf.Relations(
        {
            "visits": tensor(("user", "place", "hour"), visits, known),
            "interests": tensor(("user", "interest"), table),
        }
    )
    return relations, visits, known


@pytest.fixture(scope="module")
def fitted(world):
    return sf.Coupled(2, sf.Multiplicative(200), threads=1, starts=2, seed=3).fit(world[0])


def cells(visits, where):
    return tensor(("user", "place", "hour"), visits, where)


@pytest.mark.parametrize(
    "solver",
    [
        sf.Multiplicative(200),
        sf.Variational(200),
        sf.Langevin("poisson", burn_in=300, samples=30, thin=5),
    ],
    ids=lambda solver: solver.name,
)
def test_whole_slices_are_predicted_through_the_other_relation(world, solver):
    relations, visits, known = world
    cold = np.zeros(known.shape, bool)
    cold[:10] = True
    test = cells(visits, cold)
    coupled = sf.Coupled(2, solver, threads=1, seed=3).fit(relations)
    alone = sf.Coupled(2, solver, threads=1).fit({"visits": relations["visits"].tensor})
    gain = coupled.score("visits", test, metric="auc") - alone.score("visits", test, metric="auc")
    assert gain > 0.05
    assert coupled.rmse("visits", test) < 0.9 * alone.rmse("visits", test)


def test_predictions_say_what_they_rest_on(world, fitted):
    _, visits, known = world
    everything = np.ones(known.shape, bool)
    values, reliance = fitted.predict("visits", cells(visits, everything), reliance=True)
    shares = reliance.reshape(known.shape)
    assert (shares[:10] == 1).all()
    own = known[10:].sum(axis=(1, 2))
    expected = np.repeat(25 / (25 + own), known[0].size).reshape(-1, *known.shape[1:])
    np.testing.assert_allclose(shares[10:], expected)
    assert values.shape == reliance.shape


def test_levels_that_nothing_speaks_of_have_no_reliance():
    values = np.random.default_rng(1).gamma(2.0, size=(4, 3))
    wide = (sf.Mode("a", 5), sf.Mode("b", 3))
    data = sf.SparseTensor(np.stack(np.nonzero(np.ones((4, 3)))), values.ravel(), wide)
    found = sf.Coupled(1).fit({"x": data})
    value, share = found.predict("x", a=4, b=0, reliance=True)
    assert np.isnan(share)
    average = np.mean([found.predict("x", a=i, b=0) for i in range(4)])
    assert value == pytest.approx(average)


def test_ways_to_name_cells(world, fitted):
    import pyarrow as pa

    _, visits, known = world
    by_tensor = fitted.predict("visits", cells(visits, known))
    coordinates = np.stack(np.nonzero(known))
    names = ("user", "place", "hour")
    table = pa.table(dict(zip(names, coordinates, strict=True)))
    np.testing.assert_array_equal(fitted.predict("visits", table), by_tensor)
    one = fitted.predict(
        "visits", user=int(coordinates[0, 5]), place=int(coordinates[1, 5]), hour=int(coordinates[2, 5])
    )
    assert one == pytest.approx(by_tensor[5])
    several = fitted.predict("visits", user=3, place=[0, 1, 2], hour=1)
    assert several.shape == (3,)


def test_scores(world, fitted):
    _, visits, known = world
    test = cells(visits, ~known)
    predicted = fitted.predict("visits", test)
    assert fitted.score("visits", test) == -metrics.rmse(test.values, predicted)
    assert fitted.score("visits", test, metric="auc") == metrics.auc(test.values, predicted)
    likelihood = metrics.poisson_log_likelihood(test.values, predicted)
    assert fitted.score("visits", test, metric="log_likelihood") == likelihood
    ten, many = (metrics.precision_at(k, test.values, predicted) for k in (10, 2000))
    assert ten != many
    assert fitted.score("visits", test, metric="precision@2000") == many
    with pytest.raises(SettingError, match="metric is"):
        fitted.score("visits", test, metric="accuracy")


def test_better_than_a_constant(world, fitted):
    _, visits, known = world
    test = cells(visits, ~known)
    constant = np.sqrt(np.mean((test.values - visits[known].mean()) ** 2))
    assert fitted.rmse("visits", test) < 0.9 * constant


def test_kept_and_loaded(world, fitted, tmp_path):
    _, visits, known = world
    test = cells(visits, ~known)
    fitted.save(tmp_path / "model")
    loaded = sf.load(tmp_path / "model")
    assert isinstance(loaded, sf.Coupled)
    for mine, theirs in zip(
        fitted.predict("visits", test, reliance=True),
        loaded.predict("visits", test, reliance=True),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, theirs)
    assert loaded.solver == fitted.solver
    assert loaded.history_ == fitted.history_
    for name in ("rank", "starts", "seed"):
        assert getattr(loaded, name) == getattr(fitted, name)
    assert (loaded.starts, loaded.seed) == (2, 3)


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("rank", lambda rank: rank + 1),
        ("sizes", lambda sizes: sizes[::-1]),
        ("parts", lambda _: []),
        ("parts", lambda parts: [{**part, "modes": [0, 9]} for part in parts]),
        ("parts", lambda parts: [{**part, "modes": [m - 1 for m in part["modes"]]} for part in parts]),
        ("modes", lambda modes: modes[:-1]),
        ("modes", lambda modes: [{**mode, "size": 1000} for mode in modes]),
        ("notes", lambda _: {}),
        ("notes", lambda notes: {**notes, "solver": "multiplicative"}),
    ],
)
def test_a_damaged_folder_is_refused(fitted, tmp_path, what, change):
    """Also where numbers have the right form: kernels read wherever they are told to."""
    fitted.save(tmp_path / "model")
    kept = json.loads((tmp_path / "model" / "model.json").read_text())
    edit(tmp_path / "model", **{what: change(kept[what])})
    with pytest.raises(ModelFileError, match="is damaged"):
        sf.load(tmp_path / "model")


def test_a_model_takes_the_place_of_another(fitted, world, tmp_path):
    """All of it: nothing of the one before is left."""
    short = sf.Coupled(2, sf.Variational(3), threads=1).fit(world[0])
    for method in (short, fitted):
        method.save(tmp_path / "model")
    again = sf.load(tmp_path / "model")
    assert again.posterior_ is None
    assert again.predict("visits", user=3, place=8, hour=1) == pytest.approx(
        fitted.predict("visits", user=3, place=8, hour=1)
    )
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    with pytest.raises(ModelFileError, match="holds no model"):
        fitted.save(tmp_path / "notes")


def test_a_tucker_relation_is_kept(world, tmp_path):
    relations = sf.Relations(
        {name: relation.tensor for name, relation in world[0].items()}, structure={"visits": "tucker"}
    )
    found = sf.Coupled(2, sf.Multiplicative(20), threads=1).fit(relations)
    found.save(tmp_path / "model")
    test = relations["visits"].tensor
    np.testing.assert_array_equal(
        found.predict("visits", test), sf.load(tmp_path / "model").predict("visits", test)
    )


def test_settings_of_a_solver_are_kept(world, tmp_path):
    """Pairs too, which JSON knows as lists only."""
    relations = sf.Relations(
        {name: relation.tensor for name, relation in world[0].items()}, divergence=0, dispersion=None
    )
    solver = sf.Langevin(burn_in=2, samples=2, thin=1, noise_prior=(2.0, 0.5))
    found = sf.Coupled(2, solver, threads=1).fit(relations)
    found.save(tmp_path / "model")
    loaded = sf.load(tmp_path / "model")
    assert loaded.solver == solver
    np.testing.assert_array_equal(loaded.posterior_.noise, found.posterior_.noise)
    assert (found.posterior_.noise != 1).all()


def test_a_level_of_zeros_is_zero_unless_a_prior_keeps_it(world):
    _, visits, _ = world
    table = np.vstack([visits[10:].sum(axis=2), np.zeros(40)])
    data = {"x": tensor(("user", "place"), table)}
    plain = sf.Coupled(2, threads=1).fit(data)
    prior = sf.Coupled(2, sf.Multiplicative(prior_shape=2.0, prior_mean=1.0), threads=1).fit(data)
    assert plain.predict("x", user=50, place=3) < 1e-9
    assert prior.predict("x", user=50, place=3) > 1e-6


def test_settings_follow_scikit_learn(fitted):
    again = clone(fitted)
    assert again.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        again.predict("visits", user=0, place=0, hour=0)
    with pytest.raises(NotFittedError):
        again.factor("user")


@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda method: pickle.loads(pickle.dumps(method))], ids=["copy", "pickle"]
)
def test_a_copy_predicts_the_same(world, fitted, again):
    _, visits, known = world
    test = cells(visits, ~known)
    np.testing.assert_array_equal(again(fitted).predict("visits", test), fitted.predict("visits", test))


def test_the_best_of_several_starts_is_kept(world):
    def last(seed, starts):
        method = sf.Coupled(3, sf.Multiplicative(15), seed=seed, starts=starts, threads=1)
        return method.fit(world[0]).history_[-1].objective

    alone = [last(seed, 1) for seed in (2, 3, 4)]
    assert min(alone) < alone[0]
    assert last(2, 3) == min(alone)


def test_a_fit_ends_where_it_gains_little(world):
    found = sf.Coupled(2, sf.Multiplicative(500, tolerance=1e-3), threads=1).fit(world[0])
    objectives = [info.objective for info in found.history_]
    gains = -np.diff(objectives) / objectives[:-1]
    assert len(objectives) < 500
    assert gains[-1] < 1e-3 <= gains[:-1].min()


def test_seeds_repeat(world):
    one, same, other = (
        sf.Coupled(2, sf.Multiplicative(5), seed=seed, threads=1).fit(world[0]) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one.factor("user"), same.factor("user"))
    assert not np.array_equal(one.factor("user"), other.factor("user"))


def test_the_plan_says_what_will_be_fitted(world):
    tensors = {name: relation.tensor for name, relation in world[0].items()}
    relations = sf.Relations(tensors, structure={"visits": "tucker"})
    plan = sf.Coupled(2, sf.Multiplicative(20), starts=2).plan(relations)
    assert plan.rounds == 2 * 20 * (4 + 1 + 1)  # factors, a core, and the divergence
    said = plan.explain()
    assert "visits Tucker of user 60 x place 40 x hour 6; interests CP of user 60 x interest 25" in said
    assert "rank 2, float64; Multiplicative(sweeps=20" in said


def test_progress_is_told(world):
    told = []
    sf.Coupled(
        2, sf.Multiplicative(2, tolerance=None), threads=1, progress=lambda *what: told.append(what[:2])
    ).fit(world[0])
    assert told == [(step + 1, len(told)) for step in range(len(told))]


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda model: model.predict("trips", user=0), SettingError, "no relation 'trips'"),
        (lambda model: model.predict("visits"), SettingError, "either a tensor or table"),
        (lambda model: model.predict("visits", user=0, place=0), SettingError, "hour"),
        (lambda model: model.predict("visits", user=999, place=0, hour=0), UnknownLabelError, "user"),
        (lambda model: model.rmse("visits", np.zeros((2, 3))), DataError, "SparseTensor"),
        (lambda model: model.factor("city"), SettingError, "no mode 'city'"),
        (lambda model: model.predict(["visits"], user=0), SettingError, "no relation"),
        (lambda model: model.predict("visits", user=[0, 1], place=[0, 1, 2], hour=0), DataError, "numb"),
        (lambda model: model.score("visits", np.zeros((1, 3), int), ["a"]), DataError, "numbers"),
        (lambda model: model.score("visits", np.zeros((2, 3), int), [1.0]), DataError, "as many"),
        (lambda model: model.score("visits", np.zeros((1, 3), int), [1], metric=3), SettingError, "is"),
    ],
)
def test_bad_questions_are_said(fitted, call, error, says):
    with pytest.raises(error, match=says):
        call(fitted)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"rank": 0}, "rank"),
        ({"rank": 2.5}, "rank"),
        ({"rank": "2"}, "rank"),
        ({"dtype": np.int64}, "float32 or float64"),
        ({"dtype": "double precision"}, "float32 or float64"),
        ({"threads": 0}, "threads"),
        ({"threads": "all"}, "threads"),
        ({"seed": -1}, "seed"),
        ({"seed": None}, "seed"),
        ({"starts": 0}, "starts"),
        ({"solver": "als"}, "no solver 'als' of coupled models"),
        ({"solver": sf.ALS()}, "no solver ALS"),
        ({"solver": sf.Multiplicative}, "or a record such as"),
        ({"solver": "langevin"}, "set it in Relations, or choose another model"),
    ],
)
def test_bad_settings_are_said(world, settings, says):
    with pytest.raises(SettingError, match=says):
        sf.Coupled(**settings).fit(world[0])


def test_single_precision(world, tmp_path):
    found = sf.Coupled(2, sf.Multiplicative(20), dtype=np.float32, threads=1).fit(world[0])
    wide = sf.Coupled(2, sf.Multiplicative(20), threads=1).fit(world[0])
    assert found.factor("user").dtype == np.float32
    found.save(tmp_path / "model")
    assert sf.load(tmp_path / "model").factor("user").dtype == np.float32
    test = world[0]["visits"].tensor
    np.testing.assert_allclose(
        found.predict("visits", test), wide.predict("visits", test), rtol=2e-2, atol=1e-3
    )
