"""What every solver is: four functions over explicit state, and queries that answer themselves.

    solver.init(run, shape)             -> state              never sees data
    solver.ask(state)                   -> query              plain data, the parameters in it
    query.answer(site)                  -> statistics         at the data
    solver.update(state, statistics)    -> (state, info)      sees statistics only
    solver.finish(state)                -> Finished

A private solver is made for facts instead of a shape. It lists its draws beforehand (``charges``), and
the least noise that its budget covers is found from that list. Its queries are of three types, which say
what may be done with their answers:

- :class:`SumQuery`: clipped numbers that add up over several holders of data;
- :class:`WholeQuery`: clipped numbers of one holder's data, which do not;
- :class:`NoisyQuery`: a kernel that draws the noise itself, by the right to draw that it is handed.

All that leaves the data is what a draw made of it, so that everything after it is post-processing.

The loop that calls all this is :mod:`sfumato.fit.loop`. A state belongs to the loop that made it:
``update`` may write into the arrays of the state that it is given and hand them on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from sfumato.checks import wrong
from sfumato.errors import SfumatoError
from sfumato.models.doubts import Doubts, Errors
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_means import OwnMeans
from sfumato.models.own_prior import OwnPrior
from sfumato.models.protocol import Model
from sfumato.models.told import Told
from sfumato.privacy.budgets import ZCDP, Budget
from sfumato.privacy.clipping import Clipped
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Charge, Draw
from sfumato.records import record
from sfumato.sites.memory import Site

MOST_MEAN = 1000.0  # of a prior in a private fit, where all that is summed has bounds


class DivergedError(SfumatoError, ArithmeticError):
    """A fit whose parameters left the range of floating-point numbers."""


@record
@dataclass(frozen=True)
class Run:
    """How a fit is carried out: the seed of its start, and threads for what is done with answers."""

    seed: int = 0
    threads: int = 1


@record
@dataclass(frozen=True)
class Info:
    """What a person wants to see of an update. ``completed`` counts finished sweeps or passes.

    ``objective`` is what the solver lowers, where that is not the squared error.
    """

    completed: int
    train_rmse: float | None = None
    noise: float | None = None
    objective: float | None = None


_Model_co = TypeVar("_Model_co", bound=Model, covariant=True)


@dataclass(frozen=True, eq=False)
class Finished(Generic[_Model_co]):
    """What a solver has made.

    ``posterior`` is what a Bayesian solver knows beyond the model. ``own_prior`` is how owners solve
    their own rows, which are zero in the model; it is part of a release, a function of what was released
    and of public numbers alone. ``own_means`` is how owners find, from their entries in other relations,
    what is expected of their rows. ``doubts`` is what a private solver knows of its own errors, where it
    does, and ``errors`` what intervals are made of, where they were asked for: both are released. So is
    ``told``, what an update goes on from, where a solver has it.
    """

    model: _Model_co
    posterior: Model | None = None
    own_prior: OwnPrior | None = None
    own_means: OwnMeans | None = None
    doubts: Doubts | None = None
    errors: Errors | None = None
    told: Told | None = None


# -- queries --------------------------------------------------------------------------------------


class Query(Protocol):
    """A question of an open fit. Statistics of several holders may be added where they have a ``+``."""

    def answer(self, site: Any) -> Any: ...


@runtime_checkable
class PartQuery(Protocol):
    """A question about some levels alone, to which a holder of data may have nothing to add but zeros.

    Who is not concerned need not be asked where somebody else is. A question that ``follows`` another
    differs from it in its ``part`` alone, so far as answers go: who has the other needs no more than
    that.
    """

    @property
    def part(self) -> Any: ...

    def about(self, part: Any) -> PartQuery: ...

    def follows(self, before: Any) -> bool: ...

    def concerns(self, site: Any) -> bool: ...

    def answer(self, site: Any) -> Any: ...


class ChainQuery(ABC):
    """A question whose answers follow on each other instead of adding up.

    One holder of data goes on from where another has ended, so that no two can work at a time. In which
    order they come is public.
    """

    @abstractmethod
    def answer(self, site: Any) -> Any:
        """What one holder makes of the question."""

    @abstractmethod
    def order(self, holders: int) -> Sequence[int]:
        """In which order so many holders are asked."""

    @abstractmethod
    def after(self, answer: Any) -> ChainQuery:
        """What the next holder is asked, once this is answered."""

    @abstractmethod
    def joined(self, before: Any, answer: Any) -> Any:
        """The answers of those before and of the next one as one."""


class SumQuery(ABC):
    """A private question whose answers add up over the holders of data."""

    @abstractmethod
    def clipped(self, site: Any) -> Clipped:
        """Numbers with how much one unit can change them; at the data."""


class WholeQuery(ABC):
    """A private question that one holder of data answers for itself."""

    @abstractmethod
    def clipped(self, site: Any) -> Clipped:
        """Numbers with how much one unit can change them; at the data."""


class NoisyQuery(ABC):
    """A private question that a kernel answers which adds noise as it goes."""

    @abstractmethod
    def noisy(self, site: Any, draw: Draw) -> Any:
        """What is released; at the data."""


PrivateQuery = SumQuery | WholeQuery | NoisyQuery


# -- solvers --------------------------------------------------------------------------------------

State = TypeVar("State")
_Shape_contra = TypeVar("_Shape_contra", contravariant=True)


class Solver(Protocol[State, _Shape_contra]):
    """An open solver, of a single tensor or of several that share modes.

    ``rounds`` is how often it asks at most; ``tolerance`` when to stop before, where data may say so.
    """

    name: ClassVar[str]

    @property
    def tolerance(self) -> float | None:
        """By how little a round has to gain for the fit to stop; None goes on to the end."""

    def check(self, shape: _Shape_contra) -> None:
        """Raise a ``SettingError`` for what this solver cannot do; never sees data."""

    def rounds(self, shape: _Shape_contra) -> int:
        """How often it asks at most."""

    def init(self, run: Run, shape: _Shape_contra) -> State:
        """Where a fit begins; never sees data."""

    def ask(self, state: State) -> Query:
        """The next question."""

    def update(self, state: State, statistics: Any) -> tuple[State, Info]:
        """The state after an answer, and what a person wants to see of it."""

    def finish(self, state: State) -> Finished[Any]:
        """What was made."""


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
    always_fits: ClassVar[tuple[str, ...]]  # "mean", "biases", where it fits them asked for or not

    @property
    def exact(self) -> bool:
        """Whether all noise comes from exact samplers."""

    @property
    def noise(self) -> float:
        """What scales all noise."""

    def check(self, facts: Facts) -> None:
        """Raise a ``SettingError`` for what this solver cannot do; never sees data."""

    def charges(self, facts: Facts) -> tuple[Charge, ...]:
        """The draws, one for each of the first rounds."""

    def rounds(self, facts: Facts) -> int:
        """Rounds of the loop; those after the charges are post-processing: ``update(state, None)``."""

    def assumes(self, facts: Facts) -> tuple[str, ...]:
        """What the guarantee rests on, beside public bounds and labels."""

    def in_words(self, facts: Facts) -> tuple[str, ...]:
        """Settings that a person may want to know."""

    def adds_up(self, facts: Facts) -> bool:
        """Whether it asks for sums alone, so that several sites can answer."""

    def init(self, run: Run, facts: Facts) -> State:
        """Where a fit begins; never sees data."""

    def ask(self, state: State) -> PrivateQuery:
        """The next question."""

    def update(self, state: State, released: Any) -> tuple[State, Info]:
        """The state after what was released, and what a person wants to see of it."""

    def finish(self, state: State) -> Finished[Multilinear]:
        """What was made."""


@dataclass(frozen=True)
class Wish:
    """What a caller has asked of a private method beside the facts.

    ``law`` is that of the noise, "auto" where the method may choose; ``step`` the public distance of the
    values from each other, where they have one.
    """

    budget: Budget | ZCDP
    law: str = "auto"
    step: float | None = None


class Silent:
    """A private solver that asks for sums, assumes nothing, has nothing to say, and fits what it is
    asked to.
    """

    always_fits: ClassVar[tuple[str, ...]] = ()
    knows_doubts: ClassVar[bool] = False  # whether it finishes with ``doubts``

    def assumes(self, facts: Facts) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def in_words(self, facts: Facts) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def adds_up(self, facts: Facts) -> bool:  # noqa: ARG002
        return True


_PARTS = ("name", "rounds", "init", "ask", "update", "finish", "check", "tolerance")
_PRIVATE_PARTS = (
    *("name", "rounds", "init", "ask", "update", "finish", "check"),
    *("noise", "proof", "proven", "exact", "always_fits", "charges", "assumes", "in_words"),
)


def check_solver(name: str, solver: object, *, private: bool = False) -> None:
    """A setting that has to be a record with a solver's functions."""
    parts = _PRIVATE_PARTS if private else _PARTS
    made = not isinstance(solver, type) and (is_dataclass(solver) or not private)
    if not made or not all(hasattr(solver, part) for part in parts):
        example = "sfumato.PrivateBiases()" if private else "sfumato.ALS(sweeps=20)"
        raise wrong(name, f"a solver by name or as a record, such as {example}", solver)


# -- what many solvers begin with -----------------------------------------------------------------


@record
@dataclass(frozen=True)
class Moments:
    """Count, mean and variance of the values."""

    count: int
    mean: float
    variance: float

    def __add__(self, other: Moments) -> Moments:
        count = self.count + other.count
        share = other.count / count
        apart = other.mean - self.mean
        mean = self.mean + share * apart
        variance = (1 - share) * self.variance + share * other.variance + share * (1 - share) * apart**2
        return Moments(count, mean, variance)


@record
@dataclass(frozen=True)
class MomentsQuery:
    """Ask for the values' moments: the first question of most solvers."""

    def answer(self, site: Site) -> Moments:
        """Summed in float64."""
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
