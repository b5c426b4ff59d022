"""The sparse tensor: observed entries of a multi-way table, with names for modes and levels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from sfumato.checks import (
    as_list,
    as_numbers,
    as_pair,
    check_choice,
    check_count,
    check_kind,
    check_text,
    given,
    shown,
    wrong,
)
from sfumato.errors import DataError, SettingError, UnknownLabelError
from sfumato.kernels.numba.ordering import level_counts, sort_entries
from sfumato.kernels.numba.threads import available_threads
from sfumato.markup import snippet
from sfumato.records import record
from sfumato.surface import setting

MAX_ENTRIES = np.iinfo(np.int32).max
MAX_LEVELS = np.iinfo(np.int32).max
TIME_BINS = ("hour", "day", "week", "month")


@record
@dataclass(frozen=True)
class Mode:
    """One way of the table: its name and the labels of its levels, in the order of the levels.

    ``labels`` is an int64 array or an object array of strings; ``None`` means that the labels are
    the level numbers themselves. ``bin`` says that the labels are times cut to that resolution.

    Parameters
    ----------
    name : str
        Of the mode.
    size : int
        How many levels it has.
    labels : array or None
        An int64 array or an object array of strings.
    bin : str or None
        "hour", "day", "week" or "month", where labels are times.

    Examples
    --------
    >>> import numpy as np, sfumato as sf
    >>> mode = sf.Mode("user", 3, np.array(["ann", "bob", "eve"], dtype=object))
    >>> mode.find(["eve", "joe"]), mode.label(1)
    (array([ 2, -1], dtype=int32), 'bob')
    """

    name: str
    size: int
    labels: NDArray[Any] | None = None
    bin: str | None = None

    def __post_init__(self) -> None:
        check_text(**{"the name of a mode": self.name})
        check_count(0, **{f"the size of mode {self.name!r}": self.size})
        if self.labels is not None:
            check_kind(np.ndarray, "an array", **{f"the labels of mode {self.name!r}": self.labels})
            if self.labels.ndim != 1:
                raise DataError(f"the labels of mode {self.name!r} must be an array of one dimension")
            if len(self.labels) != self.size:
                raise DataError(
                    f"mode {self.name!r} has {self.size} levels but {len(self.labels)} labels"
                )
            if not _rises(self.labels) and len(self._level_of) != self.size:
                raise DataError(f"mode {self.name!r} has the same label twice")
        check_choice(TIME_BINS, **given(**{"a time bin": self.bin}))

    @cached_property
    def _level_of(self) -> dict[Any, int]:
        return {} if self.labels is None else {v: i for i, v in enumerate(self.labels.tolist())}

    @property
    def unlabelled(self) -> Mode:
        """The same mode with nothing said of its labels."""
        return self if self.labels is None else Mode(self.name, self.size, None, self.bin)

    def label(self, level: int) -> Any:
        """The label of a level, as a plain int or str.

        Parameters
        ----------
        level : int
            Its number.

        Returns
        -------
        int or str
            What it is called.
        """
        return int(level) if self.labels is None else self.labels.item(level)

    def labels_at(self, levels: NDArray[Any]) -> NDArray[Any]:
        """The labels of some levels.

        Parameters
        ----------
        levels : array
            Their numbers.

        Returns
        -------
        array
            A label for each.
        """
        return levels if self.labels is None else self.labels[levels]

    def find(self, labels: Sequence[Any] | NDArray[Any]) -> NDArray[np.int32]:
        """Levels of the given labels; -1 where a label is unknown.

        A number matches a label written as text and the other way round, so that a table read
        from CSV and one held in memory mean the same levels.

        Parameters
        ----------
        labels : sequence or array
            What to look for.

        Returns
        -------
        array of int32
            A level for each.
        """
        wanted = _in_a_row(labels, self.name)
        if self.labels is None:
            return self._find_numbers(wanted)
        known = self._level_of
        as_known = _whole_number if self.labels.dtype.kind == "i" else str
        try:  # each label is looked up once
            distinct, place = np.unique(wanted, return_inverse=True)
        except TypeError:  # labels of several types have no order
            distinct, place = wanted, np.arange(wanted.shape[0])
        found = np.full(distinct.shape[0], -1, np.int32)
        for position, label in enumerate(distinct.tolist()):
            level = known.get(label)
            if level is None:
                level = known.get(as_known(label))
            if level is not None:
                found[position] = level
        return found[place]

    def _find_numbers(self, wanted: NDArray[Any]) -> NDArray[np.int32]:
        try:
            numbers = wanted.astype(np.float64)
        except (TypeError, ValueError, OverflowError):
            known = [_whole_number(label) for label in wanted.tolist()]
            # One that is too large for a level may be so for a double.
            found = [-1 if number is None or number > self.size else max(number, -1) for number in known]
            numbers = np.array(found, np.float64)
        valid = (numbers >= 0) & (numbers < self.size) & (numbers == np.floor(numbers))
        return np.where(valid, numbers, -1).astype(np.int32)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mode):
            return NotImplemented
        mine = (self.name, self.size, self.bin, self.labels is None)
        theirs = (other.name, other.size, other.bin, other.labels is None)
        return mine == theirs and (
            self.labels is None or bool(np.array_equal(self.labels, other.labels))  # type: ignore[arg-type]
        )

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, eq=False, repr=False)
class SparseTensor:
    """Observed entries of a table with two or more modes. Immutable.

    ``coordinates[m, e]`` is the level of entry ``e`` in mode ``m``. Entries are kept sorted by the
    first mode, then the second, and so on; entries at the same cell keep the order they came in.
    So nothing that is computed from a tensor depends on the order of the file's lines.

    The tensor records: it judges neither bounds, nor duplicates, nor NaN. Fitting does.

    Parameters
    ----------
    coordinates : array
        A row for each mode, a column for each entry.
    values : array
        One for each entry.
    modes : tuple of Mode
        Two or more.
    bounds : pair of float or None
        The lowest and the highest value possible, where they are known.

    Examples
    --------
    >>> import numpy as np, sfumato as sf
    >>> modes = sf.Mode("user", 3), sf.Mode("item", 2)
    >>> tensor = sf.SparseTensor(
    ...     np.array([[0, 2], [1, 0]]), np.array([4.0, 2.0]), modes, bounds=(1, 5)
    ... )
    >>> tensor
    SparseTensor(user 3 x item 2; 2 entries, density 0.333, float64, values in [1,
        5])
    >>> tensor.to_dense()
    array([[nan,  4.],
           [nan, nan],
           [ 2., nan]])
    """

    coordinates: NDArray[np.int32]
    values: NDArray[np.floating[Any]]
    modes: tuple[Mode, ...]
    bounds: tuple[float, float] | None = None
    _checked: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        if self._checked:
            _freeze(self.coordinates, self.values)
            return
        for mode in as_list("modes", self.modes, "a list of sfumato.Mode"):
            check_kind(Mode, "a sfumato.Mode", **{"each of modes": mode})
        values = np.asarray(self.values)
        if values.dtype not in (np.float32, np.float64):
            values = as_numbers("values", values)
        given = np.asarray(self.coordinates)
        _check_coordinates(given, values, self.modes)
        # Own copies: the arrays are made read-only below, and the caller's must not be.
        coordinates, values = np.array(given, np.int32, order="C"), np.array(values, order="C")
        sort_entries(coordinates, values, self.shape, available_threads())
        object.__setattr__(self, "coordinates", coordinates)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "modes", tuple(self.modes))
        object.__setattr__(self, "bounds", check_bounds(self.bounds))
        object.__setattr__(self, "_checked", True)
        _freeze(self.coordinates, self.values)

    # -- what it is ---------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """How many levels each mode has."""
        return tuple(mode.size for mode in self.modes)

    @property
    def order(self) -> int:
        """How many modes there are."""
        return len(self.modes)

    @property
    def n_entries(self) -> int:
        """How many entries there are."""
        return int(self.values.shape[0])

    @property
    def mode_names(self) -> tuple[str, ...]:
        """The modes' names."""
        return tuple(mode.name for mode in self.modes)

    @property
    def density(self) -> float:
        """Share of the cells that are observed (an entry given twice counts twice)."""
        return self.n_entries / float(np.prod([float(n) for n in self.shape]))

    def __len__(self) -> int:
        return self.n_entries

    def __repr__(self) -> str:
        sizes = " x ".join(f"{mode.name} {mode.size:,}" for mode in self.modes)
        bounds = "" if self.bounds is None else f", values in [{self.bounds[0]:g}, {self.bounds[1]:g}]"
        return (
            f"SparseTensor({sizes}; {self.n_entries:,} entries, density {self.density:.3g}, "
            f"{self.values.dtype}{bounds})"
        )

    def _repr_html_(self) -> str:
        """For notebooks."""
        bounds = [] if self.bounds is None else [("values", "{:g} to {:g}".format(*self.bounds))]
        modes = [(mode.name, f"{mode.size:,} levels") for mode in self.modes]
        entries = f"{self.n_entries:,}, {self.density:.3g} of all cells"
        return snippet("SparseTensor", [*modes, ("entries", entries), *bounds])

    def mode_index(self, name: str) -> int:
        """Position of the mode with this name.

        Parameters
        ----------
        name : str
            Of the mode.

        Returns
        -------
        int
            From 0 on.
        """
        return find_mode(self.modes, name)

    def counts(self, mode: str) -> NDArray[np.int64]:
        """Number of entries at each level of a mode.

        Parameters
        ----------
        mode : str
            Its name.

        Returns
        -------
        array of int64
            One for each level.
        """
        m = self.mode_index(mode)
        return level_counts(self.coordinates[m], self.shape[m])

    # -- parts of it --------------------------------------------------------------------------

    def take(self, entries: NDArray[Any]) -> SparseTensor:
        """The tensor of some entries: a mask, or entry numbers. Shape and labels stay.

        Parameters
        ----------
        entries : array
            A mask over the entries, or their numbers.

        Returns
        -------
        SparseTensor
            With these entries alone.
        """
        chosen = np.arange(self.n_entries)[entries]
        if (chosen[1:] < chosen[:-1]).any():
            chosen.sort()
        return SparseTensor(
            np.take(self.coordinates, chosen, axis=1),  # ten times as fast as an index
            np.take(self.values, chosen),
            self.modes,
            self.bounds,
            _checked=True,
        )

    def with_values(self, values: ArrayLike, bounds: tuple[float, float] | None = None) -> SparseTensor:
        """The same cells with other values (and other bounds, none by default).

        Parameters
        ----------
        values : array_like
            One for each entry, in their order.
        bounds : pair of float or None
            The lowest and the highest value possible.

        Returns
        -------
        SparseTensor
            Of the same cells.
        """
        new = np.array(values)
        if new.shape != self.values.shape:
            raise DataError(f"{self.n_entries} values are needed, got shape {new.shape}")
        if new.dtype not in (np.float32, np.float64):
            new = new.astype(np.float64)
        return SparseTensor(self.coordinates, new, self.modes, check_bounds(bounds), _checked=True)

    def astype(self, dtype: DTypeLike) -> SparseTensor:
        """The same tensor with float32 or float64 values.

        Parameters
        ----------
        dtype : dtype
            float32 or float64.

        Returns
        -------
        SparseTensor
            Of the same cells.
        """
        return self.with_values(self.values.astype(dtype), self.bounds)

    def split(
        self, test: float = 0.2, *, by: str | None = None, seed: int = 0
    ) -> tuple[SparseTensor, SparseTensor]:
        """Train and test tensors; see :func:`sfumato.data.prepare.split`.

        Parameters
        ----------
        test : float
            Share of the entries that goes to test.
        by : str or None
            A mode whose levels are split instead, with all their entries.
        seed : int
            Of the choice.

        Returns
        -------
        tuple of two SparseTensor
            Train and test, of the same shape.
        """
        from sfumato.data import prepare

        return prepare.split(self, test, by=by, seed=seed)

    def folds(self, k: int = 5, *, seed: int = 0) -> Iterator[tuple[SparseTensor, SparseTensor]]:
        """Pairs of train and test tensors; see :func:`sfumato.data.prepare.folds`.

        Parameters
        ----------
        k : int
            How many.
        seed : int
            Of the choice.

        Yields
        ------
        tuple of two SparseTensor
            Train and test, of the same shape.
        """
        from sfumato.data import prepare

        return prepare.folds(self, k, seed=seed)

    def locate(self, labels: Mapping[str, Sequence[Any] | NDArray[Any]]) -> NDArray[np.int32]:
        """Coordinates of cells given by one sequence of labels per mode.

        Parameters
        ----------
        labels : mapping
            By mode name.

        Returns
        -------
        array of int32
            A row for each mode.

        Raises
        ------
        UnknownLabelError
            For a label that no mode of that name has.
        """
        return locate(self.modes, labels)

    def to_dense(self) -> NDArray[Any]:
        """Dense array with NaN where nothing is observed; for small tensors without duplicates."""
        dense = np.full(self.shape, np.nan, self.values.dtype)
        dense[tuple(self.coordinates)] = self.values
        return dense


