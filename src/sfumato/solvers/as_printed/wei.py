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
from typing import Any, ClassVar

import numpy as np

from sfumato.checks import as_pair, check_kind, check_positive
from sfumato.data.tensor import SparseTensor, find_mode
from sfumato.errors import SettingError
from sfumato.kernels.numba.sequential import Perturbation
from sfumato.kernels.numba.vector_noise import rowwise_noise
from sfumato.models.multilinear import Multilinear
from sfumato.privacy.clipping import check_range, clip_values
from sfumato.privacy.ledger import Charge, Draw
from sfumato.privacy.mechanisms import Laplace, PurePass
from sfumato.privacy.units import Value
from sfumato.sites.memory import Site
from sfumato.solvers.gradient.passes import State as Descending
from sfumato.solvers.gradient.sequential import SequentialSGD
from sfumato.solvers.protocol import Info, PublicShape


@dataclass(frozen=True)
class _Paper:
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

    def check(self, shape: PublicShape) -> None:
        check_positive(noise=self.noise)
        check_kind(SequentialSGD, "a SequentialSGD", descent=self.descent)
        self.descent.check(shape)
        if shape.bounds is not None:
            check_range(*shape.bounds)
        if shape.unit is not None and not isinstance(shape.unit, Value):
            raise SettingError(
                "the paper's analyses are about one observed value: use the unit 'value', or the "
                "proven analysis"
            )
        if shape.local is not None:
            raise SettingError("the paper releases every factor: no mode can stay with its owners")

    def assumes(self, shape: PublicShape) -> tuple[str, ...]:  # noqa: ARG002
        return ("the paper's proof, which does not hold", "neither mean nor biases are fitted")

    def init(self, seed: int, shape: PublicShape) -> Descending:
        """The descent as it starts: no moments are asked for, since there is no mean."""
        self.check(shape)
        plain = replace(shape, fit_mean=False, fit_biases=False)
        return replace(self.descent.init(seed, plain), done=0)

    def own_prior(self, state: Any) -> None:
        """Nothing: every row is released."""


# -- Algorithm 1 ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _OnNoisyValues:
    """The descent, and the released values that it descends on."""

    descending: Descending
    values: Site | None = None


@dataclass(frozen=True)
class PaperInput(_Paper):
    """Algorithm 1: Laplace noise on every observed value, then ordinary completion.

    1, 2.  x' = x + Laplace((x_max - x_min) / epsilon)
    3.     complete x' by descent

    ``x_min`` and ``x_max`` are the shape's public bounds. Where it has none they are the data's own,
    as printed, which leaks them. ``clamp`` is the paper's optional fixed range of the noisy values.
    """

    clamp: tuple[float, float] | None = None

    name: ClassVar[str] = "input perturbation as printed by Wei et al."

    def check(self, shape: PublicShape) -> None:
        super().check(shape)
        if self.clamp is not None:
            check_range(*as_pair("clamp", self.clamp, "two numbers, the lower one first"))

    def assumes(self, shape: PublicShape) -> tuple[str, ...]:
        given = () if shape.bounds else ("the least and the largest value are public",)
        return ("neither mean nor biases are fitted", *given)

    def charges(self, shape: PublicShape) -> tuple[Charge, ...]:  # noqa: ARG002
        return (
            Charge(
                "every value, once (claimed: paper W, Algorithm 1)", Laplace(self.noise, single=True)
            ),
        )

    def rounds(self, shape: PublicShape) -> int:  # noqa: ARG002
        return 1 + self.descent.passes

    def init(self, seed: int, shape: PublicShape) -> _OnNoisyValues:  # type: ignore[override]
        return _OnNoisyValues(super().init(seed, shape))

    def ask(self, state: _OnNoisyValues) -> PublicShape:
        return state.descending.shape

    def answer(self, query: PublicShape, site: Site, draw: Draw) -> SparseTensor:
        values = site.tensor.values
        low, high = query.bounds or (float(values.min()), float(values.max()))
        if low == high:  # one value everywhere: any range serves, and the mechanism needs one
            high = low + 1.0
        noisy = draw.release(clip_values(values, low, high)).values
        if self.clamp is not None:
            noisy = np.clip(noisy, *self.clamp)
        return site.tensor.with_values(noisy.astype(values.dtype))

    def update(
        self, state: _OnNoisyValues, released: SparseTensor | None
    ) -> tuple[_OnNoisyValues, Info]:
        if released is not None:
            return replace(state, values=Site(released, 1)), Info(0)
        assert state.values is not None
        query = self.descent.ask(state.descending)
        following, info = self.descent.update(state.descending, self.descent.answer(query, state.values))
        return replace(state, descending=following), info

    def finish(self, state: _OnNoisyValues) -> Multilinear:
        return self.descent.finish(state.descending)


