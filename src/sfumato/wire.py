"""Plain data as bytes and back, without pickle: plans, queries, statistics and releases that are sent.

A message is a safetensors file. Its arrays are numbered in the order in which they are met; its metadata
hold one text, ``sfumato``: JSON with the version of the ``format`` and the rest, the ``tree``. Equal
data make equal bytes.

=======================  =========================================================================
in the tree              stands for
=======================  =========================================================================
a number, text, true,    itself; numbers that JSON has no word for are ``{"number": "inf"}``,
false, null              ``"-inf"`` or ``"nan"``
``{"array": 3}``         the array ``3``; ``{"scalar": 3}`` the one number in it, of NumPy's type
``{"tuple": [...]}``     a tuple, ``{"list": [...]}`` a list
``{"map": [[k, v], ..]}``  a mapping, in its order
``{"record": NAME,       a record of the kind NAME, which is its module and name inside sfumato;
"of": {...}}``           only kinds that are marked by ``@record`` can be made
=======================  =========================================================================

Whatever else is found is a ``WireError``: a message of another version, a kind that is not plain data, a
field too many or of another type. Arrays come back as new memory, aligned as kernels like it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib import import_module
from math import inf, isfinite, nan
from typing import Any

import numpy as np
from safetensors import deserialize
from safetensors.numpy import save

from sfumato.checks import shown
from sfumato.errors import SfumatoError
from sfumato.kernels.numba.simd import aligned_zeros
from sfumato.records import KINDS, is_record, name_of, parts_of
from sfumato.typed import hints_of, holds
from sfumato.types import Array

FORMAT = 1
_DEEPEST = 64
_NUMBERS = {"inf": inf, "-inf": -inf, "nan": nan}
_TYPES = {
    "BOOL": np.dtype(np.bool_),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
    "U64": np.dtype(np.uint64),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}


# Where records live. Other modules of the package, such as commands, are not imported for a message.
_HOMES = "data|engines|fit|kernels|models|owners|privacy|sites|solvers"
_HOME = re.compile(rf"({_HOMES})(\.[a-z_]+)+\.[A-Za-z_]+")


class WireError(SfumatoError, ValueError):
    """A message that is damaged, of another version, or no plain data."""


def to_wire(plain: Any) -> bytes:
    """A piece of plain data as one message."""
    arrays: list[Array] = []
    tree = _packed(plain, arrays, 0)
    numbered = {str(number): np.array(array, order="C") for number, array in enumerate(arrays)}
    try:
        about = json.dumps({"format": FORMAT, "tree": tree}, ensure_ascii=False, allow_nan=False)
        return save(numbered, metadata={"sfumato": about})
    except ValueError as error:  # whole numbers of thousands of digits, half of a character
        raise WireError(f"this cannot be sent: {error}") from error


def from_wire(message: bytes) -> Any:
    """What :func:`to_wire` was given; arrays that it was given twice come back as two."""
    try:
        tree = _tree(message)
        found = deserialize(message)  # type: ignore[no-untyped-call]
        arrays = {name: _array(**parts) for name, parts in found}
        return _unpacked(tree, arrays, 0)
    except WireError:
        raise
    except Exception as error:  # whatever foreign bytes lead to, here or in a record made of them
        raise WireError(f"not a message of sfumato, or a damaged one: {error}") from error


# -- there ----------------------------------------------------------------------------------------


def _packed(plain: Any, arrays: list[Array], depth: int) -> Any:
    if depth > _DEEPEST:
        raise WireError("data within data without end cannot be sent")
    if plain is None or type(plain) in (bool, str, int):
        return plain
    if type(plain) is np.ndarray or isinstance(plain, np.generic):  # which keeps its type: kernels mind
        array = np.asarray(plain)
        if array.dtype not in _TYPES.values():
            raise WireError(f"arrays of {array.dtype} cannot be sent")
        arrays.append(array)
        return {"scalar" if isinstance(plain, np.generic) else "array": len(arrays) - 1}
    if type(plain) is float:
        return plain if isfinite(plain) else {"number": repr(plain)}
    if is_record(plain):
        inner = {name: _packed(part, arrays, depth + 1) for name, part in parts_of(plain).items()}
        return {"record": name_of(type(plain)), "of": inner}
    if isinstance(plain, Mapping):
        items = [
            [_packed(key, arrays, depth + 1), _packed(value, arrays, depth + 1)]
            for key, value in plain.items()
        ]
        return {"map": items}
    for kind in (tuple, list):
        if type(plain) is kind:
            return {kind.__name__: [_packed(each, arrays, depth + 1) for each in plain]}
    raise WireError(f"{shown(plain)} is no plain data: a {type(plain).__name__} cannot be sent")


# -- and back -------------------------------------------------------------------------------------


def _tree(message: bytes) -> Any:
    """From the metadata of a safetensors file, which its library gives only of files on disk."""
    size = int.from_bytes(message[:8], "little")
    if not 0 < size <= len(message) - 8:
        raise WireError("not a message of sfumato: its header is cut off")
    header = json.loads(message[8 : 8 + size])
    about = json.loads(header["__metadata__"]["sfumato"])
    if about["format"] != FORMAT:
        raise WireError(
            f"a message of format {shown(about['format'])}; this version reads format {FORMAT}"
        )
    return about["tree"]


def _array(dtype: str, shape: list[int], data: bytes) -> Array:
    if dtype not in _TYPES:
        raise WireError(f"an array of type {dtype} cannot have been sent")
    given = np.frombuffer(data, _TYPES[dtype]).reshape(shape)
    array = aligned_zeros(given.shape, given.dtype)
    array[...] = given
    return array


def _unpacked(tree: Any, arrays: Mapping[str, Array], depth: int) -> Any:
    if depth > _DEEPEST:
        raise WireError("a message within messages without end")
    if not isinstance(tree, dict):
        if isinstance(tree, list):
            raise WireError("a list stands where none can")
        return tree
    if tree.keys() == {"record", "of"}:
        parts = {name: _unpacked(part, arrays, depth + 1) for name, part in tree["of"].items()}
        return _made(tree["record"], parts)
    (word, content), *others = tree.items()
    if others:
        raise WireError(f"{shown(tree)} is nothing that can have been sent")
    if word == "array":
        return arrays[str(content)]
    if word == "scalar":
        return arrays[str(content)].reshape(())[()]
    if word == "number":
        return _NUMBERS[content]
    if word == "map":
        return {
            _unpacked(key, arrays, depth + 1): _unpacked(value, arrays, depth + 1)
            for key, value in content
        }
    made = [_unpacked(each, arrays, depth + 1) for each in content]
    return {"tuple": tuple, "list": list}[word](made)


def _made(name: Any, parts: dict[str, Any]) -> Any:
    """A record of a kind that is marked as one, its module imported if need be."""
    if name not in KINDS and isinstance(name, str) and _HOME.fullmatch(name):
        try:
            import_module("sfumato." + name.rpartition(".")[0])
        except ImportError as error:
            raise WireError(f"there is no plain data of kind {shown(name)}") from error
    if name not in KINDS:
        raise WireError(f"there is no plain data of kind {shown(name)}")
    hints = hints_of(KINDS[name])
    if parts.keys() != hints.keys():
        raise WireError(f"a {name} has the parts {', '.join(hints)}, not {', '.join(parts)}")
    for part, hint in hints.items():
        if not holds(parts[part], hint):
            raise WireError(f"{part} of a {name} cannot be {shown(parts[part])}")
    return KINDS[name](**parts)
