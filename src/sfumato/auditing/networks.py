"""Audits of private networks: the last example, or all examples of its owner, is there or not.

Whoever attacks knows all else, the public start, and which way the canary pulls: every iterate that was
released is looked at from there, layer by layer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sfumato.auditing.subject import promised
from sfumato.auditing.trials import Trial, code_of, in_full, seed_from
from sfumato.auditing.verdict import Promise
from sfumato.auditing.views import View, finite, summed
from sfumato.errors import DataError, SettingError
from sfumato.estimators.learning import PrivateNetwork
from sfumato.fit.network import Learning
from sfumato.fit.plan import PrivatePlan
from sfumato.fit.request import Privacy
from sfumato.privacy.caveats import without_warnings
from sfumato.privacy.events import GaussianEvent, flattened
from sfumato.sites.examples import Examples
from sfumato.solvers.network.queries import GradientQuery
from sfumato.solvers.protocol import DivergedError
from sfumato.store.network import network_files
from sfumato.types import Array

CANARY = "last"
_CHUNK = 64


@dataclass(frozen=True, eq=False)
class NetworkNeighbours:
    """Examples without and with a canary: arrays of inputs, targets and, where there are any, owners."""

    first: tuple[Array, ...]
    second: tuple[Array, ...]
    own: tuple[Array, ...]
    canary: str = CANARY
    cells: Array = field(
        default_factory=lambda: np.zeros((0, 0), np.int64)
    )  # of tensors: there are none

    @property
    def sides(self) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        return self.first, self.second


@dataclass(frozen=True, eq=False)
class NetworkSubject:
    """What is audited, made ready."""

    estimator: PrivateNetwork
    data: tuple[Array, ...]
    plan: PrivatePlan[Learning]
    start: None = None

    @classmethod
    def of(cls, estimator: PrivateNetwork, data: Any) -> NetworkSubject:
        privacy = estimator.privacy
        if not isinstance(privacy, Privacy):
            raise SettingError("there is nothing to audit without privacy=Privacy(...)")
        if not isinstance(data, Sequence) or len(data) not in (2, 3):
            raise DataError("an audit of a network takes (X, y), or (X, y, groups)")
        arrays = tuple(np.asarray(part) for part in data)
        if len({len(part) for part in arrays}) > 1 or len(arrays[0]) < 2:
            raise DataError("X, y and groups have as many rows as there are examples, two or more")
        ready = type(estimator)(**estimator.get_params())
        ready.privacy = replace(privacy, ledger=None, limit=None)
        count = privacy.public.units or privacy.public.entries or len(arrays[0])
        with without_warnings():
            plan = ready.plan(count, int(np.prod(arrays[0].shape[1:])))
        return cls(ready, arrays, plan)

    @property
    def gaussian(self) -> bool:
        return all(isinstance(part, GaussianEvent) for part, _ in flattened(self.plan.event))

    def promise(self, delta: float | None) -> Promise:
        return promised(self.plan, self.estimator._asked(), delta)

    def usual_canaries(self) -> list[str]:
        return [CANARY]

    def pair(self, canary: str) -> NetworkNeighbours:
        if canary != CANARY:
            raise SettingError(f"there is no canary {canary!r}; there is {CANARY}: the last example")
        owned = len(self.data) == 3
        own = self.data[2] == self.data[2][-1] if owned else np.arange(len(self.data[0])) == -1
        own[-1] = True
        return NetworkNeighbours(
            tuple(part[~own] for part in self.data), self.data, tuple(part[own] for part in self.data)
        )


@dataclass(frozen=True, eq=False)
class NetworkTrial(Trial):
    """Fits of a network, on either of two neighbours, and what each release shows."""

    def run(self, number: int) -> dict[str, Any]:
        side = number % 2
        seed = None if self.seed is None else seed_from(self.seed, number)
        pair: Any = self.neighbours
        estimator: Any = self.estimator
        own = type(estimator)(**estimator.get_params())
        own.set_params(privacy=replace(estimator.privacy, seed=seed), progress=None)
        try:
            with without_warnings():
                own.fit(*pair.sides[side])
        except DivergedError:
            return {"side": side, "form": "diverged"}
        return {"side": side, **_observed(own, pair.own)}

    def fingerprint(self) -> str:
        estimator: Any = self.estimator
        sides: Any = self.neighbours.sides
        digest = hashlib.sha256(code_of((type(estimator),)))
        digest.update(in_full((type(estimator).__name__, estimator.get_params(), self.seed)))
        for side in sides:
            for part in side:
                digest.update(in_full(np.asarray(part).tolist()))
        return digest.hexdigest()


def _observed(fitted: PrivateNetwork, own: tuple[Array, ...]) -> dict[str, Any]:
    """How far each released iterate has gone from the start along the canary's gradient, by layer."""
    view = View.of(network_files(fitted._stored()))
    architecture = fitted.network_.architecture
    start = architecture.start(int(fitted.seed))
    pull = _pull(fitted, own)
    iterates = [*view.parts["iterates"], view.parts["parameters"]]
    changes = [finite(each) - start for each in iterates]
    along = np.array([_by_layer(architecture, -change * pull) for change in changes])
    lengths = np.array([_by_layer(architecture, change**2) for change in changes])
    return {
        "form": view.form,
        "prediction": along[-2].sum(keepdims=True),
        "along": along,
        "lengths": np.sqrt(lengths),
        "texts": summed(finite(view.parts["texts"])),
        "rest": summed(np.concatenate([finite(part).ravel() for part in view.parts.values()])),
    }


def _pull(fitted: PrivateNetwork, own: tuple[Array, ...]) -> Array:
    """The canary's gradient at the start, as steps are made of it."""
    architecture = fitted.network_.architecture
    targets, known = fitted._targets(own[1], len(own[0]))
    inputs = fitted._inputs(own[0])[known]
    start = architecture.start(int(fitted.seed)).astype(np.float32)
    query = GradientQuery(architecture, start, fitted.training_.clip, _CHUNK)
    units = np.arange(len(inputs))
    sums = query.clipped(Examples(inputs, targets[known]), units, np.random.default_rng(0)).numbers
    return np.asarray(sums / max(float(np.linalg.norm(sums)), 1e-9))


def _by_layer(architecture: Any, numbers: Array) -> list[float]:
    return [float(part.sum()) for layer in architecture.layers(numbers) for part in layer]
