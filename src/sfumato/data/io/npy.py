"""NumPy's files of arrays, held against their size before memory is asked for.

What is wrong with one is a ValueError, of which ``reading`` makes an error that names the file.
"""

from __future__ import annotations

import zipfile
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfumato.data.io.files import check_unpacked, reading

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
