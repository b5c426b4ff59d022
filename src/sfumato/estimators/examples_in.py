"""Examples as people have them: arrays, tables and pictures, and what they say is public of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from sfumato.checks import as_list, as_one_column, as_pair, check_count, shown, wrong
from sfumato.data.io.tables import check_distinct
from sfumato.errors import DataError, SettingError
from sfumato.models.features import Column, Columns, Pictures, as_numbers, label_of
from sfumato.privacy.clipping import check_range
from sfumato.privacy.units import Public, Sample, Unit
from sfumato.sites.examples import Examples
from sfumato.surface import either
from sfumato.types import Array

_LARGE = 16  # pixels of a side from which on there are two scales


@dataclass(frozen=True, eq=False)
class Table:
    """Examples by column, or as pictures; ``owners`` numbers whose they are."""

    count: int
    width: int
    columns: Sequence[Array] | Array
    names: tuple[str, ...] | None = None
    picture: tuple[int, int] | None = None
    owners: NDArray[np.int64] | None = None


class Taken(NamedTuple):
    """A table, how its examples are shown to a network, and what is predicted where it is known."""

    features: Columns | Pictures
    table: Table
    targets: Array
    known: NDArray[np.bool_]

    def examples(self, owners: bool) -> Examples:
        """As a network learns from them, by owner or each by itself."""
        rows, targets = self.features.rows(self.table.columns), self.targets
        whose = self.table.owners if owners else None
        if not self.known.all():  # they are left out, and nothing is said of it
            rows, targets = rows[self.known], targets[self.known]
            whose = None if whose is None else np.unique(whose[self.known], return_inverse=True)[1]
        return Examples(rows, targets, whose)


def as_table(
    X: Any, groups: Any, picture: tuple[int, int] | None, wanted: Sequence[str] | None = None
) -> Table:
    """Examples of any kind; nothing is said of their values. ``wanted`` columns alone, in this order."""
    if hasattr(X, "toarray"):
        raise DataError("X is sparse, and sparse input is not supported here: give X.toarray()")
    by_name = _by_name(X)
    if by_name is not None:
        return _named(by_name, groups, picture, wanted)
    values = as_array("X", X)
    owners = None if groups is None or isinstance(groups, str) else _numbered(groups, len(values))
    if values.ndim == 3 or picture is not None:
        return _pictures(values, picture, owners)
    if values.ndim != 2:
        raise DataError(
            f"X has a row for each example and a column for each feature, got shape {values.shape}. "
            "Reshape your data: X.reshape(1, -1) is one example, X.reshape(-1, 1) one feature"
        )
    if not values.shape[1]:
        raise DataError(
            f"X has 0 feature(s) (shape={values.shape}) while a minimum of 1 is required to learn from"
        )
    return Table(len(values), values.shape[1], list(values.T), owners=owners)


def _by_name(X: Any) -> dict[str, Array] | None:
    """The columns of a table; None where it is none."""
    try:
        frame = nw.from_native(X, eager_only=True)
    except TypeError:
        return None
    except Exception as error:  # such as two columns of one name
        raise DataError(f"X cannot be read as a table: {error}") from error
    names = [str(name) for name in frame.columns]
    check_distinct(names)
    columns = zip(names, frame.iter_columns(), strict=True)
    return {name: as_array(name, column.to_numpy()) for name, column in columns}


def as_array(what: str, values: Any) -> Array:
    """Numbers as they are, anything else as objects: no example's value changes what another's is."""
    try:
        made = values if isinstance(values, np.ndarray) else np.asarray(values)
        if made.dtype.kind not in "biuf" and not isinstance(values, np.ndarray):
            made = np.asarray(values, object)  # a word among numbers would make words of all
    except (TypeError, ValueError, OverflowError) as error:
        if not isinstance(values, list | tuple):
            raise DataError(f"{what} cannot be read as an array: {shown(type(values))}") from error
        made = np.empty(len(values), object)  # some value is itself a list, which is none to learn from
        made[:] = values
    if made.dtype.kind == "c":
        raise DataError(f"Complex data not supported: {what} is made of real numbers or of categories")
    if made.dtype.kind in "MmV":
        raise DataError(
            f"{what} holds {made.dtype}, which is neither numbers nor categories: give times as "
            "numbers, such as days since a date"
        )
    return made


def _named(
    by_name: dict[str, Array],
    groups: Any,
    picture: tuple[int, int] | None,
    wanted: Sequence[str] | None,
) -> Table:
    count = len(next(iter(by_name.values()))) if by_name else 0
    owners = None
    if isinstance(groups, str):
        if groups not in by_name:
            raise DataError(f"there is no column {groups!r} that says whose examples are")
        owners = _numbered(by_name.pop(groups), count)
    elif groups is not None:
        owners = _numbered(groups, count)
    if wanted is not None and set(wanted) <= set(by_name):
        by_name = {name: by_name[name] for name in wanted}
    elif wanted is not None and not placed(wanted):
        raise DataError(f"there are no columns {', '.join(sorted(set(wanted) - set(by_name)))}")
    if picture is not None:
        pixels = [as_numbers(values) for values in by_name.values()]
        return _pictures(np.stack(pixels, 1) if pixels else np.zeros((0, 0)), picture, owners)
    return Table(count, len(by_name), list(by_name.values()), tuple(by_name), owners=owners)


def _place(name: str) -> int:
    return int(name) if name.isascii() and name.isdigit() and len(name) < 10 else -1


def placed(names: Sequence[str]) -> bool:
    """Whether columns were named by their place, for want of names."""
    return list(names) == [str(place) for place in range(len(names))]


def _pictures(values: Array, picture: tuple[int, int] | None, owners: Any) -> Table:
    height, width = values.shape[1:] if values.ndim == 3 else (picture or (0, 0))
    pixels = int(np.prod(values.shape[1:]))
    if values.ndim not in (2, 3) or pixels != height * width:
        raise DataError(f"pictures of {height} x {width} do not fit X of shape {values.shape}")
    if picture is not None and (height, width) != tuple(picture):
        raise DataError(f"pictures are {height} x {width}, and should be {picture[0]} x {picture[1]}")
    return Table(len(values), height * width, values, picture=(int(height), int(width)), owners=owners)


def _numbered(groups: Any, count: int) -> NDArray[np.int64]:
    whose = as_array("groups", groups)
    if whose.shape not in ((count,), (count, 1)):
        raise DataError(f"there are {count} examples, and groups of shape {whose.shape}")
    whose = whose.reshape(-1)
    if whose.dtype.kind not in "biuf":  # whose one example is does not depend on what others are called
        whose = np.array([_called(each) for each in whose.tolist()], np.str_)
    return np.unique(whose, return_inverse=True)[1].astype(np.int64)


def _called(owner: Any) -> str:
    return str(int(owner)) if isinstance(owner, float) and owner.is_integer() else str(owner)


def targets_of(y: Any, count: int) -> Array:
    """What is to be predicted, a value for each example."""
    values = as_one_column(as_array("y", y))
    if values.shape != (count,):
        raise DataError(f"there are {count} examples, and targets of shape {values.shape}")
    return values


# -- what is public -------------------------------------------------------------------------------


def number_of(public: Public, unit: Sample | Unit) -> int:
    """About how many units there are, which has to be public."""
    owners = isinstance(unit, Unit)
    count = public.units if owners else public.entries
    if count is None:
        what = f"different {unit.mode}s" if isinstance(unit, Unit) else "examples"
        field = "units" if owners else "entries"
        how = either(f"public=sfumato.Public({field}=...)", f"--public-{field} N")
        raise SettingError(f"say about how many {what} there are, which is then public: {how}")
    return int(count)


def columns_of(bounds: Any, width: int | None, names: Sequence[str] | None, *, hidden: bool) -> Columns:
    """Columns with what is public of each."""
    if not isinstance(bounds, Mapping):
        pair = as_pair("bounds", bounds, "two numbers, or by column two numbers or a list of categories")
        check_range(*pair)
        if width is None:
            raise SettingError("say how many columns there are: features=...")
        check_count(features=width)
        called = names or [str(place) for place in range(width)]
        return Columns(tuple(Column(name, pair) for name in called), hidden)
    said = {str(name): _column(str(name), value) for name, value in bounds.items()}
    called = list(said) if names is None else list(names)
    if placed(sorted(called, key=_place)):
        called.sort(key=_place)  # columns of an array, in whatever order bounds are given
    if width is not None and names is None and width != len(said):
        raise SettingError(f"bounds are of {len(said)} columns, and X has {width}")
    if missing := [name for name in called if name not in said]:
        raise SettingError(
            f"say what is public of the columns {', '.join(missing)}: two bounds or a list of "
            "categories of each; or leave them out of X"
        )
    if absent := [name for name in said if name not in called]:
        raise SettingError(f"X has no columns {', '.join(absent)}, which bounds are given of")
    return Columns(tuple(said[name] for name in called), hidden)


def _column(name: str, said: Any) -> Column:
    if isinstance(said, tuple) and len(said) == 2 and not any(isinstance(each, str) for each in said):
        pair = as_pair(f"bounds of {name}", said)
        check_range(*pair)
        return Column(name, pair)
    return Column(name, None, categories_of(f"categories of {name}", said))


def _is_category(label: Any) -> bool:
    return isinstance(label, str) or (isinstance(label, int) and abs(label) < 1 << 63)


def categories_of(what: str, listed: Any) -> tuple[str | int, ...]:
    """Categories as words or whole numbers, each once."""
    try:
        plain = [] if isinstance(listed, str | bytes | Mapping | set | frozenset) else list(listed)
    except TypeError:
        plain = []
    made = [label_of(each) for each in plain]
    made = [int(each) if isinstance(each, bool) else each for each in made]
    if not made or not all(map(_is_category, made)) or len(set(made)) < len(made):
        raise SettingError(
            f"{what} are a list of words or whole numbers, each once, got {shown(listed)}"
        )
    return tuple(each for each in made if each is not None)


def check_picture(picture: Any) -> tuple[int, int]:
    """Height and width of pictures."""
    if len(sizes := as_list("pictures", picture, "(height, width)")) != 2:
        raise wrong("pictures", "(height, width)", picture)
    check_count(4, 1024, height=sizes[0], width=sizes[1])
    return int(sizes[0]), int(sizes[1])


def pictures_of(picture: Any, bounds: Any) -> Pictures:
    """Pictures of a size, with public bounds of their pixels."""
    height, width = check_picture(picture)
    low, high = as_pair("bounds", bounds)
    check_range(low, high)
    scales = 2 if min(height, width) >= _LARGE else 1
    return Pictures(height, width, low, high, scales)


# -- without privacy ------------------------------------------------------------------------------


def open_classes(y: Any) -> list[Any]:
    """The classes in the data, where nobody has to be protected."""
    labels = as_array("y", y).reshape(-1)
    known = {label_of(each) for each in labels.tolist()} - {None}
    if labels.dtype.kind == "f" and (labels[np.isfinite(labels)] % 1).any():
        raise DataError(
            "y is continuous: it holds numbers that are no classes. Use PrivateRegressor, or round them"
        )
    return _sorted(known)


def _sorted(labels: Any) -> list[Any]:
    return sorted(labels, key=lambda label: (isinstance(label, str), label))


def open_bounds(table: Table) -> Any:
    """The bounds of the data, where nobody has to be protected."""
    if table.picture is not None:
        return _within(as_numbers(np.asarray(table.columns).reshape(-1)))
    names = table.names or [str(place) for place in range(table.width)]
    return {name: _open_column(name, values) for name, values in zip(names, table.columns, strict=True)}


def open_targets(y: Any) -> tuple[float, float]:
    """The same of numbers that are to be predicted."""
    numbers = as_numbers(as_array("y", y).reshape(-1))
    if np.isinf(numbers).any():
        raise DataError("y contains infinity, which is no number to learn: leave such examples out")
    return _within(numbers)


def _open_column(name: str, values: Array) -> Any:
    numbers = as_numbers(values)
    if values.dtype.kind in "biuf":
        return _within(numbers)
    for each in values.tolist():
        if isinstance(each, Collection) and not isinstance(each, str):
            raise DataError(
                f"column {name} holds {shown(each)}, which is neither a number nor a category"
            )
    labels = _sorted({label_of(each) for each in values.tolist()} - {None})
    words = any(isinstance(each, str) and np.isnan(as_numbers([each])[0]) for each in labels)
    return labels if words else _within(numbers)


def _within(numbers: Array) -> tuple[float, float]:
    """Bounds of the finite ones; wider where they are all the same."""
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    return (low, high) if low < high else (low, low + max(1.0, abs(low) / 1000))
