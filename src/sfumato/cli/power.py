"""``sfumato power``: components of a tensor, or of the moment of samples."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from sfumato.cli import options
from sfumato.cli.command import command
from sfumato.cli.common import (
    columns_of,
    console,
    notes_unless,
    reading,
    refuse_folder,
    save_or_rescue,
    say_what_was_written,
    write_factors_beside,
)
from sfumato.cli.options import FactorFormat
from sfumato.cli.privacy import Spending, check_releasable, refuse_without_epsilon
from sfumato.errors import DataError, SettingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from sfumato.data.tensor import Mode
    from sfumato.estimators.power import PowerMethod
    from sfumato.fit.request import Privacy

_ARRAYS = ("npy", "npz", "mat")  # files that say how large a tensor is


@dataclass(frozen=True)
class What:
    """What is decomposed: a tensor as it is, or the moment of samples."""

    samples: Annotated[
        bool,
        typer.Option("--samples", help="Rows of FILE are samples, and their moment is decomposed."),
    ] = False
    documents: Annotated[
        bool,
        typer.Option(
            "--documents", help="Rows of FILE are documents as counts of words; components are topics."
        ),
    ] = False
    columns: Annotated[
        list[str] | None,
        typer.Option("--columns", metavar="COLUMN...", help="Of samples: columns with their numbers."),
    ] = None
    order: Annotated[int, typer.Option(min=3, metavar="N", help="Of the moment of samples.")] = 3
    asymmetric: Annotated[
        bool,
        typer.Option("--asymmetric", help="Of a tensor: each mode has vectors of its own."),
    ] = False
    whiten: Annotated[
        bool,
        typer.Option("--whiten", help="Components are independent, but not orthogonal."),
    ] = False

    @property
    def of_samples(self) -> bool:
        return self.samples or self.documents

    def check(self, columns: options.Columns) -> None:
        if self.of_samples:
            given = [flag for flag, said in columns.given.items() if said is not None]
            given = [flag for flag in given if flag not in ("--variable", "--separator")]
            if given or self.asymmetric:
                flags = ", ".join([*given, *["--asymmetric"] * self.asymmetric])
                raise SettingError(f"{flags}: of a tensor, and not of samples")
        elif self.columns or self.order != 3:
            raise SettingError("--columns and --order are of samples: say --samples or --documents")
        elif columns.bounds is not None:
            raise SettingError("--bounds: a tensor is decomposed as it is; leave it out")


@dataclass(frozen=True)
class Protection:
    """Within which budget to protect one sample, or one entry of the tensor."""

    epsilon: options.Epsilon = None
    delta: options.Delta = None
    unit: Annotated[
        str | None,
        typer.Option(metavar="UNIT", help="What is protected: sample, or entry of a tensor."),
    ] = None
    norm: Annotated[
        float | None,
        typer.Option(metavar="L", help="Public length that longer samples are shortened to."),
    ] = None
    change: Annotated[
        float | None,
        typer.Option(metavar="C", help="By how much one entry of the tensor may change, publicly."),
    ] = None
    public_entries: Annotated[
        int | None, typer.Option(metavar="N", help="About how many samples there are; it is public.")
    ] = None

    def settings(self, what: What, spending: Spending) -> Privacy | None:
        """The privacy asked for; whatever is wrong with it is said before the file is read."""
        from sfumato.fit.request import Privacy
        from sfumato.privacy.budgets import Budget
        from sfumato.privacy.units import Public, Sample, TensorEntry

        if self.epsilon is None:
            refuse_without_epsilon(self._given(spending), private_method=False)
            return None
        unit: Sample | TensorEntry
        if what.of_samples:
            self._check_unit("sample", "--change", self.change)
            if self.norm is None and not what.documents:
                raise SettingError("say with --norm to which public length longer samples are shortened")
            unit = Sample(self.norm)
        else:
            self._check_unit("entry", "--norm", self.norm)
            if self.change is None:
                raise SettingError("say with --change by how much one entry of the tensor may change")
            unit = TensorEntry(self.change)
        check_releasable(None if spending.noise_seed is None else "seeded", spending)
        delta, limit = self.delta or 0.0, spending.ledger_limit
        return Privacy(
            self.epsilon,
            delta,
            unit,
            public=Public(entries=self.public_entries),
            ledger=spending.ledger,
            limit=None if limit is None else Budget(limit, delta),
            seed=spending.noise_seed,
            sampler=spending.sampler.value,
        )

    def _check_unit(self, wanted: str, flag: str, given: float | None) -> None:
        if self.unit != wanted:
            what = "samples protects a sample" if wanted == "sample" else "a tensor protects an entry"
            raise SettingError(f"a private decomposition of {what}: say --unit {wanted}")
        if given is not None:
            raise SettingError(f"{flag} is not about --unit {wanted}: leave it out")

    def _given(self, spending: Spending) -> dict[str, object]:
        sampler = spending.sampler
        return {
            "--delta": self.delta,
            "--unit": self.unit,
            "--norm": self.norm,
            "--change": self.change,
            "--public-entries": self.public_entries,
            "--ledger": spending.ledger,
            "--ledger-limit": spending.ledger_limit,
            "--noise-seed": spending.noise_seed,
            "--sampler": None if sampler == options.SamplerName.sfumato else sampler,
            "--force": spending.force or None,
        }


class _Source(NamedTuple):
    """What is decomposed, with the modes by whose labels components are described."""

    data: Any
    modes: tuple[Mode, ...]
    in_words: str


@command(
    "Find the components of a tensor, or of samples.",
    "sfumato power tensor.npy --components 4 --out components",
    "sfumato power triples.csv --modes from to over --value count --components 3 --asymmetric",
    "sfumato power samples.parquet --samples --components 3 --whiten --again",
    "sfumato power samples.npy --samples --components 3 --epsilon 1 --delta 1e-6 --unit sample \\",
    "    --norm 4 --public-entries 50000 --out components",
    take_several=("--columns",),
    page="docs/power.md#on-the-command-line",
)
def power(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A tensor, in a .npy, .npz, .mat, .tns file or a table; or samples, in a .npy file, a "
            ".parquet file or a folder of these, or a table; comes first.",
        ),
    ],
    *,
    components: Annotated[int, typer.Option(min=1, metavar="K", help="How many to look for.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            callback=options.folder_for_files,
            help="Folder for the components; older ones are replaced.",
        ),
    ] = None,
    what: What,
    columns: options.Columns,
    restarts: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Random starts of each component.")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Iterations from each start.")
    ] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Fit once more, from other starts, and say how far components move."
        ),
    ] = False,
    protection: Protection,
    spending: Spending,
    seed: Annotated[int, typer.Option(help="Of the random starts, which are public.")] = 0,
    threads: options.Threads = None,
    device: options.Device = options.DeviceName.cpu,
    factors: options.Factors = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Find weights and unit vectors whose outer products add up to a tensor, and print them.

    FILE holds a tensor of three modes or more, whose absent entries are zeros. With --samples it holds
    samples, a row each, and their moment E[x x x] about zero is decomposed without being formed; with
    --documents counts of words, and components are topics.

    The error is what the components leave of the tensor, as a share of its norm. Without --epsilon the
    result is not private. With it, DIR may be handed out: it holds the components, their weights and how
    much noise is in these. A private tensor is an array, whose shape is public; the error is for you
    alone.
    """
    from sfumato.estimators.power import PowerMethod
    from sfumato.store import check_destination

    notes = notes_unless(quiet)
    what.check(columns)
    privacy = protection.settings(what, spending)
    if again and privacy is not None:
        raise SettingError("--again would spend the budget twice: leave it out, or fit twice")
    if factors is not None and out is None:
        raise SettingError("--factors are written beside the components: name a folder with --out")
    if out is not None:
        check_destination(out, in_parts=False)
    settings: dict[str, Any] = {
        "symmetric": not what.asymmetric,
        "whiten": what.whiten,
        "moment": "documents" if what.documents else "samples",
        "order": what.order,
        "privacy": privacy,
        "threads": threads,
        "device": device.value,
    }
    estimator = PowerMethod(components, restarts, iterations, seed=seed, **settings)
    with reading(file.name, notes):
        source = (
            _samples(file, what, columns) if what.of_samples else _tensor(file, what, columns, privacy)
        )
    with spending.told():
        _fit(estimator, source, what, notes)
    moves = None
    if again:
        second = PowerMethod(components, restarts, iterations, seed=seed + 1, **settings)
        _fit(second, source, what, notes)
        moves = _moves(estimator, second)
    written = []
    if out is not None:
        written.append(save_or_rescue(partial(estimator.save, force=spending.force), out))
        if factors is not None:
            written += _write_factors(out, estimator, source, factors)
    error = None if what.of_samples else _error(estimator, source.data)
    _say(file, out, estimator, source, error, moves, written, as_json)


