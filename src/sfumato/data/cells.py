"""Cells that a caller names by labels: in a tensor, a table, columns, or one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sfumato.data.io.labels import bin_times
from sfumato.data.io.read import labels_of, read_table
from sfumato.data.io.tables import table_of
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import DataError
from sfumato.types import Array


def labels_in(X: Any, modes: Sequence[Mode]) -> Mapping[str, Any]:
    """Labels by mode name of the cells of a tensor, a table, or columns by name."""
    if isinstance(X, SparseTensor):
        return {
            mode.name: mode.labels_at(levels)
            for mode, levels in zip(X.modes, X.coordinates, strict=True)
        }
    if isinstance(X, Mapping):
        return _binned(X, modes)
    return labels_of(_as_table(X, modes), modes)


def as_columns(labels: Mapping[str, Any]) -> dict[str, Array]:
    """Labels by mode as columns of one length; single labels are repeated."""
    columns = {name: np.atleast_1d(np.asarray(value)) for name, value in labels.items()}
    length = max(column.shape[0] for column in columns.values())
    return {
        name: np.repeat(column, length) if column.shape[0] == 1 else column
        for name, column in columns.items()
    }


def _binned(labels: Mapping[str, Any], modes: Sequence[Mode]) -> dict[str, Any]:
    """The same labels, with times cut to the bins of their mode."""
    binned = dict(labels)
    for mode in modes:
        if mode.bin is not None and mode.name in labels:
            column = table_of({mode.name: labels[mode.name]}).column(0).combine_chunks()
            times = bin_times(column, mode.bin, column=mode.name)
            binned[mode.name] = times.to_numpy(zero_copy_only=False)
    return binned


def _as_table(X: Any, modes: Sequence[Mode]) -> Any:
    if isinstance(X, np.ndarray):
        if X.ndim != 2 or X.shape[1] != len(modes):
            raise DataError(f"a table of labels needs {len(modes)} columns, got shape {X.shape}")
        return table_of({mode.name: X[:, m] for m, mode in enumerate(modes)})
    return read_table(X)
