"""Private constant and biases: noise, budget, what they fall back to, what stays local."""

from copy import deepcopy
from dataclasses import replace
from math import inf, sqrt

import numpy as np
import pytest

from sfumato.data.tensor import Mode, SparseTensor
from sfumato.engines.local import Local
from sfumato.errors import SettingError
from sfumato.models.shape import Shape
from sfumato.privacy.accounting import calibrate, covers, epsilon_of
from sfumato.privacy.budgets import Budget
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.events import Composed, GaussianEvent
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Draw, Ledger
from sfumato.privacy.mechanisms import Noisy
from sfumato.privacy.units import Entry, Unit, UnitValues, Value
from sfumato.records import same
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.backfitting import Backfitting
from sfumato.solvers.least_squares.own_rows import solve_own
from sfumato.solvers.private.bias_state import BiasRelease
from sfumato.solvers.private.biases import PrivateBiases, prefers_laplace
from sfumato.solvers.private.constant import PrivateConstant
from sfumato.solvers.private.known import Known
from sfumato.solvers.private.level_sums import CountsQuery, SumsQuery
from sfumato.solvers.private.owners import assumed_scales, scales_from
from sfumato.solvers.private.shrinkage import _in_laplace_noise, positive_counts, posterior_biases
from sfumato.solvers.private.spread import SpreadQuery
from sfumato.solvers.protocol import Run

BOUNDS = (1.0, 5.0)
UNITS = [Value(), Entry(), Unit("user"), UnitValues("user", 60)]
SOLVERS = [PrivateConstant, PrivateBiases]
PURE = pytest.mark.parametrize("pure", [False, True], ids=["gaussian", "pure"])
EACH_UNIT = pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.key)


def planted(sizes=(120, 60), entries=5000, seed=0, scatter=0.6, deviation=0.5):
    """Ratings of additive biases; the last ten levels of each mode occur nowhere."""
    rng = np.random.default_rng(seed)
    cells = np.stack([np.minimum(rng.zipf(1.3, entries) - 1, n - 11) for n in sizes])
    for m, n in enumerate(sizes):
        spread = rng.random(entries) < 0.7
        cells[m, spread] = rng.integers(n - 10, size=spread.sum())
    biases = [deviation * rng.normal(size=n) for n in sizes]
    values = 3.2 + sum(b[c] for b, c in zip(biases, cells, strict=True))
    values = np.clip(values + scatter * rng.normal(size=entries), *BOUNDS)
    modes = tuple(Mode(name, n) for name, n in zip(("user", "item", "day"), sizes, strict=False))
    return SparseTensor(cells, values, modes, BOUNDS), biases


TENSOR, BIASES = planted()
SITE = Site(TENSOR, 1)


def with_own_rows(finished, site):
    released, prior = finished.model, finished.own_prior
    return released if prior is None else solve_own(released, prior, site)


def shape_of(tensor, **settings):
    return Shape.of(tensor.modes, (1,) * tensor.order, "cp", **settings)


def facts_of(tensor, unit, local=None, **settings):
    public = {"bounds": BOUNDS, "local": local, "entries": tensor.n_entries, **settings}
    return Facts(shape_of(tensor), unit, **public)


def fit(solver, facts, site, seed=0):
    """The loop: the last state, what was made, and by step the query, the answer, and what the
    answer would have been without noise.
    """
    state, answers = solver.init(Run(), facts), []
    with Ledger(facts.unit).reserve(solver.charges(facts), Entropy(seed)) as reservation:
        for _ in range(solver.rounds(facts)):
            query = solver.ask(state)
            released = reservation.ask(lambda draw, query=query: Local(site).released(query, draw))
            answers.append((query, released, query.clipped(site).numbers))
            state, _ = solver.update(state, released)
    return state, solver.finish(state), answers


def rmse(model, tensor):
    return float(np.sqrt(np.mean((model.predict(tensor.coordinates) - tensor.values) ** 2)))


# -- the budget -------------------------------------------------------------------------------


