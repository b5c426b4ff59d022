"""An audit: runs on neighbours; half of them choose the attack, the other half bound epsilon."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfumato.auditing.attacks import Attack, attacks, honest_scores, rows_of
from sfumato.auditing.bounds import Counts, epsilon_bound, gaussian_bound, gaussian_distance
from sfumato.auditing.known import known_ratio
from sfumato.auditing.neighbours import Neighbours, built, neighbours, usual_canaries
from sfumato.auditing.trials import Runs, Trial, carry_out, privacy_of
from sfumato.auditing.verdict import Audit, Finding, Promise
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import SettingError
from sfumato.estimators import TensorEstimator, admitted
from sfumato.fit.private import PrivatePlan
from sfumato.models.multilinear import Multilinear
from sfumato.privacy.accounting import epsilon_of
from sfumato.privacy.budget import Budget
from sfumato.privacy.events import GaussianEvent, flattened
from sfumato.privacy.settings import Privacy
from sfumato.solvers import InputPerturbation, PrivateOutput

Array = NDArray[Any]
Tell = Callable[[str, int, int], None]
_FINALISTS = 2  # attacks whose bounds are computed: the error is divided among them
_THRESHOLDS = 200
_LEAST_RUNS = 40
_SHORT_SWEEPS = 12


def audit(
    estimator: TensorEstimator,
    data: SparseTensor | Sequence[int | Mode],
    *,
    runs: int = 1000,
    canaries: Sequence[str] | None = None,
    delta: float | None = None,
    confidence: float = 0.95,
    sees: Sequence[str] | None = None,
    bounds: tuple[float, float] = (-1.0, 1.0),
    seed: int | None = 0,
    whole_fits: bool = False,
    out: str | PathLike[str] | None = None,
    processes: int | None = None,
    tell: Tell = lambda _what, _done, _of: None,
) -> Audit:
    """A lower bound on the epsilon that a private fit really has, by attacking it.

    The fit is made ``runs`` times for each canary, half of them on either of two neighbours. Attacks
    learn from half of the runs, where the strongest and its threshold are chosen too; the bound is
    counted on the rest, so that it is wrong with a probability of 1 - ``confidence`` at most, whatever
    the number of attacks.

    Parameters
    ----------
    estimator : with ``privacy=...``: the fit to attack. Nothing is charged to its ledger.
    data : a tensor with bounds, or a public shape, for which data are made up on which canaries show.
    runs : fits for each canary. The bound cannot exceed about the logarithm of a quarter of them.
    canaries : see :mod:`sfumato.auditing.neighbours`; by default those usual for the unit.
    delta : at which epsilon is bounded; by default the budget's. For another one the promise is what
        the accountant says there.
    sees : parts of the release that the adversary looks at, such as ``["factor_2"]``; by default all.
    seed : of all noise; None draws secret noise, as real fits do, which cannot be repeated.
    whole_fits : whether input and output perturbation fit as long as ever after their noise is drawn.
        What happens then is post-processing: it can hide a leak and never make one, and takes long.
    out : folder in which runs are kept, so that an interrupted audit goes on where it stopped.
    tell : hears what is done, how many runs of it, and of how many.
    """
    if runs < _LEAST_RUNS:
        raise SettingError(f"an audit needs {_LEAST_RUNS} runs or more, got {runs}")
    if not 0 < confidence < 1:
        raise SettingError(f"a confidence lies between 0 and 1, got {confidence}")
    subject = _Subject.of(estimator, data, bounds, whole_fits=whole_fits)
    names = list(canaries or usual_canaries(subject.unit))
    promise = subject.promise(delta)
    error = (1 - confidence) / len(names)
    findings = []
    for name in names:
        pair = neighbours(subject.tensor, subject.unit, name)
        trial = Trial(subject.estimator, pair, None if sees is None else tuple(sees), seed)
        folder = None if out is None else Path(out) / name
        done = 0

        def report(more: int, what: str = name) -> None:
            nonlocal done
            done += more
            tell(f"canary {what}", done, runs)

        made = carry_out(trial, runs, folder, processes, report)
        findings += attacked(
            made, pair, subject.start, subject.plan, promise.delta, error, gaussian=subject.gaussian
        )
    return Audit(promise, tuple(findings), confidence, runs, seeded=seed is not None)


@dataclass(frozen=True, eq=False)
class _Subject:
    """What is audited, made ready."""

    estimator: TensorEstimator
    tensor: SparseTensor
    plan: PrivatePlan

    @classmethod
    def of(
        cls, estimator: TensorEstimator, data: Any, bounds: tuple[float, float], *, whole_fits: bool
    ) -> _Subject:
        privacy = replace(privacy_of(estimator), ledger=None, limit=None)
        if not isinstance(data, SparseTensor):
            data = built(data, bounds)
            public = replace(
                privacy.public, labels=True, entries=privacy.public.entries or data.n_entries
            )
            privacy = replace(privacy, public=public)
        elif data.bounds is None:
            raise SettingError("an audit needs public bounds of the values: read(..., bounds=(1, 5))")
        tensor = admitted(data, replace(privacy, seed=0), estimator.duplicates)[0]
        entries = None if _unit(tensor, privacy).hides_presence else tensor.n_entries
        ready = type(estimator)(**{**estimator.get_params(), "privacy": privacy})
        plan = ready.plan(tensor.modes, tensor.values.dtype, bounds=tensor.bounds, entries=entries)
        assert isinstance(plan, PrivatePlan)
        if not whole_fits and _shortened(plan.solver) is not plan.solver:
            privacy = replace(privacy, method=_shortened(plan.solver))
            ready = type(estimator)(**{**estimator.get_params(), "privacy": privacy})
        return cls(ready, tensor, plan)

    @property
    def privacy(self) -> Privacy:
        return privacy_of(self.estimator)

    @property
    def unit(self) -> Any:
        return _unit(self.tensor, self.privacy)

    @property
    def start(self) -> Multilinear | None:
        """Where the rows of a fit start: public, since it follows from the seed of the start."""
        state = self.plan.solver.init(self.plan.seed, self.plan.shape)
        state = getattr(state, "descending", state)
        model = getattr(state, "model", None)
        return model if isinstance(model, Multilinear) else None

    @property
    def gaussian(self) -> bool:
        """Whether all noise is Gaussian and none of it hidden by sampling."""
        return all(isinstance(part, GaussianEvent) for part, _ in flattened(self.plan.event))

    def promise(self, delta: float | None) -> Promise:
        plan, budget = self.plan, self.privacy.budget
        own = budget.delta if isinstance(budget, Budget) else 1e-6
        at = own if delta is None else delta
        accounted = epsilon_of(plan.event, at)
        said = isinstance(budget, Budget) and at == own
        return Promise(
            epsilon=budget.epsilon if said and isinstance(budget, Budget) else accounted,
            delta=at,
            accounted=accounted if plan.solver.proven else None,
            unit=str(self.unit),
            neighbours=self.unit.neighbours,
            method=plan.solver.name,
            proven=plan.solver.proven,
        )


def _unit(tensor: SparseTensor, privacy: Privacy) -> Any:
    from sfumato.privacy.unit import parse_unit

    return parse_unit(privacy.unit, tensor.mode_names, privacy.max_entries)


def _shortened(solver: Any) -> Any:
    """The solver with as little post-processing as shows what was released."""
    if isinstance(solver, InputPerturbation) and solver.starts is None and solver.sweeps is None:
        return replace(solver, starts=1, sweeps=_SHORT_SWEEPS)
    if isinstance(solver, PrivateOutput) and _shortened(solver.others) is not solver.others:
        return replace(solver, others=_shortened(solver.others))
    return solver


# -- from runs to bounds --------------------------------------------------------------------------


class _Candidate(NamedTuple):
    """An event that an attack may bet on: scores above a threshold, or not above it."""

    attack: Attack
    threshold: float
    above: bool
    bound: float
    closeness: float


def attacked(
    runs: Runs,
    pair: Neighbours,
    start: Multilinear | None,
    plan: PrivatePlan,
    delta: float,
    error: float,
    *,
    gaussian: bool,
) -> list[Finding]:
    """What the strongest attacks find: chosen on the first half of the runs, counted on the second."""
    half = runs["side"].shape[0] // 4 * 2  # even, so that both halves have as many of either side
    learn, judge = rows_of(runs, slice(None, half)), rows_of(runs, slice(half, None))
    tried = attacks(runs, start, pair.cells, known_ratio(plan, pair, start))
    share = error / _FINALISTS
    best = [_best_candidate(attack, learn, delta, share) for attack in tried]
    best.sort(key=lambda candidate: (-candidate.bound, -candidate.closeness))
    return [
        _finding(candidate, learn, judge, pair.canary, delta, share, gaussian=gaussian)
        for candidate in best[:_FINALISTS]
    ]


def _best_candidate(attack: Attack, learn: Runs, delta: float, error: float) -> _Candidate:
    """The threshold that would give the largest bound on runs that the attack has not learnt from."""
    scores, sides = honest_scores(attack, learn), learn["side"]
    thresholds = _thresholds(scores)
    counts = _counts(scores, sides, thresholds)
    found = []
    for above, event in ((True, counts), (False, _complement(counts))):
        bounds = epsilon_bound(event, delta, error)
        closeness = np.abs(counts.first / counts.first_runs - counts.second / counts.second_runs)
        place = int(np.lexsort((closeness, bounds))[-1])
        found.append(
            _Candidate(
                attack, float(thresholds[place]), above, float(bounds[place]), float(closeness[place])
            )
        )
    return max(found, key=lambda candidate: (candidate.bound, candidate.closeness))


def _thresholds(scores: Array) -> Array:
    """Values between which scores lie: between all of them, or a row of quantiles."""
    distinct = np.unique(scores)
    if distinct.size > _THRESHOLDS:
        distinct = distinct[np.linspace(0, distinct.size - 1, _THRESHOLDS).astype(int)]
    return np.concatenate([[distinct[0] - 1.0], (distinct[1:] + distinct[:-1]) / 2])


def _counts(scores: Array, sides: Array, thresholds: Any) -> Counts:
    """How often scores above each threshold were seen: on the second neighbour, and on the first."""
    second, first = np.sort(scores[sides == 1]), np.sort(scores[sides == 0])
    return Counts(
        second.size - np.searchsorted(second, thresholds, "right"),
        second.size,
        first.size - np.searchsorted(first, thresholds, "right"),
        first.size,
    )


def _complement(counts: Counts) -> Counts:
    """The event that scores are not above, which is to be frequent on the second neighbour."""
    return Counts(
        counts.first_runs - counts.first,
        counts.first_runs,
        counts.second_runs - counts.second,
        counts.second_runs,
    )


def _finding(
    candidate: _Candidate,
    learn: Runs,
    judge: Runs,
    canary: str,
    delta: float,
    error: float,
    *,
    gaussian: bool,
) -> Finding:
    scores = candidate.attack.scores(learn, judge)
    counts = _counts(scores, judge["side"], candidate.threshold)
    return Finding(
        canary=canary,
        attack=candidate.attack.name,
        counts=counts if candidate.above else _complement(counts),
        delta=delta,
        error=error,
        roc=_roc(scores if candidate.above else -scores, judge["side"]),
        gaussian=_gaussian(candidate, learn, scores, judge, delta, error) if gaussian else None,
    )


def _gaussian(
    candidate: _Candidate, learn: Runs, scores: Array, judge: Runs, delta: float, error: float
) -> float:
    """The bound under which a mechanism known to be Gaussian stands, with a threshold of its own."""
    tried = honest_scores(candidate.attack, learn)
    thresholds = _thresholds(tried)
    sign = 1 if candidate.above else -1
    grid = sign * thresholds
    distances = gaussian_distance(_counts(sign * tried, learn["side"], grid), error)
    best = float(grid[int(np.nanargmax(distances))])
    return gaussian_bound(_counts(sign * scores, judge["side"], best), delta, error)


def _roc(scores: Array, sides: Array) -> tuple[tuple[float, float], ...]:
    """Rates of false and true alarms over all thresholds."""
    thresholds = np.sort(np.unique(scores))[::-1]
    counts = _counts(scores, sides, thresholds - 1e-300)
    thin = np.unique(np.linspace(0, thresholds.size - 1, 400).astype(int))
    false, true = counts.second / counts.second_runs, counts.first / counts.first_runs
    return tuple((float(false[k]), float(true[k])) for k in thin)
