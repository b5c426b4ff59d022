"""The guarantee of a fitted model: what is promised, for what, on which grounds, in words and JSON."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from sfumato.errors import ReleaseError, SettingError
from sfumato.privacy.budgets import rounded_up
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
    epsilon, delta : what was accounted for this fit, never more than its budget. A claimed
        guarantee repeats what a paper claims.
    rho : where the budget was given as zCDP.
    unit, neighbours : what is protected, and which two data sets must look alike.
    cap : how many entries of a unit are used, where a cap was set.
    released, kept : the parts of the model that the guarantee covers, and those that stay with
        their owners (joint privacy).
    method : how the fit was made private. ``proof`` names the note that proves it, or says why it is
        only claimed.
    trust : who sees more than is released, and has to be trusted with it. Guarantees that were written
        before they said so are those of a trusted holder.
    tuning : how settings were chosen by looking at the data, where they were; it is paid for.
    exact : whether all noise comes from exact samplers, not floating-point ones; ``sampler`` says whose.
        Guarantees that were written before they said so have OpenDP's.
    seeded : whether the noise can be repeated by whoever knows the seed.
    warnings : what makes the promise worth little, where something does: a huge epsilon, few levels.
    fits, total_epsilon : of the ledger, this fit included; None without a ledger. The total is also
        None where some of the fits were only claimed to be private, or seeded, or where they have no
        bound together at this delta. It is for fits that were planned in advance;
        ``odometer_epsilon`` holds whatever they were planned by, and so does ``ledger_limit``, where
        the ledger was begun with one.
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

    @property
    def joint(self) -> bool:
        """Whether some rows stay with their owners."""
        return bool(self.kept)

    @property
    def releasable(self) -> bool:
        """Whether it can be released without saying more: proven, and with secret noise."""
        return self.proven and not self.seeded

    def check_releasable(self, force: bool) -> None:
        """Refuse what cannot be released without saying more, unless ``force`` says it."""
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
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Guarantee:
        """What :meth:`to_json` gave; every field has to be known, of its type, and possible."""
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
        return made

    # -- in words ---------------------------------------------------------------------------------

    def __str__(self) -> str:
        return "\n".join(
            textwrap.fill(line, _WIDTH, subsequent_indent=" " * 15, break_on_hyphens=False)
            for line in self._lines()
        )

    def _lines(self) -> list[str]:
        lines = [
            f"{'promise':15}{self._promise()}",
            f"{'protects':15}{self.unit}",
            f"{'neighbours':15}{self.neighbours}",
            f"{'trusts':15}{self.trust}",
            f"{'released':15}{', '.join(self.released)}",
        ]
        if self.kept:
            lines.append(f"{'kept':15}{', '.join(self.kept)}: {self._joint()}")
        if self.cap is not None:
            lines.append(f"{'cap':15}at most {self.cap:,} entries of a unit are used")
        lines += [
            f"{'status':15}{self._status()}",
            f"{'method':15}{self.method}",
            *([] if self.tuning is None else [f"{'tuning':15}{self.tuning}"]),
            f"{'arithmetic':15}{self._arithmetic()}",
            f"{'ledger':15}{self._ledger()}",
            *(f"{'assumes':15}{assumption}" for assumption in self.assumptions),
            *(f"{'warning':15}{warning}" for warning in self.warnings),
        ]
        return lines

    def _promise(self) -> str:
        amount = f"epsilon {rounded_up(self.epsilon)}"
        amount += f", delta {rounded_up(self.delta, 3)}" if self.delta else " (pure)"
        if self.rho is not None:
            amount = f"rho {rounded_up(self.rho)} (zCDP), which implies {amount}"
        return f"{'joint ' if self.joint else ''}differential privacy, {amount}"

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
                f"{self.ledger}: {self.fits} fits, of which no total can be given: some are only "
                "claimed or seeded, or have no bound at this delta"
            )
        spent = f"epsilon {rounded_up(self.total_epsilon)} at delta {rounded_up(self.delta, 3)}"
        if self.fits is not None and self.fits > 1:
            spent += " if planned in advance"
        if self.odometer_epsilon is not None:
            spent += f", {rounded_up(self.odometer_epsilon)} if by each other's releases"
        if self.ledger_limit is not None:
            spent += f"; whatever they are planned by, they stay within {self.ledger_limit}"
        return f"{self.ledger}: {self.fits} fits, together {spent}"
