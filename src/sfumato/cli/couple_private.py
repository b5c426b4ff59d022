"""What ``sfumato couple --epsilon`` does: one private fit of all tables, and what is said of it.

The order of things is that of ``complete``: what is wrong is said before tables are read and before a
budget is spent; what was paid for is on disk before it is compared with anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import typer

from sfumato.cli.common import (
    console,
    notes_unless,
    reading,
    save_or_rescue,
    say_what_was_written,
    write_factors_beside,
)
from sfumato.cli.couple_data import Source, among, find_sources
from sfumato.cli.couple_order import PrivateOrder
from sfumato.cli.pages import measured, report_in
from sfumato.cli.privacy import Spending
from sfumato.data import prepare
from sfumato.data.cells import labels_in
from sfumato.data.tensor import Mode, SparseTensor, find_levels
from sfumato.errors import SfumatoError
from sfumato.estimators.base import TensorEstimator
from sfumato.estimators.completion import CP, Biases
from sfumato.estimators.coupled import Coupled
from sfumato.fit.admit import check_labels
from sfumato.fit.coupled import at_once, protections
from sfumato.fit.request import Privacy
from sfumato.metrics import rmse
from sfumato.privacy.caveats import without_warnings
from sfumato.report.progress import FitProgress
from sfumato.report.records import NOT_COVERED, Result
from sfumato.report.text import results_table, sizes_in_words
from sfumato.store import check_destination

if TYPE_CHECKING:
    from rich.console import Console

FOR_YOUR_EYES = (
    "These errors are for you alone: no guarantee covers them. The other private fit is within the same "
    "budget, and in no file and no ledger: to choose by it would be tuning that nobody has paid for."
)
ONLY_PLANNED = (
    "Nothing was fitted, charged or written: the plan follows from public numbers and public tables."
)
_COUPLED = "coupled, private"


@dataclass(frozen=True)
class Wanted:
    """What is to be made of a fit: where it goes, and what is shown."""

    out: Path
    release: Spending
    factors: str | None
    quiet: bool
    as_json: bool
    plan_only: bool
    report: bool


class Parts(NamedTuple):
    """The tables as they are fitted, and by name the cells at which errors are measured."""

    train: dict[str, SparseTensor]
    tests: dict[str, SparseTensor]


class HeldOut(NamedTuple):
    """Errors at the held-out cells of one table, the coupled fit's last."""

    cells: int
    results: list[Result]


def carry_out(order: PrivateOrder, wanted: Wanted) -> None:
    """Fit all tables privately, save the model, and say what came of it."""
    check_destination(wanted.out)
    sources = find_sources(order)
    _check_outline(order, sources)
    notes = notes_unless(wanted.quiet)
    with reading("tables", notes):
        parts = _divide(order, sources)
    if wanted.plan_only:
        _say_plan(order, parts, wanted)
        return
    if not wanted.quiet:
        with without_warnings():  # the fit has the same ones
            notes.print(_estimator(order).plan(parts.train).explain())
    with wanted.release.told(), FitProgress(notes) as progress:
        progress.begin("coupled, private")
        model = _estimator(order, progress).fit(parts.train)
    written = _save(model, wanted)
    held_out = _compared(order, model, parts, wanted, notes)
    if wanted.report:
        errors = [
            replace(result, name=f"{name}: {result.name}")
            for name, found in held_out.items()
            for result in found.results
        ]
        written += report_in(wanted.out, model, measured(errors, [FOR_YOUR_EYES] if errors else []))
    if wanted.as_json:
        typer.echo(json.dumps(_to_json(order, parts, model, held_out, written)))
    else:
        _print(order, parts, model, held_out, console())
        say_what_was_written(console(), written)


def _estimator(order: PrivateOrder, progress: Any = None) -> Coupled:
    return Coupled(
        order.rank, seed=order.seed, threads=order.threads, progress=progress, privacy=order.privacy
    )


# -- what is fitted -------------------------------------------------------------------------------


def _check_outline(order: PrivateOrder, sources: Sequence[Source]) -> None:
    """What is wrong with what is protected and what is public, from the names of modes alone."""
    outlines = {source.order.name: _outline(source.modes) for source in sources}
    every = [name for source in sources for name in source.modes]
    listed = order.privacy.public.labels
    unknown = [
        name for name in ({} if isinstance(listed, bool) else listed) if name not in (*every, ...)
    ]
    if unknown:
        raise typer.BadParameter(
            f"{unknown[0]!r} is no mode; the modes are {', '.join(dict.fromkeys(every))}",
            param_hint="--public-labels",
        )
    for name, protected in protections(order.privacy, outlines, list(order.bounds)).items():
        check_labels(outlines[name].modes, protected)


