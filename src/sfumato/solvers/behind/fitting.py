"""A fit to evidence, sweep by sweep: several starts, of which the likelihood of the evidence picks one.

Where noise drowns what there is to learn, the constant wins. All of it is a function of what has passed
the channel: post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sfumato.kernels.numba.residuals import predictions
from sfumato.models.multilinear import Multilinear
from sfumato.models.shape import Shape
from sfumato.sites.memory import Site
from sfumato.solvers.behind.evidence import Evidence
from sfumato.solvers.behind.scoring import (
    Constant,
    Fit,
    begin,
    constant_model,
    expected_log,
    fit_constant,
    sweep,
)
from sfumato.solvers.protocol import Info, Run

_FEW_CELLS = 1 << 17
_SMALL_MODEL = 4096  # parameters up to which several starts cost little
_WORK = 1 << 16  # entries in all starts: more of them are for tables on which one takes no time
_CLEARLY = 3.0  # what a model's bound must gain on the constant's: odds of twenty to one


class Length(NamedTuple):
    """Sweeps of each start, and starts."""

    sweeps: int
    starts: int

    @property
    def rounds(self) -> int:
        return self.sweeps * self.starts


def usual_length(shape: Shape, cells: int, *, dense: bool = False) -> Length:
    """More for small problems; where every cell has an entry (``dense``), several starts pay."""
    parameters = sum(mode.size * rank for mode, rank in zip(shape.modes, shape.ranks, strict=True))
    if parameters > _SMALL_MODEL or cells > _FEW_CELLS:
        return Length(40, 2)
    return Length(100, 8 if dense else min(max(_WORK // max(cells, 1), 2), 8))


def _swept(fit: Fit, work: Work) -> Fit:
    """A sweep further. A start that a few huge values drive out of range is given up, not the fit."""
    try:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            after = sweep(fit, work.evidence, work.site, work.length.sweeps)
    except np.linalg.LinAlgError:
        return replace(fit, failed=True)
    return after if np.isfinite(after.bound) else replace(fit, failed=True)


class Best(NamedTuple):
    """The best model so far, how good it is, and from which start it came; none of the constant's."""

    model: Multilinear
    score: float
    noise: float
    start: int | None = None


@dataclass(frozen=True)
class Held:
    """Entries that play no part in a fit, by whose likelihood starts are compared."""

    evidence: Evidence
    site: Site

    def score(self, fit: Fit) -> float:
        means, variances = predictions(fit.inner.model, fit.inner.uncertainty, self.site)
        return expected_log(self.evidence, fit.level, means, variances)


@dataclass(frozen=True)
class Work:
    """What the fit has at hand once there is evidence.

    Starts are compared by the bound on the likelihood of what they were fitted to, or by what was
    ``held`` out. The first of them is number ``first``.
    """

    shape: Shape
    run: Run
    length: Length
    site: Site
    evidence: Evidence
    constant: Constant
    best: Best
    held: Held | None = None
    first: int = 0
    fit: Fit | None = None
    completed: int = 0

    @classmethod
    def begun(
        cls,
        shape: Shape,
        run: Run,
        length: Length,
        site: Site,
        evidence: Evidence,
        held: Held | None = None,
    ) -> Work:
        constant = fit_constant(evidence, site.tensor.n_entries, shape.fit_mean)
        # What is held out says which start is better, but at small epsilons not whether any is.
        score = constant.bound + _CLEARLY if held is None else -np.inf
        noise = float(evidence.deviations[constant.level])
        best = Best(constant_model(shape, constant), score, noise)
        return cls(shape, run, length, site, evidence, constant, best, held)

    @property
    def done(self) -> bool:
        return self.completed == self.length.rounds

    def swept(self) -> tuple[Work, Info]:
        """One sweep further, of the start at hand or of the next one."""
        start, done = divmod(self.completed, self.length.sweeps)
        fit, start = self.fit, self.first + start
        if done == 0 or fit is None:
            # Where rows have few entries the cautious start wins, where components are weak the others.
            run = replace(self.run, seed=self.run.seed + start)
            fit = begin(run, self.shape, self.constant, self.evidence, self.site, eager=start > 0)
        if not fit.failed:
            fit = _swept(fit, self)
        noise, best = float(self.evidence.deviations[fit.level]), self.best
        if done == self.length.sweeps - 1 and not fit.failed:
            score = fit.bound if self.held is None else self.held.score(fit)
            if score > best.score:
                best = Best(fit.inner.model, score, noise, start)
        completed = self.completed + 1
        return replace(self, fit=fit, best=best, completed=completed), Info(completed, noise=noise)
