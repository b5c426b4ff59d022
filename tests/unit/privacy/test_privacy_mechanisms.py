"""Entropy and mechanisms: what the contract tests do not say for all of them."""

from decimal import Decimal, localcontext
from fractions import Fraction
from math import exp, inf, sqrt

import numpy as np
import opendp.prelude as dp
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from on_grid import on_grid

from sfumato.errors import SettingError
from sfumato.fit.request import Privacy
from sfumato.kernels.discrete import MOST_SCALE
from sfumato.kernels.grid import grid
from sfumato.privacy import entropy as entropy_module
from sfumato.privacy import mechanisms, sampling
from sfumato.privacy.clipping import Clipped
from sfumato.privacy.entropy import Entropy, Words
from sfumato.privacy.events import LaplaceEvent, PureEvent, Repeated, SampledGaussianEvent, ZCDPEvent
from sfumato.privacy.mechanisms import (
    DiscreteGaussian,
    Gaussian,
    Geometric,
    Laplace,
    PoissonGaussian,
    PurePass,
    RandomisedResponse,
    VectorLaplace,
)
from sfumato.privacy.sampling import with_noise

# -- bounds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [0, -1, inf, np.nan])
def test_numbers_need_a_bound(bound):
    with pytest.raises(SettingError, match="bound"):
        Clipped(np.ones(2, np.int64), bound, bound)


@pytest.mark.parametrize("wrong", [np.nan, 0.0, -1.0])
def test_no_bound_is_nan_or_zero(wrong):
    for bounds in (
        {"l1": wrong, "l2": 1.0},
        {"l1": 1.0, "l2": wrong},
        {"l1": 1.0, "l2": 1.0, "rowwise": wrong},
    ):
        with pytest.raises(SettingError, match="above zero"):
            Clipped(np.zeros(2, np.int64), **bounds)


# -- entropy --------------------------------------------------------------------------------------


def test_generators_of_one_seed_differ_from_each_other():
    first, second = Entropy(3), Entropy(3)
    assert first.generator().random() == second.generator().random()
    assert first.generator().random() != Entropy(3).generator().random()
    assert first.public_seed() == (second.generator(), second.public_seed())[1]


def test_no_seed_is_the_operating_systems():
    entropy = Entropy()
    assert not entropy.seeded
    assert Entropy(0).seeded
    drawn = {entropy.generator().random() for _ in range(5)} | {Entropy().generator().random()}
    assert len(drawn) == 6
    assert entropy.public_seed() != entropy.public_seed()


def test_words_of_one_key_have_streams_of_their_own():
    words, again = Entropy(5).words(), Entropy(5).words()
    first = words.stream(0)(100)
    assert (again.stream(0)(100) == first).all()
    stream = words.stream(0)
    assert np.concatenate([stream(33), stream(67)]).tolist() == first.tolist()  # half a block is kept
    others = [words.stream(number)(100) for number in (1, 2, 2**60)] + [
        Entropy(6).words().stream(0)(100)
    ]
    assert len({word for each in (first, *others) for word in each.tolist()}) == 500


def test_words_are_those_of_the_cipher():
    """The block of NIST SP 800-38A, F.5.1 (AES-128), and counters that go up by one."""
    key = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    counter = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    assert cipher.update(counter).hex() == "ec8cdf7398607cb0f2d21675ea9ea1e4"
    blocks = b"".join(cipher.update(((3 << 64) + block).to_bytes(16)) for block in range(2))
    assert Words(key).stream(3)(4).tobytes() == blocks


def test_samplers():
    with pytest.raises(SettingError, match="cannot be seeded"):
        Entropy(3, "opendp")
    with pytest.raises(SettingError, match="cannot be seeded"):
        Privacy(epsilon=1.0, unit="value", seed=3, sampler="opendp")
    with pytest.raises(SettingError, match="sampler"):
        Privacy(epsilon=1.0, unit="value", sampler="dice")
    assert Privacy(epsilon=1.0, unit="value", sampler="opendp").entropy().sampler == "opendp"


