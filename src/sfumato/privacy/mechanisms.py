"""Mechanisms: noise of a known law, sized by the bound that comes with what it is added to.

Each is a frozen record with an ``event`` for the accountant and ``release``, which takes a
:class:`~sfumato.privacy.clipping.Clipped` and nothing else. ``noise_multiplier`` is the scale of the
noise over the sensitivity. Proofs: ``proofs/mechanisms.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import ceil, exp, expm1, frexp, inf, isfinite, sqrt
from typing import Any, Protocol

import numpy as np

from sfumato.errors import SettingError
from sfumato.kernels.numba.threads import available_threads, run
from sfumato.privacy.clipping import Clipped
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.events import (
    Event,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    Repeated,
    SampledGaussianEvent,
    ZCDPEvent,
)
from sfumato.records import record
from sfumato.types import Array

_GRID_BITS = 60  # exact samplers work on a grid this many powers of two below the noise
_HAIR = 1e-12  # by which a bound is enlarged, for the roundings of this module's own arithmetic
_MOST_CATEGORIES = 1 << 20
_WORTH_THREADS = 1000  # numbers: an exact sampler takes about 10 microseconds for each


@record
@dataclass(frozen=True, eq=False)
class Noisy:
    """What was released, and the standard deviation of the noise in each number.

    It is infinite where what is released is not the number plus noise. ``public`` is what neighbours
    cannot change, released as it is.
    """

    values: Array
    deviation: float
    public: tuple[Array, ...] = ()


class Mechanism(Protocol):
    """What every mechanism is."""

    @property
    def event(self) -> Event: ...


@dataclass(frozen=True)
class Scaled:
    """A mechanism whose noise is a multiple of the sensitivity."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        if not (isfinite(self.noise_multiplier) and self.noise_multiplier > 0):
            raise SettingError(
                f"a noise multiplier must be a number above zero, got {self.noise_multiplier}"
            )


@record
@dataclass(frozen=True)
class Laplace(Scaled):
    """Independent Laplace noise of scale ``noise_multiplier`` times the L1 sensitivity."""

    single: bool = False  # one coordinate changes and no other: tighter in composition

    @property
    def event(self) -> Event:
        if self.single:
            return LaplaceEvent(self.noise_multiplier)
        return PureEvent(1 / self.noise_multiplier)

    def deviation(self, bound: float) -> float:
        return sqrt(2) * self.noise_multiplier * bound

    def release(self, clipped: Clipped, entropy: Entropy) -> Noisy:
        if self.single and not clipped.single:
            raise SettingError("this mechanism is for data of which one coordinate changes")
        scale = self.noise_multiplier * _finite(clipped.l1, "L1")
        if entropy.exact:
            grid = _grid(scale)
            # Rounding to the grid moves each number, the grid's own law costs two steps more.
            scale = self.noise_multiplier * _enlarged(clipped.l1, (clipped.values.size + 2) * 2.0**grid)
            values = _opendp_floats("make_laplace", "l1_distance", clipped.values, scale, grid)
        else:
            values = clipped.values + entropy.generator().laplace(0.0, scale, clipped.values.shape)
        return Noisy(values, self.deviation(clipped.l1))


@record
@dataclass(frozen=True)
class VectorLaplace(Scaled):
    """Noise with density proportional to exp(-|n| / s): uniform direction, Gamma length.

    One vector for all numbers; ``s`` is ``noise_multiplier`` times the L2 sensitivity. OpenDP has no
    sampler for it: always idealised arithmetic.
    """

    @property
    def event(self) -> Event:
        return PureEvent(1 / self.noise_multiplier)

    def release(self, clipped: Clipped, entropy: Entropy) -> Noisy:
        scale = self.noise_multiplier * _finite(clipped.l2, "L2")
        generator, size = entropy.generator(), clipped.values.size
        noise = generator.standard_normal(clipped.values.shape)
        if size > 0:
            noise *= generator.gamma(size, scale) / np.linalg.norm(noise)
        return Noisy(clipped.values + noise, scale * sqrt(size + 1))


