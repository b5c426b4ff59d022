"""Masks: they hide what each site has, and cancel in the sum over any set of sites that opens it."""

import numpy as np
import pytest
from scipy import stats

from sfumato.errors import SettingError
from sfumato.owners.masks import Masks, Revealed, agreed_key, new_secret, opened_sum, public_key

NAMES = ("a", "b", "c", "d")
STUDY = "ab" * 32
SECRETS = {name: bytes([number + 1]) * 64 for number, name in enumerate(NAMES)}
KEYS = {name: public_key(secret) for name, secret in SECRETS.items()}
MASKS = {name: Masks(name, secret, KEYS, STUDY) for name, secret in SECRETS.items()}


def numbers(seed, shape=(7,)):
    return np.random.default_rng(seed).integers(-(2**62), 2**62, shape)


@pytest.mark.parametrize("present", [NAMES, ("a", "b", "d"), ("b", "c"), ("d",)], ids="".join)
@pytest.mark.parametrize("shape", [(7,), (3, 5), (), (0,)])
def test_sums_open_over_whoever_is_there(present, shape):
    values = {name: numbers(number, shape) for number, name in enumerate(NAMES)}
    masked = {name: MASKS[name].mask(values[name], 3) for name in present}
    revealed = {name: MASKS[name].reveal(3, present) for name in present}
    total = opened_sum(masked, revealed)
    expected = sum(int(values[name].ravel()[0]) for name in present) if total.size else 0
    assert total.dtype == np.int64
    assert total.shape == shape
    wrapped = np.add.reduce([values[name].view(np.uint64) for name in present]).view(np.int64)
    assert np.array_equal(total, wrapped)
    if total.size:
        assert (int(total.ravel()[0]) - expected) % 2**64 == 0


def test_what_is_sent_is_uniform_and_says_nothing():
    """Bits of masked zeros are fair, at false-alarm rate 1e-9; two rounds have nothing in common."""
    zeros = np.zeros(40_000, np.int64)
    first, second = (MASKS["a"].mask(zeros, number) for number in (0, 1))
    for sent in (first, second, first - second, first ^ MASKS["b"].mask(zeros, 0)):
        ones = int(np.unpackbits(sent.view(np.uint8)).sum())
        assert stats.binomtest(ones, 64 * sent.size).pvalue > 1e-9
        assert stats.kstest(sent.view(np.uint64) / 2.0**64, "uniform").pvalue > 1e-9
    assert np.array_equal(first, MASKS["a"].mask(zeros, 0))  # the same again


def test_a_late_answer_stays_hidden():
    """The leader knows all keys that a missing site shares, and still not what it has."""
    values = np.arange(1000)
    late = MASKS["c"].mask(values, 5)
    present = ("a", "b", "d")
    keys = {name: MASKS[name].reveal(5, present).shared["c"] for name in present}
    others = {name: MASKS["c"]._shared(name, 5).hex() for name in present}
    assert keys == others  # what the leader has of pairs with the missing one
    pairs = Revealed(MASKS["a"]._own(5).hex(), others)  # with a key of its own that is not c's
    guess = opened_sum({"c": late}, {"c": pairs})
    assert not np.isin(guess, values).any()
    assert np.array_equal(opened_sum({"c": late}, {"c": MASKS["c"].reveal(5, ("c",))}), values)


def test_a_sum_over_fewer_than_have_revealed_does_not_open():
    values = {name: numbers(number) for number, name in enumerate(NAMES)}
    masked = {name: MASKS[name].mask(values[name], 2) for name in NAMES}
    revealed = {name: MASKS[name].reveal(2, NAMES) for name in NAMES}
    few = ("a", "b")
    total = opened_sum({n: masked[n] for n in few}, {n: revealed[n] for n in few})
    assert not np.array_equal(total, values["a"] + values["b"])
    with pytest.raises(SettingError, match="all sites in it"):
        opened_sum(masked, {n: revealed[n] for n in few})


def test_studies_and_rounds_have_masks_of_their_own():
    zeros = np.zeros(4, np.int64)
    other = Masks("a", SECRETS["a"], KEYS, "cd" * 32)
    seen = [MASKS["a"].mask(zeros, 0), MASKS["a"].mask(zeros, 1), other.mask(zeros, 0)]
    assert len({each.tobytes() for each in seen}) == 3


@pytest.mark.parametrize(
    ("revealed", "said"),
    [
        (Revealed("zz", {}), "no key"),
        (Revealed("ab", {}), "no key"),
        (Revealed("ab" * 32, {"b": "1"}), "no key"),
        (Revealed("ab" * 32, {"a": "ab" * 32}), "who is there"),
    ],
)
def test_what_is_no_key_is_an_error(revealed, said):
    with pytest.raises(SettingError, match=said):
        opened_sum({"a": np.zeros(2, np.int64)}, {"a": revealed})


def test_keys_that_everybody_could_guess_are_refused():
    for bad in (bytes(32), b"short", bytes([1]) + bytes(31)):
        with pytest.raises(SettingError, match="public key"):
            agreed_key(new_secret()[:32], bad)
    with pytest.raises(SettingError, match="not in the sum"):
        MASKS["a"].reveal(0, ("b", "c"))
