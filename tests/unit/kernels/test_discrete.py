"""Discrete laws: every comparison is decided as in whole numbers of any length, whatever words come."""

from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import chain, cycle, repeat

import numpy as np
import pytest

from sfumato.kernels import discrete
from sfumato.kernels.discrete import (
    MOST_NUMBER,
    MOST_SCALE,
    DiscreteLaw,
    attempt,
    decide_keep,
    decide_strip,
    exp_between,
    table,
    thresholds,
)
from sfumato.kernels.numba import discrete_noise
from sfumato.kernels.numba.discrete_noise import PIECE, draw, fill
from sfumato.privacy.entropy import Words

MADE, SHORT, UNDECIDED = 0, 1, 2
ONES = 2**64 - 1
SCALES = [1e-9, 0.05, 0.3, 1.0, 2.7, 7.99, 8.0, 15.9, 16.0, 100.3, 2.0**25 * 1.3, 2.0**44, 2.0**58 * 1.7]
laws = pytest.mark.parametrize(
    "law",
    [DiscreteLaw(kind, scale) for kind in ("gaussian", "geometric") for scale in SCALES],
    ids=lambda law: f"{law.kind}-{law.scale:.3g}",
)


def nothing_more():
    raise AssertionError("no more words are needed")


def exact(number):
    """A fraction in as many digits as the context has."""
    return Decimal(number.numerator) / Decimal(number.denominator)


def real_exp(a):
    return (-exact(a)).exp()


def real_thresholds(law, strips):
    """Probability of each strip and those before it, in 120 digits."""
    width, weights = 1 << law.place_bits, []
    while not weights or weights[-1] > Decimal(10) ** -110:
        weights.append(real_exp(law.exponent(len(weights) * width)))
    whole, sums, total = sum(weights), [], Decimal(0)
    for weight in weights[:strips]:
        total += weight
        sums.append(total / whole)
    return sums


def drawn(law, words):
    """What the kernel makes of the words of one attempt."""
    out = np.full(1, -12345)
    made, used, state = fill(out, 0, np.array(words, np.uint64), 0, table(law))
    return state, (int(out[0]) if made else None), used


def last_decided(law):
    """The last strip but one that has a word of its own; those behind share theirs with others."""
    return int(np.flatnonzero(np.diff(table(law).cuts.astype(object)) > 1)[-2]) + 1


# -- real numbers in whole numbers -----------------------------------------------------------------

EXPONENTS = [0, 1, 63, 64, 65, 200, 1e-30, 0.5, 0.4999, 0.125, 3.7, 44.36, 1e9]
EXPONENTS = [Fraction(e) for e in EXPONENTS] + [Fraction(1, 3), Fraction(10**40 + 1, 3 * 10**40)]


@pytest.mark.parametrize("bits", [8, 64, 152, 300])
@pytest.mark.parametrize("a", EXPONENTS, ids=float)
def test_exponentials_lie_between_their_bounds(a, bits):
    with localcontext(prec=150):
        low, high = exp_between(a, bits)
        assert low <= real_exp(a) * 2**bits <= high
        assert 0 <= low <= high <= min(low + 2, 2**bits)


@laws
@pytest.mark.parametrize("bits", [64, 128, 192])
def test_thresholds_lie_between_their_bounds(law, bits):
    found = thresholds(law, bits)
    with localcontext(prec=130):
        for real, (low, high) in zip(real_thresholds(law, len(found)), found, strict=False):
            assert low <= real * 2**bits <= high <= low + 2
    assert found[-1].high == 2**bits  # what is left is less than a unit
    assert found[-1].low >= 2**bits - 2


@laws
def test_cuts_are_the_thresholds_first_64_bits(law):
    made = table(law)
    with localcontext(prec=130):
        reals = real_thresholds(law, len(made.cuts))
        floors = [int((real * 2**64).to_integral_value("ROUND_FLOOR")) for real in reals]
    whole = [min(floor, ONES) for floor in floors]  # one itself is reached by rounding only
    assert [int(cut) for cut in made.cuts] == whole
    assert made.cuts[-1] == ONES
    assert (np.diff(made.cuts.astype(object)) >= 0).all()


