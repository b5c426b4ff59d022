"""Intervals of private fits of several tables: coverage, charges, what is kept and what is refused."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

import sfumato as sf
from sfumato.data.tensor import Mode
from sfumato.errors import SettingError
from sfumato.estimators.by_popularity import HELD, RELEASABLE, groups_of
from sfumato.estimators.groups import told_of
from sfumato.privacy.ledger import Draw
from sfumato.sites.several import RelationSites
from sfumato.solvers.private.intervals import LABEL, ResidualsQuery

_SIZES = {"user": 300, "item": 50, "place": 40}


def _tables(seed=0):
    """Ratings and visits of the same users, with biases, one component and normal residuals."""
    generator = np.random.default_rng(seed)
    rows, tables = generator.standard_normal((_SIZES["user"], 2)), {}
    for name, other, entries in (("ratings", "item", 9_000), ("visits", "place", 7_000)):
        size = _SIZES[other]
        columns = generator.standard_normal((size, 2))
        cells = generator.choice(_SIZES["user"] * size, entries, replace=False)
        u, i = np.divmod(cells, size)
        likely = 0.4 * rows[u, 0] + 0.5 * columns[i, 0] + 0.3 * rows[u, 1] * columns[i, 1]
        values = np.clip(3 + likely + 0.7 * generator.standard_normal(entries), 0, 6)
        modes = tuple(Mode(m, _SIZES[m], np.arange(_SIZES[m])) for m in ("user", other))
        tables[name] = sf.SparseTensor(np.array([u, i], np.int32), values, modes, (0.0, 6.0))
    return tables


def _privacy(unit="entry", local=None, epsilon=5.0, **settings):
    public = sf.Public(labels={name: list(range(size)) for name, size in _SIZES.items()})
    settings = {"seed": 1, "intervals": True, **settings}
    return sf.Privacy(epsilon=epsilon, delta=1e-6, unit=unit, local=local, public=public, **settings)


def _fitted(privacy, seed=0):
    pairs = {name: table.split(0.2, seed=1) for name, table in _tables(seed).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = sf.Coupled(privacy=privacy, threads=1)
        model.fit({name: pair[0] for name, pair in pairs.items()})
    return model, {name: pair[1] for name, pair in pairs.items()}


_CASES = [("entry", None), ("entry", "user"), ("user", "auto")]


@pytest.fixture(scope="module", params=_CASES, ids=["entry-released", "entry-own", "user-own"])
def fit(request):
    return _fitted(_privacy(*request.param))


def test_nine_of_ten_values_lie_between_the_bounds(fit):
    """Shares of 1,800 and 1,400 held-out values inside, at most 0.04 from 0.9: by chance alone one of
    six is further off in fewer than one of 10^5 runs."""
    model, tests = fit
    for name, test in tests.items():
        found = model.predict(name, test, interval=0.9)
        assert isinstance(found, sf.Interval)
        assert 0.86 <= np.mean((test.values >= found.low) & (test.values <= found.high)) <= 0.94
        assert (found.low <= found.prediction).all()
        assert (found.prediction <= found.high).all()
        np.testing.assert_array_equal(found.prediction, model.predict(name, test))
        assert found.noise.min() > 0
        assert 0.5 < found.scatter.mean() < 1.0


def test_what_was_saved_has_the_same_intervals(fit, tmp_path):
    model, tests = fit
    model.save(tmp_path / "model", force=True)
    again = sf.load(tmp_path / "model")
    for name, test in tests.items():
        for found, expected in zip(
            again.predict(name, test, interval=0.8), model.predict(name, test, interval=0.8), strict=True
        ):
            np.testing.assert_array_equal(found, expected)
    one = again.predict("ratings", user=3, item=4, interval=0.9)
    assert isinstance(one.low, float)
    assert one.low <= one.prediction <= one.high


def test_owners_who_bring_their_entries_have_narrower_intervals_than_who_brings_none(tmp_path):
    model, _ = _fitted(_privacy("user", "auto"))
    model.release(tmp_path / "release", force=True)
    released, train = sf.load(tmp_path / "release"), _tables()["ratings"].split(0.2, seed=1)[0]
    own = train.take(train.coordinates[0] == 5)
    cells = {"user": [5] * 50, "item": list(range(50))}
    brought = released.predict("ratings", cells, own=own, interval=0.9)
    nobody = released.predict("ratings", cells, interval=0.9, unseen="bias")
    known = model.predict("ratings", cells, interval=0.9)
    assert (brought.scatter < nobody.scatter).all()
    np.testing.assert_allclose(brought.scatter, known.scatter)
    np.testing.assert_array_equal(brought.noise, nobody.noise)


@pytest.mark.parametrize(("unit", "local"), _CASES)
def test_each_table_is_asked_once_more_within_the_budget(unit, local):
    tables = _tables()
    plans = [
        sf.Coupled(
            privacy=_privacy(unit, local, intervals=asked, method="moments" if local else "bias")
        ).plan(tables)
        for asked in (False, True)
    ]
    labels = [charge.label for charge in plans[1].charges]
    assert [label for label in labels if LABEL in label] == [f"visits: {LABEL}", f"ratings: {LABEL}"]
    assert len(labels) == len(plans[0].charges) + 2
    assert "proofs/intervals.md" in plans[1].task.promise.proof
    assert f"{LABEL} (visits)" in plans[1].task.promise.released
    assert "proofs/intervals.md" not in plans[0].task.promise.proof
    model, _ = _fitted(_privacy(unit, local))
    assert model.guarantee_.epsilon <= 5.0


def test_fits_that_were_not_asked_keep_nothing_for_intervals_and_say_so():
    plain, tests = _fitted(_privacy(intervals=False))
    with pytest.raises(SettingError, match="intervals=True"):
        plain.predict("ratings", tests["ratings"], interval=0.9)
    assert plain.model_.errors_of(0) is None
    assert all(known.own_entries is None for known in plain.private_relations_.values())


@pytest.mark.parametrize(("unit", "local"), [("entry", None), ("user", "auto")])
def test_data_that_give_the_same_releases_give_the_same_bands(unit, local, monkeypatch):
    """Other data, answered with what was drawn of the first: bands of a release are the same bits."""
    privacy, kept, drawn = _privacy(unit, local), [], Draw.release

    def record(draw, clipped):
        kept.append(drawn(draw, clipped))
        return kept[-1]

    def play(draw, clipped):
        draw._use()
        answer = kept[play.at]
        play.at += 1
        assert answer.values.shape == clipped.numbers.shape
        return answer

    play.at = 0
    with monkeypatch.context() as patch:
        patch.setattr(Draw, "release", record)
        first, _ = _fitted(privacy)
    with monkeypatch.context() as patch:
        patch.setattr(Draw, "release", play)
        second, _ = _fitted(privacy, seed=9)
    assert play.at == len(kept)
    other, _ = _fitted(privacy, seed=9)
    for name, place in (("ratings", "item"), ("visits", "place")):
        cells = {"user": ["nobody"] * 40, place: list(range(40))}
        bands = [m.predict(name, cells, interval=0.9, unseen="bias") for m in (first, second, other)]
        for one, same, apart in zip(*bands, strict=True):
            np.testing.assert_array_equal(one, same)
            assert np.abs(one - apart).max() > 1e-3


def _questions(privacy, monkeypatch):
    """What was asked of each table at the end, and of which entries."""
    asked, clipped = [], ResidualsQuery.clipped

    def kept(query, site):
        asked.append((query, [held.tensor for held in site.parts]))
        return clipped(query, site)

    with monkeypatch.context() as patch:
        patch.setattr(ResidualsQuery, "clipped", kept)
        _fitted(privacy)
    return asked


@pytest.mark.parametrize(("unit", "local"), [("entry", "user"), ("user", "auto")])
def test_one_unit_changes_counts_by_no_more_than_the_bound(unit, local, monkeypatch):
    """A user gone from all tables, or an entry from one: where entries are protected, those of the other
    table change nothing, though owners' rows follow from them. They are not charged for it."""
    for query, tables in _questions(_privacy(unit, local), monkeypatch):
        whole = query.clipped(RelationSites(tables, 1))
        for user in (2, 11, 47):
            for changed in range(2):
                gone = [table.coordinates[0] == user for table in tables]
                if unit == "entry":
                    first = np.flatnonzero(gone[changed])[0]
                    gone = [np.zeros(there.size, bool) for there in gone]
                    gone[changed][first] = True
                left = [table.take(~there) for table, there in zip(tables, gone, strict=True)]
                apart = whole.numbers - query.clipped(RelationSites(left, 1)).numbers
                assert np.abs(apart).sum() <= whole.l1
                assert np.linalg.norm(apart) <= whole.l2
                assert apart.any() == (unit == "user" or changed == query.part)


