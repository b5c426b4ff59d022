"""The three perturbations as Wei, Li, Mao and Wang print them (paper W), for reproduction.

Their epsilons are *claimed*: ``proofs/paper-w.md`` says where each proof fails, and which proven
method takes its place. A run is charged once, at the epsilon that the paper claims for the whole of
it, whatever the number of passes; the charge's label says that it is a claim.

Departures from the paper, in all three: any order, not three; any mode may be the noisy one (the
paper's is the last). As in the paper there is neither a mean nor a bias, whatever the shape asks for.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import ClassVar

import numpy as np

from sfumato.checks import as_pair, check_kind, check_positive
from sfumato.data.tensor import SparseTensor, find_mode
from sfumato.errors import SettingError
from sfumato.kernels.numba.sequential import Perturbation
from sfumato.kernels.numba.vector_noise import rowwise_noise
from sfumato.models.multilinear import Multilinear
from sfumato.models.shape import Shape
from sfumato.privacy.clipping import Clipped, check_range, clip_from_middle
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Charge, Draw
from sfumato.privacy.mechanisms import Laplace, Noisy, PurePass
from sfumato.privacy.units import Value
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.gradient.passes import State as Descending
from sfumato.solvers.gradient.sequential import SequentialSGD
from sfumato.solvers.protocol import Finished, Info, NoisyQuery, Run, Silent, WholeQuery


@dataclass(frozen=True)
class _Paper(Silent):
    """What the three share: the paper's descent, and a claimed epsilon of ``1 / noise``."""

    descent: SequentialSGD = field(default_factory=SequentialSGD)
    noise: float = 1.0

    proof: ClassVar[str] = "see proofs/paper-w.md"
    proven: ClassVar[bool] = False
    exact: ClassVar[bool] = False

    @property
    def epsilon(self) -> float:
        """What the paper says that a run costs."""
        return 1 / self.noise

    def check(self, facts: Facts) -> None:
        check_positive(noise=self.noise)
        check_kind(SequentialSGD, "a SequentialSGD", descent=self.descent)
        self.descent.check(facts.shape)
        if not isinstance(facts.unit, Value):
            raise SettingError(
                "the paper's analyses are about one observed value: use the unit 'value', or the "
                "proven analysis"
            )
        if facts.local is not None:
            raise SettingError("the paper releases every factor: no mode can stay with its owners")

    def adds_up(self, facts: Facts) -> bool:  # noqa: ARG002
        return False

    def assumes(self, facts: Facts) -> tuple[str, ...]:  # noqa: ARG002
        return ("the paper's proof, which does not hold", "neither mean nor biases are fitted")

    def _started(self, run: Run, facts: Facts) -> Descending:
        """The descent as it starts: no moments are asked for, since there is no mean."""
        self.check(facts)
        plain = replace(facts.shape, fit_mean=False, fit_biases=False)
        return replace(self.descent.init(run, plain), done=0)


# -- Algorithm 1 ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _OnNoisyValues:
    """The descent, and the released values that it descends on."""

    facts: Facts
    descending: Descending
    values: Site | None = None


@record
@dataclass(frozen=True)
class ValuesQuery(WholeQuery):
    """Ask for every value, within the public bounds; where they were observed is public."""

    bounds: tuple[float, float]

    def clipped(self, site: Site) -> Clipped:
        kept = clip_from_middle(site.tensor.values, *self.bounds)
        return replace(kept, public=(np.asarray(site.tensor.coordinates),))


