"""Readable twin of how tensors are multiplied by directions, dense ones and sparse ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sfumato.types import Array


def reference_power(tensor: Array, directions: Sequence[Array]) -> list[Array]:
    """T(I, u, ..., u) for every mode, from its definition; ``directions`` has a matrix per mode."""
    letters = "abcdefgh"[: tensor.ndim]
    answers = []
    for mode, letter in enumerate(letters):
        others = [m for m in range(tensor.ndim) if m != mode]
        terms = ",".join([letters, *(f"{letters[m]}z" for m in others)])
        answers.append(np.einsum(f"{terms}->{letter}z", tensor, *(directions[m] for m in others)))
    return answers
