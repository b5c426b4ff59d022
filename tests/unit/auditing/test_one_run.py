"""Many canaries in one run: what they are, what guesses of their coins prove, and what is refuted."""

import json
import pickle
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import binom

import sfumato as sf
from sfumato.auditing import one_run
from sfumato.auditing.bounds import one_run_bound, one_run_p_value
from sfumato.auditing.canaries import place_canaries
from sfumato.auditing.trials import released
from sfumato.auditing.verdict import Promise
from sfumato.auditing.views import View
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import SettingError
from sfumato.solvers.gradient.sequential import SequentialSGD
from sfumato.solvers.private.constant import ConstantQuery, PrivateConstant
from sfumato.solvers.protocol import NoisyQuery

UNITS = [sf.Value(), sf.UnitValues("user", 4), sf.Entry(), sf.Unit("user"), sf.Unit("user", 5)]
each_unit = pytest.mark.parametrize(
    "unit", UNITS, ids=lambda unit: f"{type(unit).__name__}{unit.max_entries or ''}"
)
PUBLIC = sf.Public(labels={"user": range(40), ...: True}, entries=600)


def ratings(users=40, items=30, entries=600, seed=0, labels=None):
    generator = np.random.default_rng(seed)
    cells = generator.choice(users * items, entries, replace=False)
    coordinates = np.stack(np.unravel_index(cells, (users, items)))
    values = generator.integers(1, 6, entries).astype(float)
    modes = (Mode("user", users, labels), Mode("item", items))
    return SparseTensor(coordinates, values, modes, (1.0, 5.0))


def entries_of(tensor):
    """Entries as a set; tensors here have none twice."""
    return set(zip(*tensor.coordinates.tolist(), tensor.values.tolist(), strict=True))


# -- what guesses prove ---------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (2.0, 0.0), (1.0, 1e-3)])
def test_p_value_holds_for_randomised_response(epsilon, delta):
    """Each coin is shown by randomised response, or outright with probability delta.

    That is as private as it says. A p-value of 5% or less may come up in 5% of 4,000 runs: more than
    4 standard deviations beyond is a false alarm of 3e-5.
    """
    runs, canaries, guesses = 4000, 60, 40
    generator = np.random.default_rng(1)
    coins = generator.random((runs, canaries)) < 0.5
    honest = generator.random(coins.shape) < 1 / (1 + np.exp(-epsilon))
    honest |= generator.random(coins.shape) < delta
    shown = np.where(honest, coins, ~coins)
    right = (shown == coins)[:, :guesses].sum(axis=1)
    p_values = {n: one_run_p_value(canaries, guesses, n, epsilon, delta) for n in set(right.tolist())}
    alarms = np.mean([p_values[n] <= 0.05 for n in right.tolist()])
    assert alarms <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / runs)
    assert delta or alarms >= 0.01  # the worst case: what is lost is only that counts are whole


def test_p_value_holds_where_delta_shows_all_coins_at_once():
    canaries, epsilon, delta = 40, 1.0, 0.01
    chance = 1 / (1 + np.exp(-epsilon))
    for correct in range(canaries + 1):
        honest = binom.sf(correct - 1, canaries, chance)
        worst = delta + (1 - delta) * honest
        assert one_run_p_value(canaries, canaries, correct, epsilon, delta) >= worst - 1e-12


@pytest.mark.parametrize(("guesses", "correct"), [(30, 22), (30, 28), (12, 12), (30, 15)])
def test_p_value_is_the_most_that_delta_can_add(guesses, correct):
    """Delta gives away F more coins, with a mean of 2 m delta at most: the worst law of F, by an LP."""
    canaries, epsilon, delta = 30, 0.8, 1e-3
    chance = 1 / (1 + np.exp(-epsilon))
    more = np.arange(canaries + 1)
    reached = binom.sf(correct - more - 1, guesses, chance)
    worst = linprog(
        -reached, A_ub=[more], b_ub=[2 * canaries * delta], A_eq=[np.ones(more.size)], b_eq=[1.0]
    )
    found = one_run_p_value(canaries, guesses, correct, epsilon, delta)
    assert found == pytest.approx(-worst.fun, rel=1e-6)


def outcome(scores, coins, epsilon=0.0, delta=0.0, confidence=0.95):
    promise = Promise(epsilon, delta, epsilon, "one entry", "one is added", "made up", proven=True)
    return one_run.OneRunAudit(promise, scores, coins, confidence, references=2, seeded=True)