def test_one_table_alone_has_the_intervals_of_its_own_fit():
    train, test = _tables()["ratings"].split(0.2, seed=1)
    labels = {name: list(range(_SIZES[name])) for name in ("user", "item")}
    privacy = replace(_privacy("user", "auto"), public=sf.Public(labels=labels))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = sf.CP(privacy=privacy, threads=1).fit(train)
        coupled = sf.Coupled(privacy=privacy, threads=1).fit({"ratings": train})
    for found, expected in zip(
        coupled.predict("ratings", test, interval=0.9), alone.predict(test, interval=0.9), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_a_table_beside_public_ones_has_intervals():
    tables = _tables()
    train, test = tables["ratings"].split(0.2, seed=1)
    privacy = _privacy("user", "auto")
    public = replace(privacy.public, relations={"visits": True})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = sf.Coupled(privacy=replace(privacy, public=public), threads=1)
        model.fit({"ratings": train, "visits": tables["visits"]})
    found = model.predict("ratings", test, interval=0.9)
    assert 0.86 <= np.mean((test.values >= found.low) & (test.values <= found.high)) <= 0.94


def test_groups_are_those_of_one_table(fit):
    model, tests = fit
    expected = groups_of(told_of(model, "visits"), "place")
    assert (expected.status, sum(group.levels for group in expected.groups)) == (RELEASABLE, 40)
    measured = groups_of(told_of(model, "visits"), "place", tests["visits"])
    assert measured.status == HELD
    assert sum(group.held_out for group in measured.groups) == tests["visits"].n_entries
    with pytest.raises(SettingError, match="ratings, visits"):
        told_of(model)


def test_what_cannot_be_told_is_refused(fit):
    model, tests = fit
    for level in (0, 1, -0.5, 2, "0.9", float("nan")):
        with pytest.raises(SettingError, match="interval"):
            model.predict("ratings", tests["ratings"], interval=level)
    with pytest.raises(SettingError, match="reliance"):
        model.predict("ratings", tests["ratings"], interval=0.9, reliance=True)
    with pytest.raises(SettingError, match="how much noise"):
        sf.Coupled(privacy=_privacy(method="langevin")).plan(_tables())
