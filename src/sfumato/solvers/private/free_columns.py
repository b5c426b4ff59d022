"""Columns that cost nothing: what private biases have released of the levels of a mode.

Some people like what everybody likes more than others do, and some go along with what is popular. So
rows of one mode have slopes on the biases of another, and on the logarithm of its counts. Both were
released before: all that is made of them is post-processing.
"""

from __future__ import annotations

import numpy as np

from sfumato.types import Array

SLOPES = 2  # columns: biases, and the logarithm of counts


def standardised(numbers: Array, counts: Array) -> Array:
    """One column, of mean zero and variance one over entries; zeros where all numbers are equal."""
    weights = counts / counts.sum()
    numbers = numbers - weights @ numbers
    deviation = float(np.sqrt(weights @ numbers**2))
    column: Array = numbers / deviation if deviation > 1e-12 else np.zeros_like(numbers)
    return column


def slope_columns(biases: Array, counts: Array, number: int) -> Array:
    """The first so many columns of a mode, from its released biases and counts."""
    columns = [standardised(biases, counts), standardised(np.log(counts), counts)]
    made: Array = np.stack(columns, 1)[:, :number]
    return made