def _outline(names: Sequence[str]) -> SparseTensor:
    """A tensor that has modes of these names, and nothing of the data."""
    modes = tuple(Mode(name, 1) for name in names)
    return SparseTensor(np.zeros((len(names), 1), np.int32), np.zeros(1), modes)


def _divide(order: PrivateOrder, sources: Sequence[Source]) -> Parts:
    """Read all tables, and hold out what is asked for: each cell by its own labels, or those of a file.

    Public tables are checked as any others are; of what is protected nothing is said that depends on it.
    """
    train, tests = dict[str, SparseTensor](), dict[str, SparseTensor]()
    outlines = {source.order.name: _outline(source.modes) for source in sources}
    protected = protections(order.privacy, outlines, list(order.bounds))
    for source in sources:
        name, test, file = source.order.name, source.order.test, source.order.file
        if name not in order.bounds:
            train[name] = source.read(file)
            prepare.check_values(train[name])
            continue
        tensor = source.read_all(file, order.bounds[name])
        if not protected[name].unit.hides_presence:  # else entries at one cell are entries of their own
            tensor = prepare.merge_duplicates(tensor, source.order.duplicates.value)
        if isinstance(test, Path):
            tests[name] = prepare.clip(source.read_all(test), order.bounds[name])
        elif test is not None:
            whole = prepare.clip(tensor, order.bounds[name])
            tensor, tests[name] = prepare.split_by_label(whole, test, seed=order.seed)
        train[name] = tensor
    return Parts(train, tests)


def _save(model: Coupled, wanted: Wanted) -> list[Path]:
    """Write the model, and the factors where asked for; what was written, the model first."""
    written = [save_or_rescue(partial(model.save, force=wanted.release.force), wanted.out)]
    if wanted.factors is None:
        return written
    factors, modes, biases = [], [], []
    for number, (name, known) in enumerate(model.private_relations_.items()):
        fitted: Any = model.model_
        for m, mode in enumerate(known.modes):
            if m != known.local:
                factors.append(fitted.models[number].factors[m])
                biases.append(fitted.models[number].mode_biases[m])
                modes.append(replace(mode, name=f"{name}-{mode.name}"))
    return [*written, *write_factors_beside(wanted.out, factors, modes, wanted.factors, biases)]


# -- beside others, for the holder's eyes alone ------------------------------------------------------


def _compared(
    order: PrivateOrder, model: Coupled, parts: Parts, wanted: Wanted, notes: Console
) -> dict[str, HeldOut]:
    """Errors at held-out cells, by table; JSON has no other private fits."""
    held_out = {}
    try:
        with FitProgress(notes) as progress:
            for name, cells in parts.tests.items():
                test = _measurable(model, parts.train, name, cells)
                if test.n_entries:
                    held_out[name] = _compare(order, model, parts.train, name, test, wanted, progress)
    except (Exception, KeyboardInterrupt) as error:  # what was paid for is on disk: the command goes on
        notes.print(f"the fit was not compared with others: {error or 'interrupted'}")
    return held_out


def _measurable(
    model: Coupled, train: Mapping[str, SparseTensor], name: str, test: SparseTensor
) -> SparseTensor:
    """Held-out cells with a value and public labels, of which the fit has seen none."""
    modes = model.private_relations_[name].modes
    cells = find_levels(modes, labels_in(test, modes))
    seen = find_levels(modes, labels_in(train[name], modes))
    good = np.isfinite(test.values) & (cells >= 0).all(axis=0)
    cells, kept = cells[:, good], test.take(good)
    fresh = ~among(cells, seen[:, (seen >= 0).all(axis=0)], [mode.size for mode in modes])
    return kept.take(fresh)


def _compare(
    order: PrivateOrder,
    model: Coupled,
    train: Mapping[str, SparseTensor],
    name: str,
    test: SparseTensor,
    wanted: Wanted,
    progress: FitProgress,
) -> HeldOut:
    """The coupled fit beside a constant, and the table by itself: openly, and as privately."""
    known = train[name].take(np.isfinite(train[name].values))
    known = prepare.clip(known, order.bounds[name])
    settings: dict[str, Any] = {
        "duplicates": "mean",
        "unseen": "bias",
        "threads": order.threads,
        "progress": progress,
    }
    openly: dict[str, TensorEstimator] = {
        "biases, not private": Biases(**settings),
        f"{name} alone, CP, not private": CP(seed=order.seed, **settings),
    }
    mean = float(known.values.mean(dtype=np.float64)) if known.n_entries else 0.0
    constant = rmse(test.values, np.full(test.n_entries, mean))
    results = [Result("constant, not private", constant, 0.0)]
    results += _measured(openly, known, test, progress)
    if len(train) > 1 and not wanted.as_json:
        own = _own_privacy(order, train, name)
        alone = CP(order.rank, privacy=own, seed=order.seed, **settings)
        results += _measured({_alone(name): alone}, train[name], test, progress)
    results.append(Result(_COUPLED, rmse(test.values, model.predict(name, test)), model.fit_seconds_))
    return HeldOut(test.n_entries, results)


