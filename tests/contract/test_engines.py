"""Every engine answers as this process does: private fits to the last bit, open ones to rounding."""

import os
import signal
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

import sfumato as sf
from sfumato.engines.local import Local
from sfumato.errors import DataError, MissingExtraError, SettingError
from sfumato.fit.completion import carry_out, carry_out_private, training_rmse
from sfumato.fit.plan import Plan
from sfumato.kernels.numba.normal import Uncertainty
from sfumato.models.shape import Shape
from sfumato.owners.hub import InProcess
from sfumato.owners.participant import Participant
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.ledger import Ledger
from sfumato.sites.memory import Site
from sfumato.sites.parts import cut_by
from sfumato.sites.shards import ShardSite
from sfumato.solvers.least_squares.questions import Rows, RowsQuery
from sfumato.solvers.protocol import MomentsQuery, Run, random_start

USERS, ITEMS = 40, 12
MODES = (sf.Mode("user", USERS), sf.Mode("item", ITEMS))
WAYS = [
    ("user", "user", "moments", 5),
    ("entry", "user", "moments", 5),
    ("entry", None, "alternating", 2),
    ("user", "user", "bias", 1),
    ("value", None, "bias", 1),
]


@cache
def ratings():
    rng = np.random.default_rng(0)
    cells = np.array(np.unravel_index(rng.permutation(USERS * ITEMS)[:300], (USERS, ITEMS)))
    return sf.SparseTensor(cells, np.clip(rng.normal(3, 1.2, 300), 1, 5), MODES, (1.0, 5.0))


@cache
def thirds():
    """The parts that most tests here are about."""
    return cut_by(ratings(), 0, 3)


def privacy(unit, local, method):
    labels = {"user": range(USERS), "item": range(ITEMS)}
    public = None if unit == "value" else sf.Public(entries=300, labels=labels)
    given = {} if public is None else {"public": public}
    return sf.Privacy(5.0, 1e-6, unit=unit, local=local, method=method, seed=1, **given)


def in_this_process(parts):
    return Local(*(Site(part, 1) for part in parts))


@pytest.fixture(scope="module")
def on_ray():
    """Engines on one cluster, which is begun once: a fit's own would take seconds each.

    So does every worker. Those that hold ``thirds()`` serve all tests that ask them nothing else.
    """
    ray = pytest.importorskip("ray")
    settings = sf.Ray(workers=3, timeout=120)

    def opened(parts):
        return settings.open([partial(Site, part) for part in parts])

    with opened(thirds()) as of_thirds:  # begins the cluster, and ends it with the module
        yield lambda parts: nullcontext(of_thirds) if parts is thirds() else opened(parts)
    assert not ray.is_initialized()


@pytest.fixture
def on_disk(tmp_path):
    """Three shards, whatever parts were made."""

    def engine(parts):
        whole = parts[0]
        if len(parts) > 1:
            cells = np.concatenate([part.coordinates for part in parts], axis=1)
            values = np.concatenate([part.values for part in parts])
            whole = sf.SparseTensor(cells, values, parts[0].modes, parts[0].bounds)
        shards = sf.make_shards(whole, tmp_path / "shards", shards=len(parts), force=True)
        return Local(*(ShardSite(shards, number, 1) for number in range(len(shards))))

    return engine


@pytest.fixture(params=["this process", "disk", "ray"])
def engine(request):
    if request.param == "this process":
        return in_this_process
    return request.getfixturevalue(f"on_{request.param}")


def plan_of(unit, local, method, rank):
    estimator = sf.CP(rank, privacy=privacy(unit, local, method))
    return estimator.plan(MODES, bounds=(1.0, 5.0), entries=300)


def fitted(plan, engine):
    return carry_out_private(plan, engine, Ledger(plan.task.unit), Entropy(5))