@record
@dataclass(frozen=True)
class PaperInput(_Paper):
    """Algorithm 1: Laplace noise on every observed value, then ordinary completion.

    .. code-block:: text

        1, 2.  x' = x + Laplace((x_max - x_min) / epsilon)
        3.     complete x' by descent

    ``x_min`` and ``x_max`` are the public bounds; as printed they are the data's own, which leaks them.

    Parameters
    ----------
    descent : SequentialSGD
        The paper's descent, with its settings.
    noise : float
        One over the claimed epsilon.
    clamp : pair of float or None
        The paper's optional fixed range of the noisy values.

    Examples
    --------
    >>> import sfumato as sf
    >>> modes = [sf.Mode("user", 1000), sf.Mode("item", 200)]
    >>> privacy = sf.Privacy(
    ...     3, unit="value", analysis="paper", method=sf.PaperInput()
    ... )
    >>> plan = sf.CP(rank=2, privacy=privacy).plan(
    ...     modes, bounds=(1, 5), entries=50_000
    ... )
    >>> print(plan.explain())
    user 1,000 x item 200: CP of rank 2 with a mean and biases, float64; input
        perturbation as printed by Wei et al., within epsilon 3 for one observed
        value.
      1 x every value, once (claimed: paper W, Algorithm 1): Laplace, noise
          multiplier 0.333
    """

    clamp: tuple[float, float] | None = None

    name: ClassVar[str] = "input perturbation as printed by Wei et al."

    def check(self, facts: Facts) -> None:
        super().check(facts)
        if self.clamp is not None:
            check_range(*as_pair("clamp", self.clamp, "two numbers, the lower one first"))

    def assumes(self, facts: Facts) -> tuple[str, ...]:  # noqa: ARG002
        return ("neither mean nor biases are fitted",)

    def charges(self, facts: Facts) -> tuple[Charge, ...]:  # noqa: ARG002
        return (
            Charge(
                "every value, once (claimed: paper W, Algorithm 1)", Laplace(self.noise, single=True)
            ),
        )

    def rounds(self, facts: Facts) -> int:  # noqa: ARG002
        return 1 + self.descent.passes

    def init(self, run: Run, facts: Facts) -> _OnNoisyValues:
        return _OnNoisyValues(facts, self._started(run, facts))

    def ask(self, state: _OnNoisyValues) -> ValuesQuery:
        return ValuesQuery(state.facts.bounds)

    def update(self, state: _OnNoisyValues, released: Noisy | None) -> tuple[_OnNoisyValues, Info]:
        if released is not None:
            return replace(state, values=self._values(state.facts, released)), Info(0)
        if state.values is None:
            raise SettingError("the first round has to be answered by the data")
        query = self.descent.ask(state.descending)
        following, info = self.descent.update(state.descending, query.answer(state.values))
        return replace(state, descending=following), info

    def _values(self, facts: Facts, released: Noisy) -> Site:
        noisy = released.values + facts.middle
        if self.clamp is not None:
            noisy = np.clip(noisy, *self.clamp)
        cells = released.public[0]
        tensor = SparseTensor(cells, noisy.astype(facts.shape.dtype), facts.modes, _checked=True)
        return Site(tensor, 1)

    def finish(self, state: _OnNoisyValues) -> Finished[Multilinear]:
        return self.descent.finish(state.descending)


# -- Algorithms 2 and 3: the descent itself sees the data -----------------------------------------


@record
@dataclass(frozen=True)
class Descended:
    """The model after a whole descent, and passes behind it."""

    model: Multilinear
    done: int


@record
@dataclass(frozen=True)
class DescentQuery(NoisyQuery):
    """Make a whole descent with one mode's gradient clipped, and noise in it or on its rows.

    ``scale`` is that of noise on gradients. Noise on rows follows from ``row_epsilon`` and the largest
    norm of gradients that was met; None for no such noise.
    """

    descent: SequentialSGD
    shape: Shape
    model: Multilinear
    seed: int
    mode: int
    clip: float
    scale: float
    row_epsilon: float | None

    def noisy(self, site: Site, draw: Draw) -> Descended:
        stream = draw.stream()
        state, largest = self.descended(site, stream)
        self.perturb(state.model, largest, stream)
        return Descended(state.model, state.done)

    def perturb(self, model: Multilinear, lipschitz: float, stream: np.random.Generator) -> None:
        """Noise on the rows, in place; ``lipschitz`` is the L that the descent has met."""
        if self.row_epsilon is not None:
            rows = model.factors[self.mode]
            reach = 2 * self.descent.passes * lipschitz * self.descent.step
            rows += rowwise_noise(rows.shape, reach / self.row_epsilon, stream)

    def descended(self, site: Site, stream: np.random.Generator) -> tuple[Descending, float]:
        """All passes, and the largest norm of the chosen mode's clipped gradients."""
        state, largest = Descending(self.shape, self.model.copy(), self.seed, done=0), 0.0
        rank = self.model.ranks[self.mode]
        perturbation = Perturbation(self.mode, rank, float(self.clip), self.scale)
        for _ in range(self.descent.passes):
            query = self.descent.pass_query(state)
            result, met = self.descent.perturbed_pass(query, site, perturbation, stream)
            state, largest = self.descent.update(state, result)[0], max(largest, met)
        return state, largest


@dataclass(frozen=True)
class _PaperDescent(_Paper):
    """A whole descent in one answer, with one mode's gradient clipped to ``clip``."""

    mode: str | None = None
    clip: float = 0.1

    def check(self, facts: Facts) -> None:
        super().check(facts)
        self.noisy_mode(facts.shape)
        if not (isinstance(self.clip, float) and self.clip == inf):  # infinite: not clipped
            check_positive(clip=self.clip)

    def noisy_mode(self, shape: Shape) -> int:
        """The mode that gets noise: by default the last, as in the paper."""
        return len(shape.modes) - 1 if self.mode is None else find_mode(shape.modes, self.mode)

    def rounds(self, facts: Facts) -> int:  # noqa: ARG002
        return 1

    def init(self, run: Run, facts: Facts) -> Descending:
        return self._started(run, facts)

    def query(self, state: Descending, scale: float, row_epsilon: float | None) -> DescentQuery:
        """What is asked once, of a descent with this much noise."""
        mode = self.noisy_mode(state.shape)
        start = (self.descent, state.shape, state.model, state.seed)
        return DescentQuery(*start, mode, self.clip, scale, row_epsilon)

    def update(self, state: Descending, released: Descended) -> tuple[Descending, Info]:
        return replace(state, model=released.model, done=released.done), Info(released.done)

    def finish(self, state: Descending) -> Finished[Multilinear]:
        return self.descent.finish(state)


