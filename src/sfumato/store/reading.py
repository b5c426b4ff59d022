"""Files of model folders that anybody may have written: whatever is wrong is a ``ModelFileError``.

Nothing is waited for, no memory is asked for that the file's own size does not justify, and all numbers
have a type and a value that kernels can work with.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize

from sfumato.errors import ModelFileError, SfumatoError
from sfumato.types import Array

SMALL = 1 << 20  # bytes: more than any manifest, signature or guarantee has
_PRECISIONS = {"F64": np.float64, "F32": np.float32, "I64": np.int64}


@contextmanager
def damage(path: Path) -> Iterator[None]:
    """Whatever goes wrong while a folder's contents are put together means that it is damaged."""
    try:
        yield
    except MemoryError as error:
        raise ModelFileError(f"{path} needs more memory than there is") from error
    except RecursionError as error:
        raise ModelFileError(f"{path} is damaged: it is nested too deeply") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, SfumatoError) and isinstance(error, OSError):
            raise
        raise ModelFileError(f"{path} is damaged: {error}") from error


def read_file(path: Path, limit: int | None = None) -> bytes:
    """The content of a regular file, up to as many bytes as are allowed or as the machine could hold."""
    most = _memory() if limit is None else limit
    try:
        _check_regular(os.stat(path), path, most)
        # Should it have become a pipe since: one is opened without waiting for who writes to it.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(handle, "rb") as file, damage(path):
            status = os.fstat(handle)
            _check_regular(status, path, most)
            return file.read(status.st_size + 1)
    except ModelFileError:
        raise
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from error


def _check_regular(status: os.stat_result, path: Path, most: int) -> None:
    if not S_ISREG(status.st_mode):
        raise ModelFileError(f"{path} is not a regular file")
    if status.st_size > most:
        raise ModelFileError(
            f"{path} is damaged: it has {status.st_size:,} bytes, more than the {most:,} it can have"
        )


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):  # a system that does not say
        return 1 << 40


def parse_json(content: bytes, path: Path) -> Any:
    try:
        with damage(path):
            return json.loads(content.decode("utf-8"))
    except ModelFileError as error:
        if isinstance(error.__cause__, ValueError):
            raise ModelFileError(f"{path} is damaged or cut off: {error.__cause__}") from error
        raise


def parse_tensors(content: bytes, path: Path) -> dict[str, Array]:
    """Arrays by name, of float64, float32 or int64; the file's size has to justify their shapes."""
    try:
        found = deserialize(content)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise ModelFileError(f"{path} is damaged: {error}") from error
    with damage(path):
        return {name: _array(name, **parts) for name, parts in found}


def _array(name: str, dtype: str, shape: list[int], data: bytes) -> Array:
    if dtype not in _PRECISIONS:
        raise ValueError(f"{name} holds numbers of type {dtype}, models have {', '.join(_PRECISIONS)}")
    array = np.frombuffer(data, _PRECISIONS[dtype]).reshape(shape)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{name} holds numbers that are not finite, unless the fit diverged")
    return array
