"""The noise of private gradient steps has the law that the proof needs.

Fixed seeds, and a false-alarm rate of one in a million for each test; the same tests reject two
thirds and three halves of the noise.
"""

import numpy as np
import pytest
from randomgen import AESCounter
from scipy import stats

from sfumato.data.tensor import Mode, SparseTensor
from sfumato.engines.local import Local
from sfumato.kernels.numba.chacha import Words
from sfumato.kernels.numba.compiler import kernel
from sfumato.kernels.numba.private_moves import JITTER, KEEP, PACE, Moves, Scale, make_paces
from sfumato.kernels.numba.private_steps import entry_steps, unit_steps
from sfumato.kernels.numba.simd import aligned_zeros
from sfumato.kernels.reference.private_steps import entry_steps_reference
from sfumato.models.multilinear import CPModel
from sfumato.models.shape import Shape
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Draw
from sfumato.privacy.units import Entry, Unit, Value
from sfumato.sites.memory import Site
from sfumato.solvers.private.gradient.levels import Start
from sfumato.solvers.private.gradient.solver import PrivateSGD
from sfumato.solvers.protocol import Run

ALARM = 1e-6
SCALE = Scale(-10.0, 10.0, 0.0, 1.0)


def has_deviation(numbers, deviation):
    """Whether normal numbers of mean zero may have this deviation, at the false-alarm rate."""
    power = np.square(numbers / deviation).sum()
    low, high = stats.chi2.ppf([ALARM / 2, 1 - ALARM / 2], numbers.size)
    return low < power < high


def only(numbers, deviation):
    """Whether the numbers fit the deviation, and neither two thirds nor three halves of it."""
    return (
        has_deviation(numbers, deviation)
        and not has_deviation(numbers, deviation * 2 / 3)
        and not has_deviation(numbers, deviation * 3 / 2)
    )


def moving(model, keep, pace=0.0, jitter=0.3, bias_square=0.7):
    n = model.rows.shape[0]
    square, home = (aligned_zeros((model.order, model.rows.shape[1]), model.dtype) for _ in range(2))
    for m, rank in enumerate(model.ranks):
        square[m, :rank], home[m, :rank] = np.linspace(0.5, 2, rank), 0.4
    line = np.stack([np.full(n, keep), np.full(n, pace), np.full(n, jitter)])
    core = np.array([keep, pace, jitter, 0.4])
    bias_home = np.full(n, -0.2, model.dtype)
    return Moves(make_paces(line, line), square, home, bias_home, model.dtype.type(bias_square), core)


def steps(model, moves, tensor, rate, count, seed, clip=1.0, unit=False):
    streams = np.random.default_rng(seed), np.random.default_rng(seed + 10**6)
    how = rate, count, clip, True, *streams
    if unit:
        own = 0, 5.0, False, (1.0, 1.0)
        unit_steps(model, moves, SCALE, Site(tensor, 1).by_mode(0), *own, *how)
    else:
        entry_steps(model, moves, SCALE, tensor.coordinates, tensor.values, *how)


def half_empty(rng, entries=400):
    """Entries on the first half of each mode's levels: the other rows are never touched."""
    cells = np.stack([rng.integers(0, 100, entries), rng.integers(0, 80, entries)])
    return SparseTensor(cells, rng.normal(size=entries), (Mode("a", 200), Mode("b", 160)))


