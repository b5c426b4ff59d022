"""What is found of data and of fits, as plain records; texts and pictures are made from these alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.data import prepare
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import SettingError
from sfumato.markup import snippet
from sfumato.privacy.guarantee import Guarantee

# -- describing a tensor ------------------------------------------------------------------------


@dataclass(frozen=True)
class ModeDescription:
    """How the entries spread over the levels of a mode.

    ``histogram[0]`` counts the levels without entries, ``histogram[k]`` those with 2^(k-1) to
    2^k - 1 of them.
    """

    name: str
    levels: int
    fewest: int
    median: float
    most: int
    histogram: tuple[int, ...]


@dataclass(frozen=True)
class Description:
    """What there is to know of a tensor before it is fitted.

    ``duplicates`` counts the entries beyond the first of each cell; the lowest and highest value,
    mean and standard deviation are of the finite values, and None where there are none.
    """

    shape: tuple[int, ...]
    entries: int
    density: float
    dtype: str
    lowest: float | None
    highest: float | None
    mean: float | None
    deviation: float | None
    bounds: tuple[float, float] | None
    outside_bounds: int
    not_finite: int
    duplicates: int
    modes: tuple[ModeDescription, ...]
    rank: int
    bytes_entries: int
    bytes_als: int
    bytes_sgd: int

    def _repr_html_(self) -> str:
        """For notebooks."""
        modes = [
            (mode.name, f"{mode.levels:,} levels of {mode.fewest:,} to {mode.most:,} entries")
            for mode in self.modes
        ]
        values = "none is a finite number"
        if self.mean is not None:
            values = f"{self.lowest:g} to {self.highest:g}, mean {self.mean:.4g}"
        problems = {
            "repeat a cell": self.duplicates,
            "not finite": self.not_finite,
            "outside the bounds": self.outside_bounds,
        }
        found = [(name, f"{count:,} entries") for name, count in problems.items() if count]
        entries = f"{self.entries:,}, {self.density:.3g} of all cells"
        return snippet("Data", [*modes, ("entries", entries), ("values", values), *found])


def describe(tensor: SparseTensor, rank: int = 8) -> Description:
    """Describe a tensor, and estimate the memory that a CP fit of this rank needs."""
    if rank < 1:
        raise SettingError(f"a rank is a whole number from 1 on, got {rank}")
    finite = tensor.values[np.isfinite(tensor.values)].astype(np.float64)
    low, high = tensor.bounds or (-np.inf, np.inf)
    entries, als, sgd = _memory(tensor, rank)
    return Description(
        shape=tensor.shape,
        entries=tensor.n_entries,
        density=tensor.density,
        dtype=str(tensor.values.dtype),
        lowest=float(finite.min()) if finite.size else None,
        highest=float(finite.max()) if finite.size else None,
        mean=float(finite.mean()) if finite.size else None,
        deviation=float(finite.std()) if finite.size else None,
        bounds=tensor.bounds,
        outside_bounds=int(np.count_nonzero((finite < low) | (finite > high))),
        not_finite=tensor.n_entries - finite.size,
        duplicates=tensor.n_entries - prepare.merge_duplicates(tensor, "last").n_entries,
        modes=tuple(_describe_mode(mode, tensor.counts(mode.name)) for mode in tensor.modes),
        rank=rank,
        bytes_entries=entries,
        bytes_als=als,
        bytes_sgd=sgd,
    )


def _memory(tensor: SparseTensor, rank: int) -> tuple[int, int, int]:
    """Bytes of the entries, and at the peak of a fit by ALS and by SGD.

    ALS sorts the entries by every mode but the first, by which they are sorted already; SGD keeps
    one copy in random order. Both need a number per entry to work with.
    """
    n, order, itemsize = tensor.n_entries, tensor.order, tensor.values.dtype.itemsize
    entries = n * (4 * order + itemsize)
    sorted_by_one = n * (4 * (order - 1) + itemsize)
    rest = 8 * n + (rank + 1) * sum(tensor.shape) * itemsize
    return entries, entries + (order - 1) * sorted_by_one + rest, 2 * entries + rest


def _describe_mode(mode: Mode, counts: NDArray[np.int64]) -> ModeDescription:
    # The exponent of 0 is 0, that of 1 is 1, of 2 and 3 is 2, and so on.
    histogram = np.bincount(np.frexp(counts.astype(np.float64))[1])
    return ModeDescription(
        mode.name,
        mode.size,
        int(counts.min()),
        float(np.median(counts)),
        int(counts.max()),
        tuple(histogram.tolist()),
    )


# -- errors of predictors -----------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """How well a predictor did at held-out entries, and how long its fit took.

    ``measured`` is by a metric of the caller's own beside the RMSE: None where it does not apply.
    """

    name: str
    rmse: float
    seconds: float
    measured: float | None = None


@dataclass(frozen=True)
class Curve:
    """Errors of one predictor over a row of budgets, and between which they may lie."""

    name: str
    rmse: tuple[float, ...]
    band: tuple[tuple[float, float], ...] = ()


# -- errors by popularity ----------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Levels of like popularity: expected errors, and the measured one where entries were held out."""

    levels: int
    counted: float  # of an average level, as released: entries, or owners' with each one's weighed down
    noise: float
    scatter: float
    expected: float
    held_out: int | None = None
    measured: float | None = None


@dataclass(frozen=True)
class Groups:
    """A mode's levels from the rarest fifth to the most popular one."""

    mode: str
    status: str
    groups: tuple[Group, ...]


# -- what cutting a tensor has made -------------------------------------------------------------


@dataclass(frozen=True)
class Sharded:
    """A folder of shards."""

    folder: str
    modes: dict[str, int]
    entries: int
    bounds: tuple[float, float] | None
    dtype: str
    by: str
    shards: int
    bytes: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


# -- what a completion has found ----------------------------------------------------------------

NOT_COVERED = "this output is for the holder of the data: the guarantee covers the release folder alone"


@dataclass(frozen=True)
class OpenFit:
    """How a fit without privacy went."""

    solver: str
    training_rmse: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class PrivateFit:
    """What a private fit came to be, in words, whether public numbers chose it, and what it promises."""

    in_words: str
    chosen: bool
    guarantee: Guarantee

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.guarantee.method,
            "guarantee": self.guarantee.told(),
            "not_covered": NOT_COVERED,
        }


@dataclass(frozen=True)
class Completed:
    """What there is to say of a completion.

    ``entries`` are those of the file, of which a private fit may have left some out. ``remarks`` are
    about the held-out errors; they are said, and in no JSON.
    """

    file: str
    modes: dict[str, int]
    entries: int
    fitted_entries: int | None
    density: float
    bounds: tuple[float, float] | None
    model: str
    ranks: tuple[int, ...]
    seed: int
    test: float | None
    held_out: tuple[Result, ...]
    fit_seconds: float
    private: bool
    written: tuple[str, ...]
    how: OpenFit | PrivateFit
    remarks: tuple[str, ...] = ()
    metric: str | None = None

    def to_json(self) -> dict[str, Any]:
        facts = asdict(self)
        del facts["how"], facts["remarks"]
        if self.metric is None:
            del facts["metric"]
            for result in facts["held_out"]:
                del result["measured"]
        return facts | self.how.to_json()
