"""What people see of data and results: descriptions, tables and pictures.

Everything here works on tensors, arrays and plain records, and knows no estimator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from sfumato.data import prepare
from sfumato.data.io.write import replacing
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import SettingError, SfumatoError
from sfumato.solvers.protocol import Info
from sfumato.surface import setting
from sfumato.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Console, Group
    from rich.table import Table

_BLOCKS = "▁▂▃▄▅▆▇█"

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


def bars(histogram: Sequence[int]) -> str:
    """A histogram in one line of text; only what is empty has no height at all."""
    top = max(histogram)
    return "".join(_BLOCKS[-(-count * len(_BLOCKS) // top) - 1] if count else " " for count in histogram)


def description_text(described: Description) -> Group:
    """A description to print."""
    from rich.console import Group

    shape = " x ".join(f"{mode.name} {mode.levels:,}" for mode in described.modes)
    lines = [
        f"{shape}: {described.entries:,} entries, {described.density:.3g} of all cells",
        _values_line(described),
        *_problem_lines(described),
    ]
    memory = (
        f"memory of a fit of rank {described.rank}, about: ALS {_readable(described.bytes_als)}, "
        f"SGD {_readable(described.bytes_sgd)} (the entries alone take "
        f"{_readable(described.bytes_entries)})"
    )
    return Group(*lines, "", _modes_table(described.modes), "", memory)


def _values_line(described: Description) -> str:
    if described.mean is None:
        return "values: none is a finite number"
    bounds = described.bounds
    within = "" if bounds is None else f"; bounds {bounds[0]:g} to {bounds[1]:g}"
    return (
        f"values: {described.lowest:g} to {described.highest:g}, mean {described.mean:.4g}, "
        f"standard deviation {described.deviation:.4g} ({described.dtype}){within}"
    )


def _problem_lines(described: Description) -> list[str]:
    """What stands in the way of a fit."""
    policies = [policy for policy in prepare.POLICIES if policy != "error"]
    found = [
        (described.duplicates, f"repeat a cell: merge them, {setting('duplicates', *policies)}"),
        (described.not_finite, "have no value, or one that is not finite: leave such rows out"),
        (described.outside_bounds, "lie outside the bounds: correct them, or give wider bounds"),
    ]
    problems = [f"{count:,} entries {what}" for count, what in found if count]
    within = "" if described.bounds is None else ", none outside the bounds"
    return problems or [f"no duplicates, no missing values{within}"]


def _modes_table(modes: Sequence[ModeDescription]) -> Table:
    table = plain_table("mode", "levels", "fewest", "median", "most", "levels by number of entries")
    for mode in modes:
        begin = next(k for k, count in enumerate(mode.histogram) if count)
        first, last = _lowest_of_bin(begin), _lowest_of_bin(len(mode.histogram) - 1)
        picture = f"{first:,} {bars(mode.histogram[begin:])} {last:,}+"
        table.add_row(
            mode.name,
            f"{mode.levels:,}",
            f"{mode.fewest:,}",
            f"{mode.median:,g}",
            f"{mode.most:,}",
            picture,
        )
    table.columns[-1].justify = "left"
    return table


def _lowest_of_bin(k: int) -> int:
    return 2 ** (k - 1) if k else 0


def _readable(n_bytes: int) -> str:
    """A number of bytes with two or three digits."""
    amount = float(n_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:,.3g} TB"


def plain_table(*headings: str) -> Table:
    """A table with a rule below its headings; all but the first column hold numbers.

    Where a screen is too narrow, the first column is broken into lines: nothing is cut off.
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number, heading in enumerate(headings):
        if number:
            table.add_column(heading, justify="right", no_wrap=True)
        else:
            table.add_column(heading, overflow="fold")
    return table


# -- comparing predictors -----------------------------------------------------------------------


class Predictor(Protocol):
    """What can be fitted to one tensor and asked for the values of another."""

    def fit(self, X: SparseTensor) -> Any: ...

    def predict(self, X: SparseTensor) -> Any: ...


@dataclass(frozen=True)
class Result:
    """How well a predictor did at held-out entries, and how long its fit took."""

    name: str
    rmse: float
    seconds: float


def compare(
    predictors: Mapping[str, Predictor],
    train: SparseTensor,
    test: SparseTensor,
    announce: Callable[[str], None] = lambda _: None,
) -> list[Result]:
    """Fit each predictor, and measure it beside the mean of the training values.

    ``announce`` is told the name of each before it is fitted.
    """
    begin = time.perf_counter()
    mean = float(train.values.mean(dtype=np.float64))
    results = [Result("constant", rmse(mean, test.values), time.perf_counter() - begin)]
    for name, predictor in predictors.items():
        announce(name)
        begin = time.perf_counter()
        predictor.fit(train)
        seconds = time.perf_counter() - begin
        results.append(Result(name, rmse(predictor.predict(test), test.values), seconds))
    return results