def test_opendp_is_asked_for_where_it_is_missing(monkeypatch):
    monkeypatch.setattr(entropy_module, "find_spec", lambda name: None)
    with pytest.raises(SettingError, match=r"pip install 'sfumato\[opendp\]'"):
        Entropy(sampler="opendp")


# -- what OpenDP states is what is accounted ------------------------------------------------------


@pytest.fixture
def made(monkeypatch):
    """The measurements that OpenDP is asked for."""
    measurements = []
    for name in ("make_laplace", "make_gaussian", "make_geometric"):
        maker = getattr(dp.m, name)

        def remember(*arguments, maker=maker, **settings):
            measurements.append(maker(*arguments, **settings))
            return measurements[-1]

        monkeypatch.setattr(dp.m, name, remember)
    return measurements


OPENDP = Entropy(sampler="opendp")


@pytest.mark.parametrize("multiplier", [1e-3, 0.37, 1.0, 29.0, 1e6])
@pytest.mark.parametrize("bound", [1e-9, 0.1, 3.0, 1e9])
@pytest.mark.parametrize(("size", "threads"), [(1, 1), (1000, 1), (1000, 3)])
def test_opendp_states_what_is_accounted(made, multiplier, bound, size, threads, monkeypatch):
    monkeypatch.setattr(sampling, "available_threads", lambda: threads)
    clipped = on_grid(np.zeros(size), bound, bound, grid(bound))
    Laplace(multiplier).release(clipped, OPENDP)
    Gaussian(multiplier).release(clipped, OPENDP)
    laplace, gaussian = made[:threads], made[threads:]
    assert len(gaussian) == threads
    steps = bound / clipped.step
    # Threads draw pieces of the numbers: all of a change may lie in one of them, or a part in each.
    for one in ([1.0] + [0.0] * (threads - 1), [1 / threads] * threads):
        epsilon = sum(piece.map(int(steps * part)) for piece, part in zip(laplace, one, strict=True))
        rho = sum(piece.map(steps * sqrt(part)) for piece, part in zip(gaussian, one, strict=True))
        assert 0.999999 / multiplier < epsilon <= 1 / multiplier
        assert 0.999999 / (2 * multiplier**2) < rho <= 1 / (2 * multiplier**2)


@pytest.mark.parametrize("multiplier", [0.37, 1.0, 29.0])
def test_opendp_states_what_is_accounted_for_whole_numbers(made, multiplier):
    clipped = Clipped(np.zeros(10, np.int64), 3.0, 3.0)
    Geometric(multiplier).release(clipped, OPENDP)
    DiscreteGaussian(multiplier).release(clipped, OPENDP)
    geometric, gaussian = made
    assert 0.999999 / multiplier < geometric.map(3) <= 1 / multiplier
    assert 0.999999 / (2 * multiplier**2) < gaussian.map(3.0) <= 1 / (2 * multiplier**2)


# -- on a grid --------------------------------------------------------------------------------------


@pytest.fixture
def laws(monkeypatch):
    """The laws that are drawn from, and what their noise is added to."""
    seen = []

    def remember(values, law, entropy):
        seen.append((law, values))
        return with_noise(values, law, entropy)

    monkeypatch.setattr(mechanisms, "with_noise", remember)
    return seen


@pytest.mark.parametrize("multiplier", [1e-3, 1.0, 1e5])
@pytest.mark.parametrize("step", [2.0**-30, 1.0, 2.0**20])
@pytest.mark.parametrize("bound", [0.9, 1.0, 1000.0])
def test_noise_is_in_steps_of_the_numbers(laws, multiplier, step, bound):
    """In fractions: never less than multiplier times bound, with what the grid's law costs."""
    clipped = on_grid(np.zeros(3), bound * step, bound * step, step, single=True)
    for mechanism in (Laplace(multiplier), Laplace(multiplier, single=True), Gaussian(multiplier)):
        mechanism.release(clipped, Entropy(0))
    pure, single, gaussian = (Fraction(law.scale) for law, _ in laws)
    assert [law.kind for law, _ in laws] == ["geometric", "geometric", "gaussian"]
    scale, hair = Fraction(multiplier) * Fraction(bound), 1 + Fraction(1, 10**11)
    assert scale <= pure <= scale * hair
    assert scale + 2 * Fraction(multiplier) <= single <= (scale + 2 * Fraction(multiplier)) * hair
    assert scale**2 + 16 <= gaussian**2 <= (scale**2 + 16) * hair


