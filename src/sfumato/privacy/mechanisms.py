"""Mechanisms: noise of a known law, sized by the bound that comes with what it is added to.

Each is a frozen record with an ``event`` for the accountant and ``release``, which takes a
:class:`~sfumato.privacy.clipping.Clipped` and nothing else. ``noise_multiplier`` is the scale of the
noise over the sensitivity. Proofs: ``proofs/mechanisms.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, expm1, frexp, hypot, inf, isfinite, sqrt
from typing import Protocol

import numpy as np

from sfumato.checks import check_count
from sfumato.errors import SettingError
from sfumato.kernels.discrete import MOST_SCALE, DiscreteLaw, Kind
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
from sfumato.privacy.sampling import noise, with_noise
from sfumato.records import record
from sfumato.types import Array

_HAIR = 1e-12  # by which noise is enlarged, for the roundings of this module's own arithmetic
_ROUNDING = 4.0  # steps of noise more that make up for the Gaussian's law being on a grid
_MOST_CATEGORIES = 1 << 20
_LEAST_SHARE = 8.0  # steps: below that a sum of discrete Gaussians would show that it is none
_MOST_SHARES = 2.0**55  # steps of all shares together: no number of theirs is ever cut off
MOST_SITES = 1 << 20


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


@record
@dataclass(frozen=True, eq=False)
class NoisyShare:
    """One site's sums with its share of the noise, or several sites' added up.

    ``values`` are whole steps and stay so until the sum over all sites is :meth:`opened`: rounded to
    doubles before, their low digits would say more than their sum does. They are added modulo 2^64, as
    secure sums are. ``deviation`` is that of this noise alone.
    """

    values: Array
    deviation: float
    step: float
    public: tuple[Array, ...] = ()

    def __add__(self, other: NoisyShare) -> NoisyShare:
        shapes = [[array.shape for array in (each.values, *each.public)] for each in (self, other)]
        if self.step != other.step or shapes[0] != shapes[1]:
            raise SettingError("sites have answered different questions: their shares do not add up")
        public = tuple(np.asarray(np.add(*each)) for each in zip(self.public, other.public, strict=True))
        values = np.asarray(np.add(self.values, other.values))  # modulo 2^64
        return NoisyShare(values, hypot(self.deviation, other.deviation), self.step, public)

    def opened(self) -> Noisy:
        """What is released, once all sites of a round are in the sum."""
        return Noisy(self.values * self.step, self.deviation, self.public)


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
        return self._noisy(clipped, entropy).opened()

    def share(self, clipped: Clipped, entropy: Entropy) -> NoisyShare:
        """The same in whole steps, to be added up with those of other sites."""
        _check_adds_up(self._scale(clipped.l1, clipped.step) / clipped.step)
        return self._noisy(clipped, entropy)

    def _noisy(self, clipped: Clipped, entropy: Entropy) -> NoisyShare:
        if self.single and not clipped.single:
            raise SettingError("this mechanism is for data of which one coordinate changes")
        scale = self._scale(_finite(clipped.l1, "L1"), clipped.step)
        return _with_noise(clipped, "geometric", scale, self.deviation(clipped.l1), entropy)

    def _scale(self, bound: float, step: float) -> float:
        """The grid's own law costs two steps more where it is accounted as a whole."""
        return self.noise_multiplier * (bound + (2 * step if self.single else 0.0))

    def noise(self, number: int, bound: float, step: float, entropy: Entropy) -> Array:
        """Whole steps of noise for numbers that a kernel makes; it cuts their sums off at 2^61."""
        return noise(DiscreteLaw("geometric", self.steps(bound, step)), number, entropy)

    def steps(self, bound: float, step: float) -> float:
        """Its scale in steps of a grid; no more than can be drawn."""
        steps = self._scale(bound, step) * (1 + _HAIR) / step
        if steps > MOST_SCALE:
            raise SettingError(f"noise of {self._scale(bound, step):.3g} is more than can be drawn here")
        return steps


