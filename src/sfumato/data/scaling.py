"""Scalings of the values that can be undone on predictions.

A scaling made from public constants keeps a privacy guarantee. One that is *fitted* to private
data does not: its constants are statistics of that data, released without noise, and the scaled
values of one person depend on everybody else's. Scale by public constants, or after the noise.

Examples
--------
>>> import sfumato as sf
>>> stars = sf.synthetic.ratings_like(30, 20, 5, 400)
>>> unit = sf.scaling.MinMax(1, 5)  # what everybody knows of stars
>>> scaled = unit.transform(stars)
>>> (
...     scaled.bounds,
...     bool(
...         (
...             unit.inverse(scaled.values, scaled.coordinates) == stars.values
...         ).all()
...     ),
... )
((0.0, 1.0), True)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.checks import check_count, check_number
from sfumato.data.tensor import SparseTensor, check_bounds, check_tensor
from sfumato.errors import DataError, SettingError

# A group whose variance is below this share of the variance of all values counts as constant: it
# is what rounding, or a centre per entry, leaves over, and dividing by it would only blow it up.
NEGLIGIBLE_VARIANCE = 1e-6
# Where few cells are observed there may be no scaling that gives rows and columns variance one:
# row scales then go to zero while column scales grow without end (on MovieLens 100K by day, to
# 1e60 in 100 iterations). So a group's scale stays within this factor of the one around it.
LARGEST_SCALE = 10.0


class Scaling(Protocol):
    """A map of values that can be undone.

    Examples
    --------
    >>> import sfumato as sf
    >>> stars = sf.synthetic.ratings_like(30, 20, 5, 400)
    >>> scaling: sf.scaling.Scaling = sf.scaling.Centre(3.0)
    >>> scaling.inverse(scaling.transform(stars).values, stars.coordinates)[:4]
    array([3., 3., 3., 3.])
    """

    def transform(self, tensor: SparseTensor) -> SparseTensor:
        """The tensor with scaled values.

        Parameters
        ----------
        tensor : SparseTensor
            Whose values are scaled.

        Returns
        -------
        SparseTensor
            Of the same cells.
        """
        ...

    def inverse(self, values: ArrayLike, coordinates: NDArray[Any]) -> NDArray[Any]:
        """Scaled values at these coordinates, in the original units.

        Parameters
        ----------
        values : array_like
            Scaled ones.
        coordinates : array
            A row for each mode, a column for each value.

        Returns
        -------
        array
            Values as they were.
        """
        ...


@dataclass(frozen=True)
class Centre:
    """Subtract a constant. With a public constant this keeps a guarantee; ``fit`` voids it.

    Parameters
    ----------
    mean : float
        What is subtracted.

    Examples
    --------
    >>> import sfumato as sf
    >>> centred = sf.scaling.Centre(3.0).transform(
    ...     sf.synthetic.ratings_like(30, 20, 5, 400)
    ... )
    >>> centred.bounds
    (-2.0, 2.0)
    """

    mean: float

    def __post_init__(self) -> None:
        check_number(**{"the mean": self.mean})

    @classmethod
    def fit(cls, tensor: SparseTensor) -> Self:
        """Centre at the mean of the values. Not private: the mean is released as it is.

        Parameters
        ----------
        tensor : SparseTensor
            Whose values are looked at.

        Returns
        -------
        Self
            With their mean.
        """
        check_tensor(tensor)
        return cls(float(tensor.values.mean(dtype=np.float64)))

    def transform(self, tensor: SparseTensor) -> SparseTensor:
        """The tensor with centred values, and bounds that are moved with them."""
        return _with_line(tensor, 1.0, -float(self.mean))

    def inverse(self, values: ArrayLike, coordinates: NDArray[Any]) -> NDArray[Any]:  # noqa: ARG002
        """Centred values in the original units; the coordinates make no difference."""
        return np.asarray(values) + float(self.mean)


@dataclass(frozen=True)
class MinMax:
    """Map ``low`` to ``to[0]`` and ``high`` to ``to[1]``, linearly; nothing is clipped.

    With public constants this keeps a guarantee; ``fit`` voids it.

    Parameters
    ----------
    low, high : float
        Values as they are.
    to : pair of float
        What they become.

    Examples
    --------
    >>> import sfumato as sf
    >>> stars = sf.synthetic.ratings_like(30, 20, 5, 400)
    >>> sf.scaling.MinMax(1, 5, to=(-1.0, 1.0)).transform(stars).bounds
    (-1.0, 1.0)
    """

    low: float
    high: float
    to: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        check_bounds((self.low, self.high))
        check_bounds(self.to)

    @classmethod
    def fit(cls, tensor: SparseTensor, to: tuple[float, float] = (0.0, 1.0)) -> Self:
        """From the smallest and largest value. Not private: both belong to somebody.

        Parameters
        ----------
        tensor : SparseTensor
            Whose values are looked at.
        to : pair of float
            What the smallest and the largest become.

        Returns
        -------
        Self
            With these two.
        """
        check_tensor(tensor)
        low, high = float(tensor.values.min()), float(tensor.values.max())
        if low == high:
            raise DataError(f"all values are {low:g}: there is no range to scale")
        return cls(low, high, to)

    @property
    def _factor(self) -> float:
        return float((self.to[1] - self.to[0]) / (self.high - self.low))

    def transform(self, tensor: SparseTensor) -> SparseTensor:
        """The tensor with scaled values, and bounds that are scaled with them."""
        return _with_line(tensor, self._factor, float(self.to[0] - self.low * self._factor))

    def inverse(self, values: ArrayLike, coordinates: NDArray[Any]) -> NDArray[Any]:  # noqa: ARG002
        """Scaled values in the original units; the coordinates make no difference."""
        return (np.asarray(values) - float(self.to[0])) / self._factor + float(self.low)


def _with_line(tensor: SparseTensor, factor: float, shift: float) -> SparseTensor:
    """Values and bounds sent through ``factor * x + shift``."""
    values = tensor.values * factor + shift
    if tensor.bounds is None:
        return tensor.with_values(values)
    # In the values' own precision, so that rounding carries no value over its bound.
    low, high = np.array(tensor.bounds, values.dtype) * factor + shift
    return tensor.with_values(values, (float(low), float(high)))


# -- bi-scaling -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Groups:
    """Centre and scale of the groups of entries that share their levels in some modes.

    ``ids`` are the groups seen in the data, sorted. Any other group has centre 0 and scale 1.

    Parameters
    ----------
    modes : tuple of int
        Positions of the modes.
    shape : tuple of int
        Of the tensor.
    ids : array
        Numbers of groups.
    centres, scales : array
        One for each of these.

    Examples
    --------
    >>> import numpy as np, sfumato as sf
    >>> of_items = sf.scaling.Groups(
    ...     (1,),
    ...     (3,),
    ...     ids=np.array([0, 2]),
    ...     centres=np.array([3.0, 4.0]),
    ...     scales=np.array([1.0, 2.0]),
    ... )
    >>> of_items.at(np.array([[0, 0, 0], [0, 1, 2]]))
    (array([3., 0., 4.]), array([1., 1., 2.]))
    """

    modes: tuple[int, ...]
    shape: tuple[int, ...]
    ids: NDArray[np.int64]
    centres: NDArray[np.float64]
    scales: NDArray[np.float64]

    def at(self, coordinates: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Centre and scale for each cell."""
        wanted = _group_ids(coordinates, self.modes, self.shape)
        place = np.minimum(np.searchsorted(self.ids, wanted), self.ids.size - 1)
        seen = self.ids[place] == wanted
        return np.where(seen, self.centres[place], 0.0), np.where(seen, self.scales[place], 1.0)


