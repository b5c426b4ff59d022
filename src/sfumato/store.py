"""Models on disk: numbers as safetensors, all else as JSON. No pickle, and writing is atomic.

A model folder holds ``model.safetensors`` (rows, biases, core) and ``model.json`` (kind, settings,
modes with their labels, versions, and the checksum of the first file).

A private fit is kept in two folders. ``release`` is such a model folder, without the rows and labels
of a mode whose rows stay with their owners, but with what owners need to solve them, and with the
guarantee in words and as JSON; it is safe to hand out. ``owner`` holds those rows and labels, and is
not.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from sfumato.data.tensor import Mode, check_bounds
from sfumato.errors import ModelFileError, SfumatoError
from sfumato.models.components import Components
from sfumato.models.coupled import CoupledModel, Part
from sfumato.models.gamma_posterior import GammaPosterior, blocks_of
from sfumato.models.multilinear import CPModel, Multilinear, TuckerModel
from sfumato.models.posterior import Posterior
from sfumato.privacy.guarantee import Guarantee
from sfumato.solvers.own_rows import OwnPrior

FORMAT = 1
_JSON, _TENSORS = "model.json", "model.safetensors"
RELEASE, OWNER = "release", "owner"
_GUARANTEE_JSON, _GUARANTEE_TEXT = "guarantee.json", "guarantee.txt"
_NOT_FOR_RELEASE = "NOT-FOR-RELEASE.txt"


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


def save_model(stored: StoredModel, folder: str | os.PathLike[str]) -> Path:
    """Write a model folder, replacing an older model there; nothing is left if writing fails."""
    with replacing_folder(Path(folder)) as new:
        _write_model(stored, new)
    return Path(folder)


def save_release(stored: StoredModel, folder: str | os.PathLike[str]) -> Path:
    """Write what a private model's guarantee covers, and nothing else."""
    with replacing_folder(Path(folder)) as new:
        _write(new, release_files(stored))
    return Path(folder)


def save_private(stored: StoredModel, folder: str | os.PathLike[str]) -> Path:
    """Write a private model's release, and beside it the rows that stay with their owners."""
    with replacing_folder(Path(folder)) as new:
        (new / RELEASE).mkdir()
        _write(new / RELEASE, release_files(stored))
        if stored.local is not None:
            (new / OWNER).mkdir()
            _write_owner(stored, new / OWNER)
    return Path(folder)


def _write_model(stored: StoredModel, folder: Path) -> None:
    _write(folder, _model_files(stored))


def _model_files(stored: StoredModel) -> dict[str, bytes]:
    model = stored.model
    tensors = {}
    for m in range(model.order):
        if m != stored.local:
            tensors[f"factor_{m}"] = np.ascontiguousarray(model.factors[m])
            tensors[f"bias_{m}"] = np.ascontiguousarray(model.mode_biases[m])
    if isinstance(model, TuckerModel):
        tensors["core"] = np.ascontiguousarray(model.core)
    description = {
        "kind": stored.kind,
        "structure": "tucker" if isinstance(model, TuckerModel) else "cp",
        "ranks": model.ranks,
        "mean": model.mean,
        "bounds": stored.bounds,
        "modes": [_mode_to_json(mode) for mode in stored.modes],
        "local": stored.local,
        "settings": stored.settings,
        "notes": stored.notes,
    }
    if stored.own_prior is not None:
        description["own_prior"] = stored.own_prior.to_json()
        tensors |= stored.own_prior.tensors()
    return _files(description, tensors)


def release_files(stored: StoredModel) -> dict[str, bytes]:
    """What a private model's guarantee covers, and nothing else: the files of its release, by name."""
    if stored.guarantee is None:
        raise ModelFileError("a model without a guarantee cannot be released")
    modes = tuple(_emptied(mode) if m == stored.local else mode for m, mode in enumerate(stored.modes))
    return {
        **_model_files(replace(stored, modes=modes)),
        **_guarantee_files(stored.guarantee),
    }


def _guarantee_files(guarantee: Guarantee) -> dict[str, bytes]:
    text = json.dumps(guarantee.to_json(), indent=1, ensure_ascii=False)
    return {_GUARANTEE_JSON: f"{text}\n".encode(), _GUARANTEE_TEXT: f"{guarantee}\n".encode()}


