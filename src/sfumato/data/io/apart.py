"""Files whose libraries can crash or hang on damaged ones, read in a process of their own.

SciPy's reader of MATLAB files ends the process or never returns on some, and a spreadsheet of one cell
may claim a billion. The child has limits on memory and time, and answers with plain numbers and text.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.data.io import apart_child
from sfumato.data.io.files import check_unpacked, reading, unpacked_limit
from sfumato.data.io.npy import native
from sfumato.errors import DataError, SettingError
from sfumato.surface import setting

SECONDS = 15.0  # and one more for every megabyte
_MEGABYTE = 1 << 20
_CHILD_BYTES = 1 << 30  # of address space that Python and its libraries take by themselves
_COPIES = 4  # of what is unpacked that a reader may hold at a time


class Answer(NamedTuple):
    """What the child found: words and numbers, and arrays of numbers."""

    words: dict[str, Any]
    arrays: list[NDArray[Any]]


def load_mat(path: Path, variable: str | None) -> Any:
    """The array or sparse matrix of a MATLAB file: the one of that name, or the only one."""
    if _is_hdf5(path):
        raise DataError(
            f"{path} is a MATLAB 7.3 (HDF5) file, which is not supported: save it in MATLAB with "
            "save(..., '-v7'), or read the array with h5py and hand it over: "
            "sfumato.read(h5py.File(path)['name'][:].T)"
        )
    words, arrays = _answer("mat", path, variable)
    found = words["found"]
    if len(found) != 1:
        if variable is not None:
            raise SettingError(f"{path.name} has no numeric array {variable!r}")
        listed = ", ".join(f"{name} {tuple(shape)}" for name, shape in found.items()) or "none"
        raise SettingError(
            f"say which array of {path.name} to read with {setting('variable')}; those of two or more "
            f"modes: {listed}"
        )
    (shape,) = found.values()
    if not words["sparse"]:
        return arrays[0]
    import scipy.sparse

    data, indices, indptr = arrays
    with reading(path):
        return scipy.sparse.csc_array((data, indices, indptr), shape=tuple(shape))


def load_xlsx(path: Path, sheet: str | None) -> pa.Table:
    """The table on a sheet of an Excel file, whose first row has the names of the columns."""
    if importlib.util.find_spec("python_calamine") is None:
        raise DataError(
            f'to read {path.name}, install what reads Excel files: pip install "sfumato[excel]"; or '
            "save it as CSV"
        )
    with reading(path), zipfile.ZipFile(path) as archive:
        check_unpacked(path, archive.infolist())
    words, _ = _answer("xlsx", path, sheet)
    if words["columns"] is None:
        listed = ", ".join(words["sheets"]) or "none"
        what = "has no sheets with a table" if not words["sheets"] else "has several sheets"
        if sheet is not None:
            what = f"has no sheet {sheet!r}"
        raise SettingError(
            f"{path.name} {what}: say which to read with {setting('variable')}. Sheets: {listed}"
        )
    kinds = {"number": pa.float64(), "text": pa.string(), "time": pa.string()}
    columns = [pa.array(each["cells"], kinds[each["kind"]]) for each in words["columns"]]
    typed = [
        column.cast(pa.timestamp("us")) if each["kind"] == "time" else column
        for column, each in zip(columns, words["columns"], strict=True)
    ]
    return pa.Table.from_arrays(typed, [each["name"] for each in words["columns"]])


def _is_hdf5(path: Path) -> bool:
    with reading(path), path.open("rb") as file:
        head = file.read(520)
    return head.startswith(b"MATLAB 7.3") or b"\x89HDF\r\n\x1a\n" in (head[:8], head[512:])


def _answer(kind: str, path: Path, variable: str | None) -> Answer:
    with reading(path):
        size, limit = path.stat().st_size, unpacked_limit(path)
    order = {
        "kind": kind,
        "path": os.fspath(path),
        "variable": variable,
        "memory": _CHILD_BYTES + _COPIES * limit,
    }
    seconds = SECONDS + size / _MEGABYTE
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-W", "ignore", str(apart_child.__file__), json.dumps(order)],
            env=_surroundings(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DataError(
            f"{path} cannot be read: its reader did not end within {seconds:.0f} s"
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: no process can be started for it, {error}") from error
    if ended.returncode != 0:
        raise DataError(f"{path} cannot be read: it is damaged, and its reader broke down over it")
    with reading(path):
        answer = _unpacked(ended.stdout)
    if "error" in answer.words:
        raise DataError(f"{path} cannot be read: {answer.words['error']}")
    return answer


def _surroundings() -> dict[str, str]:
    """The child finds the same libraries, and starts no threads, whose stacks would count as memory."""
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _unpacked(answer: bytes) -> Answer:
    """A line of JSON, and the bytes of the arrays that it lists."""
    words, _, rest = answer.partition(b"\n")
    said = json.loads(words)
    arrays, place = [], 0
    for each in said.pop("arrays", ()):
        dtype, shape = np.dtype(each["dtype"]), tuple(each["shape"])
        count = int(np.prod(shape, dtype=object))
        flat = np.frombuffer(rest, dtype, count, place) if count else np.empty(0, dtype)
        arrays.append(native(flat.reshape(shape, order="F")))
        place += count * dtype.itemsize
    return Answer(said, arrays)
