"""Compiled code on JAX: what networks need beside processors, and sums of fits on a GPU.

The extras are ``pip install 'sfumato[networks]'`` and ``'sfumato[gpu]'``. Random numbers are never drawn
here. Entries and sums of them stay on the device for as long as a fit does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib.util import find_spec

from sfumato.errors import SettingError
from sfumato.surface import setting


def check_installed() -> None:
    """That JAX is there."""
    if find_spec("jax") is None:
        raise SettingError("networks need JAX: pip install 'sfumato[networks]'")


def double_precision() -> AbstractContextManager[object]:
    """Inside, whole numbers up to 2^53 are exact; other code of this process keeps its own setting."""
    import jax

    context: AbstractContextManager[object] = jax.enable_x64(True)
    return context


@contextmanager
def within_memory() -> Iterator[None]:
    """Inside, memory that the device has not left is an error of settings.

    What is said is the same whatever the data: JAX would tell sizes that depend on them.
    """
    import jax

    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise SettingError(
            "JAX's share of the GPU's memory does not suffice for this fit: use a smaller rank, close "
            f"what else is there on the GPU, or use {setting('device', 'cpu')}"
        ) from None


def platforms() -> frozenset[str]:
    """What JAX computes on; nothing where it is told to take a device, and there is none."""
    import jax

    try:
        return frozenset(each.platform for each in jax.devices())
    except (RuntimeError, AssertionError):  # the latter where JAX has no code for the device either
        return frozenset()


@cache
def accelerated() -> bool:
    """Whether JAX has found anything but processors to compute on."""
    return bool(platforms() - {"cpu"})


def total_memory() -> int | None:
    """Bytes that JAX may take on its first device; None where it does not say, as of processors."""
    import jax

    return (jax.devices()[0].memory_stats() or {}).get("bytes_limit")


def free_memory() -> int | None:
    """The same without those in use."""
    import jax

    known = jax.devices()[0].memory_stats() or {}
    return known["bytes_limit"] - known["bytes_in_use"] if "bytes_limit" in known else None
