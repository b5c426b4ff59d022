"""Models of several tables on disk, with what a Bayesian fit knows beyond them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from sfumato.data.tensor import Mode
from sfumato.errors import ModelFileError
from sfumato.models.coupled import CoupledModel, Part
from sfumato.models.gamma_posterior import GammaPosterior, blocks_of
from sfumato.models.posterior import Family, Posterior
from sfumato.store.manifest import read_folder, with_manifest
from sfumato.store.reading import damage
from sfumato.store.replacing import replacing_folder, write_files
from sfumato.store.writing import (
    check_precision,
    check_shape,
    mode_to_json,
    model_files,
    modes_from_json,
)
from sfumato.typed import finite_number, made_of, whole_number
from sfumato.types import Array

COUPLED = "coupled"
_GAMMA = "gamma"
_PRIORS = ("prior_shapes", "prior_means")


class StoredCoupled(NamedTuple):
    """A coupled model, and for each relation the observed cells at the levels of its modes.

    ``bounds`` are those of relations whose counts were clipped before they passed a noisy channel.
    """

    model: CoupledModel
    modes: tuple[Mode, ...]
    evidence: dict[str, tuple[Any, ...]]
    bounds: dict[str, tuple[float, float]]
    settings: dict[str, Any]
    notes: dict[str, Any]
    posterior: GammaPosterior | Posterior | None = None


def save_coupled(stored: StoredCoupled, folder: str | os.PathLike[str]) -> Path:
    """Write a coupled model to a folder, replacing an older model there."""
    model = stored.model
    tensors = dict(_parameters(model))
    for v, part in enumerate(model.parts):
        for m, counts in enumerate(stored.evidence[part.name]):
            tensors[f"evidence_{v}_{m}"] = counts
    law, numbers = _posterior_parts(stored.posterior)
    description = {
        "kind": COUPLED,
        "posterior": law,
        "rank": model.rank,
        "sizes": model.sizes,
        "parts": [asdict(part) for part in model.parts],
        "modes": [mode_to_json(mode) for mode in stored.modes],
        "bounds": stored.bounds,
        "settings": stored.settings,
        "notes": stored.notes,
    }
    files = with_manifest(model_files(description, tensors | numbers))
    with replacing_folder(folder) as new:
        write_files(new, files)
    return Path(folder)


def load_coupled(folder: str | os.PathLike[str]) -> StoredCoupled:
    """What :func:`save_coupled` wrote."""
    contents = read_folder(folder)
    description, path = contents.description, contents.path
    if description.get("kind") != COUPLED:
        raise ModelFileError(f"{path} holds another model: use sfumato.load")
    with damage(path):
        tensors = contents.tensors
        modes = modes_from_json(description["modes"])
        parts = [made_of(Part, part, "a relation") for part in description["parts"]]
        sizes = [whole_number(size, "a size", least=1) for size in description["sizes"]]
        rank = whole_number(description["rank"], "the rank", least=1)
        _check_fit(modes, parts, sizes)
        model = _model(sizes, rank, parts, tensors)
        evidence = {part.name: _evidence(v, part, sizes, tensors) for v, part in enumerate(parts)}
        posterior = _posterior_of(description["posterior"], tensors, model)
        bounds = _bounds(description.get("bounds", {}), parts)
        return StoredCoupled(
            model, modes, evidence, bounds, description["settings"], description["notes"], posterior
        )


def _bounds(given: Any, parts: list[Part]) -> dict[str, tuple[float, float]]:
    """Of models that were written before there were any, none."""
    found = {}
    for name, (low, high) in dict(given).items():
        found[name] = finite_number(low, "a bound"), finite_number(high, "a bound")
        if name not in {part.name for part in parts} or low >= high:
            raise ValueError(f"the bounds of {str(name)[:20]!r} are none of its relations'")
    return found


def _check_fit(modes: tuple[Mode, ...], parts: list[Part], sizes: list[int]) -> None:
    """Kernels do not check where they read: labels, factors and parts have to fit each other."""
    weights = [part.modes[-1] for part in parts if part.weighted]
    fits = (
        bool(parts)
        and len({part.name for part in parts}) == len(parts)
        and sizes == [*(mode.size for mode in modes), *(1 for _ in weights)]
        and all(0 <= d < len(modes) for part in parts for d in part.modes[: part.order])
        and sorted(weights) == list(range(len(modes), len(sizes)))
        and all(part.order >= 2 and len(set(part.modes)) == len(part.modes) for part in parts)
        and not any(part.tucker and part.weighted for part in parts)
    )
    if not fits:
        raise ValueError("its factors do not fit its labels")


def _parameters(model: CoupledModel) -> Iterator[tuple[str, Array]]:
    """All parameters as views, by the name of their tensor."""
    for d, factor in enumerate(model.factors):
        yield f"factor_{d}", factor
    for v, core in enumerate(model.cores):
        yield f"core_{v}", core


def _model(sizes: list[int], rank: int, parts: list[Part], tensors: Mapping[str, Array]) -> CoupledModel:
    for d, size in enumerate(sizes):  # before room is made for numbers that may not be there
        check_shape(f"factor_{d}", tensors[f"factor_{d}"], (size, rank))
    for v, part in enumerate(parts):
        cells = rank**part.order if part.tucker else 0
        check_shape(f"core_{v}", tensors[f"core_{v}"], (cells,))
    model = CoupledModel.zeros(sizes, rank, parts, tensors["factor_0"].dtype)
    check_precision(*(tensors[name] for name, _ in _parameters(model)))
    for name, mine in _parameters(model):
        mine[:] = tensors[name]
    return model


def _evidence(
    number: int, part: Part, sizes: list[int], tensors: Mapping[str, Array]
) -> tuple[Array, ...]:
    found = tuple(tensors[f"evidence_{number}_{m}"] for m in range(part.order))
    for m, counts in enumerate(found):
        check_shape(f"evidence_{number}_{m}", counts, (sizes[part.modes[m]],))
        if counts.dtype != np.int64 or counts.min() < 0:
            raise ValueError(f"evidence_{number}_{m} holds no counts")
    return found


# -- posteriors -----------------------------------------------------------------------------------


def _posterior_parts(
    posterior: GammaPosterior | Posterior | None,
) -> tuple[str | None, dict[str, Array]]:
    """What kind of posterior it is, and its numbers."""
    if isinstance(posterior, GammaPosterior):
        numbers = {"prior_shapes": posterior.prior_shapes, "prior_means": posterior.prior_means}
        for name, model in (("shape", posterior.shapes), ("rate", posterior.rates)):
            numbers |= {f"{name}_{n}": block for n, block in enumerate(blocks_of(model))}
        return _GAMMA, numbers
    if posterior is None:
        return None, {}
    numbers = {"draws": posterior.rows, "noise": posterior.noise, "density": posterior.log_density}
    numbers |= {f"core_draws_{v}": core for v, core in enumerate(posterior.cores)}
    return posterior.family, numbers


def _posterior_of(
    law: Any, tensors: Mapping[str, Array], model: CoupledModel
) -> GammaPosterior | Posterior | None:
    if law is None:
        return None
    if law == _GAMMA:
        return _gamma_posterior(tensors, model)
    if law not in get_args(Family):
        raise ValueError(f"there is no posterior {str(law)[:20]!r}")
    return _drawn_posterior(law, tensors, model)


def _gamma_posterior(tensors: Mapping[str, Array], model: CoupledModel) -> GammaPosterior:
    shapes, rates = (CoupledModel.zeros(model.sizes, model.rank, model.parts) for _ in range(2))
    for name, made in (("shape", shapes), ("rate", rates)):
        for n, block in enumerate(blocks_of(made)):
            given = tensors[f"{name}_{n}"]
            check_shape(f"{name}_{n}", given, block.shape)
            block[:] = given
    priors = [tensors[name] for name in _PRIORS]
    for name, given in zip(_PRIORS, priors, strict=True):
        check_shape(name, given, (len(blocks_of(shapes)),))
    if not all((given > 0).all() for given in (*blocks_of(shapes), *blocks_of(rates), *priors)):
        raise ValueError("shapes, rates and means of its posterior are not all above zero")
    return GammaPosterior(shapes, rates, *priors)


def _drawn_posterior(family: Family, tensors: Mapping[str, Array], model: CoupledModel) -> Posterior:
    density, cores = tensors["density"], [tensors[f"core_draws_{v}"] for v in range(len(model.parts))]
    chains, draws = density.shape
    if not density.size:
        raise ValueError("its posterior has no draws")
    check_shape("draws", tensors["draws"], (chains, draws, model.rows.shape[0], model.rank))
    check_shape("noise", tensors["noise"], (chains, draws, len(model.parts)))
    for v, (core, mine) in enumerate(zip(cores, model.cores, strict=True)):
        check_shape(f"core_draws_{v}", core, (chains, draws, mine.size))
    check_precision(tensors["draws"], model.rows, *cores)
    if not (tensors["noise"] > 0).all():
        raise ValueError("precisions of its posterior are not all above zero")
    return Posterior(model.copy(), family, tensors["draws"], tuple(cores), tensors["noise"], density)
