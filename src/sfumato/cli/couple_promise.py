"""What ``sfumato couple`` is asked for as regards privacy: of all tables, and of each by its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from sfumato.cli import options
from sfumato.cli.couple_order import by_name, number_between
from sfumato.cli.privacy import Protection, Spending, check_releasable, refuse_without_epsilon
from sfumato.errors import SettingError

if TYPE_CHECKING:
    from sfumato.fit.request import Privacy
    from sfumato.privacy.units import Public

_ENTRIES, _SPREAD, _STEP = "--public-entries", "--public-spread", "--public-step"


class CoupledMethod(StrEnum):
    auto = "auto"
    langevin = "langevin"
    bias = "bias"
    pairs = "pairs"
    moments = "moments"
    alternating = "alternating"
    constant = "constant"


@dataclass(frozen=True)
class CoupledPromise(Protection):
    """How private a fit of several tables is to be; what is said of one of them goes by its name."""

    method: Annotated[
        CoupledMethod,
        typer.Option(help="How a private fit is made; auto picks for each table by public numbers."),
    ] = CoupledMethod.auto
    bounds: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=LOW,HIGH...",
            help="Lowest and highest value possible, of a private fit: --bounds ratings=1,5 tags=0,20.",
        ),
    ] = None
    public_relation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME...",
            help="Tables that everyone knows, with all their entries: they cost nothing.",
        ),
    ] = None
    public_entries: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=N...", help="About how many entries a table has, if that is public."),
    ] = None
    public_spread: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=S...", help="About how far a table's values lie from their mean, if public."
        ),
    ] = None
    public_step: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=S...", help="Distance of a table's possible values: 1 for whole stars."
        ),
    ] = None
    intervals: options.Intervals = False

    def settings(self, names: Sequence[str], release: Spending) -> Privacy | None:
        """The privacy asked for; whatever is wrong with it is said before a file is read."""
        from sfumato.fit.request import Privacy
        from sfumato.privacy.units import Public

        if self.epsilon is None:
            refuse_without_epsilon(self.given(release), self.method != CoupledMethod.auto)
            return None
        self.check_unit()
        self._check_tables(names)
        check_releasable(None if release.noise_seed is None else "seeded", release)
        public = Public(labels=self.labels(), units=self.public_units, relations=self._relations(names))
        return Privacy(
            **self.asked(release),
            method=self.method.value,
            intervals=self.intervals,
            public=public,
        )

    def given(self, release: Spending) -> dict[str, object]:
        return {
            **super().given(release),
            "--bounds": self.bounds,
            "--public-relation": self.public_relation,
            "--public-entries": self.public_entries,
            "--public-spread": self.public_spread,
            "--public-step": self.public_step,
            "--intervals": self.intervals or None,
        }

    def bounds_of(self, names: Sequence[str]) -> dict[str, tuple[float, float]]:
        """Those of the tables that are protected; each has to have some."""
        given = by_name("--bounds", self.bounds, names, None, _bounds)
        found = {name: given[name] for name in names if name not in (self.public_relation or ())}
        missing = [name for name, bounds in found.items() if bounds is None]
        if missing:
            raise SettingError(
                f"a private fit needs --bounds {missing[0]}=LOW,HIGH: public ones, not the data's"
            )
        return {name: bounds for name, bounds in found.items() if bounds is not None}

    def _check_tables(self, names: Sequence[str]) -> None:
        public = self.public_relation or []
        unknown = [name for name in public if name not in names]
        if unknown:
            raise typer.BadParameter(
                f"there is no table {unknown[0]!r}: the tables are {', '.join(names)}",
                param_hint="--public-relation",
            )
        if set(public) >= set(names):
            raise SettingError("all tables are public: there is nothing to protect")
        self.bounds_of(names)

    def _relations(self, names: Sequence[str]) -> dict[str, Public | bool]:
        """What is public of each table of which something is."""
        from sfumato.privacy.units import Public

        entries = by_name(_ENTRIES, self.public_entries, names, None, _count, one_for_all=False)
        spread = by_name(_SPREAD, self.public_spread, names, None, _size, one_for_all=False)
        step = by_name(_STEP, self.public_step, names, None, _size, one_for_all=False)
        said = {
            name: Public(entries=entries[name], spread=spread[name], step=step[name]) for name in names
        }
        whole = self.public_relation or []
        for name in whole:
            if said[name] != Public():
                raise SettingError(
                    f"{name} is public with all its entries: leave {_ENTRIES}, {_SPREAD} and {_STEP} of "
                    "it out"
                )
        return {
            name: name in whole or public
            for name, public in said.items()
            if name in whole or public != Public()
        }


# -- values of flags ------------------------------------------------------------------------------


def _bounds(text: str) -> tuple[float, float]:
    what = "give the lowest and the highest value, such as 1,5"
    low, _, high = text.partition(",")
    bounds = number_between(low, what, -1e300, 1e300), number_between(high, what, -1e300, 1e300)
    if bounds[0] >= bounds[1]:
        raise ValueError(what)
    return bounds


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError("a whole number from 1 on")
    return int(text)


def _size(text: str) -> float:
    return number_between(text, "a number above zero", 1e-300, 1e300)
