"""Models of one tensor on disk: a model folder, and of a private fit a release and its owners' rows."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.data.tensor import Mode, check_bounds
from sfumato.errors import ModelFileError
from sfumato.models.doubts import Errors
from sfumato.models.multilinear import CPModel, Multilinear, TuckerModel
from sfumato.models.own_means import OwnMeans
from sfumato.models.own_prior import OwnPrior
from sfumato.models.told import Told
from sfumato.privacy.guarantee import Guarantee
from sfumato.store.manifest import Contents, existing_folder, read_folder, with_manifest
from sfumato.store.names import JSON, MANIFEST, NOT_FOR_RELEASE, OWNER, RELEASE
from sfumato.store.reading import damage
from sfumato.store.replacing import check_no_release, replacing_folder, write_files
from sfumato.store.writing import (
    check_precision,
    check_shape,
    guarantee_files,
    mode_from_json,
    mode_to_json,
    model_files,
    modes_from_json,
)
from sfumato.typed import finite_number, whole_number
from sfumato.types import Array

_OWN_ROWS = "own rows"


@dataclass(frozen=True)
class StoredModel:
    """All that a fitted model needs to predict, and how it came about."""

    kind: str
    model: Multilinear
    modes: tuple[Mode, ...]
    bounds: tuple[float, float] | None
    settings: dict[str, Any]
    notes: dict[str, Any] = field(default_factory=dict)
    guarantee: Guarantee | None = None
    local: int | None = None  # mode whose rows are not part of a release
    own_prior: OwnPrior | None = None  # how these rows are solved
    own_means: OwnMeans | None = None  # what other relations of the same fit say of them
    errors: Errors | None = None  # what intervals are made of
    own_entries: Array | None = None  # how many each owner has, where intervals need it
    told: Told | None = None  # what an update goes on from


# -- writing --------------------------------------------------------------------------------------


def save_model(stored: StoredModel, folder: str | os.PathLike[str]) -> Path:
    """Write a model folder, replacing an older model there; nothing is left if writing fails."""
    return write_folder(with_manifest(_model_files(stored)), folder)


_ALL_OWN = (
    b"This model was fitted to raw data of its owner, beside noisy values of others.\n"
    b"It is as secret as the raw data, and so are its predictions: keep it with its owner.\n"
)


def save_own(stored: StoredModel, folder: str | os.PathLike[str]) -> Path:
    """Write a model that is all of its owner's: there is no release of it."""
    return write_own(with_manifest({**_model_files(stored), NOT_FOR_RELEASE: _ALL_OWN}), folder)


def write_own(files: dict[str, bytes], folder: str | os.PathLike[str]) -> Path:
    """Files that are all of their owner's."""
    with replacing_folder(folder) as new:
        (new / OWNER).mkdir(mode=0o700)
        write_files(new / OWNER, files)
    return Path(folder)


def save_release(stored: StoredModel, folder: str | os.PathLike[str]) -> Path:
    """Write what a private model's guarantee covers, and nothing else."""
    return write_folder(release_files(stored), folder)


def save_private(stored: StoredModel, folder: str | os.PathLike[str]) -> Path:
    """Write a private model's release, and beside it the rows that stay with their owners."""
    release = release_files(stored)
    owner = None if stored.local is None else _owner_files(stored, stored.local, release[MANIFEST])
    return write_private(release, owner, folder)


def write_folder(files: dict[str, bytes], folder: str | os.PathLike[str]) -> Path:
    """Files as a folder that takes the place of an older one; nothing is left if writing fails."""
    with replacing_folder(folder) as new:
        write_files(new, files)
    return Path(folder)


def write_private(
    release: dict[str, bytes],
    owner: dict[str, bytes] | None,
    folder: str | os.PathLike[str],
    beside: Mapping[str, bytes] | None = None,
) -> Path:
    """A release, and beside it what stays with owners, and files that stay with the holder."""
    check_no_release(folder)
    with replacing_folder(folder) as new:
        (new / RELEASE).mkdir()
        write_files(new / RELEASE, release)
        write_files(new, dict(beside or {}))
        for name in beside or ():
            (new / name).chmod(0o600)
        if owner is not None:
            (new / OWNER).mkdir(mode=0o700)
            write_files(new / OWNER, owner)
    return Path(folder)


