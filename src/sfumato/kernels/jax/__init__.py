"""Compiled code of networks, on JAX: an extra, ``pip install 'sfumato[networks]'``.

Only what is public or has noise lives longer than a call here; random numbers are never drawn here.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
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
