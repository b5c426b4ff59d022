"""T(I, u, ..., u) of a moment of samples, a batch at a time; the moment itself is never formed.

Each moment answers a query with a *sum* over the samples of a batch, and bounds how much one sample can
move it (proofs/power.md). Whoever asks adds the batches up and divides by the number of samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log10, sqrt
from typing import Any, Protocol

import numpy as np
import scipy.sparse

from sfumato.checks import check_choice
from sfumato.data.samples import MOST_ROWS
from sfumato.errors import DataError, SettingError
from sfumato.records import record
from sfumato.solvers.power.iteration import Query
from sfumato.types import Array

Batch = Any  # a matrix with a sample in every row, dense or sparse by rows
_MOST_OF_A_WORD = 1e9  # in one private document
_DIGITS = 100  # powers of ten that a power of a norm may be above or below one


class Moment(Protocol):
    """What a stream of samples is asked for."""

    @property
    def order(self) -> int: ...

    def prepared(self, batch: Batch, basis: Array | None) -> Batch:
        """The samples as they may be used: checked, or under privacy clipped without a word."""

    def counted(self, prepared: Batch) -> int:
        """How many of the samples count."""

    def summed(self, prepared: Batch, query: Query) -> Array:
        """The answer to a query, summed over samples."""

    def sensitivity(self, query: Query) -> float:
        """The most by which one sample moves that sum, in the L2 norm and in real numbers."""

    def roundings(self, query: Query) -> float:
        """How often, as it were, a sample's part is rounded on its way into a batch's sum.

        That many times 2^-53 of the sensitivity bounds what rounding adds for every sample.
        """

    def unit(self) -> str:
        """What a sample is called."""


@record
@dataclass(frozen=True)
class SampleMoment:
    """The raw moment E[x (x) ... (x) x]; whitening uses E[x x'].

    Under privacy samples are shortened to ``norm``, and whitened ones to ``whitened_norm``; None where
    nothing is private.
    """

    order: int = 3
    norm: float | None = None
    whitened_norm: float | None = None

    def prepared(self, batch: Batch, basis: Array | None) -> Batch:
        if self.norm is None:
            return batch if basis is None else _like(batch, batch @ basis.astype(batch.dtype))
        rows = shortened(batch, self.norm)
        if basis is None:
            return rows
        return shortened(rows @ basis, self._norm(basis))

    def _norm(self, basis: Array | None) -> float:
        """What samples, or whitened ones, are shortened to."""
        norm = self.norm if basis is None else self.whitened_norm
        if norm is None:
            raise SettingError("samples of unknown length can move a sum by any amount: give a norm")
        return norm

    def counted(self, prepared: Batch) -> int:
        return int(prepared.shape[0])

    def summed(self, prepared: Batch, query: Query) -> Array:
        directions = query.directions.astype(prepared.dtype)
        inner = prepared @ directions
        if query.kind == "weights":
            return np.asarray(raised(inner, self.order).sum(axis=0, dtype=np.float64))
        power = inner if query.kind == "second moment" else raised(inner, self.order - 1)
        return np.asarray(prepared.T @ power)

    def sensitivity(self, query: Query) -> float:
        """Of the powers of a sample's cosines with all directions: the root of the largest eigenvalue of
        the directions' Gram matrix, raised cell by cell; one for one direction."""
        norm = self._norm(query.basis)
        if query.kind == "second moment":  # its directions are orthonormal
            return norm**2
        power = self.order if query.kind == "weights" else self.order - 1
        together = np.linalg.norm((query.directions.T @ query.directions) ** power, 2)
        return norm**self.order * sqrt(float(together))

    def roundings(self, query: Query) -> float:
        """Of the sum over rows; and of each factor, which is rounded in proportion to its length."""
        size, columns = query.directions.shape
        factors = float(size + 4)
        if query.basis is not None:
            longer = self._norm(None) * float(np.linalg.norm(query.basis)) / self._norm(query.basis)
            factors += (len(query.basis) + 4) * max(1.0, longer)
        return MOST_ROWS + self.order * factors * sqrt(columns) + 10

    def unit(self) -> str:
        return "sample"


@record
@dataclass(frozen=True)
class DocumentMoment:
    """Moments of single-topic documents: rows of word counts.

    The moment is that of three different words of a document, averaged over all choices (of two, for
    whitening), so that a word never meets itself; with topics mu and their shares w it is
    sum w mu (x) mu (x) mu (Anandkumar et al. 2014, section 3.1). For counts c of n words

        n (n-1) (n-2) T(I, u, u) = (c'u)^2 c - (c'u^2) c - 2 (c'u) (c * u) + 2 c * u^2,

    products and squares of vectors taken word by word. Documents of fewer than three words say nothing.
    """

    private: bool = False

    @property
    def order(self) -> int:
        return 3

    def prepared(self, batch: Batch, basis: Array | None) -> Batch:  # noqa: ARG002
        counts: Any = scipy.sparse.csr_array(batch).astype(np.float64, copy=self.private)
        if self.private:
            counts.data = np.where(np.isfinite(counts.data), np.floor(counts.data), 0.0)
            # Counts of 1e300 would leave the range, and an error would tell of one document.
            counts.data = np.clip(counts.data, 0.0, _MOST_OF_A_WORD)
        else:
            _check_counts(counts.data)
        long_enough = _row_sums(counts) >= 3
        return counts if long_enough.all() else counts[long_enough]

    def counted(self, prepared: Batch) -> int:
        return int(prepared.shape[0])

    def summed(self, prepared: Batch, query: Query) -> Array:
        words = _row_sums(prepared)[:, None]
        if query.kind == "second moment":
            pairs = 1 / (words * (words - 1))
            directions = query.directions
            return np.asarray(
                prepared.T @ (pairs * (prepared @ directions)) - directions * (prepared.T @ pairs)
            )
        triples = 1 / (words * (words - 1) * (words - 2))
        u = query.directions if query.basis is None else query.basis @ query.directions
        # Side by side: a sparse product with twice the columns takes less time than two.
        if query.kind == "weights":
            once, twice, thrice = np.hsplit(prepared @ np.hstack([u, u**2, u**3]), 3)
            return np.asarray((triples * (once**3 - 3 * once * twice + 2 * thrice)).sum(axis=0))
        products = prepared @ np.hstack([u, u**2])
        once, twice = np.hsplit(products, 2)
        np.subtract(once**2, twice, out=twice)
        products *= triples
        cross, power = np.hsplit(prepared.T @ products, 2)
        power = power - 2 * u * (cross - u * (prepared.T @ triples))
        return np.asarray(power if query.basis is None else query.basis.T @ power)

    def sensitivity(self, query: Query) -> float:
        """A document's part is an average over choices of words: at most what one choice gives."""
        if query.kind == "second moment":
            return _longest_row(query.directions)
        u = query.directions if query.basis is None else query.basis @ query.directions
        if query.kind == "weights":
            return sqrt(float((u**6).sum(axis=1).max()))
        first = 1.0 if query.basis is None else _longest_row(query.basis)
        return first * sqrt(float((u**4).sum(axis=1).max()))

    def roundings(self, query: Query) -> float:
        """Words that are taken off again make up to ten times of what is left, at three words."""
        words = len(query.directions if query.basis is None else query.basis)
        return 10 * sqrt(query.directions.shape[1]) * (MOST_ROWS + 3 * words + 20)

    def unit(self) -> str:
        return "document"


@record
@dataclass(frozen=True)
class SumInDoubles:
    """How much one sample moves a sum, with room for the roundings of the sums of both neighbours.

    ``samples`` is how many there are at most; batches are added up without loss.
    """

    moment: Moment
    samples: int

    def __call__(self, query: Query) -> float:
        rounding = 2 * self.samples * self.moment.roundings(query) * 2.0**-53
        return self.moment.sensitivity(query) * (1 + rounding)

    def most(self, query: Query) -> float:
        """What no answer is longer than."""
        return self.samples * self(query)


def _check_counts(counts: Array) -> None:
    wrong = (counts < 0) | (counts != np.floor(counts)) | (counts == inf)
    if wrong.any():
        raise DataError(
            f"documents are rows of word counts, whole numbers from 0 on; got {counts[wrong][0]:g}"
        )


def shortened(batch: Any, norm: float) -> Batch:
    """Rows at most ``norm`` long, in double precision; a row that is not finite becomes zero."""
    if scipy.sparse.issparse(batch):
        given: Any = batch
        rows = given.tocsr().astype(np.float64)  # a copy
        rows.data = _finite_or_zero(rows)
        length = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
        factor = np.minimum(1.0, norm / np.where(length > 0, length, 1.0))
        return scipy.sparse.csr_array(rows.multiply(factor[:, None]))
    dense = np.asarray(batch, np.float64)
    dense = np.where(np.isfinite(dense).all(axis=1, keepdims=True), dense, 0.0)
    # Divided by the largest coordinate first: squares of large numbers would overflow.
    largest = np.abs(dense).max(axis=1, keepdims=True, initial=0.0)
    unit = np.divide(dense, largest, out=np.zeros_like(dense), where=largest > 0)
    length = np.linalg.norm(unit, axis=1, keepdims=True)
    return unit * np.minimum(largest, np.divide(norm, length, where=length > 0, out=length))


def _finite_or_zero(rows: Any) -> Array:
    """Stored values, all of a row zero where one of them is not finite (or too large to square)."""
    owner = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    bad = np.unique(owner[~(np.abs(rows.data) < 1e150)])
    return np.where(np.isin(owner, bad), 0.0, rows.data)


def raised(values: Array, power: int) -> Array:
    """A whole power, by products; a square is written over what was given."""
    if power == 2:
        return np.square(values, out=values)
    product = values
    for _ in range(power - 1):
        product = product * values
    return product


def check_sums(total: Array, batch: Any, before: int) -> None:
    """Sums that are not finite come from samples that are not, or from large ones.

    ``before`` is the number of samples before the batch.
    """
    if np.isfinite(total).all():
        return
    rows, columns, values = scipy.sparse.find(batch)  # NaN is not zero
    bad = ~np.isfinite(values)
    if bad.any():
        first = int(rows[bad].min())
        column = int(columns[bad & (rows == first)].min())
        raise DataError(
            f"sample {before + first} of the stream (counted from 0) holds NaN or infinity, at "
            f"feature {column}: leave such samples out, or fill them in, first"
        )
    raise DataError(
        f"among samples {before} to {before + batch.shape[0] - 1} of the stream are some too large to "
        "be multiplied: scale them down"
    )


def make_moment(name: str, order: int, norm: float | None = None, *, private: bool = False) -> Any:
    """A moment by its name."""
    check_choice(("samples", "documents"), moment=name)
    if name == "documents":
        if order != 3:
            raise SettingError(f"documents have a moment of order 3 here, got order {order}")
        if norm is not None:
            raise SettingError("documents need no bound: leave the norm of the sample out")
        return DocumentMoment(private)
    if private and norm is None:
        raise SettingError(
            "say how long a sample may be, sfumato.Sample(norm=...): longer ones are shortened"
        )
    if norm is not None and abs(order * log10(norm)) > _DIGITS:
        raise SettingError(
            f"a norm of {norm:g} to the power of {order} is out of range: give samples in other units"
        )
    return SampleMoment(order, norm)


def _row_sums(matrix: Any) -> Array:
    return np.asarray(matrix @ np.ones(matrix.shape[1]))


def _longest_row(matrix: Array) -> float:
    return float(np.linalg.norm(matrix, axis=1).max())


def _like(batch: Batch, product: Any) -> Array:
    return np.asarray(product, batch.dtype)
