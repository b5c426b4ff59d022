"""Tensors that the power method decomposes: checked, and as what answers its questions."""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np

from sfumato.checks import as_numbers
from sfumato.data import symmetric
from sfumato.data.tensor import SparseTensor
from sfumato.errors import DataError, SettingError
from sfumato.models.components import Components
from sfumato.privacy.units import TensorEntry
from sfumato.solvers.power.iteration import PowerSettings, Whitening
from sfumato.solvers.power.on_device import DenseOnDevice, SparseOnDevice
from sfumato.solvers.power.sensitivity import STEPS, step_of
from sfumato.solvers.power.tensors import (
    MOST_ENTRIES,
    DenseBlocks,
    DenseSymmetric,
    Sparse,
    TensorSource,
)
from sfumato.solvers.power.whitening import whiten_dense, whiten_sparse
from sfumato.types import Array

_AT_ONCE = 1 << 18  # entries of a sparse tensor


def as_array(X: Any) -> Array:
    """An array of float64 of what is not a sparse tensor."""
    if isinstance(X, np.ma.MaskedArray):
        raise DataError("the tensor is masked: put numbers in place of what is masked with filled()")
    if isinstance(X, str | PathLike):
        raise DataError(
            "fit takes an array or a sfumato.SparseTensor: "
            f"read {X} first, with numpy.load or sfumato.read"
        )
    array = np.asarray(X)
    if array.dtype.kind not in "iufb":
        raise DataError(f"a tensor holds numbers, got {array.dtype}")
    return np.ascontiguousarray(array, np.float64)


def check_values(tensor: Array | SparseTensor) -> None:
    """Refuse a tensor that has no components, or none that could be found."""
    values = tensor.values if isinstance(tensor, SparseTensor) else tensor
    if not np.isfinite(values).all():
        raise DataError("the tensor holds NaN or infinity: fill such entries in, or complete it first")
    if not values.any():
        raise DataError("the tensor is zero everywhere: it has no components")


# -- without privacy -------------------------------------------------------------------------------


def share_left(found: Components, tensor: Array | SparseTensor) -> float:
    """The norm of what components leave of a tensor, over the norm of the tensor."""
    values = tensor.values if isinstance(tensor, SparseTensor) else tensor
    whole = float(np.square(values, dtype=np.float64).sum())
    if not whole:
        raise DataError("the tensor is zero everywhere: nothing can be left of it")
    alike = np.prod([factor @ factor.T for factor in found.factors], axis=0)
    both = found.weights @ alike @ found.weights - 2 * found.weights @ _within(found, tensor)
    return float(np.sqrt(np.maximum(0.0, 1 + both / whole)))


def _within(found: Components, tensor: Array | SparseTensor) -> Array:
    """Of each component, without its weight, the inner product with a tensor."""
    if not isinstance(tensor, SparseTensor):
        product = tensor @ found.factors[-1].T
        for factor in reversed(found.factors[:-1]):
            product = np.einsum("...dk,kd->...k", product, factor)
        return np.asarray(product)
    total = np.zeros(len(found.weights))
    for begin in range(0, tensor.n_entries, _AT_ONCE):
        some = slice(begin, begin + _AT_ONCE)
        rows = [
            factor[:, at[some]] for factor, at in zip(found.factors, tensor.coordinates, strict=True)
        ]
        total += np.prod(rows, axis=0) @ tensor.values[some]
    return total


def open_source(
    tensor: Array | SparseTensor,
    settings: PowerSettings,
    whiten: Any,
    threads: int,
    on_gpu: bool = False,
) -> tuple[TensorSource, Whitening | None]:
    """What answers for a tensor; with ``whiten`` for the whitened one, and how to get back from it.

    A whitened tensor has as many levels as components, and stays on processors.
    """
    moment = _moment_to_whiten_by(whiten, settings)
    if not isinstance(tensor, SparseTensor):
        if moment is False:
            return _dense(tensor, settings.symmetric, on_gpu), None
        whitened = whiten_dense(tensor, settings.components, moment)
    else:
        cells, values = symmetric.merged(tensor)
        if moment is False:
            if on_gpu:
                return SparseOnDevice(cells, values, tensor.shape, symmetric=settings.symmetric), None
            source = Sparse(cells, values, tensor.shape, symmetric=settings.symmetric, threads=threads)
            return source, None
        whitened = whiten_sparse(cells, values, tensor.shape, settings.components, moment)
    return DenseSymmetric(whitened.tensor), whitened.whitening


def _dense(tensor: Array, symmetric_one: bool, on_gpu: bool) -> TensorSource:
    if on_gpu:
        return DenseOnDevice(tensor, symmetric=symmetric_one)
    return (DenseSymmetric if symmetric_one else DenseBlocks)(tensor)


def _moment_to_whiten_by(whiten: Any, settings: PowerSettings) -> Any:
    """The matrix to whiten by; None for one that has to be found, False for no whitening."""
    if isinstance(whiten, bool | np.bool_):
        if whiten and not settings.symmetric:
            raise SettingError("whitening is for symmetric tensors: symmetrise it, or leave whiten out")
        return None if whiten else False
    moment = as_numbers("whiten", whiten)
    if moment.shape != (settings.sizes[0],) * 2 or not settings.symmetric:
        raise SettingError(
            f"whiten is True, False, or for a symmetric tensor a matrix with {settings.sizes[0]} "
            f"rows and columns; got an array of shape {moment.shape}"
        )
    if not np.isfinite(moment).all() or not np.allclose(moment, moment.T, rtol=1e-8):
        raise SettingError("the matrix to whiten by is symmetric and without NaN or infinity")
    return moment


# -- privately -------------------------------------------------------------------------------------


def private_source(
    tensor: Array | SparseTensor, unit: TensorEntry, threads: int, on_gpu: bool = False
) -> TensorSource:
    """Values in whole steps, cut at a public number; whatever they are, nothing is said of them.

    Of a sparse tensor processors answer, whose sums add up what they lose by rounding.
    """
    step, most = step_of(unit), unit.most * STEPS
    if not isinstance(tensor, SparseTensor):
        array = symmetric.mirrored_array(tensor) if unit.symmetric else tensor
        kept = symmetric.whole_steps(array, step, most) * step
        return _dense(kept, unit.symmetric, on_gpu)
    _check_entries(tensor.n_entries)
    steps = symmetric.whole_steps(tensor.values, step, most)
    cells, summed = symmetric.merge(tensor.coordinates, steps)
    values = np.clip(summed, -most, most) * step
    if unit.symmetric:
        cells, values = symmetric.mirrored_cells(cells, values, tensor.shape)
        _check_entries(len(values))
    return Sparse(cells, values, tensor.shape, symmetric=unit.symmetric, threads=threads)


def _check_entries(entries: int) -> None:
    """Beyond it sums are rounded more than the proof allows for (proofs/power.md)."""
    if entries > MOST_ENTRIES:
        raise DataError(
            f"a private decomposition takes sparse tensors of up to {MOST_ENTRIES:,} entries, all "
            "permutations of a symmetric one included"
        )
