"""Models on disk: numbers as safetensors, all else as JSON. No pickle, and writing is atomic.

A model folder holds ``model.safetensors`` (rows, biases, core), ``model.json`` (kind, settings, modes
with their labels, versions) and ``manifest.json`` (size and hash of every other file).

A private fit is kept in two folders. ``release`` is such a model folder, without the rows and labels
of a mode whose rows stay with their owners, but with what owners need to solve them, and with the
guarantee as JSON, on a page (``LABEL.md``) and as a record for a registry (``deployment.yaml``); it is
safe to hand out, and can be signed. ``owner`` holds those rows and
labels, and is not.
"""

from __future__ import annotations

import os
from typing import Any

from sfumato.privacy.guarantee import Guarantee
from sfumato.store.components import COMPONENTS, StoredComponents, load_components, save_components
from sfumato.store.coupled import COUPLED, StoredCoupled, load_coupled, save_coupled
from sfumato.store.manifest import FORMAT, existing_folder, read_description
from sfumato.store.models import (
    StoredModel,
    as_released,
    load_model,
    release_files,
    save_model,
    save_own,
    save_private,
    save_release,
)
from sfumato.store.names import JSON, OWNER, RELEASE, is_model
from sfumato.store.network import NETWORK, StoredNetwork, load_network, save_network
from sfumato.store.recording import conformance, write_record
from sfumato.store.replacing import check_destination, replacing_folder
from sfumato.store.reports import put_reports
from sfumato.store.several import (
    PRIVATE_COUPLED,
    StoredSeveral,
    coupled_release_files,
    load_private_coupled,
    save_coupled_release,
    save_private_coupled,
    several_as_released,
)
from sfumato.store.signatures import has_manifest, new_key, sign, signed_by, verify

__all__ = [
    "COMPONENTS",
    "COUPLED",
    "FORMAT",
    "NETWORK",
    "OWNER",
    "PRIVATE_COUPLED",
    "RELEASE",
    "StoredComponents",
    "StoredCoupled",
    "StoredModel",
    "StoredNetwork",
    "StoredSeveral",
    "as_released",
    "check_destination",
    "conformance",
    "coupled_release_files",
    "guarantee_of",
    "has_manifest",
    "is_model",
    "kind_of",
    "load_components",
    "load_coupled",
    "load_model",
    "load_network",
    "load_private_coupled",
    "new_key",
    "put_reports",
    "release_files",
    "replacing_folder",
    "save_components",
    "save_coupled",
    "save_coupled_release",
    "save_model",
    "save_network",
    "save_own",
    "save_private",
    "save_private_coupled",
    "save_release",
    "several_as_released",
    "sign",
    "signed_by",
    "verify",
    "write_record",
]


def kind_of(folder: str | os.PathLike[str]) -> Any:
    """What kind of model a folder says that it holds; of a private fit its release. None for nothing."""
    path = existing_folder(folder)
    if os.path.lexists(path / JSON):
        return read_description(path).get("kind")
    release = path / RELEASE
    return read_description(release).get("kind") if os.path.lexists(release / JSON) else None


def guarantee_of(folder: str | os.PathLike[str]) -> Guarantee | None:
    """What is promised of a model of whatever kind; None where nothing is."""
    kind = kind_of(folder)
    if kind == COMPONENTS:
        return load_components(folder).guarantee
    if kind == NETWORK:
        return load_network(folder).guarantee
    if kind == COUPLED:
        load_coupled(folder)  # or damage would go unnoticed
        return None
    if kind == PRIVATE_COUPLED:
        return load_private_coupled(folder).guarantee
    return load_model(folder).guarantee
