"""Private constant and private biases over epsilon, beside the same without privacy.

Noise is seeded, so that a run can be repeated; one fit with exact noise is timed. No setting was
chosen on these data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from time import perf_counter

import numpy as np

import sfumato as sf
from benchmarks.report import Figure, say
from sfumato import SparseTensor
from sfumato.data.layout import Site
from sfumato.models.multilinear import CPModel, Multilinear
from sfumato.privacy.accounting import calibrate
from sfumato.privacy.budget import Budget
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.events import Composed
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.unit import Entry, PrivacyUnit, Unit, UnitValues, Value
from sfumato.solvers.base import PublicShape
from sfumato.solvers.private_biases import PrivateBiases, PrivateConstant

Pair = tuple[SparseTensor, SparseTensor]
Private = PrivateConstant | PrivateBiases
EPSILONS = (10.0, 3.0, 1.0, 0.3, 0.1)


@dataclass(frozen=True)
class Case:
    """One row of the table: who is protected, whose rows stay local, and the bars at some epsilons."""

    what: str
    unit: PrivacyUnit
    delta: float
    local: int | None = None
    bars: tuple[tuple[float, float], ...] = ()


ENTRY = Case("entry, users local", Entry(), 1e-6, 0, bars=((10.0, 0.911), (1.0, 0.920), (0.1, 0.967)))
USER = Case("user, joint", Unit("user"), 1e-5, 0, bars=((10.0, 0.945), (1.0, 1.003), (0.1, 1.037)))
CASES = [
    ENTRY,
    Case("entry, all released", Entry(), 1e-6),
    Case("entry, users local, pure", Entry(), 0.0, 0),
    Case("entry, all released, pure", Entry(), 0.0),
    USER,
    Case("user, all released", Unit("user"), 1e-5),
    Case("user, joint, pure", Unit("user"), 0.0, 0),
    Case("value, users local", Value(), 1e-6, 0),
    Case("100 values of a user, joint", UnitValues("user", 100), 1e-5, 0),
]


def run(quick: bool) -> list[Figure]:
    problems: list[tuple[str, Callable[[], list[Pair]], bool]] = [
        ("ML-100K ua", lambda: [sf.datasets.movielens_split("100k", "ua")], False),
        ("ML-100K ua by day", lambda: [sf.datasets.movielens_split("100k", "ua", time="day")], False),
    ]
    if not quick:
        problems.append(("ML-1M random 80/20", _million, True))
    figures: list[Figure] = []
    for what, load, has_bars in problems:
        begin = perf_counter()
        try:
            pairs = load()
        except sf.SfumatoError as error:
            say(f"{what} is skipped: {error}")
            continue
        figures += _table(what, pairs, has_bars)
        say(f"{what}: {perf_counter() - begin:.0f} s")
    return figures


def _million() -> list[Pair]:
    ratings = sf.datasets.movielens("1m")
    return [ratings.split(0.2, seed=seed) for seed in range(3)]


def _table(what: str, pairs: list[Pair], has_bars: bool) -> list[Figure]:
    sites = [Site(train, 2) for train, _ in pairs]
    constant = mean(sf.Biases(sweeps=0).fit(train).rmse(test) for train, test in pairs)
    biases = mean(sf.Biases().fit(train).rmse(test) for train, test in pairs)
    figures = [
        Figure(f"{what}: constant", constant, f"{constant:.4f}"),
        Figure(f"{what}: biases", biases, f"{biases:.4f}"),
    ]
    for case in CASES:
        rows: dict[str, list[float]] = {}
        for solver in (PrivateConstant(), PrivateBiases()):
            rows[solver.name] = [
                mean(_errors(solver, case, epsilon, pairs, sites)) for epsilon in EPSILONS
            ]
        say(f"{what}, {case.what}, epsilon {', '.join(f'{e:g}' for e in EPSILONS)}:")
        for name, errors in rows.items():
            say(f"    {name:18}" + "  ".join(f"{error:.4f}" for error in errors))
        for epsilon, bar in case.bars if has_bars else ():
            error = rows[PrivateBiases.name][EPSILONS.index(epsilon)]
            label = f"{what}: private biases, {case.what}, epsilon {epsilon:g}"
            figures.append(Figure(label, error, f"{error:.4f}", bar))
        worst = max(b / c for b, c in zip(*reversed(rows.values()), strict=True))
        label = f"{what}: private biases over private constant, {case.what}, worst epsilon"
        figures.append(Figure(label, worst, f"{worst:.3f}", 1.03))
    for case in (ENTRY, USER):
        begin = perf_counter()
        fit(PrivateBiases(), case, Budget(1.0, case.delta), pairs[0][0], sites[0], None)
        seconds = perf_counter() - begin
        label = f"{what}: private biases, {case.what}, seconds with exact noise"
        figures.append(Figure(label, seconds, f"{seconds:.1f} s"))
    return figures


def _errors(
    solver: Private, case: Case, epsilon: float, pairs: Sequence[Pair], sites: Sequence[Site]
) -> list[float]:
    errors = []
    for seed, ((train, test), site) in enumerate(zip(pairs, sites, strict=True)):
        model = fit(solver, case, Budget(epsilon, case.delta), train, site, seed)
        predicted = np.clip(model.predict(test.coordinates, threads=2), *_bounds(train))
        errors.append(float(np.sqrt(np.mean((predicted - test.values) ** 2))))
    return errors


def _bounds(tensor: SparseTensor) -> tuple[float, float]:
    assert tensor.bounds is not None
    return tensor.bounds


def fit(
    solver: Private, case: Case, budget: Budget, train: SparseTensor, site: Site, seed: int | None
) -> Multilinear:
    """The released model, with the local rows filled in by their owners."""
    shape = PublicShape(
        train.modes,
        lambda sizes, dtype: CPModel.zeros(sizes, 1, dtype),
        unit=case.unit,
        bounds=_bounds(train),
        entries=train.n_entries,
        local=case.local,
    )
    least = replace(solver, pure=budget.pure)

    def event(noise: float) -> Composed:
        return Composed(
            tuple(charge.mechanism.event for charge in replace(least, noise=noise).charges(shape))
        )

    private = replace(least, noise=calibrate(event, budget))
    state = private.init(0, shape)
    with Ledger(case.unit, budget).reserve(private.charges(shape), Entropy(seed)) as reservation:
        for _ in range(private.rounds(shape)):
            query = private.ask(state)
            released = reservation.ask(lambda draw, query=query: private.answer(query, site, draw))
            state, _ = private.update(state, released)
    return private.localise(state, private.finish(state), site)
