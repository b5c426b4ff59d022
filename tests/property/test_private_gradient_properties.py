"""Private gradient steps: kernels equal their twins, gradients are right, clipping holds."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.data.tensor import Mode, SparseTensor
from sfumato.kernels.grid import BELOW_ONE, grid
from sfumato.kernels.numba.private_moves import Moves, Scale, make_paces
from sfumato.kernels.numba.private_steps import entry_steps, unit_steps
from sfumato.kernels.numba.private_sums import entry_gradients, unit_gradients
from sfumato.kernels.numba.simd import aligned_zeros
from sfumato.kernels.reference.private_steps import (
    entry_steps_reference,
    targets_reference,
    unit_steps_reference,
)
from sfumato.kernels.reference.private_sums import (
    entry_gradients_reference,
    unit_gradients_reference,
)
from sfumato.models.multilinear import CPModel, TuckerModel
from sfumato.models.shape import Shape
from sfumato.privacy.facts import Facts
from sfumato.privacy.units import Entry, Unit, Value
from sfumato.sites.memory import Site
from sfumato.solvers.private.gradient.levels import LevelsQuery
from sfumato.solvers.private.gradient.steps import GradientQuery, Gradients, moved

examples = settings(max_examples=15, deadline=None, database=None, derandomize=True)
KINDS = [("cp", 2, np.float64), ("cp", 3, np.float32), ("tucker", 3, np.float64)]
KIND = pytest.mark.parametrize("kind", KINDS, ids=["cp-2", "cp-3-float32", "tucker-3"])
TOLERANCE = {np.float32: 3e-4, np.float64: 1e-9}
LOW, HIGH = -1.5, 2.0


@st.composite
def problems(draw, kind, most=40):
    """A model, how it moves, and entries; few levels, so that entries share them."""
    name, order, dtype = kind
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = draw(st.lists(st.integers(2, 7), min_size=order, max_size=order))
    if name == "cp":
        model = CPModel.zeros(shape, draw(st.integers(1, min(shape))), dtype)
    else:
        model = TuckerModel.zeros(shape, [draw(st.integers(1, min(3, n))) for n in shape], dtype)
    for factor in model.factors:
        factor[:] = rng.normal(size=factor.shape)
    model.free_core[:] = rng.normal(size=model.free_core.shape)
    fit_biases = draw(st.booleans())
    if fit_biases:
        model.biases[:] = 0.3 * rng.normal(size=model.biases.shape)
    n = draw(st.integers(1, most))
    cells = np.stack([rng.integers(0, draw(st.sampled_from([1, size])), n) for size in shape])
    modes = tuple(Mode(f"m{i}", size) for i, size in enumerate(shape))
    tensor = SparseTensor(cells, (2 * rng.normal(size=n)).astype(dtype), modes)
    return model, make_moves(model, rng), tensor, fit_biases, rng


def make_moves(model, rng, jitter=0.0, keep=None, pace=0.3):
    n, number = model.rows.shape[0], model.dtype
    square, home = (aligned_zeros((model.order, model.rows.shape[1]), number) for _ in range(2))
    for m, rank in enumerate(model.ranks):
        square[m, :rank], home[m, :rank] = rng.uniform(0.2, 2, rank), rng.normal(size=rank)

    def line():
        share = rng.uniform(0.5, 1, n) if keep is None else np.full(n, keep)
        share[:1] = 1.0  # a row that does not shrink at all
        return np.stack([share, np.full(n, pace), np.full(n, jitter)])

    bias_home = 0.1 * rng.normal(size=n).astype(number)
    core = np.array([0.9 if keep is None else keep, pace, jitter, 0.4])
    return Moves(make_paces(line(), line()), square, home, bias_home, number.type(0.7), core)


def scale_of(dtype):
    return Scale(*(dtype(x) for x in (LOW, HIGH, 0.25, 0.8)))


def by_entry(model, moves, tensor, fit_biases, rate=1.0, steps=1, clip=0.5, seed=0, threads=1):
    """The model after steps of the kernel."""
    model, streams = model.copy(), (np.random.default_rng(seed), np.random.default_rng(seed + 1))
    data = scale_of(model.dtype.type), tensor.coordinates, tensor.values
    entry_steps(model, moves, *data, rate, steps, clip, fit_biases, *streams, threads)
    return model


def by_unit(
    model,
    moves,
    tensor,
    fit_biases,
    mode=0,
    local=True,
    rate=1.0,
    steps=1,
    clip=0.5,
    typical=3.0,
    seed=0,
    threads=1,
):
    model, streams = model.copy(), (np.random.default_rng(seed), np.random.default_rng(seed + 1))
    if local:
        model.rows[model.span(mode)] = 0
        model.biases[model.span(mode)] = 0
    data = scale_of(model.dtype.type), Site(tensor, 1).by_mode(mode)
    own = mode, typical, local, (1.3, 0.8)
    unit_steps(model, moves, *data, *own, rate, steps, clip, fit_biases, *streams, threads)
    return model


def parameters(model):
    return np.concatenate([model.rows.ravel(), model.biases, model.free_core]).astype(np.float64)


def same(fast, slow, dtype):
    scale = max(1.0, np.abs(parameters(slow)).max())
    np.testing.assert_allclose(parameters(fast), parameters(slow), rtol=0, atol=TOLERANCE[dtype] * scale)


# -- kernels and their twins --------------------------------------------------------------------


@KIND
@examples
@given(data=st.data())
def test_entry_steps_do_what_their_twin_does(kind, data):
    model, moves, tensor, fit_biases, _ = data.draw(problems(kind))
    rate = data.draw(st.sampled_from([0.1, 0.5, 1.0]))
    fast = by_entry(model, moves, tensor, fit_biases, rate, steps=4)
    slow = model.copy()
    streams = np.random.default_rng(0), np.random.default_rng(1)
    how = (rate, 4, 0.5, fit_biases, *streams)
    scale = scale_of(kind[2])
    entry_steps_reference(slow, moves, scale, tensor.coordinates, tensor.values, *how)
    same(fast, slow, kind[2])


@KIND
@pytest.mark.parametrize("local", [True, False])
@examples
@given(data=st.data())
def test_unit_steps_do_what_their_twin_does(kind, local, data):
    model, moves, tensor, fit_biases, _ = data.draw(problems(kind))
    mode, rate = data.draw(st.integers(0, model.order - 1)), data.draw(st.sampled_from([0.4, 1.0]))
    fast = by_unit(model, moves, tensor, fit_biases, mode, local, rate, steps=3)
    slow = model.copy()
    if local:
        slow.rows[slow.span(mode)] = 0
        slow.biases[slow.span(mode)] = 0
    streams = np.random.default_rng(0), np.random.default_rng(1)
    how = (mode, 3.0, local, (1.3, 0.8), rate, 3, 0.5, fit_biases, *streams)
    scale = scale_of(kind[2])
    unit_steps_reference(slow, moves, scale, tensor.coordinates, tensor.values, *how)
    same(fast, slow, kind[2])
    if local:
        assert not fast.rows[fast.span(mode)].any()
        assert not fast.biases[fast.span(mode)].any()


@pytest.mark.parametrize("unit", [False, True], ids=["entries", "units"])
def test_steps_are_the_same_bits_on_any_number_of_threads(unit, monkeypatch):
    # Few steps at a time, so that some are prepared while others are carried out.
    monkeypatch.setattr("sfumato.kernels.numba.private_steps._AT_A_TIME", 100)
    rng = np.random.default_rng(0)
    model = CPModel.zeros((50, 40), 3)
    cells = np.stack([rng.integers(0, 50, 900), rng.integers(0, 40, 900)])
    tensor = SparseTensor(cells, rng.normal(size=900), (Mode("a", 50), Mode("b", 40)))
    moves, steps = make_moves(model, rng, jitter=0.1), by_unit if unit else by_entry
    one, two, again = (
        parameters(steps(model, moves, tensor, True, rate=0.05, steps=23, threads=threads))
        for threads in (1, 2, 5)
    )
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, again)


# -- the gradient -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[2]], ids=["cp-2", "tucker-3"])
@examples
@given(data=st.data())
def test_the_unclipped_sum_is_the_gradient(kind, data):
    model, _, tensor, fit_biases, rng = data.draw(problems(kind))
    moves = make_moves(model, rng, keep=1.0, pace=1.0)
    moved = clipped_sum(model, moves, by_entry(model, moves, tensor, fit_biases, clip=1e9))
    targets, small = targets_reference(tensor.values, scale_of(kind[2])), 1e-6

    def half_squares(shifted):
        return 0.5 * np.square(targets - shifted.predict_reference(tensor.coordinates)).sum()

    direction = rng.normal(size=moved.size)
    ahead, behind = (shifted(model, moves, sign * small * direction, fit_biases) for sign in (1, -1))
    slope = (half_squares(behind) - half_squares(ahead)) / (2 * small)
    used = used_coordinates(model, fit_biases)
    assert slope == pytest.approx(moved[used] @ direction[used], rel=1e-4, abs=1e-4)


def metric_of(model, moves):
    rows = np.repeat(np.sqrt(moves.square), model.shape, axis=0).ravel()
    biases = np.full(model.biases.size, np.sqrt(moves.bias_square))
    return np.concatenate([rows, biases, np.full(model.free_core.size, np.sqrt(moves.core[3]))])


def used_coordinates(model, fit_biases):
    used = np.zeros_like(model.rows, bool)
    for m, rank in enumerate(model.ranks):
        used[model.span(m), :rank] = True
    return np.concatenate(
        [used.ravel(), np.full(model.biases.size, fit_biases), np.ones(model.free_core.size, bool)]
    )


def clipped_sum(before, moves, after):
    """What a step without shrinking added, in the metric's coordinates."""
    metric = metric_of(before, moves)
    moved = parameters(after) - parameters(before)
    return np.divide(moved, metric, out=np.zeros_like(moved), where=metric > 0)


