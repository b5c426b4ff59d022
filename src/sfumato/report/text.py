"""Records as lines and tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sfumato.data import prepare
from sfumato.report.records import (
    NOT_COVERED,
    Completed,
    Description,
    ModeDescription,
    OpenFit,
    Result,
    Sharded,
)
from sfumato.surface import setting

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

NOT_PRIVATE = "not private: the model and its predictions can give away single entries"

_BLOCKS = "▁▂▃▄▅▆▇█"


def sizes_in_words(sizes: Mapping[str, int]) -> str:
    """Modes with their numbers of levels."""
    return " x ".join(f"{name} {size:,}" for name, size in sizes.items())


def _entries_in_words(found: Description | Completed) -> str:
    return f"{found.entries:,} entries, {found.density:.3g} of all cells"


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


def results_table(results: Sequence[Result], metric: str | None = None) -> Table:
    """Held-out errors and seconds, the gain over the first (the constant) beside them; and what another
    metric says, alone where all values are the same and errors mean nothing.
    """
    measured = [] if metric is None else [metric]
    all_same = metric is not None and not results[0].rmse
    headings = [] if all_same else ["held-out RMSE", "less than constant"]
    table = plain_table("", *headings, *measured, "seconds")
    for result in results:
        gain = 1 - result.rmse / results[0].rmse if results[0].rmse else 0.0
        shown = [f"{result.rmse:.4f}", "" if result is results[0] else f"{gain:.1%}"]
        also = [] if metric is None else ["" if result.measured is None else f"{result.measured:.4f}"]
        table.add_row(result.name, *([] if all_same else shown), *also, f"{result.seconds:.2f}")
    return table


def completed_text(found: Completed) -> Group:
    """A completion to print, but for what was written."""
    from rich.console import Group

    first = f"{sizes_in_words(found.modes)}: {_entries_in_words(found)}"
    errors = Group("", results_table(found.held_out, found.metric), "") if found.held_out else Group()
    remarks = [f"{remark}\n" for remark in found.remarks]
    return Group(first, errors, *remarks, *_fit_lines(found))


def sharded_lines(found: Sharded) -> list[str]:
    """What was cut."""
    bounds = "" if found.bounds is None else f", bounds {found.bounds[0]:g} to {found.bounds[1]:g}"
    return [
        f"{sizes_in_words(found.modes)}: {found.entries:,} entries in {found.shards:,} "
        f"{'shard' if found.shards == 1 else 'shards'} by {found.by}, {found.dtype}{bounds}",
        f"wrote {found.folder}: {bytes_in_words(found.bytes)}",
    ]


def _fit_lines(found: Completed) -> list[str]:
    how, seconds = found.how, f"{found.fit_seconds:.2f} s"
    if isinstance(how, OpenFit):
        error = f"training RMSE {how.training_rmse:.4f}"
        return [f"fitted to all {found.entries:,} entries in {seconds}, {error}"]
    what = f"{how.in_words}, chosen from public numbers" if how.chosen else how.in_words
    # Entries with labels that are not listed as public are left out, and nobody else may know.
    fitted = f"fitted to {found.fitted_entries:,} entries in {seconds}: {what}"
    return [fitted, f"{NOT_COVERED}\n", f"{how.guarantee}\n"]


def description_text(described: Description) -> Group:
    """A description to print."""
    from rich.console import Group

    shape = sizes_in_words({mode.name: mode.levels for mode in described.modes})
    lines = [
        f"{shape}: {_entries_in_words(described)}",
        _values_line(described),
        *_problem_lines(described),
    ]
    memory = (
        f"memory of a fit of rank {described.rank}, about: ALS {bytes_in_words(described.bytes_als)}, "
        f"SGD {bytes_in_words(described.bytes_sgd)} (the entries alone take "
        f"{bytes_in_words(described.bytes_entries)})"
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


def bars(histogram: Sequence[int]) -> str:
    """A histogram in one line of text; only what is empty has no height at all."""
    top = max(histogram)
    return "".join(_BLOCKS[-(-count * len(_BLOCKS) // top) - 1] if count else " " for count in histogram)


def bytes_in_words(n_bytes: int) -> str:
    """A number of bytes with two or three digits."""
    amount = float(n_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:,.3g} TB"
