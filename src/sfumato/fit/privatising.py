"""``sf.privatise``: values are noised where they are, before anything leaves their owner.

Nobody has to be trusted: whoever collects what leaves fits a model that knows the channel
(:mod:`sfumato.solvers.behind`). It is one draw on each value, planned, charged and promised like those
of every private fit. Which channel lets most through follows from public numbers alone.
Proof: ``proofs/input.md``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise
from math import prod
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from sfumato.checks import (
    as_pair,
    check_choice,
    check_count,
    check_kind,
    check_positive,
    check_seed,
    given,
    wrong,
)
from sfumato.data import prepare
from sfumato.data.channels import Additive, Geometric, Response
from sfumato.data.privatised import Passed, Privatised
from sfumato.data.tensor import Mode, SparseTensor, check_bounds, check_tensor
from sfumato.errors import DataError, SettingError
from sfumato.fit.admit import with_public_labels
from sfumato.fit.plan import PrivatePlan, Promise
from sfumato.privacy.budgets import Budget
from sfumato.privacy.caveats import warn_of
from sfumato.privacy.clipping import check_range
from sfumato.privacy.entropy import SECRET, Entropy, Sampler
from sfumato.privacy.ledger import Charge, Ledger
from sfumato.privacy.mechanisms import Gaussian, Mechanism, RandomisedResponse
from sfumato.privacy.mechanisms import Geometric as GeometricNoise
from sfumato.privacy.passing import cut_for
from sfumato.privacy.units import CountEvent, Entry, Public, Unit, UnitValues, Value
from sfumato.records import record
from sfumato.solvers.behind.evidence import Located
from sfumato.solvers.private.input.placing import (
    Setting,
    anywhere,
    best_channel,
    efficiency,
    even_response,
)
from sfumato.surface import setting
from sfumato.types import Array

Law = Literal["response", "geometric", "gaussian"]
ChannelName = Literal["auto", "response", "geometric", "gaussian"]
LocalUnit = Value | CountEvent | UnitValues | Entry | Unit
PROOF = "proofs/input.md"
NOBODY = (
    "nobody: values are privatised by whoever holds them, before they leave, and nothing else leaves"
)
_MOST_CELLS = 1 << 24  # of a grid, all of which are written
_FEW_LEVELS = 6  # steps between bounds, up to which values are taken to lie about their middle
_WHOLE = 1e-9  # steps by which a value may miss a whole number of them
_UNTYPICAL = 0.5  # error of what is said to be typical, in spreads
_LAWS: dict[str, str] = {
    "response": "randomised response",
    "geometric": "two-sided geometric noise",
    "gaussian": "Gaussian noise",
}


@record
@dataclass(frozen=True)
class Privatisation:
    """What a value will pass: everything but the values.

    Parameters
    ----------
    unit : what is protected.
    law : of the channel.
    bounds : what values are clipped to; None for counts of which one event is protected.
    step : their public distance from each other.
    changing : values of one unit, all of which may change.
    typical : where values are expected to lie; it plays no part in what is promised.
    """

    unit: LocalUnit
    law: Law
    bounds: tuple[float, float] | None
    step: float
    changing: int = 1
    typical: Located | None = None
    noise: float = 1.0

    rounds: ClassVar[int] = 1
    units: ClassVar[int | None] = None

    def check(self) -> None:
        check_positive(noise=self.noise)

    def with_noise(self, noise: float) -> Privatisation:
        return replace(self, noise=noise)

    @property
    def channel(self) -> Response | Geometric | Additive:
        """The law of what leaves, for each value."""
        if self.law == "geometric":
            low, high = (0.0, None) if self.bounds is None else self.bounds
            return Geometric(low, high, self.step, self.noise * self._change)
        if self.law == "response" and self._anywhere:
            return even_response(self._setting())
        return best_channel(self._setting(), (self.law,))

    @property
    def _anywhere(self) -> bool:
        """Whether values may lie anywhere within the bounds: few levels are about where values are."""
        if self.typical is not None or self.bounds is None:
            return False
        return (self.bounds[1] - self.bounds[0]) / self.step >= _FEW_LEVELS

    @property
    def _change(self) -> float:
        """In steps, of all values of a unit together."""
        if isinstance(self.unit, CountEvent) or self.bounds is None:
            return 1.0
        return self.changing * float(round((self.bounds[1] - self.bounds[0]) / self.step))

    def _setting(self) -> Setting:
        bounds, noise = self.bounds or (0.0, self.step), self.noise
        values = self.changing if self.law == "gaussian" else 1
        return Setting(bounds, noise, step=self.step, values=values, known=self.typical)

    @property
    def passes(self) -> float:
        """Share of the information about an entry's mean that is expected to be left."""
        channel = self.channel
        if self.bounds is None:
            return 1.0
        setting = self._setting()._replace(values=1)
        return (anywhere if self._anywhere else efficiency)(channel, setting)

    @property
    def mechanism(self) -> Mechanism:
        if self.law == "geometric":
            return GeometricNoise(self.noise)
        if self.law == "gaussian":
            return Gaussian(self.noise)
        channel = self.channel
        assert isinstance(channel, Response)
        return RandomisedResponse(1 / self.noise, channel.categories, self.changing)

    @property
    def charges(self) -> tuple[Charge, ...]:
        return (Charge("values", self.mechanism),)

    @property
    def in_words(self) -> str:
        return f"every value by {self.channel_in_words}"

    @property
    def channel_in_words(self) -> str:
        law, channel = _LAWS[self.law], self.channel
        if isinstance(channel, Response):
            return f"{law} on {channel.categories} bins"
        scale = channel.scale * (channel.step if isinstance(channel, Geometric) else 1.0)
        return f"{law} of scale {scale:.3g}"

    @property
    def settings_in_words(self) -> tuple[str, ...]:
        if self.bounds is None:
            return ()
        return (f"{self.passes:.2g} of what a value tells of its mean is expected to be left",)

    @property
    def promise(self) -> Promise:
        unit = self.unit
        assumptions = [f"that values are {self.step:g} apart is public"]
        if self.bounds is not None:
            assumptions.insert(0, "the bounds of the values are public, not taken from the data")
        if not unit.hides_presence:
            assumptions.append("which cells have an entry, and how many there are, is public")
        if isinstance(unit, Unit | UnitValues):
            assumptions.append(f"no two levels of {unit.mode} belong to the same one")
        return Promise(
            unit=str(unit),
            neighbours=unit.neighbours,
            cap=self.changing if isinstance(unit, Unit | UnitValues) else None,
            released=("a noisy value of every cell" if unit.hides_presence else "noisy values",),
            method="local privacy",
            proven=True,
            proof=PROOF,
            exact=True,
            assumptions=tuple(assumptions),
            trust=NOBODY,
        )

    def cut(self, values: Array) -> Any:
        """What the mechanism takes, with its bound."""
        events = isinstance(self.unit, CountEvent)
        return cut_for(self.channel, values, self.bounds, changing=self.changing, events=events)

    @property
    def passed(self) -> Passed:
        channel = self.channel
        answers = _answers(channel, self) if isinstance(channel, Response) else ()
        return Passed(channel, self.bounds, self.step, answers)