@EACH_UNIT
@pytest.mark.parametrize("local", [None, 0])
@pytest.mark.parametrize("noise", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("kind", SOLVERS)
def test_all_draws_together_cost_what_one_with_this_noise_costs(kind, unit, local, noise):
    facts = facts_of(TENSOR, unit, local)
    for solver in (kind(noise), kind(noise, pure=True)):
        event = Composed(tuple(charge.mechanism.event for charge in solver.charges(facts)))
        if solver.pure:
            assert epsilon_of(event, 0.0) == pytest.approx(1 / noise)
        else:
            assert epsilon_of(event, 1e-6) == pytest.approx(epsilon_of(GaussianEvent(noise), 1e-6))
        assert solver.rounds(facts) == len(solver.charges(facts))


@PURE
@pytest.mark.parametrize("kind", SOLVERS)
def test_calibration_stays_within_the_budget(kind, pure):
    budget, facts = Budget(0.7, 0.0 if pure else 1e-6), facts_of(TENSOR, Entry(), 0)

    def event(noise):
        charges = kind(noise, pure).charges(facts)
        return Composed(tuple(charge.mechanism.event for charge in charges))

    noise = calibrate(event, budget)
    assert covers(budget, event(noise))
    assert not covers(budget, event(0.99 * noise))


def test_more_sweeps_are_more_draws_at_the_same_price():
    facts = facts_of(TENSOR, Entry())
    few, many = (PrivateBiases(sweeps=n).charges(facts) for n in (2, 7))
    assert len(many) == len(few) + 5 * 2
    costs = [epsilon_of(Composed(tuple(c.mechanism.event for c in cs)), 1e-6) for cs in (few, many)]
    assert costs[0] == pytest.approx(costs[1])


@pytest.mark.parametrize("solver", [PrivateBiases(0.0), PrivateBiases(sweeps=0), PrivateConstant(-1.0)])
def test_impossible_settings_are_refused(solver):
    with pytest.raises(SettingError):
        solver.check(facts_of(TENSOR, Entry()))


# -- the noise --------------------------------------------------------------------------------


def noise_of(unit, pure, seeds=12):
    """Noise of all answers over what it should be by hand."""
    ratios, facts, solver = [], facts_of(TENSOR, unit), PrivateBiases(2.0, pure)
    for seed in range(seeds):
        answers = fit(solver, facts, SITE, seed)[2]
        for step, (query, released, clean) in zip(solver.steps(facts), answers, strict=True):
            if isinstance(query, SumsQuery):
                # Replaced, a value moves by the range at most and a contribution by twice its length.
                bound = query.bound if unit.hides_presence else 2 * min(query.bound, 2.0)
            elif isinstance(query, CountsQuery):
                bound = 1.0
            elif isinstance(query, SpreadQuery):
                bound = 2.0  # half the range, of one value or of a unit's mean
            else:
                bound = (4.0 if pure else sqrt(8)) if unit.hides_presence else 4.0
            scale = bound * (sqrt(2) * 2.0 / step.share if pure else 2.0 / sqrt(step.share))
            ratios.append((released.values[: clean.size] - clean) / scale)
    return np.concatenate(ratios)


def looks_right(ratios, pure):
    """Variance one; false alarms in one of a million runs (4.9 standard deviations)."""
    kurtosis = 6.0 if pure else 3.0
    allowed = 4.9 * sqrt((kurtosis - 1) / ratios.size)
    return abs(np.mean(ratios**2) - 1) < allowed and abs(np.mean(ratios)) < 4.9 / sqrt(ratios.size)


@PURE
@EACH_UNIT
def test_noise_is_what_is_charged_for_no_less_and_no_more(unit, pure):
    ratios = noise_of(unit, pure)
    assert looks_right(ratios, pure)
    assert not looks_right(ratios * 2 / 3, pure)
    assert not looks_right(ratios * 3 / 2, pure)


@PURE
@pytest.mark.parametrize("unit", [Entry(), Unit("user")], ids=lambda unit: unit.key)
def test_levels_without_entries_are_noised_like_all_others(unit, pure):
    _, made, answers = fit(PrivateBiases(1.0, pure), facts_of(TENSOR, unit), SITE)
    by_level = [answer for answer in answers if isinstance(answer[0], CountsQuery | SumsQuery)]
    assert len(by_level) >= len(answers) - 2  # all but the constant and the spread
    for _, released, clean in by_level:
        empty = released.values[-10:]
        assert not clean[-10:].any()
        assert (empty != 0).all()
        assert len(np.unique(empty)) == 10
    for biases in made.model.mode_biases:
        assert (biases[-10:] != 0).all()


def test_exact_noise_is_drawn_without_a_seed():
    tensor, _ = planted((20, 15), 200)
    facts, site = facts_of(tensor, Entry()), Site(tensor, 1)
    first, second = (fit(PrivateBiases(0.5), facts, site, None)[1].model for _ in range(2))
    assert (first.mode_biases[1] != second.mode_biases[1]).all()
    assert rmse(first, tensor) < 1.2 * np.std(tensor.values)


# -- what is fitted ---------------------------------------------------------------------------


@PURE
@EACH_UNIT
@pytest.mark.parametrize("local", [None, 0])
def test_without_noise_they_are_as_good_as_biases_that_are_not_private(unit, local, pure):
    site, facts = SITE, facts_of(TENSOR, unit, local)
    plain = Backfitting(sweeps=20)
    state = plain.init(Run(), facts.shape)
    for _ in range(plain.rounds(facts.shape)):
        state, _ = plain.update(state, plain.ask(state).answer(site))
    _, made, _ = fit(PrivateBiases(1e-5, pure, sweeps=12), facts, site)
    model = with_own_rows(made, site)
    assert rmse(model, TENSOR) < 1.05 * rmse(plain.finish(state).model, TENSOR)
    seen = TENSOR.counts("item") > 30
    assert np.corrcoef(model.mode_biases[1][seen], BIASES[1][seen])[0, 1] > 0.95


@PURE
@EACH_UNIT
def test_as_noise_grows_biases_vanish_and_the_constant_is_left(unit, pure):
    facts = facts_of(TENSOR, unit)
    sizes = []
    for noise in (0.01, 1.0, 30.0, 1e3):
        models = [fit(PrivateBiases(noise, pure), facts, SITE, seed)[1].model for seed in range(3)]
        sizes.append(np.mean([np.sqrt(np.mean(model.biases**2)) for model in models]))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 0.3
    assert sizes[-1] < 0.02


@PURE
@EACH_UNIT
def test_the_constant_is_the_mean_or_the_middle(unit, pure):
    facts = facts_of(TENSOR, unit)
    assert fit(PrivateConstant(1e-4, pure), facts, SITE)[1].model.mean == pytest.approx(
        TENSOR.values.mean(), abs=0.15 if unit.mode else 1e-3
    )
    assert fit(PrivateConstant(1e7, pure), facts, SITE)[1].model.mean == pytest.approx(3.0, abs=0.01)


@pytest.mark.parametrize("sizes", [(60, 40), (60, 40, 30)])
@pytest.mark.parametrize("local", [None, 0])
@EACH_UNIT
@PURE
def test_never_much_worse_than_the_private_constant(sizes, local, unit, pure):
    tensor, _ = planted(sizes, 3000, seed=4)
    train, test = tensor.split(0.3, seed=0)
    facts, site = facts_of(train, unit, local), Site(train, 1)
    for noise in (0.3, 3.0, 30.0):
        errors = {}
        for solver in (PrivateConstant(noise, pure), PrivateBiases(noise, pure)):
            errors[solver.name] = []
            for seed in range(6):
                _, made, _ = fit(solver, facts, site, seed)
                errors[solver.name].append(rmse(with_own_rows(made, site), test))
        assert np.mean(errors["private biases"]) < 1.03 * np.mean(errors["private constant"])


@pytest.mark.parametrize("unit", [Entry(), Unit("user")], ids=lambda unit: unit.key)
def test_the_number_of_entries_need_not_be_public(unit):
    facts = facts_of(TENSOR, unit, 0, entries=None)
    known = replace(facts, entries=TENSOR.n_entries)
    without_it, with_it = (
        with_own_rows(fit(PrivateBiases(0.3), each, SITE)[1], SITE) for each in (facts, known)
    )
    assert rmse(without_it, TENSOR) < 1.05 * rmse(with_it, TENSOR)


# -- the spread -------------------------------------------------------------------------------


@PURE
@EACH_UNIT
def test_the_spread_is_learnt_wherever_values_lie(unit, pure):
    rng = np.random.default_rng(8)
    for middle, deviation in ((3.0, 0.9), (1.8, 0.3), (4.5, 0.2)):
        values = np.clip(middle + deviation * rng.normal(size=TENSOR.n_entries), *BOUNDS)
        site, facts = Site(TENSOR.with_values(values, BOUNDS), 1), facts_of(TENSOR, unit)
        state, _, _ = fit(PrivateBiases(0.01, pure), facts, site)
        assert state.release.spread == pytest.approx(np.std(values), rel=0.15)


@PURE
@EACH_UNIT
def test_the_spread_is_not_asked_where_it_is_public_or_would_be_noise(unit, pure):
    def asked(noise, **public):
        facts = facts_of(TENSOR, unit, **public)
        solver = PrivateBiases(noise, pure)
        names = [step.asks for step in solver.steps(facts)]
        return "spread" in names, solver.init(Run(), facts).release.spread

    assert asked(0.1)[0]
    assert asked(0.1, public_spread=0.7) == (False, 0.7)
    assert asked(1e3) == (False, 0.5)  # half of what is usual


@pytest.mark.parametrize("unit", [Value(), Entry()], ids=lambda unit: unit.key)
def test_a_level_far_from_all_others_is_found_in_spite_of_clipping(unit):
    """The first rounds clip its residuals: they are not averaged with those that do no longer."""
    rng, sizes = np.random.default_rng(10), (120, 30)
    cells = np.stack(np.unravel_index(rng.permutation(3600)[:3000], sizes))
    values = np.clip(1.4 + 0.1 * rng.normal(size=3000) + 1.5 * (cells[1] == 7), *BOUNDS)
    modes = tuple(Mode(name, n) for name, n in zip(("user", "item"), sizes, strict=True))
    tensor = SparseTensor(cells, values, modes, BOUNDS)
    _, made, _ = fit(PrivateBiases(0.5), facts_of(tensor, unit), Site(tensor, 1))
    biases = made.model.mode_biases[1]
    assert biases[7] - np.delete(biases, 7).mean() == pytest.approx(1.5, rel=0.15)


@EACH_UNIT
def test_biases_that_are_not_there_are_shrunk_away(unit):
    """Few values in a narrow part of the bounds: neither noise nor a wide prior is to make up biases."""
    rng, sizes = np.random.default_rng(9), (80, 20)
    cells = np.stack(np.unravel_index(rng.permutation(1600)[:1000], sizes))
    values = np.clip(4.2 + 0.3 * rng.normal(size=1000), *BOUNDS)
    modes = tuple(Mode(name, n) for name, n in zip(("user", "item"), sizes, strict=True))
    tensor = SparseTensor(cells, values, modes, BOUNDS)
    facts, site = facts_of(tensor, unit), Site(tensor, 1)
    for noise in (0.5, 5.0):
        worse = [
            rmse(fit(PrivateBiases(noise), facts, site, seed)[1].model, tensor)
            / rmse(fit(PrivateConstant(noise), facts, site, seed)[1].model, tensor)
            for seed in range(8)
        ]
        assert np.mean(worse) < 1.01


# -- what stays local -------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [Entry(), Unit("user")], ids=lambda unit: unit.key)
@pytest.mark.parametrize(("scatter", "deviation"), [(0.1, 1.0), (1.0, 0.1)])
def test_how_far_owners_differ_is_asked_where_they_are_many(unit, scatter, deviation):
    """Owners who differ by much, or by little, beside what is left of their entries. Fixed seeds."""
    rng = np.random.default_rng(3)
    owners, items = np.repeat(np.arange(2000), 4), rng.integers(30, size=8000)
    values = deviation * rng.normal(size=2000)[owners] + scatter * rng.normal(size=8000)
    modes = (Mode("user", 2000), Mode("item", 30))
    tensor = SparseTensor(np.stack([owners, items]), values, modes, (-10.0, 10.0))
    facts = facts_of(tensor, unit, local=0, bounds=tensor.bounds)
    own = fit(PrivateBiases(1.0), facts, Site(tensor, 1))[1].own_prior
    assert own.scatter == pytest.approx(scatter**2, rel=0.35, abs=0.1)
    assert 1 / own.bias_precision == pytest.approx(deviation**2, rel=0.35, abs=0.1)
    drowned = PrivateBiases(3000.0)
    assert all(step.asks != "owners" for step in drowned.steps(facts))
    own = fit(drowned, facts, Site(tensor, 1))[1].own_prior
    assert own.scatter * own.bias_precision == pytest.approx(drowned._known(facts).ridge)


@pytest.mark.parametrize("unit", [Entry(), Value()], ids=lambda unit: unit.key)
def test_what_is_released_does_not_depend_on_who_owns_the_entries(unit):
    # Local rows, or anything else about a user, would carry one entry into another's statistics. (Where
    # noise is Gaussian, an owner's own mean is taken off its entries, and that is in the bound; so is
    # what owners tell of themselves in the end, which says how own rows are solved.)
    cells = TENSOR.coordinates.copy()
    cells[0] = np.random.default_rng(5).integers(TENSOR.shape[0], size=cells.shape[1])
    others = SparseTensor(cells, TENSOR.values, TENSOR.modes, BOUNDS)
    facts, solver = facts_of(TENSOR, unit, local=0), PrivateBiases(0.5, pure=unit == Entry())
    first, second = (fit(solver, facts, Site(tensor, 1))[1] for tensor in (TENSOR, others))
    assert first.model.mean == second.model.mean
    np.testing.assert_array_equal(first.model.biases, second.model.biases)
    np.testing.assert_array_equal(first.own_prior.doubts[1], second.own_prior.doubts[1])
    own = with_own_rows(fit(solver, facts, SITE)[1], SITE)
    assert own.mode_biases[0].any()


@EACH_UNIT
def test_local_rows_are_not_released_and_come_from_the_owner_alone(unit):
    state, made, _ = fit(PrivateBiases(0.5), facts_of(TENSOR, unit, local=0), SITE)
    released = made.model
    assert not released.mode_biases[0].any()
    own = with_own_rows(made, SITE)
    np.testing.assert_array_equal(own.mode_biases[1], released.mode_biases[1])
    assert own.mean == released.mean
    one = TENSOR.take(TENSOR.coordinates[0] == 7)
    alone = with_own_rows(made, Site(one, 1))
    assert own.mode_biases[0][7] == pytest.approx(alone.mode_biases[0][7], abs=1e-12)
    doubt = state.release.deviations[1][one.coordinates[1]] ** 2
    scatter, variance, *_ = state.release.own
    weights = scatter / (scatter + doubt)
    rest = one.values - released.predict(one.coordinates)
    ridge = scatter / variance
    assert own.mode_biases[0][7] == pytest.approx(weights @ rest / (weights.sum() + ridge))
    assert with_own_rows(made, SITE) is not released


def test_a_unit_takes_its_own_mean_off_before_it_answers():
    # Moving all ratings of a user up must not move the items' biases, as long as nothing is clipped.
    tensor, _ = planted((40, 30), 4000, scatter=0.1, deviation=0.1)
    lifted = tensor.with_values(tensor.values + 0.2 * (tensor.coordinates[0] % 3), BOUNDS)
    models = []
    for given in (tensor, lifted):
        _, made, _ = fit(
            PrivateBiases(1e-6, sweeps=12), facts_of(tensor, Unit("user"), 0), Site(given, 1)
        )
        biases = made.model.mode_biases[1][:20]
        models.append(biases - biases.mean())
    np.testing.assert_allclose(models[0], models[1], atol=0.02)


# -- the record -------------------------------------------------------------------------------


@EACH_UNIT
def test_an_update_leaves_the_state_and_what_was_asked_as_they_were(unit):
    solver, facts = PrivateBiases(0.5), facts_of(TENSOR, unit)
    state = solver.init(Run(), facts)
    for charge in solver.charges(facts):
        query = solver.ask(state)
        asked, released = deepcopy(query), Local(SITE).released(query, Draw(charge, Entropy(0)))
        following, _ = solver.update(state, released)
        assert same(query, asked)
        assert same(solver.ask(state), asked)
        state = following
    assert state.model.biases.any()


@EACH_UNIT
@pytest.mark.parametrize("local", [None, 0])
def test_the_record_of_what_was_released(unit, local):
    state, made, _ = fit(PrivateBiases(0.05), facts_of(TENSOR, unit, local), SITE)
    record, released = state.release, made.model
    assert isinstance(record, BiasRelease)
    assert record.mean == released.mean
    for m, biases in enumerate(released.mode_biases):
        np.testing.assert_array_equal(record.biases[m], biases)
        assert np.isinf(record.deviations[m]).all() == (m == local)
    assert (record.counts[1] > 0).all()
    assert (record.count_deviations[1] == 0) == (not unit.hides_presence)
    if unit == Entry():
        counts = TENSOR.counts("item")
        if local is not None:  # entries of one user at an item count once
            counts = np.bincount(np.unique(TENSOR.coordinates[:2], axis=1)[1], minlength=counts.size)
        misses = record.counts[1] - counts
        assert np.abs(misses).max() < 5 * record.count_deviations[1]
        seen = TENSOR.counts("item") > 20
        scaled = (released.mode_biases[1] - BIASES[1])[seen] / record.deviations[1][seen]
        assert 0.3 < np.std(scaled) < 3


def test_it_repeats_with_a_seed_and_takes_float32():
    facts = replace(facts_of(TENSOR, Entry(), 0), shape=shape_of(TENSOR, dtype="float32"))
    first, same, other = (fit(PrivateBiases(), facts, SITE, seed)[1].model for seed in (1, 1, 2))
    assert first.dtype == np.float32
    np.testing.assert_array_equal(first.biases, same.biases)
    assert (first.mode_biases[1] != other.mode_biases[1]).any()


def test_laplace_noise_is_preferred_where_it_is_less():
    facts = facts_of(TENSOR, Entry(), 0)
    assert prefers_laplace(facts, Budget(0.1))
    assert prefers_laplace(facts, Budget(0.1, 1e-6))
    assert not prefers_laplace(facts, Budget(0.1, 0.2))
    assert not prefers_laplace(facts_of(TENSOR, Unit("user"), 0), Budget(0.1, 1e-6))


# -- shrinkage --------------------------------------------------------------------------------


def test_counts_are_posterior_means():
    # By simulation: the mean of true counts among those whose noisy count falls near a place.
    rng = np.random.default_rng(0)
    true = rng.exponential(20.0, 400_000)
    noisy = true + rng.normal(scale=15.0, size=true.size)
    for place in (-20.0, 0.0, 10.0, 60.0):
        near = np.abs(noisy - place) < 2.0
        guess = positive_counts(np.array([place]), 15.0, 20.0, inf)
        # Standard errors are below 0.3 (fixed seed).
        assert guess.means[0] == pytest.approx(true[near].mean(), abs=0.9)
        assert guess.variances[0] == pytest.approx(true[near].var(), rel=0.15)


def test_counts_keep_their_meaning_at_the_extremes():
    noisy = np.array([-1e6, -3.0, 0.0, 5.0, 1e6])
    assert (positive_counts(noisy, 1.0, 10.0, inf).means > 0).all()
    np.testing.assert_allclose(positive_counts(noisy[3:], 1e-6, 10.0, inf).means, noisy[3:], rtol=1e-3)
    np.testing.assert_allclose(positive_counts(noisy[1:4], 1e6, 10.0, inf).means, 10.0, rtol=0.01)


def test_counts_that_stand_out_of_noise_are_believed_as_far_as_all_levels_go():
    """Of levels that have 0.04 on average, one has 25: by the exponential law it would have 0.1."""
    guess = positive_counts(np.array([0.5, 25.0, 90.0]), 2.0, 0.04, 60.0)
    assert guess.means[0] < 0.1
    np.testing.assert_allclose(guess.means[1:], [21.0, 60.0])
    np.testing.assert_allclose(guess.variances[1:], 4.0)


def test_biases_of_a_few_popular_levels_among_thousands_do_not_blow_up():
    """Their counts were taken for tiny, and what was divided by these was worse than a constant."""
    rng = np.random.default_rng(4)
    users, items, entries = 300, 4000, 24_000
    popular = 1 / np.arange(1, items + 1) ** 1.1
    cells = np.stack(
        [rng.integers(0, users, entries), rng.choice(items, entries, p=popular / popular.sum())]
    )
    cells = np.unique(cells, axis=1).astype(np.int32)
    values = rng.normal(3, 0.5, items)[cells[1]] + rng.normal(0, 0.8, cells.shape[1])
    modes = Mode("user", users), Mode("item", items)
    tensor = SparseTensor(cells, np.clip(values, *BOUNDS), modes, BOUNDS)
    for noise in (0.6, 1.0, 1.5):
        facts = facts_of(tensor, Unit("user"))
        model = fit(PrivateBiases(noise, False), facts, Site(tensor, 1))[1].model
        assert rmse(model, tensor) < 0.96 * tensor.values.std()


def test_biases_have_the_least_error_of_all_amounts_of_shrinkage():
    rng = np.random.default_rng(1)
    counts = rng.exponential(30.0, 2000) + 1
    biases = 0.4 * rng.normal(size=2000)
    variances = 0.7 * counts + 100.0
    sums = counts * biases + np.sqrt(variances) * rng.normal(size=2000)
    guess = posterior_biases(sums, variances, counts, 0.2)
    error = np.mean((guess.means - biases) ** 2)
    for factor in (0.0, 0.8, 1.2):
        assert error < np.mean((factor * guess.means - biases) ** 2)
    assert error == pytest.approx(guess.variances.mean(), rel=0.1)


def test_popular_levels_get_a_prior_mean_of_their_own():
    rng = np.random.default_rng(2)
    counts = np.sort(rng.exponential(30.0, 1200) + 1)
    biases = np.linspace(-0.5, 0.5, 1200)
    variances = np.full(1200, 400.0)
    sums = counts * biases + 20.0 * rng.normal(size=1200)
    guess = posterior_biases(sums, variances, counts, 0.2)
    assert np.mean((guess.means - biases) ** 2) < 0.2 * np.mean(biases**2)


def test_the_bound_of_an_entry_follows_from_what_residuals_are_clipped_to():
    """Whatever else a question says: a bound that nobody enforces would size noise too small."""
    facts = Facts(Shape(TENSOR.modes, (1, 1)), Entry(), BOUNDS, TENSOR.n_entries)
    biases = tuple(np.zeros(size) for size in TENSOR.shape)
    query = SumsQuery(Known(facts, 1.0, pure=False), 1, 3.0, biases, 1.5, 1e-3, None)
    fewer = Site(TENSOR.take(np.arange(1, TENSOR.n_entries)), 1)
    clipped = query.clipped(SITE)
    changed = np.abs(clipped.numbers - query.clipped(fewer).numbers)
    assert changed.max() > 1e-3
    assert clipped.l1 == clipped.l2 == 1.5
    assert changed.sum() <= clipped.l1


# -- under Laplace noise -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tau", "normal", "scale"), [(1.0, 0.3, 0.7), (0.5, 0.01, 3.0), (2.0, 1.0, 0.05)]
)
@pytest.mark.parametrize("seen", [-9.0, 0.3, 2.0, 30.0])
def test_guesses_under_laplace_noise_are_those_of_integration(tau, normal, scale, seen):
    together, x = tau + normal, np.linspace(-60, 60, 400_001)
    joint = np.exp(-(x**2) / (2 * together) - np.abs(seen - x) / scale)
    density = joint.sum() * (x[1] - x[0]) / np.sqrt(2 * np.pi * together) / (2 * scale)
    mean = x @ joint / joint.sum()
    variance = (x - mean) ** 2 @ joint / joint.sum()
    kept = tau / together
    found = _in_laplace_noise(*(np.array([number]) for number in (seen, normal, scale, tau)))
    assert found.fit[0] - np.log(4) == pytest.approx(np.log(density), abs=1e-4)
    assert found.means[0] == pytest.approx(kept * mean, abs=1e-4)
    assert found.variances[0] == pytest.approx(kept**2 * variance + kept * normal, rel=1e-3)