@record
@dataclass(frozen=True)
class PureAlongside(Laplace):
    """Laplace noise of a draw that is made beside others, on data that no unit shares with them.

    As :class:`Alongside`; ``charged`` is the epsilon that this draw raises the largest sum by.
    """

    charged: float = 0.0

    @property
    def event(self) -> Event:
        return PureEvent(self.charged)


@record
@dataclass(frozen=True)
class VectorLaplace(Scaled):
    """Noise with density proportional to exp(-|n| / s): uniform direction, Gamma length.

    One vector for all numbers; ``s`` is ``noise_multiplier`` times the L2 sensitivity. No sampler is
    known that draws it exactly: always idealised arithmetic.
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
        return Noisy(clipped.numbers + noise, scale * sqrt(size + 1))


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
        return Noisy(clipped.numbers + noise.reshape(shape), scale * sqrt(size + 1))


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
        scale = hypot(scale, _ROUNDING * clipped.step)
        return _with_noise(clipped, "gaussian", scale, self.deviation(clipped.l2), entropy).opened()

    def share(self, clipped: Clipped, entropy: Entropy) -> NoisyShare:
        """The same in whole steps, to be added up with those of other sites."""
        return GaussianShare(self.noise_multiplier, 1).share(clipped, entropy)


@record
@dataclass(frozen=True)
class GaussianPerBlock(Gaussian):
    """Such noise on an answer of every block of the data, where each unit is in one block only.

    One charge for all of them: a unit is seen through the noise of its own block alone (parallel
    composition), also where later questions depend on earlier answers.
    """


@record
@dataclass(frozen=True)
class Alongside(Gaussian):
    """Gaussian noise of a draw that is made beside others, on data that no unit shares with them.

    What a unit is charged for all of them is the largest sum over any part of the data. ``charged`` is
    the multiplier of what this draw raises that sum by; infinite where it does not. Proof:
    ``proofs/sides.md``.
    """

    charged: float = inf

    @property
    def event(self) -> Event:
        return GaussianEvent(self.charged) if self.charged < inf else PureEvent(0.0)


@record
@dataclass(frozen=True)
class GaussianShare(Scaled):
    """One site's share of Gaussian noise: ``of`` shares together have that of ``noise_multiplier``.

    A share alone promises next to nothing. The event is that of the sum, and holds for it where nothing
    but the sum is opened and at least ``of`` of the shares in it are unknown to whoever sees it.
    Proof: ``proofs/shares.md``.
    """

    of: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(1, MOST_SITES, of=self.of)

    @property
    def event(self) -> Event:
        return GaussianEvent(self.noise_multiplier)

    def deviation(self, bound: float) -> float:
        """Of this share alone."""
        return self.noise_multiplier * bound / sqrt(self.of)

    def share(self, clipped: Clipped, entropy: Entropy) -> NoisyShare:
        """Sums with this share, to be added up with those of others before anybody sees them.

        Nothing is cut off here: the sum of what was cut off is not what is left of the sum.
        """
        law = DiscreteLaw("gaussian", self._steps(_finite(clipped.l2, "L2"), clipped.step))
        drawn = noise(law, clipped.values.size, entropy).reshape(clipped.values.shape)
        values = np.asarray(np.add(clipped.values, drawn))  # below 2^61 + 2^62 in size
        return NoisyShare(values, self.deviation(clipped.l2), clipped.step)

    def _steps(self, bound: float, step: float) -> float:
        """The scale of a share in steps of the grid; that of ``of`` together is the Gaussian's."""
        together = hypot(self.noise_multiplier * bound, _ROUNDING * step) * (1 + _HAIR) / step
        _check_adds_up(together)
        share = together / sqrt(self.of)
        if share < _LEAST_SHARE:
            raise SettingError(
                f"a share of {share:.3g} steps of the grid is less than the proof covers, which is "
                f"{_LEAST_SHARE:g}: use fewer sites or a smaller epsilon, or let every site add all the "
                "noise"
            )
        return share


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
        scale = self.noise_multiplier * _finite(clipped.l1, "L1")
        return Noisy(_on_whole(clipped, "geometric", scale, entropy), self.deviation(clipped.l1))


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
        scale = self.noise_multiplier * _finite(clipped.l2, "L2")
        return Noisy(_on_whole(clipped, "gaussian", scale, entropy), self.deviation(clipped.l2))