def rebound_owner(folder: Path, release: Contents, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of owners' rows of a release, which say that they belong to another writing of it."""
    owner = read_folder(folder)
    if owner.description.get("release") != digest(release.manifest or b""):
        raise ModelFileError(f"{folder} belongs to another release than the one beside it")
    description = {**owner.description, "release": digest(files[MANIFEST])}
    text = json.dumps(description, indent=1, ensure_ascii=False)
    return with_manifest({**owner.files, JSON: text.encode()})


def _model_files(stored: StoredModel) -> dict[str, bytes]:
    return model_files(*described(stored))


def described(stored: StoredModel) -> tuple[dict[str, Any], dict[str, Array]]:
    """A model in words, and its arrays by name; without rows that stay with their owners."""
    model = stored.model
    tensors = {}
    for m in range(model.order):
        if m != stored.local:
            tensors[f"factor_{m}"] = model.factors[m]
            tensors[f"bias_{m}"] = model.mode_biases[m]
    if isinstance(model, TuckerModel):
        tensors["core"] = model.core
    description = {
        "kind": stored.kind,
        "structure": "tucker" if isinstance(model, TuckerModel) else "cp",
        "ranks": model.ranks,
        "mean": model.mean,
        "bounds": stored.bounds,
        "modes": [mode_to_json(mode) for mode in stored.modes],
        "local": stored.local,
        "settings": stored.settings,
        "notes": stored.notes,
    }
    if stored.own_prior is not None:
        description["own_prior"] = stored.own_prior.to_json()
        tensors |= stored.own_prior.tensors()
    if stored.errors is not None:
        description["errors"] = stored.errors.to_json()
        tensors |= stored.errors.tensors()
    if stored.told is not None:
        description["told"] = stored.told.to_json()
        tensors |= stored.told.tensors()
    return description, tensors


def release_files(stored: StoredModel) -> dict[str, bytes]:
    """What a private model's guarantee covers, and nothing else: the files of its release, by name."""
    if stored.guarantee is None:
        raise ModelFileError("a model without a guarantee cannot be released")
    return with_manifest(
        {**_model_files(replace(stored, modes=emptied(stored))), **guarantee_files(stored.guarantee)}
    )


def emptied(stored: StoredModel) -> tuple[Mode, ...]:
    """The modes as a release has them: of owners it says nothing but the name of their mode."""
    return tuple(
        Mode(mode.name, 0, np.empty(0, object), mode.bin) if m == stored.local else mode
        for m, mode in enumerate(stored.modes)
    )


def _owner_files(stored: StoredModel, local: int, release: bytes) -> dict[str, bytes]:
    """Rows and labels that stay with their owners, and which release they belong to."""
    description, tensors = own_described(stored, local)
    description = {"kind": _OWN_ROWS, "release": digest(release), **description}
    warning = owner_warning(stored.modes[local].name)
    return with_manifest({**model_files(description, tensors), NOT_FOR_RELEASE: warning})


def own_described(stored: StoredModel, local: int) -> tuple[dict[str, Any], dict[str, Array]]:
    """Rows of owners: their labels, and the arrays by name."""
    tensors = {"factor": stored.model.factors[local], "bias": stored.model.mode_biases[local]}
    if stored.own_entries is not None:
        tensors["entries"] = np.ascontiguousarray(stored.own_entries, np.int64)
    return {"mode": mode_to_json(stored.modes[local])}, tensors


def owner_warning(name: str) -> bytes:
    """What lies beside rows that must not be handed out."""
    return (
        f"Each row belongs to one {name} and depends on its data alone without noise.\n"
        "Show it to its owner only. The folder `release` beside this one is what may be handed out.\n"
    ).encode()


def digest(manifest: bytes) -> str:
    return hashlib.sha256(manifest).hexdigest()


# -- reading --------------------------------------------------------------------------------------


def load_model(folder: str | os.PathLike[str]) -> StoredModel:
    """Read a model folder; whatever is wrong with it is a ``ModelFileError`` that says so.

    Of a private fit the release is read, with the owners' rows where they lie beside it.
    """
    path = existing_folder(folder)
    if not os.path.lexists(path / RELEASE):
        alone = (path / OWNER / JSON).is_file() and not (path / JSON).is_file()
        return _model_of(read_folder(path / OWNER if alone else path))
    release = read_folder(path / RELEASE)
    stored = _model_of(release)
    if stored.local is None or not os.path.lexists(path / OWNER):
        return stored
    return _with_owners(stored, stored.local, release, read_folder(path / OWNER))


def _model_of(contents: Contents) -> StoredModel:
    description, path = contents.description, contents.path
    if description.get("kind") == _OWN_ROWS:
        raise ModelFileError(f"{path} holds rows of owners alone: load the folder around it")
    with damage(path):
        return assembled(description, contents.tensors, contents.guarantee)


def assembled(
    description: Mapping[str, Any], tensors: Mapping[str, Array], guarantee: Guarantee | None
) -> StoredModel:
    """What :func:`described` gave; whatever is wrong with it is an error."""
    modes = modes_from_json(description["modes"])
    if len(modes) < 2:
        raise ValueError("a model has two modes or more")
    local = _local(description.get("local"), modes, guarantee)
    model = _assembled(description, tensors, [mode.size for mode in modes], local)
    return StoredModel(
        description["kind"],
        model,
        modes,
        _bounds(description["bounds"]),
        dict(description["settings"]),
        dict(description["notes"]),
        guarantee,
        local,
        _own_prior(description.get("own_prior"), tensors, model, local),
        errors=_errors(description.get("errors"), tensors, model, local),
        told=_told(description.get("told"), tensors, model, local),
    )


def as_released(stored: StoredModel) -> StoredModel:
    """What a reader of a private model's release has of it."""
    files = release_files(stored)
    return _model_of(Contents(Path(RELEASE), files, files[MANIFEST]))


def _local(local: Any, modes: tuple[Mode, ...], guarantee: Guarantee | None) -> int | None:
    if local is not None:
        whole_number(local, "the mode whose rows stay with their owners")
        if guarantee is None or modes[local].size:
            raise ValueError("rows stay with their owners in the release of a private fit alone")
    if any(mode.size == 0 for m, mode in enumerate(modes) if m != local):
        raise ValueError("a mode has no levels")
    return None if local is None else int(local)


def _bounds(bounds: Any) -> tuple[float, float] | None:
    if bounds is None:
        return None
    return check_bounds(tuple(finite_number(bound, "a bound") for bound in bounds))  # type: ignore[arg-type]


def _assembled(
    description: Mapping[str, Any], tensors: Mapping[str, Array], sizes: list[int], local: int | None
) -> Multilinear:
    """The model; every array has to have the shape that labels and ranks ask for."""
    shared = [m for m in range(len(sizes)) if m != local]
    columns = [tensors[f"factor_{m}"].shape[-1] for m in shared]
    ranks = description.get("ranks")  # the earliest releases have none
    ranks = columns if ranks is None else [whole_number(rank, "a rank", least=1) for rank in ranks]
    if len(ranks) != len(sizes):
        raise ValueError(f"it has {len(sizes)} modes and {len(ranks)} ranks")
    tucker = {"tucker": True, "cp": False}[description["structure"]]
    parameters = {"core": tensors["core"]} if tucker else {}
    for m in shared:
        parameters |= {name: tensors[name] for name in (f"factor_{m}", f"bias_{m}")}
        check_shape(f"factor_{m}", tensors[f"factor_{m}"], (sizes[m], ranks[m]))
        check_shape(f"bias_{m}", tensors[f"bias_{m}"], (sizes[m],))
    check_precision(*parameters.values())
    if local is not None:
        dtype = tensors[f"factor_{shared[0]}"].dtype
        parameters[f"factor_{local}"] = np.empty((0, ranks[local]), dtype)
        parameters[f"bias_{local}"] = np.empty(0, dtype)
    factors, biases = (
        [parameters[f"{name}_{m}"] for m in range(len(sizes))] for name in ("factor", "bias")
    )
    mean = finite_number(description["mean"], "the mean")
    if tucker:
        return TuckerModel.from_factors(factors, parameters["core"], mean=mean, biases=biases)
    return CPModel.from_factors(factors, mean=mean, biases=biases)


def _own_prior(
    numbers: Any, tensors: Mapping[str, Array], model: Multilinear, local: int | None
) -> OwnPrior | None:
    """How rows are solved that stay with their owners; an older release does not say it."""
    if numbers is None:
        return None
    for name, number in numbers.items():
        if number is not None:
            finite_number(number, name)
    if local is None or whole_number(numbers["mode"], "the mode of own rows") != local:
        raise ValueError("the prior of own rows is one of another mode")
    own = {name: array for name, array in tensors.items() if name.startswith("own_")}
    if any(array.dtype != np.float64 for array in own.values()):
        raise ValueError("the prior of own rows is not of float64")
    prior = OwnPrior.from_parts(numbers, own, model.order)
    prior.check(model.shape, model.ranks)
    return prior


def _errors(
    numbers: Any, tensors: Mapping[str, Array], model: Multilinear, local: int | None
) -> Errors | None:
    """What intervals are made of; a release that was not asked for them does not say it."""
    if numbers is None:
        return None
    finite_number(numbers["scatter"], "the scatter")
    if numbers["own_mode"] is not None:
        whole_number(numbers["own_mode"], "the mode of own rows")
        finite_number(numbers["own_precision"], "the precision of own entries")
    mine = {name: array for name, array in tensors.items() if name.startswith("errors_")}
    if any(array.dtype != np.float64 for array in mine.values()):
        raise ValueError("what intervals are made of is not of float64")
    errors = Errors.from_parts(numbers, mine, model.order)
    errors.check(model.shape, local)
    return errors


def _told(
    numbers: Any, tensors: Mapping[str, Array], model: Multilinear, local: int | None
) -> Told | None:
    """What an update goes on from; an older release, and some methods, do not say it."""
    if numbers is None:
        return None
    for number in (numbers["mean_error"], numbers["spread"], *(numbers["own"] or ())):
        if number is not None:
            finite_number(number, "what periods have told")
    whole_number(numbers["periods"], "the number of periods", least=1)
    for column in numbers["free"]:
        whole_number(column, "a component")
    mine = {name: array for name, array in tensors.items() if name.startswith("told_")}
    if any(array.dtype != np.float64 for array in mine.values()):
        raise ValueError("what periods have told is not of float64")
    told = Told.from_parts(numbers, mine, model.order)
    told.check(model.shape, model.ranks, local)
    return told


def _with_owners(stored: StoredModel, local: int, release: Contents, owner: Contents) -> StoredModel:
    """A release with the rows that stayed with their owners put back."""
    with damage(owner.path):
        if owner.manifest is not None and owner.description["release"] != digest(
            release.manifest or b""
        ):
            raise ModelFileError(f"{owner.path} belongs to another release than the one beside it")
        return with_own_rows(stored, local, owner.description, owner.tensors)


def with_own_rows(
    stored: StoredModel, local: int, description: Mapping[str, Any], tensors: Mapping[str, Array]
) -> StoredModel:
    """What :func:`own_described` gave, put back into a release."""
    mode = mode_from_json(description["mode"])
    if mode.name != stored.modes[local].name:
        raise ModelFileError("these rows of owners belong to another release")
    rows, biases = tensors["factor"], tensors["bias"]
    check_precision(rows, biases, stored.model.rows)
    check_shape("factor", rows, (mode.size, stored.model.ranks[local]))
    check_shape("bias", biases, (mode.size,))
    entries = tensors.get("entries")
    if entries is not None:
        check_shape("entries", entries, (mode.size,))
        if entries.dtype != np.int64 or (entries < 0).any():
            raise ValueError("numbers of own entries are whole and not below zero")
    model = stored.model.with_rows(local, rows, biases)
    modes = tuple(mode if m == local else other for m, other in enumerate(stored.modes))
    return replace(stored, model=model, modes=modes, own_entries=entries)
