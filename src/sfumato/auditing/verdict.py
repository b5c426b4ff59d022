"""What an audit found, in words, in numbers and as a picture."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import floor
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.auditing.bounds import Counts, epsilon_bound, lower_rate, upper_rate
from sfumato.data.io.write import replacing
from sfumato.errors import DataError
from sfumato.markup import snippet
from sfumato.privacy.budgets import rounded_up
from sfumato.report.colours import ACCENT, FAINT, INK
from sfumato.report.page.audited import audited
from sfumato.report.page.page import audit_page, write_page
from sfumato.typed import finite_number, made_of

_POINTWISE = 0.05  # error of the limits that a picture shows at each point


@dataclass(frozen=True)
class Promise:
    """What is attacked: epsilon at a delta, for a unit, by a method.

    ``epsilon`` is what the guarantee of the fit prints, rounded up as it prints it. ``accounted`` is
    what this library's accountant says of it; None where nothing is proven.
    """

    epsilon: float
    delta: float
    accounted: float | None
    unit: str
    neighbours: str
    method: str
    proven: bool

    def __str__(self) -> str:
        amount = f"epsilon = {rounded_up(self.epsilon)}"
        return f"{amount}, delta = {rounded_up(self.delta, 3)}" if self.delta else amount


@dataclass(frozen=True, eq=False)
class Finding:
    """One attack on one canary: how often it was right on runs that chose nothing about it.

    ``counts`` says how often the attack cried out on the neighbour that it looks for (``first``) and on
    the other (``second``). ``error`` is this finding's share of the audit's error. ``gaussian`` is what
    the canary shows where the mechanism is known to be Gaussian, by an attack chosen for that.
    """

    canary: str
    attack: str
    counts: Counts
    delta: float
    error: float
    roc: tuple[tuple[float, float], ...]
    gaussian: float | None = None

    @property
    def bound(self) -> float:
        return float(epsilon_bound(self.counts, self.delta, self.error))

    def bound_at(self, error: float) -> float:
        """The bound with another error."""
        return float(epsilon_bound(self.counts, self.delta, error))

    def curve(self) -> dict[str, Any]:
        """Rates of false and right alarms with their limits, each at this finding's share of the error.

        A point is: false alarms, the least and the most that they may be, and the same of right alarms.
        ``bound`` is the point that the bound is from, whose threshold was chosen on other runs.
        """
        c, share = self.counts, self.error / 2
        rates = np.array([(0.0, 0.0), *self.roc, (c.second / c.second_runs, c.first / c.first_runs)])
        seen = np.rint(rates * [c.second_runs, c.first_runs])
        limits = [
            (seen[:, n] / runs, lower_rate(seen[:, n], runs, share), upper_rate(seen[:, n], runs, share))
            for n, runs in enumerate((c.second_runs, c.first_runs))
        ]
        points = np.round(np.stack([*limits[0], *limits[1]], axis=1), 6).tolist()
        return {"confidence": 1 - self.error, "points": points[:-1], "bound": points[-1]}

    def to_json(self) -> dict[str, Any]:
        counts = {name: int(number) for name, number in self.counts._asdict().items()}
        return {
            "canary": self.canary,
            "attack": self.attack,
            "epsilon_at_least": self.bound,
            "gaussian_epsilon_at_least": self.gaussian,
            "error": self.error,
            **counts,
        }


class Outcome(ABC):
    """What audits of all kinds say at their end."""

    promise: Promise
    confidence: float

    @property
    @abstractmethod
    def measured(self) -> float:
        """What epsilon is at least, with the stated confidence."""

    @property
    def violated(self) -> bool:
        """Whether the promise is refuted."""
        return self.measured > self.promise.epsilon

    @property
    def verdict(self) -> str:
        """In words: whether the promise is refuted, and what was measured."""
        # 99.9% is not 100%.
        measured = f"measured >= {_rounded_down(self.measured)} at {100 * self.confidence:g}%"
        if self.violated:
            return f"VIOLATED: {measured} against a promise of {self.promise}"
        return f"consistent with {self.promise}: {measured}"

    def _outcome(self) -> dict[str, Any]:
        """What the JSON of all audits begins with."""
        return {
            "verdict": self.verdict,
            "violated": self.violated,
            "promise": asdict(self.promise),
            "measured": self.measured,
            "confidence": self.confidence,
        }

    def _said(self, found: Sequence[str], *, seeded: bool) -> str:
        """The verdict with the promise, what was found, and how noise was drawn."""
        promise = self.promise
        status = "proven" if promise.proven else "claimed by a paper, not proven"
        lines = [self.verdict, f"  promise    {promise}, {status}: {promise.method}"]
        if promise.accounted is not None:
            accounted, delta = rounded_up(promise.accounted, 6), rounded_up(promise.delta, 3)
            lines.append(f"  accounted  epsilon {accounted} at delta {delta}")
        lines += [f"  protects   {promise.unit}; {promise.neighbours}", *found]
        if seeded:
            lines.append("  noise      seeded: the law of real noise, drawn by the same code")
        return "\n".join(lines)

    def _drawn(self, path: str | PathLike[str], draw: Callable[[Any], None]) -> Path:
        """A picture under the verdict, written to a file."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.2, 5.4), dpi=150, layout="constrained")
        axes = figure.subplots()
        draw(axes)
        axes.tick_params(colors=INK)
        axes.spines[["top", "right"]].set_visible(False)
        figure.suptitle(self.verdict, x=0.02, ha="left", fontsize=11, fontweight="bold")
        target = Path(path)
        with replacing(target) as file:
            figure.savefig(file, format=target.suffix.lstrip(".") or "png", facecolor="white")
        return target