def passing_times(modes: Sequence[Mode]) -> tuple[bool, ...]:
    """Which modes are times that values change little with, and that may drop out of products.

    Beside two other modes or more: where there is only one, what there is to learn is how its levels
    go with the time, and times are a mode like any other.
    """
    several = sum(mode.bin is None for mode in modes) > 1
    return tuple(several and mode.bin is not None for mode in modes)


def find_mode(modes: Sequence[Mode], name: str) -> int:
    """Position of a mode by name."""
    for position, mode in enumerate(modes):
        if isinstance(name, str) and mode.name == name:
            return position
    names = ", ".join(mode.name for mode in modes)
    raise SettingError(f"there is no mode {shown(name)}; the modes are {names}")


def find_levels(
    modes: Sequence[Mode], labels: Mapping[str, Sequence[Any] | NDArray[Any]]
) -> NDArray[np.int32]:
    """Coordinates of labelled cells, -1 where a label is unknown."""
    names = {mode.name for mode in modes}
    missing, extra = names - set(labels), set(labels) - names
    if missing or extra:
        wrong = [f"no labels for mode {name!r}" for name in sorted(missing)]
        wrong += [f"there is no mode {name!r}" for name in sorted(extra)]
        raise SettingError(f"{'; '.join(wrong)}: the modes are {', '.join(m.name for m in modes)}")
    found = [mode.find(labels[mode.name]) for mode in modes]
    if len({row.shape[0] for row in found}) > 1:
        raise DataError("the modes are given different numbers of labels")
    return np.stack(found)