def test_scores_that_know_nothing_prove_nothing():
    """At 95%, 5% of 400 audits may find something; more than 36 are a false alarm of 3e-4."""
    generator = np.random.default_rng(2)
    found = 0
    for _ in range(400):
        audit = outcome(generator.random(200), generator.random(200) < 0.5)
        found += audit.measured > 0
    assert found <= 36
    assert one_run_bound(200, 200, 100, 0.0, 0.05) == 0


def test_guesses_are_counted_from_both_ends():
    coins = np.array([True] * 10 + [False] * 10)
    clear = outcome(np.arange(20.0)[::-1], coins)
    assert [clear.correct(n) for n in (2, 7, 20)] == [2, 7, 20]
    assert clear.violated
    assert outcome(np.arange(20.0), coins).correct(20) == 0
    # A score that is clear at the ends only: few guesses prove more than all of them.
    mixed = coins[::-1].copy()
    mixed[5:15] = [True, False, False, True, True, False, True, True, False, False]
    ends = outcome(np.arange(20.0), mixed, confidence=0.5)
    assert (ends.correct(10), ends.correct(20)) == (10, 14)
    assert ends.strongest.guesses < 20


def test_error_is_divided_among_the_numbers_of_guesses():
    audit = outcome(np.arange(100.0), np.arange(100) >= 50, confidence=0.9)
    assert [tried.guesses for tried in audit.tries] == [100, 50, 20, 5]
    assert sum(tried.error for tried in audit.tries) == pytest.approx(0.1)


# -- what canaries are ----------------------------------------------------------------------------


@each_unit
def test_flipping_a_coin_changes_one_unit(unit):
    tensor = ratings()
    canaries = place_canaries(tensor, unit, 20, seed=3)
    coins = np.random.default_rng(4).random(20) < 0.5
    before = canaries.data(coins)
    for canary in (0, 7, 19):
        flipped = coins.copy()
        flipped[canary] = not flipped[canary]
        after = canaries.data(flipped)
        ours, theirs = entries_of(before), entries_of(after)
        changed = (ours - theirs) | (theirs - ours)
        assert changed
        if unit.mode is not None:
            assert len({user for user, _, _ in changed}) == 1
        if unit.hides_presence:
            assert ours < theirs or theirs < ours
        else:
            np.testing.assert_array_equal(before.coordinates, after.coordinates)
            assert {value for _, _, value in changed} == {1.0, 5.0}
        per_change = 1 if unit.hides_presence else 2
        if unit.mode is None:
            assert len(changed) == per_change
        elif unit.max_entries is not None:
            assert len(changed) <= per_change * unit.max_entries
        if isinstance(unit, sf.Unit):  # all of the level's entries, not some
            (user,) = {user for user, _, _ in changed}
            smaller = min(ours, theirs, key=len)
            assert not any(entry[0] == user for entry in smaller)


@each_unit
def test_canaries_are_units_of_their_own(unit):
    canaries = place_canaries(ratings(), unit, 20, seed=3)
    assert canaries.number == 20
    assert set(canaries.owner.tolist()) == set(range(20))
    assert len(set(zip(*canaries.cells.tolist(), strict=True))) == canaries.owner.size
    if unit.mode is not None:
        users = [set(canaries.cells[0][canaries.owner == k].tolist()) for k in range(20)]
        assert all(len(levels) == 1 for levels in users)
        assert len(set.union(*users)) == 20


@each_unit
def test_nothing_public_depends_on_coins(unit):
    canaries = place_canaries(ratings(), unit, 20, seed=3)
    all_heads, all_tails = (canaries.data(np.full(20, side)) for side in (True, False))
    assert all_heads.modes == all_tails.modes == canaries.tensor.modes
    assert all_heads.bounds == all_tails.bounds == (1.0, 5.0)
    privacy = sf.Privacy(epsilon=1, delta=1e-6, unit=unit, method="bias", local=None, public=PUBLIC)
    forms = {
        View.of(released(sf.CP(2, privacy=privacy), data, 5)).form for data in (all_heads, all_tails)
    }
    assert len(forms) == 1


def test_entries_are_added_where_none_are():
    tensor = ratings(entries=1100)
    canaries = place_canaries(tensor, sf.Entry(), 100, seed=0)  # all cells that are left
    there = set(zip(*tensor.coordinates.tolist(), strict=True))
    assert not there & set(zip(*canaries.cells.tolist(), strict=True))
    wide = ratings(2000, 300, 2000)  # too large for a list of all cells
    lonely = place_canaries(wide, sf.Entry(), 100, seed=0)
    assert not set(zip(*wide.coordinates.tolist(), strict=True)) & set(
        zip(*lonely.cells.tolist(), strict=True)
    )
    assert max(np.bincount(levels).max() for levels in lonely.cells) == 1