def rmse(predicted: Array | float, actual: Array) -> float:
    """Root mean squared error of predictions, or of one for all."""
    return float(np.sqrt(np.mean(np.square(actual - predicted, dtype=np.float64))))


def results_table(results: Sequence[Result]) -> Table:
    """Held-out errors and seconds, the gain over the first (the constant) beside them."""
    table = plain_table("", "held-out RMSE", "less than constant", "seconds")
    for result in results:
        gain = 1 - result.rmse / results[0].rmse if results[0].rmse else 0.0
        shown = "" if result is results[0] else f"{gain:.1%}"
        table.add_row(result.name, f"{result.rmse:.4f}", shown, f"{result.seconds:.2f}")
    return table


# -- while a fit runs ---------------------------------------------------------------------------


class FitProgress:
    """A bar on the terminal that follows fits; where there is no terminal, nothing is shown.

    It is a context, and the ``progress`` of an estimator.
    """

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[error]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, what: str) -> None:
        """Replace the bar by an empty one."""
        for task in self._bar.task_ids:
            self._bar.remove_task(task)
        self._bar.add_task(what, total=None, error="")

    def __call__(self, done: int, rounds: int, info: Info) -> None:
        error = "" if info.train_rmse is None else f"training RMSE {info.train_rmse:.4f}"
        self._bar.update(self._bar.task_ids[-1], completed=done, total=rounds, error=error)


def warm_up(predictors: Iterable[Predictor], tensor: SparseTensor) -> None:
    """Have kernels compiled or loaded by fits to a few entries: no later fit looks as slow as that."""
    few = tensor.take(np.unique(np.linspace(0, tensor.n_entries - 1, 1000).astype(np.int64)))
    for predictor in predictors:
        # A fit to so few entries may diverge; what else is wrong, the fit to all will say.
        with suppress(SfumatoError):
            predictor.fit(few)
            predictor.predict(few)


# -- pictures -----------------------------------------------------------------------------------

_INK, _FAINT, _ACCENT = "#22303c", "#8a97a3", "#c8553d"
_BINS = 40


