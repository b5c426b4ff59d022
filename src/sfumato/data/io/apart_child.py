"""Reads one file and writes what it holds to standard output: run as a script by ``apart.py``.

It imports nothing of sfumato, and of other libraries only what the file needs: it starts for every file.
The answer is a line of JSON, followed by the bytes of the arrays that it lists, in Fortran's order.
"""

from __future__ import annotations

import json
import sys
from datetime import date, datetime, time
from typing import Any


def _mat(path: str, variable: str | None) -> tuple[dict[str, Any], list[Any]]:
    from scipy.io.matlab import loadmat

    content = loadmat(path, variable_names=None if variable is None else [variable])
    found = {name: array for name, array in content.items() if _may_be_tensor(array, variable)}
    shapes = {name: [int(size) for size in array.shape] for name, array in found.items()}
    if len(found) != 1:
        return {"found": shapes}, []
    (array,) = found.values()
    if not hasattr(array, "tocsc"):
        return {"found": shapes, "sparse": False}, [array]
    matrix = array.tocsc()
    return {"found": shapes, "sparse": True}, [matrix.data, matrix.indices, matrix.indptr]


def _may_be_tensor(array: Any, variable: str | None) -> bool:
    if hasattr(array, "tocsc"):
        return True
    if not hasattr(array, "dtype") or array.dtype.kind not in "iuf":
        return False
    # To MATLAB numbers and vectors are matrices too: they count only when asked for by name.
    return variable is not None or sum(size > 1 for size in array.shape) >= 2


def _xlsx(path: str, sheet: str | None) -> tuple[dict[str, Any], list[Any]]:
    from python_calamine import load_workbook

    workbook = load_workbook(path)
    names = list(workbook.sheet_names) if sheet is None else [sheet]
    tables = {
        name: workbook.get_sheet_by_name(name).to_python()
        for name in names
        if name in workbook.sheet_names
    }
    filled = [rows for rows in tables.values() if any(cell != "" for row in rows for cell in row)]
    columns = _columns(filled[0]) if len(filled) == 1 else None
    return {"sheets": list(workbook.sheet_names), "columns": columns}, []


def _columns(rows: list[list[Any]]) -> list[dict[str, Any]]:
    """Columns by the names in the first row; empty rows and columns are none."""
    header, *rest = (row for row in rows if any(cell != "" for cell in row))
    columns = [[row[place] if place < len(row) else "" for row in rest] for place in range(len(header))]
    return [
        {"name": str(_as_text(name) or ""), **_typed(cells)}
        for name, cells in zip(header, columns, strict=True)
        if name != "" or any(cell != "" for cell in cells)
    ]


def _typed(cells: list[Any]) -> dict[str, Any]:
    """A column of numbers, of times, or else of text."""
    there = [cell for cell in cells if cell != ""]
    if all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in there):
        return {"kind": "number", "cells": [None if cell == "" else float(cell) for cell in cells]}
    if all(isinstance(cell, date) for cell in there):  # a datetime is one
        return {"kind": "time", "cells": [None if cell == "" else _midnight(cell) for cell in cells]}
    return {"kind": "text", "cells": [_as_text(cell) for cell in cells]}


def _midnight(day: date) -> str:
    moment = day if isinstance(day, datetime) else datetime.combine(day, time())
    return moment.isoformat()


def _as_text(cell: Any) -> str | None:
    if cell == "":
        return None
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


def _limit_memory(limit: int) -> None:
    try:
        import resource
    except ImportError:  # there are no such limits on Windows
        return
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    least = limit if most == resource.RLIM_INFINITY else min(limit, most)
    resource.setrlimit(resource.RLIMIT_AS, (least, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    order = json.loads(sys.argv[1])
    _limit_memory(order["memory"])
    read = {"mat": _mat, "xlsx": _xlsx}[order["kind"]]
    try:
        words, arrays = read(order["path"], order["variable"])
    except BaseException as error:  # a panic in Rust is no Exception
        words, arrays = {"error": _complaint(error)}, []
    listed = [{"dtype": array.dtype.str, "shape": array.shape} for array in arrays]
    sys.stdout.buffer.write(json.dumps({**words, "arrays": listed}).encode() + b"\n")
    for array in arrays:
        sys.stdout.buffer.write(array.tobytes("F"))


def _complaint(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "it asks for more memory than a file of its size can need"
    return f"it is damaged, or not what its name says ({type(error).__name__}: {error})"


if __name__ == "__main__":
    main()