def _answers(channel: Response, task: Privatisation) -> tuple[float, ...]:
    """The number that stands for a bin: the middle of the values in it."""
    low, high = task.bounds or (0.0, task.step)
    edges = [low - task.step / 2, *channel.cuts, high + task.step / 2]
    return tuple((one + next_one) / 2 for one, next_one in pairwise(edges))


# -- what a caller asks for -----------------------------------------------------------------------


def plan_privatising(
    budget: Budget,
    unit: LocalUnit,
    bounds: tuple[float, float] | None,
    step: float,
    *,
    changing: int = 1,
    channel: ChannelName = "auto",
    typical: tuple[float, float] | None = None,
) -> PrivatePlan[Privatisation]:
    """The plan, calibrated: with the channel asked for, or the one that lets most through."""
    located = None
    if typical is not None:
        mean, spread = as_pair("typical", typical, "a mean and a spread that values are known to have")
        check_positive(**{"the spread that is typical": spread})
        located = Located(float(mean), float(spread), _UNTYPICAL * spread, _UNTYPICAL)
    plans = [
        PrivatePlan(Privatisation(unit, law, bounds, step, changing, located), budget).calibrated()
        for law in _possible(unit, budget, channel, changing)
    ]
    return max(plans, key=lambda plan: plan.task.passes)


