"""What all kinds of model folders have in common: the files of a description and its arrays, labels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np
from safetensors.numpy import save as save_tensors

from sfumato.data.tensor import Mode
from sfumato.errors import ModelFileError
from sfumato.privacy.guarantee import Guarantee
from sfumato.standards.deployment import MODEL, deployment, deployment_yaml
from sfumato.standards.label import label
from sfumato.standards.people import People
from sfumato.store.manifest import FORMAT
from sfumato.store.names import DEPLOYMENT, GUARANTEE_JSON, JSON, LABEL, TENSORS
from sfumato.typed import whole_number
from sfumato.types import Array

_PACKAGES = ("sfumato", "numpy", "numba", "safetensors")


def model_files(description: Mapping[str, Any], tensors: Mapping[str, Array]) -> dict[str, bytes]:
    """The two files that every model has, by name."""
    whole = {
        "format": FORMAT,
        **description,
        "versions": {name: _version(name) for name in _PACKAGES},
    }
    text = json.dumps(whole, indent=1, ensure_ascii=False, default=_plain)
    arrays = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    return {TENSORS: save_tensors(arrays), JSON: text.encode()}


def guarantee_files(guarantee: Guarantee) -> dict[str, bytes]:
    """The guarantee for programs, for people, and as a record whose missing facts people fill in."""
    text = json.dumps(guarantee.to_json(), indent=1, ensure_ascii=False)
    return {GUARANTEE_JSON: f"{text}\n".encode(), **record_files(guarantee, {}, _version("sfumato"))}


def record_files(
    guarantee: Guarantee, people: People, made_by: str, product: str = MODEL
) -> dict[str, bytes]:
    """A release's label and its record, with what people say; ``made_by`` is the version that fitted."""
    record = deployment(guarantee, people, product=product, version=made_by)
    return {
        LABEL: label(guarantee, people.get("contact")).encode(),
        DEPLOYMENT: deployment_yaml(record, people).encode(),
    }


@cache
def _version(package: str) -> str:
    return version(package)


def _plain(value: Any) -> Any:
    """What NumPy's numbers and arrays are in JSON."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise ModelFileError(f"a setting of type {type(value).__name__} cannot be written: {value!r}")


# -- modes ----------------------------------------------------------------------------------------


def mode_to_json(mode: Mode) -> dict[str, Any]:
    labels = None if mode.labels is None else mode.labels.tolist()
    return {"name": mode.name, "size": mode.size, "bin": mode.bin, "labels": labels}


def mode_from_json(mode: Any) -> Mode:
    name, labels = mode["name"], mode["labels"]
    if not isinstance(name, str):
        raise TypeError("the name of a mode is not a word")
    if labels is not None:
        kinds = {type(label) for label in labels}
        if not isinstance(labels, list) or not (kinds <= {int} or kinds <= {str}):
            raise TypeError(f"the labels of {name} are neither all words nor all whole numbers")
        labels = np.array(labels, dtype=object if kinds == {str} else np.int64)
    return Mode(name, whole_number(mode["size"], f"the size of {name}"), labels, mode["bin"])


def modes_from_json(modes: Any) -> tuple[Mode, ...]:
    found = tuple(mode_from_json(mode) for mode in modes)
    if len({mode.name for mode in found}) < len(found):
        raise ValueError("two modes have the same name")
    return found


def check_shape(name: str, array: Array, shape: Sequence[int]) -> None:
    """Nothing is broadcast, and nothing allocated by what a file merely says."""
    if array.shape != tuple(shape):
        raise ValueError(
            f"{name} has shape {array.shape}, which does not fit: it should be {tuple(shape)}"
        )


def check_precision(*parameters: Array) -> None:
    """All parameters of a model are of one type, which kernels are made for."""
    kinds = {array.dtype for array in parameters}
    if len(kinds) != 1 or not kinds <= {np.dtype(np.float64), np.dtype(np.float32)}:
        raise ValueError("its parameters are not all of float64, or all of float32")
