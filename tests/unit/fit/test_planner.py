"""What the planner expects: its parts against simulation, its choices against budgets and sizes."""

from itertools import pairwise
from math import prod, sqrt

import numpy as np
import pytest

import sfumato as sf
from sfumato.engines.local import Local
from sfumato.fit import planner
from sfumato.fit.outlook import Outlook, popular_levels
from sfumato.fit.planner import expected, expected_biases, forecast
from sfumato.models.shape import Shape
from sfumato.privacy.accounting import gaussian_multiplier
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Ledger
from sfumato.sites.memory import Site
from sfumato.solvers.private.biases import enough_for_biases
from sfumato.solvers.private.level_sums import CountsQuery
from sfumato.solvers.protocol import Run

UNITS = [(sf.Entry(), None), (sf.Entry(), 0), (sf.Unit("user"), 0)]
NAMES = ("user", "item", "place", "hour")


def public(sizes, entries, unit=None, local=None, *, bins=None, bounds=(-2.0, 2.0), spread=None):
    modes = tuple(
        sf.Mode(name, size, bin=(bins or {}).get(name))
        for name, size in zip(NAMES[: len(sizes)], sizes, strict=True)
    )
    return Facts(Shape(modes, (1,) * len(modes)), unit or sf.Entry(), bounds, entries, spread, local)


# -- how entries lie ------------------------------------------------------------------------------


@pytest.mark.parametrize(("exponent", "entries"), [(0.0, 5_000), (0.8, 5_000), (0.8, 60_000)])
def test_levels_have_the_entries_that_sampling_gives_them(exponent, entries):
    """How many entries the level of an average entry has; 60,000 of 90,000 cells fill popular ones."""
    levels = popular_levels(300, exponent, entries, 300)
    assert levels.number.sum() == 300
    assert levels.number @ levels.entries == pytest.approx(entries)
    assert levels.entries.max() <= 300.001
    cells = sf.synthetic.sample_cells((300, 300), entries, np.random.default_rng(0), (0.0, exponent))
    sampled = np.bincount(cells[1], minlength=300)
    by_chance = 1 - entries / 90_000  # the variance of a level's entries, over their number
    average = levels.share @ levels.entries + by_chance
    assert average == pytest.approx((sampled @ sampled) / entries, rel=0.03)


def test_weighted_counts_are_those_that_units_give():
    facts = public((400, 200, 12), 20_000, sf.Unit("user"), 0)
    outlook = Outlook(facts)
    data = sf.synthetic.typical(facts.modes, 20_000, seed=3).tensor
    solver = sf.PrivateBiases()
    for mode in (1, 2):
        counted = CountsQuery(solver._known(facts), mode).clipped(Site(data, 1)).numbers
        assert outlook.counts[mode].sum() == pytest.approx(counted.sum(), rel=0.05)


# -- single parts against simulation --------------------------------------------------------------


def test_a_level_keeps_what_the_best_linear_guess_keeps():
    """Simulated sums of uniform levels; the share kept has a standard error below 0.01."""
    facts = public((200, 50), 4_000)
    outlook = Outlook(facts, sf.Profile(skew=(0.0, 0.0)))
    signal, rest, noise, n = 0.2, 0.5, 300.0, 80
    rng = np.random.default_rng(0)
    truth = sqrt(signal) * rng.standard_normal(20_000)
    sums = n * truth + sqrt(rest * n + noise) * rng.standard_normal(truth.size)
    kept = 1 - np.var(truth - np.cov(truth, sums)[0, 1] / np.var(sums) * sums) / signal
    assert outlook.kept(1, signal, rest, noise) == pytest.approx(kept, abs=0.05)


def test_the_noise_of_biases_is_what_the_solver_draws():
    """The noise that the solver reports while it fits, by mode; averaged over its rounds."""
    facts = public((60, 40), 1_000, sf.Entry(), None)
    data = sf.synthetic.typical(facts.modes, 1_000, seed=0).tensor
    solver = sf.PrivateBiases(0.1)
    state = solver.init(Run(), facts)
    engine, charges = Local(Site(data, 1)), solver.charges(facts)
    with Ledger(facts.unit).reserve(charges, Entropy(1)) as reservation:
        for _ in charges:
            query = solver.ask(state)
            released = reservation.ask(lambda draw, q=query: engine.released(q, draw))
            state, _ = solver.update(state, released)
    outlook = Outlook(facts)
    left = solver.settled_noise(facts, outlook.counts)
    learnt = (state.release.spread / facts.spread) ** 2  # planned for the one assumed
    for mode, level in enumerate(state.levels):
        # Clipping follows noisy counts.
        assert learnt * left[mode] == pytest.approx(level.noise, rel=0.04)