# -- reading --------------------------------------------------------------------------------------


def _samples(file: Path, what: What, columns: options.Columns) -> _Source:
    """Samples as a path that is read in pieces, or as an array of numbers from a table of text."""
    import numpy as np

    from sfumato.cli.example_tables import read_examples
    from sfumato.data.io.files import file_kind
    from sfumato.data.samples import open_samples
    from sfumato.data.tensor import Mode
    from sfumato.models.features import as_numbers

    named: list[str] | None = what.columns
    data: Any = file
    if file.is_dir() or file_kind(file) in ("npy", "parquet"):
        if file.is_dir():
            refuse_folder(file)
        size = open_samples(file, named, may_be_empty=True).size
        if named is None and not file.is_dir():
            named = columns_of(file) or None
    else:
        table = read_examples(file, columns.separator, columns.variable)
        named = named or table.column_names
        if missing := [name for name in named if name not in table.column_names]:
            raise DataError(
                f"{file} has no column {missing[0]!r}; it has {', '.join(table.column_names)}"
            )
        # Each cell by itself: a word in one row is missing there, and says nothing of other rows.
        data = np.stack([as_numbers(table.column(name).to_pylist()) for name in named], axis=1)
        size = len(named)
    labels = np.array(named, object) if named is not None and len(named) == size else None
    return _Source(data, (Mode("feature", size, labels),), f"samples of {size:,} numbers")


