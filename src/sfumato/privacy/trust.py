"""Who is trusted with what, where the data of one private fit lie with several sites.

=================  ======================================================  ==========================
kind               who adds noise                                          holds
=================  ======================================================  ==========================
``one owner``      whoever runs the fit, once, to the sum of all sites     against who sees releases
``each site``      every site all of it, before its answer leaves it       whatever all others do
``secure shares``  every site a share; the sum alone is ever opened        while few are lost or collude
=================  ======================================================  ==========================

A solver knows nothing of this: its noise is that of a sum over all sites, wherever it is drawn. What a
unit is charged is :meth:`Trust.charged`: the same with less noise, where every site adds all of it;
and each site draws :meth:`Trust.share_of` what is charged. Proof: ``proofs/shares.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import Literal, get_args

from sfumato.checks import check_choice, check_count, check_kind, make_plain
from sfumato.errors import SettingError
from sfumato.privacy.guarantee import HOLDER_IS_TRUSTED
from sfumato.privacy.mechanisms import (
    MOST_SITES,
    Gaussian,
    GaussianShare,
    Laplace,
    Mechanism,
)
from sfumato.privacy.units import AnyUnit, Unit, UnitValues
from sfumato.records import record
from sfumato.surface import setting

TrustKind = Literal["one owner", "each site", "secure shares"]
Additive = Laplace | Gaussian  # noise on sums, of a known deviation
PROOF = "proofs/shares.md"
_LEAST_SITES = 3  # of secure shares: of two, each knows the other's part of a sum


@record
@dataclass(frozen=True)
class Trust:
    """Who is trusted with what.

    Parameters
    ----------
    kind : str
        ``"one owner"``, ``"each site"`` or ``"secure shares"``.
    sites : int
        How many sites hold the data.
    tolerate : int
        Of secure shares, how many sites may be lost in a round or tell others what they know, both
        counted together. Every site knows its own share of the noise, so that it is at least one.
    sites_of_unit : int
        How many sites one unit's entries may lie at, at most; a public number. It is one for entries
        and values.

    Examples
    --------
    >>> import sfumato as sf
    >>> trust = sf.Trust("secure shares", sites=5, tolerate=2)
    >>> print(trust.in_words())
    each site with its own data and nobody else's, and with keeping its share of
        the noise to itself: of 5 sites at most 2 may be lost in a round or tell
        what they know, both counted together; a site that takes off its own share
        is one of them. Whoever runs the fit, with doing as agreed: they see sums
        over sites and no site's own
    >>> trust.shares, trust.least_present
    (3, 4)
    """

    kind: TrustKind = "one owner"
    sites: int = 1
    tolerate: int = 0
    sites_of_unit: int = 1

    def __post_init__(self) -> None:
        make_plain(self)
        check_choice(get_args(TrustKind), trust=self.kind)
        check_count(1, MOST_SITES, sites=self.sites)
        check_count(0, tolerate=self.tolerate)
        check_count(sites_of_unit=self.sites_of_unit)
        if self.sites_of_unit > self.sites:
            raise SettingError(
                f"a unit cannot be at {self.sites_of_unit:,} of {self.sites:,} sites: lower "
                f"{setting('sites_of_unit')}"
            )
        if self.kind == "secure shares":
            self._check_shares()
        elif self.tolerate:
            raise SettingError(
                f"{setting('tolerate')} is for secure shares: with {self.kind!r} the noise does not "
                "depend on how many sites are lost or collude"
            )
        if self.kind == "one owner" and self.sites_of_unit > 1:
            raise SettingError(
                "one owner has to put all entries of a unit into one site: do so, or let every site "
                "add its own noise"
            )

    def _check_shares(self) -> None:
        if self.sites < _LEAST_SITES:
            raise SettingError(
                f"secure shares need {_LEAST_SITES} sites or more, got {self.sites}: let every site add "
                "all the noise"
            )
        if not 1 <= self.tolerate < self.sites:
            raise SettingError(
                f"{setting('tolerate')} must be from 1 to {self.sites - 1:,} for {self.sites:,} sites, "
                f"got {self.tolerate:,}: every site knows its own share, and one has to be left that "
                "nobody knows"
            )

    def check_unit(self, unit: AnyUnit) -> None:
        """That the unit can be at so many sites: an entry is at one."""
        check_kind(AnyUnit, "a unit such as sfumato.Entry()", unit=unit)
        if self.sites_of_unit > 1 and not isinstance(unit, Unit | UnitValues):
            raise SettingError(
                f"{unit} lies at one site: leave out {setting('sites_of_unit')}, or protect all entries "
                "of a user"
            )

    # -- noise --------------------------------------------------------------------------------------

    @property
    def shares(self) -> int:
        """How many shares make up the whole noise: those that are left when others are lost or known."""
        return self.sites - self.tolerate

    @property
    def least_present(self) -> int:
        """Sites that a round can be opened with; with secure shares each of them may know one share."""
        return self.shares + 1 if self.kind == "secure shares" else 1

    def check_present(self, present: int) -> None:
        """Refuse to open a round from which too many sites are missing."""
        if not self.least_present <= present <= self.sites:
            raise SettingError(
                f"{present:,} of {self.sites:,} sites answered, and a round needs "
                f"{self.least_present:,} or more: wait for the others before anything is opened"
            )

    def noise_factor(self, mechanism: Mechanism) -> float:
        """How much larger noise has to be, since a unit may be at several sites.

        Its changes at m sites meet independent noise with ``each site``: Gaussian losses add up by their
        squares, others as they are. In one secure sum the changes themselves add up.
        """
        if self.kind == "each site" and isinstance(mechanism, Gaussian):
            return sqrt(self.sites_of_unit)
        return float(self.sites_of_unit)

    def share_of(self, mechanism: Mechanism) -> Additive | GaussianShare:
        """What each site draws, so that all of it together costs a unit what ``mechanism.event`` says.

        ``noise_factor`` is in it: charge for ``mechanism``, draw this.
        """
        if not isinstance(mechanism, Additive):
            raise SettingError(
                f"noise of {type(mechanism).__name__} does not add up over sites: use a method whose "
                "answers do, such as 'alternating', or put the data together"
            )
        noise = mechanism.noise_multiplier * self.noise_factor(mechanism)
        if self.kind != "secure shares":
            return replace(mechanism, noise_multiplier=noise)
        if type(mechanism) is not Gaussian:
            raise SettingError(
                f"noise of {type(mechanism).__name__} cannot be drawn in shares: give a "
                f"{setting('delta')} above zero and Gaussian noise, or let every site add all the noise"
            )
        return GaussianShare(noise, self.shares)

    def total_deviation(self, mechanism: Additive, bound: float, present: int | None = None) -> float:
        """Standard deviation of the noise in a sum over sites; over all of them unless told."""
        drawn = 1 if self.kind == "one owner" else self.sites if present is None else present
        return self.share_of(mechanism).deviation(bound) * sqrt(drawn)

    def excess(self, mechanism: Mechanism) -> float:
        """Noise in a sum over all sites, over that of what is charged for it."""
        if self.kind == "one owner":
            return 1.0
        drawn = self.sites / (self.shares if self.kind == "secure shares" else 1)
        return self.noise_factor(mechanism) * sqrt(drawn)

    def charged(self, mechanism: Mechanism) -> Mechanism:
        """What a unit is charged, where ``mechanism`` has the noise of a sum over all sites."""
        if self.kind == "one owner":
            return mechanism
        if isinstance(mechanism, Additive):
            noise = mechanism.noise_multiplier / self.excess(mechanism)
            mechanism = replace(mechanism, noise_multiplier=noise)
        self.share_of(mechanism)  # which refuses what sites cannot draw
        return mechanism

    # -- in words -----------------------------------------------------------------------------------

    def in_words(self) -> str:
        """The line of a guarantee that says who is trusted."""
        if self.kind == "one owner":
            return HOLDER_IS_TRUSTED
        if self.kind == "each site":
            return (
                "each site with its own data and nobody else's: it adds all of the noise before an "
                "answer leaves it, so that neither whoever runs the fit nor any other site has to be "
                "trusted"
            )
        return (
            "each site with its own data and nobody else's, and with keeping its share of the noise to "
            f"itself: of {self.sites:,} sites at most {self.tolerate:,} may be lost in a round or tell "
            "what they know, both counted together; a site that takes off its own share is one of them. "
            "Whoever runs the fit, with doing as agreed: they see sums over sites and no site's own"
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What has to hold besides, for the guarantee to say."""
        if self.kind == "one owner":
            return ()
        most = "one site" if self.sites_of_unit == 1 else f"at most {self.sites_of_unit:,} sites"
        said = (f"the data of one unit lie at {most}", "every site draws noise of its own")
        if self.kind == "each site":
            return said
        return (
            *said,
            "sums are added up securely: of a round one sum is opened, over one set of sites",
            "which sites are lost depends neither on data nor on noise",
            "sites and whoever adds up do as agreed: sums that were made up are not noticed",
        )


ONE_OWNER = Trust()