@dataclass(frozen=True)
class BiScale:
    """Standardise every slice along all of its modes, over the observed entries.

    With slices by day, every user and every item of one day's matrix gets mean zero and variance
    one, in turn and again, as in the bi-scaling of Mazumder, Hastie and Tibshirani. Without
    slices the whole tensor is one slice. A value is

        x = (product of scales) * z + (sum of centres)

    with one centre and one scale for all entries, one for each slice, and one for each level of
    each other mode within a slice. Groups with fewer than two entries, or without variance, keep
    scale 1; the scales of other groups lie between 0.1 and 10, relative to those around them.

    A group that was not in the data has centre 0 and scale 1, so that the value goes back by what
    is known: an unseen user of a known day by that day and the item, a cell of an unseen day by
    the mean and deviation of all entries.

    Always fitted to the data: used on private data before the noise, it voids a guarantee.

    Parameters
    ----------
    groups : tuple of Groups
        What :meth:`fit` has found.

    Examples
    --------
    >>> import sfumato as sf
    >>> ratings = sf.synthetic.ratings_like(30, 20, 5, 400)
    >>> scaling = sf.scaling.BiScale.fit(ratings, slices="day")
    >>> bool(abs(scaling.transform(ratings).values.mean()) < 0.1)
    True
    """

    groups: tuple[Groups, ...]

    @classmethod
    def fit(cls, tensor: SparseTensor, slices: str | None = None, iterations: int = 20) -> Self:
        """Standardise each mode in turn, ``iterations`` times.

        Parameters
        ----------
        tensor : SparseTensor
            What is standardised.
        slices : str or None
            A mode; each of its levels is standardised by itself.
        iterations : int
            How often all modes are gone through.

        Returns
        -------
        Self
            To be used for this tensor, and others of its shape.
        """
        check_tensor(tensor)
        check_count(iterations=iterations)
        once, in_turn = _grouping(tensor, slices)
        residual = tensor.values.astype(np.float64)
        spread = np.ones_like(residual)
        negligible = NEGLIGIBLE_VARIANCE * float(residual.var())
        fitted = [_find_groups(tensor, modes) for modes in (*once, *in_turn)]
        for groups, member in fitted[: len(once)] + iterations * fitted[len(once) :]:
            _standardise(groups, member, residual, spread, negligible)
        return cls(tuple(groups for groups, _ in fitted))

    def transform(self, tensor: SparseTensor) -> SparseTensor:
        """The tensor with standardised values; they have no bounds that are known beforehand."""
        centre, scale = self._at(tensor.coordinates)
        scaled = (tensor.values - centre) / scale
        return tensor.with_values(scaled.astype(tensor.values.dtype))

    def inverse(self, values: ArrayLike, coordinates: NDArray[Any]) -> NDArray[Any]:
        """Standardised values at these coordinates, in the original units."""
        given = np.asarray(values)
        centre, scale = self._at(coordinates)
        return (given * scale + centre).astype(np.result_type(given, np.float32))

    def _at(self, coordinates: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Sum of centres and product of scales for each cell."""
        centre, scale = np.zeros(coordinates.shape[1]), np.ones(coordinates.shape[1])
        for groups in self.groups:
            its_centre, its_scale = groups.at(coordinates)
            centre += its_centre
            scale *= its_scale
        return centre, scale


def _grouping(
    tensor: SparseTensor, slices: str | None
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """The modes that define groups: those standardised once, and those standardised in turn."""
    if slices is None:
        return [()], [(m,) for m in range(tensor.order)]
    if tensor.order < 3:
        raise SettingError(
            f"a slice of a table by {slices!r} is a single row of values; "
            "a matrix is bi-scaled as a whole, with slices=None"
        )
    s = tensor.mode_index(slices)
    return [(), (s,)], [(s, m) for m in range(tensor.order) if m != s]


def _find_groups(tensor: SparseTensor, modes: tuple[int, ...]) -> tuple[Groups, NDArray[np.int64]]:
    """The groups that have entries, not yet scaled, and each entry's place among them."""
    shape = tuple(tensor.shape[m] for m in modes)
    ids, member = np.unique(_group_ids(tensor.coordinates, modes, shape), return_inverse=True)
    return Groups(modes, shape, ids, np.zeros(ids.size), np.ones(ids.size)), member


def _group_ids(
    coordinates: NDArray[Any], modes: tuple[int, ...], shape: tuple[int, ...]
) -> NDArray[np.int64]:
    """One number for each cell's levels in these modes; zero if there are none."""
    ids = np.zeros(coordinates.shape[1], np.int64)
    for m, size in zip(modes, shape, strict=True):
        ids = ids * size + coordinates[m]
    return ids


def _standardise(
    groups: Groups,
    member: NDArray[np.int64],
    residual: NDArray[np.float64],
    spread: NDArray[np.float64],
    negligible: float,
) -> None:
    """Give ``residual / spread`` mean zero and variance one in each group, all in place."""
    counts = np.bincount(member)
    spread /= groups.scales[member]
    # The mean is zero after division by the other groups' scales, so these are the weights.
    weights = 1.0 / spread
    move = np.bincount(member, residual * weights) / np.bincount(member, weights)
    groups.centres[:] += move
    residual -= move[member]
    constant = np.bincount(member, residual**2) <= negligible * counts
    variance = np.bincount(member, (residual * weights) ** 2) / counts
    scales = np.where(constant | (counts < 2), 1.0, np.sqrt(variance))
    if groups.modes:  # the scale of all entries together sets the units: it is not limited
        scales = np.clip(scales, 1 / LARGEST_SCALE, LARGEST_SCALE)
    groups.scales[:] = scales
    spread *= groups.scales[member]
