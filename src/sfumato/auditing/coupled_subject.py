"""Audits of private fits of several relations: one unit differs, in one relation or in all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sfumato.auditing.neighbours import neighbours, usual_canaries
from sfumato.auditing.subject import promised
from sfumato.auditing.trials import privacy_of
from sfumato.auditing.verdict import Promise
from sfumato.data.tensor import SparseTensor
from sfumato.errors import SettingError
from sfumato.estimators.coupled import Coupled
from sfumato.estimators.coupled_private import prepared, tensors_of
from sfumato.fit.coupled import check_relations
from sfumato.fit.plan import PrivatePlan
from sfumato.fit.request import Privacy
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.events import GaussianEvent, PureEvent, flattened
from sfumato.privacy.units import PrivacyUnit, Unit
from sfumato.solvers.protocol import Run
from sfumato.types import Array


@dataclass(frozen=True, eq=False)
class RelationNeighbours:
    """Relations by name that differ in one unit, and the cells of one of them at which they do."""

    canary: str
    relation: str
    first: Mapping[str, SparseTensor]
    second: Mapping[str, SparseTensor]
    cells: Array

    @property
    def sides(self) -> tuple[Mapping[str, SparseTensor], Mapping[str, SparseTensor]]:
        return self.first, self.second


@dataclass(frozen=True, eq=False)
class RelationSubject:
    """What is audited, made ready."""

    estimator: Coupled
    tensors: dict[str, SparseTensor]
    plan: PrivatePlan[Any]
    protected: tuple[str, ...]
    start: None = None

    @classmethod
    def of(cls, estimator: Coupled, data: Any) -> RelationSubject:
        if not isinstance(data, Mapping):
            raise SettingError("an audit of relations takes tensors with bounds by name")
        privacy = replace(privacy_of(estimator), ledger=None, limit=None)
        tensors, structures = tensors_of(data)
        names = check_relations(privacy, list(tensors))
        rank, run = estimator.rank, Run(int(estimator.seed), 1)
        ready = prepared(tensors, structures, privacy, rank, run, Entropy(0))
        return cls(estimator, ready.tensors, ready.plan, names)

    @property
    def privacy(self) -> Privacy:
        return privacy_of(self.estimator)

    @property
    def unit(self) -> PrivacyUnit:
        unit: PrivacyUnit = self.plan.task.unit
        return unit

    @property
    def gaussian(self) -> bool:
        """Whether all noise is Gaussian; what is made beside other draws costs nothing more."""
        parts = [part for part, _ in flattened(self.plan.event) if part != PureEvent(0.0)]
        return all(isinstance(part, GaussianEvent) for part in parts)

    def promise(self, delta: float | None) -> Promise:
        return promised(self.plan, self.privacy, delta)

    def usual_canaries(self) -> list[str]:
        return [f"{name}: {kind}" for name in self._places for kind in usual_canaries(self.unit)]

    @property
    def _places(self) -> tuple[str, ...]:
        """Relations that a canary can be in: a level is in all of them at once."""
        return self.protected[:1] if isinstance(self.unit, Unit) else self.protected

    def pair(self, canary: str) -> RelationNeighbours:
        """Neighbours by the name of a canary, such as "ratings: least"."""
        relation, _, kind = canary.rpartition(": ")
        if relation not in self._places:
            known = ", ".join(self.usual_canaries())
            raise SettingError(f"there is no canary {canary!r}; there are {known}")
        made = neighbours(self.tensors[relation], self.unit, kind)
        first, second = dict(self.tensors), dict(self.tensors)
        first[relation], second[relation] = made.sides
        if isinstance(self.unit, Unit):
            level = made.cells[self.tensors[relation].mode_index(self.unit.mode), 0]
            for name in self.protected[1:]:
                first[name] = _without_level(self.tensors[name], self.unit.mode, int(level))
        return RelationNeighbours(canary, relation, first, second, made.cells)


def _without_level(tensor: SparseTensor, mode: str, level: int) -> SparseTensor:
    return tensor.take(np.flatnonzero(tensor.coordinates[tensor.mode_index(mode)] != level))
