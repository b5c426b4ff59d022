"""What a guarantee means to somebody who suspects something: odds, in plain words.

Whoever sees a release may hold two data sets against each other that differ in one unit. What they can
come to believe, and how often an attack can be right, follow from the accounted curve of delta over
epsilon alone, for whatever they know besides. Proofs: ``proofs/odds.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import lru_cache
from itertools import pairwise
from math import exp, inf, isclose, log1p
from typing import Any, Protocol

import numpy as np

from sfumato.checks import check_share
from sfumato.errors import SettingError
from sfumato.markup import snippet
from sfumato.privacy.accounting import deltas_of, epsilon_of
from sfumato.privacy.budgets import rounded_up
from sfumato.privacy.events import Event
from sfumato.records import record

Points = tuple[tuple[float, float], ...]  # epsilons that rise, each with a delta

ALARMS = 0.01  # false alarms at which an attack is told
PRIORS = (0.1, 0.5)  # beliefs beforehand that are told
_POINTS = 40  # of a curve: what is told of it is then right to about 1 in 1,000 up to epsilon 3
_BEYOND = 1e-3  # of delta: the curve is kept that far
_SLACK = 10  # times delta, where nothing is known below delta
_ROUNDED = 1e-5  # by which deltas of a curve are rounded up, at most
_ALIKE = 0.02  # by which an audit's epsilon may differ from what was accounted for
_HIGHEST = 700.0  # whose exponential is a number


class Shown(Protocol):
    """What an audit has shown: epsilon is at least so much, with a confidence."""

    @property
    def measured(self) -> float: ...

    @property
    def violated(self) -> bool: ...

    @property
    def confidence(self) -> float: ...

    @property
    def promise(self) -> Any:
        """What was attacked, with its ``unit``, ``epsilon`` and ``delta``."""


@record
@dataclass(frozen=True)
class Odds:
    """What who sees a release can learn of one unit, at most.

    Parameters
    ----------
    unit : str
        What is protected, in words.
    replaced : bool
        Whether neighbours have another unit in its place: the suspicion is then which of the two it
        is. Otherwise it is whether the unit is in the data at all.
    delta : float
        Of the guarantee.
    points : pairs of numbers
        Epsilons that rise with a delta for each: all that is known of the privacy curve. One pair
        will do, and says less.
    reservation : str or None
        Why nobody should rely on it, where somebody should not.

    Examples
    --------
    >>> import sfumato as sf
    >>> odds = sf.Odds(
    ...     "one entry", replaced=False, delta=1e-6, points=((1.0, 1e-6),)
    ... )
    >>> round(odds.posterior(0.1), 3)  # what a suspicion of 10% can become
    0.251
    >>> round(
    ...     odds.true_positives(0.05), 3
    ... )  # cases found by an attack that is wrong for one in twenty
    0.136
    """

    unit: str
    replaced: bool
    delta: float
    points: Points
    reservation: str | None = None

    def true_positives(self, false_alarms: float = ALARMS) -> float:
        """The largest share of cases that any attack can find at this share of false alarms.

        Parameters
        ----------
        false_alarms : float
            Share of the others that the attack takes for cases.

        Returns
        -------
        float
            Between 0 and 1.
        """
        check_share(True, false_alarms=false_alarms)
        epsilons, deltas = np.array(self.points).T
        growth = np.exp(np.minimum(epsilons, _HIGHEST))
        near = (deltas + growth * false_alarms).min()
        far = 1 - ((1 - deltas - false_alarms) / growth).max()
        return float(min(1.0, max(false_alarms, min(near, far))))

    @property
    def chance(self) -> float:
        """That odds grow by more than ``factor``: delta, or more where nothing is known below it."""
        known = any(delta <= self.delta / _SLACK for _, delta in self.points)
        return self.delta if known else min(1.0, _SLACK * self.delta)

    @property
    def factor(self) -> float:
        """By how much odds grow at most, but for a release that comes with :attr:`chance` at most."""
        return self.growth(self.chance)

    def growth(self, chance: float) -> float:
        """By how much odds grow at most, but for releases that come with this probability at most.

        Parameters
        ----------
        chance : float
            From delta on.

        Returns
        -------
        float
            A factor of one or more.
        """
        if not 0 <= chance <= 1:
            raise SettingError(f"a chance lies between 0 and 1, got {chance}")
        bounds = [
            epsilon - (log1p(-delta / chance) if delta else 0.0)
            for epsilon, delta in self.points
            if delta < chance or delta == 0
        ]
        return exp(min(bounds)) if min(bounds, default=inf) <= _HIGHEST else inf

    def posterior(self, prior: float, chance: float | None = None) -> float:
        """What a belief of ``prior`` becomes at most, but for that chance; the usual one unless told.

        Parameters
        ----------
        prior : float
            Between 0 and 1.
        chance : float or None
            As of :meth:`growth`.

        Returns
        -------
        float
            Between ``prior`` and 1.
        """
        check_share(prior=prior)
        growth = self.factor if chance is None else self.growth(chance)
        return 1.0 if growth == inf else prior * growth / (prior * growth + 1 - prior)

    # -- in words -----------------------------------------------------------------------------------

    def sentences(self, audit: Shown | None = None) -> tuple[str, ...]:
        """What somebody can come to believe, how well they can find out, and what an audit has shown.

        Parameters
        ----------
        audit : Shown or None
            What an audit has shown, if there was one.

        Returns
        -------
        tuple of str
            One after the other.
        """
        said = [self._belief(), self._attack()] if self._says_something else [self._nothing()]
        if audit is not None:
            said.append(self._shown(audit))
        if self.reservation is not None:
            said = [f"{self.reservation}: {line}" for line in said[:1]] + said[1:]
        return tuple(said)

    def _repr_html_(self) -> str:
        """For notebooks."""
        said = self.sentences()
        return snippet("Odds", [("at most" if n == 0 else "", line) for n, line in enumerate(said)])

    @property
    def _says_something(self) -> bool:
        return self.factor < inf or self.true_positives() < 1

    @property
    def _thing(self) -> str:
        """The unit without what else is hidden with it."""
        return self.unit.partition(",")[0]

    @property
    def _suspicion(self) -> str:
        if self.replaced:
            return f"it is the one and not the other of two possibilities for {self._thing}"
        return f"the data hold {self._thing}"

    def _belief(self) -> str:
        steps = ", and ".join(f"from {_percent(p)} to {_percent(self.posterior(p))}" for p in PRIORS)
        but = f", but for a chance of {rounded_up(self.chance, 2)}" if self.chance else ""
        return (
            f"a belief that {self._suspicion} can rise {steps}: its odds grow at most "
            f"{_times(self.factor)}{but}"
        )

    def _attack(self) -> str:
        alarmed, found = _percent(ALARMS), _percent(self.true_positives())
        return (
            f"an attack that is wrong in {alarmed} of the cases in which that is not so finds at most "
            f"{found} of those in which it is"
        )

    def _nothing(self) -> str:
        return f"nothing is promised: whoever suspects that {self._suspicion} may become certain of it"

    def check_audit(self, unit: str, epsilon: float, delta: float) -> None:
        """Refuse what an audit of another promise has shown: it says nothing of this one.

        Parameters
        ----------
        unit : str
            What was attacked.
        epsilon, delta : float
            What was promised of it.
        """
        if unit != self.unit:
            raise SettingError(
                f"this audit is about another unit, {unit}: the odds are about {self.unit}"
            )
        most = self.delta * (1 + _ROUNDED)
        mine = min((each for each, at in self.points if at <= most), default=inf)
        same = isclose(delta, self.delta, rel_tol=_ALIKE)
        if not (same and isclose(epsilon, mine, rel_tol=_ALIKE)):
            raise SettingError(
                f"this audit is about another promise, epsilon {epsilon:.4g} at delta "
                f"{delta:g}: the odds are about epsilon {mine:.4g} at delta {self.delta:g}. "
                "Audit with the same epsilon and delta"
            )

    def _shown(self, audit: Shown) -> str:
        promise = audit.promise
        self.check_audit(promise.unit, promise.epsilon, promise.delta)
        least = exp(min(audit.measured, _HIGHEST))
        outcome = "which REFUTES the promise" if audit.violated else "which the promise allows"
        return (
            f"an audit has shown, with a confidence of {100 * audit.confidence:g}%, that odds can grow "
            f"{_times(least, ROUND_FLOOR)}, {outcome}"
        )

    def to_json(self) -> dict[str, Any]:
        """The numbers with the sentences; what is infinite is None."""
        return {
            **{name: value for name, value in asdict(self).items() if name != "points"},
            "factor": self.factor if self.factor < inf else None,
            "chance": self.chance,
            "posterior": {f"{prior:g}": self.posterior(prior) for prior in PRIORS},
            "false_alarms": ALARMS,
            "true_positives": self.true_positives(),
            "sentences": list(self.sentences()),
        }


@lru_cache(maxsize=256)  # a plan, its fit and its guarantee ask for the same
def curve_points(event: Event, delta: float) -> Points:
    """The accounted curve of a fit, at a few epsilons, each number rounded to the safe side.

    It ends at pure epsilon where that is no further than a curve would go, well below delta otherwise.
    """
    pure = epsilon_of(event, 0.0)
    far = min(epsilon_of(event, delta * _BEYOND), pure) if delta else pure
    own = epsilon_of(event, delta)
    top = far if far < inf else own
    if top == inf:
        return ()
    grid = sorted({_up(top * step / _POINTS) for step in range(_POINTS + 1)} | {_up(own)})
    deltas = np.minimum.accumulate(deltas_of(event, grid))
    found = [(e, _up(d)) for e, d in zip(grid, deltas.tolist(), strict=True) if _up(d) < 1]
    return (*found, (pure, 0.0)) if grid[-1] < pure < inf else tuple(found)


def worst_points(events: Sequence[Event], delta: float) -> Points:
    """The same of the worst of several fits, one of which it is that somebody looks at."""
    curves = [curve_points(event, delta) for event in events]
    if not all(curves):
        return ()
    grid = sorted({epsilon for points in curves for epsilon, _ in points})
    worst = np.minimum.accumulate(np.max([deltas_of(event, grid) for event in events], axis=0))
    return tuple((e, _up(d)) for e, d in zip(grid, worst.tolist(), strict=True) if _up(d) < 1)


def pair_points(epsilon: float, delta: float) -> Points:
    """All that an epsilon and a delta say."""
    return ((epsilon, delta),)


def check_points(points: Sequence[tuple[float, float]]) -> None:
    """Refuse what cannot be a curve: epsilons have to rise, deltas to fall, within their ranges."""
    epsilons, deltas = [point[0] for point in points], [point[1] for point in points]
    rising = all(a < b for a, b in pairwise(epsilons))
    falling = all(a >= b for a, b in pairwise(deltas))
    possible = all(0 <= e < inf for e in epsilons) and all(0 <= d < 1 for d in deltas)
    if not (rising and falling and possible):
        raise SettingError("a privacy curve has epsilons that rise and deltas below 1 that fall")


def _up(number: float) -> float:
    """In six digits, never less than it is."""
    return float(rounded_up(number, 6))


def _rounded(number: float, places: int, way: str) -> Decimal:
    return Decimal(repr(float(number))).quantize(Decimal(1).scaleb(-places), way)


def _percent(share: float) -> str:
    """Rounded up: these are bounds."""
    return f"{float(_rounded(100 * share, 1, ROUND_CEILING)):g}%"


def _times(factor: float, way: str = ROUND_CEILING) -> str:
    if factor == inf:
        return "without any bound"
    if factor >= 1000:
        return f"{factor:.1e}-fold"
    return f"{_rounded(factor, 2, way)}-fold"