@pytest.mark.parametrize("unit", [False, True], ids=["entries", "units"])
@pytest.mark.parametrize("keep", [0.8, 0.999, 1.0])
@pytest.mark.parametrize("rate", [1e-12, 0.02, 0.3, 1.0])
def test_every_row_gets_the_noise_of_every_step(unit, keep, rate):
    # With pace zero a row only shrinks and shakes, whether it is touched often, seldom or never.
    rng = np.random.default_rng(5)
    model, count = CPModel.zeros((200, 160), 6), 12
    before = 0.1 * rng.normal(size=model.rows[:, :6].shape)
    model.rows[:, :6], model.biases[:] = before, 0.3
    moves = moving(model, keep)
    steps(model, moves, half_empty(rng), rate, count, 11, unit=unit)
    left = keep**count
    deviation = 0.3 * np.sqrt(np.square(keep ** np.arange(count)).sum())
    rows = (model.rows[:, :6] - 0.4 - left * (before - 0.4)) / np.sqrt(np.linspace(0.5, 2, 6))
    biases = (model.biases + 0.2 - left * 0.5) / np.sqrt(0.7)
    touched, empty = rows[:100].ravel(), rows[100:200].ravel()
    assert only(touched, deviation)
    assert only(empty, deviation)
    assert only(biases, deviation)
    assert not model.rows[:, 6:].any()
    # Independent: sums over rows vary as much as independent numbers do.
    sums = rows.reshape(60, 6, 6).sum(axis=1) / np.sqrt(6)
    assert has_deviation(sums.ravel(), deviation)
    assert stats.kstest(rows.ravel() / deviation, "norm").pvalue > ALARM


def test_lazy_and_dense_noise_end_in_the_same_law():
    # 400 fits each by the kernel and by its dense twin, gradients and all: every parameter's mean
    # and variance agree. The false alarms of all comparisons add up to at most 1e-4.
    rng = np.random.default_rng(2)
    start = CPModel.zeros((4, 3), 2)
    start.rows[:, :2], start.biases[:] = rng.normal(size=(7, 2)), 0.1
    cells = np.array([[0, 0, 1, 1, 2, 2], [0, 1, 0, 2, 1, 1]])
    tensor = SparseTensor(cells, rng.normal(size=6), (Mode("a", 4), Mode("b", 3)))
    moves, fits = moving(start, 0.9, pace=0.3, jitter=0.1), 400
    lazy, dense = [], []
    for seed in range(fits):
        model = start.copy()
        steps(model, moves, tensor, 0.4, 4, seed)
        lazy.append(np.concatenate([model.rows[:, :2].ravel(), model.biases]))
        model = start.copy()
        streams = np.random.default_rng(10**7 + seed), np.random.default_rng(2 * 10**7 + seed)
        how = (0.4, 4, 1.0, True, *streams)
        entry_steps_reference(model, moves, SCALE, tensor.coordinates, tensor.values, *how)
        dense.append(np.concatenate([model.rows[:, :2].ravel(), model.biases]))
    lazy, dense = np.array(lazy), np.array(dense)
    each = 1e-4 / (2 * lazy.shape[1])
    assert stats.ttest_ind(lazy, dense, equal_var=False).pvalue.min() > each
    assert differ_in_spread(lazy, dense) > each
    for share in (2 / 3, 3 / 2):
        centre = lazy.mean(axis=0)
        assert differ_in_spread(centre + share * (lazy - centre), dense) < each


def differ_in_spread(one, two):
    """Least p-value over the columns; Levene's test does not lean on normality (batches differ)."""
    return min(stats.levene(one[:, k], two[:, k]).pvalue for k in range(one.shape[1]))


@pytest.mark.parametrize("rate", [1.0, 0.99], ids=["all", "sampled"])
@pytest.mark.parametrize("unit", [Value(), Entry(), Unit("a")], ids=["value", "entry", "unit"])
def test_a_step_of_a_fit_has_the_noise_that_it_is_charged_for(unit, rate):
    # Through the solver: what a step adds, in the metric's coordinates and before its pace, has the
    # multiplier's share of the clip as its deviation on each coordinate of each row.
    modes = (Mode("a", 300), Mode("b", 200))
    tensor = SparseTensor(np.array([[0], [0]]), np.array([3.0]), modes)
    counts = np.random.default_rng(0).uniform(1, 50, 500)
    start = Start(3.0, np.zeros(500), counts, 1.0, np.array([0.2, 0.2]))
    solver = PrivateSGD(noise=0.8, passes=3, start=start, rate=rate)
    facts = Facts(Shape(modes, (8, 8)), unit, (1.0, 5.0), entries=5000)
    state, charge = solver.init(Run(1), facts), solver.charges(facts)[0]
    change = 2 if unit.replaces and rate == 1 else 1  # that a Gaussian's multiplier is relative to
    deviation = change * charge.mechanism.noise_multiplier * solver.settings(facts).clip
    moves, before = state.moves, state.model.rows.copy()
    released = Local(Site(tensor, 1)).released(solver.ask(state), Draw(charge, Entropy(3)))
    after = solver.update(state, released)[0].model.rows
    noise = []
    for m, span in enumerate(state.model.span(m) for m in range(2)):
        here, home = moves.paces[span][1:], moves.home[m]  # level 0 has an entry
        keep = here[:, KEEP : KEEP + 1]
        moved = after[span][1:] - home - keep * (before[span][1:] - home)
        noise.append(moved / np.sqrt(moves.square[m]) / (keep * here[:, PACE : PACE + 1]))
        assert here[:, JITTER] == pytest.approx(keep[:, 0] * here[:, PACE] * deviation)
    noise = np.concatenate(noise).ravel()
    assert only(noise, deviation)


