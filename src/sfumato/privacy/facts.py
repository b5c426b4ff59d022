"""What is public of a private fit, with every default settled: all that settings may depend on.

The caller says what everyone knows (:class:`~sfumato.privacy.units.Public`) and what is protected. A
``Facts`` is what follows: nothing in it is read off the data, and nothing in it is open.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from sfumato.checks import as_pair
from sfumato.data.tensor import Mode, find_mode
from sfumato.errors import SettingError
from sfumato.models.shape import Shape
from sfumato.privacy.clipping import check_range
from sfumato.privacy.units import PrivacyUnit, Unit
from sfumato.records import record

_USUAL_ENTRIES = 100  # of an average level, where the number of entries is not public
_USUAL_SPREAD = 0.25  # of the bounds' width, where the spread of the values is not public
_CALM = 0.02  # thinness at which settings are half-way between those for little and for much noise
_WHOLE_UNITS = 3  # times as thin: units of many entries are clipped harder


@record
@dataclass(frozen=True)
class Facts:
    """The public numbers of a private fit.

    Parameters
    ----------
    shape : what is fitted; its sizes are public.
    unit, bounds : what is protected, and between which bounds values lie.
    entries : how many entries there are, None where that is not public.
    public_spread : how far values lie from their mean, None where that is not public.
    local : the mode whose rows stay with their owners, None where everything is released.
    """

    shape: Shape
    unit: PrivacyUnit
    bounds: tuple[float, float]
    entries: int | None = None
    public_spread: float | None = None
    local: int | None = None

    def __post_init__(self) -> None:
        check_range(*as_pair("bounds", self.bounds, "two finite numbers, the lower one first"))
        own = self.unit_mode  # an error where there is no such mode
        if self.local is not None and own not in (None, self.local):
            raise SettingError(
                f"rows of {self.modes[self.local].name!r} cannot stay with their owners: what is "
                f"protected is {self.unit}"
            )

    # -- the tensor -----------------------------------------------------------------------------

    @property
    def modes(self) -> tuple[Mode, ...]:
        return self.shape.modes

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.shape.sizes

    @property
    def expected_entries(self) -> float:
        """How many entries there are, or a guess where that is not public."""
        return self.entries or _USUAL_ENTRIES * sum(self.sizes) / len(self.sizes)

    # -- the unit -------------------------------------------------------------------------------

    @cached_property
    def unit_mode(self) -> int | None:
        """The mode whose levels are the units; None where entries or values are."""
        return None if self.unit.mode is None else find_mode(self.modes, self.unit.mode)

    @property
    def whole_units(self) -> bool:
        """Whether all entries of a level come and go together."""
        return isinstance(self.unit, Unit)

    @property
    def own(self) -> int | None:
        """The mode whose rows are solved by their owners in every round: where they are the units."""
        return self.local if self.whole_units else None

    @property
    def expected_units(self) -> float:
        """How many units there are, or a guess where that is not public."""
        return self.expected_entries if self.unit_mode is None else self.sizes[self.unit_mode]

    # -- the values -----------------------------------------------------------------------------

    @property
    def width(self) -> float:
        return self.bounds[1] - self.bounds[0]

    @property
    def half(self) -> float:
        return self.width / 2

    @property
    def middle(self) -> float:
        return (self.bounds[1] + self.bounds[0]) / 2

    @property
    def spread(self) -> float:
        """How far values lie from their mean, or a guess where that is not public."""
        return self.half / 2 if self.public_spread is None else min(self.public_spread, self.width)

    scatter_share: ClassVar[float] = 0.75  # of the values' variance that biases are taken to leave

    @property
    def scatter(self) -> float:
        """Variance of what biases are taken to leave of the values."""
        return self.scatter_share * self.spread**2

    # -- noise beside data ----------------------------------------------------------------------

    def thinness(self, noise: float) -> float:
        """Noise over the entries of an average row: how thinly the data lie under the noise.

        For one query that spends the whole budget it is about 0.003 for a million ratings at epsilon
        10, 0.03 at 1, 0.2 at 0.1. Units of many entries are clipped harder: as if there were more noise.
        """
        rows = sum(self.sizes) / len(self.sizes)
        return noise * rows / self.expected_entries * (_WHOLE_UNITS if self.whole_units else 1)

    def calm(self, noise: float) -> float:
        """One where noise is small beside the data, towards zero where it is large."""
        return 1 / (1 + self.thinness(noise) / _CALM)

    def is_calm(self, noise: float) -> bool:
        """Whether the data lie less than half-way under the noise."""
        return self.thinness(noise) <= _CALM


def assumed_scatter(bounds: tuple[float, float]) -> float:
    """Variance of what a model leaves of values within public bounds, where nothing else is known."""
    return Facts.scatter_share * (_USUAL_SPREAD * (bounds[1] - bounds[0])) ** 2
