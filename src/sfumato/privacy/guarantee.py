"""The guarantee of a fitted model: what is promised, for what, on which grounds, in words and JSON."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from sfumato.errors import ReleaseError, SettingError
from sfumato.markup import snippet
from sfumato.privacy.budgets import counted, rounded_up
from sfumato.privacy.odds import Odds, Points, check_points, pair_points
from sfumato.surface import either, setting
from sfumato.typed import made_of

_WIDTH = 80
HOLDER_IS_TRUSTED = (
    "whoever holds the data and runs the fit: they see all of it, and this promise protects nobody "
    "from them"
)


@dataclass(frozen=True)
class Guarantee:
    """What a private fit promises.

    Parameters
    ----------
    epsilon, delta : float
        What was accounted for this fit, never more than its budget. A claimed guarantee repeats what a
        paper claims.
    rho : float or None
        Where the budget was given as zCDP.
    unit, neighbours : str
        What is protected, and which two data sets must look alike.
    owner, cap
        The mode whose levels are protected, and how many entries of one are used, where there are such.
    released, kept : tuple of str
        The parts of the model that the guarantee covers, and those that stay with their owners (joint
        privacy).
    method : str
        How the fit was made private.
    proven, proof : bool or str
        Whether it is proven, and the note that proves it, or why it is only claimed.
    assumptions : tuple of str
        What has to hold for it.
    trust : str
        Who sees more than is released, and has to be trusted with it. Guarantees that were written
        before they said so are those of a trusted holder.
    tuning : str or None
        How settings were chosen by looking at the data, where they were; it is paid for.
    exact, sampler : bool or str
        Whether all noise comes from exact samplers, not floating-point ones, and whose. Guarantees that
        were written before they said so have OpenDP's.
    seeded : bool
        Whether the noise can be repeated by whoever knows the seed.
    warnings : tuple of str
        What makes the promise worth little, where something does: a huge epsilon, few levels.
    ledger, fits, total_epsilon
        Of the ledger, this fit included; None without one. The total is also None where some of the fits
        were only claimed to be private, or seeded, or where they have no bound together at this delta.
        It is for fits that were planned in advance.
    odometer_epsilon, ledger_limit
        The total whatever fits were planned by, and the limit where the ledger was begun with one.
    ledger_mark
        What tells that ledger, as it was then, from one with other charges.
    curve : pairs of numbers
        Points of this fit's own accounted curve, epsilons with deltas, which its odds follow from.
        Guarantees that were written before they had one, and claimed ones, have none.
    period, periods, apart
        The part of the data that this fit was about, where it has a name; of how many periods the
        release has fits, all of which this promise is about; and how many periods the ledger has whose
        charges do not add up, since a unit lies in one of them.
    draws
        What was drawn, as planned from public numbers: what for, how often, and which share of the
        budget it took, zero where shares have no common measure. Earlier guarantees do not say it.

    Examples
    --------
    >>> import sfumato as sf
    >>> public = sf.Public(labels=True, entries=400)
    >>> privacy = sf.Privacy(
    ...     1.0,
    ...     1e-6,
    ...     unit="entry",
    ...     local=None,
    ...     public=public,
    ...     method="bias",
    ...     seed=0,
    ... )
    >>> promise = (
    ...     sf.Biases(privacy=privacy)
    ...     .fit(sf.synthetic.ratings_like(30, 20, 5, 400))
    ...     .guarantee_
    ... )
    >>> promise.unit, promise.proof
    ('one entry, its presence included', 'proofs/biases.md')
    >>> promise.releasable  # not with a seed: who knows it takes the noise off
    False
    """

    epsilon: float
    delta: float
    unit: str
    neighbours: str
    released: tuple[str, ...]
    method: str
    proven: bool
    proof: str
    exact: bool
    seeded: bool
    assumptions: tuple[str, ...]
    kept: tuple[str, ...] = ()
    owner: str | None = None
    cap: int | None = None
    rho: float | None = None
    ledger: str | None = None
    fits: int | None = None
    total_epsilon: float | None = None
    odometer_epsilon: float | None = None
    ledger_limit: str | None = None
    tuning: str | None = None
    warnings: tuple[str, ...] = ()
    trust: str = HOLDER_IS_TRUSTED
    sampler: str = "OpenDP's samplers"
    curve: Points = ()
    period: str | None = None
    apart: int | None = None
    draws: tuple[tuple[str, int, float], ...] = ()
    ledger_mark: str | None = None
    periods: int | None = None

    @property
    def joint(self) -> bool:
        """Whether some rows stay with their owners."""
        return bool(self.kept)

    @property
    def releasable(self) -> bool:
        """Whether it can be released without saying more: proven, and with secret noise."""
        return self.proven and not self.seeded

    def odds(self) -> Odds:
        """What somebody who suspects something of a unit can learn of it from this release alone."""
        points = self.curve or pair_points(self.epsilon, self.delta)
        substituted = "added or removed" not in self.neighbours
        return Odds(self.unit, substituted, self.delta, points, self._reservation())

    def check_releasable(self, force: bool) -> None:
        """Refuse what cannot be released without saying more, unless ``force`` says it.

        Parameters
        ----------
        force : bool
            Release what is claimed only, or seeded.
        """
        if force or self.releasable:
            return
        if not self.proven:
            raise ReleaseError(
                f"this guarantee is claimed by a paper and not proven ({self.proof}): release a "
                f"fit with {setting('analysis', 'proven')}, or force it; it is then marked as claimed"
            )
        raise ReleaseError(
            "the noise of this fit came from a seed, and whoever knows it can take the noise off "
            f"again: fit {either('with seed=None', 'without --noise-seed')}, or force the release; it "
            "is then marked as seeded"
        )

    def to_json(self) -> dict[str, Any]:
        """All fields as plain data."""
        return asdict(self)

    def told(self) -> dict[str, Any]:
        """The same with what it means, for who reads it and does not store it."""
        return {**self.to_json(), "odds": self.odds().to_json()}

    @classmethod
    def from_json(cls, data: Any) -> Guarantee:
        """What :meth:`to_json` gave; every field has to be known, of its type, and possible.

        Parameters
        ----------
        data
            What was read.

        Returns
        -------
        Guarantee
            As it was.
        """
        try:
            made = made_of(cls, data, "a guarantee")
        except ValueError as error:
            raise SettingError(f"not a guarantee: {error}") from error
        amounts = {
            name: getattr(made, name) for name in ("epsilon", "rho", "total_epsilon", "odometer_epsilon")
        }
        for name, amount in amounts.items():
            if amount is not None and not 0 <= amount <= inf:
                raise SettingError(f"not a guarantee: {name} cannot be {amount}")
        if not 0 <= made.delta < 1:
            raise SettingError(f"not a guarantee: delta cannot be {made.delta}")
        if not made.trust.strip():
            raise SettingError("not a guarantee: it does not say who is trusted")
        try:
            check_points(made.curve)
        except SettingError as error:
            raise SettingError(f"not a guarantee: {error}") from error
        return made

    # -- in words ---------------------------------------------------------------------------------

    def __str__(self) -> str:
        return "\n".join(
            textwrap.fill(
                f"{title:15}{text}", _WIDTH, subsequent_indent=" " * 15, break_on_hyphens=False
            )
            for title, text in self.said()
        )

    def _repr_html_(self) -> str:
        """For notebooks."""
        return snippet("Guarantee", self.said())

    def said(self) -> list[tuple[str, str]]:
        """All that is promised in words: titles and texts, in the order in which they are told."""
        return [
            ("promise", self._promise()),
            ("protects", self.unit),
            ("neighbours", self.neighbours),
            ("trusts", self.trust),
            ("released", ", ".join(self.released)),
            *([("kept", f"{', '.join(self.kept)}: {self._joint()}")] if self.kept else []),
            *([] if self.cap is None else [("cap", f"at most {self.cap:,} entries of a unit are used")]),
            *(("odds", sentence) for sentence in self.odds().sentences()),
            ("status", self._status()),
            ("method", self.method),
            *([] if self.tuning is None else [("tuning", self.tuning)]),
            ("arithmetic", self._arithmetic()),
            *([] if self.period is None else [("period", self._period())]),
            ("ledger", self._ledger()),
            *(("assumes", assumption) for assumption in self.assumptions),
            *(("warning", warning) for warning in self.warnings),
        ]

    def _promise(self) -> str:
        amount = f"epsilon {rounded_up(self.epsilon)}"
        amount += f", delta {rounded_up(self.delta, 3)}" if self.delta else " (pure)"
        if self.rho is not None:
            amount = f"rho {rounded_up(self.rho)} (zCDP), which implies {amount}"
        return f"{'joint ' if self.joint else ''}differential privacy, {amount}"

    def _period(self) -> str:
        if self.periods is None:
            return str(self.period)
        return f"{self.period}, the last of {self.periods}: the promise is about all of them together"

    def _joint(self) -> str:
        return (
            f"all that everybody else sees, everyone else's rows and predictions included, is as "
            f"private as stated; whoever sees the own rows or predictions of one {self.owner} learns "
            "of its data"
        )

    def _status(self) -> str:
        return (
            f"proven, {self.proof}" if self.proven else f"CLAIMED by a paper, not proven: {self.proof}"
        )

    def _reservation(self) -> str | None:
        """Why odds are not to be relied on."""
        if not self.proven:
            return "only if what is CLAIMED holds, which is not proven"
        if self.seeded:
            return "only to those who do not know the seed; who does can become certain"
        return None

    def _arithmetic(self) -> str:
        if self.seeded:
            return "seeded, for experiments: whoever knows the seed can take the noise off again"
        if self.exact:
            return f"exact: {self.sampler}, keyed by the operating system"
        return "idealised: real numbers are assumed where floating-point ones are used"

    def _ledger(self) -> str:
        if self.ledger is None:
            return "none: this fit stands alone, and others on the same data add to what it spends"
        if self.total_epsilon is None:
            return (
                f"{self._fits()}, of which no total can be given: some are only "
                "claimed or seeded, or have no bound at this delta"
            )
        together = "together"
        if self.apart is not None and self.apart > 1:
            together = f"of {self.apart} periods, for whatever lies in one of them at most"
        spent = f"epsilon {rounded_up(self.total_epsilon)} at delta {rounded_up(self.delta, 3)}"
        if self.fits is not None and self.fits > 1:
            spent += " if planned in advance"
        if self.odometer_epsilon is not None:
            spent += f", {rounded_up(self.odometer_epsilon)} if by each other's releases"
        if self.ledger_limit is not None:
            spent += f"; whatever they are planned by, they stay within {self.ledger_limit}"
        return f"{self._fits()}, {together} {spent}"

    def _fits(self) -> str:
        return f"{self.ledger}: {counted(self.fits or 0, 'fit')}"