def test_values_are_spread_over_lonely_levels():
    tensor = ratings(200, 150, 3000)
    canaries = place_canaries(tensor, sf.Value(), 100, seed=0)
    chosen = {tuple(cell) for cell in canaries.cells.T.tolist()}
    assert chosen <= {tuple(cell) for cell in tensor.coordinates.T.tolist()}
    assert max(np.bincount(levels).max() for levels in canaries.cells) <= 3
    company = tensor.counts("user")[canaries.cells[0]] + tensor.counts("item")[canaries.cells[1]]
    all_company = sum(
        tensor.counts(m)[c] for m, c in zip(("user", "item"), tensor.coordinates, strict=True)
    )
    assert company.mean() < all_company.mean()


@pytest.mark.parametrize(
    "labels", [np.arange(100, 140), np.array([f"canary {k}" for k in range(40)], object)]
)
def test_added_levels_have_labels_of_their_own(labels):
    canaries = place_canaries(ratings(labels=labels), sf.Unit("user"), 10, seed=0)
    wider = canaries.tensor.modes[0]
    assert wider.size == len(set(wider.labels.tolist())) == 50
    np.testing.assert_array_equal(wider.labels[:40], labels)
    assert canaries.cells[0].min() >= 40


# -- audits ---------------------------------------------------------------------------------------


def private(method="bias", unit="entry", epsilon=1.0, delta=1e-6, local=None, users=40):
    public = replace(PUBLIC, labels={"user": range(users), ...: True})
    privacy = sf.Privacy(epsilon, delta, unit=unit, method=method, local=local, public=public)
    return sf.CP(2, privacy=privacy)


@dataclass(frozen=True)
class ConstantAndMore(NoisyQuery):
    """Ask for a constant, and for what is left at each level besides."""

    constant: ConstantQuery

    def noisy(self, site, draw):
        tensor = site.tensor
        left = tensor.values - 3.0
        sums = [
            np.bincount(levels, left, size) / 100
            for levels, size in zip(tensor.coordinates, tensor.shape, strict=True)
        ]
        return draw.release(self.constant.clipped(site)), sums


@dataclass(frozen=True)
class Careless(PrivateConstant):
    """Charges for a constant, and gives out what is left at each level besides, without noise."""

    def ask(self, state):
        return ConstantAndMore(super().ask(state))

    def update(self, state, released):
        constant, sums = released
        state, info = super().update(state, constant)
        model = state.model
        for m, biases in enumerate(sums):
            model = model.with_rows(m, model.factors[m], biases)
        return replace(state, model=model), info


@pytest.mark.parametrize(
    ("unit", "local"),
    [
        ("value", None),
        (sf.UnitValues("user", 10), None),
        ("entry", None),
        ("entry", "user"),
        ("user", None),
        ("user", "user"),
    ],
    ids=str,
)
def test_noise_that_is_left_out_is_found(unit, local):
    estimator = private(Careless(), unit, 0.5, 1e-6, local, users=150)
    audit = sf.audit_one_run(estimator, ratings(150, 200, 3000), canaries=100, references=2, processes=1)
    assert audit.violated, audit
    assert audit.verdict.startswith("VIOLATED: measured >= ")
    assert "at 95% against a promise of epsilon = 0.5" in audit.verdict
    assert audit.to_json()["violated"] is True


def test_paper_promise_is_refuted():
    """Output perturbation as printed puts noise on one mode and releases the others as they are."""
    method = sf.PaperOutput(descent=SequentialSGD(passes=20))
    privacy = sf.Privacy(epsilon=0.1, unit="value", method=method, analysis="paper")
    audit = sf.audit_one_run(
        sf.CP(2, privacy=privacy), ratings(150, 90, 3000), canaries=300, references=3, processes=1
    )
    assert audit.violated, audit
    assert not audit.promise.proven


