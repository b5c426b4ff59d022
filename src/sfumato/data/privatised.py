"""Entries whose values were privatised before they left their owner, and how.

What a value has passed is part of the data: a fit that took noisy values for clean ones would be wrong,
and one that knows the channel needs no further budget, since it sees nothing else. Entries of several
owners lie together, each with its channel, and with clean ones where a site has raw data of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.data.channels import Additive, Geometric, Response
from sfumato.data.shared_labels import levels_among, shared_modes
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import DataError, SettingError
from sfumato.records import record
from sfumato.types import Array

CLEAN = -1  # of entries that have passed nothing


@record
@dataclass(frozen=True)
class Passed:
    """What values of entries have passed.

    Parameters
    ----------
    channel : the law of what is released, given a value.
    bounds : what values were clipped to before; None where they are counts without an upper bound.
    step : their public distance from each other.
    answers : the numbers that stand for the answers of a response; nothing where noise was added.
    """

    channel: Response | Geometric | Additive
    bounds: tuple[float, float] | None
    step: float
    answers: tuple[float, ...] = ()

    @property
    def in_words(self) -> str:
        channel = self.channel
        if isinstance(channel, Response):
            truth = channel.matrix[0, 0]
            answers = ", ".join(f"{answer:g}" for answer in self.answers[:8])
            more = "" if len(self.answers) <= 8 else ", ..."
            return f"randomised response among {answers}{more}: the truth with probability {truth:.3g}"
        if isinstance(channel, Geometric):
            noise = 2 * channel.ratio / (1 - channel.ratio) ** 2
            return f"two-sided geometric noise of deviation {channel.step * noise**0.5:.3g}"
        return f"{channel.law.capitalize()} noise of scale {channel.scale:.3g}"

    def released(self, values: Array) -> Array:
        """What the channel has released, from the numbers that were written down."""
        if isinstance(self.channel, Additive):
            return values - (self.channel.low / 2 + self.channel.high / 2)
        if isinstance(self.channel, Geometric):
            return values
        answers = np.array(self.answers)
        found = np.argmin(np.abs(values[:, None] - answers), axis=1)
        wrong = np.abs(values - answers[found]) > 1e-6 * self.step
        if wrong.any():
            raise DataError(
                f"{values[wrong][0]:g} is none of the answers of its channel, which are "
                f"{', '.join(f'{answer:g}' for answer in answers)}: it was changed since it was made"
            )
        return np.asarray(found)

    def written(self, released: Array) -> Array:
        """The other way round."""
        if isinstance(self.channel, Additive):
            return released + (self.channel.low / 2 + self.channel.high / 2)
        if isinstance(self.channel, Geometric):
            return released
        return np.array(self.answers)[released]


@dataclass(frozen=True, eq=False)
class Privatised:
    """Entries with what their values have passed.

    Parameters
    ----------
    tensor : SparseTensor
        The entries, with values as they were written down.
    passed : tuple of channel
        Channels of entries, with what belongs to them.
    which : array or None
        Which of these each entry has passed, in the order of the tensor's entries; -1 for clean
        values. None where all have passed the first.
    promises : tuple of mapping
        Guarantees of whoever has privatised them, as plain data, one for each of ``passed``.

    Examples
    --------
    >>> import sfumato as sf
    >>> noisy = sf.privatise(
    ...     sf.synthetic.ratings_like(30, 20, 5, 400), epsilon=3, seed=0
    ... )
    >>> print(noisy.passed[0].in_words)
    randomised response among 1, 2, 3, 4, 5: the truth with probability 0.834
    >>> noisy.has_clean
    False
    """

    tensor: SparseTensor
    passed: tuple[Passed, ...]
    which: NDArray[np.int16] | None = None
    promises: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if self.numbers.shape != self.tensor.values.shape:
            raise DataError(f"{self.tensor.n_entries} entries need as many channels")
        if len(self.promises) not in (0, len(self.passed)):
            raise DataError("every channel has a promise of its own, or none has")

    # -- what it is -----------------------------------------------------------------------------------

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Those of the tensor."""
        return self.tensor.modes

    @property
    def n_entries(self) -> int:
        """How many entries there are."""
        return self.tensor.n_entries

    @property
    def has_clean(self) -> bool:
        """Whether some values are raw: what is made of them is as secret as they are."""
        return bool((self.numbers == CLEAN).any())

    @property
    def numbers(self) -> NDArray[np.int16]:
        """What each entry has passed, by number."""
        return np.zeros(self.n_entries, np.int16) if self.which is None else self.which

    def __len__(self) -> int:
        return self.n_entries

    def __repr__(self) -> str:
        kinds = ", ".join(type(each.channel).__name__.lower() for each in self.passed)
        clean = ", some of them clean" if self.has_clean else ""
        return f"Privatised({self.tensor!r} behind {kinds}{clean})"

    @property
    def bounds(self) -> tuple[float, float]:
        """Between which clean values lie; where nothing bounds them, what the released ones need."""
        ends = [_ends(passed, self.tensor.values[here]) for passed, here in self.parts() if passed]
        clean = self.tensor.values[self.numbers == CLEAN]
        if clean.size:
            ends.append((float(clean.min()), float(clean.max())))
        return min(low for low, _ in ends), max(high for _, high in ends)

    @property
    def step(self) -> float:
        """The distance of clean values from each other: the least of all channels'."""
        return min(passed.step for passed in self.passed)

    def parts(self) -> Iterator[tuple[Passed | None, NDArray[np.bool_]]]:
        """Every channel with a mask of its entries; clean entries, if there are any, with None."""
        for number, passed in enumerate(self.passed):
            here = self.numbers == number
            if here.any():
                yield passed, here
        if self.has_clean:
            yield None, self.numbers == CLEAN

    # -- parts of it ----------------------------------------------------------------------------------

    def take(self, entries: NDArray[Any]) -> Privatised:
        """Some entries: a mask, or entry numbers in order.

        Parameters
        ----------
        entries : array
            A mask over the entries, or their numbers.

        Returns
        -------
        Privatised
            With these entries alone.
        """
        chosen = np.sort(np.arange(self.n_entries)[entries])
        return Privatised(self.tensor.take(chosen), self.passed, self.numbers[chosen], self.promises)


