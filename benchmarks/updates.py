"""Updates beside fits anew, on MovieLens 100K in twelve periods of equal length.

``python -m benchmarks updates`` prints errors after each period, at the ratings of the next one and at
a tenth of all ratings that was held out. Every way has the same budget in all for what is protected, so
that fits anew of all ratings so far, which look at a rating again and again, have a smaller one each.
Noise is seeded; errors are means over ``SEEDS``.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import sfumato as sf
from benchmarks.report import Figure, aligned, say
from sfumato.data.datasets import movielens
from sfumato.privacy.accounting import calibrate, epsilon_of
from sfumato.privacy.budgets import Budget
from sfumato.privacy.events import GaussianEvent, Repeated

PERIODS, SEEDS, HELD_OUT = 12, 3, 0.1
UNITS = ("entry", "user")
WAYS = ("constant", "biases", "update", "anew", "once")


class Stream(NamedTuple):
    """Ratings by period, and a fixed share of all that no fit sees."""

    periods: tuple[sf.SparseTensor, ...]
    held_out: sf.SparseTensor

    def so_far(self, number: int) -> sf.SparseTensor:
        return _joined(self.periods[: number + 1])


def _joined(parts: tuple[sf.SparseTensor, ...]) -> sf.SparseTensor:
    first = parts[0]
    coordinates = np.hstack([part.coordinates for part in parts])
    values = np.concatenate([part.values for part in parts])
    return sf.SparseTensor(coordinates, values, first.modes, first.bounds)


def stream(periods: int, seed: int = 0) -> Stream:
    """MovieLens 100K cut by days into periods of equal length; user and item are the modes."""
    by_day = movielens("100k", time="day")
    days = np.array(by_day.modes[2].labels_at(np.arange(by_day.shape[2])), "datetime64[D]").astype(int)
    day = days[by_day.coordinates[2]]
    edges = np.linspace(days.min(), days.max() + 1, periods + 1)
    period = np.searchsorted(edges, day, side="right") - 1
    flat = sf.SparseTensor(
        by_day.coordinates[:2], by_day.values.astype(np.float64), by_day.modes[:2], (1.0, 5.0)
    )
    order = np.lexsort(by_day.coordinates[:2][::-1])  # as the tensor sorts its entries
    period = period[order]
    aside = np.random.default_rng(seed).random(period.size) < HELD_OUT
    parts = tuple(flat.take((period == number) & ~aside) for number in range(periods))
    return Stream(parts, flat.take(aside))


def part_of(total: Budget, times: int) -> float:
    """Epsilon at the same delta of one of so many Gaussian fits that together have the total."""
    noise = calibrate(lambda noise: Repeated(GaussianEvent(noise), times), total)
    return epsilon_of(GaussianEvent(noise), total.delta)


def privacy_of(unit: str, epsilon: float, modes: Any, seed: int, **more: Any) -> sf.Privacy:
    labels = {mode.name: list(mode.labels) for mode in modes}
    public = sf.Public(labels=labels)
    return sf.Privacy(epsilon=epsilon, delta=1e-6, unit=unit, public=public, seed=seed, **more)


class Errors(NamedTuple):
    """RMSE at ratings of the next period, and at those held out."""

    following: float
    held_out: float


def errors_of(model: Any, data: Stream, number: int) -> Errors:
    """Where rows stay with their owners, these solve them from all ratings that they gave so far."""
    own = data.so_far(number) if model.local_ is not None and model.own_prior_ is not None else None
    after = data.periods[number + 1] if number + 1 < len(data.periods) else None
    errors = [
        float("nan") if part is None else _error(model, part, own) for part in (after, data.held_out)
    ]
    return Errors(*errors)


def _error(model: Any, part: sf.SparseTensor, own: sf.SparseTensor | None) -> float:
    told = model.predict(part, own=own, unseen="bias")
    return float(np.sqrt(np.mean((part.values - told) ** 2)))


def followed(unit: str, total: Budget, data: Stream, seed: int) -> dict[str, list[Errors]]:
    """Errors of every way after each period."""
    number, modes = len(data.periods), data.held_out.modes
    part = part_of(total, number)
    own = total.epsilon if unit == "entry" else part  # of one period's update
    found: dict[str, list[Errors]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        asked = privacy_of(unit, own, modes, 1000 * seed, ledger=Path(folder) / "ledger", period="0")
        updated = sf.CP(privacy=asked)
        for period in range(number):
            noise = replace(asked, seed=1000 * seed + period)
            updated.partial_fit(data.periods[period], period=str(period), privacy=noise)
            again = privacy_of(unit, part, modes, 1000 * seed + 100 + period)
            makers: dict[str, Callable[[], Any]] = {
                "constant": lambda p=again: sf.Biases(sweeps=0, privacy=p),
                "biases": lambda p=again: sf.Biases(privacy=p),
                "anew": lambda p=again: sf.CP(privacy=p),
            }
            whole = data.so_far(period)
            for way, make in makers.items():
                found[way].append(errors_of(make().fit(whole), data, period))
            found["update"].append(errors_of(updated, data, period))
            if period == 0:
                full = privacy_of(unit, total.epsilon, modes, 1000 * seed + 200)
                once = sf.CP(privacy=full).fit(data.periods[0])
            found["once"].append(errors_of(once, data, period))
    return found


def run(quick: bool, epsilons: tuple[float, ...] = (3.0, 10.0)) -> list[Figure]:
    warnings.simplefilter("ignore")
    periods, seeds = (3, 1) if quick else (PERIODS, SEEDS)
    data, figures = stream(periods), list[Figure]()
    for unit in UNITS:
        for epsilon in epsilons[: 1 if quick else None]:
            runs = [followed(unit, Budget(epsilon, 1e-6), data, seed) for seed in range(seeds)]
            say(f"unit {unit}, total epsilon {epsilon:g}: next period / held out")
            say(aligned([("period", "ratings", *WAYS), *_lines(runs, data)]))
            for way in WAYS:
                last = np.array([one[way][-1].held_out for one in runs])
                what = f"updates: {unit}, epsilon {epsilon:g}, {way}, held out after the last period"
                doubt = f" +- {last.std(ddof=1) / sqrt(seeds):.4f}" if seeds > 1 else ""
                figures.append(Figure(what, float(last.mean()), f"{last.mean():.4f}{doubt}"))
    return figures


def _lines(runs: list[dict[str, list[Errors]]], data: Stream) -> list[tuple[str, ...]]:
    lines = []
    for period, part in enumerate(data.periods):
        cells = [np.mean([one[way][period] for one in runs], axis=0) for way in WAYS]
        told = [f"{after:.3f} / {held:.3f}" for after, held in cells]
        lines.append((str(period + 1), f"{part.n_entries:,}", *told))
    return lines