# Workers of a cluster take seconds to begin: two ways are sent there, all others are sums just alike.
HERE = [(where, way) for where in ("this process", "disk") for way in WAYS]
EVERYWHERE = [*HERE, ("ray", WAYS[0]), ("ray", WAYS[2])]


@pytest.mark.parametrize(("engine", "way"), EVERYWHERE, indirect=["engine"], ids=str)
def test_private_fits_have_the_same_bits(engine, way):
    plan = plan_of(*way)
    expected = fitted(plan, Local(Site(ratings(), 2)))
    with engine(thirds()) as several:
        assert len(several.sites) == 3
        found = fitted(plan, several)
    np.testing.assert_array_equal(found.model.rows, expected.model.rows)
    np.testing.assert_array_equal(found.model.biases, expected.model.biases)
    assert found.history == expected.history


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way)))
def test_private_fits_between_owners_have_the_same_bits(way, tmp_path):
    """Noise once, at the leader; each site works out the questions by itself."""
    rank = way[3]
    labels = {"user": range(USERS), "item": range(ITEMS)}
    asked = replace(
        privacy(*way[:3]), public=sf.Public(entries=300, labels=labels), trust=sf.Trust("one owner", 3)
    )
    names = ("a", "b", "c")
    study = sf.make_study(
        sf.CP(rank, privacy=asked), ["user", "item"], names, bounds=(1.0, 5.0), entries=300
    )
    expected = sf.CP(rank, privacy=replace(asked, trust=sf.Trust())).fit(ratings())
    with ExitStack() as stack:
        sites = {
            name: stack.enter_context(Participant(study, name, part, tmp_path / name, trust_leader=True))
            for name, part in zip(names, cut_by(ratings(), 0, 3), strict=True)
        }
        found = sf.lead(study, InProcess(sites), tmp_path / "lead", seed=1)
    assert (
        found.release_files(force=True)["model.safetensors"]
        == expected.release_files(force=True)["model.safetensors"]
    )
    assert found.history_ == expected.history_


def test_open_fits_agree_to_rounding(engine):
    plan = Plan(Shape(MODES, (2, 2)), sf.ALS(sweeps=5))
    expected = carry_out(plan, Local(Site(ratings(), 1))).model
    with engine(thirds()) as several:
        found = carry_out(plan, several).model
        error = training_rmse(found, several)
    np.testing.assert_allclose(
        found.predict(ratings().coordinates), expected.predict(ratings().coordinates), rtol=1e-6
    )
    assert error == pytest.approx(training_rmse(expected, Local(Site(ratings(), 1))), rel=1e-6)


def test_sites_without_entries_of_some_rows_add_nothing_to_them(engine):
    kept = ratings().take(ratings().coordinates[0] < 39)  # a user whom nobody has entries of
    model = Shape(MODES, (2, 2)).zeros()
    random_start(model, [0.0, 0.0], 1.0, seed=0)
    certain = Uncertainty(np.zeros((0, model.rows.shape[1])), np.zeros(0), np.zeros(0))
    with engine(cut_by(kept, 0, 3)) as several:
        for rows in (Rows(0, 0, 9), Rows(0, 0, USERS), Rows(1, 3, 5), Rows(0, 39, 40)):
            query = RowsQuery(model, certain, rows)
            expected, found = query.answer(Site(kept, 1)), several.answer(query)
            for sums, wanted in zip(found, expected, strict=True):
                np.testing.assert_allclose(sums, wanted, rtol=1e-12)


def test_questions_that_follow_each_other_are_sent_without_the_model(on_ray, monkeypatch):
    """Rows of a mode are asked for block by block, and the rows that these rest on stay as they are."""
    planted = sf.synthetic.cp((150, 100), 2, entries=3000, snr=3.0, seed=1)
    plan = Plan(Shape(planted.tensor.modes, (2, 2)), sf.ALS(sweeps=3, presence=False, block_bytes=1))
    expected = carry_out(plan, Local(Site(planted.tensor, 1))).model
    sent = []
    with on_ray(cut_by(planted.tensor, 0, 3)) as several:
        call = several._call
        monkeypatch.setattr(several, "_call", lambda name, *rest: sent.append(name) or call(name, *rest))
        found = carry_out(plan, several).model
    np.testing.assert_allclose(found.rows, expected.rows, rtol=1e-5, atol=1e-8)
    assert sent.count("part_of_next") == 3 * (2 + 1)  # of blocks of 64 rows all but the first