def test_one_draw_far_out_is_not_believed():
    """Of three levels, one has noise of eight deviations: an outlier, not a mode that varies."""
    sums, counts = np.array([0.1, -0.2, 8.0]) * 40, np.full(3, 40.0)
    noise = np.full(3, 40.0**2)
    believed = posterior_biases(sums, noise + 40, counts, 0.2)
    doubted = posterior_biases(sums, noise + 40, counts, 0.2, noise)
    assert np.abs(doubted.means).max() < 0.5 * np.abs(believed.means).max()
    little = posterior_biases(sums, noise * 1e-6 + 1e-3, counts, 0.2, noise * 1e-6)
    np.testing.assert_allclose(little.means, sums / counts, rtol=0.02, atol=0.02)


def test_a_variance_that_noise_made_negative_is_as_large_as_its_error():
    """Own biases that shrink to nothing would cost more than noise does."""
    known = Known(facts_of(TENSOR, Entry(), local=0, public_spread=1.0), 1.0, pure=False)
    owners = 1000
    seen = np.array([owners / 2, owners / 2, owners / 20, 0.5 * owners, -0.3 * owners])
    found = scales_from(known, Noisy(seen, 0.08 * owners))
    assert found.scatter == pytest.approx(0.5, abs=0.02)
    assert found.variance == pytest.approx(0.08, rel=0.01)
    drowned = scales_from(known, Noisy(seen, 1e6 * owners))
    assert drowned.variance == pytest.approx(assumed_scales(known).variance, rel=0.01)
