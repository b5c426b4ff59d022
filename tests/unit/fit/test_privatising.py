"""Noise at the source: units, budgets, what is refused, and noise that comes again."""

from itertools import combinations, product
from math import exp, log

import numpy as np
import pytest
from scipy.optimize import linprog

import sfumato as sf
from sfumato.data.channels import Additive, Geometric, Response, law_of, probabilities
from sfumato.errors import BudgetError, DataError, SettingError
from sfumato.fit.privatising import plan_privatising
from sfumato.privacy.budgets import Budget
from sfumato.privacy.units import CountEvent, UnitValues, Value

RNG = np.random.default_rng(0)
CELLS = np.unique(RNG.integers(0, [[30], [20]], (2, 400)), axis=1)
MODES = (sf.Mode("user", 30), sf.Mode("item", 20))
RATINGS = sf.SparseTensor(CELLS, RNG.integers(1, 6, CELLS.shape[1]).astype(float), MODES, (1, 5))
COUNTS = RATINGS.with_values(RNG.poisson(4, CELLS.shape[1]).astype(float))


def promised(made):
    return sf.Guarantee.from_json(dict(made.promises[0]))


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1, 3, 10])
@pytest.mark.parametrize("channel", ["response", "geometric", "auto"])
def test_no_two_values_change_a_probability_by_more_than_the_factor(epsilon, channel):
    """All pairs of values that there are, by the table that a fit uses; 2/3 of the noise exceeds it."""
    plan = plan_privatising(Budget(epsilon), Value(), (1.0, 5.0), 1.0, channel=channel)

    def largest(noise):
        task = plan.task.with_noise(noise)
        table = probabilities(task.channel, np.arange(1.0, 6.0))
        return max(abs(np.log(table[a] / table[b])).max() for a, b in combinations(range(5), 2))

    assert largest(plan.task.noise) <= epsilon * (1 + 1e-9)
    assert largest(plan.task.noise) >= 0.99 * epsilon
    assert largest(plan.task.noise * 2 / 3) > 1.3 * epsilon


def test_an_event_is_one_step_of_a_count():
    plan = plan_privatising(Budget(0.7), CountEvent(), None, 1.0)
    assert isinstance(plan.task.channel, Geometric)
    assert plan.task.channel.ratio == pytest.approx(exp(-0.7), rel=1e-3)
    assert plan.task.channel.high is None


def test_values_of_a_user_share_the_budget():
    """Ten values at a tenth each; with a delta each gets more, or Gaussian noise does better."""
    pure = plan_privatising(Budget(5.0), UnitValues("user", 10), (1.0, 5.0), 1.0, changing=10)
    assert isinstance(pure.task.channel, Response)
    assert pure.task.channel.epsilon == pytest.approx(0.5, rel=1e-3)
    unit = UnitValues("user", 200)
    settings = {"changing": 200, "channel": "response"}
    alone = plan_privatising(Budget(5.0), unit, (1.0, 5.0), 1.0, **settings)
    given = plan_privatising(Budget(5.0, 1e-6), unit, (1.0, 5.0), 1.0, **settings)
    assert given.task.channel.epsilon > 2 * alone.task.channel.epsilon
    best = plan_privatising(Budget(5.0, 1e-6), unit, (1.0, 5.0), 1.0, changing=200)
    assert best.task.passes >= given.task.passes
    gaussian = plan_privatising(
        Budget(5.0, 1e-6), unit, (1.0, 5.0), 1.0, changing=200, channel="gaussian"
    )
    assert isinstance(gaussian.task.channel, Additive)
    width = gaussian.task.channel.high - gaussian.task.channel.low
    noise = gaussian.task.noise * np.sqrt(200) * width
    assert gaussian.task.channel.scale == pytest.approx(noise)


def test_a_guarantee_says_what_is_protected_and_that_nobody_is_trusted():
    made = sf.privatise(RATINGS, 2.0)
    promise = promised(made)
    assert promise.epsilon <= 2.0
    assert promise.delta == 0
    assert promise.proven
    assert promise.exact
    assert not promise.seeded
    assert "nobody" in promise.trust
    assert promise.unit == "one observed value"
    assert any("cells" in said for said in promise.assumptions)
    capped = promised(sf.privatise(RATINGS, 2.0, unit="user", max_entries=5))
    assert capped.cap == 5
    assert capped.unit == "up to 5 values of one user"


def test_a_cap_leaves_no_more_values_of_a_user_than_it_says():
    made = sf.privatise(RATINGS, 2.0, unit="user", max_entries=5, seed=0)
    assert made.tensor.counts("user").max() == 5
    assert RATINGS.counts("user").max() > 5


