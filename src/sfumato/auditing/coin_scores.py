"""How much a release looks like each canary's coin showed heads.

An adversary who knows all data but the coins makes *references*: the same fit with other coins, which
are known, and other noise. Values, biases and rows at a canary's cells are compared with what the
references have on average, and rows with what they would be by the rest of their release and the entries
that no coin decides. From the references a linear discriminant learns how much each of these tells; the
scores are what it says of the release under attack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sfumato.auditing.canaries import Canaries
from sfumato.auditing.views import View, finite
from sfumato.data.tensor import SparseTensor
from sfumato.errors import SettingError
from sfumato.fit.own import derived_prior
from sfumato.models.multilinear import Multilinear
from sfumato.privacy.units import Unit
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.own_rows import solve_own
from sfumato.types import Array

_FARTHEST = 5.0  # standard deviations beyond which a number only says "far"


class _Shown(NamedTuple):
    """What one release shows at the cells of all canaries."""

    values: list[Array]  # by what: the prediction, and each mode's biases
    rows: list[Array]  # by mode
    designs: list[Array]  # by mode: what a change of the row is worth at the cell
    gaps: list[Array]  # by released mode: how far the rest of the release is from explaining the row


def coin_scores(
    canaries: Canaries, release: View, references: Sequence[View], reference_coins: Array
) -> Array:
    """A score for each canary; the coins behind the release have no part in it."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    # Rows kept by owners follow from the release and their entries: a level that is a canary has no
    # others than its own.
    known = canaries.data(np.full(canaries.number, isinstance(canaries.unit, Unit)))
    shown = [_shown(canaries, view, known) for view in references]
    learn = np.stack(
        [_features(canaries, one, [other for other in shown if other is not one]) for one in shown]
    )
    asked = _features(canaries, _shown(canaries, release, known), shown)
    spread = learn.std(axis=(0, 1))
    varies = spread > 0
    if not varies.any():
        return np.zeros(canaries.number)
    learn, asked = (
        np.clip(part[..., varies] / spread[varies], -_FARTHEST, _FARTHEST) for part in (learn, asked)
    )
    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
    model.fit(learn.reshape(-1, learn.shape[-1]), reference_coins.ravel())
    return np.asarray(model.decision_function(asked))


def _shown(canaries: Canaries, view: View, known: SparseTensor) -> _Shown:
    model, cells = view.whole(known), canaries.cells
    values = [finite(model.predict(cells))]
    values += [finite(bias[levels]) for bias, levels in zip(model.mode_biases, cells, strict=True)]
    gaps = [_gap(canaries, model, m) for m in range(model.order) if m != view.local]
    return _Shown(
        values,
        [finite(rows) for rows in model.entry_rows(cells)],
        [finite(model.design(m, cells)) for m in range(model.order)],
        gaps,
    )


def _gap(canaries: Canaries, model: Multilinear, mode: int) -> Array:
    """What the rows of a mode add to the cells beyond what all but the canaries would make of them."""
    cells, rest = canaries.cells, canaries.undecided
    if rest is None:
        return np.zeros(cells.shape[1])
    left = rest.values - model.predict(rest.coordinates)
    try:
        prior = derived_prior(model, mode, float(np.mean(left**2)))
        solved = solve_own(model, prior, Site(rest, 1))
    except (SettingError, np.linalg.LinAlgError):  # no rows, or such that nothing follows from them
        return np.zeros(cells.shape[1])
    rows, biases = (
        getattr(model, part)[mode][cells[mode]] - getattr(solved, part)[mode][cells[mode]]
        for part in ("factors", "mode_biases")
    )
    return finite(np.einsum("er,er->e", rows, model.design(mode, cells)) + biases)


def _features(canaries: Canaries, one: _Shown, others: Sequence[_Shown]) -> Array:
    """Numbers for each canary: its cells' changes against other releases, added up by their signs."""
    changes = [value - _mean(others, "values", k) for k, value in enumerate(one.values)]
    changes += [
        np.einsum("er,er->e", rows - _mean(others, "rows", m), design)
        for m, (rows, design) in enumerate(zip(one.rows, one.designs, strict=True))
    ]
    changes += [gap - _mean(others, "gaps", k) for k, gap in enumerate(one.gaps)]
    changes += one.gaps
    return np.stack([canaries.summed(canaries.signs * change) for change in changes], axis=1)


def _mean(shown: Sequence[_Shown], what: str, number: int) -> Array:
    return np.asarray(np.mean([getattr(one, what)[number] for one in shown], axis=0))
