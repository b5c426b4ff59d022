"""What holds for every mechanism. A new one passes by being listed here."""

from dataclasses import fields, replace
from math import inf, isinf, isnan

import numpy as np
import pytest
from on_grid import STEP, on_grid

from sfumato.errors import SettingError
from sfumato.privacy import mechanisms
from sfumato.privacy.accounting import epsilon_of
from sfumato.privacy.clipping import Clipped
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.events import event_from_json, event_to_json
from sfumato.privacy.ledger import Charge, Ledger
from sfumato.privacy.mechanisms import (
    Alongside,
    DiscreteGaussian,
    Gaussian,
    GaussianPerBlock,
    GaussianShare,
    Geometric,
    Laplace,
    PoissonGaussian,
    PureAlongside,
    PurePass,
    RandomisedResponse,
    RowwiseVectorLaplace,
    SampledGaussian,
    VectorLaplace,
)
from sfumato.privacy.units import Value

RELEASING = [
    Laplace(2.0),
    Laplace(2.0, single=True),
    VectorLaplace(2.0),
    RowwiseVectorLaplace(2.0),
    Gaussian(2.0),
    GaussianPerBlock(2.0),
    SampledGaussian(2.0, 0.1),
    SampledGaussian(2.0, 1.0),
    Alongside(2.0, charged=3.0),
    PureAlongside(2.0, charged=0.4),
    GaussianShare(20.0, 2),  # of whole steps, until they are added up
    Geometric(2.0),
    DiscreteGaussian(2.0),
    RandomisedResponse(1.0, 7),
]
IN_KERNELS = [PoissonGaussian(2.0, 0.1, 20, False), PoissonGaussian(2.0, 0.1, 20, True), PurePass(0.5)]


def noisy_of(mechanism):
    """What a mechanism makes of clipped numbers: its release, or a share of one."""
    return mechanism.share if isinstance(mechanism, GaussianShare) else mechanism.release


WHOLE = (GaussianShare, Geometric, DiscreteGaussian, RandomisedResponse)

releasing = pytest.mark.parametrize("mechanism", RELEASING, ids=repr)
every = pytest.mark.parametrize("mechanism", [*RELEASING, *IN_KERNELS], ids=repr)
from_a_seed_or_not = pytest.mark.parametrize("seed", [0, None], ids=["seeded", "unseeded"])


def clipped_for(mechanism, shape, bound=1.5):
    values = np.asarray(np.arange(int(np.prod(shape))).reshape(shape) % 5)
    step = 1.0 if isinstance(mechanism, WHOLE) else STEP
    return on_grid(values if step == 1 else values / 3, bound, bound, step, single=True, rowwise=bound)


def with_noise(mechanism, factor):
    """The same mechanism with so many times the noise."""
    names = {field.name for field in fields(mechanism)}
    if isinstance(mechanism, Alongside | PureAlongside):  # what is charged is a part of what it costs
        less = factor if isinstance(mechanism, Alongside) else 1 / factor
        mechanism = replace(mechanism, charged=mechanism.charged * less)
    if "noise_multiplier" in names:
        return replace(mechanism, noise_multiplier=mechanism.noise_multiplier * factor)
    return replace(mechanism, epsilon=mechanism.epsilon / factor)


def test_every_mechanism_is_listed():
    defined = {kind for kind in vars(mechanisms).values() if isinstance(kind, type)}
    made_here = {kind for kind in defined if kind.__module__ == mechanisms.__name__}
    listed = {type(mechanism) for mechanism in [*RELEASING, *IN_KERNELS]}
    assert made_here - listed == {
        mechanisms.Noisy,
        mechanisms.NoisyShare,
        mechanisms.Mechanism,
        mechanisms.Scaled,
    }


@every
def test_more_noise_costs_less(mechanism):
    costs = [epsilon_of(with_noise(mechanism, factor).event, 1e-6) for factor in (0.5, 1, 1.01, 2, 8)]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > costs[-1] > 0


@every
def test_events_survive_the_ledger(mechanism):
    assert event_from_json(event_to_json(mechanism.event)) == mechanism.event
    assert hash(mechanism) == hash(replace(mechanism))