@pytest.mark.parametrize("epsilon", [1e-10, 1e-12, 1e-100])
def test_noise_without_end_leaves_the_data_out(laws, epsilon):
    """Sums of 2^31 entries would not show in it: nothing of them is let through."""
    clipped = on_grid(np.full(2000, 1e5), 1.0, 1.0, grid(1.0))
    for mechanism in (Laplace(1 / epsilon), Gaussian(1 / epsilon)):
        noisy = mechanism.release(clipped, Entropy(0))
        law, values = laws[-1]
        assert not values.any()
        assert law.scale <= MOST_SCALE
        assert np.std(noisy.values) == pytest.approx(noisy.deviation, rel=0.2)
    Gaussian(1e6).release(clipped, Entropy(0))
    assert (laws[-1][1] == clipped.values).all()


# -- single mechanisms ----------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 5.0, 20.0, 36.0, 45.0, 100.0])
@pytest.mark.parametrize("categories", [2, 5, 100])
def test_randomised_response_never_tells_more_than_epsilon_allows(epsilon, categories):
    response = RandomisedResponse(epsilon, categories)
    lies = response.lies / response.draws
    # P(true) / P(one lie) <= e^epsilon, in the form that keeps its digits.
    assert (1 - lies) * (categories - 1) <= lies * exp(epsilon)
    assert response.truth <= 1 - lies
    if epsilon < 40:
        assert response.truth == pytest.approx(exp(epsilon) / (exp(epsilon) + categories - 1), rel=1e-9)


EPSILONS = [10.0**-n for n in (300, 100, 30, 20, 17, 16, 15, 14, 13, 12, 11, 10, 8, 6, 4, 2)]
EPSILONS += [0.5, 1.0, 3.0, 10.0, 30.0, 43.0, 45.0, 60.0, 300.0, 700.0, 5000.0]


@pytest.mark.parametrize("categories", [2, 3, 4, 5, 7, 10, 100, 1000, 65_536, 999_983, 10**6, 1 << 20])
def test_no_answer_is_too_likely_or_too_unlikely_in_fractions(categories):
    """Rounded up without a limit, lies used to become likelier than the truth where epsilon is tiny."""
    with localcontext(prec=400):  # 1 + 1e-300 has as many digits
        for epsilon in EPSILONS:
            response = RandomisedResponse(epsilon, categories)
            assert 0 < response.lies < response.draws <= 2**64
            assert response.draws % categories == 0
            truth = Fraction(response.draws - response.lies, response.draws)
            one_lie = Fraction(response.lies, response.draws * (categories - 1))
            factor = Fraction(Decimal(epsilon).exp() * (1 - Decimal(10) ** -390))
            assert one_lie <= truth <= one_lie * factor
            if epsilon <= 40:  # no more lies than needed, but for a hair
                needed = Fraction(categories - 1) / (factor + categories - 1)
                assert Fraction(response.lies, response.draws) <= needed * (
                    1 + Fraction(1, 10**11)
                ) + Fraction(1, 2**60)


