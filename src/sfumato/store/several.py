"""Private fits of several relations on disk: one release for all, and the rows that owners keep."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sfumato.errors import ModelFileError
from sfumato.models.own_means import OwnMeans, ReleasedRelation
from sfumato.privacy.guarantee import Guarantee
from sfumato.store.manifest import Contents, existing_folder, read_folder, with_manifest
from sfumato.store.models import (
    StoredModel,
    assembled,
    described,
    digest,
    emptied,
    own_described,
    owner_warning,
    with_own_rows,
    write_folder,
    write_private,
)
from sfumato.store.names import MANIFEST, NOT_FOR_RELEASE, OWNER, RELEASE
from sfumato.store.reading import damage
from sfumato.store.writing import guarantee_files, model_files
from sfumato.types import Array

PRIVATE_COUPLED = "private coupled"
_OWN = "own rows of several relations"


class StoredSeveral(NamedTuple):
    """Models of relations by name, under one guarantee."""

    parts: dict[str, StoredModel]
    settings: dict[str, Any]
    guarantee: Guarantee


def coupled_release_files(stored: StoredSeveral) -> dict[str, bytes]:
    """What the guarantee covers, and nothing else: the files of a release, by name."""
    relations, tensors = [], dict[str, Array]()
    for number, (name, part) in enumerate(stored.parts.items()):
        description, arrays = described(replace(part, modes=emptied(part)))
        if part.own_means is not None and (means := part.own_means.to_json()) is not None:
            description["own_means"] = means
            arrays |= part.own_means.tensors()
        relations.append({"name": name, **description})
        tensors |= {f"relation_{number}_{key}": array for key, array in arrays.items()}
    about = {"kind": PRIVATE_COUPLED, "relations": relations, "settings": stored.settings}
    return with_manifest({**model_files(about, tensors), **guarantee_files(stored.guarantee)})


def several_as_released(stored: StoredSeveral) -> StoredSeveral:
    """What a reader of the release has of it."""
    files = coupled_release_files(stored)
    return _several_of(Contents(Path(RELEASE), files, files[MANIFEST]))


def save_coupled_release(stored: StoredSeveral, folder: str | os.PathLike[str]) -> Path:
    """Write a release, replacing an older one there; nothing is left if writing fails."""
    return write_folder(coupled_release_files(stored), folder)


def save_private_coupled(stored: StoredSeveral, folder: str | os.PathLike[str]) -> Path:
    """Write a release, and beside it the rows that stay with their owners."""
    release = coupled_release_files(stored)
    return write_private(release, _owner_files(stored, release[MANIFEST]), folder)


def _owner_files(stored: StoredSeveral, release: bytes) -> dict[str, bytes] | None:
    relations, tensors, owner = [], dict[str, Array](), ""
    for number, (name, part) in enumerate(stored.parts.items()):
        if part.local is not None:
            owner = part.modes[part.local].name
            description, arrays = own_described(part, part.local)
            relations.append({"name": name, "number": number, **description})
            tensors |= {f"relation_{number}_{key}": array for key, array in arrays.items()}
    if not relations:
        return None
    about = {"kind": _OWN, "release": digest(release), "relations": relations}
    return with_manifest({**model_files(about, tensors), NOT_FOR_RELEASE: owner_warning(owner)})


# -- reading --------------------------------------------------------------------------------------


def load_private_coupled(folder: str | os.PathLike[str]) -> StoredSeveral:
    """A release, with the owners' rows where they lie beside it."""
    path = existing_folder(folder)
    if not os.path.lexists(path / RELEASE):
        return _several_of(read_folder(path))
    release = read_folder(path / RELEASE)
    stored = _several_of(release)
    if not os.path.lexists(path / OWNER):
        return stored
    return _with_owners(stored, release, read_folder(path / OWNER))


def _several_of(contents: Contents) -> StoredSeveral:
    description, path = contents.description, contents.path
    if description.get("kind") != PRIVATE_COUPLED:
        raise ModelFileError(f"{path} holds another model: use sfumato.load")
    if contents.guarantee is None:
        raise ModelFileError(f"{path} holds a private fit without its guarantee")
    with damage(path):
        parts = {}
        for number, relation in enumerate(description["relations"]):
            name = relation["name"]
            if not isinstance(name, str) or name in parts:
                raise ValueError("its relations have no names of their own")
            arrays = _of_relation(contents.tensors, number)
            parts[name] = assembled(relation, arrays, contents.guarantee)
        if not parts:
            raise ValueError("it has no relations")
        parts = _with_means(parts, description["relations"], contents.tensors)
        return StoredSeveral(parts, dict(description["settings"]), contents.guarantee)


def _with_means(
    parts: dict[str, StoredModel], described: Sequence[Mapping[str, Any]], tensors: Mapping[str, Array]
) -> dict[str, StoredModel]:
    """Relations with what others say of their own rows; an earlier release does not say it."""
    relations = [ReleasedRelation(each.model, each.bounds, each.local) for each in parts.values()]
    owners = [None if p.local is None else p.modes[p.local].name for p in parts.values()]
    made = dict(parts)
    for number, (name, relation) in enumerate(zip(parts, described, strict=True)):
        numbers = relation.get("own_means")
        if numbers is not None:
            arrays = _of_relation(tensors, number)
            means = OwnMeans.from_parts(numbers, arrays, relations, number)
            if means.own and any(owners[s.part] != owners[number] for s in means.own.sources):
                raise ValueError("own means are made from relations of other owners")
            made[name] = replace(parts[name], own_means=means)
    return made


def _of_relation(tensors: Mapping[str, Array], number: int) -> dict[str, Array]:
    start = f"relation_{number}_"
    return {key.removeprefix(start): array for key, array in tensors.items() if key.startswith(start)}


def _with_owners(stored: StoredSeveral, release: Contents, owner: Contents) -> StoredSeveral:
    """A release with the rows that stayed with their owners put back."""
    description = owner.description
    with damage(owner.path):
        if description.get("kind") != _OWN or (
            owner.manifest is not None and description["release"] != digest(release.manifest or b"")
        ):
            raise ModelFileError(f"{owner.path} belongs to another release than the one beside it")
        parts = dict(stored.parts)
        for relation in description["relations"]:
            part = parts[relation["name"]]
            if part.local is None:
                raise ValueError("all rows of this relation are released")
            number = list(parts).index(relation["name"])
            arrays = _of_relation(owner.tensors, number)
            parts[relation["name"]] = with_own_rows(part, part.local, relation, arrays)
        return stored._replace(parts=parts)
