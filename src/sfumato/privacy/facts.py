"""What is public of a private fit, with every default settled: all that settings may depend on.

The caller says what everyone knows (:class:`~sfumato.privacy.units.Public`) and what is protected. A
``Facts`` is what follows: nothing in it is read off the data, and nothing in it is open.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from sfumato.checks import as_pair
from sfumato.data.tensor import Mode, find_mode
from sfumato.errors import SettingError
from sfumato.models.shape import Shape
from sfumato.models.told import Told
from sfumato.privacy.clipping import check_range
from sfumato.privacy.trust import Trust
from sfumato.privacy.units import PrivacyUnit, Unit
from sfumato.records import record

# Where the number of entries is not public there are two guesses. What is gained where there are many
# (components, steps) is planned for what is usual; what must not be lost where there are few (the share
# of the constant, whether to ask about times) for the least: planned for what is usual, private biases
# of sparse data under much noise come out worse than the constant (1.05 of it at epsilon 0.1).
_USUAL_ENTRIES = 100  # of an average level
_LEAST_ENTRIES = 10  # of a level of the largest mode
_USUAL_SPREAD = 0.25  # of the bounds' width, where the spread of the values is not public
_PRESENT = 0.1  # of units that are listed, in one period of several: a cautious guess
_CALM = 0.02  # thinness at which settings are half-way between those for little and for much noise
_WHOLE_UNITS = 3  # times as thin: units of many entries are clipped harder


def _settled() -> Any:
    """A field that follows from the others."""
    return field(init=False, repr=False, compare=False)


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
    trust : who is trusted with what, where the data lie with several sites.
    part : whether this is one period of several, in which few units may have entries.
    before : what earlier periods have told, where the values are what their release leaves.
    """

    shape: Shape
    unit: PrivacyUnit
    bounds: tuple[float, float]
    entries: int | None = None
    public_spread: float | None = None
    local: int | None = None
    trust: Trust = field(default_factory=Trust)
    part: bool = False
    before: Told | None = field(default=None, compare=False)

    # What follows from these, settled once.
    modes: tuple[Mode, ...] = _settled()
    sizes: tuple[int, ...] = _settled()
    unit_mode: int | None = _settled()  # whose levels are the units; None where entries or values are
    whole_units: bool = _settled()  # whether all entries of a level come and go together
    own: int | None = _settled()  # whose rows their owners solve in every round
    expected_entries: float = _settled()  # how many there are, or a guess where that is not public
    expected_units: float = _settled()  # the same of units
    least_entries: float = _settled()  # how many there are, or a cautious guess
    least_units: float = _settled()  # the same of units
    width: float = _settled()  # of the bounds
    half: float = _settled()
    middle: float = _settled()
    spread: float = _settled()  # how far values lie from their mean, or a guess
    scatter: float = _settled()  # variance of what biases are taken to leave of the values

    scatter_share: ClassVar[float] = 0.75  # of the values' variance

    def __post_init__(self) -> None:
        low, high = as_pair("bounds", self.bounds, "two finite numbers, the lower one first")
        check_range(low, high)
        sizes, name = self.shape.sizes, self.unit.mode
        unit_mode = None if name is None else find_mode(self.shape.modes, name)
        if self.local is not None and not 0 <= self.local < len(sizes):
            raise SettingError(f"there is no mode {self.local}: there are {len(sizes)}")
        if self.local is not None and unit_mode not in (None, self.local):
            raise SettingError(
                f"rows of {self.shape.modes[self.local].name!r} cannot stay with their owners: what is "
                f"protected is {self.unit}"
            )
        self.trust.check_unit(self.unit)
        whole_units, width = isinstance(self.unit, Unit), high - low
        entries = self.entries or _USUAL_ENTRIES * sum(sizes) / len(sizes)
        least = self.entries or _LEAST_ENTRIES * max(sizes)
        usual, present = width * _USUAL_SPREAD, _PRESENT if self.part else 1.0
        spread = usual if self.public_spread is None else min(self.public_spread, width)
        for settled, value in {
            "modes": self.shape.modes,
            "sizes": sizes,
            "unit_mode": unit_mode,
            "whole_units": whole_units,
            "own": self.local if whole_units else None,
            "expected_entries": entries,
            "expected_units": entries if unit_mode is None else sizes[unit_mode],
            "least_entries": least,
            "least_units": least if unit_mode is None else present * sizes[unit_mode],
            "width": width,
            "half": width / 2,
            "middle": (low + high) / 2,
            "spread": spread,
            "scatter": self.scatter_share * spread**2,
        }.items():
            object.__setattr__(self, settled, value)

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


@record
@dataclass(frozen=True)
class CoupledFacts:
    """The public numbers of a private fit of several relations: those of each that is protected.

    Parameters
    ----------
    names : of the relations, in the order in which they were given.
    parts : their facts. All have one unit and one trust. Where the unit is a level of a mode, every
        relation has that mode: the unit is what the level has in all of them.
    """

    names: tuple[str, ...]
    parts: tuple[Facts, ...]

    def __post_init__(self) -> None:
        first = self.parts[0]
        if any((part.unit, part.trust) != (first.unit, first.trust) for part in self.parts):
            raise SettingError("relations of one fit have one unit, and one trust")

    @property
    def unit(self) -> PrivacyUnit:
        return self.parts[0].unit

    @property
    def trust(self) -> Trust:
        return self.parts[0].trust

    @property
    def sizes(self) -> tuple[tuple[int, ...], ...]:
        """Of the modes of each relation."""
        return tuple(part.sizes for part in self.parts)


def assumed_scatter(bounds: tuple[float, float]) -> float:
    """Variance of what a model leaves of values within public bounds, where nothing else is known."""
    return Facts.scatter_share * (_USUAL_SPREAD * (bounds[1] - bounds[0])) ** 2