def _possible(unit: LocalUnit, budget: Budget, channel: str, changing: int) -> Sequence[Law]:
    """The laws that a unit and a budget allow."""
    check_choice(get_args(ChannelName), channel=channel)
    if isinstance(unit, CountEvent):
        possible: list[Law] = ["geometric"]
    else:
        possible = ["response", "geometric"]
        if changing > 1 and not budget.pure:
            possible.append("gaussian")
    if channel == "auto":
        return possible
    if channel not in possible:
        why = {
            "response": "one event is protected by geometric noise",
            "gaussian": "Gaussian noise is for several values of one unit, and needs a delta",
        }
        raise SettingError(f"{setting('channel', channel)} does not go here: {why[channel]}")
    return [channel]


def privatise(
    data: SparseTensor,
    epsilon: float,
    delta: float = 0.0,
    *,
    unit: str | LocalUnit = "value",
    bounds: tuple[float, float] | None = None,
    step: float | None = None,
    max_entries: int | None = None,
    channel: ChannelName = "auto",
    typical: tuple[float, float] | None = None,
    grid: Mapping[str, Sequence[Any]] | bool = False,
    duplicates: prepare.DuplicatePolicy = "error",
    key: bytes | None = None,
    ledger: str | os.PathLike[str] | None = None,
    limit: Budget | None = None,
    seed: int | None = None,
    sampler: Sampler = "sfumato",
) -> Privatised:
    """Values with noise of their own, which may leave whoever holds them.

    Parameters
    ----------
    data : SparseTensor
        The entries. Which cells have one is public, unless a ``grid`` hides it.
    epsilon, delta : float
        What one unit may be told by. A delta is of use only where a unit has many values.
    unit : str or unit
        "value" (one value, replaced by any other within the bounds), "event" (a count becomes one
        larger or smaller), or the name of a mode: all values of one user, say.
    bounds : pair of float or None
        The lowest and the highest value possible, public; by default those of the data's own
        ``bounds``. Values beyond are clipped. Events need none.
    step : float or None
        The public distance of values from each other; 1 by default, and then they have to be whole.
    max_entries : int or None
        Of a mode's unit, how many entries of one level leave; a random choice where it has more.
    channel : str
        "response", "geometric", "gaussian", or "auto": the one that lets most through.
    typical : pair of float or None
        A mean and a spread that everyone knows values to have about; the channel is chosen for it.
    grid : mapping or bool
        Declares all cells of these labels, by mode, to be possible, and a cell without an entry to
        be zero: every cell gets a noisy value, so that nobody sees which have an entry. ``True`` for
        the labels that the data have.
    duplicates : str
        What to do with several entries at one cell.
    key : bytes or None
        32 secret bytes (:func:`sfumato.new_noise_key`): the same entries, settings and key give the
        noise again that they gave before, and are charged once.
    ledger, limit
        As of :class:`Privacy`.
    seed : int or None
        For experiments: the result is marked as not private.
    sampler : str
        Who draws exact noise, as of :class:`Privacy`.

    Returns
    -------
    Privatised
        The entries with what their values have passed.

    Examples
    --------
    >>> import sfumato as sf
    >>> noisy = sf.privatise(sf.synthetic.ratings_like(30, 20, 5, 400), epsilon=3)
    >>> print(noisy.passed[0].in_words)
    randomised response among 1, 2, 3, 4, 5: the truth with probability 0.834
    """
    check_tensor(data)
    check_seed(**given(seed=seed))
    Entropy(seed, sampler, _secret(key, b""))  # bad ones are refused before anything is planned
    budget = Budget(epsilon, delta)
    tensor = _gridded(prepare.merge_duplicates(data, duplicates), grid)
    hides = grid is not False
    local_unit, changing = _unit(unit, tensor.modes, max_entries, hides)
    limits = _limits(local_unit, data.bounds if bounds is None else bounds, hides)
    spacing = _spacing(step, limits)
    plan = plan_privatising(
        budget, local_unit, limits, spacing, changing=changing, channel=channel, typical=typical
    )
    _check_steps(tensor, spacing, limits, step)
    if isinstance(local_unit, UnitValues):
        tensor = prepare.cap(tensor, local_unit.mode, changing)
    warn_of(plan.caveats)
    secret = _secret(key, _digest(tensor, plan.task))
    entropy = Entropy(seed, sampler, secret)
    book = Ledger(local_unit, limit, ledger) if ledger is not None else Ledger(local_unit, budget)
    # Under the name that a key gives to these entries they are charged once; it tells nothing of either.
    run = "" if secret is None else f"privatised {sha256(b'name' + secret).hexdigest()[:32]}"
    with book.reserve(plan.charges, entropy, run=run) as reservation:
        noisy = reservation.ask(lambda draw: draw.release(plan.task.cut(tensor.values)))
    promise, passed = plan.guarantee(book, entropy), plan.task.passed
    return Privatised(_written(tensor, plan.task, noisy.values), (passed,), None, (promise.to_json(),))