def test_only_sites_that_are_concerned_are_asked():
    class Query:
        asked, part = 0, None

        def about(self, part):
            return self

        def follows(self, before):
            return False

        def concerns(self, site):
            return site.tensor.coordinates[0, 0] > 0

        def answer(self, site):
            Query.asked += 1
            return site.tensor.n_entries

    parts = cut_by(ratings(), 0, 3)
    assert in_this_process(parts).answer(Query()) == sum(part.n_entries for part in parts[1:])
    assert Query.asked == 2


def test_what_does_not_add_up_is_refused_before_anything_is_charged(engine):
    plan = plan_of("value", None, "input", 2)
    ledger = Ledger(plan.task.unit)
    with (
        engine(thirds()) as several,
        pytest.raises(SettingError, match="do not add up over 3 sites"),
    ):
        carry_out_private(plan, several, ledger, Entropy(5))
    assert not ledger.events


def test_other_modes_are_an_error_and_nothing_is_charged(engine):
    plan = plan_of("entry", None, "bias", 1)
    modes = (sf.Mode("user", USERS + 1), sf.Mode("item", ITEMS))
    other = sf.SparseTensor(ratings().coordinates, ratings().values, modes, (1.0, 5.0))
    ledger = Ledger(plan.task.unit)
    with engine([other]) as several, pytest.raises(DataError, match="other modes than the 40 x 12"):
        carry_out_private(plan, several, ledger, Entropy(5))
    assert not ledger.events


def test_estimators_take_an_engine(on_ray):
    for unit, local, method, rank in WAYS[1:2]:
        asked = privacy(unit, local, method)
        here = sf.CP(rank, privacy=asked).fit(ratings())
        there = sf.CP(rank, privacy=asked, engine=sf.Ray(workers=2, timeout=120)).fit(ratings())
        assert here.release_files(force=True) == there.release_files(force=True)


def test_a_dead_worker_ends_the_fit_and_charges_stand(on_ray):
    plan = plan_of("entry", None, "bias", 1)
    ledger, killed = Ledger(plan.task.unit), []
    with on_ray(cut_by(ratings(), 0, 3)) as several:

        def kill(number, *_):
            if number == 2:
                (pid,) = several._call("process")[:1]
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

        with pytest.raises(sf.SiteLostError, match="gone"):
            carry_out_private(plan, several, ledger, Entropy(5), kill)
    assert killed
    assert len(ledger.events) == 3


def test_a_late_worker_ends_the_fit(on_ray):
    with (
        sf.Ray(workers=1, timeout=0.2).open([partial(_slow, ratings())]) as engine,
        pytest.raises(sf.SiteLostError, match=r"did not answer within 0\.2 seconds"),
    ):
        engine.check_shape(Shape(MODES, (1, 1)))


def _slow(tensor, threads):
    import time

    time.sleep(3)
    return Site(tensor, threads)


@pytest.mark.parametrize(
    "wrong", [{"workers": 0}, {"timeout": -1}, {"address": 5}, {"threads": 0}], ids=str
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(SettingError):
        sf.CP(engine=sf.Ray(**wrong)).fit(ratings())
    with pytest.raises(SettingError, match="an engine such as"):
        sf.CP(engine="ray").fit(ratings())


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"sfumato\[ray\]"):
        sf.CP(engine=sf.Ray()).fit(ratings())


# -- shards -----------------------------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path):
    return sf.make_shards(ratings(), tmp_path / "shards", shards=3)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way)))
