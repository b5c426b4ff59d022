"""What ``sfumato couple`` is asked for: settings of each table by its name, and of the fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from sfumato.cli.options import Duplicates, ModelName
from sfumato.errors import SettingError

if TYPE_CHECKING:
    from sfumato.fit.request import Privacy

_T = TypeVar("_T")
_Choice = TypeVar("_Choice", bound=StrEnum)


class CoupledSolver(StrEnum):
    multiplicative = "multiplicative"
    variational = "variational"
    langevin = "langevin"
    gibbs = "gibbs"

    @property
    def samples(self) -> bool:
        """Whether it draws samples from the posterior."""
        return self in (CoupledSolver.langevin, CoupledSolver.gibbs)


class Absent(StrEnum):
    missing = "missing"
    zero = "zero"


@dataclass(frozen=True)
class TableOrder:
    """One table, as asked for: where it is, what of it is read, and how it is fitted.

    ``modes`` are columns, or ``column:mode`` where the mode has another name than the column. ``test``
    is the share of it that is held out, or a file of cells that are.
    """

    name: str
    file: Path
    modes: tuple[str, ...] | None
    value: str | None
    variable: str | None
    separator: str | None
    date_format: str | None
    structure: ModelName
    divergence: float
    dispersion: float | None
    absent: Absent
    duplicates: Duplicates
    test: float | Path | None


@dataclass(frozen=True)
class CoupleOrder:
    """What to fit to which tables, as asked for on the command line."""

    tables: tuple[TableOrder, ...]
    bins: dict[str, str]
    rank: int
    solver: CoupledSolver
    starts: int
    rounds: int | None
    burn_in: int | None
    seed: int
    threads: int | None

    def __post_init__(self) -> None:
        if self.burn_in is not None and not self.solver.samples:
            raise typer.BadParameter(
                "it belongs to --solver langevin and gibbs: others have no burn-in",
                param_hint="--burn-in",
            )
        if self.solver == CoupledSolver.langevin and {table.divergence for table in self.tables} not in (
            {0.0},
            {1.0},
        ):
            raise typer.BadParameter(
                "langevin takes one divergence for all tables: 0 for any numbers, 1 for counts",
                param_hint="--divergence",
            )

    @property
    def name(self) -> str:
        """The fit in words."""
        starts = "" if self.starts == 1 else f", best of {self.starts} starts"
        return f"rank {self.rank}, {self.solver.value}{starts}"


@dataclass(frozen=True)
class PrivateOrder:
    """What to fit privately to which tables, as asked for on the command line.

    ``bounds`` are those of tables that are protected.
    """

    tables: tuple[TableOrder, ...]
    bins: dict[str, str]
    bounds: dict[str, tuple[float, float]]
    privacy: Privacy
    rank: int | None
    seed: int
    threads: int | None

    def __post_init__(self) -> None:
        public = [table for table in self.tables if table.name not in self.bounds]
        for table in public:
            if table.test is not None:
                raise SettingError(
                    f"{table.name} is public, and no model is made of it: leave --test {table.name}=... "
                    "out"
                )


# -- settings by table ----------------------------------------------------------------------------


def files_by_name(given: Sequence[str]) -> dict[str, Path]:
    """Files by the names of their tables; without a name, the file's own up to the first dot."""
    files: dict[str, Path] = {}
    for text in given:
        name, named, path = text.partition("=")
        if not named:
            name, path = Path(text).name.partition(".")[0], text
        if not (name and path):
            raise typer.BadParameter(f"give NAME=FILE, got {text!r}", param_hint="NAME=FILE")
        if name in files:
            raise typer.BadParameter(
                f"two tables are called {name!r}: name them, NAME=FILE", param_hint="NAME=FILE"
            )
        files[name] = Path(path)
    return files


def by_name(
    flag: str,
    given: Sequence[str] | None,
    names: Sequence[str],
    usual: _T,
    parse: Callable[[str], _T],
    *,
    one_for_all: bool = True,
) -> dict[str, _T]:
    """A setting of each table, given as ``NAME=VALUE``, or as ``VALUE`` for all that are not named."""
    own: dict[str, _T] = {}
    for text in given or []:
        name, named, value = text.partition("=")
        if not named and one_for_all:
            name, value = "", text
        elif name not in names:
            what = f"there is no table {name!r}" if named else f"{text!r} names no table"
            raise typer.BadParameter(
                f"{what}: give NAME=..., where NAME is one of {', '.join(names)}", param_hint=flag
            )
        if not value:
            raise typer.BadParameter(f"nothing follows {text!r}", param_hint=flag)
        if name in own:
            raise typer.BadParameter(f"given twice for {name or 'all tables'}", param_hint=flag)
        try:
            own[name] = parse(value)
        except ValueError as error:
            raise typer.BadParameter(f"{value!r}: {error}", param_hint=flag) from None
    usual = own.pop("", usual)
    return {name: own.get(name, usual) for name in names}