def _own_privacy(order: PrivateOrder, train: Mapping[str, SparseTensor], name: str) -> Privacy:
    """The same promise for one table by itself, and no ledger."""
    privacy = order.privacy
    protected = protections(privacy, train, list(order.bounds))[name]
    local = protected.local
    return replace(
        privacy,
        unit=protected.unit,
        max_entries=None,
        public=protected.public,
        local=None if local is None else train[name].mode_names[local],
        method="auto" if at_once(privacy) else privacy.method,
        ledger=None,
        limit=None,
    )


def _measured(
    rivals: Mapping[str, TensorEstimator],
    train: SparseTensor,
    test: SparseTensor,
    progress: FitProgress,
) -> list[Result]:
    """The errors of those that can be fitted."""
    results = []
    for name, rival in rivals.items():
        progress.begin(name)
        with suppress(SfumatoError), without_warnings():
            error = rmse(test.values, rival.fit(train).predict(test))
            results.append(Result(name, error, rival.fit_seconds_))
    return results


def _alone(name: str) -> str:
    return f"{name} alone, private"


# -- what is said of it -----------------------------------------------------------------------------


def _relation_line(order: PrivateOrder, name: str, tensor: SparseTensor) -> str:
    sizes = sizes_in_words({mode.name: mode.size for mode in tensor.modes})
    bounds = order.bounds.get(name)
    how = "public" if bounds is None else f"bounds {bounds[0]:g} to {bounds[1]:g}"
    return f"{name}: {sizes}: {tensor.n_entries:,} entries, {how}"


def _print(
    order: PrivateOrder, parts: Parts, model: Coupled, held_out: Mapping[str, HeldOut], screen: Console
) -> None:
    for name, tensor in parts.train.items():
        screen.print(_relation_line(order, name, tensor))
    for name, held in held_out.items():
        screen.print(f"\n{name}: {held.cells:,} held-out cells\n")
        screen.print(results_table(held.results))
    for remark in _remarks(held_out):
        screen.print(f"\n{remark}")
    fitted = " and ".join(model.private_relations_)
    screen.print(f"\nfitted to {fitted} in {model.fit_seconds_:.2f} s")
    screen.print(f"{NOT_COVERED}\n")
    screen.print(f"{model.guarantee_}\n")


def _remarks(held_out: Mapping[str, HeldOut]) -> list[str]:
    said = []
    for name, held in held_out.items():
        *others, coupled = held.results
        if any(each.name == _alone(name) and each.rmse <= coupled.rmse for each in others):
            said.append(
                f"The fit does not beat {_alone(name)}, here: what the other tables add is lost in its "
                "noise, or has nothing to do with it. A larger epsilon or more data could change that."
            )
    return [*said, FOR_YOUR_EYES] if held_out else []


def _relations_json(order: PrivateOrder, parts: Parts) -> dict[str, Any]:
    return {
        table.name: {
            "file": str(table.file),
            "modes": {mode.name: mode.size for mode in parts.train[table.name].modes},
            "entries": parts.train[table.name].n_entries,
            "bounds": order.bounds.get(table.name),
            "public": table.name not in order.bounds,
            "test": str(table.test) if isinstance(table.test, Path) else table.test,
        }
        for table in order.tables
    }


def _to_json(
    order: PrivateOrder,
    parts: Parts,
    model: Coupled,
    held_out: Mapping[str, HeldOut],
    written: Sequence[Path],
) -> dict[str, Any]:
    guarantee = model.guarantee_
    return {
        "relations": _relations_json(order, parts),
        "rank": order.rank,
        "seed": order.seed,
        "held_out": {
            name: {"cells": held.cells, "results": [asdict(each) for each in held.results]}
            for name, held in held_out.items()
        },
        "fit_seconds": model.fit_seconds_,
        "private": True,
        "method": None if guarantee is None else guarantee.method,
        "guarantee": None if guarantee is None else guarantee.told(),
        "not_covered": NOT_COVERED,
        "written": [str(path) for path in written],
    }


def _say_plan(order: PrivateOrder, parts: Parts, wanted: Wanted) -> None:
    plan = _estimator(order).plan(parts.train).explain()
    if wanted.as_json:
        typer.echo(json.dumps({"relations": _relations_json(order, parts), "plan": plan}))
        return
    screen = console()
    for name, tensor in parts.train.items():
        screen.print(_relation_line(order, name, tensor))
    screen.print(f"\n{plan}\n\n{ONLY_PLANNED}")