def test_a_grid_has_a_noisy_value_at_every_cell():
    """What has no entry is a zero like any other."""
    with pytest.raises(SettingError, match="widen them"):
        sf.privatise(RATINGS, 2.0, grid=True)
    whole = sf.privatise(COUNTS, 1.0, bounds=(0, 20), grid=True, seed=0)
    assert whole.n_entries == 600
    assert promised(whole).unit == "one entry, its presence included"
    some = sf.privatise(COUNTS, 1.0, unit="event", grid={"item": range(25)}, seed=0)
    assert some.tensor.shape == (30, 25)
    assert some.n_entries == 750
    user = sf.privatise(COUNTS, 1.0, unit="user", bounds=(0, 20), grid=True, seed=0)
    assert promised(user).unit.startswith("all entries of one user")
    assert promised(user).cap == 20
    wide = sf.privatise(COUNTS, 1.0, bounds=(0, 20), grid=True, seed=0)
    ratio = np.log(wide.passed[0].channel.matrix)
    assert (ratio.max(0) - ratio.min(0)).max() <= 1 + 1e-9


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"unit": "user"}, "how many values of one user leave"),
        ({"unit": "genre"}, "no unit"),
        ({"unit": "value", "max_entries": 3}, "for all values of a level"),
        ({"step": 0.3}, "does not lead from"),
        ({"step": -1.0}, "step"),
        ({"channel": "gaussian"}, "needs a delta"),
        ({"channel": "laplace"}, "channel"),
        ({"unit": "event", "channel": "response"}, "geometric noise"),
        ({"bounds": (5, 1)}, "bounds"),
        ({"typical": (3, 0)}, "spread that is typical"),
        ({"grid": {"genre": [1, 2]}}, "the grid names"),
        ({"key": b"short"}, "32 secret bytes"),
        ({"key": bytes(32), "seed": 1}, "without a seed"),
        ({"seed": -1}, "seed"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_charged(settings, message, tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    with pytest.raises((SettingError, DataError), match=message):
        sf.privatise(RATINGS, 1.0, ledger=ledger, **settings)
    assert not ledger.exists()


def test_data_that_cannot_be_privatised_are_refused_before_anything_is_charged(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    between = RATINGS.with_values(RATINGS.values + 0.25, (1, 6))
    with pytest.raises(DataError, match="not whole numbers"):
        sf.privatise(between, 1.0, ledger=ledger)
    assert sf.privatise(between, 1.0, step=0.25).n_entries == between.n_entries
    with pytest.raises(DataError, match="missing"):
        sf.privatise(RATINGS.with_values(np.full(RATINGS.n_entries, np.nan), (1, 5)), 1.0, ledger=ledger)
    with pytest.raises(SettingError, match="between which numbers"):
        sf.privatise(COUNTS, 1.0, ledger=ledger)
    named = sf.SparseTensor(CELLS, RATINGS.values, (sf.Mode("event", 30), sf.Mode("item", 20)), (1, 5))
    with pytest.raises(SettingError, match="a unit and the name of a mode"):
        sf.privatise(named, 1.0, unit="event", ledger=ledger)
    assert not ledger.exists()


def test_the_same_entries_settings_and_key_give_the_noise_again_and_are_charged_once(tmp_path):
    ledger, key = tmp_path / "ledger.jsonl", sf.new_noise_key()
    first = sf.privatise(RATINGS, 1.0, key=key, ledger=ledger)
    again = sf.privatise(RATINGS, 1.0, key=key, ledger=ledger)
    np.testing.assert_array_equal(first.tensor.values, again.tensor.values)
    assert sf.Ledger(Value(), path=ledger).epsilon(0.0) == pytest.approx(1.0, rel=1e-3)
    values = RATINGS.values.copy()
    values[0] = 6 - values[0]
    other = sf.privatise(RATINGS.with_values(values, (1, 5)), 1.0, key=key, ledger=ledger)
    assert (other.tensor.values != first.tensor.values).any()
    sf.privatise(RATINGS, 1.0, key=sf.new_noise_key(), ledger=ledger)
    assert sf.Ledger(Value(), path=ledger).epsilon(0.0) == pytest.approx(3.0, rel=1e-3)
    without = sf.privatise(RATINGS, 1.0, ledger=ledger)
    assert sf.Ledger(Value(), path=ledger).epsilon(0.0) == pytest.approx(4.0, rel=1e-3)
    assert (without.tensor.values != first.tensor.values).any()
    with pytest.raises(BudgetError):
        sf.privatise(RATINGS, 1.0, ledger=tmp_path / "small.jsonl", limit=Budget(0.5))


def test_a_seed_marks_what_it_makes():
    assert promised(sf.privatise(RATINGS, 1.0, seed=3)).seeded


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 3.0, 5.0])
def test_no_channel_lets_much_more_through_than_the_chosen_one(epsilon):
    """Of all epsilon-private channels of five values, by linear programming.

    The mean information about an entry's mean is linear in how likely the columns of a table are that
    have ratios of 1 and e^epsilon (Kairouz, Oh and Viswanath 2014), so that the best of all is found.
    """
    spreads = [max(4 * share, 0.5) for share in np.geomspace(0.04, 0.3, 7)]
    identity, offsets = Response((1.5, 2.5, 3.5, 4.5), 50.0), np.linspace(-2.5, 2.5, 11)
    weights = np.exp(-0.5 * offsets**2)

    def information(matrix):
        total = 0.0
        for tau in spreads:
            s = tau / np.sqrt(2)
            law = law_of(identity, 3 + tau * offsets, s)
            p, d = law.probability @ matrix, law.by_mean @ matrix
            total = total + s * s * (weights[:, None] * d * d / np.maximum(p, 1e-30)).sum(axis=0)
        return total

    columns = np.array(
        [[exp(epsilon * bit) for bit in bits] for bits in product((0, 1), repeat=5) if 0 < sum(bits) < 5]
    ).T
    best = linprog(-information(columns), A_eq=columns, b_eq=np.ones(5), method="highs")
    chosen = plan_privatising(Budget(epsilon), Value(), (1.0, 5.0), 1.0).task.channel
    table = probabilities(chosen, np.arange(1.0, 6.0))
    assert information(table).sum() >= 0.93 * -best.fun
    assert log(table.max() / table.min()) <= epsilon * (1 + 1e-9)
