"""Budgets of privacy: pure epsilon, (epsilon, delta), and zero-concentrated rho."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from math import log, sqrt
from typing import ClassVar

from sfumato.checks import check_share, is_number, make_plain, wrong
from sfumato.errors import SettingError
from sfumato.records import record


def counted(number: int, what: str) -> str:
    """So many of something, in words."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def rounded_up(number: float, digits: int = 4) -> str:
    """A number in so many digits, never less than it is: what was spent, or is promised.

    Up from the shortest text that stands for the number, so that 0.1 is 0.1.
    """
    up = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(number)))
    return f"{float(up):.{digits}g}"


@record
@dataclass(frozen=True)
class Budget:
    """(epsilon, delta)-differential privacy; ``delta=0`` is pure.

    Adding budgets is basic composition; multiplying by a share cuts both parts.

    Parameters
    ----------
    epsilon : float
        Above zero.
    delta : float
        From zero to below one.

    Examples
    --------
    >>> import sfumato as sf
    >>> first, second = sf.Budget(1.0, 1e-6).split(1, 3)
    >>> print(first, "and", second)
    epsilon 0.25, delta 2.5e-07 and epsilon 0.75, delta 7.5e-07
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        make_plain(self)
        if not is_number(self.epsilon) or self.epsilon <= 0:  # of any size: budgets are divided
            raise wrong("epsilon", "a number above zero", self.epsilon)
        check_share(True, delta=self.delta)

    @property
    def pure(self) -> bool:
        """Whether delta is zero."""
        return self.delta == 0

    def __add__(self, other: Budget) -> Budget:
        return Budget(self.epsilon + other.epsilon, self.delta + other.delta)

    def __mul__(self, share: float) -> Budget:
        return Budget(self.epsilon * share, self.delta * share)

    __rmul__ = __mul__

    def split(self, *shares: float) -> tuple[Budget, ...]:
        """Parts that add up to this budget, in proportion to the shares.

        Parameters
        ----------
        *shares : float
            Of any sum.

        Returns
        -------
        tuple of Budget
            One for each share.
        """
        return tuple(self * share for share in _proportions(shares))

    def __str__(self) -> str:
        amount = f"epsilon {rounded_up(self.epsilon)}"
        return amount if self.pure else f"{amount}, delta {rounded_up(self.delta, 3)}"


@record
@dataclass(frozen=True)
class ZCDP:
    """rho-zero-concentrated differential privacy (Bun and Steinke 2016).

    Parameters
    ----------
    rho : float
        Above zero.

    Examples
    --------
    >>> import sfumato as sf
    >>> budget = sf.ZCDP(0.1)
    >>> round(budget.epsilon(1e-6), 2)
    2.45
    >>> round(sf.ZCDP.within(sf.Budget(1.0, 1e-6)).rho, 4)
    0.0175
    """

    rho: float

    pure: ClassVar[bool] = False  # it promises no epsilon without a delta

    def __post_init__(self) -> None:
        make_plain(self)
        if not is_number(self.rho) or self.rho <= 0:
            raise wrong("rho", "a number above zero", self.rho)

    def __add__(self, other: ZCDP) -> ZCDP:
        return ZCDP(self.rho + other.rho)

    def __mul__(self, share: float) -> ZCDP:
        return ZCDP(self.rho * share)

    __rmul__ = __mul__

    def split(self, *shares: float) -> tuple[ZCDP, ...]:
        """Parts that add up to this budget, in proportion to the shares.

        Parameters
        ----------
        *shares : float
            Of any sum.

        Returns
        -------
        tuple of ZCDP
            One for each share.
        """
        return tuple(self * share for share in _proportions(shares))

    def epsilon(self, delta: float) -> float:
        """The epsilon that it implies at delta, as the papers convert: rho + 2 sqrt(rho ln(1/delta)).

        ``accounting.epsilon_of(ZCDPEvent(rho), delta)`` is tighter.

        Parameters
        ----------
        delta : float
            Above zero.

        Returns
        -------
        float
            An epsilon.
        """
        check_share(delta=delta)
        return self.rho + 2 * sqrt(-self.rho * log(delta))

    @classmethod
    def within(cls, budget: Budget) -> ZCDP:
        """The largest rho that :meth:`epsilon` turns into an (epsilon, delta) budget.

        Parameters
        ----------
        budget : Budget
            With a delta above zero.

        Returns
        -------
        ZCDP
            That rho.
        """
        if budget.pure:
            raise SettingError("zCDP gives no pure epsilon: name a delta, such as 1e-6")
        room = -log(budget.delta)
        return cls((budget.epsilon / (sqrt(room + budget.epsilon) + sqrt(room))) ** 2)

    def __str__(self) -> str:
        return f"rho {rounded_up(self.rho)}"


def _proportions(shares: tuple[float, ...]) -> list[float]:
    if not shares or not all(is_number(share) and share > 0 for share in shares):
        raise SettingError(f"shares must be numbers above zero, got {shares}")
    whole = sum(shares)
    return [share / whole for share in shares]
