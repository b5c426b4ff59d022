"""Compiled code of networks, on JAX: an extra, ``pip install 'sfumato[networks]'``.

Only what is public or has noise lives longer than a call here; random numbers are never drawn here.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from importlib.util import find_spec

from sfumato.errors import SettingError


def check_installed() -> None:
    """That JAX is there."""
    if find_spec("jax") is None:
        raise SettingError("networks need JAX: pip install 'sfumato[networks]'")


def double_precision() -> AbstractContextManager[object]:
    """Inside, whole numbers up to 2^53 are exact; other code of this process keeps its own setting."""
    import jax

    context: AbstractContextManager[object] = jax.enable_x64(True)
    return context


@cache
def accelerated() -> bool:
    """Whether JAX has found anything but processors to compute on."""
    import jax

    return bool(jax.default_backend() != "cpu")


def total_memory() -> int | None:
    """Bytes that JAX may take on its first device; None where it does not say, as of processors."""
    import jax

    return (jax.devices()[0].memory_stats() or {}).get("bytes_limit")


def free_memory() -> int | None:
    """The same without those in use."""
    import jax

    known = jax.devices()[0].memory_stats() or {}
    return known["bytes_limit"] - known["bytes_in_use"] if "bytes_limit" in known else None
