"""NumPy's files of arrays, held against their size before memory is asked for.

What is wrong with one is a ValueError, of which ``reading`` makes an error that names the file.
"""

from __future__ import annotations

import mmap
import os
import zipfile
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sfumato.data.io.files import MissingFileError, check_unpacked, reading

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class _Header(NamedTuple):
    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]


def load_npy(path: Path) -> NDArray[Any]:
    """The array of a .npy file."""
    with reading(path), path.open("rb") as file:
        return _read_array(file, path.stat().st_size)


def check_npy(path: Path) -> None:
    """Refuse a .npy file that is no array of plain numbers, or shorter than it says."""
    with reading(path), path.open("rb") as file:
        _read_header(file, path.stat().st_size)


def map_npy(
    path: Path, dtype: DTypeLike, shape: tuple[int, ...], *, writeable: bool = False
) -> NDArray[Any]:
    """The array of a .npy file where it lies on the disk, if it is just the one that is expected.

    What is written to a ``writeable`` one stays in memory: the file is never changed. Plain arrays,
    so that kernels take them for what they are.
    """
    with reading(path):
        if not path.is_file():
            raise MissingFileError(f"there is no file {path}, which belongs to its folder")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            header, begin = _read_header(file, size), file.tell()
            _check_expected(header, np.dtype(dtype), shape, size - begin)
            if not prod(shape):
                array = np.empty(shape, dtype)
                array.flags.writeable = writeable
                return array
            access = mmap.ACCESS_COPY if writeable else mmap.ACCESS_READ
            content = mmap.mmap(file.fileno(), 0, access=access)
    return np.frombuffer(content, dtype, prod(shape), begin).reshape(shape)


def _check_expected(header: _Header, dtype: np.dtype[Any], shape: tuple[int, ...], size: int) -> None:
    if (header.dtype, header.shape, header.fortran_order) != (dtype, shape, False):
        raise ValueError(
            f"it holds {header.dtype} of shape {header.shape}, where {dtype} of shape {shape} is "
            f"expected"
        )
    if size != prod(shape) * dtype.itemsize:
        raise ValueError(f"{size:,} bytes follow its header, not {prod(shape) * dtype.itemsize:,}")


def write_npy(
    path: Path, array: NDArray[Any], watch: Callable[[memoryview], object] | None = None
) -> None:
    """Write a new .npy file and see it to the disk; ``watch`` is shown the bytes of the array.

    NumPy's own writer does not say why it failed where a disk is full.
    """
    plain = np.ascontiguousarray(array)
    with path.open("xb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(plain))
        if plain.size:
            content = plain.reshape(-1).view(np.uint8).data
            file.write(content)
            if watch is not None:
                watch(content)
        file.flush()
        os.fsync(file.fileno())


class Npz:
    """The arrays of a .npz file by name; each is read when it is asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with reading(path), zipfile.ZipFile(path) as archive:
            check_unpacked(path, archive.infolist())
            self.names = [member.removesuffix(".npy") for member in archive.namelist()]

    def __getitem__(self, name: str) -> NDArray[Any]:
        with reading(self._path), zipfile.ZipFile(self._path) as archive:
            inside = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
            with archive.open(inside[name]) as file:
                return _read_array(file, inside[name].file_size)


def _read_array(file: IO[bytes], size: int) -> NDArray[Any]:
    header = _read_header(file, size)
    content = file.read(prod(header.shape) * header.dtype.itemsize)
    flat = np.frombuffer(content, header.dtype)
    return native(flat.reshape(header.shape, order="F" if header.fortran_order else "C"))


def _read_header(file: IO[bytes], size: int) -> _Header:
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(
            f"arrays of version {version[0]}.{version[1]} of NumPy's format are not supported"
        )
    header = _Header(*_HEADERS[version](file))
    if header.dtype.hasobject:
        raise ValueError("its array holds Python objects, which are never loaded: save numbers or text")
    wanted = prod(header.shape) * header.dtype.itemsize
    if min(header.shape, default=0) < 0 or wanted > size - file.tell():
        raise ValueError(
            f"its array claims the shape {header.shape} and {wanted:,} bytes, but the file has {size:,}"
            ": it is damaged"
        )
    return header


def native(array: NDArray[Any]) -> NDArray[Any]:
    """The array in the order of bytes of this machine."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)
