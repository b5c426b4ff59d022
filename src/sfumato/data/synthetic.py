"""Data with a planted truth, of any order and size.

The same seed gives the same data. Levels that are popular under a Zipf law are scattered over the
mode, not put first.

Examples
--------
>>> import sfumato as sf
>>> planted = sf.synthetic.cp((40, 30, 5), rank=2, missing=0.5, snr=10)
>>> train, test = planted.tensor.split(0.2)
>>> bool(sf.CP(rank=2).fit(train).rmse(test) < 0.5 * test.values.std())
True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import inf, prod, sqrt
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sfumato.checks import (
    as_list,
    as_precision,
    check_choice,
    check_count,
    check_kind,
    check_number,
    check_positive,
    check_seed,
    check_share,
    is_whole,
    shown,
    wrong,
)
from sfumato.data.profile import Profile
from sfumato.data.tensor import MAX_ENTRIES, Mode, SparseTensor, passing_times
from sfumato.errors import SettingError
from sfumato.kernels.numba.ordering import sort_entries
from sfumato.kernels.numba.threads import available_threads

Floats = NDArray[np.floating[Any]]
Zipf = Mapping[int, float] | Sequence[float] | None
Number = TypeVar("Number", int, float)

# Numbers held at once while true values are computed: 8 MB of float64.
CHUNK_NUMBERS = 1 << 20
# Grids of up to this many cells are sampled with one random key per cell, so that any share of
# them can be drawn; larger ones by drawing again what was drawn twice.
SMALL_GRID = 1 << 22
LOWEST_ACCEPTANCE = 1e-3


class _Truth(NamedTuple):
    """The parameters of a planted truth, in the order of the fields of :class:`Planted`."""

    factors: tuple[Floats, ...]
    core: Floats | None
    scale: float
    shift: float
    biases: tuple[Floats, ...]

    def at(self, coordinates: NDArray[Any]) -> Floats:
        """True values at these cells; the temporaries are bounded whatever their number."""
        values = np.empty(coordinates.shape[1], self.factors[0].dtype)
        rank = self.factors[0].shape[1]
        numbers_per_entry = rank if self.core is None else max(rank, self.core.size // rank)
        chunk = max(1, CHUNK_NUMBERS // numbers_per_entry)
        for start in range(0, values.size, chunk):
            here = slice(start, start + chunk)
            values[here] = self._chunk(coordinates[:, here])
        return values

    def _chunk(self, coordinates: NDArray[Any]) -> Floats:
        rows = [f[levels] for f, levels in zip(self.factors, coordinates, strict=True)]
        if self.core is None:
            values: Floats = reduce(np.multiply, rows).sum(axis=1)
        else:
            left = rows[0] @ self.core.reshape(self.core.shape[0], -1)
            for r in rows[1:]:
                left = np.einsum("er,ers->es", r, left.reshape(*r.shape, -1))
            values = left[:, 0]
        # Biases are none or one per mode.
        for bias, levels in zip(self.biases, coordinates, strict=False):
            values = values + bias[levels]
        return values * self.scale + self.shift


@dataclass(frozen=True)
class Planted:
    """Noisy observed entries and the low-rank truth behind them.

    The true value of a cell is ``shift + scale * (low-rank part + sum of biases)``; the low-rank
    part is CP if ``core`` is None, else Tucker. ``biases`` holds one vector per mode, or nothing.

    Parameters
    ----------
    tensor : SparseTensor
        The observed entries.
    factors : tuple of array
        One for each mode, a row for each level.
    core : array or None
        Of a Tucker truth.
    scale, shift : float
        See above.
    biases : tuple of array
        One vector for each mode.

    Examples
    --------
    >>> import numpy as np, sfumato as sf
    >>> planted = sf.synthetic.cp((6, 5), 2, missing=0.2, snr=None)  # without noise
    >>> bool(
    ...     np.allclose(
    ...         planted.truth(planted.tensor.coordinates), planted.tensor.values
    ...     )
    ... )
    True
    """

    tensor: SparseTensor
    factors: tuple[Floats, ...]
    core: Floats | None
    scale: float
    shift: float
    biases: tuple[Floats, ...] = ()

    def truth(self, coordinates: NDArray[Any]) -> Floats:
        """Values without noise at these cells.

        Parameters
        ----------
        coordinates : array
            A row for each mode, a column for each cell.

        Returns
        -------
        array
            One for each cell.
        """
        truth = _Truth(self.factors, self.core, self.scale, self.shift, self.biases)
        return truth.at(np.asarray(coordinates))


# -- planted truths ---------------------------------------------------------------------------


def cp(
    shape: Sequence[int],
    rank: int,
    *,
    entries: int | None = None,
    missing: float | None = None,
    snr: float | None = 1.0,
    biases: float = 0.0,
    zipf: Zipf = None,
    scale: float = 1.0,
    shift: float = 0.0,
    seed: int = 0,
    dtype: DTypeLike = np.float64,
    modes: Sequence[str] | None = None,
) -> Planted:
    """A CP truth with standard normal factors, observed in part and with noise.

    Parameters
    ----------
    shape : sequence of int
        Size of each mode.
    rank : int
        Number of components.
    entries : int or None
        How many distinct cells are observed; give this, or ``missing``.
    missing : float or None
        Share of the cells that is not observed.
    snr : float or None
        Variance of the truth over that of the noise, both at the observed cells; None or infinity means
        no noise.
    biases : float
        Standard deviation of each mode's biases, where that of the low-rank part is one.
    zipf : sequence of float, mapping
        Exponent of the popularity of levels, by the position of modes or one for each; 0 is uniform.
    scale : float
        Standard deviation of the low-rank part.
    shift : float
        Mean of the truth.
    seed : int
        Of everything that is drawn.
    dtype : dtype
        float32 or float64.
    modes : sequence of str or None
        Their names.

    Returns
    -------
    Planted
        The entries and the truth.

    Examples
    --------
    >>> import sfumato as sf
    >>> planted = sf.synthetic.cp(
    ...     (40, 30), 2, entries=200, zipf=(1.0, 0.0), modes=["user", "item"]
    ... )
    >>> planted.tensor
    SparseTensor(user 40 x item 30; 200 entries, density 0.167, float64)
    >>> (
    ...     planted.tensor.counts("user").max().item(),
    ...     planted.tensor.counts("item").max().item(),
    ... )
    (25, 13)
    """
    check_count(1, _MOST_RANK, rank=rank)
    _check_numbers(biases, scale, shift)
    named, rng = _name_modes(shape, modes), _generator(seed)
    factors = _draw_factors(shape, [rank] * len(shape), rng, dtype)
    spread = sqrt(rank)
    bias = _draw_biases(shape, biases * spread, rng, dtype)
    cells = sample_cells(shape, _n_entries(shape, entries, missing), rng, zipf)
    return _observe(_Truth(factors, None, scale / spread, shift, bias), cells, named, snr, rng)


def tucker(
    shape: Sequence[int],
    ranks: Sequence[int],
    *,
    entries: int | None = None,
    missing: float | None = None,
    snr: float | None = 1.0,
    biases: float = 0.0,
    zipf: Zipf = None,
    scale: float = 1.0,
    shift: float = 0.0,
    seed: int = 0,
    dtype: DTypeLike = np.float64,
    modes: Sequence[str] | None = None,
) -> Planted:
    """A Tucker truth with standard normal factors and core; other settings as in :func:`cp`.

    Parameters
    ----------
    shape : sequence of int
        Size of each mode.
    ranks : sequence of int
        Number of columns of each factor.
    entries, missing, snr, biases, zipf, scale, shift, seed, dtype, modes
        As of :func:`cp`.

    Returns
    -------
    Planted
        The entries and the truth.

    Examples
    --------
    >>> import sfumato as sf
    >>> sf.synthetic.tucker((20, 10, 5), (3, 2, 2), missing=0.5).core.shape
    (3, 2, 2)
    """
    _check_numbers(biases, scale, shift)
    named, rng = _name_modes(shape, modes), _generator(seed)
    factors = _draw_factors(shape, ranks, rng, dtype)
    core = _normal(tuple(ranks), rng, dtype)
    spread = sqrt(prod(ranks))
    bias = _draw_biases(shape, biases * spread, rng, dtype)
    cells = sample_cells(shape, _n_entries(shape, entries, missing), rng, zipf)
    return _observe(_Truth(factors, core, scale / spread, shift, bias), cells, named, snr, rng)


def coupled(
    relations: Mapping[str, Sequence[str]],
    sizes: Mapping[str, int],
    rank: int,
    *,
    entries: int | Mapping[str, int] | None = None,
    missing: float | Mapping[str, float] | None = None,
    snr: float | None = 1.0,
    zipf: Mapping[str, float] | None = None,
    seed: int = 0,
    dtype: DTypeLike = np.float64,
) -> dict[str, Planted]:
    """CP tensors that share the factor of every mode they have in common.

    Parameters
    ----------
    relations : mapping
        The modes of each tensor by its name.
    sizes : mapping
        The levels of each mode.
    rank : int
        Number of components.
    entries, missing
        As of :func:`cp`: one number for all tensors, or one for each by name.
    snr, seed, dtype
        As of :func:`cp`.
    zipf : mapping or None
        Exponents by mode name.

    Returns
    -------
    dict of Planted
        By the names of ``relations``.

    Examples
    --------
    >>> import sfumato as sf
    >>> modes = {
    ...     "ratings": ("user", "item", "day"),
    ...     "features": ("item", "feature"),
    ... }
    >>> sizes = {"user": 30, "item": 20, "day": 5, "feature": 4}
    >>> made = sf.synthetic.coupled(modes, sizes, rank=2, missing=0.5)
    >>> bool((made["ratings"].factors[1] == made["features"].factors[0]).all())
    True
    """
    if not (_by_name(relations) and _by_name(sizes)):
        raise SettingError(
            "relations are the modes of each tensor and sizes the levels of each mode, both by name: "
            f'{{"ratings": ("user", "item")}} and {{"user": 20, "item": 9}}; got {shown(relations)} and '
            f"{shown(sizes)}"
        )
    for relation, modes in relations.items():
        _check_names(f"the modes of {relation!r}", modes)
    check_count(1, MAX_ENTRIES, **{f"the size of {name!r}": size for name, size in sizes.items()})
    check_count(1, _MOST_RANK, rank=rank)
    check_seed(seed=seed)
    if zipf is not None:
        check_kind(Mapping, "exponents by the names of modes", zipf=zipf)
    unknown = sorted({name for modes in relations.values() for name in modes} - set(sizes))
    if unknown:
        raise SettingError(f"no size is given for mode {', '.join(map(repr, unknown))}")
    seeds = np.random.SeedSequence(seed).spawn(1 + len(relations))
    names = tuple(sizes)
    drawn = _draw_factors(
        list(sizes.values()), [rank] * len(names), np.random.default_rng(seeds[0]), dtype
    )
    factor_of = dict(zip(names, drawn, strict=True))
    planted = {}
    for (relation, modes), own_seed in zip(relations.items(), seeds[1:], strict=True):
        rng = np.random.default_rng(own_seed)
        shape = [sizes[name] for name in modes]
        n = _n_entries(shape, _for_one(entries, relation), _for_one(missing, relation))
        exponents = [(zipf or {}).get(name, 0.0) for name in modes]
        cells = sample_cells(shape, n, rng, exponents)
        factors = tuple(factor_of[name] for name in modes)
        truth = _Truth(factors, None, 1 / sqrt(rank), 0.0, ())
        planted[relation] = _observe(truth, cells, _name_modes(shape, modes), snr, rng)
    return planted


def _for_one(setting: Number | Mapping[str, Number] | None, relation: str) -> Number | None:
    """The setting of one relation: its own, or the one for all."""
    return setting.get(relation) if isinstance(setting, Mapping) else setting


def _observe(
    truth: _Truth,
    cells: NDArray[np.int32],
    modes: tuple[Mode, ...],
    snr: float | None,
    rng: np.random.Generator,
) -> Planted:
    """Observe a truth at some cells, with Gaussian noise."""
    values = truth.at(cells)
    if snr is not None and not (isinstance(snr, float) and snr == inf):
        check_positive(snr=snr)  # None or infinity: no noise
    if snr is not None and snr != inf:
        deviation = sqrt(float(values.var(dtype=np.float64)) / snr)
        noise = _normal((values.size,), rng, values.dtype)
        noise *= deviation
        values += noise
    return Planted(SparseTensor(cells, values, modes), *truth)


def _draw_factors(
    shape: Sequence[int], ranks: Sequence[int], rng: np.random.Generator, dtype: DTypeLike
) -> tuple[Floats, ...]:
    if not isinstance(ranks, list | tuple | np.ndarray) or len(ranks) != len(shape):
        raise SettingError(f"{len(shape)} ranks of 1 or more are needed, got {shown(ranks)}")
    check_count(1, _MOST_RANK, **{f"ranks[{m}]": rank for m, rank in enumerate(ranks)})
    return tuple(_normal((n, rank), rng, dtype) for n, rank in zip(shape, ranks, strict=True))


def _draw_biases(
    shape: Sequence[int], deviation: float, rng: np.random.Generator, dtype: DTypeLike
) -> tuple[Floats, ...]:
    if not deviation:
        return ()
    return tuple(_normal((n,), rng, dtype) * deviation for n in shape)


def _normal(shape: tuple[int, ...], rng: np.random.Generator, dtype: DTypeLike) -> Floats:
    exact = np.float32 if as_precision(dtype) == np.float32 else np.float64
    return rng.standard_normal(shape, dtype=exact)


def _name_modes(shape: Sequence[int], names: Sequence[str] | None) -> tuple[Mode, ...]:
    several = isinstance(shape, list | tuple | np.ndarray) and np.ndim(shape) == 1
    if not several or len(shape) < 2 or not all(is_whole(n) and n >= 1 for n in shape):
        raise SettingError(f"a shape has two sizes or more, all above 0, got {shown(shape)}")
    chosen = [f"mode{m}" for m in range(len(shape))] if names is None else names
    _check_names("modes", chosen)
    if len(chosen) != len(shape):
        raise SettingError(f"{len(shape)} mode names are needed, got {len(chosen)}")
    return tuple(Mode(name, size) for name, size in zip(chosen, shape, strict=True))


def _check_names(what: str, names: object) -> None:
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise wrong(what, "a list of names", names)


def _check_numbers(biases: object, scale: object, shift: object) -> None:
    check_number(0, biases=biases)
    check_positive(scale=scale)
    check_number(shift=shift)


def _by_name(setting: object) -> bool:
    return isinstance(setting, Mapping) and all(isinstance(name, str) for name in setting)


def _generator(seed: int) -> np.random.Generator:
    check_seed(seed=seed)
    return np.random.default_rng(seed)


# -- which cells are observed -----------------------------------------------------------------


def sample_cells(
    shape: Sequence[int], entries: int, rng: np.random.Generator, zipf: Zipf = None
) -> NDArray[np.int32]:
    """Coordinates of distinct random cells, sorted.

    Each mode's level is drawn on its own: uniformly, or under a Zipf law. Cells that come up
    again are drawn anew.

    Parameters
    ----------
    shape : sequence of int
        Size of each mode.
    entries : int
        How many cells.
    rng : np.random.Generator
        What draws them.
    zipf : sequence of float, mapping
        As of :func:`cp`.

    Returns
    -------
    array of int32
        A row for each mode.

    Examples
    --------
    >>> import numpy as np, sfumato as sf
    >>> sf.synthetic.sample_cells((100, 50), 4, np.random.default_rng(0)).shape
    (2, 4)
    """
    cells = prod(shape)
    if not is_whole(entries) or not 1 <= entries <= cells:
        raise SettingError(f"entries must be between 1 and the {cells:,} cells, got {shown(entries)}")
    popularity = _popularity(shape, zipf, rng)
    if cells <= SMALL_GRID:
        return _sample_small(shape, entries, popularity, rng)
    return _sample_large(shape, entries, popularity, rng)


def _sample_small(
    shape: Sequence[int],
    entries: int,
    popularity: Sequence[NDArray[np.float64] | None],
    rng: np.random.Generator,
) -> NDArray[np.int32]:
    """The cells that come first in an exponential race at the speed of their popularity."""
    speeds = [np.ones(n) if p is None else p for n, p in zip(shape, popularity, strict=True)]
    arrival = rng.standard_exponential(prod(shape)) / reduce(np.multiply.outer, speeds).ravel()
    first = np.sort(np.argpartition(arrival, entries - 1)[:entries])
    return np.stack(np.unravel_index(first, tuple(shape))).astype(np.int32)


def _sample_large(
    shape: Sequence[int],
    entries: int,
    popularity: Sequence[NDArray[np.float64] | None],
    rng: np.random.Generator,
) -> NDArray[np.int32]:
    cells = np.empty((len(shape), 0), np.int32)
    # A little more than needed: where few cells come up twice, one round is enough.
    n_drawn = entries + entries // 1000 + 16
    while True:
        new = [_draw_levels(n, n_drawn, p, rng) for n, p in zip(shape, popularity, strict=True)]
        before = cells.shape[1]
        cells = _distinct(np.concatenate([cells, new], axis=1, dtype=np.int32), shape)
        missing = entries - cells.shape[1]
        if missing <= 0:
            surplus = rng.choice(cells.shape[1], -missing, replace=False)
            return np.delete(cells, surplus, axis=1)
        accepted = (cells.shape[1] - before) / n_drawn
        if accepted < LOWEST_ACCEPTANCE:
            raise SettingError(
                f"only {cells.shape[1]:,} of {entries:,} cells can be drawn: the popular ones are "
                "used up. Ask for fewer entries, or a smaller Zipf exponent"
            )
        n_drawn = min(entries, int(1.1 * missing / accepted)) + 16


def _draw_levels(
    size: int, n: int, popularity: NDArray[np.float64] | None, rng: np.random.Generator
) -> NDArray[np.int32]:
    if popularity is None:
        return rng.integers(0, size, n, dtype=np.int32)
    edges = np.cumsum(popularity)
    levels = np.searchsorted(edges, rng.random(n) * edges[-1], side="right")
    return np.asarray(np.minimum(levels, size - 1), np.int32)


def _distinct(cells: NDArray[np.int32], shape: Sequence[int]) -> NDArray[np.int32]:
    """Each cell once, sorted."""
    sort_entries(cells, None, tuple(shape), available_threads())
    is_new = np.ones(cells.shape[1], np.bool_)
    is_new[1:] = (cells[:, 1:] != cells[:, :-1]).any(axis=0)
    return cells[:, is_new]


def _popularity(
    shape: Sequence[int], zipf: Zipf, rng: np.random.Generator
) -> list[NDArray[np.float64] | None]:
    """How often each level is drawn, for the modes where it matters; in random order."""
    exponents = _exponents(len(shape), zipf)
    return [
        None if not exponent else rng.permutation(np.arange(1.0, n + 1) ** -exponent)
        for n, exponent in zip(shape, exponents, strict=True)
    ]


def _exponents(order: int, zipf: Zipf) -> list[float]:
    if isinstance(zipf, Mapping):
        given = dict(zipf)
    else:
        wanted = "exponents, one for each mode or by their position"
        given = dict(enumerate([] if zipf is None else as_list("zipf", zipf, wanted)))
    if not set(given) <= set(range(order)):
        raise SettingError(f"zipf is about modes 0 to {order - 1}, got {shown(list(given))}")
    check_number(0, _MOST_SKEW, **{f"the Zipf exponent of mode {m}": each for m, each in given.items()})
    return [float(given.get(m, 0)) for m in range(order)]


def _n_entries(shape: Sequence[int], entries: int | None, missing: float | None) -> int:
    if entries is not None and missing is None:
        return entries
    if entries is not None or missing is None:
        raise SettingError("give either entries (a number) or missing (a share of the cells)")
    check_share(True, missing=missing)
    return round((1 - missing) * prod(shape))


# -- data as ratings usually are ----------------------------------------------------------------


_MOST_RANK = 100_000
_MOST_ORDER = 30
_MOST_SKEW = 100.0  # from which on nothing is left of any level but the first
_MOST_DENSE = 2**28  # cells
_SEASON = 0.1  # how far factors of times lie from one


def typical(
    modes: Sequence[Mode],
    entries: int,
    profile: Profile | None = None,
    *,
    people: int = 0,
    half: float = 2.0,
    seed: int = 0,
) -> Planted:
    """Data that follow a profile: mean zero, variance one, cut off at plus and minus ``half``.

    Factors are standard normal, those of times lie near one. ``people`` is the mode whose levels are
    people. The bounds of the tensor are those that values are cut off at.

    Parameters
    ----------
    modes : sequence of Mode
        Those with a ``bin`` are times.
    entries : int
        How many distinct cells are observed.
    profile : Profile or None
        What data are like; the usual one by default.
    people : int
        Position of the mode whose levels are people.
    half : float
        Half the distance of the bounds.
    seed : int
        Of everything that is drawn.

    Returns
    -------
    Planted
        The entries and the truth.

    Examples
    --------
    >>> import sfumato as sf
    >>> modes = [sf.Mode("user", 50), sf.Mode("item", 20)]
    >>> sf.synthetic.typical(modes, 400, sf.Profile(biases=0.5)).tensor.bounds
    (-2.0, 2.0)
    """
    if not isinstance(modes, list | tuple) or not all(isinstance(mode, Mode) for mode in modes):
        raise wrong("modes", "a list of sfumato.Mode", modes)
    profile = Profile() if profile is None else profile
    check_kind(Profile, "a Profile", profile=profile)
    check_count(0, len(modes) - 1, people=people)
    check_positive(half=half)
    rng = _generator(seed)
    shape = [mode.size for mode in _name_modes([m.size for m in modes], [m.name for m in modes])]
    cells = sample_cells(shape, entries, rng, profile.exponents(modes, people))
    factors, biases = [], []
    spreads = np.sqrt(profile.bias_variances(modes))
    kinds = zip(modes, passing_times(modes), cells, spreads, strict=True)
    for mode, times, levels, spread in kinds:
        drawn = _normal((mode.size, profile.components + 1), rng, np.float64)
        drawn = _standardised(drawn, np.bincount(levels, minlength=mode.size))
        biases.append(spread * drawn[:, 0])
        factors.append(1 + _SEASON * drawn[:, 1:] if times else drawn[:, 1:])
    factors[0] *= np.sqrt(profile.strengths)
    truth = _Truth(tuple(factors), None, 1.0, 0.0, tuple(biases))
    values = truth.at(cells) + sqrt(profile.noise) * rng.standard_normal(entries)
    tensor = SparseTensor(cells, np.clip(values, -half, half), tuple(modes), (-half, half))
    return Planted(tensor, *truth)


def _standardised(drawn: Floats, counts: NDArray[np.int64]) -> Floats:
    """Mean zero and variance one at the observed cells: there a few popular levels matter most."""
    centred = drawn - np.average(drawn, axis=0, weights=counts)
    spread = np.sqrt(np.average(centred**2, axis=0, weights=counts))
    return np.asarray(centred / np.where(spread > 0, spread, 1.0))


# -- the data of particular studies -----------------------------------------------------------


@dataclass(frozen=True)
class WeiData:
    """A dense truth, and noisy observations of it for training and for testing.

    The study measures errors against the true values at the test cells: see :meth:`truth_at`.

    Parameters
    ----------
    truth : array
        All of its cells.
    train, test : SparseTensor
        Noisy observations.

    Examples
    --------
    >>> import sfumato as sf
    >>> data = sf.synthetic.wei("cp", size=8)
    >>> data.truth.shape, data.truth_at(data.test).size == data.test.n_entries
    ((8, 8, 8), True)
    """

    truth: NDArray[np.float64]
    train: SparseTensor
    test: SparseTensor

    def truth_at(self, tensor: SparseTensor) -> NDArray[np.float64]:
        """True values at a tensor's cells.

        Parameters
        ----------
        tensor : SparseTensor
            Whose cells are meant.

        Returns
        -------
        array
            One for each entry.
        """
        values: NDArray[np.float64] = self.truth[tuple(tensor.coordinates)]
        return values


def wei(
    kind: Literal["cp", "tucker"],
    *,
    size: int = 20,
    rank: int = 3,
    missing: float = 0.5,
    scaling: Literal["magnitude", "minmax"] = "magnitude",
    order: int = 3,
    seed: int = 0,
) -> WeiData:
    """Synthetic data of the study of private tensor completion (paper W).

    CP has standard normal factors with unit columns; Tucker orthonormal columns and a standard
    normal core. The truth is divided by its largest magnitude, or mapped to [0, 1]; noise has the
    same power: the mean square of the truth, taken about its mean if it is mapped to [0, 1], where
    zero is arbitrary. Of the observed cells, 80% are for training.

    Parameters
    ----------
    kind : {'cp', 'tucker'}
        Of the truth.
    size : int
        Of every mode.
    rank : int
        In every mode.
    missing : float
        Share of the cells that is not observed.
    scaling : {'magnitude', 'minmax'}
        "magnitude" or "minmax": see above.
    order : int
        Number of modes.
    seed : int
        Of everything that is drawn.

    Returns
    -------
    WeiData
        The truth, and observations of it.

    Examples
    --------
    >>> import sfumato as sf
    >>> data = sf.synthetic.wei("tucker", size=10, missing=0.4)
    >>> data.train.n_entries, data.test.n_entries
    (480, 120)
    """
    check_choice(("cp", "tucker"), kind=kind)
    check_choice(("magnitude", "minmax"), scaling=scaling)
    check_count(1, _MOST_RANK, size=size, rank=rank)
    check_count(2, _MOST_ORDER, order=order)
    if max(size, rank) ** order > _MOST_DENSE:
        raise SettingError(
            f"this makes all of its cells at once: {size}^{order} of them, and a core of {rank}^{order} "
            f"are too many, {_MOST_DENSE:,} at most"
        )
    shape = (size,) * order
    modes, rng = _name_modes(shape, None), _generator(seed)
    truth = _dense_truth(kind, shape, rank, rng)
    if scaling == "magnitude":
        truth /= np.abs(truth).max()
        power = np.mean(truth**2)
    else:
        truth = (truth - truth.min()) / (truth.max() - truth.min())
        power = np.var(truth)
    noisy = truth + rng.standard_normal(shape) * np.sqrt(power)
    observed = rng.permutation(truth.size)[truth.size - _n_entries(shape, None, missing) :]
    parts = np.split(observed, [int(0.8 * observed.size)])
    train, test = (
        SparseTensor(np.stack(np.unravel_index(part, shape)), noisy.ravel()[part], modes)
        for part in parts
    )
    return WeiData(truth, train, test)


def _dense_truth(
    kind: str, shape: tuple[int, ...], rank: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """The tensor of normalised random factors, all of its cells."""
    drawn = [rng.standard_normal((n, rank)) for n in shape]
    if kind == "cp":
        core = np.zeros((rank,) * len(shape))
        core[(np.arange(rank),) * len(shape)] = 1.0
        factors = [factor / np.linalg.norm(factor, axis=0) for factor in drawn]
    else:
        factors = [np.linalg.qr(factor).Q for factor in drawn]
        core = rng.standard_normal((rank,) * len(shape))
    # Each step uses up the core's first axis and appends the factor's levels as the last.
    return reduce(lambda left, factor: np.tensordot(left, factor, (0, 1)), factors, core)


def ratings_like(
    n_users: int = 600, n_items: int = 400, n_days: int = 60, entries: int = 80_000, seed: int = 0
) -> SparseTensor:
    """Invented ratings from 1 to 5 of items by users on days, with labels like a real table's.

    Users and items differ in level and in popularity. Users' tastes for three kinds of items come
    and go with the days, so that a low-rank fit explains clearly more than biases do.

    Parameters
    ----------
    n_users, n_items, n_days : int
        How many there are.
    entries : int
        How many ratings.
    seed : int
        Of everything that is drawn.

    Returns
    -------
    SparseTensor
        With bounds from 1 to 5.

    Examples
    --------
    >>> import sfumato as sf
    >>> sf.synthetic.ratings_like(30, 20, 5, entries=400)
    SparseTensor(user 30 x item 20 x day 5; 400 entries, density 0.133, float64,
        values in [1, 5])
    """
    shape = (n_users, n_items, n_days)
    check_count(1, MAX_ENTRIES, n_users=n_users, n_items=n_items, n_days=n_days, entries=entries)
    rng = _generator(seed)
    seasons = 1.0 + 0.8 * np.sin(
        2 * np.pi * (np.arange(n_days)[:, None] / n_days * (1.0, 2.0, 3.0) + rng.random(3))
    )
    factors = (rng.standard_normal((n_users, 3)), rng.standard_normal((n_items, 3)), seasons)
    biases = tuple(rng.standard_normal(n) * s for n, s in zip(shape, (1.2, 1.5, 0.3), strict=True))
    truth = _Truth(factors, None, 0.3, 3.5, biases)
    cells = sample_cells(shape, entries, rng, zipf=(0.4, 0.6, 0.0))
    noisy = truth.at(cells) + 0.82 * rng.standard_normal(entries)
    dates = np.datetime64("1998-04-01") + np.arange(n_days)
    modes = (
        Mode("user", n_users, _numbered("u", n_users)),
        Mode("item", n_items, _numbered("i", n_items)),
        Mode("day", n_days, dates.astype(str).astype(object), bin="day"),
    )
    return SparseTensor(cells, np.clip(np.rint(noisy), 1.0, 5.0), modes, (1.0, 5.0))


def _numbered(prefix: str, n: int) -> NDArray[Any]:
    """Labels from 1 on, padded so that their alphabetical order is their numerical order."""
    width = max(3, len(str(n)))
    return np.array([f"{prefix}{i:0{width}d}" for i in range(1, n + 1)], dtype=object)