def locate(
    modes: Sequence[Mode],
    labels: Mapping[str, Sequence[Any] | NDArray[Any]],
    advice: str | None = None,
) -> NDArray[np.int32]:
    """Coordinates of labelled cells; an unknown label is an error that names it and ends with advice."""
    coordinates = find_levels(modes, labels)
    for mode, levels in zip(modes, coordinates, strict=True):
        unknown = _unknown_labels(labels[mode.name], levels)
        if unknown:
            raise UnknownLabelError(
                f"mode {mode.name!r} has no level {unknown}: {advice or _not_in_training()}"
            )
    return coordinates


def _not_in_training() -> str:
    return (
        "it was not in the training data. Leave such rows out, or predict with "
        f"{setting('unseen', 'bias')} to fall back to the biases"
    )


def _unknown_labels(labels: Sequence[Any] | NDArray[Any], levels: NDArray[np.int32]) -> str:
    """The first labels that have no level, and how many more there are; nothing if all have one."""
    unknown = list(dict.fromkeys(map(shown, np.asarray(labels)[levels < 0].tolist())))
    first = ", ".join(unknown[:3])
    return f"{first} and {len(unknown) - 3} more" if len(unknown) > 3 else first


def check_tensor(tensor: object) -> None:
    """What a function of tensors is given."""
    check_kind(SparseTensor, "a SparseTensor (see sfumato.read)", tensor=tensor)