def shifted(model, moves, by, fit_biases):
    result, change = model.copy(), by * metric_of(model, moves) * used_coordinates(model, fit_biases)
    n = model.rows.size
    result.rows[:] += change[:n].reshape(model.rows.shape)
    result.biases[:] += change[n : n + model.biases.size]
    result.free_core[:] += change[n + model.biases.size :]
    return result


# -- neighbours ---------------------------------------------------------------------------------


def without(tensor, kept):
    """Some of a tensor's entries, or none at all (which a tensor made from a table must not have)."""
    cells = np.ascontiguousarray(tensor.coordinates[:, kept])
    return SparseTensor(cells, tensor.values[kept], tensor.modes, None, True)


def rounding(kind, tensor):
    return 1 + (1e-9 if kind[2] is np.float64 else 1e-4 * (1 + tensor.n_entries))


@KIND
@examples
@given(data=st.data())
def test_an_entry_moves_the_sum_by_at_most_the_clip(kind, data):
    model, _, tensor, fit_biases, rng = data.draw(problems(kind))
    moves = make_moves(model, rng, keep=1.0, pace=1.0)
    gone = data.draw(st.integers(0, tensor.n_entries - 1))
    sums = [
        clipped_sum(model, moves, by_entry(model, moves, each, fit_biases, clip=0.5))
        for each in (tensor, without(tensor, np.arange(tensor.n_entries) != gone))
    ]
    assert np.linalg.norm(sums[0] - sums[1]) <= 0.5 * rounding(kind, tensor)


