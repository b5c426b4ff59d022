"""An audit: runs on neighbours; half of them choose the attack, the other half bound epsilon."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sfumato.auditing.attacks import Attack, attacks, honest_scores, rows_of
from sfumato.auditing.bounds import Counts, epsilon_bound, gaussian_bound, gaussian_distance
from sfumato.auditing.coupled_subject import RelationNeighbours, RelationSubject
from sfumato.auditing.likelihood import known_ratio
from sfumato.auditing.neighbours import Neighbours
from sfumato.auditing.networks import NetworkNeighbours, NetworkSubject, NetworkTrial
from sfumato.auditing.subject import Subject, check_common
from sfumato.auditing.trials import Runs, Trial, carry_out
from sfumato.auditing.verdict import Audit, Finding
from sfumato.checks import as_names, check_count, check_kind, given
from sfumato.data.tensor import SparseTensor
from sfumato.errors import SettingError
from sfumato.estimators.base import TensorEstimator
from sfumato.estimators.coupled import Coupled
from sfumato.estimators.learning import PrivateNetwork
from sfumato.fit.plan import PrivatePlan
from sfumato.models.multilinear import Multilinear
from sfumato.types import Array

Tell = Callable[[str, int, int], None]
_FINALISTS = 2  # attacks whose bounds are computed: the error is divided among them
_THRESHOLDS = 200
_LEAST_RUNS = 40


def audit(
    estimator: TensorEstimator | Coupled | PrivateNetwork,
    data: SparseTensor | Sequence[Any] | Mapping[str, SparseTensor],
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
    estimator : TensorEstimator, Coupled or PrivateNetwork
        With ``privacy=...``: the fit to attack. Nothing is charged to its ledger.
    data : SparseTensor, sequence or mapping
        A tensor with bounds, or a public shape, for which data are made up on which canaries show.
        Of :class:`Coupled` tensors with bounds by name; canaries then are "ratings: least" and the
        like. Of a network (X, y), or (X, y, groups): the canary is the last example, or all of its
        owner's.
    runs : int
        Fits for each canary. The bound cannot exceed about the logarithm of a twentieth of them.
        Decide on their number beforehand: to add runs until something is found is to try again, and
        each try has the error of one.
    canaries : sequence of str or None
        See :mod:`sfumato.auditing.neighbours`; by default those usual for the unit.
    delta : float or None
        At which epsilon is bounded; by default the budget's. For another one the promise is what the
        accountant says there.
    sees : sequence of str or None
        Parts of the release that the adversary looks at, such as ``["factor_2"]``; by default all.
    seed : int or None
        Of all noise; None draws secret noise, as real fits do, which cannot be repeated.
    whole_fits : bool
        Whether input and output perturbation fit as long as ever after their noise is drawn. What
        happens then is post-processing: it can hide a leak and never make one, and takes long.
    out : path or None
        Folder in which runs are kept, so that an interrupted audit goes on where it stopped.
    tell : callable
        Hears what is done, how many runs of it, and of how many.
    confidence : float
        With which the bound is to hold.
    bounds : pair of float
        Of made-up data.
    processes : int or None
        How many run at once; all cores by default.

    Returns
    -------
    Audit
        The bound, what found it, and whether the promise is refuted.

    Examples
    --------
    >>> import sfumato as sf
    >>> privacy = sf.Privacy(epsilon=2, unit="value", method="bias")
    >>> found = sf.audit(
    ...     sf.Biases(privacy=privacy),
    ...     (6, 5),
    ...     runs=100,
    ...     canaries=["least"],
    ...     processes=1,
    ... )
    >>> 0 <= found.measured <= 2, found.violated
    (True, False)
    """
    check_count(_LEAST_RUNS, runs=runs)
    check_common(confidence, delta, seed, whole_fits, processes, tell)
    for what, parts in given(canaries=canaries, sees=sees).items():
        as_names(what, parts)
    check_kind(str | PathLike | None, "the path of a folder", out=out)
    subject: Subject | RelationSubject | NetworkSubject
    if isinstance(estimator, PrivateNetwork):
        if sees is not None:
            raise SettingError("of a network all that is released is looked at: leave sees out")
        subject = NetworkSubject.of(estimator, data)
    elif isinstance(estimator, Coupled):
        subject = RelationSubject.of(estimator, data)
    else:
        subject = Subject.of(estimator, data, bounds, whole_fits=whole_fits)
    names = list(canaries or subject.usual_canaries())
    promise = subject.promise(delta)
    error = (1 - confidence) / len(names)
    findings = []
    for name in names:
        pair = subject.pair(name)
        kind: Any = NetworkTrial if isinstance(subject, NetworkSubject) else Trial
        trial: Trial = kind(subject.estimator, pair, None if sees is None else tuple(sees), seed)
        folder = None if out is None else Path(out) / name.replace(": ", "-")
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


