"""Normal and exponential numbers of kernels have their laws, tails included.

Fixed seeds, and a false-alarm rate of one in a million for each test; the same tests reject noise that
is a third smaller, and smaller faults.
"""

import numpy as np
import pytest
from scipy import special, stats

from sfumato.kernels.numba.chacha import WORDS, Words
from sfumato.kernels.numba.exponentials import fill_exponentials
from sfumato.kernels.numba.normals import TAIL, WIDTH, fill_normals, make_normals

ALARM = 1e-6
COUNT = 100_000 * WORDS  # 12.8 million
BINS = 2000


@pytest.fixture(scope="module", params=[np.float64, np.float32], ids=["float64", "float32"])
def normals(request):
    out = np.empty(COUNT, request.param)
    fill_normals(*make_normals(np.random.default_rng(1)), out)
    return out.astype(np.float64)


def evenly(shares):
    """p-value that numbers between 0 and 1 fill equal bins equally."""
    counts = np.bincount(np.minimum((shares * BINS).astype(np.int64), BINS - 1), minlength=BINS)
    return stats.chisquare(counts).pvalue


def test_bins_of_equal_mass_are_filled_equally(normals):
    assert evenly(special.ndtr(normals)) > ALARM
    assert evenly(special.ndtr(normals * 2 / 3)) < ALARM
    assert evenly(special.ndtr(normals * 0.99)) < ALARM


def test_the_distribution_function_is_the_normal_one(normals):
    assert stats.kstest(normals[:2_000_000], "norm").pvalue > ALARM
    assert stats.kstest(normals[:2_000_000] * 2 / 3, "norm").pvalue < ALARM


@pytest.mark.parametrize("beyond", [3.0, 4.0, TAIL, 4.5, 5.0])
def test_tails_have_their_mass(normals, beyond):
    expected = 2 * stats.norm.sf(beyond)
    for side in (normals > beyond, normals < -beyond):
        assert stats.binomtest(int(side.sum()), COUNT, expected / 2).pvalue > ALARM
    if beyond <= 4.5:  # of noise a third smaller, and with no tail at all, there would be too little
        for fewer in (int((np.abs(normals * 2 / 3) > beyond).sum()), 0):
            assert stats.binomtest(fewer, COUNT, expected).pvalue < ALARM


def test_what_lies_beyond_the_layers_has_the_law_of_the_tail(normals):
    beyond = np.abs(normals[np.abs(normals) > TAIL])
    assert beyond.size > 500
    for tail, right in ((beyond, True), (TAIL + (beyond - TAIL) * 2 / 3, False)):
        shares = stats.norm.sf(tail) / stats.norm.sf(TAIL)
        assert (stats.kstest(shares, "uniform").pvalue > ALARM) == right


def test_within_single_layers_densities_are_right(normals):
    # Between the ends of two neighbouring layers lie the wedges of one, where points are refused.
    ends = WIDTH[1:-1][::-1]
    expected = np.diff(special.ndtr(ends)) * 2 * COUNT
    counts = np.histogram(np.abs(normals), ends)[0]
    wide = expected > 100
    power = (np.square(counts - expected) / expected)[wide].sum()
    assert stats.chi2.sf(power, wide.sum()) > ALARM


def test_neighbours_are_independent(normals):
    for lag in (1, 2, 16, WORDS):
        both = normals[:-lag] * normals[lag:]
        assert abs(both.mean()) * np.sqrt(both.size) < stats.norm.isf(ALARM / 2)
        squares = (np.square(normals[:-lag]) - 1) * (np.square(normals[lag:]) - 1) / 2
        assert abs(squares.mean()) * np.sqrt(squares.size) < stats.norm.isf(ALARM / 2)


def test_exponential_numbers_have_their_law():
    words, out = Words.keyed(np.random.default_rng(2)), np.empty((20_000, WORDS))
    for block in out:
        fill_exponentials(words, block)
    assert evenly(-np.expm1(-out.ravel())) > ALARM
    assert evenly(-np.expm1(-out.ravel() * 0.97)) < ALARM
    assert stats.binomtest(int((out > 12).sum()), out.size, np.exp(-12)).pvalue > ALARM
