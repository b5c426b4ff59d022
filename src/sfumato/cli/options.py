"""Options that commands share, each written down once, and what they mean.

What is private about a fit is said by the options of ``privacy.py``, which are groups of these.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sfumato.cli.common import columns_of, require_columns
from sfumato.solvers.registry import names

if TYPE_CHECKING:
    from sfumato.data.tensor import SparseTensor

DEFAULT_RANK = 8

# -- a file of data, and what is printed ----------------------------------------------------------

File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="A .csv, .tsv, .parquet, .xlsx, .tns, .npz, .npy or .mat file; comes first.",
    ),
]
Source = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="A .csv, .tsv, .parquet, .xlsx, .tns, .npz, .npy or .mat file, or a folder that `sfumato "
        "shard` made; comes first.",
    ),
]
Modes = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN...", help="Columns with the labels: --modes user item day."),
]
Value = Annotated[str | None, typer.Option(metavar="COLUMN", help="Column with the values.")]
Bounds = Annotated[
    tuple[float, float] | None,
    typer.Option(metavar="LOW HIGH", help="Lowest and highest value possible: --bounds 1 5."),
]
Bins = Annotated[
    list[str] | None,
    typer.Option(
        "--bin",
        metavar="COLUMN=BIN...",
        help="Columns of times, cut to hour, day, week or month: --bin time=day.",
    ),
]
Variable = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Which array of a .npz or .mat file, or sheet of a .xlsx file."),
]
Separator = Annotated[
    str | None,
    typer.Option(
        metavar="CHARACTER",
        help="Between columns of a .csv or .tsv file, such as ';' or tab; by default as in its header.",
    ),
]
DateFormat = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT",
        help="How dates of --bin are written, if not as 2020-12-31: %d/%m/%Y for 31/12/2020.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


@dataclass(frozen=True)
class Columns:
    """Where in a file the labels and values are."""

    modes: Modes = None
    value: Value = None
    bounds: Bounds = None
    bin: Bins = None
    variable: Variable = None
    separator: Separator = None
    date_format: DateFormat = None

    @property
    def given(self) -> dict[str, object]:
        """What was asked for, by flags; None where it was not."""
        names = [field.name for field in fields(self)]
        return {f"--{name.replace('_', '-')}": getattr(self, name) or None for name in names}

    def read(self, file: Path) -> SparseTensor:
        from sfumato.data.io.read import read

        bins = bins_by_column(self.bin)
        require_columns(columns_of(file, self.separator, self.variable), self.modes, self.value)
        return read(
            file,
            self.modes or None,
            self.value,
            bounds=self.bounds,
            bins=bins,
            variable=self.variable,
            separator=self.separator,
            date_format=self.date_format,
        )


def bins_by_column(given: list[str] | None) -> dict[str, str]:
    """Time bins by the columns that they cut."""
    pairs = [text.partition("=") for text in given or []]
    for column, _, name in pairs:
        if not (column and name):
            raise typer.BadParameter("give a column and a bin, as in time=day", param_hint="--bin")
    return {column: name for column, _, name in pairs}


# -- where results go -----------------------------------------------------------------------------

PICTURES = (".pdf", ".png", ".svg")
_FILES = (*PICTURES, ".csv", ".jpeg", ".jpg", ".json", ".jsonl", ".npz", ".parquet", ".tsv", ".txt")


def folder_for_files(out: Path | None) -> Path | None:
    """``--out`` of a command that writes several files: not the name of a file."""
    if out is not None and out.suffix.lower() in _FILES and not out.is_dir():
        raise typer.BadParameter(f"{out} names a file, but several files are written: name a folder")
    return out


def file_for_picture(out: Path | None) -> Path | None:
    """``--out`` of a command that writes one picture."""
    if out is not None and (out.suffix.lower() not in PICTURES or out.is_dir()):
        raise typer.BadParameter(
            f"{out} is to be a picture: name a file that ends in {', '.join(PICTURES)}"
        )
    return out


# -- what is fitted -------------------------------------------------------------------------------


class ModelName(StrEnum):
    cp = "cp"
    tucker = "tucker"


class Duplicates(StrEnum):
    error = "error"
    mean = "mean"
    last = "last"
    sum = "sum"


class DeviceName(StrEnum):
    cpu = "cpu"
    gpu = "gpu"
    auto = "auto"


class FactorFormat(StrEnum):
    csv = "csv"
    parquet = "parquet"


def checked_device(device: DeviceName) -> str:
    """The device by name; an error where it has to be a GPU and there is none."""
    from sfumato.sites.device import use_gpu

    use_gpu(device.value)
    return device.value


ModelKind = Annotated[ModelName, typer.Option(help="Kind of model.")]
OutFolder = Annotated[
    Path,
    typer.Option(
        metavar="DIR",
        callback=folder_for_files,
        help="Folder for the model; an older model is replaced.",
    ),
]
ModelFolder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a model.")]
DuplicatePolicy = Annotated[
    Duplicates, typer.Option(help="What to make of several entries at one cell.")
]
FitSeed = Annotated[int, typer.Option(help="Of the random start and the held-out entries.")]
Threads = Annotated[int | None, typer.Option(min=1, metavar="N", help="By default all cores.")]
Device = Annotated[
    DeviceName, typer.Option(help="Where sums are made; auto takes a GPU where there is one.")
]
WhereMade = Annotated[
    DeviceName,
    typer.Option(
        help="Where many predictions are made; auto takes a GPU where there is one. Few are made here."
    ),
]
Factors = Annotated[
    FactorFormat | None, typer.Option(help="Also write the factors, to the folder OUT-factors.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no notes.")]

# -- privacy --------------------------------------------------------------------------------------


# From the list of methods, so that a new one needs no line here.
_METHODS = {name: name for name in ("auto", *names("private"))}
MethodName: type[StrEnum] = StrEnum("MethodName", _METHODS)  # type: ignore[misc]
AUTO = MethodName("auto")


class Analysis(StrEnum):
    proven = "proven"
    paper = "paper"


class SamplerName(StrEnum):
    sfumato = "sfumato"
    opendp = "opendp"


Epsilon = Annotated[
    float | None,
    typer.Option(help="Fit privately within this budget."),
]
Delta = Annotated[
    float | None,
    typer.Option(help="Second part of the budget; without it epsilon is pure."),
]
UnitName = Annotated[
    str | None,
    typer.Option(
        metavar="UNIT",
        help="What is protected: value, entry, a mode (all entries of one user), or values:MODE.",
    ),
]
MaxEntries = Annotated[
    int | None,
    typer.Option(help="Entries of one level that are used, or values that may change."),
]
Method = Annotated[
    MethodName,
    typer.Option(help="Where the noise goes; auto picks by public numbers."),
]
AnalysisName = Annotated[
    Analysis,
    typer.Option(help="A proven guarantee, or the paper's own, claimed."),
]
NoiseLaw = Annotated[
    str,
    typer.Option(metavar="LAW", help="Law of the noise, where a method has several."),
]
Local = Annotated[
    str,
    typer.Option(
        metavar="MODE",
        help="Mode whose rows stay with their owners, or none; auto: the unit's own mode.",
    ),
]
PublicEntries = Annotated[
    int | None,
    typer.Option(metavar="N", help="About how many entries there are, if that is public."),
]
PublicLabels = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODE=FILE...",
        help="Labels that everyone knows, one per line or a range: item=items.txt user=1..6040.",
    ),
]
PublicUnits = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="At most how many owners there are whose rows stay with them, as everyone knows.",
    ),
]
LabelsArePublic = Annotated[
    bool,
    typer.Option(
        "--labels-are-public", help="The labels in FILE are public; those of owners never are."
    ),
]
Intervals = Annotated[
    bool,
    typer.Option(
        "--intervals",
        help="Also ask, with 0.3% to 12% of the budget, how far values lie from predictions, for "
        "`predict --interval` and `explain --groups`.",
    ),
]
PublicSpread = Annotated[
    float | None,
    typer.Option(metavar="S", help="About how far values lie from their mean, if that is public."),
]
PublicStep = Annotated[
    float | None,
    typer.Option(metavar="S", help="Distance of possible values: 1 for whole stars."),
]
LedgerFile = Annotated[
    Path | None,
    typer.Option("--ledger", metavar="FILE", help="Record spending there; it adds up over fits."),
]
Period = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Public name of the part of the data that is fitted; see `sfumato update`."
    ),
]
LedgerLimit = Annotated[
    float | None,
    typer.Option(metavar="E", help="Epsilon that a new ledger may reach."),
]
TuneRank = Annotated[
    list[int] | None,
    typer.Option(
        metavar="INT...",
        help="Choose among these ranks by private errors, within the budget: --tune-rank 2 4 8.",
    ),
]
NoiseSeed = Annotated[
    int | None,
    typer.Option(metavar="INT", help="Repeatable noise, for experiments only."),
]
SamplerOption = Annotated[
    SamplerName,
    typer.Option("--sampler", help="Who draws exact noise; OpenDP takes some 500 times as long."),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Release what is only claimed, or seeded; it is marked so."),
]