def _secret(key: bytes | None, digest: bytes) -> bytes | None:
    """What the noise of these entries and settings follows from, under a key; None without one."""
    if key is None:
        return None
    if not isinstance(key, bytes) or len(key) != SECRET:
        raise wrong("key", f"{SECRET} secret bytes, such as sfumato.new_noise_key() makes", "others")
    return sha256(b"sfumato privatise" + key + digest).digest()


def new_noise_key() -> bytes:
    """A key for :func:`privatise`: keep it as secret as the data.

    Returns
    -------
    bytes
        32 of them, drawn by the system.

    Examples
    --------
    >>> import sfumato as sf
    >>> key, ratings = sf.new_noise_key(), sf.synthetic.ratings_like(30, 20, 5, 400)
    >>> first, second = (
    ...     sf.privatise(ratings, epsilon=3, key=key) for _ in range(2)
    ... )
    >>> bool((first.tensor.values == second.tensor.values).all())
    True
    """
    return os.urandom(SECRET)


def _written(tensor: SparseTensor, task: Privatisation, released: Array) -> SparseTensor:
    channel = task.channel
    if isinstance(channel, Geometric):  # counted in steps from the lowest value
        return tensor.with_values(channel.low + channel.step * released.astype(np.float64))
    return tensor.with_values(task.passed.written(released).astype(np.float64))


def _unit(
    unit: str | LocalUnit, modes: Sequence[Mode], max_entries: int | None, hides: bool
) -> tuple[LocalUnit, int]:
    """The unit, and how many of its values are written."""
    names = [mode.name for mode in modes]
    check_kind(str | LocalUnit, "value, event, or the name of a mode", unit=unit)
    if isinstance(unit, str) and unit in ("value", "event") and unit in names:
        raise SettingError(f"{unit!r} is a unit and the name of a mode: rename the mode")
    check_count(**given(max_entries=max_entries))
    known: dict[str, LocalUnit] = {"value": Value(), "event": CountEvent()}
    if isinstance(unit, str) and unit in known:
        unit = known[unit]
    if isinstance(unit, Value | CountEvent | Entry):
        if max_entries is not None:
            raise SettingError(f"{setting('max_entries')} is for all values of a level, not for {unit}")
        if hides and isinstance(unit, CountEvent):
            return unit, 1  # a cell without an entry is a count of zero
        return (Entry() if hides or isinstance(unit, Entry) else unit), 1
    name = unit if isinstance(unit, str) else unit.mode
    if name not in names:
        raise SettingError(
            f"{name!r} is no unit: there are value, event, and the modes {', '.join(names)}"
        )
    if hides:
        cells = prod(mode.size for mode in modes if mode.name != name)
        return Unit(name), cells
    most = max_entries or (unit.max_entries if isinstance(unit, UnitValues) else None)
    if most is None:
        raise SettingError(
            f"say how many values of one {name} leave at most: {setting('max_entries')}. The budget is "
            "divided among them"
        )
    return UnitValues(name, most), most