@pytest.mark.parametrize("unit", [sf.Value(), sf.Entry(), sf.Unit("user")], ids=str)
@pytest.mark.parametrize(
    ("sizes", "entries"), [((900, 1500), 80_000), ((104, 16, 365), 63_000), ((200, 60), 5_000)]
)
def test_biases_inside_a_fit_have_what_they_need(unit, sizes, entries):
    """With their share of the budget they are expected to be about as good as with all of it."""
    local = 0 if unit.mode else None
    facts = public(sizes, entries, unit, local)
    for epsilon in (10.0, 3.0, 1.0):
        noise = gaussian_multiplier(sf.Budget(epsilon, 1e-6))
        share = enough_for_biases(facts, noise)
        outlook = Outlook(facts, sf.Profile(skew=(0.0, 0.0)))
        whole, part = (
            expected_biases(outlook, sf.PrivateBiases(noise / sqrt(f))).error for f in (1.0, share)
        )
        assert sqrt(part / whole) < 1.03 or share == 0.8
        assert sf.PrivateAlternating(noise).settings(facts).bias_share >= share


def test_without_noise_the_constant_and_the_profile_are_reached():
    facts = public((500, 400), 190_000)
    outlook, budget = Outlook(facts), sf.Budget(1e3, 1e-6)
    assert expected(outlook, budget, "constant", 0).error == pytest.approx(1)
    assert expected(outlook, budget, "bias", 0).error == pytest.approx(2 / 3, rel=0.02)
    full = expected(outlook, budget, "alternating", 12)
    assert full.explained == pytest.approx(1 / 6, rel=0.2)
    assert full.error == pytest.approx(1 - 1 / 3 - full.explained, rel=0.02)


@pytest.mark.parametrize(("unit", "local"), UNITS)
def test_with_nothing_but_noise_nothing_is_expected(unit, local):
    outlook = Outlook(public((500, 400), 20_000, unit, local))
    lost = expected(outlook, sf.Budget(1e-4, 1e-6), "alternating", 3)
    assert lost.explained == pytest.approx(0, abs=1e-6)
    assert expected(outlook, sf.Budget(1e-4, 1e-6), "bias", 0).error > 0.8


def test_components_below_a_threshold_are_not_found():
    """Strength times the root of what both modes can tell has to pass one."""
    found = []
    for interactions in np.linspace(0.005, 0.2, 40):
        profile = sf.Profile(interactions=interactions, components=1, skew=(0.0, 0.0))
        outlook = Outlook(public((500, 500), 10_000), profile)
        found.append(expected(outlook, sf.Budget(1e3, 1e-6), "alternating", 1).explained)
    threshold = 0.5 / 20  # noise over entries of a level: s / sqrt(n_user n_item)
    below = np.linspace(0.005, 0.2, 40) < 0.8 * threshold
    assert max(np.array(found)[below]) < 1e-3
    assert found[-1] > 0.1
    assert found == sorted(found)


# -- expected and measured ------------------------------------------------------------------------


@pytest.mark.parametrize(("unit", "local"), UNITS)
@pytest.mark.parametrize("epsilon", [10.0, 0.3])
def test_fits_reach_what_is_expected(unit, local, epsilon):
    """Within a tenth of the ratio to the private constant. Fixed seeds; fits scatter by 2%."""
    modes = [sf.Mode("user", 600), sf.Mode("item", 400)]
    train, test = sf.synthetic.typical(modes, 40_000, seed=7).tensor.split(0.2, seed=7)
    name = None if local is None else "user"
    errors = {}
    for method in ("constant", "auto"):
        privacy = sf.Privacy(
            epsilon,
            1e-6,
            unit=unit,
            local=name,
            method=method,
            public=sf.Public(entries=train.n_entries, labels={"user": range(600), ...: True}),
            seed=11,
        )
        estimator = sf.CP(privacy=privacy)
        errors[method] = estimator.fit(train).rmse(test)
    facts = estimator.plan(train.modes, bounds=train.bounds).task.facts
    best = forecast(facts, sf.Budget(epsilon, 1e-6)).best
    assert best.ratio == pytest.approx(errors["auto"] / errors["constant"], rel=0.1)


# -- choices --------------------------------------------------------------------------------------


