"""Data of paper A's study: planted components under three kinds of noise, streams, and documents.

Y. Wang and A. Anandkumar, "Online and differentially-private tensor decomposition". The paper's own
simulations are in an appendix that we do not have: all data here are of our making.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
import scipy.sparse

from sfumato.data.tensor import Mode, SparseTensor
from sfumato.types import Array

FIRST_SEED = 100  # of the data sets that are scored; settings were chosen on others, from 1000 on
NOISE_SEEDS = 50_000  # added to the data's seed


# -- noise of a tensor ----------------------------------------------------------------------------
#
# Signal and noise lie along the axes: components are the first k unit vectors. The method and its random
# starts know no axes, so that nothing is lost, and all noise but the Gaussian is then sparse.


@dataclass(frozen=True)
class Noise:
    """A kind of noise: which of the paper's three models it is of, and how its threshold may fall."""

    model: int
    about: str
    guaranteed: float  # the power of d in the paper's condition


NOISES = {
    "aside": Noise(1, "pull aside", -1.0),
    "against": Noise(1, "push against", -1.0),
    "gaussian": Noise(2, "Gaussian", -0.5),
    "spurious": Noise(3, "spurious components", 0.0),
    "uncorrelated aside": Noise(3, "pull aside", 0.0),
}
_GROUND_STATE = 1.657  # the norm of a symmetric Gaussian tensor is about this times sqrt(d)


def noisy_tensors(noise: str, d: int, k: int, sizes: tuple[float, ...], seed: int) -> Iterator[Any]:
    """sum_i e_i (x) e_i (x) e_i with noise of each size, its operator norm; all weights are one."""
    if noise != "gaussian":
        made = _sparse_noise(noise, d, k)
        yield from (_with_components(made, d, k, size) for size in sizes)
        return
    drawn = symmetric_gaussian(d, np.random.default_rng(seed)) / (_GROUND_STATE * sqrt(d))
    first = np.arange(k)
    for size in sizes:
        tensor = size * drawn
        tensor[first, first, first] += 1.0
        yield tensor


def _sparse_noise(noise: str, d: int, k: int) -> tuple[Array, Array]:
    """Coordinates and values of noise with operator norm one; cells may come several times.

    The symmetric part of x (x) I has the norm |x|: its value at u, u, u is (x'u) |u|^2. So has that of
    x (x) P, where P projects on a space that x is in.
    """
    every, others = np.arange(d), np.arange(k, d)
    if noise == "aside":
        return _vector_and_identity([k], [1.0], every)
    if noise == "against":
        return _vector_and_identity(range(k), [-1 / sqrt(k)] * k, every)
    if noise == "spurious":
        return np.tile(others, (3, 1)), np.ones(d - k)
    return _vector_and_identity([k], [1.0], others)


def _vector_and_identity(places: Any, values: Any, space: Array) -> tuple[Array, Array]:
    """The symmetric part of x (x) P, for x with few coordinates and P the identity on some axes."""
    coordinates, cells = [], []
    for place, value in zip(places, values, strict=True):
        pair, one = space, np.full(len(space), place)
        for order in ((one, pair, pair), (pair, one, pair), (pair, pair, one)):
            coordinates.append(np.stack(order))
            cells.append(np.full(len(space), value / 3))
    return np.concatenate(coordinates, axis=1), np.concatenate(cells)


def _with_components(noise: tuple[Array, Array], d: int, k: int, size: float) -> SparseTensor:
    coordinates = np.concatenate([np.tile(np.arange(k), (3, 1)), noise[0]], axis=1)
    values = np.concatenate([np.ones(k), size * noise[1]])
    return SparseTensor(coordinates, values, tuple(Mode(name, d) for name in "abc"))