def check_bounds(bounds: tuple[float, float] | None) -> tuple[float, float] | None:
    """Bounds as two finite floats, the lower one first."""
    if bounds is None:
        return None
    low, high = as_pair("bounds", bounds, "two numbers, finite with lowest < highest")
    if not low < high:
        raise wrong("bounds", "finite with lowest < highest", bounds)
    return low, high


def _check_coordinates(coordinates: NDArray[Any], values: NDArray[Any], modes: Sequence[Mode]) -> None:
    order = len(modes)
    if order < 2:
        raise DataError(f"a tensor needs two modes or more, got {order}")
    if len({mode.name for mode in modes}) < order:
        raise DataError(f"mode names must differ, got {', '.join(mode.name for mode in modes)}")
    if values.ndim != 1 or coordinates.shape != (order, values.shape[0]):
        raise DataError(
            f"coordinates must have shape ({order}, entries) and values (entries,), "
            f"got {coordinates.shape} and {values.shape}"
        )
    if not values.shape[0]:
        raise DataError("there are no entries: the table is empty")
    if values.shape[0] > MAX_ENTRIES:
        raise DataError(f"at most {MAX_ENTRIES:,} entries are supported, got {values.shape[0]:,}")
    for mode, levels in zip(modes, coordinates, strict=True):
        check_levels(mode, levels)


