"""A study: all that owners agree on before their data meet, as one file that everybody has.

It holds the calibrated plan (sizes, method, noise, budget, whom one has to trust), the public labels,
and who takes part with how many owners at most. Nothing of it is read off data. Whoever takes part reads
it, holds it against their own checks (:meth:`Study.check`), and is asked for nothing else: a site works
out every question by itself, from the plan and from what was released before.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.checks import as_path, check_count, shown
from sfumato.data.tensor import Mode
from sfumato.errors import DataError, SettingError
from sfumato.fit.completion import Completion
from sfumato.fit.plan import PrivatePlan, check_covered
from sfumato.privacy.facts import Facts
from sfumato.records import record
from sfumato.solvers.registry import METHODS
from sfumato.surface import either
from sfumato.wire import WireError, from_wire, to_wire

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # of a site
_LARGEST = 1 << 30  # bytes of a study
_MODELS = ("CP", "Tucker", "Biases")


@record
@dataclass(frozen=True)
class Member:
    """A site that takes part. Owners who are not listed are its levels ``first`` to ``last`` - 1."""

    name: str
    first: int = 0
    last: int = 0


@record
@dataclass(frozen=True)
class Study:
    """What is fitted, over whose data, and what it costs.

    Parameters
    ----------
    model, settings : str or mapping
        The estimator that the release is of, and its settings.
    plan : PrivatePlan
        The calibrated plan.
    labels : tuple of tuple of str or int or None
        Of each mode, in order; None where they are the level numbers, and for owners who are not
        listed.
    members : tuple of Member
        Who takes part.
    version : str
        Of sfumato; others may work out other questions.

    Examples
    --------
    >>> import sfumato as sf
    >>> public = sf.Public(labels={"item": range(20)})
    >>> privacy = sf.Privacy(1.0, unit="entry", local="user", public=public)
    >>> sites = {"north": 40, "south": 40}
    >>> study = sf.make_study(
    ...     sf.CP(privacy=privacy), ["user", "item"], sites, bounds=(1, 5)
    ... )
    >>> file = study.save("study.sfs")
    >>> sf.Study.read(file).digest == study.digest, study.sites
    (True, ('north', 'south'))
    """

    model: str
    settings: Mapping[str, Any]
    plan: PrivatePlan[Completion]
    labels: tuple[tuple[str | int, ...] | None, ...]
    members: tuple[Member, ...]
    version: str

    # -- what it says -----------------------------------------------------------------------------

    @property
    def facts(self) -> Facts:
        """What is public of the fit."""
        return self.plan.task.facts

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of those who take part."""
        return tuple(member.name for member in self.members)

    @cached_property
    def digest(self) -> str:
        """What two who have the same study have in common."""
        return sha256(to_wire(self)).hexdigest()

    def member(self, name: str) -> Member:
        """Who has this name.

        Parameters
        ----------
        name : str
            Of a site.

        Returns
        -------
        Member
            What is agreed on for it.
        """
        found = [member for member in self.members if member.name == name]
        if not found:
            raise SettingError(f"{shown(name)} takes no part in this study: {', '.join(self.sites)} do")
        return found[0]

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Of the whole, with the labels that are public."""
        return tuple(map(_labelled, self.facts.modes, self.labels))

    @property
    def numbered(self) -> int | None:
        """The mode whose levels sites number by themselves: that of owners who are not listed."""
        local = self.facts.local
        return local if local is not None and self.members[0].last > 0 else None

    def in_words(self) -> str:
        """The plan, and who takes part."""
        owners = self.facts.local
        parts = [
            f"{m.name} ({m.last - m.first:,} {self.facts.modes[owners].name} at most)"
            if owners is not None and m.last > m.first
            else m.name
            for m in self.members
        ]
        trust = self.facts.trust
        return "\n".join(
            [
                self.plan.explain(),
                f"{len(parts)} sites: {', '.join(parts)}.",
                f"Trust: {trust.kind}. You have to trust {trust.in_words()}.",
            ]
        )

    # -- what has to hold -------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse a study that promises what its plan does not keep; every site does so for itself."""
        from importlib.metadata import version

        task, trust = self.plan.task, self.facts.trust
        if self.version != version("sfumato"):
            raise SettingError(
                f"this study was made with sfumato {self.version}, and this is {version('sfumato')}: "
                "all sites and whoever leads need the same version"
            )
        if self.model not in _MODELS:
            raise SettingError(f"a study is of one of {', '.join(_MODELS)}, not {shown(self.model)}")
        if not any(task.solver.name in row.labels and "private" in row.families for row in METHODS):
            raise SettingError(f"{shown(task.solver.name)} is no proven method of sfumato")
        check_members(self.members)
        if trust.kind != "one owner" and trust.sites != len(self.members):
            raise SettingError(
                f"the noise is for {trust.sites:,} sites, and {len(self.members):,} take part"
            )
        if not task.solver.adds_up(self.facts):
            raise SettingError(f"answers to {task.solver.name!r} do not add up over sites")
        if len(self.labels) != len(self.facts.modes):
            raise SettingError("a study has labels, or none, of every mode")
        _check_ranges(self.members, self.labels, self.facts)
        task.check()
        check_covered(self.plan.budget, self.plan.event)

    # -- files ------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the file that everybody who takes part needs.

        Parameters
        ----------
        path : path
            Where to.

        Returns
        -------
        Path
            The file.
        """
        target = as_path("study", path)
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            draft.write_bytes(to_wire(self))
            os.replace(draft, target)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise DataError(f"{target} could not be written: {error.strerror or error}") from error
        return target

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Study:
        """A study from its file, checked.

        Parameters
        ----------
        path : path
            Where it lies.

        Returns
        -------
        Study
            As it was agreed on.
        """
        source = as_path("study", path)
        try:
            if source.stat().st_size > _LARGEST:
                raise DataError(f"{source} is no study: it has over a gigabyte")
            made = from_wire(source.read_bytes())
        except OSError as error:
            raise DataError(f"{source} could not be read: {error.strerror or error}") from error
        except WireError as error:
            raise DataError(f"{source} is no study, or a damaged one: {error}") from error
        if not isinstance(made, cls):
            raise DataError(f"{source} is no study, but a {type(made).__name__}")
        made.check()
        return made


def check_members(members: Sequence[Member]) -> None:
    """Names that can be told apart, and that can be those of files."""
    names = [member.name for member in members]
    if not names:
        raise SettingError("a study needs at least one site")
    wrong = [name for name in names if not NAME.fullmatch(name)]
    if wrong:
        raise SettingError(
            f"a site cannot be called {shown(wrong[0])}: a name is of letters, digits, '.', '_' and '-'"
        )
    if len({name.lower() for name in names}) < len(names):
        raise SettingError(f"two sites have the same name: {', '.join(names)}")


def members_of(sites: Mapping[str, int] | Sequence[str], what: str) -> tuple[Member, ...]:
    """Sites by name, with how many owners each has at most where these are not listed."""
    if isinstance(sites, Mapping):
        check_count(2, **{f"{what} at {name}": number for name, number in sites.items()})
        ends = list(accumulate(map(int, sites.values()), initial=0))
        members = tuple(
            Member(str(name), *ends) for name, ends in zip(sites, pairwise(ends), strict=True)
        )
    else:
        members = tuple(Member(str(name)) for name in sites)
    check_members(members)
    return members


def _check_ranges(members: Sequence[Member], labels: Sequence[object], facts: Facts) -> None:
    """Owners who are not listed: their numbers follow one upon the other, site by site."""
    ends = [0, *(member.last for member in members)]
    firsts = [member.first for member in members]
    if not any(ends[1:]):
        return
    if facts.local is None or labels[facts.local] is not None:
        raise SettingError("sites have owners by number, and all labels are listed")
    if firsts != ends[:-1] or ends[-1] != facts.sizes[facts.local] or ends != sorted(set(ends)):
        raise SettingError(
            f"the owners at all sites are not the {facts.sizes[facts.local]:,} of the plan: make the "
            f"study anew with {either('make_study', 'sfumato study plan')}"
        )


def _labelled(mode: Mode, labels: tuple[str | int, ...] | None) -> Mode:
    if labels is None:
        return mode
    whole = all(isinstance(label, int) for label in labels)
    array = np.array(labels, np.int64) if whole else np.array([str(each) for each in labels], object)
    return Mode(mode.name, mode.size, array, mode.bin)
