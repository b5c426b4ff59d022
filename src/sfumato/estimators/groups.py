"""Errors by popularity of levels: those that a release lets expect, and those that a holder measures."""

from __future__ import annotations

from functools import partial

from sfumato.errors import SettingError
from sfumato.estimators.base import TensorEstimator
from sfumato.estimators.by_popularity import Told
from sfumato.estimators.coupled import Coupled
from sfumato.models.several import Several
from sfumato.report.records import Groups
from sfumato.surface import setting


def told_of(estimator: TensorEstimator | Coupled, relation: str | None = None) -> Told:
    """What a fit tells of a table; of several the one that is named."""
    if isinstance(estimator, TensorEstimator):
        if relation is not None:
            raise SettingError(f"this is a model of one table: leave {setting('relation')} out")
        predict = partial(estimator.predict, unseen="bias")
        return Told(estimator.modes_, estimator.local_, estimator.errors_, predict)
    names, model = list(estimator.relations_), estimator.model_
    if relation not in names:
        raise SettingError(f"say with {setting('relation')} which table is meant: {', '.join(names)}")
    if not isinstance(model, Several):
        return Told(estimator.modes_, None, None, partial(estimator.predict, relation))
    known, errors = estimator.private_relations_[relation], model.errors_of(names.index(relation))
    predict = partial(estimator.predict, relation, unseen="bias")
    return Told(known.modes, known.local, errors, predict)


_COUNTED = (
    "counted: how often a level occurs, as the fit asked: its entries, or where everything of an owner "
    "is protected, those of each owner weighed so that they count as about one together"
)


def groups_text(found: Groups) -> str:
    """For a person."""
    measured = any(group.held_out is not None for group in found.groups)
    head = f"{'levels':>8}{'counted':>10}{'noise':>9}{'scatter':>9}{'expected':>10}"
    head += f"{'held out':>10}{'measured':>10}" if measured else ""
    lines = [f"errors by popularity of {found.mode}, rarest first; {found.status}", head]
    for g in found.groups:
        line = f"{g.levels:>8,}{g.counted:>10.1f}{g.noise:>9.3f}{g.scatter:>9.3f}{g.expected:>10.3f}"
        if measured:
            shown = "-" if g.measured is None else f"{g.measured:.3f}"
            line += f"{g.held_out or 0:>10,}{shown:>10}"
        lines.append(line)
    return "\n".join([*lines, _COUNTED])
