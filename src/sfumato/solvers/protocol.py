"""What every solver is: four functions over explicit state, and settings that only store.

    init(seed, shape)            -> state              never sees data
    ask(state)                   -> query              carries the model
    answer(query, site)          -> statistics         at the data
    update(state, statistics)    -> (state, info)      sees statistics only

A private solver clips and adds noise in its answer, by the right to draw that it is handed:

    answer(query, site, draw)    -> released           at the data; all that leaves it

so that everything after it is post-processing. It lists its draws beforehand (``charges``), and the
least noise that its budget covers is found from that list.

The loop that calls them lies in ``sfumato.fit``. A state belongs to the loop that made it: ``update``
may write into the arrays of the state that it is given and hand them on. A query's answer may be a
whole pass over the data by a fused kernel, where going entry by entry through Python would be slow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np

from sfumato.checks import MOST_SIZE, check_kind, check_number, wrong
from sfumato.data.tensor import Mode
from sfumato.errors import SettingError, SfumatoError
from sfumato.models.multilinear import Multilinear
from sfumato.privacy.ledger import Charge, Draw
from sfumato.privacy.units import PrivacyUnit
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.own_rows import OwnPrior

MOST_MEAN = 1000.0  # of a prior in a private fit, where all that is summed has bounds
MakeModel = Callable[[Sequence[int], Any], Multilinear]


class DivergedError(SfumatoError, ArithmeticError):
    """A fit whose parameters left the range of floating-point numbers."""


@dataclass(frozen=True)
class PublicShape:
    """What a solver may know before it sees data: the modes, and what kind of model to make.

    The second half is for private fits: the unit of privacy, the public bounds of the values, how
    many entries there are and how far they spread where that is public, and ``local``, the mode whose
    rows stay with their owners instead of being released. Sizes are public too: ``admit`` sees to it.
    """

    modes: tuple[Mode, ...]
    make_model: MakeModel
    dtype: Any = np.float64
    fit_mean: bool = True
    fit_biases: bool = True
    threads: int = 1
    unit: PrivacyUnit | None = None
    bounds: tuple[float, float] | None = None
    entries: int | None = None
    spread: float | None = None
    local: int | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(mode.size for mode in self.modes)

    def per_mode(self, setting: float | Mapping[str, float], what: str, rest: float) -> list[float]:
        """A setting given as one number, or as a mapping from mode names (``rest`` elsewhere)."""
        if not isinstance(setting, Mapping):
            check_number(**{what: setting})
            return [float(setting)] * len(self.modes)
        unknown = set(setting) - {mode.name for mode in self.modes}
        if unknown:
            names = ", ".join(mode.name for mode in self.modes)
            raise SettingError(f"{what} names {sorted(unknown, key=str)}, but the modes are {names}")
        check_number(**{f"{what} of {name}": number for name, number in setting.items()})
        return [float(setting.get(mode.name, rest)) for mode in self.modes]

    def prior_means(self, given: Mapping[str, float] | None, most: float = MOST_SIZE) -> list[float]:
        """What each mode's factor shrinks towards: one for a time mode, zero for the others.

        A mode that shrinks to one drops out of the product, so that with little data a tensor with
        times falls back to the tensor without them. ``most`` is how large they may be.
        """
        usual = {mode.name: 1.0 if mode.bin else 0.0 for mode in self.modes}
        if given is not None:
            check_kind(Mapping, "numbers by the names of modes", prior_mean=given)
        means = self.per_mode({**usual, **(given or {})}, "prior_mean", 0.0)
        check_number(-most, most, **{f"prior_mean[{m}]": mean for m, mean in enumerate(means)})
        return means


@dataclass(frozen=True)
class Info:
    """What a person wants to see of an update. ``completed`` counts finished sweeps or passes.

    ``objective`` is what the solver lowers, where that is not the squared error.
    """

    completed: int
    train_rmse: float | None = None
    noise: float | None = None
    objective: float | None = None


State = TypeVar("State")


class Solver(Protocol[State]):
    """The four functions, with the number of times that the loop is to call them."""

    name: ClassVar[str]

    def rounds(self, shape: PublicShape) -> int: ...

    def init(self, seed: int, shape: PublicShape) -> State: ...

    def ask(self, state: State) -> Any: ...

    def answer(self, query: Any, site: Site) -> Any: ...

    def update(self, state: State, statistics: Any) -> tuple[State, Info]: ...

    def finish(self, state: State) -> Multilinear: ...


class PrivateSolver(Protocol[State]):
    """A solver whose answers are private.

    ``noise`` scales all its noise at once: the larger, the less its charges cost. ``proof`` names the
    note that proves what is released (or says why a paper's claim does not hold: ``proven`` is then
    False), ``assumes`` what has to be true beside it. ``exact`` says whether all noise comes from
    exact samplers; noise drawn inside kernels is idealised arithmetic.
    """

    name: ClassVar[str]
    proof: ClassVar[str]
    proven: ClassVar[bool]
    exact: ClassVar[bool]

    @property
    def noise(self) -> float: ...

    def check(self, shape: PublicShape) -> None:
        """Raise a ``SettingError`` for what this solver cannot do; never sees data."""

    def charges(self, shape: PublicShape) -> tuple[Charge, ...]:
        """The draws, one for each of the first rounds."""

    def rounds(self, shape: PublicShape) -> int:
        """Rounds of the loop; those after the charges are post-processing: ``update(state, None)``."""

    def assumes(self, shape: PublicShape) -> tuple[str, ...]:
        """What the guarantee rests on, beside public bounds and labels."""

    def init(self, seed: int, shape: PublicShape) -> State: ...

    def ask(self, state: State) -> Any: ...

    def answer(self, query: Any, site: Site, draw: Draw) -> Any: ...

    def update(self, state: State, released: Any) -> tuple[State, Info]: ...

    def finish(self, state: State) -> Multilinear:
        """The released model; rows of a local mode are zero."""

    def own_prior(self, state: State) -> OwnPrior | None:
        """How owners solve their own rows; None where no rows stay with them, or none are solved.

        It is written into the release: a function of what was released and of public numbers alone.
        """


_PARTS = ("name", "rounds", "init", "ask", "answer", "update", "finish")
_PRIVATE_PARTS = (
    *_PARTS,
    "noise",
    "proof",
    "proven",
    "exact",
    "check",
    "charges",
    "assumes",
    "own_prior",
)


def check_solver(name: str, solver: object, *, private: bool = False) -> None:
    """A setting that has to be a record with a solver's functions."""
    parts = _PRIVATE_PARTS if private else _PARTS
    made = not isinstance(solver, type) and (is_dataclass(solver) or not private)
    if not made or not all(hasattr(solver, part) for part in parts):
        example = "sfumato.PrivateBiases()" if private else "sfumato.ALS(sweeps=20)"
        raise wrong(name, f"a solver by name or as a record, such as {example}", solver)


