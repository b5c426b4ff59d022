"""Readable twin of what ``kernels/numba/private_output.py`` does at an entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sfumato.kernels.numba.private_output import RidgePlan
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.models.multilinear import Multilinear


def row_features_reference(
    model: Multilinear, plan: RidgePlan, coordinates: Array, values: Array
) -> tuple[Array, Array]:
    """Clipped features and targets."""
    features = model.design(plan.mode, coordinates) @ plan.whiten.T
    length = np.linalg.norm(features, axis=1, keepdims=True)
    features = features * np.minimum(1, plan.bound / np.maximum(length, 1e-300))
    targets = np.clip(values - model.predict_reference(coordinates), -plan.reach, plan.reach)
    return features, targets