# -- from runs to bounds --------------------------------------------------------------------------


class _Candidate(NamedTuple):
    """An event that an attack may bet on: scores above a threshold, or not above it."""

    attack: Attack
    threshold: float
    above: bool
    bound: float
    excess: float


def attacked(
    runs: Runs,
    pair: Neighbours | RelationNeighbours | NetworkNeighbours,
    start: Multilinear | None,
    plan: PrivatePlan[Any],
    delta: float,
    error: float,
    *,
    gaussian: bool,
) -> list[Finding]:
    """What the strongest attacks find: chosen on the first half of the runs, counted on the second."""
    half = runs["side"].shape[0] // 4 * 2  # even, so that both halves have as many of either side
    learn, judge = rows_of(runs, slice(None, half)), rows_of(runs, slice(half, None))
    ratio = known_ratio(plan, pair, start, runs.keys()) if isinstance(pair, Neighbours) else None
    tried = attacks(runs, start, pair.cells, ratio)
    share = error / _FINALISTS
    scored = [(attack, honest_scores(attack, learn)) for attack in tried]
    best = [_best_candidate(attack, scores, learn["side"], delta, share) for attack, scores in scored]
    best.sort(key=lambda candidate: (-candidate.bound, -candidate.excess))
    findings = [
        _finding(candidate, learn, judge, pair.canary, delta, share) for candidate in best[:_FINALISTS]
    ]
    if gaussian:
        findings[0] = replace(findings[0], gaussian=_gaussian(scored, learn, judge, delta, error))
    return findings


def _best_candidate(
    attack: Attack, scores: Array, sides: Array, delta: float, error: float
) -> _Candidate:
    """The threshold that would give the largest bound on runs that the attack has not learnt from."""
    thresholds = _thresholds(scores)
    counts = _counts(scores, sides, thresholds)
    found = []
    for above, event in ((True, counts), (False, _complement(counts))):
        bounds = epsilon_bound(event, delta, error)
        # Of events whose bound is zero, the one that is more frequent where it should be.
        excess = event.first / event.first_runs - event.second / event.second_runs
        place = int(np.lexsort((excess, bounds))[-1])
        found.append(
            _Candidate(
                attack, float(thresholds[place]), above, float(bounds[place]), float(excess[place])
            )
        )
    return max(found, key=lambda candidate: (candidate.bound, candidate.excess))


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
    candidate: _Candidate, learn: Runs, judge: Runs, canary: str, delta: float, error: float
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
    )


def _gaussian(
    scored: Sequence[tuple[Attack, Array]], learn: Runs, judge: Runs, delta: float, error: float
) -> float:
    """The bound of a mechanism known to be Gaussian, by an attack and a threshold of its own choice."""
    best, chosen = -np.inf, None
    for attack, scores in scored:
        for sign in (1, -1):
            grid = _thresholds(sign * scores)
            distances = gaussian_distance(_counts(sign * scores, learn["side"], grid), error)
            place = int(np.nanargmax(distances))
            if distances[place] > best:
                best, chosen = distances[place], (attack, sign, float(grid[place]))
    if chosen is None:
        return 0.0
    attack, sign, threshold = chosen
    scores = sign * attack.scores(learn, judge)
    return gaussian_bound(_counts(scores, judge["side"], threshold), delta, error)


def _roc(scores: Array, sides: Array) -> tuple[tuple[float, float], ...]:
    """Rates of false and true alarms over all thresholds."""
    thresholds = np.sort(np.unique(scores))[::-1]
    counts = _counts(scores, sides, np.nextafter(thresholds, -np.inf))
    thin = np.unique(np.linspace(0, thresholds.size - 1, 400).astype(int))
    false, true = counts.second / counts.second_runs, counts.first / counts.first_runs
    return tuple((float(false[k]), float(true[k])) for k in thin)