def _tensor(file: Path, what: What, columns: options.Columns, privacy: Privacy | None) -> _Source:
    import numpy as np

    from sfumato.data.io.files import file_kind
    from sfumato.data.io.npy import load_npy
    from sfumato.data.tensor import Mode

    refuse_folder(file)
    kind = file_kind(file)
    if privacy is not None and (kind not in _ARRAYS or columns.modes):
        raise SettingError(
            f"{file.name} says how large the tensor is by its entries, which are private: give an "
            "array, in a .npy, .npz or .mat file, whose shape is public"
        )
    if kind == "npy":
        data: Any = load_npy(file)
        modes = tuple(Mode(f"mode{m + 1}", size) for m, size in enumerate(data.shape))
    else:
        data = columns.read(file)
        modes = data.modes
    shape = " x ".join(f"{mode.size:,}" for mode in modes)
    if what.asymmetric:
        return _Source(data, modes, f"a tensor of {shape}")
    first, *others = ([mode.size, *mode.labels_at(np.arange(mode.size)).tolist()] for mode in modes)
    if any(other != first for other in others):
        raise DataError(
            f"modes of {file.name} have different levels: a symmetric tensor has the same in all modes, "
            "and holds all permutations of each entry; say --asymmetric of others"
        )
    return _Source(data, modes[:1], f"a symmetric tensor of {shape}")


# -- fitting --------------------------------------------------------------------------------------


def _fit(estimator: PowerMethod, source: _Source, what: What, notes: Console) -> None:
    from sfumato.report.progress import FitProgress

    with FitProgress(notes) as progress:
        progress.begin("private components" if estimator.privacy is not None else "components")
        estimator.set_params(progress=progress)
        if what.of_samples:
            estimator.fit_stream(source.data, columns=what.columns)
        else:
            estimator.fit(source.data)
    estimator.set_params(progress=None)


def _error(estimator: PowerMethod, data: Any) -> float | None:
    """What components leave; None where a private fit was of data that an open one would refuse."""
    if estimator.guarantee_ is None:
        return estimator.error(data)
    try:
        left = estimator.error(data)
    except DataError:
        return None
    return left if isfinite(left) else None


def _moves(estimator: PowerMethod, second: PowerMethod) -> Any:
    from sfumato.models.components import match_components

    found = (list(each.fitted_components_.vectors) for each in (second, estimator))
    return match_components(*found).errors


def _write_factors(
    out: Path, estimator: PowerMethod, source: _Source, format: FactorFormat
) -> list[Path]:
    vectors = [matrix.T for matrix in estimator.fitted_components_.vectors]
    return write_factors_beside(out, vectors, source.modes, format.value)


# -- saying ---------------------------------------------------------------------------------------


def _say(
    file: Path,
    out: Path | None,
    estimator: PowerMethod,
    source: _Source,
    error: float | None,
    moves: Any,
    written: Sequence[Path],
    as_json: bool,
) -> None:
    import numpy as np

    from sfumato.report.components import components_json, components_table, found_components
    from sfumato.report.networks import FOR_YOU_ALONE
    from sfumato.report.records import NOT_COVERED
    from sfumato.report.text import NOT_PRIVATE

    guarantee = estimator.guarantee_
    labels = {mode.name: mode.labels_at(np.arange(mode.size)).tolist() for mode in source.modes}
    vectors = estimator.fitted_components_.vectors
    found = found_components(estimator.weights_, estimator.weight_deviations_, vectors, labels, moves)
    if as_json:
        told = {
            "file": str(file),
            "of": source.in_words,
            "components": components_json(found),
            "error": error,
            "error_for_release": False,
            "fit_seconds": estimator.fit_seconds_,
            "private": guarantee is not None,
            "guarantee": None if guarantee is None else guarantee.told(),
            "written": [str(each) for each in written],
        }
        typer.echo(json.dumps(told))
    else:
        screen = console()
        screen.print(f"{source.in_words}: components in {estimator.fit_seconds_:.2f} s\n")
        screen.print(components_table(found))
        if error is not None:
            screen.print(f"\nerror: the components leave {error:.2%} of the tensor's norm")
        if guarantee is not None:
            if error is not None:
                screen.print(FOR_YOU_ALONE)
            screen.print(f"\n{NOT_COVERED}\n" if out is not None else "")
            screen.print(f"{guarantee}\n")
        if out is not None:
            say_what_was_written(screen, written)
        if out is not None and guarantee is not None:
            folder = quote(str(out))
            screen.print(f"hand out: {folder}; sfumato explain {folder}", soft_wrap=True)
    if guarantee is None:
        typer.echo(NOT_PRIVATE, err=True)