@KIND
@examples
@given(data=st.data())
def test_a_replaced_value_moves_the_sum_by_at_most_twice_the_clip(kind, data):
    model, _, tensor, fit_biases, rng = data.draw(problems(kind))
    moves = make_moves(model, rng, keep=1.0, pace=1.0)
    entry = data.draw(st.integers(0, tensor.n_entries - 1))
    other = tensor.values.copy()
    other[entry] = data.draw(st.floats(-1e6, 1e6))
    replaced = SparseTensor(tensor.coordinates, other, tensor.modes)
    sums = [
        clipped_sum(model, moves, by_entry(model, moves, each, fit_biases, clip=0.5))
        for each in (tensor, replaced)
    ]
    assert np.linalg.norm(sums[0] - sums[1]) <= 2 * 0.5 * rounding(kind, tensor)


@KIND
@pytest.mark.parametrize("local", [True, False])
@examples
@given(data=st.data())
def test_a_unit_moves_the_sum_by_at_most_the_clip(kind, local, data):
    model, _, tensor, fit_biases, rng = data.draw(problems(kind))
    moves = make_moves(model, rng, keep=1.0, pace=1.0)
    mode = data.draw(st.integers(0, model.order - 1))
    gone = data.draw(st.sampled_from(sorted(set(tensor.coordinates[mode].tolist()))))
    sums = []
    for each in (tensor, without(tensor, tensor.coordinates[mode] != gone)):
        after = by_unit(model, moves, each, fit_biases, mode, local)
        if local:  # own rows are zero before and after
            after.rows[model.span(mode)] = model.rows[model.span(mode)]
            after.biases[model.span(mode)] = model.biases[model.span(mode)]
        sums.append(clipped_sum(model, moves, after))
    assert np.linalg.norm(sums[0] - sums[1]) <= 0.5 * rounding(kind, tensor)


