"""Alternating private fits: their noise is what is charged for, and their shrinkage is the best one.

Fixed seeds, and a false-alarm rate of one in a million for each test; the same tests reject two thirds
and three halves of the noise.
"""

from math import sqrt

import numpy as np
import pytest
from scipy import stats

from sfumato.data.tensor import Mode, SparseTensor
from sfumato.engines.local import Local
from sfumato.models.shape import Shape
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.units import Entry, Unit, Value
from sfumato.sites.memory import Site
from sfumato.solvers.private.alternating.moves import Block, Move
from sfumato.solvers.private.alternating.queries import OwnQuery, ScatterQuery, UnitBlockQuery
from sfumato.solvers.private.alternating.solver import PrivateAlternating
from sfumato.solvers.protocol import Run

ALARM = 1e-6
NOISE = 0.7
SIZES, BOUNDS, EMPTY = (60, 40, 12), (1.0, 5.0), 4


def site(seed=0, entries=1500):
    """Entries on all but the last levels of each mode."""
    rng = np.random.default_rng(seed)
    cells = np.stack([rng.integers(n - EMPTY, size=entries) for n in SIZES])
    modes = tuple(Mode(name, n) for name, n in zip(("user", "item", "day"), SIZES, strict=True))
    return Site(SparseTensor(cells, rng.uniform(*BOUNDS, entries), modes, BOUNDS), 1)


SITE = site()


def facts_of(kind, unit):
    shape = Shape(SITE.tensor.modes, {"cp": (3, 3, 3), "tucker": (2, 3, 2)}[kind], kind)
    local = 0 if isinstance(unit, Unit) else None
    return Facts(shape, unit, BOUNDS, entries=SITE.tensor.n_entries, local=local)


def bound_of(query, unit):
    """By hand, from what each question clips to: how far a unit can move the answer."""
    if isinstance(query, ScatterQuery):
        return query.most * (sqrt(2) if isinstance(unit, Unit) else 1)
    if isinstance(query, OwnQuery):
        return sqrt(2) * query.length**2
    if isinstance(query, UnitBlockQuery):
        return query.weighting.bound
    f = query.features
    whole = f.target * sqrt(f.length**2 + f.bias**2)
    return whole * (2 if isinstance(unit, Value) else 1)


def noise_of(kind, unit, seed=3):
    """Noise of each answer after the biases over what it should be by hand, levels as rows."""
    solver, facts, engine = PrivateAlternating(NOISE, sweeps=10), facts_of(kind, unit), Local(SITE)
    state, ratios = solver.init(Run(0), facts), []
    with Ledger(unit).reserve(solver.charges(facts), Entropy(seed)) as reservation:
        for step in solver.steps(facts):
            query = solver.ask(state)
            clean = None if step.asks == "biases" else query.clipped(SITE).numbers
            released = reservation.ask(lambda draw, query=query: engine.released(query, draw))
            if clean is not None:
                scale = bound_of(query, unit) * NOISE / sqrt(step.share)
                assert released.deviation == pytest.approx(scale, rel=1e-12)
                ratios.append(np.atleast_2d((released.values - clean) / scale))
            state, _ = solver.update(state, released)
    return ratios


def standard(ratios):
    """Whether numbers may be independent standard normal ones, at the false-alarm rate."""
    power = float(np.square(ratios).sum())
    low, high = stats.chi2.ppf([ALARM / 4, 1 - ALARM / 4], ratios.size)
    centred = abs(ratios.sum()) / sqrt(ratios.size) < stats.norm.isf(ALARM / 4)
    return low < power < high and centred


def only(ratios):
    """Whether the noise is that of the charge, and neither two thirds nor three halves of it."""
    return standard(ratios) and not standard(ratios * 2 / 3) and not standard(ratios * 3 / 2)


