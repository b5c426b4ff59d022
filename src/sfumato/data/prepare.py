"""Checks on a tensor before it is fitted, and ways to cut it into parts.

Every random choice is seeded, and depends on the entries alone, not on the order of the file.

Examples
--------
>>> import sfumato as sf
>>> ratings = sf.synthetic.ratings_like(30, 20, 5, 400)
>>> train, test = sf.prepare.split_by_label(ratings, 0.2)
>>> few = sf.prepare.cap(train, "user", max_entries=5)
>>> int(few.counts("user").max()), train.n_entries + test.n_entries
(5, 400)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from sfumato.checks import check_choice, check_count, check_seed, check_share, is_whole, shown
from sfumato.data.tensor import Mode, SparseTensor, check_bounds, check_tensor
from sfumato.errors import DataError, SettingError
from sfumato.kernels.numba.ordering import row_starts, slots_in_order
from sfumato.surface import either, setting

DuplicatePolicy = Literal["error", "mean", "last", "sum"]
POLICIES: tuple[str, ...] = get_args(DuplicatePolicy)

# -- values -----------------------------------------------------------------------------------


def clip(tensor: SparseTensor, bounds: tuple[float, float]) -> SparseTensor:
    """Values clipped to public bounds, which become the tensor's bounds.

    Parameters
    ----------
    tensor : SparseTensor
        Of any values.
    bounds : pair of float
        The lowest and the highest that are to be left.

    Returns
    -------
    SparseTensor
        With values within them.

    Examples
    --------
    >>> import sfumato as sf
    >>> tensor = sf.prepare.clip(
    ...     sf.synthetic.cp((9, 8), 2, missing=0.5).tensor, (-1, 1)
    ... )
    >>> float(tensor.values.min()), tensor.bounds
    (-1.0, (-1.0, 1.0))
    """
    check_tensor(tensor)
    checked = check_bounds(bounds)
    if checked is None:
        raise SettingError("clipping needs bounds: two numbers (lowest, highest)")
    return tensor.with_values(np.clip(tensor.values, *checked), checked)


def check_values(tensor: SparseTensor) -> None:
    """Refuse values that are not finite, or that lie outside the tensor's bounds.

    Parameters
    ----------
    tensor : SparseTensor
        Whose values are looked at.

    Raises
    ------
    DataError
        Says which cell is wrong.

    Examples
    --------
    >>> import sfumato as sf
    >>> ratings = sf.synthetic.ratings_like(30, 20, 5, 400)
    >>> sf.prepare.check_values(
    ...     ratings.with_values(ratings.values + 2, bounds=(1, 5))
    ... )
    Traceback (most recent call last):
        ...
    sfumato.errors.DataError: 174 of 400 values are outside the bounds [1, 5]; ...
    """
    check_tensor(tensor)
    wrong = ~np.isfinite(tensor.values)
    if wrong.any():
        raise DataError(f"{_count_and_first(tensor, wrong, 'not finite numbers')}. Leave such rows out")
    if tensor.bounds is None:
        return
    low, high = tensor.bounds
    wrong = (tensor.values < low) | (tensor.values > high)
    if wrong.any():
        raise DataError(
            f"{_count_and_first(tensor, wrong, f'outside the bounds [{low:g}, {high:g}]')}. "
            f"{either('Clip them (sfumato.prepare.clip)', 'Correct them')}, or give wider bounds"
        )


def check_modes(tensor: SparseTensor) -> None:
    """Refuse modes with one level: such a mode cannot tell entries apart.

    Parameters
    ----------
    tensor : SparseTensor
        Whose modes are looked at.

    Raises
    ------
    DataError
        Names the mode.

    Examples
    --------
    >>> import sfumato as sf
    >>> sf.prepare.check_modes(sf.synthetic.cp((5, 4, 1), 1, missing=0.1).tensor)
    Traceback (most recent call last):
        ...
    sfumato.errors.DataError: mode 'mode2' has only one level, which says ...
    """
    check_tensor(tensor)
    check_sizes(tensor.modes)


def check_sizes(modes: Sequence[Mode]) -> None:
    """Refuse modes with one level, as :func:`check_modes` does, where there are no entries yet.

    Parameters
    ----------
    modes : sequence of Mode
        That are looked at.

    Raises
    ------
    DataError
        Names the mode.

    Examples
    --------
    >>> import sfumato as sf
    >>> sf.prepare.check_sizes([sf.Mode("user", 5), sf.Mode("item", 1)])
    Traceback (most recent call last):
        ...
    sfumato.errors.DataError: mode 'item' has only one level, which says ...
    """
    single = [repr(mode.name) for mode in modes if mode.size == 1]
    if single:
        raise DataError(
            f"mode {' and mode '.join(single)} has only one level, which says nothing about the "
            "values: drop it"
        )


def _count_and_first(tensor: SparseTensor, wrong: NDArray[np.bool_], what: str) -> str:
    """How many values are wrong, and the first of them by its labels."""
    first = int(np.argmax(wrong))
    return (
        f"{np.count_nonzero(wrong):,} of {tensor.n_entries:,} values are {what}; the first is "
        f"{tensor.values[first]:g} at {describe_cell(tensor, first)}"
    )


def describe_cell(tensor: SparseTensor, entry: int) -> str:
    """The cell of an entry by the labels of its levels, as in ``user 'ann', item 7``.

    Parameters
    ----------
    tensor : SparseTensor
        With the entry.
    entry : int
        Its number.

    Returns
    -------
    str
        For messages.

    Examples
    --------
    >>> import sfumato as sf
    >>> sf.prepare.describe_cell(sf.synthetic.ratings_like(30, 20, 5, 400), 0)
    "user 'u001', item 'i001', day '1998-04-01'"
    """
    return ", ".join(
        f"{mode.name} {mode.label(int(level))!r}"
        for mode, level in zip(tensor.modes, tensor.coordinates[:, entry], strict=True)
    )


# -- duplicates -------------------------------------------------------------------------------


def merge_duplicates(tensor: SparseTensor, policy: DuplicatePolicy = "error") -> SparseTensor:
    """One entry per cell: the mean, the last or the sum of the values given for it.

    The last value is the one that came last in the file. Bounds stay as they are; a sum may lie
    outside of them, which :func:`check_values` reports.

    Parameters
    ----------
    tensor : SparseTensor
        That may have several entries at one cell.
    policy : str
        "mean", "last" or "sum"; "error" refuses them.

    Returns
    -------
    SparseTensor
        With one entry per cell.

    Examples
    --------
    >>> import numpy as np, sfumato as sf
    >>> cells, modes = (
    ...     np.array([[0, 0, 1], [1, 1, 0]]),
    ...     (sf.Mode("user", 2), sf.Mode("item", 2)),
    ... )
    >>> tensor = sf.SparseTensor(cells, np.array([2.0, 4.0, 5.0]), modes)
    >>> sf.prepare.merge_duplicates(tensor, "mean").values
    array([3., 5.])
    """
    check_tensor(tensor)
    check_choice(POLICIES, **{"the policy for duplicates": policy})
    starts = _cell_starts(tensor)
    if starts.size == tensor.n_entries:
        return tensor
    counts = np.diff(starts, append=tensor.n_entries)
    if policy == "error":
        first = int(starts[np.argmax(counts > 1)])
        policies = [name for name in POLICIES if name != "error"]
        raise DataError(
            f"{np.count_nonzero(counts > 1):,} cells are given more than once; the first is "
            f"{describe_cell(tensor, first)}. Merge them: {setting('duplicates', *policies)}"
        )
    if policy == "last":
        return tensor.take(starts + counts - 1)
    merged = np.add.reduceat(tensor.values, starts, dtype=np.float64)
    if policy == "mean":
        # Rounding must not carry a mean outside the values it is the mean of, hence the bounds.
        lowest = np.minimum.reduceat(tensor.values, starts)
        highest = np.maximum.reduceat(tensor.values, starts)
        merged = np.clip(merged / counts, lowest, highest)
    return tensor.take(starts).with_values(merged.astype(tensor.values.dtype), tensor.bounds)


def _cell_starts(tensor: SparseTensor) -> NDArray[np.int64]:
    """Positions where a new cell begins; entries are sorted, so equal cells are adjacent."""
    begins = np.ones(tensor.n_entries, np.bool_)
    begins[1:] = False
    for levels in tensor.coordinates:
        begins[1:] |= levels[1:] != levels[:-1]
    return np.flatnonzero(begins)


# -- a random choice within each level --------------------------------------------------------


def cap(tensor: SparseTensor, mode: str, max_entries: int, seed: int = 0) -> SparseTensor:
    """At most ``max_entries`` entries for each level of a mode, chosen uniformly at random.

    The choice for one level is a function of the seed and of the labels of that level's own
    entries. So adding or removing one user changes no other user's choice, even where it changes
    the numbers of their levels.

    Parameters
    ----------
    tensor : SparseTensor
        To be cut.
    mode : str
        Whose levels are capped.
    max_entries : int
        That each level keeps at most.
    seed : int
        Of the choice.

    Returns
    -------
    SparseTensor
        Of the same shape.

    Examples
    --------
    >>> import sfumato as sf
    >>> ratings = sf.synthetic.ratings_like(30, 20, 5, 400)
    >>> sf.prepare.cap(ratings, "user", max_entries=3).counts("user").max().item()
    3
    """
    check_tensor(tensor)
    check_count(max_entries=max_entries)
    check_seed(seed=seed)
    counts = tensor.counts(mode)
    if counts.max() <= max_entries:
        return tensor
    return tensor.take(_random_ranks(tensor, mode, seed) < max_entries)


def leave_out(
    tensor: SparseTensor, mode: str, k: int = 1, seed: int = 0
) -> tuple[SparseTensor, SparseTensor]:
    """Train and test: ``k`` random entries of every level with more than ``k`` go to test.

    As in :func:`cap`, the choice for one level does not depend on the other levels' entries.

    Parameters
    ----------
    tensor : SparseTensor
        To be cut.
    mode : str
        Each of whose levels gives entries to the test.
    k : int
        How many.
    seed : int
        Of the choice.

    Returns
    -------
    tuple of two SparseTensor
        Train and test, of the same shape.

    Examples
    --------
    >>> import sfumato as sf
    >>> train, test = sf.prepare.leave_out(
    ...     sf.synthetic.ratings_like(30, 20, 5, 400), "user", k=2
    ... )
    >>> set(test.counts("user").tolist())
    {2}
    """
    check_tensor(tensor)
    check_count(k=k)
    check_seed(seed=seed)
    levels = tensor.coordinates[tensor.mode_index(mode)]
    eligible = tensor.counts(mode)[levels] > k
    if not eligible.any():
        raise SettingError(f"no level of mode {mode!r} has more than {k} entries to leave out from")
    return _divide(tensor, eligible & (_random_ranks(tensor, mode, seed) < k))


def _random_ranks(tensor: SparseTensor, mode: str, seed: int) -> NDArray[np.int64]:
    """Position of each entry in a random order of its level's entries."""
    m = tensor.mode_index(mode)
    levels, n_levels = tensor.coordinates[m], tensor.shape[m]
    by_key = np.argsort(_entry_keys(tensor, seed), kind="stable").astype(np.int32)
    starts = row_starts(levels, n_levels)
    ranks: NDArray[np.int64] = slots_in_order(by_key, levels, starts) - starts[levels]
    return ranks


