"""What data are assumed to be like where nothing is known of them but their shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.checks import as_pair, check_count, check_number, make_plain, wrong
from sfumato.data.tensor import Mode, passing_times
from sfumato.errors import SettingError

_MOST_COMPONENTS = 10_000
_MOST_SKEW = 100.0  # from which on nothing is left of any level but the first


@dataclass(frozen=True)
class Profile:
    """How the variance of the values is made up, and how entries spread over levels.

    An assumption, in round numbers of the size that ratings show: of the variance of the values a third
    is that of biases, a sixth that of interactions between the modes, and half is noise. Use one of
    your own where you know better.

    Parameters
    ----------
    biases : float
        Share of the variance that biases make up, split evenly over the modes.
    interactions : float
        Share that products of factors make up.
    decay : float
        Strength of each component of the interactions, as a share of that of the one before it.
    components : int
        How many components there are.
    skew : pair of float
        Zipf exponents of the levels' popularity: of the people's mode, and of the others. Times are
        equally popular.
    times : float
        Bias of a mode of times, over that of another mode, where there are two others at least.
    presence : float
        How much of the interactions shows in which levels somebody has entries at: 0 where that says
        nothing, 1 where people have entries at what they like alone.

    Examples
    --------
    >>> import sfumato as sf
    >>> visits = sf.Profile(biases=0.5, interactions=0.1)
    >>> visits.noise
    0.4
    >>> visits.strengths[:3].round(3)
    array([0.026, 0.019, 0.015])
    """

    biases: float = 1 / 3
    interactions: float = 1 / 6
    decay: float = 0.75
    components: int = 12
    skew: tuple[float, float] = (0.5, 0.8)
    times: float = 0.1
    presence: float = 0.5

    def __post_init__(self) -> None:
        make_plain(self)
        check_number(0, 1, biases=self.biases, interactions=self.interactions)
        check_number(0, 1, decay=self.decay)
        check_count(1, _MOST_COMPONENTS, components=self.components)
        check_number(0, times=self.times)
        check_number(0, 1, presence=self.presence)
        skew = as_pair("skew", self.skew, "two Zipf exponents")
        check_number(0, _MOST_SKEW, **{"the first of skew": skew[0], "the second of skew": skew[1]})
        if self.biases + self.interactions >= 1:
            raise SettingError(
                "biases and interactions are shares of the variance: 0 or more, together below 1, "
                f"got {self.biases:g} and {self.interactions:g}"
            )
        if not self.decay:
            raise wrong("decay", "a number above 0, at most 1", self.decay)

    @property
    def noise(self) -> float:
        """Share of the variance that nothing explains."""
        return 1 - self.biases - self.interactions

    @property
    def strengths(self) -> NDArray[np.float64]:
        """Variance of each component."""
        falling = self.decay ** np.arange(self.components)
        return np.asarray(self.interactions * falling / falling.sum())

    def bias_variances(self, modes: Sequence[Mode]) -> list[float]:
        """Variance of the biases of each mode.

        Parameters
        ----------
        modes : sequence of Mode
            Those with a ``bin`` are times.

        Returns
        -------
        list of float
            One for each mode.
        """
        parts = [self.times if times else 1.0 for times in passing_times(modes)]
        whole = sum(parts)
        return [self.biases * part / whole if whole else 0.0 for part in parts]

    def exponents(self, modes: Sequence[Mode], people: int) -> list[float]:
        """Zipf exponent of each mode; ``people`` is the mode whose levels are people.

        Parameters
        ----------
        modes : sequence of Mode
            Those with a ``bin`` are times.
        people : int
            The position of theirs.

        Returns
        -------
        list of float
            One for each mode.
        """
        return [
            0.0 if mode.bin is not None else self.skew[0 if m == people else 1]
            for m, mode in enumerate(modes)
        ]