def _ends(passed: Passed, values: Array) -> tuple[float, float]:
    if passed.bounds is not None:
        return passed.bounds
    if not isinstance(passed.channel, Geometric):
        raise DataError("only counts with geometric noise have no bounds")
    within = passed.channel.within(values)
    return within.low, within.low if within.high is None else within.high


def together(*parts: Privatised | SparseTensor) -> Privatised:
    """Entries of several owners as one: privatised ones, and clean ones of a site that has raw data.

    Modes of the same names are the same things; labels of all are brought together.

    Parameters
    ----------
    *parts : Privatised or SparseTensor
        Two or more.

    Returns
    -------
    Privatised
        All entries, each with what it has passed.

    Examples
    --------
    >>> import sfumato as sf
    >>> ratings = sf.synthetic.ratings_like(30, 20, 5, 400)
    >>> mine, theirs = ratings.split(0.5, by="user")
    >>> data = sf.together(mine, sf.privatise(theirs, epsilon=3))
    >>> data.n_entries, data.has_clean
    (400, True)
    """
    if not parts or not all(isinstance(part, Privatised | SparseTensor) for part in parts):
        raise SettingError("give tensors, privatised or clean: together(noisy, others, own)")
    if not any(isinstance(part, Privatised) for part in parts):
        raise SettingError("none of these is privatised: fit them as they are")
    tensors = [part.tensor if isinstance(part, Privatised) else part for part in parts]
    if len({tensor.mode_names for tensor in tensors}) > 1:
        named = "; ".join(", ".join(tensor.mode_names) for tensor in tensors)
        raise DataError(f"entries that are fitted together have the same modes, but these have {named}")
    by_number = {f"part {number + 1}": tensor for number, tensor in enumerate(tensors)}
    modes = shared_modes(by_number, may_be_apart=True)
    passed, promises, which = list[Passed](), list[Mapping[str, Any]](), list[NDArray[np.int16]]()
    for part, tensor in zip(parts, tensors, strict=True):
        own = np.full(tensor.n_entries, CLEAN, np.int16)
        if isinstance(part, Privatised):
            own = np.where(part.numbers == CLEAN, CLEAN, part.numbers + len(passed)).astype(np.int16)
            passed += part.passed
            promises += part.promises
        which.append(own)
    coordinates = np.concatenate([levels_among(tensor, modes) for tensor in tensors], axis=1)
    order = np.lexsort(coordinates[::-1])
    values = np.concatenate([tensor.values for tensor in tensors])[order]
    sorted_cells = np.take(coordinates, order, axis=1)  # laid out as kernels walk over them
    whole = SparseTensor(sorted_cells, values, modes, _checked=True)
    return Privatised(whole, tuple(passed), np.concatenate(which)[order], tuple(promises))