@pytest.mark.parametrize("unit", [False, True], ids=["entries", "units"])
@pytest.mark.parametrize("rate", [0.003, 0.2, 0.95])
def test_batches_are_poisson(unit, rate):
    # All units share one level of the second mode and push its bias equally: it counts them.
    units, fits = 1000, 400
    cells = np.stack([np.arange(units), np.zeros(units, np.int64)])
    tensor = SparseTensor(cells, np.full(units, 9.0), (Mode("a", units), Mode("b", 2)))
    start = CPModel.zeros((units, 2), 1)
    moves = moving(start, 1.0, pace=1.0, jitter=0.0, bias_square=0.5)
    sizes, joined = [], np.zeros(units)
    for seed in range(fits):
        model = start.copy()
        steps(model, moves, tensor, rate, 1, seed, unit=unit)
        sizes.append(model.biases[units] / np.sqrt(0.5) * np.sqrt(2))
        joined += model.biases[:units] > 0
    sizes = np.array(sizes)
    np.testing.assert_allclose(sizes, np.rint(sizes), atol=1e-9)
    mean, deviation = units * rate, np.sqrt(units * rate * (1 - rate))
    normal = (sizes - mean) / deviation
    assert abs(normal.mean()) * np.sqrt(fits) < stats.norm.isf(ALARM / 2)
    # Variances of counts are a little more spread than those of normal numbers: room for kurtosis.
    kurtosis = 2 + (1 - 6 * rate * (1 - rate)) / (units * rate * (1 - rate))
    assert abs(np.square(normal).mean() - 1) * np.sqrt(fits / kurtosis) < 7
    # Each unit by itself joins as often as any other.
    p = stats.binomtest(int(joined.sum()), fits * units, rate).pvalue
    assert p > ALARM
    each = stats.binom(fits, rate)
    assert each.ppf(ALARM / units) <= joined.min()
    assert joined.max() <= each.isf(ALARM / units)


@kernel
def _drawn(generator, out):
    for i in range(out.shape[0]):
        out[i] = generator.standard_normal() if i % 2 else generator.standard_exponential()


def test_kernels_draw_from_the_cryptographic_stream():
    inside = np.empty(1000)
    _drawn(np.random.Generator(AESCounter(key=77)), inside)
    outside = np.random.Generator(AESCounter(key=77))
    for i, number in enumerate(inside):
        assert number == (outside.standard_normal() if i % 2 else outside.standard_exponential())
    assert isinstance(Entropy().generator().bit_generator, AESCounter)


def test_streams_of_steps_are_keyed_by_the_cryptographic_stream():
    # Keys of 256 bits, a new one for every stream of every call.
    key = np.random.Generator(AESCounter(key=77)).integers(0, 2**32, 8, np.uint32)
    np.testing.assert_array_equal(Words.keyed(np.random.Generator(AESCounter(key=77))).state[4:12], key)
    generator = Entropy().generator()
    keys = {tuple(Words.keyed(generator).state[4:12]) for _ in range(50)}
    assert len(keys) == 50
