"""Intervals of private fits: what they cover, what they are made of, and what they refuse."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

import sfumato as sf
from sfumato.data.tensor import Mode
from sfumato.errors import SettingError
from sfumato.estimators.by_popularity import HELD, RELEASABLE, groups_of
from sfumato.estimators.groups import told_of
from sfumato.fit.completion import Completion
from sfumato.fit.request import Privacy
from sfumato.models.doubts import BINS as SHARES
from sfumato.models.doubts import EDGES, Doubts, OwnDoubts
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.ledger import Draw, Ledger
from sfumato.privacy.mechanisms import Noisy
from sfumato.sites.memory import Site
from sfumato.solvers.private.intervals import LABEL, ResidualsQuery, WithIntervals, change, stretched
from sfumato.solvers.private.residuals import (
    BINS,
    ENDS,
    GUESSED,
    KNOWN,
    rare_variances,
    shape_from,
    usual_shape,
)
from sfumato.solvers.private.spread import knows_spread

_USERS, _ITEMS = 400, 60


def _planted(seed, entries=16_000):
    """Biases of items and users with normal residuals, within wide bounds."""
    generator = np.random.default_rng(seed)
    cells = generator.choice(_USERS * _ITEMS, entries, replace=False)
    users, items = np.divmod(cells, _ITEMS)
    likely = 0.6 * generator.standard_normal(_ITEMS)[items]
    likely += 0.4 * generator.standard_normal(_USERS)[users]
    values = np.clip(3 + likely + 0.7 * generator.standard_normal(entries), 0, 6)
    cells = np.array([users, items], np.int32)
    modes = Mode("user", _USERS, np.arange(_USERS)), Mode("item", _ITEMS, np.arange(_ITEMS))
    return sf.SparseTensor(cells, values, modes, (0.0, 6.0))


def _privacy(epsilon=3.0, unit="entry", local=None, **settings):
    labels = {"user": range(_USERS), "item": range(_ITEMS)}
    settings = {"seed": 1, "intervals": True, "method": "bias", **settings}
    public = sf.Public(labels=labels)
    return Privacy(epsilon=epsilon, delta=1e-6, unit=unit, local=local, public=public, **settings)


def _fitted(privacy, seed=0):
    train, test = _planted(seed).split(0.2, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sf.CP(privacy=privacy, threads=1).fit(train), test


@pytest.mark.parametrize(
    ("unit", "local", "epsilon"),
    [("entry", None, 1.0), ("entry", None, 10.0), ("user", "auto", 10.0), ("entry", "user", 3.0)],
)
def test_nine_of_ten_values_lie_between_the_bounds(unit, local, epsilon):
    """Share of 3,200 held-out values inside, at most 0.03 from 0.9: if coverage were 0.9 exactly, it
    would lie further off by chance in fewer than one of 10^7 runs."""
    model, test = _fitted(_privacy(epsilon, unit, local))
    found = model.predict(test, interval=0.9)
    inside = np.mean((test.values >= found.low) & (test.values <= found.high))
    assert 0.87 <= inside <= 0.93
    assert 2 * binom.cdf(round(0.87 * test.n_entries), test.n_entries, 0.9) < 1e-6
    assert (found.low <= found.prediction).all()
    assert (found.prediction <= found.high).all()


@pytest.mark.parametrize(("epsilon", "asked"), [(0.1, False), (0.5, False), (5.0, True)])
def test_where_the_spread_is_not_asked_for_bounds_are_wide_enough(epsilon, asked):
    """Of four draws of 3,200 held-out values at least 0.87 lie inside on average: with the spread that
    such a fit goes by it would be 0.7.
    """
    inside = []
    for seed in range(4):
        model, test = _fitted(_privacy(epsilon, "user", "auto", seed=seed, method="moments"), seed)
        found = model.predict(test, interval=0.9)
        inside.append(np.mean((test.values >= found.low) & (test.values <= found.high)))
        plan = model.plan_
        assert knows_spread(plan.task.facts, plan.charges) == asked
        assert any(label == "spread" for label, *_ in model.guarantee_.draws) == asked
    assert np.mean(inside) >= 0.87


def test_what_is_not_known_of_the_spread_makes_bounds_wide():
    """Before anything is asked; under little noise the counts decide, whatever was known."""
    widths = []
    for scales in (KNOWN, GUESSED):
        low, high = np.interp([0.05, 0.95], np.cumsum(usual_shape(scales))[:-1], EDGES)
        widths.append(high - low)
    assert widths[1] > 1.2 * widths[0]
    sample = 1.5 * np.random.default_rng(0).standard_normal(200_000)
    counts = np.bincount(np.searchsorted(ENDS, sample), minlength=BINS).astype(float)
    for scales in (KNOWN, GUESSED):
        found = np.cumsum(shape_from(Noisy(counts, 1.0), scales))[:-1]
        inside = np.interp([0.05, 0.95], found, EDGES)
        np.testing.assert_allclose(inside, np.quantile(sample, [0.05, 0.95]), atol=0.12)


def test_rare_levels_tell_of_the_scale_of_all_where_the_others_are_few():
    """With most values at rare levels the guess is nearer to the truth with them than without."""
    generator = np.random.default_rng(0)
    off = {False: [], True: []}
    for _ in range(200):
        counts = np.bincount(np.searchsorted(ENDS, generator.standard_normal(100)), minlength=BINS)
        near = np.count_nonzero(np.abs(generator.standard_normal(2000)) < 1)
        noisy = np.append(counts, [near, 2000 - near]) + 15 * generator.standard_normal(BINS + 2)
        for rare in off:
            shape = shape_from(Noisy(noisy if rare else noisy[:BINS], 15.0))
            low, high = np.interp([0.05, 0.95], np.cumsum(shape)[:-1], EDGES)
            off[rare].append(high - low - 2 * 1.645)
    assert np.std(off[True]) < 0.8 * np.std(off[False])


@pytest.mark.parametrize(("loss", "bounds"), [("poisson", (0.0, 6.0)), ("logistic", (0.0, 1.0))])
def test_intervals_that_could_not_be_told_are_refused_before_they_are_paid_for(tmp_path, loss, bounds):
    data, ledger = sf.prepare.clip(_planted(0), bounds), tmp_path / "spent.ledger"
    privacy = _privacy(ledger=ledger)
    for asked in (sf.CP(2, loss=loss, privacy=privacy), sf.Biases(loss=loss, privacy=privacy)):
        with pytest.raises(SettingError, match="fitted as they are: leave intervals"):
            asked.fit(data)
        with pytest.raises(SettingError, match="fitted as they are: leave intervals"):
            asked.plan(data.modes, bounds=bounds)
    assert not ledger.exists()
    asked = sf.CP(2, loss=loss, privacy=replace(privacy, intervals=False))
    assert asked.plan(data.modes, bounds=bounds).charges


@pytest.mark.parametrize(
    ("unit", "epsilon", "usual"),
    [
        ("value", 1.0, "private biases"),
        ("value", 10.0, "input perturbation"),
        ("entry", 3.0, "private biases"),
        ("user", 20.0, "gradient perturbation"),
    ],
)
def test_auto_takes_a_method_that_tells_its_noise(unit, epsilon, usual):
    """Also where another would be best, which is taken without intervals alone."""
    privacy = _privacy(epsilon, unit, method="auto")

    def made(asked):
        return sf.CP(privacy=asked).plan(_planted(0).modes, bounds=(0.0, 6.0), entries=16_000)

    assert made(replace(privacy, intervals=False)).task.solver.name == usual
    plan = made(privacy)
    assert plan.charges[-1].label == LABEL
    assert (plan.task.solver.name == usual) == (usual == "private biases")


def test_less_budget_means_more_noise_of_privacy_and_the_same_scatter():
    loud, test = _fitted(_privacy(0.5))
    quiet, _ = _fitted(_privacy(20.0))
    first, second = (model.predict(test, interval=0.9) for model in (loud, quiet))
    assert first.noise.mean() > 2 * second.noise.mean()
    assert abs(second.scatter.mean() - 0.7) < 0.05
    assert (first.high - first.low).mean() > (second.high - second.low).mean()


@pytest.mark.parametrize(("unit", "local"), [("entry", None), ("user", "auto")])
def test_intervals_are_a_function_of_the_release(tmp_path, unit, local):
    """Those of the folder `release` are those of the fitted model, for rows that are not owners'."""
    model, test = _fitted(_privacy(3.0, unit, local))
    model.save(tmp_path / "model", force=True)
    released = sf.load(tmp_path / "model" / "release")
    cells = {"user": ["nobody"] * _ITEMS, "item": list(range(_ITEMS))}
    for found, expected in zip(
        released.predict(cells, interval=0.8, unseen="bias"),
        model.predict(cells, interval=0.8, unseen="bias"),
        strict=True,
    ):
        np.testing.assert_array_equal(found, expected)
    again = sf.load(tmp_path / "model")
    for found, expected in zip(
        again.predict(test, interval=0.9), model.predict(test, interval=0.9), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


class _Tape:
    """Draws that are kept, or that answer instead of what the data say."""

    def __init__(self, monkeypatch):
        self._patch, self.kept = monkeypatch, []

    def record(self):
        drawn = Draw.release

        def release(draw, clipped):
            self.kept.append(drawn(draw, clipped))
            return self.kept[-1]

        self._patch.setattr(Draw, "release", release)
        return self

    def play(self):
        answers = iter(self.kept)

        def release(draw, clipped):
            draw._use()
            answer = next(answers)
            assert answer.values.shape == clipped.numbers.shape
            return answer

        self._patch.setattr(Draw, "release", release)


@pytest.mark.parametrize(("unit", "local"), [("entry", None), ("entry", "user"), ("user", "auto")])
def test_data_that_give_the_same_releases_give_the_same_bands(unit, local, monkeypatch):
    """Two data sets of which nothing is alike, the second answered with what was drawn of the first:
    whatever else a fit would take from its data shows in the bands, or in what is written."""
    privacy = _privacy(3.0, unit, local, method="moments" if local else "bias")
    with monkeypatch.context() as patch:
        tape = _Tape(patch).record()
        first, test = _fitted(privacy)
    other, _ = _fitted(privacy, seed=7)
    with monkeypatch.context() as patch:
        tape._patch = patch
        tape.play()
        second, _ = _fitted(privacy, seed=7)
    cells = {"user": ["nobody"] * _ITEMS, "item": list(range(_ITEMS))}
    if local is None:
        cells = test
    bands = [model.predict(cells, interval=0.9, unseen="bias") for model in (first, second, other)]
    for one, same, apart in zip(*bands, strict=True):
        np.testing.assert_array_equal(one, same)
        assert np.abs(one - apart).max() > 1e-3
    written, again = (model.release_files(force=True) for model in (first, second))
    for name in written:
        if name.endswith(".safetensors"):
            assert written[name] == again[name]


def test_the_draw_is_charged_and_small():
    train, _ = _planted(0).split(0.2, seed=0)
    plan = sf.CP(privacy=_privacy(3.0)).plan(train.modes, bounds=(0.0, 6.0))
    assert isinstance(plan.task, Completion)
    assert plan.charges[-1].label == LABEL
    spent = [charge.mechanism.event for charge in plan.charges]
    costs = [getattr(e, "epsilon", 0.0) or e.noise_multiplier**-2 for e in spent]
    assert 0.002 < costs[-1] / sum(costs) <= 0.0501
    assert "proofs/intervals.md" in plan.task.promise.proof
    assert "how far values lie from predictions" in plan.task.promise.released


def _query(model, privacy):
    """What is asked at the end of a fit: about the release, which has no own rows."""
    plan = sf.CP(privacy=privacy).plan(model.modes_, bounds=(0.0, 6.0))
    shape = replace(plan.task.facts.shape, ranks=model.model_.ranks)
    facts, released = replace(plan.task.facts, shape=shape), model.model_
    if facts.local is not None:
        nobody = np.zeros((released.shape[facts.local], released.ranks[facts.local]))
        released = released.with_rows(facts.local, nobody, nobody[:, 0])
    return ResidualsQuery(facts, None, released, model.errors_, model.own_prior_, None), plan


@pytest.mark.parametrize(
    ("unit", "local", "bound"),
    [
        ("entry", None, (1.0, 1.0)),
        ("entry", "user", (1.0, 1.0)),
        ("value", None, (2.0, 2**0.5)),
        ("user", "auto", (1.0, 0.4)),
        ("user", None, (1.0, 0.4)),
    ],
)
def test_one_unit_changes_counts_by_no_more_than_the_bound(unit, local, bound):
    """All entries of a unit left out, or one of them, or another value: at the same release."""
    privacy = _privacy(3.0, unit, local, method="moments" if local else "bias")
    model, _ = _fitted(privacy)
    train, _ = _planted(0).split(0.2, seed=0)
    query, _ = _query(model, privacy)
    whole = query.clipped(Site(train, 1))
    assert (whole.l1, whole.l2) == pytest.approx(bound, rel=1e-6)
    assert change(query.facts) == pytest.approx(bound, rel=1e-6)
    for level in (0, 7, 31):
        gone = train.coordinates[0] == level
        if unit != "user":
            gone &= np.arange(train.n_entries) == np.flatnonzero(gone)[0]
        other = train.take(~gone)
        if unit == "value":
            other = train.with_values(np.where(gone, 6.0 - train.values, train.values))
        apart = whole.numbers - query.clipped(Site(other, 1)).numbers
        assert np.abs(apart).sum() <= whole.l1
        assert np.linalg.norm(apart) <= whole.l2
        assert apart.any() or unit == "value"


@pytest.mark.parametrize(("unit", "local"), [("entry", "user"), ("user", "auto")])
def test_counts_of_two_holders_add_up_to_those_of_all(unit, local):
    privacy = _privacy(3.0, unit, local, method="moments")
    model, _ = _fitted(privacy)
    train, _ = _planted(0).split(0.2, seed=0)
    query, _ = _query(model, privacy)
    first = train.coordinates[0] < _USERS // 3
    parts = [query.clipped(Site(train.take(part), 1)) for part in (first, ~first)]
    whole = query.clipped(Site(train, 1))
    np.testing.assert_array_equal(parts[0].values + parts[1].values, whole.values)


@pytest.mark.parametrize(("unit", "local"), [("entry", None), ("user", "auto")])
def test_the_noise_of_the_draw_is_that_of_its_charge(unit, local):
    """Deviation of what 60 draws add to the counts, over that of the charge: at most 0.15 from one.

    Of 840 normal numbers or more it is further off by chance in fewer than one of 10^8 runs; with a
    third less noise it would be 0.67.
    """
    privacy = _privacy(3.0, unit, local, method="moments" if local else "bias")
    model, _ = _fitted(privacy)
    train, _ = _planted(0).split(0.2, seed=0)
    query, plan = _query(model, privacy)
    charge, clipped, added = plan.charges[-1], query.clipped(Site(train, 1)), []
    l1, l2 = change(query.facts)
    for seed in range(60):
        with Ledger(query.facts.unit, plan.budget).reserve((charge,), Entropy(seed)) as reservation:
            drawn = reservation.ask(lambda draw: draw.release(clipped))
        added.append(drawn.values - clipped.numbers)
    assert np.size(added) >= 840
    expected = charge.mechanism.deviation(l1 if plan.task.solver.pure else l2)
    assert abs(np.std(added) / expected - 1) < 0.15


def test_intervals_are_paid_for():
    """The plan with intervals has the same budget, so that its other draws have less of it."""
    train, _ = _planted(0).split(0.2, seed=0)
    plans = [
        sf.CP(privacy=_privacy(3.0, intervals=asked)).plan(train.modes, bounds=(0.0, 6.0))
        for asked in (False, True)
    ]
    assert len(plans[1].charges) == len(plans[0].charges) + 1
    without, others = (
        sum(1 / charge.mechanism.noise_multiplier for charge in charges)
        for charges in (plans[0].charges, plans[1].charges[:-1])
    )
    assert others < 0.998 * without


def test_shapes_follow_the_counts_where_noise_is_small_and_what_is_usual_where_it_is_large():
    generator = np.random.default_rng(1)
    for sample in (generator.standard_normal(200_000), generator.standard_t(3, 200_000) / 2):
        counts = np.bincount(np.searchsorted(ENDS, sample), minlength=BINS).astype(float)
        shape = shape_from(Noisy(counts, 1.0))
        inside = np.interp([0.05, 0.95], np.cumsum(shape)[:-1], EDGES)
        np.testing.assert_allclose(inside, np.quantile(sample, [0.05, 0.95]), atol=0.12)
        loud = shape_from(Noisy(counts, 1e9))
        np.testing.assert_allclose(loud, shape_from(Noisy(counts[::-1], 1e9)), atol=1e-6)


def test_what_is_left_of_own_rows_falls_with_their_entries():
    own = OwnDoubts(mode=0, spectrum=np.array([0.5, 0.1]), precision=2.0)
    left = own.after(np.array([0, 1, 10, 10_000]))
    assert left[0] == pytest.approx(0.6)
    assert (np.diff(left) < 0).all()
    assert left[3] == pytest.approx(2 / (2.0 * 10_000), rel=0.01)


def test_what_cannot_be_told_is_refused(tmp_path):
    plain, test = _fitted(_privacy(intervals=False))
    with pytest.raises(SettingError, match="intervals=True"):
        plain.predict(test, interval=0.9)
    for level in (0, 1, -0.1, 1.5, "0.9", float("nan")):
        with pytest.raises(SettingError, match="interval"):
            plain.predict(test, interval=level)
    with pytest.raises(SettingError, match="does not tell how much noise"):
        sf.CP(privacy=_privacy(method="gradient")).plan(test.modes, bounds=(0.0, 6.0))
    asked = sf.Privacy(epsilon=1, delta=1e-6, unit="entry", intervals=True)
    with pytest.raises(SettingError, match="power method tells no intervals"):
        sf.PowerMethod(2, privacy=replace(asked, unit=sf.TensorEntry(1.0))).fit(np.ones((3, 3, 3)))
    with pytest.raises(SettingError, match="network tells no intervals"):
        sf.PrivateClassifier(privacy=replace(asked, unit="example")).fit(np.eye(4), [0, 1, 0, 1])
    with pytest.raises(SettingError, match="study between owners tells no intervals"):
        sf.make_study(sf.CP(privacy=asked), test.modes, sites={"a": 2, "b": 2}, bounds=(0.0, 6.0))
    assert WithIntervals(sf.PrivateBiases()).share(
        sf.CP(privacy=_privacy()).plan(test.modes, bounds=(0.0, 6.0)).task.facts
    )


def test_rare_levels_scatter_more_where_counts_say_so():
    """Residuals of rare levels twice as wide as the others, and what noise leaves of that."""
    doubts = Doubts(
        scatter=1.0, noise=(None, None), data=(None, None), counts=(None, np.geomspace(1, 1000, 50))
    )
    assert doubts.told == (1,)
    rareness = doubts.rareness(1)
    assert np.count_nonzero(rareness) == 30
    assert (np.diff(rareness) <= 0).all()
    others = np.random.default_rng(0).standard_normal(200_000)
    popular = np.bincount(np.searchsorted(ENDS, others), minlength=BINS)
    near = np.count_nonzero(np.abs(2 * others) < 1)
    counts = np.append(popular, [near, others.size - near]).astype(float)
    shape = shape_from(Noisy(counts, 1.0))
    (more,) = rare_variances(Noisy(counts, 1.0), shape, 1)
    assert more == pytest.approx(3.0, rel=0.15)
    (hidden,) = rare_variances(Noisy(counts, 1e9), shape, 1)
    assert abs(hidden) < 1e-3
    wider = doubts.with_rare({1: more})
    assert wider.data[1][-1] == 0
    weights = doubts.counts[1][:30]
    assert weights @ wider.data[1][:30] / weights.sum() == pytest.approx(more)


def test_an_open_fit_has_intervals_of_its_scatter():
    train, test = _planted(0).split(0.2, seed=0)
    model = sf.CP(2, threads=1).fit(train)
    found = model.predict(test, interval=0.9)
    assert 0.85 <= np.mean((test.values >= found.low) & (test.values <= found.high)) <= 0.95
    assert not found.noise.any()
    one = model.predict(user=train.modes[0].label(0), item=train.modes[1].label(0), interval=0.5)
    assert one.low <= one.prediction <= one.high


def test_rare_levels_are_expected_to_have_more_noise():
    model, test = _fitted(_privacy(1.0))
    expected = groups_of(told_of(model), "item")
    assert expected.status == RELEASABLE
    assert sum(group.levels for group in expected.groups) == _ITEMS
    assert expected.groups[0].counted < expected.groups[-1].counted
    assert all(group.measured is None for group in expected.groups)
    measured = groups_of(told_of(model), "item", test)
    assert measured.status == HELD
    assert sum(group.held_out for group in measured.groups) == test.n_entries
    for group in measured.groups:
        assert abs(group.measured - group.expected) < 0.25
    local, _ = _fitted(_privacy(3.0, "user", "auto"))
    with pytest.raises(SettingError, match="how often each user"):
        groups_of(told_of(local), "user")


def test_shares_of_residuals_stay_shares_when_they_are_stretched():
    g = np.random.default_rng(0)
    for ratio in (0.6, 0.9, 1.0, 1.3):
        for _ in range(50):
            shape = g.dirichlet(np.full(SHARES, 0.05))
            moved = stretched(shape, ratio)
            assert (moved >= 0).all()
            assert moved.sum() == pytest.approx(1)
