"""How far predictions lie from values: what the noise of privacy adds, and how far data scatter.

The variance of a cell about its prediction is a sum: what values scatter by themselves, what is not
known of each level because it has few entries, and what noise hides of it. All of it follows from what a
private fit has released. Own rows add what their owner's number of entries leaves open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from sfumato.checks import check_share
from sfumato.errors import SettingError
from sfumato.records import record
from sfumato.types import Array

# Ends of the bins that shares of residuals, over their expected deviation, are told in: for all fits.
_ENDS = np.geomspace(0.15, 9.0, 48)
EDGES: Array = np.concatenate([-_ENDS[::-1], [0.0], _ENDS])
BINS = EDGES.shape[0] + 1
RAREST = 0.6  # of a mode's levels, that count as rare: those of most modes have few of the entries
_LEAST_RARE, _MOST_RARE = 0.1, 1.0  # logarithms


class Interval(NamedTuple):
    """Predictions with bounds, and standard deviations of what makes them wide.

    Parameters
    ----------
    prediction
        The values.
    low, high
        Between which they lie with the probability that was asked for.
    noise
        Standard deviation of privacy's noise in the prediction.
    scatter
        Standard deviation of values about what is predicted.

    Examples
    --------
    >>> import sfumato as sf
    >>> modes = {"user": range(300), "item": range(200)}
    >>> data = sf.synthetic.cp(
    ...     (300, 200), 1, entries=9000, biases=1.0, modes=list(modes)
    ... ).tensor
    >>> privacy = sf.Privacy(
    ...     3.0, 1e-6, unit="user", public=sf.Public(labels=modes), intervals=True
    ... )
    >>> model = sf.CP(privacy=privacy).fit(sf.prepare.clip(data, (-3, 3)))
    >>> told = model.predict(user=[1, 2], item=[3, 4], interval=0.9)
    >>> bool(
    ...     (told.low <= told.prediction).all()
    ...     and (told.prediction <= told.high).all()
    ... )
    True
    """

    prediction: Any
    low: Any
    high: Any
    noise: Any
    scatter: Any


@record
@dataclass(frozen=True, eq=False, kw_only=True)
class Doubts:
    """What a private fit knows of its own errors.

    Parameters
    ----------
    scatter : variance of what the model leaves of a value, as far as is known.
    noise, data : for each mode an array, or None: the variance that noise adds at each level, and what
        its entries alone would leave; with how much more values of rare levels scatter, where asked.
    counts : for each mode how often levels occur, as far as was released, or None.
    """

    scatter: float
    noise: tuple[Array | None, ...]
    data: tuple[Array | None, ...]
    counts: tuple[Array | None, ...]

    @classmethod
    def of_biases(
        cls,
        scatter: float,
        deviations: Sequence[Array],
        data: tuple[Array | None, ...],
        counts: tuple[Array | None, ...],
    ) -> Doubts:
        """Those of biases with posterior deviations, of which entries alone would leave ``data``."""
        pairs = zip(deviations, data, strict=True)
        whole = [None if entries is None else each**2 for each, entries in pairs]
        return cls(scatter=scatter, noise=noise_of(whole, data), data=data, counts=counts)

    def with_noise(self, more: Sequence[Array | None]) -> Doubts:
        """With so much more variance by the noise at the levels of each mode."""
        noise = tuple(
            known if new is None else new if known is None else known + new
            for known, new in zip(self.noise, more, strict=True)
        )
        return replace(self, noise=noise)

    def scaled(self, times: float) -> Doubts:
        """With so many times the variance of everything."""
        noise, data = (
            tuple(None if part is None else times * part for part in parts)
            for parts in (self.noise, self.data)
        )
        return replace(self, scatter=times * self.scatter, noise=noise, data=data)

    # -- rare levels ----------------------------------------------------------------------------

    @property
    def told(self) -> tuple[int, ...]:
        """Modes of whose levels it was released how often they occur."""
        return tuple(m for m, counts in enumerate(self.counts) if counts is not None)

    def rareness(self, mode: int) -> Array:
        """How rare levels of a mode are, as far as was released: zero for the popular ones, for others
        by how many logarithms they occur less often than these; one for their entries on average.
        """
        counts = self.counts[mode]
        if counts is None:
            raise ValueError("it was not released how often levels of this mode occur")
        found = np.zeros(counts.shape[0])
        order = np.argsort(counts, kind="stable")
        rare, popular = np.split(order, [int(RAREST * counts.shape[0])])
        if rare.size:
            likely = np.maximum(counts[rare], 1e-3)
            least = np.log(max(float(counts[popular[0]]), 1e-3))
            found[rare] = np.clip(least - np.log(likely), _LEAST_RARE, _MOST_RARE)
            found[rare] *= likely.sum() / (found[rare] @ likely)
        return found

    def rarity(self, coordinates: Array) -> Array:
        """Which of a cell's levels are rare: a bit for each mode of which that is told."""
        bits = np.zeros(coordinates.shape[1], np.int64)
        for bit, mode in enumerate(self.told):
            bits += (self.rareness(mode) > 0)[coordinates[mode]].astype(np.int64) << bit
        return bits

    def with_rare(self, more: Mapping[int, float]) -> Doubts:
        """With so much more variance of values of rare levels of some modes, on average."""
        data = list(self.data)
        for mode, variance in more.items():
            known, rareness = data[mode], self.rareness(mode)
            whole = np.zeros(rareness.shape[0]) if known is None else known
            data[mode] = np.maximum(whole + variance * rareness, 0.0)
        return replace(self, data=tuple(data))


