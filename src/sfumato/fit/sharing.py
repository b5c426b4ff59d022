"""Whether a site gains by a private fit over several sites, or does as well alone: public numbers alone.

Together there are the entries of all sites and the noise of privacy; alone there are the site's own and
no noise, since what never leaves it need not be private. What is expected of either is the planner's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

from sfumato.checks import check_count
from sfumato.data.profile import Profile
from sfumato.errors import SettingError
from sfumato.fit.outlook import Outlook
from sfumato.fit.planner import Expectation, expected_open, forecast
from sfumato.privacy.budgets import ZCDP, Budget
from sfumato.privacy.facts import Facts

_LEAST_LEVELS = 2


@dataclass(frozen=True)
class Sharing:
    """What a site is expected to reach with the others and alone.

    Errors are over the standard deviation of the values.

    Parameters
    ----------
    together : Expectation
        What a private fit over all sites is expected to reach.
    alone : float
        Error of the site's own data.
    people, entries : int
        The site's own.
    sites : int
        How many there are.

    Examples
    --------
    >>> import sfumato as sf
    >>> trust = sf.Trust("one owner", sites=10)
    >>> public = sf.Public(entries=800_000, units=6040, labels=True)
    >>> privacy = sf.Privacy(
    ...     10, 1e-4, unit="entry", local="user", public=public, trust=trust
    ... )
    >>> plan = sf.CP(privacy=privacy).plan(
    ...     [sf.Mode("user", 6040), sf.Mode("item", 3706)], bounds=(1, 5)
    ... )
    >>> found = sf.sharing(plan.task.facts, plan.budget)
    >>> found.pays, found.people, found.entries
    (True, 604, 80000)
    """

    together: Expectation
    alone: float
    people: int
    entries: int
    sites: int

    @property
    def pays(self) -> bool:
        """Whether the private fit over all sites is expected to beat the site's own data."""
        return self.together.rmse < self.alone

    @property
    def clear(self) -> bool:
        """Whether the difference is larger than expectations are usually off."""
        return abs(self.together.rmse / self.alone - 1) > self.together.width

    def in_words(self, scale: float = 1.0, owners: str = "levels") -> str:
        """A sentence or two.

        Parameters
        ----------
        scale : float
            Standard deviation of the values.
        owners : str
            What people are called.

        Returns
        -------
        str
            For a person.
        """
        verdict = {
            (True, True): "is expected to pay",
            (True, False): "is expected to pay, if barely,",
            (False, False): "is not expected to pay, if barely,",
            (False, True): "is not expected to pay",
        }[self.pays, self.clear]
        return (
            f"Sharing {verdict} for a site with {self.entries:,} entries of {self.people:,} {owners}: "
            f"RMSE {scale * self.together.rmse:.3f} with all {self.sites:,} sites, "
            f"{scale * self.alone:.3f} alone and without noise. With the release as prior its own fit "
            "(sf.refit) should be no worse than the better of both."
        )


def sharing(
    facts: Facts,
    budget: Budget | ZCDP,
    *,
    entries_of_site: int | None = None,
    profile: Profile | None = None,
    most: int | None = None,
) -> Sharing:
    """Compare a private fit over the sites of ``facts.trust`` with a site's own data, not private.

    The site has as large a part of the people as of the entries: of levels of the unit's mode, of the
    one whose rows stay with their owners, or else of the first.

    Parameters
    ----------
    facts : path or mapping
        What is public, ``task.facts`` of a plan.
    budget : Budget or ZCDP
        Of the private fit.
    entries_of_site : int or None
        An equal part of them by default.
    profile : Profile or None
        What data are assumed to be like.
    most : int or None
        Largest rank of the private fit.

    Returns
    -------
    Sharing
        Both errors, and whether it pays.

    Examples
    --------
    >>> import sfumato as sf
    >>> trust = sf.Trust("one owner", sites=10)
    >>> public = sf.Public(entries=800_000, units=6040, labels=True)
    >>> privacy = sf.Privacy(
    ...     10, 1e-4, unit="entry", local="user", public=public, trust=trust
    ... )
    >>> plan = sf.CP(privacy=privacy).plan(
    ...     [sf.Mode("user", 6040), sf.Mode("item", 3706)], bounds=(1, 5)
    ... )
    >>> print(
    ...     sf.sharing(
    ...         plan.task.facts, plan.budget, entries_of_site=80_000
    ...     ).in_words(owners="users")
    ... )
    Sharing is expected to pay, if barely, for a site with 80,000 entries of 604
        users: RMSE 0.752 with all 10 sites, 0.767 alone and without noise. With
        the release as prior its own fit (sf.refit) should be no worse than the
        better of both.
    """
    sites = facts.trust.sites
    if sites < _LEAST_LEVELS:
        raise SettingError("there is nobody to share with: say how many sites there are")
    profile = profile or Profile()
    outlook = Outlook(facts, profile)
    total = round(outlook.entries)
    entries = total // sites if entries_of_site is None else entries_of_site
    check_count(1, total, entries_of_site=entries)
    sizes = list(facts.sizes)
    people = max(_LEAST_LEVELS, round(sizes[outlook.people] * entries / total))
    own = replace(outlook, facts=_of_site(facts, outlook.people, people, entries))
    return Sharing(
        together=forecast(facts, budget, profile=profile, most=most).best,
        alone=sqrt(expected_open(own).error),
        people=people,
        entries=entries,
        sites=sites,
    )


def _of_site(facts: Facts, mode: int, people: int, entries: int) -> Facts:
    modes = tuple(
        replace(each, size=people) if m == mode else each for m, each in enumerate(facts.modes)
    )
    return replace(facts, shape=replace(facts.shape, modes=modes), entries=entries)