def picture(
    path: str | PathLike[str],
    results: Sequence[Result],
    predicted: Array,
    actual: Array,
    *,
    title: str = "",
) -> Path:
    """Draw errors beside each other, and where predictions lie for the actual values.

    The last of the results is the one whose predictions are shown.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.12, wspace=0.08)
    figure = Figure(figsize=(10, 4.2), dpi=150, layout=layout)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    if title:
        figure.suptitle(title, x=0.015, ha="left", color=_INK, fontsize=13, fontweight="bold")
    _draw_errors(left, results)
    _draw_agreement(right, np.asarray(predicted, np.float64), np.asarray(actual, np.float64))
    target = Path(path)
    with replacing(target) as file:
        figure.savefig(file, format=target.suffix.lstrip(".") or "png", facecolor="white")
    return target


@dataclass(frozen=True)
class Curve:
    """Errors of one predictor over a row of budgets, and between which they may lie."""

    name: str
    rmse: tuple[float, ...]
    band: tuple[tuple[float, float], ...] = ()


def trade_off(
    path: str | PathLike[str],
    epsilons: Sequence[float],
    curves: Sequence[Curve],
    levels: Sequence[Result],
    *,
    title: str = "",
    note: str = "",
    errors: str = "RMSE at held-out entries",
) -> Path:
    """Draw error against epsilon: curves of private predictors, and levels of those that are not.

    The last curve is the one to look at.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.12)
    figure = Figure(figsize=(10, 4.6), dpi=150, layout=layout)
    axes = figure.subplots()
    if title:
        figure.suptitle(title, x=0.015, ha="left", color=_INK, fontsize=13, fontweight="bold")
    axes.set_title(note, loc="left", fontsize=11, color=_INK, pad=14)
    axes.set_xscale("log")
    right = max(epsilons)
    labels = []
    for level in levels:
        ends = [min(epsilons), right]
        axes.plot(ends, [level.rmse] * 2, color=_FAINT, linewidth=1, linestyle=(0, (4, 3)))
        labels.append((level.rmse, f"{level.name}  {level.rmse:.3f}", _FAINT))
    for curve in curves:
        colour = _ACCENT if curve is curves[-1] else _INK
        if curve.band:
            low, high = np.transpose(curve.band)
            axes.fill_between(epsilons, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(epsilons, curve.rmse, "o-", color=colour, linewidth=2, markersize=5)
        labels.append((curve.rmse[-1], f"{curve.name}  {curve.rmse[-1]:.3f}", colour))
    heights = [height for height, _, _ in labels] + [rmse for curve in curves for rmse in curve.rmse]
    gap = 0.055 * (max(heights) - min(heights))
    for place, (_, text, colour) in _spread_out(labels, gap):
        axes.text(right * 1.12, place, text, va="center", color=colour, fontsize=10)
    axes.set_xlim(min(epsilons) / 1.15, right * 5)
    axes.set_xticks(list(epsilons), [f"{epsilon:g}" for epsilon in epsilons])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("epsilon: the smaller, the more private", color=_INK)
    axes.set_ylabel(errors, color=_INK)
    axes.tick_params(colors=_INK, length=0)
    axes.spines[:].set_visible(False)
    target = Path(path)
    with replacing(target) as file:
        figure.savefig(file, format=target.suffix.lstrip(".") or "png", facecolor="white")
    return target


def _spread_out(
    labels: Sequence[tuple[float, str, str]], gap: float
) -> list[tuple[float, tuple[float, str, str]]]:
    """Heights for labels: near their own, at least ``gap`` apart."""
    placed: list[tuple[float, tuple[float, str, str]]] = []
    for label in sorted(labels):
        lowest = placed[-1][0] + gap if placed else -np.inf
        placed.append((max(label[0], lowest), label))
    return placed


def _draw_errors(axes: Axes, results: Sequence[Result]) -> None:
    colours = [_FAINT] * (len(results) - 1) + [_ACCENT]
    heights = np.arange(len(results))[::-1]
    axes.barh(heights, [result.rmse for result in results], height=0.5, color=colours)
    longest = max(result.rmse for result in results)
    for height, result, colour in zip(heights, results, colours, strict=True):
        own = {"va": "bottom", "color": _INK if colour == _FAINT else _ACCENT, "fontsize": 11}
        axes.text(0, height + 0.29, result.name, **own)  # type: ignore[arg-type]
        axes.text(
            result.rmse - 0.02 * longest,
            height,
            f"{result.rmse:.3f}",
            ha="right",
            va="center",
            color="white",
            fontsize=11,
            fontweight="bold",
        )
    axes.set_xlim(0, longest or 1)
    axes.set_ylim(-0.4, len(results) - 0.3)
    axes.set_title(
        "RMSE at held-out entries: the lower, the better", loc="left", fontsize=11, color=_INK
    )
    axes.set_axis_off()


def _draw_agreement(axes: Axes, predicted: Array, actual: Array) -> None:
    """How often each actual value came with each prediction, and the means of the actual ones."""
    x_edges = _edges(predicted, few=0)
    y_edges = _edges(actual, few=12)
    counts, _, _ = np.histogram2d(predicted, actual, bins=(x_edges, y_edges))
    # The darkest blues stay unused, so that points and line are seen on top.
    axes.pcolormesh(
        x_edges, y_edges, counts.T, cmap="Blues", vmin=0, vmax=1.8 * counts.max(), rasterized=True
    )
    ends = [max(x_edges[0], y_edges[0]), min(x_edges[-1], y_edges[-1])]
    axes.plot(ends, ends, color=_INK, linewidth=1, linestyle=(0, (4, 3)))
    centres, means = _calibration(predicted, actual)
    axes.plot(centres, means, "o", color=_ACCENT, markersize=6, markeredgecolor="white")
    axes.text(
        0.985,
        0.03,
        "mean actual value per tenth of the predictions:\non the line they are right on average",
        transform=axes.transAxes,
        ha="right",
        va="bottom",
        color=_ACCENT,
        fontsize=10,
    )
    axes.set_title(
        "Actual against predicted: the darker, the more entries", loc="left", fontsize=11, color=_INK
    )
    axes.set_xlabel("predicted", color=_INK)
    axes.set_ylabel("actual", color=_INK)
    axes.tick_params(colors=_INK, length=0)
    axes.spines[:].set_visible(False)


def _edges(values: Array, few: int) -> Array:
    """Bin edges: around each value where there are few distinct ones, else of equal width."""
    distinct = np.unique(values)
    if 1 < distinct.size <= few:
        middles = (distinct[1:] + distinct[:-1]) / 2
        return np.concatenate(
            [[2 * distinct[0] - middles[0]], middles, [2 * distinct[-1] - middles[-1]]]
        )
    return np.histogram_bin_edges(values, _BINS)


def _calibration(predicted: Array, actual: Array, groups: int = 10) -> tuple[Array, Array]:
    """Means of the predictions and of the actual values, in groups of rising predictions."""
    order = np.argsort(predicted, kind="stable")
    parts = [part for part in np.array_split(order, groups) if part.size]
    return (
        np.array([predicted[part].mean() for part in parts]),
        np.array([actual[part].mean() for part in parts]),
    )
