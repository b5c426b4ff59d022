"""Symmetric tensors: whether one is, and how one is made of one that is not."""

from __future__ import annotations

from itertools import permutations
from math import factorial

import numpy as np
from numpy.typing import NDArray

from sfumato.data.tensor import SparseTensor
from sfumato.errors import DataError
from sfumato.types import Array

Cells = tuple[NDArray[np.int32], Array]  # coordinates and values
_TOLERANCE = 1e-8  # part of the largest value by which permuted entries may differ


def symmetrise(tensor: Array | SparseTensor) -> Array | SparseTensor:
    """The average over all permutations of the modes: the symmetric tensor that is nearest."""
    check_cube(tensor.shape)
    if isinstance(tensor, SparseTensor):
        coordinates, values = _permuted(tensor.coordinates, tensor.values)
        summed = _summed(coordinates, values / factorial(tensor.order), tensor.shape)
        return SparseTensor(*summed, tensor.modes)
    dense = np.asarray(tensor, np.float64)
    orders = list(permutations(range(dense.ndim)))
    return np.asarray(sum(dense.transpose(order) for order in orders)) / len(orders)


def check_symmetric(tensor: Array | SparseTensor) -> None:
    """A ``DataError`` that names two cells where a tensor is not symmetric."""
    check_cube(tensor.shape)
    if isinstance(tensor, SparseTensor):
        _check_cells(*merged(tensor))
        return
    tolerance = _TOLERANCE * float(np.abs(tensor).max(initial=0.0))
    for mode in range(tensor.ndim - 1):  # swaps of neighbours make up all permutations
        swapped = np.swapaxes(tensor, mode, mode + 1)
        for first in range(len(tensor)):  # a slice at a time: no second tensor
            apart = np.abs(tensor[first] - swapped[first]) > tolerance
            if apart.any():
                cell = (first, *(int(i) for i in np.argwhere(apart)[0]))
                other = list(cell)
                other[mode], other[mode + 1] = other[mode + 1], other[mode]
                _refuse(cell, float(tensor[cell]), tuple(other), float(tensor[tuple(other)]))


def _check_cells(coordinates: NDArray[np.int32], values: Array) -> None:
    tolerance = _TOLERANCE * float(np.abs(values).max(initial=0.0))
    size = int(coordinates.max()) + 1
    keys = _keys(coordinates, size)
    for mode in range(len(coordinates) - 1):
        swapped = coordinates.copy()
        swapped[[mode, mode + 1]] = coordinates[[mode + 1, mode]]
        wanted = _keys(swapped, size)
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        mirrored = np.where(keys[place] == wanted, values[place], 0.0)
        apart = np.flatnonzero(np.abs(mirrored - values) > tolerance)
        if apart.size:
            e = int(apart[0])
            cell, other = (tuple(c[:, e].tolist()) for c in (coordinates, swapped))
            _refuse(cell, float(values[e]), other, float(mirrored[e]))


def _refuse(cell: tuple[int, ...], value: float, other: tuple[int, ...], mirrored: float) -> None:
    raise DataError(
        f"the tensor is not symmetric: {value:g} at {cell}, {mirrored:g} at {other}. Average it over "
        "permutations (sfumato.data.symmetric.symmetrise), or decompose it as it is (symmetric=False)"
    )


def mirrored_cells(coordinates: NDArray[np.int32], values: Array, shape: tuple[int, ...]) -> Cells:
    """Cells whose levels ascend, and all permutations of them; other cells are not looked at.

    So a tensor is made symmetric without saying whether it was.
    """
    check_cube(shape)
    ascending = (np.diff(coordinates, axis=0) >= 0).all(axis=0)
    every, repeated = _permuted(coordinates[:, ascending], values[ascending])
    # An index that holds a level twice comes out of several permutations.
    cells, place = np.unique(_keys(every, shape[0]), return_index=True)
    return np.ascontiguousarray(every[:, place]), repeated[place] if cells.size else repeated


def mirrored_array(tensor: Array) -> Array:
    """The same of an array."""
    check_cube(tensor.shape)
    size, order = tensor.shape[0], tensor.ndim
    rest = np.indices((size,) * (order - 1), dtype=np.int32).reshape(order - 1, -1)
    whole = np.empty((size, rest.shape[1]))
    for first in range(size):
        index = np.sort(np.vstack([np.full(rest.shape[1], first, np.int32), rest]), axis=0)
        whole[first] = tensor[tuple(index)]
    return whole.reshape(tensor.shape)


def whole_steps(values: Array, step: float, most: int) -> NDArray[np.int64]:
    """Values as the nearest whole numbers of steps, cut at ``most`` of them, without a word about them.

    What is not finite counts as zero. Whole numbers, so that entries at one cell add up without
    rounding: beside an entry of 1e20, another one would vanish, or count for more than it is.
    """
    with np.errstate(over="ignore"):  # it is cut all the same
        steps = np.where(np.isfinite(values), values, 0.0) / step
    return np.rint(np.clip(steps, -most, most)).astype(np.int64)


def merged(tensor: SparseTensor) -> Cells:
    """Coordinates and values of a tensor; several entries at one cell are added up."""
    return merge(tensor.coordinates, np.asarray(tensor.values, np.float64))


def merge(coordinates: NDArray[np.int32], values: Array) -> Cells:
    """The same of a tensor's coordinates and other values, of whatever type."""
    first = np.ones(len(values), bool)  # entries are sorted: those of one cell are neighbours
    first[1:] = (np.diff(coordinates, axis=1) != 0).any(axis=0)
    if first.all():
        return coordinates, values
    return np.ascontiguousarray(coordinates[:, first]), np.add.reduceat(values, np.flatnonzero(first))


def _summed(coordinates: NDArray[np.int32], values: Array, shape: tuple[int, ...]) -> Cells:
    keys, place, back = np.unique(
        np.ravel_multi_index(tuple(coordinates), shape), return_index=True, return_inverse=True
    )
    totals = np.bincount(back, values, minlength=len(keys))
    return np.ascontiguousarray(coordinates[:, place]), totals


def _permuted(coordinates: NDArray[np.int32], values: Array) -> Cells:
    orders = list(permutations(range(len(coordinates))))
    every = np.concatenate([coordinates[list(order)] for order in orders], axis=1)
    return every, np.tile(np.asarray(values, np.float64), len(orders))


def _keys(coordinates: NDArray[np.int32], size: int) -> NDArray[np.int64]:
    keys = np.zeros(coordinates.shape[1], np.int64)
    for levels in coordinates:
        keys = keys * size + levels
    return keys


def check_cube(shape: tuple[int, ...]) -> None:
    if len(set(shape)) > 1:
        raise DataError(
            f"a symmetric tensor has modes of one size, got {' x '.join(map(str, shape))}; decompose "
            "it as it is with symmetric=False"
        )
    if len(shape) * np.log2(max(shape)) > 62:
        raise DataError(
            f"a symmetric tensor of order {len(shape)} may have up to {int(2 ** (62 / len(shape))):,} "
            f"levels, got {shape[0]:,}"
        )