@pytest.mark.parametrize(
    ("method", "unit", "delta", "local"),
    [
        ("bias", "entry", 1e-6, None),
        ("bias", "user", 1e-6, "user"),
        ("bias", sf.UnitValues("user", 4), 1e-6, None),
        ("alternating", "entry", 1e-6, "user"),
        ("input", "value", 0.0, None),
    ],
)
@pytest.mark.usefixtures("few_starts")
def test_proven_promises_stand(method, unit, delta, local):
    """Seeds are fixed; of other ones 1% at most would raise a false alarm, by the bound itself."""
    estimator = private(method, unit, 1.0, delta, local)
    told = []
    audit = sf.audit_one_run(
        estimator,
        ratings(),
        canaries=40,
        references=2,
        confidence=0.99,
        processes=1,
        tell=lambda what, done, of: told.append((what, done, of)),
    )
    assert not audit.violated, audit
    assert audit.verdict.startswith(f"consistent with {audit.promise}: measured >= ")
    assert 0.999 < audit.promise.accounted <= audit.promise.epsilon <= 1.0
    assert audit.canaries == 40
    assert [done for _, done, _ in told] == [1, 2, 3]


def test_outcome_is_told_drawn_and_repeated(tmp_path):
    def once(seed):
        return sf.audit_one_run(
            private(epsilon=4), ratings(), canaries=40, references=2, seed=seed, processes=1
        )

    audit, again, other = once(7), once(7), once(8)
    np.testing.assert_array_equal(audit.scores, again.scores)
    np.testing.assert_array_equal(audit.coins, again.coins)
    assert (audit.coins != other.coins).any()
    assert "40 in one run" in str(audit)
    told = json.loads(json.dumps(audit.to_json()))
    assert told["measured"] == audit.measured
    assert [tried["guesses"] for tried in told["tries"]] == [40, 20, 8, 2]
    picture = audit.picture(tmp_path / "guesses.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_public_labels_and_numbers_make_room_for_canaries():
    """Units of which only a number is public, and labels that are given: canaries are not left out."""
    labels = np.array([f"u{k}" for k in range(40)], object)
    public = sf.Public(labels={"item": range(30)}, units=50, entries=600)
    privacy = sf.Privacy(epsilon=50, delta=1e-6, unit="user", method="bias", public=public)
    audit = sf.audit_one_run(
        sf.CP(2, privacy=privacy), ratings(labels=labels), canaries=60, references=2, processes=1
    )
    assert audit.measured > 0  # at epsilon 50 canaries show, if they are there
    assert not audit.violated


def test_made_up_data_serve_where_there_is_a_shape():
    audit = sf.audit_one_run(
        private("bias", "value", 20.0, 0.0), (40, 30), canaries=50, references=3, processes=1
    )
    assert 0 < audit.measured < 20


def test_jobs_can_be_sent_to_other_processes():
    canaries = place_canaries(ratings(), sf.Entry(), 20, seed=0)
    job = pickle.loads(pickle.dumps((private(), canaries, np.ones(20, bool), 5)))
    assert one_run._release(job) == one_run._release((private(), canaries, np.ones(20, bool), 5))


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "options", "message"),
    [
        (private(), {"canaries": 9}, "canaries must be a whole number from 10 on"),
        (private(), {"references": 1}, "references must be a whole number from 2 on"),
        (private(), {"confidence": 1.0}, "confidence"),
        (private("alternating"), {"delta": 0.0}, "nothing is promised at delta = 0"),
        (private(), {"canaries": 601}, "601 canaries need as many cells that are not observed.* 600"),
        (private(unit="value"), {"canaries": 601}, "601 canaries need as many entries.* 600"),
        (
            private(unit=sf.UnitValues("user", 3)),
            {"canaries": 41},
            "41 canaries need as many levels of user.* 40",
        ),
        (sf.CP(2), {}, "privacy"),
        ("bias", {}, "estimator"),
    ],
)
def test_bad_settings_are_refused_before_any_fit(monkeypatch, estimator, options, message):
    monkeypatch.setattr(one_run, "released", lambda *_: pytest.fail("fitted"))
    with pytest.raises(SettingError, match=message):
        sf.audit_one_run(estimator, ratings(), processes=1, **options)


def test_data_without_bounds_are_refused(monkeypatch):
    monkeypatch.setattr(one_run, "released", lambda *_: pytest.fail("fitted"))
    tensor = ratings()
    with pytest.raises(SettingError, match="bounds"):
        sf.audit_one_run(private(), tensor.with_values(tensor.values), processes=1)


def test_a_release_is_taken_apart_in_one_order():
    """Reading it gives its arrays in any order, and an attack on sums of them compares many runs."""
    files = released(private(), ratings(), 5)
    assert len({tuple(View.of(files).parts) for _ in range(20)}) == 1
