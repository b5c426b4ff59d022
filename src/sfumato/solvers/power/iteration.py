"""The tensor power method: components of a low-rank tensor, one after the other.

Y. Wang and A. Anandkumar, "Online and differentially-private tensor decomposition", Algorithms 1 to 3.
For every component ``restarts`` random directions u, the columns of one matrix, go through

    u <- T(I, u, ..., u) / |T(I, u, ..., u)|        ``iterations`` times,
    weight = T(u, ..., u)                           once more,

and the direction with the largest weight is kept. What was found before is taken off every answer, so
that the tensor itself never changes (step 6 of Algorithm 1, step 7 of Algorithm 2). The method only asks
for T(I, u, ..., u): a tensor, a stream of samples or a private mechanism answers.

    begin(settings, seed)        -> state
    ask(state)                   -> query      directions, and what is wanted
    update(state, answer)        -> state      post-processing of the answer

Departures from the paper: directions and weights are those of the same vector (Algorithm 2 as printed
weighs the last iterate but one); step 7 of Algorithm 2 deflates by the iterate that went into the power
step; an asymmetric tensor is taken as the symmetric one that holds it in its blocks, and each block is
normalised by itself, since their common length would swing for ever; any order from 3 on. Where every
answer has noise of its own, the answers of the last half of the iterations are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import DataError
from sfumato.models.components import Components
from sfumato.privacy.mechanisms import Noisy
from sfumato.records import record
from sfumato.solvers.protocol import Info, Run, start_generator
from sfumato.types import Array

_ALIKE = 0.8  # cosine from which directions count as the same component
_WITHIN_NOISE = 4.0  # deviations by which weights of one component may differ


@record
@dataclass(frozen=True)
class PowerSettings:
    """What the method does, but for the data.

    Parameters
    ----------
    sizes : number of levels; of an asymmetric tensor those of every mode. With whitening the size of
        the space that samples are in: the method itself then works in as many dimensions as components.
    order : of the tensor.
    components, restarts, iterations : how many.
    subspace : rounds that look for the space of the components in the second moment, to whiten it;
        0 for no whitening.
    average : whether answers have noise of their own, and are averaged.
    """

    sizes: tuple[int, ...]
    order: int
    components: int
    restarts: int
    iterations: int
    subspace: int = 0
    average: bool = False

    @property
    def symmetric(self) -> bool:
        return len(self.sizes) == 1

    @property
    def rounds(self) -> int:
        """Questions that will be asked."""
        return self.subspace + self.components * (self.iterations + 1)

    @property
    def blocks(self) -> list[slice]:
        """Rows of a direction that belong to each mode."""
        sizes = (self.components,) if self.subspace else self.sizes
        return [slice(a, b) for a, b in pairwise(np.cumsum([0, *sizes]).tolist())]


Kind = Literal["second moment", "directions", "weights"]


@record
@dataclass(frozen=True, eq=False)
class Query:
    """What is asked of the data, for each column u of ``directions``.

    - "directions": T(I, u, ..., u), a column; of an asymmetric tensor a block of it for each mode;
    - "weights": T(u, ..., u), a number;
    - "second moment": M u, a column.

    Where there is a ``basis``, the tensor is T(basis, ..., basis).
    """

    kind: Kind
    directions: Array
    basis: Array | None = None


@record
@dataclass(frozen=True, eq=False)
class Whitening:
    """``basis`` makes components orthogonal; ``inverse`` takes vectors back."""

    basis: Array
    inverse: Array


@dataclass(frozen=True, eq=False)
class PowerState:
    """Where the method is: what was found, and the directions of the component that is looked for."""

    settings: PowerSettings
    seed: int
    answered: int
    directions: Array
    sums: Array  # of the answers of the last half of the iterations, by their precision
    weights: Array
    found: Array
    weight_noise: Array
    whitening: Whitening | None = None

    @property
    def done(self) -> bool:
        return self.answered == self.settings.rounds

    @property
    def step(self) -> int:
        """Iterations that the component looked for has behind it; negative while whitening."""
        left = self.answered - self.settings.subspace
        return left if left < 0 else left % (self.settings.iterations + 1)


def begin(settings: PowerSettings, seed: int, whitening: Whitening | None = None) -> PowerState:
    """The state before any question; ``whitening`` is that of a tensor that was whitened beforehand."""
    size = settings.blocks[-1].stop
    state = PowerState(
        settings,
        seed,
        0,
        np.empty(0),
        np.empty(0),
        np.empty(0),
        np.empty((0, size)),
        np.empty(0),
        whitening,
    )
    if not settings.subspace:
        return _next_component(state)
    random = start_generator(seed).standard_normal((settings.sizes[0], settings.components))
    return replace(state, directions=np.linalg.qr(random).Q)


def ask(state: PowerState) -> Query:
    """The next question."""
    if state.step < 0:
        return Query("second moment", state.directions)
    basis = None if state.whitening is None else state.whitening.basis
    kind: Kind = "directions" if state.step < state.settings.iterations else "weights"
    return Query(kind, state.directions, basis)


def update(state: PowerState, answer: Noisy) -> PowerState:
    """The state after the answer to the last question."""
    next_state = replace(state, answered=state.answered + 1)
    if state.step < 0:
        return _subspace_step(next_state, answer)
    if state.step < state.settings.iterations:
        return _power_step(next_state, state.step, answer)
    return _choose(next_state, answer)


def components(state: PowerState) -> Components:
    """What was found so far, taken back from whitening."""
    settings = state.settings
    weights, found = state.weights, state.found
    if state.whitening is not None:
        found = found @ state.whitening.inverse.T
        length = np.linalg.norm(found, axis=1)
        weights = weights * length**settings.order
        found = found / np.where(length > 0, length, 1.0)[:, None]
        return Components(weights, (found,), settings.order)
    return Components(weights, tuple(found[:, block] for block in settings.blocks), settings.order)


def weight_deviations(state: PowerState) -> Array:
    """Standard deviation of the noise in each weight of :func:`components`."""
    if state.whitening is None:
        return state.weight_noise
    length = np.linalg.norm(state.found @ state.whitening.inverse.T, axis=1)
    deviation: Array = state.weight_noise * length**state.settings.order
    return deviation


@record
@dataclass(frozen=True)
class PowerIteration:
    """The method as a solver, which the loop goes round with."""

    settings: PowerSettings

    def init(self, run: Run, whitening: Whitening | None = None) -> PowerState:
        return begin(self.settings, run.seed, whitening)

    def ask(self, state: PowerState) -> Query:
        return ask(state)

    def update(self, state: PowerState, answer: Noisy) -> tuple[PowerState, Info]:
        state = update(state, answer)
        return state, Info(len(state.weights))


# -- whitening ------------------------------------------------------------------------------------


def _subspace_step(state: PowerState, answer: Noisy) -> PowerState:
    """Orthogonal iteration for the space of the second moment; at its end the whitening."""
    if state.step < 0:
        return replace(state, directions=np.linalg.qr(answer.values).Q)
    basis = state.directions
    small = basis.T @ answer.values
    # Noise of an eigenvalue is about this large: smaller ones are noise, and would be blown up.
    floor = 2 * answer.deviation * np.sqrt(basis.shape[1])
    whitening = whiten((small + small.T) / 2, floor)
    whole = Whitening(basis @ whitening.basis, basis @ whitening.inverse)
    return _next_component(replace(state, whitening=whole))


def whiten(moment: Array, floor: float = 0.0) -> Whitening:
    """The whitening of a positive definite matrix; eigenvalues below ``floor`` are lifted to it."""
    values, vectors = np.linalg.eigh(moment)
    least = max(floor, float(values[-1]) * 1e-12)
    if not least > 0:
        raise RankError("the second moment has no positive eigenvalue")
    if not floor and values[0] < least:
        rank = int((values >= least).sum())
        raise RankError(f"the second moment has rank {rank}, below the {len(values)} components")
    scale = np.sqrt(np.maximum(values, least))
    return Whitening(vectors / scale, vectors * scale)


class RankError(DataError):
    """Data that do not have as many components as were asked for."""


# -- one component --------------------------------------------------------------------------------


def _next_component(state: PowerState) -> PowerState:
    """Directions drawn anew, uniformly on the unit sphere (step 3 of Algorithm 1)."""
    settings = state.settings
    if state.done:
        return state
    generator = start_generator(state.seed + 7919 * (1 + len(state.weights)))
    drawn = generator.standard_normal((settings.blocks[-1].stop, settings.restarts))
    directions = _normalised(settings, drawn, drawn)
    return replace(state, directions=directions, sums=np.zeros_like(directions))


def _power_step(state: PowerState, step: int, answer: Noisy) -> PowerState:
    """Steps 4 and 6 of Algorithm 1: what was found is taken off, and the rest normalised."""
    settings = state.settings
    power = answer.values - _deflation(state)
    sums = state.sums
    if settings.average and 2 * (step + 1) > settings.iterations:
        aligned = power * _signs(settings, sums, power)  # even orders may change sign at every step
        sums = sums + aligned / (answer.deviation**2 or 1.0)
        if step + 1 == settings.iterations:
            power = sums
    return replace(state, directions=_normalised(settings, power, state.directions), sums=sums)


def _deflation(state: PowerState) -> Array:
    """T(I, u, ..., u) of the components found so far, for every direction u."""
    settings, found = state.settings, state.found
    cosines = np.stack([found[:, block] @ state.directions[block] for block in settings.blocks])
    if settings.symmetric:
        rest = cosines ** (settings.order - 1)
    else:
        others = ~np.eye(len(cosines), dtype=bool)
        rest = np.stack([cosines[other].prod(axis=0) for other in others])
    parts = [
        found[:, block].T @ (state.weights[:, None] * product)
        for block, product in zip(settings.blocks, rest, strict=True)
    ]
    return np.concatenate(parts)


def _choose(state: PowerState, answer: Noisy) -> PowerState:
    """Step 5 of Algorithm 1: the direction with the largest weight is the component."""
    settings, directions = state.settings, state.directions
    cosines = [state.found[:, block] @ directions[block] for block in settings.blocks]
    weights = answer.values - state.weights @ _product(settings, cosines)
    odd = settings.symmetric and settings.order % 2 == 1
    best = int(np.argmax(weights if odd else np.abs(weights)))
    vector, weight, deviation = directions[:, best], float(weights[best]), answer.deviation
    if settings.average:
        same, signs = _alike(settings, directions, best)
        aligned = weights * _product(settings, [signs[block.start] for block in settings.blocks])
        if answer.deviation:  # a restart that came late is still on its way, and weighs less
            same &= np.abs(aligned - weight) <= _WITHIN_NOISE * answer.deviation
        total = (state.sums * signs)[:, same].sum(axis=1, keepdims=True)
        vector = _normalised(settings, total, vector[:, None])[:, 0]
        weight, deviation = float(aligned[same].mean()), deviation / np.sqrt(same.sum())
    if not settings.symmetric and weight < 0:  # a sign belongs to any one of the vectors
        vector = vector.copy()
        vector[settings.blocks[0]] *= -1
        weight = -weight
    grown = replace(
        state,
        weights=np.append(state.weights, weight),
        found=np.vstack([state.found, vector]),
        weight_noise=np.append(state.weight_noise, deviation),
    )
    return _next_component(grown)


def _alike(settings: PowerSettings, directions: Array, best: int) -> tuple[NDArray[np.bool_], Array]:
    """Restarts that ended at the same component as the best, and the signs that make them alike."""
    cosines = [directions[block].T @ directions[block, best] for block in settings.blocks]
    alike: NDArray[np.bool_] = np.min(np.abs(cosines), axis=0) >= _ALIKE
    return alike, _signs(settings, directions[:, best : best + 1], directions)


def _signs(settings: PowerSettings, towards: Array, vectors: Array) -> Array:
    """For every block of every column the sign that turns it towards another."""
    signs = np.ones(vectors.shape)
    for block in settings.blocks:
        signs[block] = np.where((towards[block] * vectors[block]).sum(axis=0) < 0, -1.0, 1.0)
    return signs


def _product(settings: PowerSettings, each: Sequence[Array]) -> Array:
    """The product over all modes of what there is one of for each block."""
    product: Array = each[0] ** settings.order if settings.symmetric else np.prod(each, axis=0)
    return product


def _normalised(settings: PowerSettings, vectors: Array, otherwise: Array) -> Array:
    """Columns with unit blocks; one that has vanished stays what it was."""
    out = np.array(vectors, np.float64)
    for block in settings.blocks:
        # Divided by the largest number first: squares of large or small ones leave the range.
        largest = np.abs(out[block]).max(axis=0)
        there = (largest > 0) & (largest < np.inf)
        scaled = out[block] / np.where(there, largest, 1.0)
        unit = scaled / np.where(there, np.linalg.norm(scaled, axis=0), 1.0)
        out[block] = np.where(there, unit, otherwise[block])
    return out


def usual_restarts(n_components: int) -> int:
    """Restarts where none are given: of the order of k log k, as Theorem 2.2 asks for."""
    return max(10, int(np.ceil(n_components * np.log2(n_components + 1))))


def usual_iterations(sizes: Sequence[int]) -> int:
    """Iterations where none are given: of the order of log d, as Theorem 2.2 asks for."""
    return 15 + int(np.ceil(np.log2(max(sizes))))
