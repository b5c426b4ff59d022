"""What holds for every tensor, whatever its cells, duplicates and order."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.data import prepare
from sfumato.data.scaling import BiScale, Centre, MinMax
from sfumato.data.tensor import Mode, SparseTensor

examples = settings(max_examples=60, deadline=None, database=None)
SEEDS = st.integers(0, 2**32)


@st.composite
def tensors(draw, min_entries=1, min_order=2):
    """Small tensors with many duplicates; half of the modes have text labels."""
    order = draw(st.integers(min_order, 4))
    sizes = draw(st.lists(st.integers(1, 5), min_size=order, max_size=order))
    n = draw(st.integers(min_entries, 40))
    rng = np.random.default_rng(draw(SEEDS))
    cells = np.stack([rng.integers(0, size, n) for size in sizes])
    values = rng.integers(-20, 20, n) / 4
    modes = tuple(Mode(f"m{i}", size, _letters(size) if i % 2 else None) for i, size in enumerate(sizes))
    return SparseTensor(cells, values, modes)


def _letters(size):
    return np.array([chr(97 + i) for i in range(size)], dtype=object)


def rows(tensor):
    """Entries as a sorted list of (cell, value)."""
    cells = zip(*tensor.coordinates.tolist(), strict=True)
    return sorted(zip(cells, tensor.values.tolist(), strict=True))


@examples
@given(tensors(), SEEDS)
def test_entries_are_sorted_and_stable(tensor, seed):
    listed = [tuple(cell) for cell in tensor.coordinates.T.tolist()]
    assert listed == sorted(listed)
    order = np.random.default_rng(seed).permutation(tensor.n_entries)
    given_order = SparseTensor(tensor.coordinates[:, order], tensor.values[order], tensor.modes)
    expected = sorted(order.tolist(), key=lambda entry: listed[entry])
    np.testing.assert_array_equal(given_order.values, tensor.values[expected])


@examples
@given(tensors(min_entries=4), SEEDS)
def test_split_partitions_the_entries(tensor, seed):
    train, test = prepare.split(tensor, 0.4, seed=seed)
    assert sorted(rows(train) + rows(test)) == rows(tensor)
    assert test.n_entries == round(0.4 * tensor.n_entries)


@examples
@given(tensors(min_entries=6), st.integers(2, 6), SEEDS)
def test_folds_partition_the_entries(tensor, k, seed):
    tested = []
    for train, test in prepare.folds(tensor, k, seed=seed):
        assert sorted(rows(train) + rows(test)) == rows(tensor)
        tested += rows(test)
    assert sorted(tested) == rows(tensor)


@examples
@given(tensors(), st.integers(1, 5), SEEDS)
def test_cap_never_exceeds_and_drops_no_more_than_it_must(tensor, most, seed):
    for mode in tensor.mode_names:
        capped = prepare.cap(tensor, mode, most, seed)
        np.testing.assert_array_equal(capped.counts(mode), np.minimum(tensor.counts(mode), most))


@examples
@given(tensors(), st.integers(1, 3), SEEDS, st.data())
def test_choices_within_a_level_ignore_the_other_levels(tensor, k, seed, data):
    mode = data.draw(st.sampled_from(tensor.mode_names))
    levels = tensor.coordinates[tensor.mode_index(mode)]
    level = data.draw(st.sampled_from(sorted(set(levels.tolist()))))
    kept = levels == level
    others = np.array(data.draw(st.lists(st.booleans(), min_size=5, max_size=5)))
    reduced = tensor.take(kept | others[levels])

    def choice(part):
        own = part.coordinates[part.mode_index(mode)] == level
        return rows(part.take(own))

    assert choice(prepare.cap(tensor, mode, k, seed)) == choice(prepare.cap(reduced, mode, k, seed))
    if np.count_nonzero(kept) > k:
        full, less = (prepare.leave_out(part, mode, k, seed)[1] for part in (tensor, reduced))
        assert choice(full) == choice(less)


@examples
@given(tensors())
def test_merging_agrees_with_a_dictionary(tensor):
    by_cell = {}
    for cell, value in zip(tensor.coordinates.T.tolist(), tensor.values.tolist(), strict=True):
        by_cell.setdefault(tuple(cell), []).append(value)
    naive = {"sum": sum, "last": lambda v: v[-1], "mean": lambda v: sum(v) / len(v)}
    for policy, reduce in naive.items():
        merged = prepare.merge_duplicates(tensor, policy)
        assert rows(merged) == sorted((cell, reduce(v)) for cell, v in by_cell.items())


@examples
@given(tensors(), st.floats(-100, 100))
def test_centre_and_min_max_round_trip(tensor, mean):
    for scaling in (Centre(mean), Centre.fit(tensor), MinMax(-7, 9), MinMax(0, 3, to=(-1, 5))):
        scaled = scaling.transform(tensor)
        back = scaling.inverse(scaled.values, scaled.coordinates)
        np.testing.assert_allclose(back, tensor.values, atol=1e-12)


@examples
@given(tensors(min_order=3), st.data())
def test_bi_scaling_round_trips(tensor, data):
    slices = data.draw(st.sampled_from([None, *tensor.mode_names]))
    scaling = BiScale.fit(tensor, slices)
    scaled = scaling.transform(tensor)
    assert np.isfinite(scaled.values).all()
    back = scaling.inverse(scaled.values, tensor.coordinates)
    np.testing.assert_allclose(back, tensor.values, atol=1e-9)
