"""Planted tensors, and Algorithm 1 in loops over explicit ones, which the fast forms are held against.

What was found is taken off the tensor itself, restarts go one after the other, and each question has a
tensor of its own: that of the whole data where they are used again, that of a block of samples else.
"""

import numpy as np

import sfumato as sf


def outer_power(vector, order):
    tensor = np.array(1.0)
    for _ in range(order):
        tensor = np.multiply.outer(tensor, vector)
    return tensor


def planted(weights, vectors, order):
    """sum w v (x) ... (x) v."""
    return sum(w * outer_power(v, order) for w, v in zip(weights, vectors, strict=True))


def planted_blocks(weights, factors):
    """sum w a (x) b (x) ..., with a matrix of vectors for each mode."""
    letters = "abcdef"[: len(factors)]
    terms = ",".join(f"z{a}" for a in letters)
    return np.einsum(f"z,{terms}->{letters}", weights, *factors)


def orthonormal(size, rank, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((size, rank))).Q.T


def slanted(size, rank, seed=0):
    """Unit vectors that are linearly independent and far from orthogonal."""
    vectors = np.random.default_rng(seed).standard_normal((rank, size)) + 0.5
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def sparse(dense):
    modes = tuple(sf.Mode(f"m{i}", size) for i, size in enumerate(dense.shape))
    return sf.SparseTensor(np.stack(np.nonzero(dense)), dense[np.nonzero(dense)], modes)


FORMS = {"dense": np.asarray, "sparse": sparse}


def entry_privacy(epsilon=1.0, delta=1e-6, change=0.01, **others):
    return sf.Privacy(epsilon, delta, unit=sf.TensorEntry(change), **others)


def sample_privacy(epsilon=1.0, entries=200, norm=2.0, **others):
    public = sf.Public(entries=entries)
    return sf.Privacy(epsilon, 1e-6, unit=sf.Sample(norm), public=public, **others)


def skewed(n=300, seed=0):
    return (np.random.default_rng(seed).exponential(size=(n, 4)) - 1.0) * np.array([0.9, 0.7, 0.5, 0.3])


# -- Algorithm 1 ----------------------------------------------------------------------------------


def empirical_moment(samples, order):
    """The average of x (x) ... (x) x."""
    rows = np.asarray(samples, np.float64)
    return sum(outer_power(row, order) for row in rows) / len(rows)


def contracted(tensor, vector, times):
    for _ in range(times):
        tensor = tensor @ vector
    return tensor


def unit(vector):
    return vector / np.linalg.norm(vector)


def towards(vector, other):
    return -vector if vector @ other < 0 else vector


def slow_method(tensors, starts, iterations, average=False):
    """Weights and vectors of as many components as there are ``starts`` (a matrix of columns each).

    ``tensors`` gives the tensor of the next question.
    """
    weights, vectors = [], []
    for directions in starts:
        us = list(directions.T)
        sums = [np.zeros_like(u) for u in us]
        for step in range(iterations):
            tensor = deflated(next(tensors), weights, vectors)
            powers = [contracted(tensor, u, tensor.ndim - 1) for u in us]
            if average and 2 * (step + 1) > iterations:
                sums = [s + towards(p, s) for s, p in zip(sums, powers, strict=True)]
                powers = sums if step + 1 == iterations else powers
            us = [unit(power) for power in powers]
        tensor = deflated(next(tensors), weights, vectors)
        order = tensor.ndim
        values = [float(contracted(tensor, u, order)) for u in us]
        best = int(np.argmax(values if order % 2 else np.abs(values)))
        weight, vector = values[best], us[best]
        if average:
            alike = [i for i, u in enumerate(us) if abs(u @ us[best]) >= 0.8]
            signs = {i: -1.0 if us[i] @ us[best] < 0 else 1.0 for i in alike}
            vector = unit(sum(signs[i] * sums[i] for i in alike))
            weight = float(np.mean([signs[i] ** order * values[i] for i in alike]))
        weights.append(weight)
        vectors.append(vector)
    return np.array(weights), np.array(vectors)


def deflated(tensor, weights, vectors):
    if not weights:
        return tensor
    return tensor - planted(weights, vectors, tensor.ndim)


def slow_whitening(moments, start, rounds):
    """The matrix that whitens, and the way back, by orthogonal iteration on explicit second moments."""
    basis = start
    for _ in range(rounds - 1):
        basis = np.linalg.qr(next(moments) @ basis).Q
    small = basis.T @ next(moments) @ basis
    values, vectors = np.linalg.eigh((small + small.T) / 2)
    return basis @ vectors / np.sqrt(values), basis @ vectors * np.sqrt(values)


def brought_down(tensor, basis):
    for _ in range(tensor.ndim):
        tensor = np.tensordot(tensor, basis, axes=(0, 0))
    return tensor


def taken_back(weights, vectors, inverse, order):
    back = vectors @ inverse.T
    length = np.linalg.norm(back, axis=1)
    return weights * length**order, back / length[:, None]