@releasing
@from_a_seed_or_not
@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 2), (2, 3, 2), (0,), (0, 3)])
def test_shapes_are_kept(mechanism, seed, shape):
    clipped = clipped_for(mechanism, shape)
    before = clipped.values.copy()
    noisy = noisy_of(mechanism)(clipped, Entropy(seed))
    assert noisy.values.shape == shape
    assert np.isfinite(noisy.values).all()
    assert noisy.values.dtype == (np.int64 if isinstance(mechanism, WHOLE) else np.float64)
    np.testing.assert_array_equal(clipped.values, before)  # the data are left as they were


@releasing
def test_a_seed_repeats_and_entropy_does_not(mechanism):
    clipped = clipped_for(mechanism, (200,))

    def values(entropy):
        return noisy_of(mechanism)(clipped, entropy).values.tolist()

    assert values(Entropy(5)) == values(Entropy(5))
    assert values(Entropy(5)) != values(Entropy(6))
    assert values(Entropy()) != values(Entropy())
    same = Entropy(5)
    assert values(same) != values(same)  # each release has noise of its own


@releasing
@from_a_seed_or_not
def test_deviation_is_that_of_the_noise(mechanism, seed):
    # 40,000 numbers (4,000 without a seed); the variance of each law is then known to 2% (8%), and
    # 6 such deviations are allowed: false alarms below 1e-8. VectorLaplace: 400 (40) of 100 numbers.
    if isinstance(mechanism, RandomisedResponse):
        assert isinf(noisy_of(mechanism)(clipped_for(mechanism, (3,)), Entropy(seed)).deviation)
        return
    size = 40_000 if seed is not None else 4_000
    if isinstance(mechanism, VectorLaplace):
        parts = [clipped_for(mechanism, (100,))] * (size // 100)
    else:
        parts = [clipped_for(mechanism, (size,))]
    entropy = Entropy(seed)
    noisy = [noisy_of(mechanism)(part, entropy) for part in parts]
    noise = np.concatenate([n.values - part.numbers for n, part in zip(noisy, parts, strict=True)])
    assert np.mean(noise**2) == pytest.approx(noisy[0].deviation ** 2, rel=0.12 if seed == 0 else 0.5)
    if hasattr(mechanism, "deviation"):
        assert noisy[0].deviation == mechanism.deviation(1.5)


@releasing
def test_noise_follows_the_bound(mechanism):
    if isinstance(mechanism, RandomisedResponse):
        pytest.skip("its answers have no scale")
    small = noisy_of(mechanism)(clipped_for(mechanism, (5,), 4.0), Entropy(0)).deviation
    large = noisy_of(mechanism)(clipped_for(mechanism, (5,), 40.0), Entropy(0)).deviation
    assert large == pytest.approx(10 * small, rel=1e-2)


@releasing
@from_a_seed_or_not
def test_only_clipped_is_taken(mechanism, seed):
    clipped = clipped_for(mechanism, (3,))
    with pytest.raises((AttributeError, TypeError)):
        noisy_of(mechanism)(clipped.values, Entropy(seed))
    with (
        Ledger(Value()).reserve([Charge("query", mechanism)], Entropy(seed)) as reservation,
        pytest.raises(TypeError, match="clipped"),
    ):
        reservation.ask(lambda draw: draw.release(clipped.values))


@releasing
@from_a_seed_or_not
def test_missing_bounds_are_refused(mechanism, seed):
    clipped = clipped_for(mechanism, (3,))
    for bounds in ((inf, inf), (0.0, 0.0), (float("nan"), 1.0), (-1.0, 1.0)):
        with pytest.raises(SettingError, match="bound"):
            Clipped(clipped.values, *bounds, single=True)
    refused = 0
    for missing in ("l1", "l2", "rowwise"):
        try:
            noisy = noisy_of(mechanism)(replace(clipped, **{missing: inf}), Entropy(seed))
        except SettingError as error:
            refused += "bound" in str(error)
        else:
            assert not isnan(noisy.deviation)
    assert refused == (0 if isinstance(mechanism, RandomisedResponse) else 1)


@releasing
def test_whole_numbers_are_asked_for(mechanism):
    if not isinstance(mechanism, (Geometric, DiscreteGaussian)):
        pytest.skip("takes any numbers, or has its own categories")
    with pytest.raises(SettingError, match="whole numbers"):
        noisy_of(mechanism)(on_grid(np.zeros(3), 1.0, 1.0, single=True), Entropy(0))
    with pytest.raises(SettingError, match="range of whole numbers"):
        noisy_of(mechanism)(Clipped(np.zeros(3, np.int64), 2.0**60, 2.0**60), Entropy(0))