@pytest.mark.parametrize("kind", ["cp", "tucker"])
@pytest.mark.parametrize("unit", [Value(), Entry(), Unit("user")], ids=lambda unit: unit.key)
def test_noise_is_what_is_charged_for_no_less_and_no_more(unit, kind):
    ratios = noise_of(kind, unit)
    everything = np.concatenate([np.ravel(ratio) for ratio in ratios])
    assert only(everything)
    assert stats.kstest(everything, "norm").pvalue > ALARM
    by_level = [ratio for ratio in ratios if ratio.shape[0] > EMPTY]
    # Levels without entries as well: noise on the others alone would tell which they are.
    assert only(np.concatenate([ratio[-EMPTY:].ravel() for ratio in by_level]))
    for ratio in by_level:
        assert np.unique(ratio).size == ratio.size


def test_the_stated_ridge_has_less_error_than_half_and_twice_of_it():
    # Rows of known power, white designs, residuals and noise of known variance. Squared errors of the
    # same rows are compared: their mean differences lie many standard errors from zero.
    rng = np.random.default_rng(1)
    rows, n, scatter, noise = 40_000, 12, 0.8, 9.0
    power = np.array([0.3, 0.02])
    true = rng.normal(size=(rows, 2)) * np.sqrt(power)
    sums = n * true + np.sqrt(n * scatter + noise) * rng.normal(size=(rows, 2))
    biases = 0.5 * rng.normal(size=rows)
    bias_weight = 1.3
    of_bias = n * biases + np.sqrt(n * scatter + noise / bias_weight**2) * rng.normal(size=rows)
    sums = np.column_stack([sums, bias_weight * of_bias])
    counts, ones = np.full(rows, float(n)), np.ones(rows)

    def errors(factor):
        """With all that makes up the ridge so many times as large."""
        move = Move(
            step=1.0,
            counts=counts,
            scatter=factor * scatter,
            power=power,
            noise=factor * noise * ones,
            bias_weight=bias_weight,
            bias_means=0 * ones,
            bias_variances=0.25 * ones,
        )
        moved = move.by_gradients(np.zeros((rows, 2)), np.zeros(rows), sums, Block())
        return np.column_stack([moved.rows - true, moved.biases - biases]) ** 2, moved.block

    best, block = errors(1.0)
    for factor in (0.5, 2.0):
        worse = errors(factor)[0] - best
        assert (worse.mean(axis=0) > 5 * worse.std(axis=0) / sqrt(rows)).all()
    # What is stated as doubt is the error that there is.
    allowed = stats.norm.isf(ALARM / 6) * sqrt(2 / rows)
    np.testing.assert_allclose(best[:, :2].mean(axis=0), block.doubts, rtol=allowed)
    level = best.sum(axis=1)
    assert abs(level.mean() - block.level_doubts.mean()) < 5 * level.std() / sqrt(rows)


def test_averaged_noise_is_what_is_left_in_the_rows():
    # Without ridge a row that has its counts right holds the average of all rounds' sums.
    rng = np.random.default_rng(2)
    rows, n, deviation = 20_000, 5.0, 1.5
    counts, ones = np.full(rows, n), np.ones(rows)
    true = rng.normal(size=(rows, 1))
    at, block = np.zeros((rows, 1)), Block()
    for step in (1.0, 0.6, 0.3, 0.15):
        power = np.array([1e12])
        noise = deviation**2 * ones
        move = Move(step, counts, 1e-12, power, noise, 0.0, 0 * ones, ones)
        sums = n * (true - at) + deviation * rng.normal(size=at.shape)
        at, _, block = move.by_gradients(at, 0 * ones, sums, block)
    spread = n * (at - true)
    np.testing.assert_allclose(block.noise, block.noise[0])
    ratio = np.square(spread).mean() / block.noise[0]
    assert abs(ratio - 1) < stats.norm.isf(ALARM / 2) * sqrt(2 / rows)
    assert block.noise[0] < deviation**2 / 2