def symmetric_gaussian(d: int, generator: np.random.Generator, *, alike: bool = False) -> Array:
    """A symmetric Gaussian tensor whose value at any unit u, u, u is standard normal.

    So entries with three different indices have the variance 1/6 and those with two 1/3. With ``alike``
    all different entries have the variance 1 instead: what input perturbation adds.
    """
    three, two = (1.0, 1.0) if alike else (sqrt(1 / 6), sqrt(1 / 3))
    tensor = np.empty((d, d, d))
    for i in range(d):  # all entries whose least index is i
        block = np.triu(generator.standard_normal((d - i, d - i)) * three, 1)
        block[0] = generator.standard_normal(d - i) * two  # i, i, j
        np.fill_diagonal(block, generator.standard_normal(d - i) * two)  # i, j, j
        block[0, 0] = generator.standard_normal()
        block += np.triu(block, 1).T
        tensor[i, i:, i:] = tensor[i:, i, i:] = tensor[i:, i:, i] = block
    return tensor


def orthonormal(k: int, d: int, generator: np.random.Generator) -> Array:
    """Dense random components, a row each: incoherent, as assumption 4.1 asks for."""
    rows: Array = np.linalg.qr(generator.standard_normal((d, k))).Q.T
    return rows


def low_rank(weights: Array, components: Array) -> Array:
    """The dense symmetric tensor of order 3."""
    pairs = components[:, :, None] * components[:, None, :]
    return np.tensordot(components.T * weights, pairs, axes=1)


# -- streams --------------------------------------------------------------------------------------

_BLOCK = 10_000


@dataclass(frozen=True)
class Stream:
    """Samples x = sum_h xi_h v_h + g with centred exponential xi_h and standard normal g.

    The third moment of a centred exponential is 2 and that of g is 0, so that the moment of x is exactly
    2 sum_h v_h (x) v_h (x) v_h. The first samples are the same however many are asked for.
    """

    components: Array
    seed: int

    def blocks(self, count: int) -> Iterator[Array]:
        k, d = self.components.shape
        rows = self.components.astype(np.float32)
        for start in range(0, count, _BLOCK):
            generator = np.random.default_rng((self.seed, start))
            skewed = generator.standard_exponential((_BLOCK, k), np.float32) - 1
            samples = skewed @ rows + generator.standard_normal((_BLOCK, d), np.float32)
            yield samples[: count - start]


# -- documents ------------------------------------------------------------------------------------

SIDE = 8
TOPIC_SHARES = (0.22, 0.20, 0.18, 0.15, 0.13, 0.12)
FEWEST_WORDS, MOST_WORDS = 5, 20


def topics() -> dict[str, Array]:
    """Pictures of eight by eight words: the shares of the words in documents about each."""
    y, x = np.mgrid[:SIDE, :SIDE]
    middle = (SIDE - 1) / 2
    shapes = {
        "cross": (np.abs(x - middle) < 1) | (np.abs(y - middle) < 1),
        "ring": np.abs(np.hypot(x - middle, y - middle) - 3) < 0.75,
        "stripes": y % 4 < 2,
        "diagonal": np.abs(x - y) <= 1,
        "frame": (x % (SIDE - 1) == 0) | (y % (SIDE - 1) == 0),
        "corner": (x <= middle) & (y >= middle),
    }
    return {name: shape.ravel() / shape.sum() for name, shape in shapes.items()}


def documents(count: int, seed: int) -> Any:
    """Word counts, a document in every row; each is about one topic, and its length is public."""
    generator = np.random.default_rng(seed)
    shares = np.stack(list(topics().values()))
    blocks = []
    for start in range(0, count, _BLOCK):
        size = min(_BLOCK, count - start)
        about = generator.choice(len(shares), size, p=TOPIC_SHARES)
        lengths = generator.integers(FEWEST_WORDS, MOST_WORDS, size, endpoint=True)
        blocks.append(scipy.sparse.csr_array(generator.multinomial(lengths, shares[about])))
    return scipy.sparse.vstack(blocks, format="csr")