@laws
def test_strips_and_places_make_the_law(law):
    """In fractions: a strip's weight times the chance to keep a place is the weight of the number."""
    width, made = 1 << law.place_bits, table(law)
    assert (made.slopes.max() + made.curve * (width - 1)) * (width - 1) <= 1.25
    assert 8 * width <= max(law.scale, 8) * (1 if law.scale >= 8 else 8)
    assert law.scale < 16 * width
    for number in (0, 1, width - 1, width, 5 * width + width // 3, 30 * width + 1):
        strip, place = divmod(number, width)
        keep = law.exponent(number) - law.exponent(strip * width)
        assert keep >= 0
        if strip < len(made.slopes):
            read = (Fraction(float(made.slopes[strip])) + Fraction(made.curve) * place) * place
            assert abs(read - keep) <= keep * Fraction(3, 2**53)  # rounded as numbers of the table only


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf, np.nextafter(MOST_SCALE, np.inf)])
def test_scales_that_no_law_has(scale):
    with pytest.raises(ValueError, match="scale"):
        DiscreteLaw("gaussian", scale)


# -- strips ------------------------------------------------------------------------------------------


@laws
def test_words_beside_a_cut_are_decided_and_the_cut_is_not(law):
    cuts = [int(cut) for cut in table(law).cuts]
    for strip in {0, 1, 2, len(cuts) // 2, len(cuts) - 1}:
        if strip >= len(cuts):
            continue
        before = cuts[strip - 1] if strip else -1
        for word in (before + 1, cuts[strip] - 1):
            if before < word < cuts[strip]:
                assert decide_strip(law, word, nothing_more) == strip
                state, number, used = drawn(law, (word, 0, 0))
                assert (state, used) == (MADE, 3)
                assert number == min(strip << law.place_bits, MOST_NUMBER)
        assert drawn(law, (cuts[strip], 0, 0)) == (UNDECIDED, None, 0)


@laws
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_a_tie_with_a_cut_is_decided_by_more_bits(law, rounds):
    """Words that go on like the threshold itself, then lie one below, or one above."""
    cuts, bits = [int(cut) for cut in table(law).cuts], 64 * (rounds + 1)
    for strip in {0, len(cuts) // 2, len(cuts) - 2}:
        if not 0 <= strip < len(cuts) - 1:
            continue
        threshold = thresholds(law, bits + 64)[strip].low >> 64
        tail = [threshold >> 64 * k & ONES for k in reversed(range(rounds))]
        assert threshold >> 64 * rounds == cuts[strip]
        for moved, found in ((-1, strip), (1, strip + 1)):
            if 0 < tail[-1] < ONES:
                more = iter([*tail[:-1], tail[-1] + moved])
                assert decide_strip(law, cuts[strip], more.__next__) == found
                assert next(more, None) is None  # every word was needed


@laws
def test_no_tail_is_cut_off(law):
    """The word behind the table is decided too, however far out it leads."""
    farthest = len(table(law).cuts) - 1
    for ones in (0, 1, 3):
        more = chain(repeat(ONES, ones), cycle([12345]))
        strip = decide_strip(law, ONES, more.__next__)
        assert strip >= farthest
        bits = 64 * (ones + 2)
        uniform = (1 << bits) - (1 << 64) + 12345
        cuts = thresholds(law, bits)
        assert uniform < cuts[strip].low
        assert strip == 0 or uniform >= cuts[strip - 1].high
        farthest = strip
    if law.scale >= 1:
        assert farthest > len(table(law).cuts)


# -- places and signs --------------------------------------------------------------------------------


@laws
def test_zero_has_one_sign_and_numbers_have_two(law):
    negative = 1 << 63
    assert drawn(law, (0, 0, 0)) == (MADE, 0, 3)
    assert drawn(law, (0, negative, 0)) == (SHORT, None, 3)
    assert attempt(law, (0, negative, 0), nothing_more) is None
    width = 1 << law.place_bits
    if width > 1:
        for place in (1, width - 1):
            assert drawn(law, (0, place, 0)) == (MADE, place, 3)
            assert drawn(law, (0, place | negative, 0)) == (MADE, -place, 3)
            assert drawn(law, (0, place | (1 << 62), 0)) == (MADE, place, 3)  # other bits are idle


@pytest.mark.parametrize("kind", ["gaussian", "geometric"])
def test_numbers_beyond_62_bits_are_drawn_as_the_largest(kind):
    law = DiscreteLaw(kind, MOST_SCALE)
    cuts = table(law).cuts
    beyond = MOST_NUMBER >> law.place_bits
    for strip in (beyond - 1, beyond, last_decided(law)):
        for sign in (0, 1):
            word = int(cuts[strip]) - 1
            state, number, _ = drawn(law, (word, sign << 63 | 77, 0))
            assert state == MADE
            assert abs(number) == min(strip << law.place_bits | 77, MOST_NUMBER)
            assert (number < 0) == bool(sign)
            assert attempt(law, (word, sign << 63 | 77, 0), nothing_more) == number


# -- whether to keep it ------------------------------------------------------------------------------


def places(law):
    """Strips and places with chances to be kept from nearly one down to the least."""
    width, cuts = 1 << law.place_bits, table(law).cuts
    for strip in (0, 1, len(cuts) // 3, last_decided(law)):
        for place in (1, width // 5, width - 1):
            yield strip, place, int(cuts[strip]) - 1


wide = pytest.mark.parametrize(
    "law",
    [DiscreteLaw(k, s) for k in ("gaussian", "geometric") for s in SCALES if s >= 100],
    ids=lambda law: f"{law.kind}-{law.scale:.3g}",
)


@wide
def test_chances_are_decided_where_doubles_can_and_only_there(law):
    width = 1 << law.place_bits
    for strip, place, word in places(law):
        exponent = law.exponent(strip * width + place) - law.exponent(strip * width)
        number = min(strip * width + place, MOST_NUMBER)
        edge = exp_between(exponent, 64).low
        for away in (2**30, 2**25, 2**21):  # in units of 2^-64; the hair is 2^20 of them
            for chance, kept in ((edge - away, True), (edge + away, False)):
                if not 0 <= chance <= ONES:
                    continue
                assert decide_keep(exponent, chance, nothing_more) is kept
                state, found, used = drawn(law, (word, place, chance))
                assert (found, used) == ((number, 3) if kept else (None, 3))
                assert state == (MADE if kept else SHORT)
        for away in (-(2**16), -1, 0, 1, 2**16):
            if 0 <= edge + away <= ONES:
                assert drawn(law, (word, place, edge + away)) == (UNDECIDED, None, 0)


@wide
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_a_tie_with_a_chance_is_decided_by_more_bits(law, rounds):
    width, bits = 1 << law.place_bits, 64 * (rounds + 1)
    for strip, place, _ in places(law):
        exponent = law.exponent(strip * width + place) - law.exponent(strip * width)
        edge = exp_between(exponent, bits + 64).low >> 64
        tail = [edge >> 64 * k & ONES for k in reversed(range(rounds))]
        for moved, kept in ((-1, True), (1, False)):
            if 0 < tail[-1] < ONES:
                more = iter([*tail[:-1], tail[-1] + moved])
                assert decide_keep(exponent, edge >> 64 * rounds, more.__next__) is kept
                assert next(more, None) is None


# -- the kernel and its twin -------------------------------------------------------------------------


@laws
def test_the_kernel_makes_of_any_words_what_the_twin_makes(law):
    rng = np.random.default_rng(5)
    words = rng.integers(0, 2**64, (300, 3), np.uint64)
    words[::7, 1] &= np.uint64(1 << 63)  # places of zero
    words[::5, 0] |= np.uint64(0xFFFFFF << 40)  # far strips
    words[::3, 2] |= np.uint64(0xF << 60)  # seldom kept
    expected = [attempt(law, tuple(map(int, each)), nothing_more) for each in words]
    expected = [number for number in expected if number is not None]
    out = np.zeros(300, np.int64)
    made, used, state = fill(out, 0, words.ravel(), 0, table(law))
    assert (made, used, state) == (len(expected), 900, SHORT)
    assert out[:made].tolist() == expected


class Scripted:
    """Streams of words that are given; behind them those of a cipher."""

    def __init__(self, scripts):
        self.scripts, self.behind, self.asked = scripts, Words(bytes(16)), []

    def stream(self, number):
        self.asked.append(number)
        given, behind = list(self.scripts.get(number, [])), self.behind.stream(number)

        def take(count):
            words = [given.pop(0) for _ in range(min(count, len(given)))]
            return np.concatenate([np.array(words, np.uint64), behind(count - len(words))])

        return take


def test_undecided_attempts_are_decided_in_their_place():
    law = DiscreteLaw("gaussian", 1000.0)
    width, (strip, place) = 1 << law.place_bits, (3, 40)
    exponent = law.exponent(strip * width + place) - law.exponent(strip * width)
    edge = exp_between(exponent, 128).low
    here = int(table(law).cuts[strip]) - 1
    tie = [here, place, edge >> 64]
    plain, far = [here, 7, 0], [ONES, 7, 0]
    kept, rejected = (edge & ONES) - 1, (edge & ONES) + 1
    script = Scripted({0: plain + tie + tie + far + tie + plain, 1: [kept, rejected, 99, kept]})
    found = draw(law, 5, script, 1)
    number = strip * width + place
    tail = decide_strip(law, ONES, iter([99]).__next__) * width + 7
    assert found.tolist() == [strip * width + 7, number, tail, number, strip * width + 7]
    assert sorted(script.asked) == [0, 1]


@pytest.mark.parametrize("threads", [1, 2])
def test_pieces_have_streams_of_their_own(threads):
    """For attempts, and for what decides those that are undecided."""
    law = DiscreteLaw("geometric", 1000.0)
    width = 1 << law.place_bits
    exponent = law.exponent(3 * width + 40) - law.exponent(3 * width)
    edge = exp_between(exponent, 128).low
    tie = [int(table(law).cuts[3]) - 1, 40, edge >> 64]
    plain = [int(table(law).cuts[5]) - 1, 7, 0]
    kept, rejected = (edge & ONES) - 1, (edge & ONES) + 1
    script = Scripted(
        {0: tie + plain, 1: [rejected], 2: tie + plain, 3: [kept], 4: tie + plain, 5: [kept]}
    )
    found = draw(law, 2 * PIECE + 10, script, threads)
    assert sorted(script.asked) == [0, 1, 2, 3, 4, 5]
    assert found[0] == 5 * width + 7
    for piece in (PIECE, 2 * PIECE):
        assert found[piece : piece + 2].tolist() == [3 * width + 40, 5 * width + 7]


def test_a_cut_at_the_beginning_of_a_part_of_the_guide_is_found():
    law = table(DiscreteLaw("gaussian", 3.0))
    cuts = law.cuts.copy()
    cuts[1] = 3 << 56 if cuts[0] < 3 << 56 < cuts[2] else int(cuts[1]) >> 56 << 56
    guide = np.searchsorted(cuts, np.arange(256, dtype=np.uint64) << np.uint64(56))
    out = np.zeros(1, np.int64)
    words = np.array([cuts[1], 0, 0], np.uint64)
    assert fill(out, 0, words, 0, law._replace(cuts=cuts, guide=guide))[2] == UNDECIDED
    made = table(DiscreteLaw("gaussian", 3.0))
    for part, start in enumerate(made.guide):
        assert start == 0 or made.cuts[start - 1] < part << 56
        assert made.cuts[start] >= part << 56


@pytest.mark.parametrize(
    ("kind", "scale"), [("gaussian", 1e-155), ("gaussian", 5e-324), ("geometric", 5e-324)]
)
def test_the_narrowest_laws_give_zero(kind, scale):
    assert not draw(DiscreteLaw(kind, scale), 1000, Words(bytes(16)), 1).any()


def test_what_is_drawn_does_not_depend_on_threads_or_on_how_many_are_drawn():
    for law in (DiscreteLaw("gaussian", 1e6), DiscreteLaw("geometric", 0.7)):
        numbers = draw(law, 3 * PIECE + 5, Words(b"k" * 16), 1)
        for threads in (2, 3):
            assert (draw(law, 3 * PIECE + 5, Words(b"k" * 16), threads) == numbers).all()
        assert (draw(law, 2 * PIECE, Words(b"k" * 16), 2) == numbers[: 2 * PIECE]).all()
        assert draw(law, 0, Words(b"k" * 16), 2).shape == (0,)
        # Pieces have streams of their own: nothing comes twice.
        assert (numbers[:PIECE] != numbers[PIECE : 2 * PIECE]).mean() > 0.3
        assert not (draw(law, PIECE, Words(b"l" * 16), 1) == numbers[:PIECE]).all()


def test_tables_are_made_once():
    law = DiscreteLaw("geometric", 12345.678)
    assert table(law) is table(DiscreteLaw("geometric", 12345.678))
    assert table(law) is not table(DiscreteLaw("gaussian", 12345.678))


def test_a_table_that_first_digits_do_not_settle_is_made_of_more(monkeypatch):
    """Bounds so wide that 128 bits do not tell the cuts: more bits are taken."""
    law, asked = DiscreteLaw("gaussian", 55.5), []
    plain = thresholds

    def wide_at_first(law, bits):
        asked.append(bits)
        room = 2**70 if bits < 200 else 0
        return tuple(discrete.Between(max(low - room, 0), high + room) for low, high in plain(law, bits))

    expected = table(law)
    monkeypatch.setattr(discrete, "thresholds", wide_at_first)
    assert (table.__wrapped__(law).cuts == expected.cuts).all()
    assert asked == [128, 256]


def test_an_ordered_kernel_decides():
    """With sums in another order its error bound would not hold."""
    assert discrete_noise.fill.targetoptions["fastmath"] is False