@record
@dataclass(frozen=True)
class PaperGradient(_PaperDescent):
    """Algorithm 2: descent entry by entry, noise on one mode's gradient.

    .. code-block:: text

        4, 5.  plain steps of the other modes' rows
        6.     gradient of the chosen row / max(1, its norm / m),  m = clip
        7, 8.  its step, with noise of density proportional to exp(-epsilon |n| / (2 m))
        9.     a plain step of the core

    The gradient that is clipped holds the penalty's part as well, as printed. Departure: where the
    chosen mode is not the last, the modes after it are updated after it, in their order.

    Parameters
    ----------
    descent : SequentialSGD
        The paper's descent, with its settings.
    noise : float
        One over the claimed epsilon.
    mode : str or None
        That gets noise; by default the last, as in the paper.
    clip : float
        m: norm to which gradients are cut.

    Examples
    --------
    >>> import sfumato as sf
    >>> modes = [sf.Mode("user", 1000), sf.Mode("item", 200)]
    >>> privacy = sf.Privacy(
    ...     3, unit="value", analysis="paper", method=sf.PaperGradient()
    ... )
    >>> plan = sf.CP(rank=2, privacy=privacy).plan(
    ...     modes, bounds=(1, 5), entries=50_000
    ... )
    >>> print(plan.explain())
    user 1,000 x item 200: CP of rank 2 with a mean and biases, float64; gradient
        perturbation as printed by Wei et al., within epsilon 3 for one observed
        value.
      1 x 100 passes (claimed: paper W, Algorithm 2): Pure Pass, epsilon 3
    """

    name: ClassVar[str] = "gradient perturbation as printed by Wei et al."

    def check(self, facts: Facts) -> None:
        super().check(facts)
        if not isfinite(self.clip):
            raise SettingError("noise on gradients needs a finite clipping constant")

    def charges(self, facts: Facts) -> tuple[Charge, ...]:  # noqa: ARG002
        label = f"{self.descent.passes} passes (claimed: paper W, Algorithm 2)"
        return (Charge(label, PurePass(self.epsilon)),)

    def ask(self, state: Descending) -> DescentQuery:
        return self.query(state, 2 * self.clip / self.epsilon, None)


@record
@dataclass(frozen=True)
class PaperOutput(_PaperDescent):
    """Algorithm 3: descent, then noise on every row of one mode.

    .. code-block:: text

        1.     descent
        2, 3.  row + noise of density proportional to exp(-epsilon |n| / (2 tau L eta))

    with tau passes of step eta. L is not printed: here the largest norm of the chosen mode's gradient
    that was met, gradients being clipped to ``clip`` as in Algorithm 2 (infinite: not clipped). It is
    a figure of the data.

    Parameters
    ----------
    descent : SequentialSGD
        The paper's descent, with its settings.
    noise : float
        One over the claimed epsilon.
    mode : str or None
        That gets noise; by default the last, as in the paper.
    clip : float
        Norm to which gradients are cut.

    Examples
    --------
    >>> import sfumato as sf
    >>> modes = [sf.Mode("user", 1000), sf.Mode("item", 200)]
    >>> privacy = sf.Privacy(
    ...     3, unit="value", analysis="paper", method=sf.PaperOutput()
    ... )
    >>> plan = sf.CP(rank=2, privacy=privacy).plan(
    ...     modes, bounds=(1, 5), entries=50_000
    ... )
    >>> print(plan.explain())
    user 1,000 x item 200: CP of rank 2 with a mean and biases, float64; output
        perturbation as printed by Wei et al., within epsilon 3 for one observed
        value.
      1 x every row of one mode (claimed: paper W, Algorithm 3): Pure Pass,
          epsilon 3
    """

    name: ClassVar[str] = "output perturbation as printed by Wei et al."

    def charges(self, facts: Facts) -> tuple[Charge, ...]:  # noqa: ARG002
        label = "every row of one mode (claimed: paper W, Algorithm 3)"
        return (Charge(label, PurePass(self.epsilon)),)

    def ask(self, state: Descending) -> DescentQuery:
        return self.query(state, 0.0, self.epsilon)
