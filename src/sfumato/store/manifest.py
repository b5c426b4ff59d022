"""The manifest of a folder: names, sizes and SHA-256 hashes of all its files, and nothing else.

A folder is read once, and what was read is held against the manifest. So a cut, a flipped bit, an
edit, a file too many or too few is noticed; a forger can write a new manifest, and that is what
signatures are for.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sfumato.checks import as_path
from sfumato.errors import ModelFileError, OldFormatWarning
from sfumato.privacy.guarantee import Guarantee
from sfumato.store.names import GUARANTEE_JSON, JSON, MANIFEST, TENSORS, UNLISTED
from sfumato.store.reading import SMALL, damage, parse_json, parse_tensors, read_file
from sfumato.store.replacing import recover
from sfumato.typed import check_fields
from sfumato.types import Array

FORMAT = 2
_WITHOUT_MANIFEST = 1  # the format before


def manifest_of(files: Mapping[str, bytes]) -> bytes:
    """The manifest of some files; the same bytes for the same files."""
    return _written(
        {
            name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in files.items()
        }
    )


def _written(files: Mapping[str, Any]) -> bytes:
    text = json.dumps({"format": FORMAT, "files": files}, indent=1, sort_keys=True, ensure_ascii=True)
    return f"{text}\n".encode()


def with_manifest(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {**files, MANIFEST: manifest_of(files)}


@dataclass(frozen=True)
class Contents:
    """All that a model's folder holds, as it was when it agreed with its manifest."""

    path: Path
    files: Mapping[str, bytes]
    manifest: bytes | None  # None in the format that had none

    @cached_property
    def description(self) -> dict[str, Any]:
        return _parse_description(self.files[JSON], self.path)

    @cached_property
    def tensors(self) -> dict[str, Array]:
        content = self.files[TENSORS]
        if self.manifest is None:
            _check_sum(content, self.description, self.path)
        return parse_tensors(content, self.path / TENSORS)

    @cached_property
    def guarantee(self) -> Guarantee | None:
        if GUARANTEE_JSON not in self.files:
            return None
        path = self.path / GUARANTEE_JSON
        with damage(path):
            return Guarantee.from_json(parse_json(self.files[GUARANTEE_JSON], path))


def read_folder(folder: str | os.PathLike[str]) -> Contents:
    """The files of a model's folder, each as its manifest says."""
    path = existing_folder(folder)
    names = _names_in(path)
    if MANIFEST not in names:
        return _without_manifest(path, names)
    manifest = read_file(path / MANIFEST, SMALL)
    listed = _listed(manifest, path / MANIFEST)
    _check_names(path, names - UNLISTED, set(listed))
    with damage(path / MANIFEST):
        files = {name: _checked(path / name, **about) for name, about in listed.items()}
    contents = Contents(path, files, manifest)
    if contents.description["format"] != FORMAT:
        raise ModelFileError(f"{path} is damaged: {JSON} and {MANIFEST} are of different formats")
    return contents


def existing_folder(folder: str | os.PathLike[str]) -> Path:
    """A folder that is there, or was before a save that was killed."""
    path = as_path("folder", folder)
    recover(path)
    try:
        found = path.is_dir()
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}") from error
    if not found:
        raise ModelFileError(f"there is no model folder {path}")
    return path


def read_description(path: Path) -> dict[str, Any]:
    """What ``model.json`` says, by itself."""
    return _parse_description(read_file(path / JSON), path)


def _parse_description(content: bytes, path: Path) -> dict[str, Any]:
    description = parse_json(content, path / JSON)
    if not isinstance(description, dict) or "format" not in description:
        raise ModelFileError(f"{path / JSON} was not written by sfumato")
    _check_format(description["format"], path)
    return description


def _check_format(found: Any, path: Path) -> None:
    if type(found) is not int or not _WITHOUT_MANIFEST <= found <= FORMAT:
        raise ModelFileError(
            f"{path} has format {str(found)[:20]}, this version of sfumato reads {_WITHOUT_MANIFEST} to "
            f"{FORMAT}; use the version that wrote it, or fit again"
        )


def _names_in(path: Path) -> set[str]:
    try:
        return set(os.listdir(path))
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}") from error


def _listed(manifest: bytes, path: Path) -> dict[str, dict[str, Any]]:
    """The files that a manifest lists; it has to be written exactly as sfumato writes one."""
    whole = parse_json(manifest, path)
    with damage(path):
        _check_format(whole["format"], path.parent)
        files: dict[str, dict[str, Any]] = whole["files"]
        if manifest != _written(files):
            raise ModelFileError(f"{path} is damaged: it is not as sfumato writes manifests")
        for name, about in files.items():
            check_fields(about, {"size": int, "sha256": str}, name)
    return files


def _check_names(path: Path, there: set[str], listed: set[str]) -> None:
    for name in sorted((listed | {JSON, TENSORS}) - there):
        raise ModelFileError(f"{path} is damaged: {name} is missing")
    for name in sorted(there - listed):
        raise ModelFileError(
            f"{path} holds {name}, which is not part of the model by its {MANIFEST}: move it elsewhere"
        )


def _checked(path: Path, size: int, sha256: str) -> bytes:
    content = read_file(path, size)
    if len(content) != size:
        raise ModelFileError(
            f"{path} was cut off or edited: it has {len(content):,} bytes, {MANIFEST} says {size:,}"
        )
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ModelFileError(f"{path} was changed: its checksum differs from that in {MANIFEST}")
    return content


# -- the format without manifests -----------------------------------------------------------------


def _without_manifest(path: Path, names: set[str]) -> Contents:
    if JSON not in names:
        raise ModelFileError(f"{path} is not a sfumato model: it holds no {JSON}")
    if read_description(path)["format"] != _WITHOUT_MANIFEST:
        raise ModelFileError(
            f"{path} is damaged: it holds no {MANIFEST}, so that nothing can be checked"
        )
    optional = {GUARANTEE_JSON} & names
    files = {name: read_file(path / name) for name in (JSON, TENSORS, *optional)}
    warnings.warn(
        f"{path} was written by an earlier version of sfumato, without a manifest: changes to it cannot "
        "be noticed. Load it and save it again",
        OldFormatWarning,
        stacklevel=2,
    )
    return Contents(path, files, None)


def _check_sum(content: bytes, description: dict[str, Any], path: Path) -> None:
    if hashlib.sha256(content).hexdigest() != description.get("sha256"):
        raise ModelFileError(
            f"{path / TENSORS} is cut off or belongs to another model: its checksum differs"
        )
