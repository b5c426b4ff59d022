"""What a caller asks for: ``Privacy(epsilon=1, delta=1e-6, unit="user")``."""

from __future__ import annotations

import os
import unicodedata
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Literal, get_args

from sfumato.checks import (
    check_choice,
    check_count,
    check_flag,
    check_kind,
    check_positive,
    check_seed,
    check_share,
    check_text,
    given,
    make_plain,
    wrong,
)
from sfumato.errors import SettingError
from sfumato.privacy.budgets import ZCDP, Budget
from sfumato.privacy.entropy import Entropy, Sampler
from sfumato.privacy.sampling import SAMPLERS
from sfumato.privacy.trust import ONE_OWNER, Trust
from sfumato.privacy.units import AnyUnit, Public
from sfumato.solvers.registry import METHODS, names
from sfumato.surface import either, setting

Analysis = Literal["proven", "paper"]
_ANALYSES: tuple[str, ...] = get_args(Analysis)


@dataclass(frozen=True)
class Privacy:
    """A budget, what it is to protect, and how.

    Parameters
    ----------
    epsilon, delta : float or None
        The budget; ``delta=0`` is pure epsilon.
    unit : str or unit
        What is protected: "value", "entry", the name of a mode ("user": all entries of one user),
        "values:MODE", or a unit record such as ``Unit("user", max_entries=100)``. ``PowerMethod``
        has ``TensorEntry`` and ``Sample``.
    max_entries : int or None
        Entries (values) of one level that are used (may change); where the unit has a cap.
    method
        "auto" (chosen from public numbers), "moments", "alternating", "input", "gradient", "output",
        "pairs", "bias", "constant", of several relations also "langevin"; or a private solver record
        with settings of your own.
    analysis : str
        "proven", or "paper": as printed, marked as claimed.
    noise : str
        The law of the noise where a method has several; "auto" by default.
    local : str or None
        The mode whose rows stay with their owners and are not released: a mode's name, None
        (everything is released), or "auto": the unit's own mode where the unit is a mode.
    public : Public
        What everyone knows where presence is protected; see :class:`Public`.
    ledger : path or None
        File in which spending is recorded and adds up over fits.
    limit : Budget or None
        What that spending may reach.
    period : str or None
        Public name of the part of the data that is fitted, a month say. In a ledger, fits of
        different periods do not add up for a unit that lies in one of them alone (an entry, a
        value); for all others they do. See ``partial_fit``.
    seed : int or None
        Of the noise, for experiments that have to be repeatable; None for secret noise.
    trust : Trust
        Who is trusted with what, where the data lie with several sites; see :class:`Trust`. Given
        one tensor, the sites are played: it is cut into as many parts, each with noise of its own.
    sampler : str
        Who draws exact noise: "sfumato", or "opendp", which takes some 500 times as long and needs
        the extra ``sfumato[opendp]``.
    intervals : bool
        Whether to ask at the end how far values lie from predictions, with 0.3% to 12% of the
        budget, so that ``predict(interval=0.9)`` can tell.
    rho : float or None
        The budget of zCDP, instead of ``epsilon``.

    Examples
    --------
    >>> import sfumato as sf
    >>> public = sf.Public(labels=True, units=1000, entries=80_000)
    >>> privacy = sf.Privacy(epsilon=3, delta=1e-6, unit="user", public=public)
    >>> plan = sf.CP(privacy=privacy).plan(
    ...     [sf.Mode("user", 600), sf.Mode("item", 400)], bounds=(1, 5)
    ... )
    >>> print(plan.explain())
    user 1,000 x item 400: CP of rank 2 with a mean and biases, float64; moments,
        within epsilon 3, delta 1e-06 for all entries of one user, their presence
        included.
      own slopes on biases and counts of item, which cost nothing
      1 x constant: Gaussian, noise multiplier 15.4; 0.01 of the budget
      1 x spread: Gaussian, noise multiplier 34.7; 0.002 of the budget
      1 x entries by item: Gaussian, noise multiplier 4.92; 0.099 of the budget
      6 x residuals by item: Gaussian, noise multiplier 4.02; 0.89 of the budget
      1 x how far owners differ: Gaussian, noise multiplier 28.3; 0.003 of the
          budget
    """

    epsilon: float | None = None
    delta: float = 0.0
    unit: str | AnyUnit = ""
    max_entries: int | None = None
    method: Any = "auto"
    analysis: Analysis = "proven"
    noise: str = "auto"
    local: str | None = "auto"
    public: Public = field(default_factory=Public)
    ledger: str | os.PathLike[str] | None = None
    limit: Budget | None = None
    period: str | None = None
    seed: int | None = None
    rho: float | None = None
    sampler: Sampler = "sfumato"
    trust: Trust = ONE_OWNER
    intervals: bool = False

    def __post_init__(self) -> None:
        make_plain(self)
        if (self.epsilon is None) == (self.rho is None):
            raise SettingError("give a budget: epsilon (and delta), or rho for zCDP")
        if isinstance(self.unit, str) and not self.unit:
            raise SettingError(
                f"say what is protected: {setting('unit', 'value', 'entry')}, or the name of a mode "
                "such as user"
            )
        check_kind(str | AnyUnit, "a name or one of the unit types", unit=self.unit)
        check_count(**given(max_entries=self.max_entries))
        methods = ("auto", *names("private"), *names("private coupled"))
        if isinstance(self.method, str) and self.method not in methods:
            raise SettingError(f"there is no method {self.method!r}; there are {', '.join(methods)}")
        record = is_dataclass(self.method) and not isinstance(self.method, type)
        if not isinstance(self.method, str) and not record:
            wanted = "a name, or a private solver such as sfumato.PrivateBiases()"
            raise wrong("method", wanted, self.method)
        check_choice(_ANALYSES, analysis=self.analysis)
        check_text(noise=self.noise, **given(local=self.local, period=self.period))
        check_kind(Public, "a Public", public=self.public)
        check_kind(str | os.PathLike | None, "the path of a file", ledger=self.ledger)
        check_kind(Budget | None, "a Budget", limit=self.limit)
        check_seed(**given(seed=self.seed))
        if self.limit is not None and self.ledger is None:
            raise SettingError(
                f"a limit belongs to a ledger file: name one, {either('ledger=...', '--ledger FILE')}"
            )
        if self.period is not None:
            object.__setattr__(self, "period", _name_of_period(self.period))
        if self.period is not None and self.ledger is None:
            raise SettingError(
                f"a period is charged to a ledger: name one, {either('ledger=...', '--ledger FILE')}"
            )
        check_positive(**given(epsilon=self.epsilon, rho=self.rho))
        check_share(True, delta=self.delta)
        check_choice(tuple(SAMPLERS), sampler=self.sampler)
        check_kind(Trust, "a Trust", trust=self.trust)
        check_flag(intervals=self.intervals)
        self.entropy()  # OpenDP has to be there, and cannot be seeded

    def entropy(self) -> Entropy:
        """Where the noise of one fit comes from."""
        return Entropy(self.seed, self.sampler)

    @property
    def can_be_joint(self) -> bool:
        """Whether the method can leave rows with their owners; foreign solvers are taken to."""
        # Whether a record that was handed in is a solver at all is judged when it is planned with.
        label = self.method if isinstance(self.method, str) else getattr(self.method, "name", "")
        rows = [row for row in METHODS if label == row.name or label in row.labels]
        return not rows or any(row.joint for row in rows)

    def check_one_owner(self, what: str) -> None:
        """Refuse sites of several owners, for what is not made for them."""
        if self.trust.kind != "one owner":
            raise SettingError(f"{what} is for one owner's data: leave {setting('trust')} out")

    def check_no_intervals(self, what: str) -> None:
        """Refuse to be asked for intervals, by what tells none."""
        if self.intervals:
            raise SettingError(f"{what} tells no intervals: leave {setting('intervals')} out")

    @property
    def budget(self) -> Budget | ZCDP:
        """Epsilon and delta, or rho, as one."""
        if self.rho is not None:
            return ZCDP(float(self.rho))
        return Budget(float(self.epsilon or 0.0), float(self.delta))


_UNSEEN = ("C", "Zl", "Zp")  # categories of characters that do not stand in one line


def _name_of_period(name: str) -> str:
    """As it is compared and printed: two names that look alike are one, and no name is two lines."""
    name = unicodedata.normalize("NFC", name).strip()
    if not name or any(unicodedata.category(each).startswith(_UNSEEN) for each in name):
        raise SettingError(f"{setting('period')} is a name in one line: give one, or leave it out")
    return name