# -- Algorithms 2 and 3: the descent itself sees the data -----------------------------------------


@dataclass(frozen=True)
class _PaperDescent(_Paper):
    """A whole descent in one answer, with one mode's gradient clipped to ``clip``."""

    mode: str | None = None
    clip: float = 0.1

    def check(self, shape: PublicShape) -> None:
        super().check(shape)
        self.noisy_mode(shape)
        if not (isinstance(self.clip, float) and self.clip == inf):  # infinite: not clipped
            check_positive(clip=self.clip)

    def noisy_mode(self, shape: PublicShape) -> int:
        """The mode that gets noise: by default the last, as in the paper."""
        return len(shape.modes) - 1 if self.mode is None else find_mode(shape.modes, self.mode)

    def rounds(self, shape: PublicShape) -> int:  # noqa: ARG002
        return 1

    def ask(self, state: Descending) -> Descending:
        return state

    def descend(
        self, start: Descending, site: Site, scale: float, stream: np.random.Generator
    ) -> tuple[Descending, float]:
        """All passes, and the largest norm of the chosen mode's clipped gradients."""
        state, largest = start, 0.0
        mode = self.noisy_mode(start.shape)
        perturbation = Perturbation(mode, start.model.ranks[mode], float(self.clip), scale)
        for _ in range(self.descent.passes):
            query = self.descent.ask(state)
            result, met = self.descent.perturbed_pass(query, site, perturbation, stream)  # type: ignore[arg-type]
            state, largest = self.descent.update(state, result)[0], max(largest, met)
        return state, largest

    def update(self, state: Descending, released: Descending) -> tuple[Descending, Info]:  # noqa: ARG002
        return released, Info(released.done)

    def finish(self, state: Descending) -> Multilinear:
        return self.descent.finish(state)


@dataclass(frozen=True)
class PaperGradient(_PaperDescent):
    """Algorithm 2: descent entry by entry, noise on one mode's gradient.

    4, 5.  plain steps of the other modes' rows
    6.     gradient of the chosen row / max(1, its norm / m),  m = ``clip``
    7, 8.  its step, with noise of density proportional to exp(-epsilon |n| / (2 m))
    9.     a plain step of the core

    The gradient that is clipped holds the penalty's part as well, as printed. Departure: where the
    chosen mode is not the last, the modes after it are updated after it, in their order.
    """

    name: ClassVar[str] = "gradient perturbation as printed by Wei et al."

    def check(self, shape: PublicShape) -> None:
        super().check(shape)
        if not isfinite(self.clip):
            raise SettingError("noise on gradients needs a finite clipping constant")

    def charges(self, shape: PublicShape) -> tuple[Charge, ...]:  # noqa: ARG002
        label = f"{self.descent.passes} passes (claimed: paper W, Algorithm 2)"
        return (Charge(label, PurePass(self.epsilon)),)

    def answer(self, query: Descending, site: Site, draw: Draw) -> Descending:
        return self.descend(query, site, 2 * self.clip / self.epsilon, draw.stream())[0]


@dataclass(frozen=True)
class PaperOutput(_PaperDescent):
    """Algorithm 3: descent, then noise on every row of one mode.

    1.     descent
    2, 3.  row + noise of density proportional to exp(-epsilon |n| / (2 tau L eta))

    with tau passes of step eta. L is not printed: here the largest norm of the chosen mode's gradient
    that was met, gradients being clipped to ``clip`` as in Algorithm 2 (infinite: not clipped). It is
    a figure of the data.
    """

    name: ClassVar[str] = "output perturbation as printed by Wei et al."

    def charges(self, shape: PublicShape) -> tuple[Charge, ...]:  # noqa: ARG002
        label = "every row of one mode (claimed: paper W, Algorithm 3)"
        return (Charge(label, PurePass(self.epsilon)),)

    def answer(self, query: Descending, site: Site, draw: Draw) -> Descending:
        stream = draw.stream()
        state, lipschitz = self.descend(query, site, 0.0, stream)
        return self.perturbed(state, lipschitz, stream)

    def perturbed(self, state: Descending, lipschitz: float, stream: np.random.Generator) -> Descending:
        """Steps 2 and 3, in place; ``lipschitz`` is the L that the descent has met."""
        reach = 2 * self.descent.passes * lipschitz * self.descent.step
        rows = state.model.factors[self.noisy_mode(state.shape)]
        rows += rowwise_noise(rows.shape, reach / self.epsilon, stream)
        return state
