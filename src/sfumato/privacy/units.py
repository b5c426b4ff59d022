"""What is protected: the unit of privacy, and what the caller declares to be public.

Two data sets are *neighbours* if they differ in one unit. The unit is a type, so that a guarantee
cannot be given without saying what it is about:

==========================  ======================================  =================  =============
unit                        neighbours differ in                    relation           positions
==========================  ======================================  =================  =============
``Value()``                 one observed value, within the bounds   replaced           public
``UnitValues("user", N)``   up to N values of one user              replaced           public
``CountEvent()``            one event of a count                    one more or less   public
``Entry()``                 one entry                               added or removed   hidden
``Unit("user")``            all entries of one user                 added or removed   hidden
==========================  ======================================  =================  =============
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from sfumato.checks import (
    check_count,
    check_flag,
    check_kind,
    check_positive,
    check_text,
    given,
    make_plain,
    wrong,
)
from sfumato.data.profile import Profile
from sfumato.errors import SettingError
from sfumato.records import record
from sfumato.surface import either, setting


@record
@dataclass(frozen=True)
class Value:
    """One observed value, replaced by any other within the public bounds; positions are public.

    Examples
    --------
    >>> import sfumato as sf
    >>> print(sf.Value().neighbours)
    the value of one entry is replaced by any other within the bounds
    >>> sf.privatise(
    ...     sf.synthetic.ratings_like(30, 20, 5, 400), 1.0, unit="value"
    ... ).n_entries
    400
    """

    hides_presence: ClassVar[bool] = False
    replaces: ClassVar[bool] = True
    mode: ClassVar[str | None] = None
    max_entries: ClassVar[int | None] = None

    def __str__(self) -> str:
        return "one observed value"

    @property
    def neighbours(self) -> str:
        """Which two data sets must look alike, in words."""
        return "the value of one entry is replaced by any other within the bounds"

    @property
    def key(self) -> str:
        """What ledgers call it."""
        return "value"


@record
@dataclass(frozen=True)
class UnitValues:
    """Up to ``max_entries`` values of one level of a mode, replaced; positions are public.

    Parameters
    ----------
    mode : str
        Its name.
    max_entries : int
        How many values may change.

    Examples
    --------
    >>> import sfumato as sf
    >>> print(sf.UnitValues("user", max_entries=100).neighbours)
    up to 100 values of the entries of one user are replaced by any others within
        the bounds
    """

    mode: str
    max_entries: int

    hides_presence: ClassVar[bool] = False
    replaces: ClassVar[bool] = True

    def __post_init__(self) -> None:
        make_plain(self)
        check_text(mode=self.mode)
        check_count(max_entries=self.max_entries)

    def __str__(self) -> str:
        return f"up to {self.max_entries:,} values of one {self.mode}"

    @property
    def neighbours(self) -> str:
        """Which two data sets must look alike, in words."""
        return (
            f"up to {self.max_entries:,} values of the entries of one {self.mode} are replaced by "
            "any others within the bounds"
        )

    @property
    def key(self) -> str:
        """What ledgers call it."""
        return f"values:{self.mode}:{self.max_entries}"


@record
@dataclass(frozen=True)
class CountEvent:
    """One event of a count: it is one step larger or smaller; positions are public.

    Examples
    --------
    >>> import sfumato as sf
    >>> counts = sf.synthetic.cp((9, 8), 1, missing=0.2).tensor
    >>> counts = counts.with_values(abs(counts.values).round())
    >>> noisy = sf.privatise(counts, epsilon=1.0, unit=sf.CountEvent())
    >>> print(sf.CountEvent().neighbours)
    one count becomes larger or smaller by one step
    """

    hides_presence: ClassVar[bool] = False
    replaces: ClassVar[bool] = True
    mode: ClassVar[str | None] = None
    max_entries: ClassVar[int | None] = None

    def __str__(self) -> str:
        return "one event of a count, and nothing of how large counts are"

    @property
    def neighbours(self) -> str:
        """Which two data sets must look alike, in words."""
        return "one count becomes larger or smaller by one step"

    @property
    def key(self) -> str:
        """What ledgers call it."""
        return "event"


@record
@dataclass(frozen=True)
class Entry:
    """One entry, added or removed: its value and whether it is there at all.

    Examples
    --------
    >>> import sfumato as sf
    >>> print(sf.Entry().neighbours)
    one entry is added or removed
    >>> privacy = sf.Privacy(epsilon=1.0, unit=sf.Entry())  # or unit="entry"
    """

    hides_presence: ClassVar[bool] = True
    replaces: ClassVar[bool] = False
    mode: ClassVar[str | None] = None
    max_entries: ClassVar[int | None] = None

    def __str__(self) -> str:
        return "one entry, its presence included"

    @property
    def neighbours(self) -> str:
        """Which two data sets must look alike, in words."""
        return "one entry is added or removed"

    @property
    def key(self) -> str:
        """What ledgers call it."""
        return "entry"


@record
@dataclass(frozen=True)
class Unit:
    """All entries of one level of a mode, added or removed.

    Parameters
    ----------
    mode : str
        Its name.
    max_entries : int or None
        How many entries of a level are used, by a random choice at the data; only for methods that need
        a cap.

    Examples
    --------
    >>> import sfumato as sf
    >>> print(sf.Unit("user").neighbours)
    all entries of one user are added or removed
    >>> privacy = sf.Privacy(
    ...     epsilon=1.0, delta=1e-6, unit=sf.Unit("user", max_entries=100)
    ... )
    """

    mode: str
    max_entries: int | None = None

    hides_presence: ClassVar[bool] = True
    replaces: ClassVar[bool] = False

    def __post_init__(self) -> None:
        make_plain(self)
        check_text(mode=self.mode)
        check_count(**given(max_entries=self.max_entries))

    def __str__(self) -> str:
        return f"all entries of one {self.mode}, their presence included"

    @property
    def neighbours(self) -> str:
        """Which two data sets must look alike, in words."""
        return f"all entries of one {self.mode} are added or removed"

    @property
    def key(self) -> str:
        """What ledgers call it."""
        return f"unit:{self.mode}"


PrivacyUnit = Value | UnitValues | Entry | Unit


@record
@dataclass(frozen=True)
class TensorEntry:
    """One entry of a tensor that is decomposed as a whole, changed by at most ``change``.

    Absent entries of a sparse tensor are zeros, so that one that comes or goes is a change too.

    Parameters
    ----------
    change : float
        How much an entry can change.
    printed : bool
        Whether the changes of all permutations add up, as in the definition of Wang and Anandkumar
        (4.2): one on the diagonal of an order 3 then changes by six times ``change``.
    symmetric : bool
        Whether all permutations of the entry's index change alike, or the entry alone; ``PowerMethod``
        sets this to its own.

    Attributes
    ----------
    most
        Values beyond this many times ``change`` are cut there.

    Examples
    --------
    >>> import sfumato as sf
    >>> print(sf.TensorEntry(change=0.1).neighbours)
    the value of one entry changes by at most 0.1, and with it all permutations of
        its index alike; absent entries are zeros
    """

    change: float = 1.0
    printed: bool = False
    symmetric: bool = True

    most: ClassVar[int] = 1 << 20  # sums of such values keep the digits that noise is in

    def __post_init__(self) -> None:
        make_plain(self)
        check_positive(change=self.change)
        check_flag(printed=self.printed)

    def __str__(self) -> str:
        said = f"one entry of {self._tensor}"
        if self.symmetric or self.printed:
            said += ", with all permutations of its index"
        return f"{said}, which add up" if self.printed else said

    @property
    def _tensor(self) -> str:
        return "the symmetric tensor" if self.symmetric else "the tensor"

    @property
    def neighbours(self) -> str:
        """Which two data sets must look alike, in words."""
        change = repr(float(self.change))
        if self.printed:
            how = (
                f"for every permutation of one index, up to {change} is added to, or taken from, the "
                f"entry of {self._tensor} at that place"
            )
        else:
            alike = ", and with it all permutations of its index alike" if self.symmetric else ""
            how = f"the value of one entry changes by at most {change}{alike}"
        return f"{how}; absent entries are zeros"

    @property
    def key(self) -> str:
        """What ledgers call it."""
        permutations = ":every permutation" if self.printed else ""
        shape = "" if self.symmetric else ":asymmetric"
        return f"tensor entry:{float(self.change)!r}{permutations}{shape}"


@record
@dataclass(frozen=True)
class Sample:
    """One sample of a stream, added or removed. Samples longer than ``norm`` are shortened to it.

    Documents need no ``norm``: each counts the same.

    Parameters
    ----------
    norm : float or None
        The longest that counts; None for documents.

    Examples
    --------
    >>> import numpy as np, sfumato as sf
    >>> rng = np.random.default_rng(0)
    >>> privacy = sf.Privacy(
    ...     1.0, 1e-6, unit=sf.Sample(norm=4), public=sf.Public(entries=2000)
    ... )
    >>> method = sf.PowerMethod(1, privacy=privacy).fit_stream(
    ...     rng.exponential(size=(2000, 3))
    ... )
    >>> method.guarantee_.unit
    'one sample of the stream, its presence included'
    """

    norm: float | None = None

    def __post_init__(self) -> None:
        make_plain(self)
        check_positive(**given(norm=self.norm))

    def __str__(self) -> str:
        return "one sample of the stream, its presence included"

    @property
    def neighbours(self) -> str:
        """Which two data sets must look alike, in words."""
        return "one sample is added or removed"

    @property
    def key(self) -> str:
        """What ledgers call it."""
        return "sample"


PowerUnit = TensorEntry | Sample  # of the power method; completion has the others
AnyUnit = PrivacyUnit | PowerUnit | CountEvent


def parse_unit(
    unit: str | AnyUnit, mode_names: Sequence[str], max_entries: int | None = None
) -> PrivacyUnit:
    """A unit from its name: ``value``, ``entry``, ``values:MODE``, or the name of a mode."""
    parsed: PrivacyUnit
    if isinstance(unit, PrivacyUnit):
        parsed = unit
    elif isinstance(unit, PowerUnit):
        raise SettingError(f"{unit!r} is a unit of sfumato.PowerMethod, not of a completion")
    elif isinstance(unit, CountEvent):
        raise SettingError("one event of a count is a unit of sfumato.privatise, not of a completion")
    elif not isinstance(unit, str):
        raise SettingError(f"a unit is a name or one of the unit types, got {unit!r}")
    elif unit in ("value", "entry") and unit in mode_names:
        records = f"give a record, sfumato.Entry(), sfumato.Value() or sfumato.Unit({unit!r}), or "
        raise SettingError(
            f"{unit!r} is a unit and the name of a mode: {either(records, '')}rename the mode"
        )
    elif unit == "value":
        parsed = Value()
    elif unit == "entry":
        parsed = Entry()
    elif unit.startswith("values:"):
        if max_entries is None:
            raise SettingError(
                f"{unit} needs a cap: say how many values a level has, {setting('max_entries')}"
            )
        parsed = UnitValues(unit.removeprefix("values:"), max_entries)
    else:
        parsed = Unit(unit, max_entries)
    if max_entries is not None and parsed.max_entries != max_entries:
        cap = setting("max_entries")
        raise SettingError(f"a cap on entries, {cap}, does not go with what is protected: {parsed}")
    if parsed.mode is not None and parsed.mode not in mode_names:
        raise SettingError(
            f"the unit {parsed.mode!r} is not a mode; it is 'value', 'entry', or one of "
            f"{', '.join(mode_names)} (or values: and one of these)"
        )
    return parsed


@dataclass(frozen=True)
class Public:
    """What the caller declares to be known to everyone, where presence is protected.

    Parameters
    ----------
    entries : int or None
        About how many entries there are. Where it is missing, a noisy count is charged.
    labels : mapping or bool
        By mode name the labels that may occur, or True: those in the data are public; ``...`` is for
        all other modes, and True alone for all. Entries with other labels are left out. Of owners
        (of the mode that is the unit, or whose rows stay with them) the labels in the data are never
        public: True says nothing of them.
    units : int or None
        How many owners there are at most whose rows stay with them (how many users), where their
        labels are not listed. A number that everyone knows, rounded up; not that of the data.
    spread : float or None
        About how far values lie from their mean (a standard deviation); sharpens settings.
    step : float or None
        Distance of the values that can occur from each other: 1 for ratings of 1 to 5 stars.
    profile : Profile or None
        What the data are assumed to be like where a method and a rank are chosen.
    relations : mapping
        What is said of several relations, by name: a ``Public`` with the numbers of one of them
        (entries, spread, step), or True: everyone knows that relation with all its entries, so that
        it is neither clipped nor noised nor charged for.

    Examples
    --------
    >>> import sfumato as sf
    >>> public = sf.Public(
    ...     labels={"item": range(20), ...: True}, units=1000, entries=80_000
    ... )
    >>> public.labels_of("item"), public.labels_of("day")
    (range(0, 20), True)
    """

    entries: int | None = None
    labels: Mapping[Any, Sequence[Any] | bool] | bool = field(default=False)
    spread: float | None = None
    units: int | None = None
    step: float | None = None
    profile: Profile | None = None
    relations: Mapping[str, Public | bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        make_plain(self)
        self._check_relations()
        counts = given(units=self.units, entries=self.entries)
        sizes = given(spread=self.spread, step=self.step)
        check_count(**{either(name, f"public_{name}"): count for name, count in counts.items()})
        check_positive(**{either(name, f"public_{name}"): size for name, size in sizes.items()})
        check_kind(Profile | None, "a Profile", profile=self.profile)
        check_kind(bool | Mapping, "True, or the labels by the name of their mode", labels=self.labels)
        for mode, labels in ({} if isinstance(self.labels, bool) else self.labels).items():
            if not isinstance(labels, bool) and not _is_list(labels):
                raise wrong(f"the public labels of {mode}", "a list of labels, or True", labels)

    def _check_relations(self) -> None:
        check_kind(Mapping, "by the name of a relation a Public, or True", relations=self.relations)
        for name, said in self.relations.items():
            if said is not True and not (isinstance(said, Public) and said == said._numbers()):
                raise wrong(
                    f"what is public of {name}", "True, or a Public of entries, spread and step", said
                )

    def _numbers(self) -> Public:
        return Public(entries=self.entries, spread=self.spread, step=self.step)

    def of_relation(self, name: str, *, several: bool) -> Public:
        """What is public of one relation; its numbers are given by name where there are several."""
        if not several and name not in self.relations:
            return replace(self, relations={})
        if self._numbers() != Public():
            raise SettingError(
                "there are several relations: say of which these public numbers are, "
                + either(
                    f"Public(relations={{{name!r}: Public(entries=...)}})",
                    f"--public-entries {name}=N",
                )
            )
        said = self.relations.get(name)
        own = said if isinstance(said, Public) else Public()
        return replace(self, relations={}, entries=own.entries, spread=own.spread, step=own.step)

    def check_single(self) -> None:
        """Refuse what is said of relations, where there is one tensor."""
        if self.relations:
            raise SettingError(
                f"{setting('relations')} is about several tensors, sfumato.Coupled: here there is one"
            )

    def labels_of(self, mode: str) -> Sequence[Any] | bool:
        """Labels listed for a mode; True where those in the data are public, False where none are.

        Parameters
        ----------
        mode : str
            Its name.

        Returns
        -------
        sequence or bool
            As they were given.
        """
        if isinstance(self.labels, bool):
            return self.labels
        return self.labels.get(mode, self.labels.get(..., False))

    def lists(self, mode: str) -> bool:
        """Whether the labels of a mode are listed, one by one.

        Parameters
        ----------
        mode : str
            Its name.

        Returns
        -------
        bool
            True where there is a list.
        """
        return not isinstance(self.labels_of(mode), bool)

    def listed(self, mode: str) -> Sequence[Any]:
        """The labels listed for a mode; none where they are not listed.

        Parameters
        ----------
        mode : str
            Its name.

        Returns
        -------
        sequence
            As they were given.
        """
        labels = self.labels_of(mode)
        return () if isinstance(labels, bool) else labels


def _is_list(labels: Any) -> bool:
    try:
        return len(labels) >= 0 and not isinstance(labels, str | bytes | Mapping)
    except TypeError:  # also an array without a dimension
        return False