def _entry_keys(tensor: SparseTensor, seed: int) -> NDArray[np.uint64]:
    """A pseudo-random number per entry from the seed, its labels and its place in its cell."""
    keys = _cell_keys(tensor, seed)
    # Entries of one cell share their labels: the number within the cell tells them apart.
    starts = _cell_starts(tensor)
    counts = np.diff(starts, append=tensor.n_entries)
    within_cell = np.arange(tensor.n_entries) - np.repeat(starts, counts)
    return _mix(keys ^ within_cell.astype(np.uint64))


def _cell_keys(tensor: SparseTensor, seed: int) -> NDArray[np.uint64]:
    """A pseudo-random number per cell from the seed and its labels."""
    keys = _mix(np.full(tensor.n_entries, int(seed) % 2**64, np.uint64))
    for mode, levels in zip(tensor.modes, tensor.coordinates, strict=True):
        keys = _mix(keys ^ _label_keys(mode)[levels])
    return keys


def _label_keys(mode: Mode) -> NDArray[np.uint64]:
    """A number per level that depends on the text of its label only.

    Not on its type either: one label that is no number turns a whole column into text.
    """
    labels = range(mode.size) if mode.labels is None else mode.labels.tolist()
    digests = b"".join(blake2b(str(label).encode(), digest_size=8).digest() for label in labels)
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def _mix(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The step of the generator splitmix64: a bijection in which every input bit counts."""
    mixed = keys + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


# -- train and test ---------------------------------------------------------------------------


def split(
    tensor: SparseTensor, test: float = 0.2, *, by: str | None = None, seed: int = 0
) -> tuple[SparseTensor, SparseTensor]:
    """Train and test tensors: a random share of the entries goes to test.

    With ``by`` the name of a mode, it is a share of that mode's levels, with all their entries.
    Merge duplicates first, or the same cell may appear on both sides.

    Parameters
    ----------
    tensor : SparseTensor
        To be cut.
    test : float
        Share that goes to test.
    by : str or None
        Name of a mode.
    seed : int
        Of the choice.

    Returns
    -------
    tuple of two SparseTensor
        Train and test, of the same shape.

    Examples
    --------
    >>> import sfumato as sf
    >>> train, test = sf.prepare.split(
    ...     sf.synthetic.ratings_like(30, 20, 5, 400), 0.25, seed=1
    ... )
    >>> train.n_entries, test.n_entries
    (300, 100)
    """
    check_tensor(tensor)
    check_share(test=test)
    check_seed(seed=seed)
    rng = np.random.default_rng(seed)
    if by is None:
        in_test = np.zeros(tensor.n_entries, np.bool_)
        in_test[_draw(np.arange(tensor.n_entries), test, "entries", rng)] = True
        return _divide(tensor, in_test)
    held_out = np.zeros(tensor.shape[tensor.mode_index(by)], np.bool_)
    observed = np.flatnonzero(tensor.counts(by))
    held_out[_draw(observed, test, f"levels of mode {by!r}", rng)] = True
    return _divide(tensor, held_out[tensor.coordinates[tensor.mode_index(by)]])


def split_by_label(
    tensor: SparseTensor, test: float = 0.2, *, seed: int = 0
) -> tuple[SparseTensor, SparseTensor]:
    """Train and test tensors: every cell goes to one side by its own labels and the seed alone.

    So adding or removing one entry moves no other entry, and a private fit to the one part is as
    private for the whole; :func:`split` draws a permutation of all entries, where one more entry
    changes everything.

    Parameters
    ----------
    tensor : SparseTensor
        To be cut.
    test : float
        Share that goes to test, about.
    seed : int
        Of the choice.

    Returns
    -------
    tuple of two SparseTensor
        Train and test, of the same shape.

    Examples
    --------
    >>> import sfumato as sf
    >>> ratings = sf.synthetic.ratings_like(30, 20, 5, 400)
    >>> fewer = ratings.take(range(1, 400))  # somebody has taken an entry back
    >>> whole, less = (
    ...     sf.prepare.split_by_label(ratings)[0],
    ...     sf.prepare.split_by_label(fewer)[0],
    ... )
    >>> whole.n_entries - less.n_entries  # that one, and no other has moved
    1
    """
    check_tensor(tensor)
    check_share(test=test)
    check_seed(seed=seed)
    return _divide(tensor, _cell_keys(tensor, seed) < np.uint64(test * 2.0**64))


def folds(
    tensor: SparseTensor, k: int = 5, *, seed: int = 0
) -> Iterator[tuple[SparseTensor, SparseTensor]]:
    """``k`` pairs of train and test tensors; every entry is in exactly one test tensor.

    Parameters
    ----------
    tensor : SparseTensor
        To be cut.
    k : int
        How many.
    seed : int
        Of the choice.

    Yields
    ------
    tuple of two SparseTensor
        Train and test, of the same shape.

    Examples
    --------
    >>> import sfumato as sf
    >>> ratings = sf.synthetic.ratings_like(30, 20, 5, 400)
    >>> [test.n_entries for _, test in sf.prepare.folds(ratings, 3)]
    [134, 133, 133]
    """
    check_tensor(tensor)
    check_seed(seed=seed)
    if not is_whole(k) or not 2 <= k <= tensor.n_entries:
        raise SettingError(f"k must be between 2 and the {tensor.n_entries} entries, got {shown(k)}")
    fold_of = np.random.default_rng(seed).permutation(tensor.n_entries) % k
    return (_divide(tensor, fold_of == fold) for fold in range(k))


def _draw(
    items: NDArray[np.int64], share: float, what: str, rng: np.random.Generator
) -> NDArray[np.int64]:
    """A random share of the items, neither none of them nor all."""
    n = round(share * items.size)
    if not 0 < n < items.size:
        side = "test" if n == 0 else "train"
        raise SettingError(f"a test share of {share} of {items.size} {what} leaves {side} empty")
    return rng.permutation(items)[:n]


def _divide(tensor: SparseTensor, in_test: NDArray[np.bool_]) -> tuple[SparseTensor, SparseTensor]:
    return tensor.take(~in_test), tensor.take(in_test)