def test_a_fit_of_shards_releases_what_one_of_the_tensor_does(shards, way):
    unit, local, method, rank = way
    asked = privacy(unit, local, method)
    expected = sf.CP(rank, privacy=asked).fit(ratings()).release_files(force=True)
    for source in (shards, shards.folder, str(shards.folder)):
        assert sf.CP(rank, privacy=asked).fit(source).release_files(force=True) == expected


def test_shards_on_ray_release_the_same(shards, on_ray):
    unit, local, method, rank = WAYS[1]
    asked = privacy(unit, local, method)
    expected = sf.CP(rank, privacy=asked).fit(ratings()).release_files(force=True)
    found = sf.CP(rank, privacy=asked, engine=sf.Ray(workers=2, timeout=120)).fit(shards)
    assert found.release_files(force=True) == expected


def test_open_fits_of_shards_agree_to_rounding(shards):
    one, other = (sf.CP(2).fit(source).predict(ratings()) for source in (ratings(), shards))
    np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize(
    ("made", "settings", "message"),
    [
        ({}, {"duplicates": "mean"}, "merge them before"),
        ({"by": "item"}, {"privacy": privacy("user", "user", "bias")}, 'make them with by="user"'),
        ({"dtype": "float32"}, {"privacy": privacy("user", "user", "bias")}, 'dtype="float64"'),
        (
            {},
            {
                "privacy": sf.Privacy(
                    1, 1e-6, unit="user", public=sf.Public(labels=True, units=50), seed=1
                )
            },
            "numbered already",
        ),
        (
            {},
            {
                "privacy": sf.Privacy(
                    1,
                    1e-6,
                    unit="user",
                    public=sf.Public(labels={"user": range(50), "item": range(ITEMS)}),
                    seed=1,
                )
            },
            "other labels of user",
        ),
        ({}, {"privacy": sf.Privacy(1, unit="value", method="input", seed=1)}, "do not add up over 3"),
    ],
    ids=["duplicates", "cut", "precision", "number", "labels", "method"],
)
def test_what_shards_cannot_do_is_refused_with_advice(tmp_path, made, settings, message):
    shards = sf.make_shards(ratings(), tmp_path / "shards", shards=3, **made)
    with pytest.raises(SettingError, match=message):
        sf.CP(2, **settings).fit(shards)


def test_shards_without_entries_are_not_asked(tmp_path):
    shards = sf.make_shards(ratings(), tmp_path / "shards", shards=60)
    assert 0 in shards.entries
    one, other = (sf.CP(2).fit(source).predict(ratings()) for source in (ratings(), shards))
    np.testing.assert_allclose(one, other, rtol=1e-6)


# -- passes, which go from one site to the next ------------------------------------------------------


PASSES = [sf.SGD(passes=5), sf.MinibatchSGD(passes=5), sf.SequentialSGD(passes=5)]


@pytest.mark.parametrize("solver", PASSES, ids=lambda solver: solver.name)
def test_passes_over_one_shard_have_the_bits_of_those_in_memory(tmp_path, solver):
    shard = sf.make_shards(ratings(), tmp_path / "shards", shards=1)
    here, there = (sf.CP(2, solver=solver).fit(source) for source in (ratings(), shard))
    np.testing.assert_array_equal(here.model_.rows, there.model_.rows)
    np.testing.assert_array_equal(here.model_.biases, there.model_.biases)
    assert here.history_ == there.history_