class CarriedOut(Outcome):
    """An audit that was made here, with all that it found."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """All that was found, as plain data."""

    def report(self, path: str | PathLike[str]) -> Path:
        """Write what was found as one page of HTML. It depends on the data: it is not for release."""
        return write_page(path, audit_page(audited(self.to_json())), private=True)

    def _repr_html_(self) -> str:
        return snippet("Audit", [("found", self.verdict), ("attacked", self.promise.method)])


@dataclass(frozen=True, eq=False)
class Audit(CarriedOut):
    """The outcome of an audit. It depends on the data: it is for whoever holds them.

    Parameters
    ----------
    promise : Promise
        What was attacked.
    findings : tuple of Finding
        What each attack on each canary showed.
    confidence : float
        With which the bound holds.
    runs : int
        Fits for each canary.
    seeded : bool
        Whether the noise can be repeated.

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
    >>> found.violated, found.runs
    (False, 100)
    """

    promise: Promise
    findings: tuple[Finding, ...]
    confidence: float
    runs: int
    seeded: bool

    @property
    def strongest(self) -> Finding:
        """The finding with the largest bound."""
        return max(self.findings, key=lambda finding: finding.bound)

    @property
    def measured(self) -> float:
        """What epsilon is at least, with the stated confidence."""
        return self.strongest.bound

    def measured_at(self, confidence: float) -> float:
        """The bound with another confidence, from the same thresholds.

        Parameters
        ----------
        confidence : float
            Above a half, below 1.

        Returns
        -------
        float
            An epsilon.
        """
        error = (1 - confidence) / len(self.findings)
        return max(finding.bound_at(error) for finding in self.findings)

    @property
    def gaussian(self) -> float | None:
        """The largest bound under Gaussian privacy, where the mechanism is known to be Gaussian.

        It never decides whether the promise is violated.
        """
        return max((f.gaussian for f in self.findings if f.gaussian is not None), default=None)

    def __str__(self) -> str:
        best = self.strongest
        rates = best.counts
        found = [
            f"  strongest  {best.attack}, canary {best.canary}: right on {rates.first} of "
            f"{rates.first_runs} runs, a false alarm on {rates.second} of {rates.second_runs}",
            f"  runs       {self.runs} for each canary; half of them chose attack and threshold",
        ]
        if self.gaussian is not None:
            found.append(
                f"  Gaussian   epsilon >= {_rounded_down(self.gaussian)}, "
                "since the noise is known to be Gaussian"
            )
        return self._said(found, seeded=self.seeded)

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain data."""
        return {
            **self._outcome(),
            "gaussian": self.gaussian,
            "runs": self.runs,
            "seeded": self.seeded,
            "findings": [finding.to_json() for finding in self.findings],
            "curve": self.strongest.curve(),
        }

    def picture(self, path: str | PathLike[str]) -> Path:
        """Draw right against false alarms of the strongest attack, beside what the promise allows.

        Parameters
        ----------
        path : path
            Where to.

        Returns
        -------
        Path
            The file.
        """
        return self._drawn(path, lambda axes: _draw_roc(axes, self))


