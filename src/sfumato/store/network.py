"""Networks on disk: all that their guarantee covers, which is all there is."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.errors import ModelFileError
from sfumato.models.features import Column, Columns, Pictures
from sfumato.models.network import Architecture, Network
from sfumato.privacy.guarantee import Guarantee
from sfumato.solvers.network.settings import Training
from sfumato.store.manifest import read_folder, with_manifest
from sfumato.store.models import write_folder, write_private
from sfumato.store.names import RELEASE
from sfumato.store.reading import damage
from sfumato.store.writing import check_shape, guarantee_files, model_files
from sfumato.typed import finite_number, made_of, whole_number
from sfumato.types import Array

NETWORK = "network"
_MOST_PARAMETERS = 1 << 31


@dataclass(frozen=True, eq=False)
class StoredNetwork:
    """A network, what it is shown, and what its outputs stand for."""

    estimator: str
    network: Network
    iterates: tuple[Network, ...]
    features: Columns | Pictures
    mean: Array
    targets: tuple[Any, ...]  # classes, or the two bounds of numbers
    training: Training
    noise: float
    units: int
    settings: dict[str, Any]
    guarantee: Guarantee | None


def save_network(stored: StoredNetwork, folder: str | os.PathLike[str]) -> Path:
    """Write a network; of a private one its release, in a folder of that name."""
    files = network_files(stored)
    if stored.guarantee is None:
        return write_folder(files, folder)
    return write_private(files, None, folder)


def save_network_release(stored: StoredNetwork, folder: str | os.PathLike[str]) -> Path:
    """Write what the guarantee covers, and nothing else."""
    if stored.guarantee is None:
        raise ModelFileError("a network without a guarantee cannot be released")
    return write_folder(network_files(stored), folder)


def network_files(stored: StoredNetwork) -> dict[str, bytes]:
    features = stored.features
    description = {
        "kind": NETWORK,
        "estimator": stored.estimator,
        "architecture": asdict(stored.network.architecture),
        "features": {
            "kind": "columns" if isinstance(features, Columns) else "pictures",
            **asdict(features),
        },
        "targets": list(stored.targets),
        "training": asdict(stored.training),
        "noise": stored.noise,
        "units": stored.units,
        "settings": stored.settings,
    }
    tensors = {
        "parameters": stored.network.parameters,
        "iterates": np.stack([each.parameters for each in stored.iterates]),
        "mean": stored.mean,
    }
    files = model_files(description, tensors)
    if stored.guarantee is not None:
        files |= guarantee_files(stored.guarantee)
    return with_manifest(files)


def load_network(folder: str | os.PathLike[str]) -> StoredNetwork:
    """What either of these wrote."""
    path = Path(folder)
    contents = read_folder(path / RELEASE if os.path.lexists(path / RELEASE) else path)
    said, tensors = contents.description, contents.tensors
    if said.get("kind") != NETWORK:
        raise ModelFileError(f"{path} holds another model: use sfumato.load")
    with damage(path):
        architecture = made_of(Architecture, _listed(said["architecture"]), "its architecture")
        features = _features(dict(said["features"]))
        if architecture.parameters > _MOST_PARAMETERS or features.size != architecture.inputs:
            raise ValueError("its features do not fit its architecture")
        parameters, iterates = tensors["parameters"], tensors["iterates"]
        check_shape("parameters", parameters, (architecture.parameters,))
        check_shape("iterates", iterates, (len(iterates), architecture.parameters))
        check_shape("mean", tensors["mean"], (features.size,))
        if parameters.dtype != np.float32 or iterates.dtype != np.float32:
            raise ValueError("its parameters are not of float32")
        targets = _targets(said["targets"], architecture)
        return StoredNetwork(
            said["estimator"],
            Network(architecture, parameters),
            tuple(Network(architecture, each) for each in iterates),
            features,
            tensors["mean"].astype(np.float64),
            targets,
            made_of(Training, said["training"], "its training"),
            finite_number(said["noise"], "its noise"),
            whole_number(said["units"], "the number of units"),
            dict(said["settings"]),
            contents.guarantee,
        )


def _listed(said: Any) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in said.items()}


def _features(said: dict[str, Any]) -> Columns | Pictures:
    kind = said.pop("kind")
    if kind == "pictures":
        pictures: Pictures = made_of(Pictures, said, "its pictures")
        return pictures
    columns = tuple(made_of(Column, _listed(column), "a column") for column in said["columns"])
    if kind != "columns" or not isinstance(said["hidden"], bool):
        raise ValueError("its features are neither columns nor pictures")
    return Columns(columns, said["hidden"])


def _targets(said: Any, architecture: Architecture) -> tuple[Any, ...]:
    if not isinstance(said, list) or not all(isinstance(each, str | int | float) for each in said):
        raise ValueError("what its outputs stand for is not said")
    if len(said) != (architecture.outputs if architecture.loss == "classes" else 2):
        raise ValueError("its outputs do not fit what they stand for")
    return tuple(said)
