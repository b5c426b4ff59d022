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


def as_grid(X: Any) -> Array | None:
    """Rows of labels as NumPy or lists have them; None for a table, whose columns have names."""
    if isinstance(X, list | tuple):
        made = np.asarray(X, object)  # a word among numbers would make words of all
    elif hasattr(X, "__array__") and not hasattr(X, "columns"):
        made = np.asarray(X)
    else:
        return None
    if made.dtype.kind == "c":
        raise DataError("Complex data not supported: labels are words, whole numbers or times")
    return made


def _as_table(X: Any, modes: Sequence[Mode]) -> Any:
    grid = as_grid(X)
    if grid is None:
        return read_table(X)
    if grid.ndim != 2:
        raise DataError(
            f"a table of labels has {len(modes)} columns, got shape {grid.shape}. Reshape your data: "
            "X.reshape(1, -1) is one cell"
        )
    if grid.shape[1] != len(modes):
        raise DataError(
            f"X has {grid.shape[1]} features, but prediction is expecting {len(modes)} features as "
            "input: a column of labels for each mode"
        )
    return table_of({mode.name: grid[:, m] for m, mode in enumerate(modes)})
