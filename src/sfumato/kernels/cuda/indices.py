"""Unsigned numbers for indices of kernels by hand.

Of a signed index it is looked at every time whether it counts from the end, which takes longer than what
is computed. A compiler makes a fraction of an unsigned number and a signed one: they do not mix.
"""

from __future__ import annotations

import numpy as np

unsigned = np.uint64
ZERO, ONE, TWO, THREE, FOUR = (unsigned(number) for number in range(5))