def noise_of(doubts: Sequence[Array | None], data: Sequence[Array | None]) -> tuple[Array | None, ...]:
    """What doubts have beyond those that entries alone would leave."""
    return tuple(
        whole if known is None or whole is None else np.maximum(whole - known, 0.0)
        for whole, known in zip(doubts, data, strict=True)
    )


@record
@dataclass(frozen=True, eq=False, kw_only=True)
class OwnDoubts:
    """What is not known of own rows, by how many entries their owner has.

    With the eigenvalues l of C^(1/2) S C^(1/2), C the prior covariance of a row and S the second moment
    of its designs, n entries of precision p leave on average sum l / (1 + n p l).
    """

    mode: int
    spectrum: Array
    precision: float

    def after(self, entries: Array) -> Array:
        """The variance that is left of values after so many own entries."""
        number, at = np.unique(np.asarray(entries, np.float64), return_inverse=True)
        told = 1 + self.precision * number[:, None] * self.spectrum
        left: Array = (self.spectrum / told).sum(axis=1)
        return left[at]


@record
@dataclass(frozen=True, eq=False, kw_only=True)
class Errors:
    """All that intervals are made of beside the model: released, every number of it.

    ``shape`` is the share of residuals, over their expected deviation, in each bin between ``EDGES``.
    """

    doubts: Doubts
    shape: Array
    own: OwnDoubts | None = None

    # -- what is expected of cells --------------------------------------------------------------

    def variances(self, coordinates: Array, own_entries: Array | None = None) -> tuple[Array, Array]:
        """What noise adds at cells, and what data scatter; -1 is a level of which nothing is known.

        ``own_entries`` is how many each level of the owners' mode has; who is not among them has none.
        """
        noise = _at(self.doubts.noise, coordinates)
        scatter = self.doubts.scatter + _at(self.doubts.data, coordinates)
        if self.own is not None:
            levels = coordinates[self.own.mode]
            number = np.zeros(levels.shape[0])
            if own_entries is not None and own_entries.size:
                number = np.where(levels >= 0, own_entries[levels], 0)
            scatter = scatter + self.own.after(number)
        return noise, scatter

    def bounds(self, level: float) -> tuple[float, float]:
        """Between which numbers of deviations residuals lie with a probability."""
        inside = np.cumsum(self.shape)[:-1]
        low, high = np.interp([(1 - level) / 2, (1 + level) / 2], inside, EDGES)
        return min(float(low), 0.0), max(float(high), 0.0)

    def leverages(self, coordinates: Array, own_entries: Array | None = None) -> Array:
        """What a fitted entry tells of its own prediction: the less, the more noise there is."""
        told = np.zeros(coordinates.shape[1])
        for noise, data, levels in zip(self.doubts.noise, self.doubts.data, coordinates, strict=True):
            if noise is not None and data is not None:
                share = data**2 / np.maximum(data + noise, 1e-300) / self.doubts.scatter
                told += share[levels]
        if self.own is not None and own_entries is not None:
            left = self.own.after(own_entries)
            told += self.own.precision * left[coordinates[self.own.mode]]
        return told

    # -- as it is written -----------------------------------------------------------------------

    def check(self, sizes: Sequence[int], local: int | None) -> None:
        """Raise a ``SettingError`` where these errors are not those of a model."""
        doubts, shape = self.doubts, np.asarray(self.shape)
        if not (np.isfinite(doubts.scatter) and doubts.scatter > 0):
            raise SettingError("the scatter of values must be a number above zero")
        if shape.shape != (BINS,) or not np.isfinite(shape).all() or (shape < 0).any():
            raise SettingError(f"residuals are counted in {BINS} bins")
        if abs(float(shape.sum()) - 1) > 1e-6:
            raise SettingError("shares of residuals have to add up to one")
        for parts in (doubts.noise, doubts.data, doubts.counts):
            if len(parts) != len(sizes):
                raise SettingError(f"a model of {len(sizes)} modes needs as many arrays or None")
            for part, size in zip(parts, sizes, strict=True):
                if part is not None and not (
                    np.shape(part) == (size,) and np.isfinite(part).all() and (part >= 0).all()
                ):
                    raise SettingError("errors of levels must be numbers of zero or more, one for each")
        if (self.own is None) != (local is None) or (self.own is not None and self.own.mode != local):
            raise SettingError("what is not known of own rows belongs to another mode")
        if self.own is not None:
            numbers = np.append(self.own.spectrum, self.own.precision)
            if np.ndim(self.own.spectrum) != 1 or not (np.isfinite(numbers) & (numbers >= 0)).all():
                raise SettingError("what is not known of own rows must be variances")

    def to_json(self) -> dict[str, Any]:
        """Its numbers; the arrays are those of :meth:`tensors`."""
        own = self.own
        return {
            "scatter": float(self.doubts.scatter),
            "own_mode": None if own is None else int(own.mode),
            "own_precision": None if own is None else float(own.precision),
        }

    def tensors(self) -> dict[str, Array]:
        """Its arrays by name."""
        arrays = {"errors_shape": self.shape}
        if self.own is not None:
            arrays["errors_own"] = self.own.spectrum
        for name in ("noise", "data", "counts"):
            parts = getattr(self.doubts, name)
            arrays |= {f"errors_{name}_{m}": part for m, part in enumerate(parts) if part is not None}
        return {name: np.ascontiguousarray(array, np.float64) for name, array in arrays.items()}

    @classmethod
    def from_parts(cls, numbers: Mapping[str, Any], tensors: Mapping[str, Array], order: int) -> Errors:
        """What :meth:`to_json` and :meth:`tensors` gave, for a model with so many modes."""
        parts = {
            name: tuple(tensors.get(f"errors_{name}_{m}") for m in range(order))
            for name in ("noise", "data", "counts")
        }
        own = None
        if numbers["own_mode"] is not None:
            own = OwnDoubts(
                mode=int(numbers["own_mode"]),
                spectrum=tensors["errors_own"],
                precision=float(numbers["own_precision"]),
            )
        doubts = Doubts(scatter=float(numbers["scatter"]), **parts)
        return cls(doubts=doubts, shape=tensors["errors_shape"], own=own)


def _at(parts: Sequence[Array | None], coordinates: Array) -> Array:
    """Sum over modes at cells; the mean over levels where one is not known."""
    total = np.zeros(coordinates.shape[1])
    for part, levels in zip(parts, coordinates, strict=True):
        if part is not None and part.size:
            total += np.where(levels >= 0, part[levels], part.mean())
    return total


def check_level(level: float) -> None:
    """The probability of an interval: between zero and one, neither of them."""
    check_share(interval=level)