def check_levels(mode: Mode, levels: NDArray[Any]) -> None:
    """Refuse levels that a mode does not have, as they are given: in 32 bits large ones would wrap."""
    if levels.dtype.kind not in "iu":
        raise DataError(f"coordinates must be whole numbers, got {levels.dtype}")
    if mode.size > MAX_LEVELS:
        raise DataError(
            f"mode {mode.name!r} has {mode.size:,} levels, and at most {MAX_LEVELS:,} are supported: "
            "number those that occur from 0"
        )
    low, high = int(levels.min(initial=0)), int(levels.max(initial=0))
    if levels.size and (low < 0 or high >= mode.size):
        wrong = low if low < 0 else high
        raise DataError(f"level {wrong} is outside mode {mode.name!r} (0 to {mode.size - 1})")


def _in_a_row(labels: Sequence[Any] | NDArray[Any], mode: str) -> NDArray[Any]:
    """Labels as an array of one dimension."""
    try:
        row = np.asarray(labels)
    except ValueError as error:  # sequences of several lengths
        raise DataError(f"labels of mode {mode!r} are not single ones: {error}") from error
    if row.ndim != 1:
        raise DataError(
            f"labels of mode {mode!r} are given one after the other, not in shape {row.shape}"
        )
    return row


def _rises(labels: NDArray[Any]) -> bool:
    """Whether labels are numbers in order, as they are read: that they differ is then seen at once."""
    return labels.dtype.kind in "iu" and bool((labels[1:] > labels[:-1]).all())


def _whole_number(label: Any) -> int | None:
    """The whole number that a label is or spells, if it does."""
    try:
        number = int(label)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if isinstance(label, str) or number == label else None


def _freeze(*arrays: NDArray[Any]) -> None:
    for array in arrays:
        array.flags.writeable = False
