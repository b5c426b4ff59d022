"""Models on disk: numbers as safetensors, all else as JSON. No pickle, and writing is atomic.

A model folder holds ``model.safetensors`` (rows, biases, core) and ``model.json`` (kind, settings,
modes with their labels, versions, and the checksum of the first file).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from sfumato.data.tensor import Mode, check_bounds
from sfumato.errors import ModelFileError, SfumatoError
from sfumato.models.multilinear import CPModel, Multilinear, TuckerModel

FORMAT = 1
_JSON, _TENSORS = "model.json", "model.safetensors"


@dataclass(frozen=True)
class StoredModel:
    """All that a fitted model needs to predict, and how it came about."""

    kind: str
    model: Multilinear
    modes: tuple[Mode, ...]
    bounds: tuple[float, float] | None
    settings: dict[str, Any]
    notes: dict[str, Any] = field(default_factory=dict)


def save_model(stored: StoredModel, folder: str | os.PathLike[str]) -> Path:
    """Write a model folder, replacing an older model there; nothing is left if writing fails."""
    model = stored.model
    tensors = {f"factor_{m}": np.ascontiguousarray(f) for m, f in enumerate(model.factors)}
    tensors |= {f"bias_{m}": np.ascontiguousarray(b) for m, b in enumerate(model.mode_biases)}
    if isinstance(model, TuckerModel):
        tensors["core"] = np.ascontiguousarray(model.core)
    data = save_tensors(tensors)
    description = {
        "format": FORMAT,
        "kind": stored.kind,
        "structure": "tucker" if isinstance(model, TuckerModel) else "cp",
        "mean": model.mean,
        "bounds": stored.bounds,
        "modes": [_mode_to_json(mode) for mode in stored.modes],
        "settings": stored.settings,
        "notes": stored.notes,
        "versions": {name: version(name) for name in ("sfumato", "numpy", "numba", "safetensors")},
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    text = json.dumps(description, indent=1, ensure_ascii=False, default=_plain)
    with replacing_folder(Path(folder)) as new:
        (new / _TENSORS).write_bytes(data)
        (new / _JSON).write_text(text, encoding="utf-8")
    return Path(folder)


def load_model(folder: str | os.PathLike[str]) -> StoredModel:
    """Read a model folder; whatever is wrong with it is a ``ModelFileError`` that says so."""
    path = Path(folder)
    description = _read_json(path)
    data = _read_tensors(path, description)
    try:
        modes = tuple(_mode_from_json(mode) for mode in description["modes"])
        factors = [data[f"factor_{m}"] for m in range(len(modes))]
        biases = [data[f"bias_{m}"] for m in range(len(modes))]
        mean = float(description["mean"])
        model: Multilinear
        if description["structure"] == "tucker":
            model = TuckerModel.from_factors(factors, data["core"], mean=mean, biases=biases)
        else:
            model = CPModel.from_factors(factors, mean=mean, biases=biases)
        if model.shape != tuple(mode.size for mode in modes):
            raise ModelFileError(f"{path} is damaged: its factors do not fit its labels")
        return StoredModel(
            description["kind"],
            model,
            modes,
            check_bounds(description["bounds"]),
            description["settings"],
            description["notes"],
        )
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, SfumatoError) and isinstance(error, OSError):
            raise
        raise ModelFileError(f"{path} is damaged: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise ModelFileError(f"there is no model folder {path}")
    if not (path / _JSON).is_file():
        raise ModelFileError(f"{path} is not a sfumato model: it holds no {_JSON}")
    try:
        description = json.loads((path / _JSON).read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path / _JSON} is damaged or cut off: {error}") from error
    if not isinstance(description, dict) or "format" not in description:
        raise ModelFileError(f"{path / _JSON} was not written by sfumato")
    if description["format"] != FORMAT:
        raise ModelFileError(
            f"{path} has format {description['format']}, this version of sfumato reads {FORMAT}; "
            "use the version that wrote it, or fit again"
        )
    return description


def _read_tensors(path: Path, description: dict[str, Any]) -> dict[str, Any]:
    try:
        data = (path / _TENSORS).read_bytes()
    except OSError as error:
        raise ModelFileError(f"{path} is damaged: {_TENSORS} cannot be read: {error}") from error
    if hashlib.sha256(data).hexdigest() != description.get("sha256"):
        raise ModelFileError(
            f"{path / _TENSORS} is cut off or belongs to another model: its checksum differs"
        )
    try:
        return dict(load_tensors(data))
    except SafetensorError as error:
        raise ModelFileError(f"{path / _TENSORS} is damaged: {error}") from error


def _plain(value: Any) -> Any:
    """What NumPy's numbers and arrays are in JSON."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise ModelFileError(f"a setting of type {type(value).__name__} cannot be written: {value!r}")


def _mode_to_json(mode: Mode) -> dict[str, Any]:
    labels = None if mode.labels is None else mode.labels.tolist()
    return {"name": mode.name, "size": mode.size, "bin": mode.bin, "labels": labels}


def _mode_from_json(mode: dict[str, Any]) -> Mode:
    labels = mode["labels"]
    if labels is not None:
        whole = all(isinstance(label, int) for label in labels)
        labels = np.array(labels, dtype=np.int64 if whole else object)
    return Mode(mode["name"], mode["size"], labels, mode["bin"])


def check_destination(folder: Path) -> None:
    """Refuse to write a model where something else is; cheap, so that a fit can be spared."""
    if folder.exists() and not folder.is_dir():
        raise ModelFileError(f"{folder} is a file; name a folder")
    is_model = (folder / _JSON).is_file() and (folder / _TENSORS).is_file()
    if folder.is_dir() and any(folder.iterdir()) and not is_model:
        raise ModelFileError(f"{folder} is not empty and holds no model; name another folder")


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """A new folder to write to, which takes the place of ``folder`` once all is written.

    A folder that is there already is replaced only if it is empty or an earlier model.
    """
    check_destination(folder)
    target = folder.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield new
        for file in new.rglob("*"):
            if file.is_file():
                _sync(file)
        new.chmod(0o755)
        if target.is_dir():
            _swap(new, target)
        else:
            new.rename(target)
        _sync(target.parent)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _swap(new: Path, target: Path) -> None:
    """Replace a folder; the old one is put back if the new one cannot take its place."""
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        target.rename(aside / "old")
        try:
            new.rename(target)
        except BaseException:
            (aside / "old").rename(target)
            raise
    except BaseException:
        with suppress(OSError):
            aside.rmdir()  # unless it still holds the old model
        raise
    shutil.rmtree(aside)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
