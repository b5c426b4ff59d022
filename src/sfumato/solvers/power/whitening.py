"""Whitening of a tensor whose components are linearly independent but not orthogonal.

The space of the components is that of the leading eigenvectors of the tensor's unfolding. In it a
positive definite matrix M = sum c_i v_i v_i' with any c_i > 0 makes them orthogonal: with W' M W = I
the vectors sqrt(c_i) W' v_i are orthonormal (Anandkumar et al. 2014, section 4.3.1). Where none is
given, M is made of the tensor itself: pairs of modes are traced out down to two modes, or to three, of
which one is then contracted with the vector that makes M as positive as can be. Such vectors exist for
linearly independent components, and the least eigenvalue is a concave function of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.optimize import minimize

from sfumato.errors import DataError
from sfumato.kernels.numba.power import compress_sparse
from sfumato.solvers.power.iteration import RankError, Whitening, whiten
from sfumato.solvers.power.tensors import compress_dense
from sfumato.types import Array

_SHARPNESS = (5.0, 50.0, 500.0)  # of the smooth minimum, in units of one over the largest eigenvalue


class Whitened(NamedTuple):
    """A small dense tensor with orthogonal components, and the way back."""

    tensor: Array
    whitening: Whitening


def whiten_dense(tensor: Array, n_components: int, second_moment: Array | None = None) -> Whitened:
    """The whitened tensor of a symmetric array."""
    if second_moment is None:
        unfolded = tensor.reshape(len(tensor), -1)
        basis = _leading(unfolded @ unfolded.T, n_components)
        return _whitened_inside(compress_dense(tensor, basis), basis)
    whitening = _of_moment(second_moment, n_components)
    return Whitened(compress_dense(tensor, whitening.basis), whitening)


def whiten_sparse(
    coordinates: NDArray[np.int32],
    values: Array,
    shape: tuple[int, ...],
    n_components: int,
    second_moment: Array | None = None,
) -> Whitened:
    """The whitened tensor of a symmetric sparse one."""
    order = len(shape)
    if second_moment is None:
        columns = np.ravel_multi_index(tuple(coordinates[1:]), shape[1:])
        used, columns = np.unique(columns, return_inverse=True)
        unfolded = scipy.sparse.csr_array(
            (values, (coordinates[0], columns)), shape=(shape[0], used.size)
        )
        basis = _leading((unfolded @ unfolded.T).toarray(), n_components)
        return _whitened_inside(compress_sparse(coordinates, values, basis, order), basis)
    whitening = _of_moment(second_moment, n_components)
    return Whitened(compress_sparse(coordinates, values, whitening.basis, order), whitening)


def _leading(gram: Array, number: int) -> Array:
    values, vectors = np.linalg.eigh(gram)
    if values[-number] <= 1e-14 * values[-1]:
        rank = int((values > 1e-14 * values[-1]).sum())
        raise RankError(f"the tensor has rank {rank}, below the {number} components")
    return np.ascontiguousarray(vectors[:, -number:])


def _of_moment(moment: Array, number: int) -> Whitening:
    basis = np.linalg.eigh(moment)[1][:, -number:]
    small = whiten(basis.T @ moment @ basis)
    return Whitening(basis @ small.basis, basis @ small.inverse)


def _whitened_inside(small: Array, basis: Array) -> Whitened:
    """Whiten a tensor that was brought down to the space of its components."""
    moment = positive_moment(small)
    inner = whiten(moment)
    whitening = Whitening(basis @ inner.basis, basis @ inner.inverse)
    return Whitened(compress_dense(small, inner.basis), whitening)


def positive_moment(tensor: Array) -> Array:
    """A positive definite matrix sum c_i v_i v_i' of a tensor sum w_i v_i (x) ... (x) v_i."""
    while tensor.ndim > 3:
        tensor = np.trace(tensor, axis1=-2, axis2=-1)
    if tensor.ndim == 2:
        if np.linalg.eigvalsh(tensor)[0] <= 0:
            raise DataError(
                "a tensor of even order whose components have negative weights cannot be whitened by "
                "itself: give a second moment (whiten=...), or look for fewer components"
            )
        return tensor
    towards = np.einsum("iij->j", tensor)  # where components are near orthogonal, this is near the best
    if not towards.any():
        towards = np.ones(len(tensor))
    scale = float(np.abs(tensor).max()) or 1.0
    for sharpness in _SHARPNESS:
        towards = minimize(_soft_least, towards, (tensor, sharpness / scale), jac=True).x
    moment: Array = tensor @ (towards / np.linalg.norm(towards))
    return moment


def _soft_least(towards: Array, tensor: Array, sharpness: float) -> tuple[float, Array]:
    """Minus a smooth form of the least eigenvalue of T(I, I, t), for the unit vector t ``towards``.

    It is -log(sum exp(-s eigenvalue)) / s; its gradient averages T(w, w, I) over eigenvectors w.
    """
    length = float(np.linalg.norm(towards))
    unit = towards / length
    values, vectors = np.linalg.eigh(tensor @ unit)
    shifted = np.exp(-sharpness * (values - values[0]))
    smooth = values[0] - np.log(shifted.sum()) / sharpness
    shares = shifted / shifted.sum()
    slope = np.einsum("ijk,il,jl,l->k", tensor, vectors, vectors, shares, optimize=True)
    slope -= (slope @ unit) * unit
    return -float(smooth), -slope / length
