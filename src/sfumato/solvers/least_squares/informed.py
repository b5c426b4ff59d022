"""Bayesian ALS of somebody who knows more of the levels than their own entries say.

Rows shrink towards a learnt map of features (``presence.py``); here what is known of levels from
elsewhere, such as the rows of a released model, is among these features. So nothing has to be said of
how far it can be trusted: what explains the rows holds them, what does not is shrunk away, and since the
map is linear, columns may be turned or scaled as they like.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sfumato.models.multilinear import Multilinear
from sfumato.records import record
from sfumato.solvers.least_squares.als import ALS, State
from sfumato.solvers.least_squares.presence import LevelSums, standardised
from sfumato.types import Array


@record
@dataclass(frozen=True, eq=False)
class InformedALS(ALS):
    """Settings of ALS, and ``features``: a row for each level of all modes, mode after mode."""

    features: Array = field(default_factory=lambda: np.zeros((0, 0)))

    def _searched(self, state: State, seen: LevelSums) -> State:
        """Once presence is known, its features get company; the start is that of presence alone."""
        after = super()._searched(state, seen)
        if after.presence is None:
            return after
        return replace(after, presence=after.presence.with_features(self.features))


def features_of(model: Multilinear, sizes: Sequence[int], without: int) -> Array:
    """Biases and rows of a model as features of modes of these sizes; zeros for the one left out."""
    blocks = [np.zeros((size, max(model.ranks) + 1)) for size in sizes]
    for mode, block in enumerate(blocks):
        if mode != without:
            known = np.column_stack([model.mode_biases[mode], model.factors[mode]]).astype(np.float64)
            block[:, : known.shape[1]] = standardised(known, np.ones(known.shape[0]))
    return np.concatenate(blocks)