@pytest.mark.parametrize("everything_at", [0, 1], ids=["one day", "one item"])
def test_a_unit_whose_entries_share_a_row_reaches_its_bound_and_no_more(everything_at):
    rng = np.random.default_rng(3)
    cells = np.stack([np.repeat(np.arange(4), 25), rng.integers(0, 6, 100), rng.integers(0, 5, 100)])
    cells[1 + everything_at] = 2  # all entries of all users
    modes = (Mode("user", 4), Mode("item", 6), Mode("day", 5))
    tensor = SparseTensor(cells, np.full(100, 50.0), modes)
    model = CPModel.zeros((4, 6, 5), 2)
    for factor in model.factors:
        factor[:] = rng.uniform(0.5, 1.5, factor.shape)
    moves = make_moves(model, rng, keep=1.0, pace=1.0)
    full = clipped_sum(model, moves, by_unit(model, moves, tensor, True, local=False, typical=1e9))
    for user in range(4):
        part = without(tensor, cells[0] != user)
        rest = clipped_sum(model, moves, by_unit(model, moves, part, True, local=False, typical=1e9))
        assert np.linalg.norm(full - rest) == pytest.approx(0.5, rel=1e-9)


@pytest.mark.parametrize("broken", [np.nan, np.inf, 1e300])
def test_parameters_beyond_all_bounds_let_nothing_through(broken):
    model = CPModel.zeros((3, 3), 1)
    model.rows[:, 0] = broken
    tensor = SparseTensor(np.array([[0], [1]]), np.array([1.0]), (Mode("a", 3), Mode("b", 3)))
    moves = make_moves(model, np.random.default_rng(0), keep=1.0, pace=1.0)
    after = by_entry(model, moves, tensor, True)
    assert np.linalg.norm(after.biases - model.biases) <= 0.5 * np.sqrt(0.7) * (1 + 1e-9)


# -- sums of levels -----------------------------------------------------------------------------