@pytest.mark.parametrize("solver", PASSES, ids=lambda solver: solver.name)
def test_passes_over_shards_are_those_over_parts_in_memory(solver):
    """One after the other in an order that the seed decides, each from where the one before ended."""
    plan = Plan(Shape(MODES, (2, 2)), solver, Run(seed=4))
    parts = cut_by(ratings(), 0, 3)
    found = carry_out(plan, in_this_process(parts))
    state, orders = solver.init(plan.run, plan.shape), set()
    state, _ = solver.update(state, MomentsQuery().answer(Site(ratings(), 1)))
    for done in range(5):
        query, squares = solver.ask(state), 0.0
        orders.add(tuple(query.order(3)))
        for number in query.order(3):
            result = query.answer(Site(parts[number], 1))
            query = replace(query, model=result.model, memory=result.memory)
            squares += result.squares
        state, info = solver.update(state, replace(result, squares=squares, entries=300))
        assert found.history[done].train_rmse == pytest.approx(info.train_rmse, rel=1e-6)
    assert len(orders) > 1
    np.testing.assert_allclose(found.model.rows, solver.finish(state).model.rows, rtol=1e-6)


BOLD = {"passes": 40, "init_scale": 0.5, "ridge_per_entry": 1e-3}  # so that three modes get going


@pytest.mark.parametrize(
    "solver", [sf.SGD(step=0.05, **BOLD), sf.MinibatchSGD(step=0.1, **BOLD)], ids=lambda each: each.name
)
def test_passes_over_shards_fit_planted_data_as_well(tmp_path, solver):
    sizes, noise = (400, 200, 20), 1 / 3
    planted = sf.synthetic.cp(sizes, 3, entries=60_000, snr=1 / noise, seed=5)
    shards = sf.make_shards(planted.tensor, tmp_path / "shards", shards=6)
    cells = np.stack([np.random.default_rng(1).integers(0, n, 20_000) for n in sizes])
    truth = planted.truth(cells)
    here, there = (
        np.mean((sf.CP(3, solver=solver).fit(source).model_.predict(cells) - truth) ** 2) / truth.var()
        for source in (planted.tensor, shards)
    )
    assert here < 0.1
    assert np.sqrt(there + noise) < 1.01 * np.sqrt(here + noise)  # as held-out values show it


def test_penalties_of_whole_rows_do_not_hang_on_the_number_of_sites():
    solver, shape = sf.SGD(passes=1, ridge=3.0), Shape(MODES, (2, 2))
    query = []
    for sites in ([Site(ratings(), 1)], [Site(part, 1) for part in cut_by(ratings(), 0, 3)]):
        state = solver.init(Run(), shape)
        state, _ = solver.update(state, Local(*sites).answer(solver.ask(state)))
        query.append(solver.ask(state))
    whole = solver.penalty(query[0], Site(ratings(), 1)).by_row
    assert whole.size == USERS + ITEMS
    for part in cut_by(ratings(), 0, 3):
        np.testing.assert_array_equal(solver.penalty(query[1], Site(part, 1)).by_row, whole)


@pytest.mark.parametrize("solver", ["sgd", "minibatch"])
def test_passes_are_refused_on_a_cluster_before_it_is_begun(monkeypatch, solver):
    pytest.importorskip("ray")
    monkeypatch.setattr(sf.Ray, "open", None)
    with pytest.raises(SettingError, match=r'from one part of the data to the next.*solver="als"'):
        sf.CP(2, solver=solver, engine=sf.Ray(workers=2)).fit(ratings())


# -- parts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("number", [1, 2, 5, 40, 100])
def test_parts_make_up_the_whole_and_levels_are_at_one_of_them(mode, number):
    whole = ratings()
    parts = cut_by(whole, mode, number)
    assert 1 <= len(parts) <= number
    assert sum(part.n_entries for part in parts) == whole.n_entries
    held = [set(part.coordinates[mode].tolist()) for part in parts]
    assert sum(map(len, held)) == len(set.union(*held))
    sizes = [part.n_entries for part in parts]
    assert max(sizes) <= whole.n_entries / number + np.bincount(whole.coordinates[mode]).max()


def test_an_empty_tensor_is_one_part():
    empty = ratings().take(np.zeros(300, bool))
    assert [part.n_entries for part in cut_by(empty, 0, 3)] == [0]