class MomentsQuery(NamedTuple):
    """Ask for the values' moments: the first question of every solver."""


@dataclass(frozen=True)
class Moments:
    """Count, sum and sum of squared differences from the mean of the values."""

    count: int
    mean: float
    variance: float


def moments(site: Site) -> Moments:
    """The values' moments, summed in float64."""
    values = site.tensor.values
    mean = float(values.mean(dtype=np.float64))
    # In pieces: squaring all values at once would need another array of their size in float64.
    squares = sum(
        float(np.square(values[i : i + 65536] - mean, dtype=np.float64).sum())
        for i in range(0, values.shape[0], 65536)
    )
    return Moments(values.shape[0], mean, squares / values.shape[0])


def start_generator(seed: int) -> np.random.Generator:
    """Random numbers of a start, in a stream of their own.

    Planted data made with the same seed must not share them, or a fit would start at the truth.
    """
    return np.random.default_rng([seed, 0x5F0A70])


def random_start(model: Multilinear, prior_means: Sequence[float], scale: float, seed: int) -> None:
    """Fill the factors with their prior means plus normal numbers; the data play no part."""
    generator = start_generator(seed)
    for factor, mean in zip(model.factors, prior_means, strict=True):
        factor[:] = mean + scale * generator.standard_normal(factor.shape)
    free = model.free_core
    free[:] = generator.standard_normal(free.shape)