@st.composite
def ratings(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    order, n = draw(st.integers(2, 3)), draw(st.integers(1, 40))
    sizes = (5, 4, 3)[:order]
    cells = np.stack([rng.integers(0, draw(st.sampled_from([1, size])), n) for size in sizes])
    modes = tuple(Mode(f"m{i}", size) for i, size in enumerate(sizes))
    return SparseTensor(cells, 3 * rng.normal(size=n), modes)


def facts_of(tensor, unit, fit_biases=True, local=None):
    shape = Shape(tensor.modes, (1,) * tensor.order, fit_biases=fit_biases)
    return Facts(shape, unit, (LOW, HIGH), local=local)


def keeps_its_bound(one, two):
    """Whether two answers differ by no more than their bound, in whole numbers of their step.

    A bound is the root of a sum of squares, rounded; mechanisms leave more room than that.
    """
    assert one.step == two.step
    whole = [answer.values.tolist() for answer in (one, two)]
    length = sum((int(a) - int(b)) ** 2 for a, b in zip(*whole, strict=True))
    return length <= (Fraction(one.l2) / Fraction(one.step)) ** 2 * (1 + Fraction(1, 10**15))


@examples
@given(tensor=ratings(), fit_biases=st.booleans(), data=st.data())
def test_level_sums_keep_their_bounds_for_entries_and_values(tensor, fit_biases, data):
    entry = data.draw(st.integers(0, tensor.n_entries - 1))
    smaller = without(tensor, np.arange(tensor.n_entries) != entry)
    other = tensor.values.copy()
    other[entry] = data.draw(st.sampled_from([LOW, HIGH, -1e9, 1e9]))
    replaced = SparseTensor(tensor.coordinates, other, tensor.modes)
    for unit, neighbour in ((Entry(), smaller), (Value(), replaced)):
        query = LevelsQuery(facts_of(tensor, unit, fit_biases), 3.0)
        one, two = (query.clipped(Site(each, 1)) for each in (tensor, neighbour))
        # Counts are public where positions are, else among the numbers that get noise.
        assert bool(one.public) == (unit == Value())
        counts = one.public[0] if one.public else one.numbers[3 : 3 + sum(tensor.shape)]
        assert keeps_its_bound(one, two)
        assert one.l2 == two.l2
        assert counts.sum() == pytest.approx(tensor.order * tensor.n_entries)


@examples
@given(tensor=ratings(), local=st.booleans(), typical=st.sampled_from([0.5, 3.0, 100.0]), data=st.data())
def test_level_sums_keep_their_bound_for_units(tensor, local, typical, data):
    mode = data.draw(st.integers(0, tensor.order - 1))
    gone = data.draw(st.sampled_from(sorted(set(tensor.coordinates[mode].tolist()))))
    facts = facts_of(tensor, Unit(f"m{mode}"), local=mode if local else None)
    smaller = without(tensor, tensor.coordinates[mode] != gone)
    one, two = (LevelsQuery(facts, typical).clipped(Site(each, 1)) for each in (tensor, smaller))
    assert keeps_its_bound(one, two)


# -- sums of whole numbers ------------------------------------------------------------------------


def whole_by_entry(model, moves, tensor, fit_biases, clip=0.5, threads=1):
    data = scale_of(model.dtype.type), tensor.coordinates, tensor.values
    return entry_gradients(model, moves, *data, clip, fit_biases, threads)


def whole_by_unit(
    model, moves, tensor, fit_biases, mode=0, local=True, clip=0.5, typical=3.0, threads=1
):
    model, units = model.copy(), (mode, typical, local, (1.3, 0.8))
    data = scale_of(model.dtype.type), Site(tensor, 1).by_mode(mode)
    return unit_gradients(model, moves, *data, *units, clip, fit_biases, threads)


def squared_length(one, two):
    """Of the difference of two sums of whole numbers, as a whole number."""
    apart = [(a - b).ravel().tolist() for a, b in zip(one, two, strict=True)]
    return sum(number * number for part in apart for number in part)


def most_squared(clip, factor=1):
    """The squared bound in whole numbers of the grid, as a fraction: nothing is rounded."""
    return (Fraction(clip) * factor / Fraction(grid(clip))) ** 2


WHOLE = [KINDS[0], ("cp", 3, np.float64), KINDS[2]]
WHOLE_KIND = pytest.mark.parametrize("kind", WHOLE, ids=["cp-2", "cp-3", "tucker-3"])


@WHOLE_KIND
@examples
@given(data=st.data())
def test_whole_sums_of_entries_are_those_of_their_twin(kind, data):
    model, moves, tensor, fit_biases, _ = data.draw(problems(kind))
    fast = whole_by_entry(model, moves, tensor, fit_biases)
    cells = scale_of(kind[2]), tensor.coordinates, tensor.values
    slow = entry_gradients_reference(model, moves, *cells, 0.5, fit_biases)
    nearly(fast, slow, tensor.n_entries)


@WHOLE_KIND
@pytest.mark.parametrize("local", [True, False])
@examples
@given(data=st.data())
def test_whole_sums_of_units_are_those_of_their_twin(kind, local, data):
    model, moves, tensor, fit_biases, _ = data.draw(problems(kind))
    mode = data.draw(st.integers(0, model.order - 1))
    if local:
        model.rows[model.span(mode)] = 0
        model.biases[model.span(mode)] = 0
    fast = whole_by_unit(model, moves, tensor, fit_biases, mode, local)
    cells = scale_of(kind[2]), tensor.coordinates, tensor.values
    how = mode, 3.0, local, (1.3, 0.8), 0.5, fit_biases
    nearly(fast, unit_gradients_reference(model.copy(), moves, *cells, *how), tensor.n_entries)


def nearly(fast, slow, entries):
    """Equal, but that what lies at a whole number may be cut to either side of it."""
    for one, other in zip(fast, slow, strict=True):
        assert one.dtype == np.int64
        assert np.abs(one - other).max(initial=0) <= entries


@WHOLE_KIND
@examples
@given(data=st.data())
def test_an_entry_moves_whole_sums_by_at_most_the_clip_without_rounding(kind, data):
    model, moves, tensor, fit_biases, _ = data.draw(problems(kind))
    clip = data.draw(st.sampled_from([0.5, 0.7, 3.0, 1e-3]))
    entry = data.draw(st.integers(0, tensor.n_entries - 1))
    kept = np.arange(tensor.n_entries) != entry
    other = tensor.values.copy()
    other[entry] = data.draw(st.sampled_from([LOW, HIGH, -1e9, np.inf, 0.3]))
    replaced = SparseTensor(tensor.coordinates, other, tensor.modes, None, True)
    full, smaller, changed = (
        whole_by_entry(model, moves, each, fit_biases, clip)
        for each in (tensor, without(tensor, kept), replaced)
    )
    alone = whole_by_entry(model, moves, without(tensor, ~kept), fit_biases, clip)
    assert squared_length(full, smaller) <= most_squared(clip)
    assert squared_length(full, changed) <= most_squared(clip, 2)
    for whole, rest, one in zip(full, smaller, alone, strict=True):
        np.testing.assert_array_equal(whole, rest + one)


@WHOLE_KIND
@pytest.mark.parametrize("local", [True, False])
@examples
@given(data=st.data())
def test_a_unit_moves_whole_sums_by_at_most_the_clip_without_rounding(kind, local, data):
    model, moves, tensor, fit_biases, _ = data.draw(problems(kind))
    mode, clip = data.draw(st.integers(0, model.order - 1)), data.draw(st.sampled_from([0.5, 0.7, 3.0]))
    gone = data.draw(st.sampled_from(sorted(set(tensor.coordinates[mode].tolist()))))
    kept = tensor.coordinates[mode] != gone
    full, smaller, alone = (
        whole_by_unit(model, moves, each, fit_biases, mode, local, clip)
        for each in (tensor, without(tensor, kept), without(tensor, ~kept))
    )
    assert squared_length(full, smaller) <= most_squared(clip)
    for whole, rest, one in zip(full, smaller, alone, strict=True):
        np.testing.assert_array_equal(whole, rest + one)


@pytest.mark.parametrize("unit", [False, True], ids=["entries", "units"])
def test_clipped_units_come_close_to_the_bound_and_threads_do_not_matter(unit):
    rng = np.random.default_rng(0)
    model = CPModel.zeros((30, 20), 3)
    model.rows[:, :3] = rng.normal(size=(50, 3))
    cells = np.stack([rng.integers(0, 30, 500), rng.integers(0, 20, 500)])
    tensor = SparseTensor(cells, np.full(500, 1e3), (Mode("a", 30), Mode("b", 20)))
    moves, sums = make_moves(model, rng), whole_by_unit if unit else whole_by_entry
    one, *others = (sums(model, moves, tensor, True, clip=0.01, threads=n) for n in (1, 2, 5))
    for other in others:
        assert squared_length(one, other) == 0
    kept = tensor.coordinates[0] != 3 if unit else np.arange(500) != 3
    alone = sums(model, moves, without(tensor, ~kept), True, clip=0.01)
    nothing = sums(model, moves, without(tensor, kept & ~kept), True, clip=0.01)
    assert squared_length(nothing, nothing) == squared_length(one, one) == 0
    assert 0.999 * most_squared(0.01) < squared_length(alone, nothing) <= most_squared(0.01)


@pytest.mark.parametrize("broken", [np.nan, np.inf, 1e300, 1e160])
@pytest.mark.parametrize("unit", [False, True], ids=["entries", "units"])
def test_broken_parameters_add_no_more_than_the_bound_to_whole_sums(broken, unit):
    model = CPModel.zeros((3, 3), 1)
    model.rows[:, 0] = broken
    tensor = SparseTensor(np.array([[0], [1]]), np.array([1.0]), (Mode("a", 3), Mode("b", 3)))
    moves = make_moves(model, np.random.default_rng(0))
    if unit:
        sums = whole_by_unit(model, moves, tensor, True, local=False)
    else:
        sums = whole_by_entry(model, moves, tensor, True)
    assert squared_length(sums, [0 * part for part in sums]) <= most_squared(0.5)


@WHOLE_KIND
@pytest.mark.parametrize("unit", [None, 0], ids=["entries", "units"])
@examples
@given(data=st.data())
def test_a_step_by_whole_sums_is_the_step_of_the_kernel(kind, unit, data):
    # Without noise: what a grid cuts off, and staying below the clip, is all that is between them.
    model, moves, tensor, fit_biases, _ = data.draw(problems(kind))
    local = None if unit is None else data.draw(st.sampled_from([None, 0]))
    if local is not None:
        model.rows[model.span(0)] = 0
        model.biases[model.span(0)] = 0
    scale = scale_of(kind[2])
    of = Gradients(model, moves, scale, unit, local, fit_biases, 0.5, 3.0, (1.3, 0.8))
    clipped = GradientQuery(of, False).clipped(Site(tensor, 2))
    assert (clipped.l2, clipped.step) == (0.5, grid(0.5))
    after = moved(model, moves, clipped.numbers, of.own, fit_biases)
    if unit is None:
        expected = by_entry(model, moves, tensor, fit_biases)
    else:
        expected = by_unit(model, moves, tensor, fit_biases, 0, local is not None)
    apart = np.abs(parameters(after) - parameters(expected)).max()
    assert apart <= tensor.n_entries * (4 * grid(0.5) + 2 * 0.5 * (1 - BELOW_ONE)) + 1e-6
