"""Steps of rows: the kernel and its readable twin say the same, however many threads there are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.kernels.numba import row_moves
from sfumato.kernels.numba.row_moves import Pull, move_rows, weighted_products
from sfumato.kernels.reference.row_moves import move_rows_reference, weighted_products_reference

examples = settings(max_examples=25, deadline=None, database=None, derandomize=True)


def random_move(rng, levels, rank, columns):
    counts, noise = rng.uniform(0.1, 50, levels), rng.exponential(size=levels)
    pull = Pull(rng.uniform(0, 1), counts, rng.exponential(), noise, rng.exponential(size=rank))
    return rng.normal(size=(levels, rank)), rng.normal(size=(levels, columns)), pull


@examples
@given(
    seed=st.integers(0, 10**6),
    levels=st.integers(1, 30),
    rank=st.integers(1, 9),
    more=st.integers(0, 1),
)
def test_the_kernel_and_its_twin_say_the_same(seed, levels, rank, more):
    move = random_move(np.random.default_rng(seed), levels, rank, rank + more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_moves, "_ROWS", 8)
        for ours, theirs in zip(move_rows(*move), move_rows_reference(*move), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-14)


@examples
@given(seed=st.integers(0, 10**6), levels=st.integers(0, 30), rank=st.integers(1, 9))
def test_products_of_rows_are_those_of_the_twin(seed, levels, rank):
    rng = np.random.default_rng(seed)
    rows, weights = rng.normal(size=(levels, rank + 2))[:, 1:-1], rng.uniform(0, 50, levels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_moves, "_ROWS", 8)
        found = weighted_products(rows, weights)
    theirs = weighted_products_reference(rows, weights)
    np.testing.assert_allclose(found, theirs, rtol=1e-11, atol=1e-12)


def test_sums_do_not_depend_on_threads(monkeypatch):
    move = random_move(np.random.default_rng(3), 20_000, 5, 6)
    found = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(row_moves, "available_threads", lambda threads=threads: threads)
        found.append((*move_rows(*move), weighted_products(move[0], move[2].counts)))
    for other in found[1:]:
        assert all((a == b).all() for a, b in zip(found[0], other, strict=True))