@record
@dataclass(frozen=True)
class RandomisedResponse:
    """One of ``categories`` answers: the true one with probability e^eps / (e^eps + k - 1).

    Takes whole numbers from 0 to k - 1, each independently of the others; a value may be replaced, or
    so many ``values`` of one unit, each at this epsilon. Drawn in whole numbers throughout, so that it
    is exact.
    """

    epsilon: float
    categories: int
    values: int = 1

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)
        if int(self.categories) != self.categories or not 2 <= self.categories <= _MOST_CATEGORIES:
            raise SettingError(
                f"categories must be a whole number from 2 to {_MOST_CATEGORIES:,}, "
                f"got {self.categories}"
            )
        check_count(values=self.values)

    @property
    def event(self) -> Event:
        one = PureEvent(self.epsilon)
        return one if self.values == 1 else Repeated(one, self.values)

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
        if not clipped.single and self.values == 1:
            raise SettingError("randomised response is for data of which one coordinate changes")
        whole = clipped.values
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
class SampledGaussian(Scaled):
    """Gaussian noise on the sum over a random batch, which every unit is in with ``rate``.

    Which units are in the batch is drawn here and stays secret. Proof: ``proofs/networks.md``.
    """

    rate: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.rate <= 1:
            raise SettingError(f"a sampling rate lies above 0 and at most at 1, got {self.rate}")

    @property
    def event(self) -> Event:
        if self.rate == 1:
            return GaussianEvent(self.noise_multiplier)
        return SampledGaussianEvent(self.noise_multiplier, self.rate, False)

    def batch(self, units: int, entropy: Entropy) -> Array:
        """The units that take part, by number: each with the rate, or less by 2^-63."""
        if self.rate == 1:
            return np.arange(units)
        words = entropy.generator().integers(0, 1 << 63, units, np.uint64)
        return np.flatnonzero(words < np.uint64(int(self.rate * (1 << 63))))

    def release(self, clipped: Clipped, entropy: Entropy) -> Noisy:
        """The sum over a batch with its noise."""
        return Gaussian(self.noise_multiplier).release(clipped, entropy)


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


def _check_adds_up(steps: float) -> None:
    """That what several sites draw can be added up in 64 bits."""
    if steps > _MOST_SHARES:
        raise SettingError(
            f"noise of {steps:.3g} steps of the grid is more than sites can add up: use a larger epsilon"
        )


def _with_noise(
    clipped: Clipped, kind: Kind, scale: float, deviation: float, entropy: Entropy
) -> NoisyShare:
    """Numbers with exact noise on their grid.

    Where it is so large that no sum of as many entries as there can be shows in it, sums are left out:
    what is released is noise alone.
    """
    values, step, steps = clipped.values, clipped.step, scale * (1 + _HAIR) / clipped.step
    if steps > MOST_SCALE:
        coarser = 2.0 ** (frexp(steps)[1] - frexp(MOST_SCALE)[1] + 1)
        values, step, steps = np.zeros_like(values), step * coarser, steps / coarser
    return NoisyShare(with_noise(values, DiscreteLaw(kind, steps), entropy), deviation, step)


def _on_whole(clipped: Clipped, kind: Kind, scale: float, entropy: Entropy) -> Array:
    """Whole numbers with exact noise; they stay whole numbers."""
    if clipped.step != 1:
        raise SettingError(f"this mechanism is for whole numbers, got multiples of {clipped.step:g}")
    if scale > MOST_SCALE / 2:
        raise SettingError(f"noise of {scale:.3g} is beyond the range of whole numbers")
    return with_noise(clipped.values, DiscreteLaw(kind, scale * (1 + _HAIR)), entropy)