def test_answers_without_a_budget_are_uniform():
    """At an epsilon that rounds to nothing: every answer has the same number of draws."""
    for categories in (2, 3, 7, 1000, 999_983):
        response = RandomisedResponse(1e-300, categories)
        assert response.draws - response.lies == response.draws // categories
        assert response.lies == response.draws // categories * (categories - 1)
    for whole in (7.0, np.int64(7), np.int32(7)):
        assert RandomisedResponse(1.0, whole).lies == RandomisedResponse(1.0, 7).lies
    drawn = RandomisedResponse(1e-300, 3).release(
        Clipped(np.zeros(30_000, np.int64), 1.0, 1.0, single=True), Entropy(0)
    )
    shares = np.bincount(drawn.values, minlength=3) / 30_000
    assert np.abs(shares - 1 / 3).max() < 0.015  # more than five deviations


@pytest.mark.parametrize("values", [[-1, 0], [0, 3]])
def test_randomised_response_takes_its_categories_only(values):
    with pytest.raises(SettingError, match="from 0 to 2"):
        RandomisedResponse(1.0, 3).release(Clipped(np.array(values), 1, 1, single=True), Entropy(0))


@pytest.mark.parametrize("mechanism", [Laplace(1.0, single=True), RandomisedResponse(1.0, 3)])
def test_what_is_for_one_coordinate_is_refused_for_more(mechanism):
    with pytest.raises(SettingError, match="one coordinate"):
        mechanism.release(Clipped(np.zeros(3, np.int64), 1.0, 1.0), Entropy(0))


def test_events():
    assert Laplace(2.0).event == PureEvent(0.5)
    assert Laplace(2.0, single=True).event == LaplaceEvent(2.0)
    assert VectorLaplace(2.0).event == PureEvent(0.5)
    assert DiscreteGaussian(2.0).event == ZCDPEvent(0.125)
    assert PurePass(0.5).event == PureEvent(0.5)
    assert PoissonGaussian(2.0, 0.1, 7, True).event == Repeated(SampledGaussianEvent(2.0, 0.1, True), 7)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Laplace(0.0),
        lambda: Gaussian(inf),
        lambda: VectorLaplace(-1.0),
        lambda: Geometric(np.nan),
        lambda: DiscreteGaussian(0.0),
        lambda: RandomisedResponse(0.0, 2),
        lambda: RandomisedResponse(1.0, 1),
        lambda: RandomisedResponse(1.0, 2.5),
        lambda: PoissonGaussian(1.0, 0.0, 1, False),
        lambda: PoissonGaussian(1.0, 1.1, 1, False),
        lambda: PoissonGaussian(1.0, 0.1, 0, False),
        lambda: PurePass(0.0),
    ],
)
def test_impossible_mechanisms(make):
    with pytest.raises(SettingError):
        make()


@pytest.mark.parametrize("scale", [0.05, 0.3, 1.0, 2.9, 3.1, 50.0])
def test_deviation_of_discrete_noise_by_brute_force(scale):
    n = np.arange(-3000, 3001)
    gaussian, geometric = np.exp(-((n / scale) ** 2) / 2), np.exp(-np.abs(n) / scale)
    for mechanism, weights in ((DiscreteGaussian, gaussian), (Geometric, geometric)):
        expected = sqrt(weights @ n**2 / weights.sum())
        assert mechanism(scale).deviation(1.0) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", [(1000,), (77, 13)])
@pytest.mark.parametrize("kind", [Gaussian, Laplace])
@pytest.mark.parametrize("sampler", ["sfumato", "opendp"])
def test_exact_noise_drawn_by_threads_is_on_every_number_and_its_own(
    sampler, kind, shape, threads, monkeypatch
):
    monkeypatch.setattr(sampling, "available_threads", lambda: threads)
    size, entropy = int(np.prod(shape)), Entropy(sampler=sampler)
    values = 1e6 * np.arange(float(size)).reshape(shape)  # far apart: a mixed-up order would show
    noise = kind(0.5).release(on_grid(values, 1.0, 1.0), entropy).values - values
    assert np.abs(noise).max() < 1e3
    assert (noise != 0).all()
    exact = kind(0.5).release(on_grid(0 * values, 1.0, 1.0, 2.0**-40), entropy).values
    assert exact.shape == shape
    assert np.unique(exact).size == size  # no stream is drawn from twice