def number_between(text: str, what: str, low: float, high: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = inf
    if not low <= number <= high:
        raise ValueError(what)
    return number


def _divergence(text: str) -> float:
    return number_between(text, "p is a number from 0 to 3: 0 squared error, 1 Kullback-Leibler", 0, 3)


def _dispersion(text: str) -> float | None:
    """A number above zero; None for one that is estimated."""
    return (
        None if text == "auto" else number_between(text, "a number above zero, or auto", 1e-300, 1e300)
    )


def _choice(kind: type[_Choice]) -> Callable[[str], _Choice]:
    def parse(text: str) -> _Choice:
        known = [each.value for each in kind]
        if text not in known:
            raise ValueError(f"use {' or '.join(known)}")
        return kind(text)

    return parse


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(names) < 2:
        raise ValueError("give two columns or more, with commas between them")
    return names


def _test(text: str) -> float | Path:
    """A share, if it is a number; else a file."""
    try:
        float(text)
    except ValueError:
        return Path(text)
    return number_between(text, "the share held out lies between 0 and 1", 1e-9, 1 - 1e-9)


@dataclass(frozen=True)
class TableFlags:
    """Options that are given for each table by its name."""

    modes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COLUMN,...",
            help="Columns with a table's labels: --modes ratings=user,film friends=user,friend. Modes "
            "of one name are shared; COLUMN:MODE gives a column's mode another name.",
        ),
    ] = None
    value: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=COLUMN...", help="Column with a table's values."),
    ] = None
    variable: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=ARRAY...", help="Which array of a .npz or .mat file, or sheet of a .xlsx file."
        ),
    ] = None
    separator: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=CHARACTER...",
            help="Between columns of a .csv or .tsv file, such as ';' or tab; by default as its header "
            "shows.",
        ),
    ] = None
    date_format: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FORMAT...",
            help="How dates of --bin are written, if not as 2020-12-31: %d/%m/%Y for 31/12/2020.",
        ),
    ] = None
    absent: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=zero...",
            help="What a cell without an entry means, zero or missing; missing by default.",
        ),
    ] = None
    structure: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=tucker...", help="Kind of model, cp or tucker; cp by default."),
    ] = None
    divergence: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=P...",
            help="0 squared error, 1 Kullback-Leibler (counts), 2 Itakura-Saito, or between; 1 by "
            "default.",
        ),
    ] = None
    dispersion: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PHI...",
            help="Large for a table that is to count less; auto estimates it. 1 by default, auto for "
            "langevin with divergence 0.",
        ),
    ] = None
    duplicates: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=mean...",
            help="What to make of several entries at one cell: error, mean, last or sum; error by "
            "default.",
        ),
    ] = None
    test: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SHARE|FILE...",
            help="Share of a table to hold out and measure errors at, or a file with such cells.",
        ),
    ] = None

    def tables(self, files: dict[str, Path], solver: CoupledSolver) -> tuple[TableOrder, ...]:
        """All that is asked for, table by table; whatever is wrong is said before a file is read."""
        names = tuple(files)
        modes = by_name("--modes", self.modes, names, None, _names, one_for_all=False)
        value = by_name("--value", self.value, names, None, str)
        variable = by_name("--variable", self.variable, names, None, str)
        separator = by_name("--separator", self.separator, names, None, str)
        date_format = by_name("--date-format", self.date_format, names, None, str)
        absent = by_name("--absent", self.absent, names, Absent.missing, _choice(Absent))
        structure = by_name("--structure", self.structure, names, ModelName.cp, _choice(ModelName))
        divergence = by_name("--divergence", self.divergence, names, 1.0, _divergence)
        # How noisy numbers are is rarely known; a Poisson law has no such parameter.
        sampled = solver == CoupledSolver.langevin and 0.0 in divergence.values()
        usual = None if sampled else 1.0
        dispersion = by_name("--dispersion", self.dispersion, names, usual, _dispersion)
        duplicates = by_name(
            "--duplicates", self.duplicates, names, Duplicates.error, _choice(Duplicates)
        )
        test = by_name("--test", self.test, names, None, _test, one_for_all=False)
        return tuple(
            TableOrder(
                name,
                file,
                modes[name],
                value[name],
                variable[name],
                separator[name],
                date_format[name],
                structure[name],
                divergence[name],
                dispersion[name],
                absent[name],
                duplicates[name],
                test[name],
            )
            for name, file in files.items()
        )

    def check_private(self, tables: Sequence[TableOrder]) -> None:
        """Refuse settings of tables that a private fit does not have."""
        for flag, given in (("--divergence", self.divergence), ("--dispersion", self.dispersion)):
            if given:
                raise SettingError(f"{flag} is for fits without privacy: {_BY_METHOD}")
        for table in tables:
            if table.absent == Absent.zero:
                raise SettingError(
                    f"absent cells of {table.name!r} are zeros, which a private fit would have to hide "
                    f"one by one: write the zeros out as entries, and leave --absent {table.name}=zero "
                    "out"
                )
            if table.structure == ModelName.tucker:
                raise SettingError(
                    f"private fits of several tables are of CP models: leave --structure "
                    f"{table.name}=tucker out"
                )


# -- privacy --------------------------------------------------------------------------------------

_BY_METHOD = "a private fit is made by its method, so leave it out, and choose with --method"


def check_private_fit(
    solver: CoupledSolver, starts: int, rounds: int | None, burn_in: int | None
) -> None:
    """Refuse settings of a fit that a private one does not have."""
    given = {
        "--solver": solver != CoupledSolver.multiplicative,
        "--starts": starts != 1,
        "--rounds": rounds is not None,
        "--burn-in": burn_in is not None,
    }
    named = [flag for flag, is_given in given.items() if is_given]
    if named:
        raise SettingError(f"{', '.join(named)} is for fits without privacy: {_BY_METHOD}")