@dataclass(frozen=True)
class Reported(Outcome):
    """What the record of an audit says that was made before."""

    promise: Promise
    found: float
    confidence: float

    @property
    def measured(self) -> float:
        return self.found

    @classmethod
    def from_json(cls, data: Any) -> Reported:
        """Of what :meth:`Audit.to_json` gave; whatever else it is given is an error in words."""
        try:
            promise = made_of(Promise, data["promise"], "the promise of an audit")
            found = finite_number(data["measured"], "what an audit measured")
            confidence = finite_number(data["confidence"], "the confidence of an audit")
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"not the record of an audit: {error}") from error
        if not (found >= 0 and 0 < confidence < 1):
            raise DataError(f"not the record of an audit: it has {found} at {confidence}")
        return cls(promise, found, confidence)


def _rounded_down(bound: float) -> str:
    """As a lower bound has to be."""
    return f"{floor(100 * bound) / 100:.2f}"


def _draw_roc(axes: Any, audit: Audit) -> None:
    promise, best = audit.promise, audit.strongest
    runs = best.counts.second_runs
    least = 0.5 / runs
    false = np.geomspace(least, 1.0, 400)
    grow = np.exp(promise.epsilon)
    allowed = np.minimum(grow * false + promise.delta, 1 - (1 - promise.delta - false) / grow)
    axes.fill_between(false, np.clip(allowed, least, 1), 1.0, color=ACCENT, alpha=0.08, linewidth=0)
    axes.plot(false, np.clip(allowed, least, 1), color=ACCENT, linewidth=2)
    axes.plot(false, false, color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
    _draw_band(axes, best, least)
    roc = np.array(best.roc)
    axes.step(np.maximum(roc[:, 0], least), np.maximum(roc[:, 1], least), color=INK, where="post")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(least, 1)
    axes.set_ylim(least, 1.05)
    axes.set_xlabel("false alarms: share of the runs without what is looked for", color=INK)
    axes.set_ylabel("right alarms: share of the runs with it", color=INK)
    axes.set_title(f"{best.attack}; canary {best.canary}", loc="left", fontsize=10, color=INK)
    axes.plot([], [], color=ACCENT, linewidth=2, label=f"the most that {promise} allows")
    axes.plot([], [], color=INK, label="the strongest attack, on runs that chose nothing")
    axes.fill([], [], color=INK, alpha=0.14, linewidth=0, label="95% limits of each of its points")
    _draw_interval(axes, best, least)
    axes.plot([], [], color=FAINT, linestyle=(0, (4, 3)), label="guessing")
    axes.legend(loc="lower right", frameon=False, fontsize=9)


def _draw_band(axes: Any, finding: Finding, least: float) -> None:
    """How far off each point of the curve may be: exact limits of both rates, 95% for the two together.

    Of so many points some lie beyond what is allowed by chance alone: the verdict is from one that was
    chosen on other runs.
    """
    seldom, often = np.array(finding.roc).T
    runs = finding.counts.second_runs, finding.counts.first_runs
    hits = [np.rint(rate * of).astype(int) for rate, of in zip((seldom, often), runs, strict=True)]
    share = _POINTWISE / 4
    left, top = lower_rate(hits[0], runs[0], share), upper_rate(hits[1], runs[1], share)
    right, bottom = upper_rate(hits[0], runs[0], share), lower_rate(hits[1], runs[1], share)
    across = np.concatenate([left, right[::-1], [0.0]])
    up = np.concatenate([top, bottom[::-1], [0.0]])
    axes.fill(np.maximum(across, least), np.maximum(up, least), color=INK, alpha=0.14, linewidth=0)


def _draw_interval(axes: Any, finding: Finding, least: float) -> None:
    """The point that the bound is from, with its limits."""
    c, share = finding.counts, finding.error / 2
    x, y = c.second / c.second_runs, c.first / c.first_runs
    right = float(upper_rate(c.second, c.second_runs, share))
    lowest = float(lower_rate(c.first, c.first_runs, share))
    x, y = max(x, least), max(y, least)
    axes.plot([x, right], [y, y], color=INK, linewidth=1)
    axes.plot([x, x], [max(lowest, least), y], color=INK, linewidth=1)
    shape = {"color": INK, "marker": "o", "markersize": 6, "linewidth": 1}
    axes.plot([x], [y], clip_on=False, zorder=5, **shape)
    axes.plot([], [], label="the threshold that decides, with its limits", **shape)
