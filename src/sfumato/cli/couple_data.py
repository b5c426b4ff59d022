"""What ``sfumato couple`` reads: tables with modes that they share, and the cells that are held out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfumato.cli.common import columns_of
from sfumato.cli.couple_order import CoupleOrder, PrivateOrder, TableOrder
from sfumato.data import prepare
from sfumato.data.cells import labels_in
from sfumato.data.io.read import read
from sfumato.data.io.tables import Selection, check_columns
from sfumato.data.relations import Relation, Relations
from sfumato.data.tensor import SparseTensor, locate
from sfumato.errors import DataError, SettingError, UnknownLabelError

MOST_HELD_OUT = 10_000_000  # cells, zeros included
_LARGEST = 2**62


# -- files ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """A table's file with the columns that are read, and the modes that these become."""

    order: TableOrder
    columns: tuple[str, ...]
    modes: tuple[str, ...]
    bins: Mapping[str, str]

    def read(self, file: Path) -> SparseTensor:
        """The entries of the table, or of a file of cells that is like it; one at each cell."""
        tensor = self.read_all(file)
        with _naming(file):
            return prepare.merge_duplicates(tensor, self.order.duplicates.value)

    def read_all(self, file: Path, bounds: tuple[float, float] | None = None) -> SparseTensor:
        """The same with all entries that a cell has."""
        tensor = read(
            file,
            self.columns,
            self.order.value,
            bounds=bounds,
            bins=self.bins,
            variable=self.order.variable,
            separator=self.order.separator,
            date_format=self.order.date_format if self.bins else None,
        )
        renamed = zip(tensor.modes, self.modes, strict=True)
        return replace(tensor, modes=tuple(replace(mode, name=name) for mode, name in renamed))


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Say of which file something is wrong."""
    try:
        yield
    except (DataError, SettingError, UnknownLabelError) as error:
        raise type(error)(f"{file}: {error}") from error


def find_sources(order: CoupleOrder | PrivateOrder) -> list[Source]:
    """The files of all tables; what is missing there is said before any of them is read."""
    sources = [_source(table, order.bins) for table in order.tables]
    for key in order.bins:
        if not any(key in source.bins or key in source.modes for source in sources):
            known = ", ".join(dict.fromkeys(column for each in sources for column in each.columns))
            raise SettingError(f"--bin names {key!r}, which no table has among its modes: {known}")
    if any(each.order.date_format for each in sources) and not any(each.bins for each in sources):
        raise SettingError(
            "--date-format says how times are written: say with --bin which columns hold times"
        )
    return sources


def _source(table: TableOrder, bins: Mapping[str, str]) -> Source:
    available, name = columns_of(table.file, table.separator, table.variable), table.name
    if available and (table.modes is None or table.value is None):
        raise SettingError(
            f"say with --modes {name}=A,B which columns of {table.file} hold labels and with --value "
            f"{name}=C which holds the values; the columns are {', '.join(available)}"
        )
    if table.modes is None:
        raise SettingError(
            f"say with --modes {name}=A,B what the modes of {table.file} are: tables are joined where "
            "names are equal"
        )
    columns, modes = zip(*(_renamed(text, available) for text in table.modes), strict=True)
    if len(set(modes)) < len(modes):
        raise SettingError(
            f"--modes {name}={','.join(table.modes)} names a mode twice: of two columns of the same "
            "things one needs another name, such as friend beside user"
        )
    own = {c: bins.get(c) or bins.get(m) for c, m in zip(columns, modes, strict=True)}
    cut = {column: bin for column, bin in own.items() if bin is not None}
    source = Source(table, columns, modes, cut)
    for file in (table.file, *([table.test] if isinstance(table.test, Path) else [])):
        _check_columns(source, file)
    return source


def _renamed(text: str, available: Sequence[str]) -> tuple[str, str]:
    """A column and its mode: of one name, or as in ``user_id:user``."""
    column, given, mode = text.rpartition(":")
    if text in available or not (given and column and mode):
        return text, text
    return column, mode


def _check_columns(source: Source, file: Path) -> None:
    available = columns_of(file, source.order.separator, source.order.variable)
    if available:
        with _naming(file):
            Selection(source.columns, source.order.value, source.bins)
            check_columns([*source.columns, str(source.order.value)], available)


# -- what is fitted, and what is held out -----------------------------------------------------------


class Parts(NamedTuple):
    """The tables to fit, the same less the cells that are held out, and these by table.

    ``train`` is ``whole`` where nothing of the tables themselves is held out.
    """

    whole: Relations
    train: Relations
    tests: dict[str, SparseTensor]


def divide(order: CoupleOrder, sources: Sequence[Source]) -> Parts:
    """Read all tables, bring their labels into one order, and hold out what is asked for."""
    tensors = {source.order.name: source.read(source.order.file) for source in sources}
    relations = related(order.tables, tensors)
    given = {name: with_unknown(relation) for name, relation in relations.items()}
    train, tests = dict(given), dict[str, SparseTensor]()
    for source in sources:
        name, test = source.order.name, source.order.test
        if isinstance(test, Path):
            tests[name] = _test_file(source, test, relations[name])
            given[name] = train[name] = _less(given[name], relations[name], tests[name])
        elif test is not None:
            tests[name] = _drawn(relations[name], test, order.seed)
            train[name] = _less(given[name], relations[name], tests[name])
    whole = related(order.tables, given)
    shares = any(isinstance(table.test, float) for table in order.tables)
    return Parts(whole, related(order.tables, train) if shares else whole, tests)


def related(tables: Sequence[TableOrder], tensors: Mapping[str, SparseTensor]) -> Relations:
    """Tensors with the settings of their tables."""
    known = [table for table in tables if table.name in tensors]
    return Relations(
        tensors,
        structure={table.name: table.structure.value for table in known},
        divergence={table.name: table.divergence for table in known},
        dispersion={table.name: table.dispersion for table in known},
        absent={table.name: table.absent.value for table in known},
    )


def with_unknown(relation: Relation) -> SparseTensor:
    """The tensor that a relation was made of: with NaN at cells that were not observed."""
    return _with_cells(relation.tensor, relation.unknown, np.full(relation.unknown.shape[1], np.nan))


def _with_cells(tensor: SparseTensor, cells: NDArray[Any], values: NDArray[Any]) -> SparseTensor:
    if not cells.shape[1]:
        return tensor
    coordinates = np.concatenate([tensor.coordinates, cells], axis=1)
    return SparseTensor(coordinates, np.concatenate([tensor.values, values]), tensor.modes)


def _test_file(source: Source, file: Path, relation: Relation) -> SparseTensor:
    """The cells of a file with the levels of a relation."""
    test, name = source.read(file), source.order.name
    with _naming(file):
        prepare.check_values(test)
        modes = relation.tensor.modes
        cells = locate(modes, labels_in(test, modes), "no table has it. Leave such cells out")
    known = among(cells, relation.tensor.coordinates, relation.tensor.shape)
    if known.any():
        raise DataError(
            f"{known.sum():,} of the {test.n_entries:,} cells of {file} are entries of {name!r} too: "
            f"leave them out of one file, or hold out a share with --test {name}=0.2"
        )
    return SparseTensor(cells, test.values, relation.tensor.modes)


def _drawn(relation: Relation, share: float, seed: int) -> SparseTensor:
    """A random share of the entries; where absent cells are zeros, of all observed cells."""
    if relation.absent == "missing":
        return relation.tensor.split(share, seed=seed)[1]
    shape, name = relation.tensor.shape, relation.name
    total = prod(shape)
    if share * total > MOST_HELD_OUT:
        raise SettingError(
            f"a share of {share:g} of the {total:,} cells of {name!r}, zeros included, is more than "
            f"{MOST_HELD_OUT:,}: hold out less, or name cells with --test {name}=FILE"
        )
    rng = np.random.default_rng(seed)
    # Gaps between the cells that are drawn, each with the same probability.
    expected = share * total
    gaps = rng.geometric(share, round(expected + 6 * sqrt(expected)) + 10)
    numbers = np.cumsum(gaps) - 1
    numbers = numbers[numbers < total]
    if relation.unknown.shape[1]:
        numbers = np.setdiff1d(numbers, np.ravel_multi_index(tuple(relation.unknown), shape))
    entries = np.ravel_multi_index(tuple(relation.tensor.coordinates), shape)
    values = np.zeros(len(numbers), relation.tensor.values.dtype)
    _, place, among = np.intersect1d(numbers, entries, assume_unique=True, return_indices=True)
    values[place] = relation.tensor.values[among]
    if not len(numbers) or len(place) == len(entries):
        side = "test" if not len(numbers) else "train"
        raise SettingError(f"a test share of {share:g} of the cells of {name!r} leaves {side} empty")
    cells = np.stack(np.unravel_index(numbers, shape)).astype(np.int32)
    return SparseTensor(cells, values, relation.tensor.modes)


def _less(tensor: SparseTensor, relation: Relation, test: SparseTensor) -> SparseTensor:
    """A table without the cells that are held out: not observed, rather than zero."""
    held = among(tensor.coordinates, test.coordinates, tensor.shape)
    kept = tensor.take(~held) if held.any() else tensor
    if relation.absent == "missing":
        return kept
    return _with_cells(kept, test.coordinates, np.full(test.n_entries, np.nan))


def among(cells: NDArray[Any], others: NDArray[Any], shape: Sequence[int]) -> NDArray[np.bool_]:
    """Which cells are among others."""
    together = np.concatenate([cells, others], axis=1)
    numbers, most = np.zeros(together.shape[1], np.int64), 1
    for levels, size in zip(together, shape, strict=True):
        if most * size >= _LARGEST:  # more cells than numbers: count only those that occur
            _, numbers = np.unique(numbers, return_inverse=True)
            most = together.shape[1]
        numbers, most = numbers * size + levels, most * size
    own, rest = np.split(numbers, [cells.shape[1]])
    return np.isin(own, rest)