@record
@dataclass(frozen=True)
class RowwiseVectorLaplace(Scaled):
    """Independent noise on each row, with density proportional to exp(-|n| / s).

    ``s`` is ``noise_multiplier`` times the bound on the sum of the rows' changes. Always idealised
    arithmetic, like :class:`VectorLaplace`.
    """

    @property
    def event(self) -> Event:
        return PureEvent(1 / self.noise_multiplier)

    def release(self, clipped: Clipped, entropy: Entropy) -> Noisy:
        scale = self.noise_multiplier * _finite(clipped.rowwise, "rowwise")
        generator, shape = entropy.generator(), clipped.values.shape
        size = shape[-1] if shape else 1
        direction = generator.standard_normal((clipped.values.size // max(size, 1), size))
        length = generator.gamma(size, scale, direction.shape[0])
        noise = direction * (length / np.linalg.norm(direction, axis=1))[:, None]
        return Noisy(clipped.values + noise.reshape(shape), scale * sqrt(size + 1))


@record
@dataclass(frozen=True)
class Gaussian(Scaled):
    """Independent Gaussian noise, standard deviation ``noise_multiplier`` times L2 sensitivity."""

    @property
    def event(self) -> Event:
        return GaussianEvent(self.noise_multiplier)

    def deviation(self, bound: float) -> float:
        return self.noise_multiplier * bound

    def release(self, clipped: Clipped, entropy: Entropy) -> Noisy:
        scale = self.noise_multiplier * _finite(clipped.l2, "L2")
        if entropy.exact:
            grid = _grid(scale)
            # The hair also pays for the difference between the law on the grid and the Gaussian.
            scale = self.noise_multiplier * _enlarged(clipped.l2, sqrt(clipped.values.size) * 2.0**grid)
            values = _opendp_floats("make_gaussian", "l2_distance", clipped.values, scale, grid)
        else:
            values = clipped.values + entropy.generator().normal(0.0, scale, clipped.values.shape)
        return Noisy(values, self.deviation(clipped.l2))


@record
@dataclass(frozen=True)
class IdealGaussian(Scaled):
    """The same law in floating-point arithmetic, from a cryptographic generator.

    For many numbers that are rounded on the way, as sums over a stream are: an exact sampler would cost
    a hundred times as much and promise no more. A guarantee says that its arithmetic is idealised.
    """

    @property
    def event(self) -> Event:
        return GaussianEvent(self.noise_multiplier)

    def release(self, clipped: Clipped, entropy: Entropy) -> Noisy:
        scale = self.noise_multiplier * _finite(clipped.l2, "L2")
        noise = entropy.generator().standard_normal(clipped.values.shape)
        return Noisy(clipped.values + scale * noise, scale)


@record
@dataclass(frozen=True)
class GaussianPerBlock(IdealGaussian):
    """Such noise on an answer of every block of the data, where each unit is in one block only.

    One charge for all of them: a unit is seen through the noise of its own block alone (parallel
    composition), also where later questions depend on earlier answers.
    """


@record
@dataclass(frozen=True)
class Geometric(Scaled):
    """Two-sided geometric noise on whole numbers: P(n) proportional to exp(-|n| / scale)."""

    @property
    def event(self) -> Event:
        return PureEvent(1 / self.noise_multiplier)

    def deviation(self, bound: float) -> float:
        inverse = 1 / (self.noise_multiplier * bound)
        return sqrt(2) * exp(-inverse / 2) / -expm1(-inverse)

    def release(self, clipped: Clipped, entropy: Entropy) -> Noisy:
        scale = self.noise_multiplier * _enlarged(_finite(clipped.l1, "L1"))
        whole = _whole(clipped.values)
        if entropy.exact:
            values = _opendp_whole("make_geometric", "l1_distance", "i64", whole, scale)
        else:  # the difference of two geometric numbers
            drawn = entropy.generator().geometric(-expm1(-1 / scale), (2, *whole.shape))
            values = whole + drawn[0] - drawn[1]
        return Noisy(values, self.deviation(clipped.l1))


@record
@dataclass(frozen=True)
class DiscreteGaussian(Scaled):
    """Gaussian noise on whole numbers (Canonne, Kamath and Steinke 2020).

    Accounted by its concentration: that the whole privacy loss is the Gaussian's is not proven.
    """

    @property
    def event(self) -> Event:
        return ZCDPEvent(1 / (2 * self.noise_multiplier**2))

    def deviation(self, bound: float) -> float:
        scale = self.noise_multiplier * bound
        if scale > 3:  # the sums below differ from the integrals by less than one part in 1e70
            return scale
        n = np.arange(-40, 41)
        weights = np.exp(-((n / scale) ** 2) / 2)
        return float(np.sqrt(weights @ n**2 / weights.sum()))

    def release(self, clipped: Clipped, entropy: Entropy) -> Noisy:
        scale = self.noise_multiplier * _enlarged(_finite(clipped.l2, "L2"))
        whole = _whole(clipped.values)
        if entropy.exact:
            values = _opendp_whole("make_gaussian", "l2_distance", "f64", whole, scale)
        else:
            values = whole + _discrete_gaussian(whole.shape, scale, entropy.generator())
        return Noisy(values, self.deviation(clipped.l2))


@record
@dataclass(frozen=True)
class RandomisedResponse:
    """One of ``categories`` answers: the true one with probability e^eps / (e^eps + k - 1).

    Takes whole numbers from 0 to k - 1, each independently of the others; a value may be replaced.
    Drawn in whole numbers throughout, so that it is exact without OpenDP, which is slow at it.
    """

    epsilon: float
    categories: int

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)
        if int(self.categories) != self.categories or not 2 <= self.categories <= _MOST_CATEGORIES:
            raise SettingError(
                f"categories must be a whole number from 2 to {_MOST_CATEGORIES:,}, "
                f"got {self.categories}"
            )

    @property
    def event(self) -> Event:
        return PureEvent(self.epsilon)

    @property
    def truth(self) -> float:
        """Probability of the true answer, never above what epsilon allows, and below one."""
        return min(1 - self.lies / self.draws, 1 - 2**-53)

    @property
    def draws(self) -> int:
        """How many draws are equally likely: as many for each answer, or none would be uniform."""
        return 2**64 - 2**64 % int(self.categories)

    @property
    def lies(self) -> int:
        """How many of these draws answer with another category.

        Rounded up, so that the true answer is not too likely, but never beyond uniform answers: there it
        would become the least likely one, which says as much.
        """
        k = int(self.categories)
        others = (k - 1) * exp(-self.epsilon)
        enough = ceil(others / (1 + others) * (1 + _HAIR) * self.draws)
        return min(self.draws // k * (k - 1), max(1, enough))

    def release(self, clipped: Clipped, entropy: Entropy) -> Noisy:
        if not clipped.single:
            raise SettingError("randomised response is for data of which one coordinate changes")
        whole = _whole(clipped.values)
        if whole.size and (whole.min() < 0 or whole.max() >= self.categories):
            raise SettingError(f"answers must be whole numbers from 0 to {self.categories - 1}")
        generator = entropy.generator()
        lie = generator.integers(0, self.draws, whole.shape, np.uint64) < np.uint64(self.lies)
        other = generator.integers(0, self.categories - 1, whole.shape)
        return Noisy(np.where(lie, other + (other >= whole), whole), inf)


@record
@dataclass(frozen=True)
class PoissonGaussian(Scaled):
    """Steps of a compiled kernel: in each, every unit takes part independently with ``rate``.

    The kernel sums contributions of norm at most m and adds Gaussian noise of standard deviation
    ``noise_multiplier`` m to every coordinate that the step may change.
    """

    rate: float
    steps: int
    replaces: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.rate <= 1:
            raise SettingError(f"a sampling rate lies above 0 and at most at 1, got {self.rate}")
        if int(self.steps) != self.steps or self.steps < 1:
            raise SettingError(f"steps must be a whole number from 1 on, got {self.steps}")

    @property
    def event(self) -> Event:
        if self.rate == 1:  # no sampling: plain Gaussian noise, whose composition has a closed form
            change = 2 if self.replaces else 1
            return Repeated(GaussianEvent(self.noise_multiplier / change), self.steps)
        step = SampledGaussianEvent(self.noise_multiplier, self.rate, self.replaces)
        return Repeated(step, self.steps)


@record
@dataclass(frozen=True)
class PurePass:
    """A pass of a compiled kernel in which each unit is touched once, at ``epsilon``."""

    epsilon: float

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)

    @property
    def event(self) -> Event:
        return PureEvent(self.epsilon)


def _check_epsilon(epsilon: float) -> None:
    if not (isfinite(epsilon) and epsilon > 0):
        raise SettingError(f"epsilon must be a number above zero, got {epsilon}")


def _finite(bound: float, norm: str) -> float:
    if not isfinite(bound):
        raise SettingError(f"this mechanism needs a bound in the {norm} norm, and there is none")
    return bound


def _whole(values: Array) -> Array:
    if values.dtype.kind not in "iu":
        raise SettingError(f"this mechanism is for whole numbers, got {values.dtype}")
    return values.astype(np.int64)


# -- exact samplers -------------------------------------------------------------------------------


def _grid(scale: float) -> int:
    """The exponent of the grid for noise of a scale: fine enough to cost next to nothing."""
    return frexp(scale)[1] - _GRID_BITS


def _enlarged(bound: float, rounding: float = 0.0) -> float:
    """A bound with room for rounding: of the numbers to a grid, and of our own arithmetic."""
    return (bound + rounding) * (1 + _HAIR)


def _opendp() -> Any:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    return dp


def _opendp_floats(maker: str, metric: str, values: Array, scale: float, grid: int) -> Array:
    """Noise on multiples of 2^grid; floating-point noise would show its low bits (Mironov 2012)."""
    if values.size == 0:
        return values.astype(np.float64)
    dp = _opendp()
    given, noisy = values.astype(np.float64).ravel(), np.empty(values.size)

    def draw(piece: slice) -> None:
        domain = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=given[piece].size)
        measure = getattr(dp.m, maker)(domain, getattr(dp, metric)(T=float), scale=scale, k=grid)
        noisy[piece] = measure(given[piece].tolist())

    # Noise on each number is drawn by itself: pieces can be drawn side by side.
    threads = available_threads() if values.size >= _WORTH_THREADS else 1
    cuts = np.linspace(0, values.size, threads + 1).astype(int).tolist()
    run([partial(draw, slice(*ends)) for ends in pairwise(cuts)], threads)
    return noisy.reshape(values.shape)


def _opendp_whole(maker: str, metric: str, distance: str, values: Array, scale: float) -> Array:
    if values.size == 0:
        return values
    dp = _opendp()
    domain = dp.vector_domain(dp.atom_domain(T="i64"), size=values.size)
    measure = getattr(dp.m, maker)(domain, getattr(dp, metric)(T=distance), scale=scale)
    return np.array(measure(values.ravel().tolist()), np.int64).reshape(values.shape)


# -- the same laws from a seed --------------------------------------------------------------------


def _discrete_gaussian(shape: tuple[int, ...], scale: float, generator: np.random.Generator) -> Array:
    """Rejection from two-sided geometric noise, as Canonne, Kamath and Steinke do."""
    out = np.empty(int(np.prod(shape)), np.int64)
    missing, t = np.arange(out.size), int(scale) + 1
    while missing.size:
        drawn = generator.geometric(-expm1(-1 / t), (2, missing.size))
        candidate = drawn[0] - drawn[1]
        log_accept = -((np.abs(candidate) - scale**2 / t) ** 2) / (2 * scale**2)
        kept = generator.standard_exponential(missing.size) > -log_accept
        out[missing[kept]] = candidate[kept]
        missing = missing[~kept]
    return out.reshape(shape)
