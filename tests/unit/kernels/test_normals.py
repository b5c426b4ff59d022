"""Random words, exponential and normal numbers of kernels: equal to their twins."""

from itertools import islice

import numpy as np
import pytest

from sfumato.kernels.numba.chacha import CONSTANTS, SIDE, WORDS, Words, next_word, refill
from sfumato.kernels.numba.compiler import kernel
from sfumato.kernels.numba.exponentials import fill_exponentials
from sfumato.kernels.numba.normals import HEIGHT, TAIL, WIDTH, fill_normals, make_normals
from sfumato.kernels.reference.normals import (
    block_reference,
    exponentials_reference,
    normals_reference,
    words_reference,
)


def generator(seed=5):
    return np.random.default_rng(seed)


def test_twenty_rounds_are_those_of_the_standard():
    # RFC 8439, 2.3.2: its nonce reaches into what is the counter's upper half here.
    state = np.zeros(16, np.uint32)
    state[:4] = CONSTANTS
    state[4:12] = np.arange(32, dtype=np.uint8).view("<u4")
    state[12:16] = 1, 0x09000000, 0x4A000000, 0
    begins = [0xE4E7F110, 0x15593BD1, 0x1FDD0F50, 0xC47120A3]
    ends = [0xD19C12B5, 0xB94E16DE, 0xE883D0CB, 0x4E3C50A2]
    block = block_reference(state.tolist(), 10)
    assert (block[:4], block[12:]) == (begins, ends)
    words = np.empty(WORDS, np.uint64)
    refill(state.copy(), words, 10)
    assert words.view("<u4").reshape(16, SIDE)[:, 0].tolist() == block


@pytest.mark.parametrize("counter", [0, 2**32 - SIDE, 2**32 - 3], ids=["begin", "full", "carried"])
def test_words_are_those_of_the_twin(counter):
    words = Words.keyed(generator())
    words.state[12] = counter
    expected, out = list(islice(words_reference(words), 3 * WORDS)), np.empty(3 * WORDS, np.uint64)
    for part in np.split(out, 3):
        refill(words.state, part)
    assert out.tolist() == expected


@kernel
def _taken(words, out):
    for i in range(out.shape[0]):
        out[i] = next_word(words)


def test_words_are_taken_one_after_the_other():
    words, out = Words.keyed(generator()), np.empty(300, np.uint64)
    _taken(words, out)
    assert out.tolist() == list(islice(words_reference(Words.keyed(generator())), 300))


def test_keys_come_from_the_generator():
    one, two, other = Words.keyed(generator()), Words.keyed(generator()), Words.keyed(generator(6))
    np.testing.assert_array_equal(one.state, two.state)
    assert (one.state[4:12] != other.state[4:12]).all()


def test_exponential_numbers_are_minus_logarithms():
    words, out = Words.keyed(generator()), np.empty(WORDS)
    expected = exponentials_reference(generator())
    for _ in range(20):
        fill_exponentials(words, out)
        np.testing.assert_allclose(out, list(islice(expected, WORDS)), rtol=1e-15, atol=0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normal_numbers_are_those_of_the_twin(dtype):
    # Enough for edges of layers and tails.
    out = np.empty(120 * WORDS, dtype)
    fill_normals(*make_normals(generator(9)), out)
    expected = np.array(list(islice(normals_reference(generator(9)), out.size)), dtype)
    np.testing.assert_allclose(out, expected, rtol=4 * np.finfo(dtype).eps, atol=0)
    assert np.abs(out).max() > TAIL


def test_layers_have_the_same_area_and_end_at_the_top():
    areas = WIDTH[1:-1] * np.diff(HEIGHT)
    np.testing.assert_allclose(areas, WIDTH[0] * HEIGHT[0], rtol=1e-9)
    np.testing.assert_allclose(np.exp(-(WIDTH[1:] ** 2) / 2), HEIGHT, rtol=1e-12)
