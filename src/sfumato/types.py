"""Types that all parts share."""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]  # of numbers; what kind is said where it matters
