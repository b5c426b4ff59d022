"""What fits are given, as tensors: tables of labels, and what of a tensor a private fit may see."""

from __future__ import annotations

from typing import Any

from numpy.typing import DTypeLike

from sfumato.checks import as_numbers, as_one_column
from sfumato.data import prepare
from sfumato.data.cells import as_grid
from sfumato.data.io.read import read, read_table
from sfumato.data.io.tables import table_of
from sfumato.data.tensor import SparseTensor
from sfumato.errors import DataError
from sfumato.fit.admit import Protected, admit
from sfumato.models.losses import LOSSES, Loss
from sfumato.privacy.entropy import Entropy


def as_tensor(X: Any, y: Any = None) -> SparseTensor:
    """A tensor as it is, or one made of a table of labels ``X`` with values ``y``."""
    return X if isinstance(X, SparseTensor) else _tensor_from_table(X, y)


def _tensor_from_table(X: Any, y: Any) -> SparseTensor:
    """A tensor whose modes are the columns of X."""
    if y is None:
        raise DataError("fit takes a SparseTensor (see sfumato.read), or a table of labels and values")
    grid = as_grid(X)
    if grid is not None:
        if grid.ndim != 2:
            raise DataError(f"a table of labels has two dimensions, got {grid.ndim}")
        if not grid.shape[1]:
            raise DataError(f"X has 0 feature(s) (shape={grid.shape}) while a minimum of 2 is required.")
        table = table_of({f"mode{m + 1}": grid[:, m] for m in range(grid.shape[1])})
    else:
        table = read_table(X)
    names = table.column_names
    values = as_one_column(as_numbers("y", y))
    if values.shape != (table.num_rows,):
        raise DataError(f"{table.num_rows} rows need as many values y, got shape {values.shape}")
    return read(table.append_column("_value", [values]), names, "_value")


def checked(
    tensor: SparseTensor, duplicates: prepare.DuplicatePolicy, loss: Loss = LOSSES["squared"]
) -> SparseTensor:
    """The tensor as a fit without privacy takes it: values in order, and one entry at a cell."""
    prepare.check_values(tensor)
    merged = prepare.merge_duplicates(tensor, duplicates)
    if merged is not tensor:
        prepare.check_values(merged)  # a sum may be out of bounds
    loss.check_values(merged)
    return loss.of(merged)


def admitted(
    tensor: SparseTensor,
    protected: Protected,
    duplicates: prepare.DuplicatePolicy,
    entropy: Entropy,
    loss: Loss = LOSSES["squared"],
) -> SparseTensor:
    """The tensor as a private fit may see it."""
    if not protected.unit.hides_presence:  # elsewhere entries at one cell are entries of their own
        tensor = prepare.merge_duplicates(tensor, duplicates)
    return admit(loss.of(tensor), protected, entropy)


def cast(tensor: SparseTensor, dtype: DTypeLike) -> SparseTensor:
    """The tensor with values of this type; itself where they are already."""
    return tensor if tensor.values.dtype == dtype else tensor.astype(dtype)