def _write_owner(stored: StoredModel, folder: Path) -> None:
    assert stored.local is not None
    local, model = stored.local, stored.model
    tensors = {
        "factor": np.ascontiguousarray(model.factors[local]),
        "bias": np.ascontiguousarray(model.mode_biases[local]),
    }
    folder.chmod(0o700)
    _write(folder, _files({"kind": "own rows", "mode": _mode_to_json(stored.modes[local])}, tensors))
    (folder / _NOT_FOR_RELEASE).write_text(
        f"Each row belongs to one {stored.modes[local].name} and depends on its data alone without "
        "noise.\nShow it to its owner only. The folder `release` beside this one is what may be handed "
        "out.\n",
        encoding="utf-8",
    )


def _files(description: dict[str, Any], tensors: dict[str, Any]) -> dict[str, bytes]:
    data = save_tensors(tensors)
    names = ("sfumato", "numpy", "numba", "safetensors")
    whole = {
        "format": FORMAT,
        **description,
        "versions": {name: _version(name) for name in names},
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    text = json.dumps(whole, indent=1, ensure_ascii=False, default=_plain)
    return {_TENSORS: data, _JSON: text.encode()}


@cache
def _version(package: str) -> str:
    return version(package)


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _emptied(mode: Mode) -> Mode:
    """A mode of which a release says nothing but the name."""
    return Mode(mode.name, 0, np.empty(0, object), mode.bin)


def load_model(folder: str | os.PathLike[str]) -> StoredModel:
    """Read a model folder; whatever is wrong with it is a ``ModelFileError`` that says so.

    Of a private fit the release is read, with the owners' rows where they lie beside it.
    """
    path = Path(folder)
    if not (path / RELEASE / _JSON).is_file():
        return _read_model(path)
    stored = _read_model(path / RELEASE)
    if stored.local is None or not (path / OWNER / _JSON).is_file():
        return stored
    return _with_own_rows(stored, path / OWNER)


def _read_model(path: Path) -> StoredModel:
    description = _read_json(path)
    data = _read_tensors(path, description)
    with _damage(path):
        modes = tuple(_mode_from_json(mode) for mode in description["modes"])
        local = description.get("local")
        ranks = description.get("ranks") or [data[f"factor_{m}"].shape[1] for m in range(len(modes))]
        if local is not None:
            dtype = data[f"factor_{1 if local == 0 else 0}"].dtype
            data[f"factor_{local}"] = np.empty((0, ranks[local]), dtype)
            data[f"bias_{local}"] = np.empty(0, dtype)
        model = _assemble(description, data, len(modes))
        if model.shape != tuple(mode.size for mode in modes):
            raise ModelFileError(f"{path} is damaged: its factors do not fit its labels")
        prior = None
        if "own_prior" in description:  # an older release has none
            prior = OwnPrior.from_parts(description["own_prior"], data, model.order)
            prior.check(model.shape, model.ranks)
        return StoredModel(
            description["kind"],
            model,
            modes,
            check_bounds(description["bounds"]),
            description["settings"],
            description["notes"],
            _read_guarantee(path),
            local,
            prior,
        )


# -- components -----------------------------------------------------------------------------------

COMPONENTS = "components"


class StoredComponents(NamedTuple):
    """Components of a tensor, the settings they were found with, and what was promised."""

    components: Components
    settings: dict[str, Any]
    guarantee: Guarantee | None


def save_components(
    components: Components,
    settings: dict[str, Any],
    guarantee: Guarantee | None,
    folder: str | os.PathLike[str],
) -> Path:
    """Write components to a folder, replacing an older model there."""
    tensors = {f"vectors_{m}": np.ascontiguousarray(v) for m, v in enumerate(components.vectors)}
    tensors["weights"] = np.ascontiguousarray(components.weights)
    description = {"kind": COMPONENTS, "order": components.order, "settings": settings}
    files = _files(description, tensors)
    if guarantee is not None:
        files |= _guarantee_files(guarantee)
    with replacing_folder(Path(folder)) as new:
        _write(new, files)
    return Path(folder)


def load_components(folder: str | os.PathLike[str]) -> StoredComponents:
    """What :func:`save_components` wrote."""
    path = Path(folder)
    description = _read_json(path)
    data = _read_tensors(path, description)
    if description.get("kind") != COMPONENTS:
        raise ModelFileError(f"{path} holds a model, not components: use sfumato.load")
    with _damage(path):
        order, weights = int(description["order"]), data["weights"]
        vectors = tuple(data[f"vectors_{m}"] for m in range(len(data) - 1))
        if len(vectors) not in (1, order) or any(len(v) != len(weights) for v in vectors):
            raise ModelFileError(f"{path} is damaged: its vectors do not fit its weights")
        found = Components(weights, vectors, order)
        return StoredComponents(found, dict(description["settings"]), _read_guarantee(path))


# -- coupled models -------------------------------------------------------------------------------

COUPLED = "coupled"


class StoredCoupled(NamedTuple):
    """A coupled model, and for each relation the observed cells at the levels of its modes."""

    model: CoupledModel
    modes: tuple[Mode, ...]
    evidence: dict[str, tuple[Any, ...]]
    settings: dict[str, Any]
    notes: dict[str, Any]
    posterior: GammaPosterior | Posterior | None = None


def save_coupled(stored: StoredCoupled, folder: str | os.PathLike[str]) -> Path:
    """Write a coupled model to a folder, replacing an older model there."""
    model = stored.model
    tensors = {f"factor_{d}": np.ascontiguousarray(f) for d, f in enumerate(model.factors)}
    for v, (part, core) in enumerate(zip(model.parts, model.cores, strict=True)):
        tensors[f"core_{v}"] = np.ascontiguousarray(core)
        for m, counts in enumerate(stored.evidence[part.name]):
            tensors[f"evidence_{v}_{m}"] = np.ascontiguousarray(counts)
    law, numbers = _posterior_parts(stored.posterior)
    tensors |= numbers
    description = {
        "kind": COUPLED,
        "posterior": law,
        "rank": model.rank,
        "sizes": model.sizes,
        "parts": [asdict(part) for part in model.parts],
        "modes": [_mode_to_json(mode) for mode in stored.modes],
        "settings": stored.settings,
        "notes": stored.notes,
    }
    with replacing_folder(Path(folder)) as new:
        _write(new, _files(description, tensors))
    return Path(folder)


def load_coupled(folder: str | os.PathLike[str]) -> StoredCoupled:
    """What :func:`save_coupled` wrote."""
    path = Path(folder)
    description = _read_json(path)
    data = _read_tensors(path, description)
    if description.get("kind") != COUPLED:
        raise ModelFileError(f"{path} holds another model: use sfumato.load")
    with _damage(path):
        parts = [Part(**{**part, "modes": tuple(part["modes"])}) for part in description["parts"]]
        model = CoupledModel.zeros(
            description["sizes"], description["rank"], parts, data["factor_0"].dtype
        )
        for d, factor in enumerate(model.factors):
            factor[:] = data[f"factor_{d}"]
        for v, core in enumerate(model.cores):
            core[:] = data[f"core_{v}"]
        evidence = {
            part.name: tuple(data[f"evidence_{v}_{m}"] for m in range(part.order))
            for v, part in enumerate(parts)
        }
        modes = tuple(_mode_from_json(mode) for mode in description["modes"])
        _check_coupled(path, model, modes, evidence)
        posterior = _posterior_of(description["posterior"], data, model)
        return StoredCoupled(
            model, modes, evidence, description["settings"], description["notes"], posterior
        )


def _check_coupled(
    path: Path, model: CoupledModel, modes: tuple[Mode, ...], evidence: dict[str, tuple[Any, ...]]
) -> None:
    """Kernels do not check where they read: labels, factors and parts have to fit each other."""
    sizes = (*(mode.size for mode in modes), *(1 for part in model.parts if part.weighted))
    fits = model.sizes == sizes and all(
        tuple(len(counts) for counts in evidence[part.name])
        == tuple(modes[d].size for d in part.modes[: part.order])
        and all(d >= 0 for d in part.modes)
        and (not part.weighted or model.sizes[part.modes[-1]] == 1)
        for part in model.parts
    )
    if not fits or not model.parts:
        raise ModelFileError(f"{path} is damaged: its factors do not fit its labels")


def _posterior_parts(
    posterior: GammaPosterior | Posterior | None,
) -> tuple[str | None, dict[str, Any]]:
    """What kind of posterior it is, and its numbers."""
    if isinstance(posterior, GammaPosterior):
        numbers = {"prior_shapes": posterior.prior_shapes, "prior_means": posterior.prior_means}
        for name, model in (("shape", posterior.shapes), ("rate", posterior.rates)):
            numbers |= {f"{name}_{n}": block for n, block in enumerate(blocks_of(model))}
        return "gamma", {name: np.ascontiguousarray(values) for name, values in numbers.items()}
    if posterior is None:
        return None, {}
    numbers = {"draws": posterior.rows, "noise": posterior.noise, "density": posterior.log_density}
    numbers |= {f"core_draws_{v}": core for v, core in enumerate(posterior.cores)}
    return posterior.family, {name: np.ascontiguousarray(v) for name, v in numbers.items()}


def _posterior_of(
    law: str | None, data: dict[str, Any], model: CoupledModel
) -> GammaPosterior | Posterior | None:
    if law is None:
        return None
    if law == "gamma":
        shapes, rates = (CoupledModel.zeros(model.sizes, model.rank, model.parts) for _ in range(2))
        for name, made in (("shape", shapes), ("rate", rates)):
            for n, block in enumerate(blocks_of(made)):
                block[:] = data[f"{name}_{n}"]
        return GammaPosterior(shapes, rates, data["prior_shapes"], data["prior_means"])
    cores = tuple(data[f"core_draws_{v}"] for v in range(len(model.parts)))
    family: Any = law
    return Posterior(model.copy(), family, data["draws"], cores, data["noise"], data["density"])


def kind_of(folder: str | os.PathLike[str]) -> str | None:
    """What kind of model a folder holds; None where it is a private fit, or nothing."""
    path = Path(folder)
    return _read_json(path).get("kind") if os.path.isfile(path / _JSON) else None


def guarantee_of(folder: str | os.PathLike[str]) -> Guarantee | None:
    """What is promised of a model of whatever kind; None where nothing is."""
    kind = kind_of(folder)
    if kind == COMPONENTS:
        return load_components(folder).guarantee
    if kind == COUPLED:
        load_coupled(folder)  # or damage would go unnoticed
        return None
    return load_model(folder).guarantee


def _assemble(description: dict[str, Any], data: dict[str, Any], order: int) -> Multilinear:
    factors = [data[f"factor_{m}"] for m in range(order)]
    biases = [data[f"bias_{m}"] for m in range(order)]
    mean = float(description["mean"])
    if description["structure"] == "tucker":
        return TuckerModel.from_factors(factors, data["core"], mean=mean, biases=biases)
    return CPModel.from_factors(factors, mean=mean, biases=biases)


def _with_own_rows(stored: StoredModel, path: Path) -> StoredModel:
    """A release with the rows that stayed with their owners put back."""
    assert stored.local is not None
    description = _read_json(path)
    data = _read_tensors(path, description)
    with _damage(path):
        local, mode = stored.local, _mode_from_json(description["mode"])
        rows, biases = data["factor"], data["bias"]
        if rows.shape != (mode.size, stored.model.ranks[local]) or biases.shape != (mode.size,):
            raise ModelFileError(f"{path} is damaged: its rows do not fit its labels")
        model = stored.model.with_rows(local, rows, biases)
        modes = tuple(mode if m == local else other for m, other in enumerate(stored.modes))
        return replace(stored, model=model, modes=modes)


def _read_guarantee(path: Path) -> Guarantee | None:
    file = path / _GUARANTEE_JSON
    return Guarantee.from_json(json.loads(file.read_text("utf-8"))) if file.is_file() else None


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Whatever goes wrong while a folder's contents are put together means that it is damaged."""
    try:
        yield
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


def is_model(folder: Path) -> bool:
    """Whether a folder holds a model, or a private fit."""
    return any(
        (folder / part / _JSON).is_file() and (folder / part / _TENSORS).is_file()
        for part in ("", RELEASE)
    )


def check_destination(folder: Path) -> None:
    """Refuse to write a model where something else is; cheap, so that a fit can be spared."""
    if folder.exists() and not folder.is_dir():
        raise ModelFileError(f"{folder} is a file; name a folder")
    if folder.is_dir() and any(folder.iterdir()) and not is_model(folder):
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
