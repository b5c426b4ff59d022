"""What an adversary sees of a private fit: the bytes of its release, and nothing else.

The release is taken apart by its documented format, not by this library's own reader, so that a
number that the reader would pass over counts as well.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from safetensors.numpy import load as load_tensors

from sfumato.data.tensor import SparseTensor
from sfumato.errors import SettingError
from sfumato.models.multilinear import CPModel, Multilinear, TuckerModel
from sfumato.models.own_prior import OwnPrior
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.own_rows import solve_own
from sfumato.store.manifest import manifest_of
from sfumato.store.names import MANIFEST
from sfumato.types import Array

_NUMBER = re.compile(rb"-?\b\d+(?:\.\d+)?(?:[eE][-+]?\d+)?\b")
_TENSORS, _JSON = "model.safetensors", "model.json"
_ROWS_KEPT = 8  # levels of a canary whose rows are kept for each mode
_ALL_KEPT = 256  # other numbers that are kept; of more, as many random sums


@dataclass(frozen=True, eq=False)
class View:
    """A release taken apart.

    ``parts`` holds all numbers: arrays by name, and those in texts. ``form`` stands for all else:
    names, shapes, words. Two releases with different forms are told apart at once.
    """

    form: str
    parts: Mapping[str, Array]
    model: Mapping[str, Any]

    @classmethod
    def of(cls, files: Mapping[str, bytes], relation: str | None = None) -> View:
        """All of a release; of several relations the parts of one have their plain names."""
        data = files[_TENSORS]
        # A manifest that is one says nothing that the other files do not say.
        others = {name: content for name, content in files.items() if name != MANIFEST}
        if files.get(MANIFEST) == manifest_of(others):
            files = others
        texts = [files[name] for name in sorted(files) if name != _TENSORS]
        words = b"\n".join(_NUMBER.sub(b"#", text) for text in texts)
        numbers = [float(number) for text in texts for number in _NUMBER.findall(text)]
        form = hashlib.sha256(repr((sorted(files), _header(data), words)).encode()).hexdigest()
        # Sorted: safetensors hands arrays out in another order each time.
        parts = {**dict(sorted(load_tensors(data).items())), "texts": np.array(numbers)}
        model = json.loads(files[_JSON])
        if relation is not None:
            names = [each["name"] for each in model["relations"]]
            start, model = (
                f"relation_{names.index(relation)}_",
                model["relations"][names.index(relation)],
            )
            parts = {name.removeprefix(start): part for name, part in parts.items()}
        return cls(form, parts, model)

    @property
    def local(self) -> int | None:
        """The mode whose rows are not part of the release."""
        local: int | None = self.model["local"]
        return local

    @cached_property
    def order(self) -> int:
        return len(self.model["modes"])

    def covers(self, cells: Array) -> bool:
        """Whether there are rows for all these cells: a release may leave levels out."""
        released = [m for m in range(self.order) if m != self.local]
        return all(cells[m].max() < len(self.parts[f"factor_{m}"]) for m in released)

    def prediction(self, cells: Array) -> float:
        """Mean of the values at some cells, by all that was released."""
        values = np.full(cells.shape[1], float(self.model["mean"]))
        for m in range(self.order):
            if m != self.local:
                values += self.parts[f"bias_{m}"][cells[m]]
        if self.local is None:
            values += self._products(cells)
        return float(values.mean())

    def whole(self, known: SparseTensor) -> Multilinear:
        """The released model, with rows kept by owners as they follow from it and known entries."""
        factors, biases = [], []
        for m, (mode, rank) in enumerate(zip(known.modes, self.model["ranks"], strict=True)):
            kept = m == self.local
            factors.append(np.zeros((mode.size, rank)) if kept else self.parts[f"factor_{m}"])
            biases.append(np.zeros(mode.size) if kept else self.parts[f"bias_{m}"])
        mean = float(self.model["mean"])
        model: Multilinear
        if "core" in self.parts:
            model = TuckerModel.from_factors(factors, self.parts["core"], mean=mean, biases=biases)
        else:
            model = CPModel.from_factors(factors, mean=mean, biases=biases)
        if self.local is None or "own_prior" not in self.model:
            return model
        prior = OwnPrior.from_parts(self.model["own_prior"], self.parts, self.order)
        return solve_own(model, prior, Site(known, 1))

    def _products(self, cells: Array) -> Array:
        rows = [self.parts[f"factor_{m}"][levels] for m, levels in enumerate(cells)]
        if "core" not in self.parts:
            return np.asarray(np.prod(rows, axis=0).sum(axis=1))
        left = rows[0] @ self.parts["core"].reshape(rows[0].shape[1], -1)
        for row in rows[1:]:
            left = np.einsum("er,ers->es", row, left.reshape(*row.shape, -1))
        return np.asarray(left[:, 0])


def observed(
    files: Mapping[str, bytes],
    cells: Array,
    sees: Sequence[str] | None = None,
    relation: str | None = None,
) -> dict[str, Any]:
    """The numbers of a release that an attack on a canary may use, as many for every run.

    Rows of the canary's levels and all scalars as they are; of all other numbers a few hundred random
    sums, the same in every run. ``sees`` limits it to some parts, by name. Of several relations the
    canary's cells are those of one ``relation``.
    """
    view = View.of(files, relation)
    seen = {name: part for name, part in view.parts.items() if sees is None or name in sees}
    if sees is not None and set(sees) - set(view.parts):
        missing, there = sorted(set(sees) - set(view.parts)), ", ".join(view.parts)
        raise SettingError(f"the release has no part {', '.join(missing)}; it has {there}")
    kept: dict[str, Any] = {"form": view.form if sees is None else ""}
    for m in range(view.order):
        levels = np.unique(cells[m])[:_ROWS_KEPT]
        for name in (f"factor_{m}", f"bias_{m}"):
            if name in seen:
                kept[name] = finite(seen[name][levels[levels < len(seen[name])]])
    for name in ("core", "texts"):
        if name in seen:
            kept[name] = summed(finite(seen[name]))
    kept["rest"] = summed(np.concatenate([[0.0], *(finite(part).ravel() for part in seen.values())]))
    if sees is None:
        kept["mean"] = finite(np.array([view.model["mean"]], np.float64))
        if view.covers(cells):
            kept["prediction"] = finite(np.array([view.prediction(cells)]))
    return kept


def _header(data: bytes) -> bytes:
    """What stands before the numbers of a safetensors file: names, shapes, and whatever notes."""
    return data[: 8 + int.from_bytes(data[:8], "little")]


def finite(part: Array) -> Array:
    """Numbers that arithmetic can go on with: what is not finite becomes very large."""
    return np.nan_to_num(np.asarray(part, np.float64), nan=1e30, posinf=2e30, neginf=-2e30)


def summed(numbers: Array) -> Array:
    """All of them, or sums with random signs, each number being part of one."""
    flat = numbers.ravel()
    if flat.size <= _ALL_KEPT:
        return flat
    sums, signs = _sketch(flat.size)
    return np.bincount(sums, signs * flat, _ALL_KEPT)


@cache
def _sketch(size: int) -> tuple[Array, Array]:
    generator = np.random.default_rng(size)
    return generator.integers(0, _ALL_KEPT, size), generator.choice([-1.0, 1.0], size)