def _limits(
    unit: LocalUnit, bounds: tuple[float, float] | None, hides: bool
) -> tuple[float, float] | None:
    limits = check_bounds(bounds)
    if limits is None:
        if isinstance(unit, CountEvent):
            return None
        raise SettingError(
            f"say between which numbers values can lie: {setting('bounds')}. These have to be public, "
            "not those of the data at hand"
        )
    check_range(*limits)
    if hides and not limits[0] <= 0 <= limits[1]:
        raise SettingError(
            f"on a grid a cell without an entry is zero, which bounds of {limits[0]:g} and "
            f"{limits[1]:g} leave out: widen them"
        )
    return limits


def _spacing(step: float | None, limits: tuple[float, float] | None) -> float:
    spacing = 1.0 if step is None else float(step)
    check_positive(step=spacing)
    if limits is not None:
        steps = (limits[1] - limits[0]) / spacing
        if round(steps) < 1 or abs(steps - round(steps)) > 1e-6:
            raise SettingError(
                f"a step of {spacing:g} does not lead from {limits[0]:g} to {limits[1]:g}: give the "
                f"distance of values from each other, {setting('step')}"
            )
    return spacing


def _check_steps(
    tensor: SparseTensor, step: float, limits: tuple[float, float] | None, given: float | None
) -> None:
    """Refuse values between steps where no step was given: rounding them is for the caller to say.

    Who privatises holds the data, and nothing has left: an error may tell of them.
    """
    if np.isnan(tensor.values).any():
        raise DataError("some values are missing (NaN): leave their rows out")
    places = (tensor.values - (limits[0] if limits else 0.0)) / step
    if given is None and (np.abs(places - np.rint(places)) > _WHOLE * np.abs(places) + _WHOLE).any():
        raise DataError(
            f"some values are not whole numbers: say how far apart they are, {setting('step')}; they "
            "are rounded to the nearest"
        )


def _gridded(tensor: SparseTensor, grid: Mapping[str, Sequence[Any]] | bool) -> SparseTensor:
    """All cells of declared labels, with zeros where there was no entry."""
    if grid is False:
        return tensor
    check_kind(Mapping | bool, "labels by mode, or True for those that the data have", grid=grid)
    if grid is not True:
        unknown = sorted(set(grid) - set(tensor.mode_names), key=str)
        if unknown:
            raise SettingError(f"the grid names {unknown}, but the modes are {tensor.mode_names}")
        tensor = with_public_labels(tensor, Public(labels=dict(grid)))
    shape = tensor.shape
    if prod(shape) > _MOST_CELLS:
        raise SettingError(
            f"the grid has {prod(shape):,} cells, and at most {_MOST_CELLS:,} are written"
        )
    values = np.zeros(prod(shape))
    values[np.ravel_multi_index(tuple(tensor.coordinates), shape)] = tensor.values
    cells = np.indices(shape, np.int32).reshape(len(shape), -1)
    return SparseTensor(cells, values, tensor.modes, tensor.bounds, _checked=True)


def _digest(tensor: SparseTensor, task: Privatisation) -> bytes:
    """Of entries and settings: what noise of a key is for."""
    digest = sha256(repr(task).encode())
    for mode in tensor.modes:
        labels = range(mode.size) if mode.labels is None else mode.labels.tolist()
        digest.update(repr((mode.name, mode.bin, list(map(str, labels)))).encode())
    digest.update(np.ascontiguousarray(tensor.coordinates, "<i4").tobytes())
    digest.update(np.ascontiguousarray(tensor.values, "<f8").tobytes())
    return digest.digest()