def random_shapes(number):
    rng = np.random.default_rng(5)
    for _ in range(number):
        order = int(rng.choice([2, 2, 3, 4]))
        sizes = tuple(int(n) for n in np.exp(rng.uniform(np.log(20), np.log(20_000), order)))
        bins = {"place": "day"} if order == 3 and rng.random() < 0.5 else None
        most = min(0.5 * prod(map(float, sizes)), 1e7)
        entries = int(np.exp(rng.uniform(np.log(1000), np.log(most))))
        yield sizes, entries, bins, UNITS[rng.integers(len(UNITS))]


def never_rises(numbers):
    # Noise changes its law where another has less, and full tensors have fewer popular levels.
    return all(after <= 1.005 * before for before, after in pairwise(numbers))


@pytest.mark.parametrize("case", list(random_shapes(8)), ids=str)
def test_more_budget_never_means_more_error_or_less_rank(case):
    sizes, entries, bins, (unit, local) = case
    facts = public(sizes, entries, unit, local, bins=bins)
    row = [forecast(facts, sf.Budget(epsilon, 1e-6)) for epsilon in np.geomspace(0.05, 20, 10)]
    for errors in zip(*[(f.constant.rmse, f.biases.rmse, f.factors.rmse) for f in row], strict=True):
        assert never_rises(errors)
    ranks = [f.best.rank for f in row]
    assert ranks == sorted(ranks)


@pytest.mark.parametrize("case", list(random_shapes(6)), ids=str)
def test_more_entries_never_mean_more_error_or_less_rank(case):
    sizes, _, bins, (unit, local) = case
    most = min(0.9 * prod(map(float, sizes)), 1e8)
    row = [
        forecast(public(sizes, int(n), unit, local, bins=bins), sf.Budget(2.0, 1e-6))
        for n in np.geomspace(1000, most, 10)
    ]
    for errors in zip(*[(f.constant.rmse, f.biases.rmse, f.factors.rmse) for f in row], strict=True):
        assert never_rises(errors)
    ranks = [f.best.rank for f in row]
    assert ranks == sorted(ranks)


def test_expected_errors_change_smoothly():
    """A hundredth more budget changes no expected error by more than a hundredth."""
    facts = public((6000, 4000), 800_000, sf.Entry(), 0)
    row = [forecast(facts, sf.Budget(e, 1e-6)).best.rmse for e in np.geomspace(0.9, 1.1, 21)]
    steps = np.abs(np.diff(np.log(row)))
    assert steps.max() < 0.01


@pytest.mark.parametrize(("unit", "local"), UNITS)
def test_units_of_the_values_do_not_matter(unit, local):
    rows = [
        forecast(public((900, 700), 60_000, unit, local, bounds=(-2 * s, 2 * s)), sf.Budget(3, 1e-6))
        for s in (1.0, 50.0)
    ]
    first, second = (row.best for row in rows)
    assert (first.method, first.rank) == (second.method, second.rank)
    assert first.rmse == pytest.approx(second.rmse, rel=1e-6)  # grids are powers of two


def test_wider_bounds_cost_only_where_they_are_used():
    near, far = (
        forecast(public((900, 700), 60_000, bounds=(-b, b), spread=1.0), sf.Budget(1, 1e-6))
        for b in (2.0, 20.0)
    )
    assert near.constant.rmse < far.constant.rmse
    assert near.biases.ratio == pytest.approx(far.biases.ratio, rel=0.05)


def test_factors_are_served_by_entry_and_to_owners_with_a_delta():
    entry, user = public((50, 40), 900), public((50, 40), 900, sf.Unit("user"), 0)
    assert planner.serves_factors(entry, sf.Budget(1, 1e-6))
    assert planner.serves_factors(user, sf.ZCDP(0.1))
    assert not planner.serves_factors(entry, sf.Budget(1))
    assert not planner.serves_factors(public((50, 40), 900, sf.Unit("user")), sf.Budget(1, 1e-6))
    assert forecast(entry, sf.Budget(1)).factors is None


def test_the_simpler_fit_is_chosen_where_errors_are_equal():
    dull = sf.Profile(interactions=0.0)
    found = forecast(public((600, 400), 40_000), sf.Budget(10, 1e-6), profile=dull)
    assert found.best.method == "bias"
    flat = sf.Profile(biases=0.0, interactions=0.0)
    found = forecast(public((600, 400), 40_000), sf.Budget(10, 1e-6), profile=flat)
    assert found.best.method == "constant"


@pytest.mark.parametrize(
    "wrong", [{"biases": 0.9, "interactions": 0.2}, {"biases": -0.1}, {"decay": 0.0}, {"skew": (-1, 0)}]
)
def test_impossible_profiles_are_refused(wrong):
    with pytest.raises(sf.SettingError):
        sf.Profile(**wrong)
