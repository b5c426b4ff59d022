"""Components of a tensor, as the power method finds them, on disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from sfumato.errors import ModelFileError
from sfumato.models.components import Components
from sfumato.privacy.guarantee import Guarantee
from sfumato.store.manifest import read_folder, with_manifest
from sfumato.store.reading import damage
from sfumato.store.replacing import replacing_folder, write_files
from sfumato.store.writing import check_precision, check_shape, guarantee_files, model_files
from sfumato.typed import whole_number

COMPONENTS = "components"


class StoredComponents(NamedTuple):
    """Components of a tensor, the settings they were found with, and what was promised."""

    components: Components
    settings: dict[str, Any]
    guarantee: Guarantee | None


def save_components(stored: StoredComponents, folder: str | os.PathLike[str]) -> Path:
    """Write components to a folder, replacing an older model there."""
    components = stored.components
    tensors = {f"vectors_{m}": vectors for m, vectors in enumerate(components.vectors)}
    tensors["weights"] = components.weights
    description = {"kind": COMPONENTS, "order": components.order, "settings": stored.settings}
    files = model_files(description, tensors)
    if stored.guarantee is not None:
        files |= guarantee_files(stored.guarantee)
    with replacing_folder(folder) as new:
        write_files(new, with_manifest(files))
    return Path(folder)


def load_components(folder: str | os.PathLike[str]) -> StoredComponents:
    """What :func:`save_components` wrote."""
    contents = read_folder(folder)
    description, path = contents.description, contents.path
    if description.get("kind") != COMPONENTS:
        raise ModelFileError(f"{path} holds a model, not components: use sfumato.load")
    with damage(path):
        order = whole_number(description["order"], "the order", least=2)
        tensors = contents.tensors
        check_precision(*tensors.values())
        weights = tensors["weights"]
        check_shape("weights", weights, (weights.size,))
        vectors = tuple(tensors[f"vectors_{m}"] for m in range(len(tensors) - 1))
        if len(vectors) not in (1, order):
            raise ModelFileError(f"{path} is damaged: its vectors do not fit its order")
        for m, rows in enumerate(vectors):
            check_shape(f"vectors_{m}", rows, (weights.size, rows.size // max(weights.size, 1)))
        found = Components(weights, vectors, order)
        return StoredComponents(found, dict(description["settings"]), contents.guarantee)
