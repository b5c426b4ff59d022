"""Counts, and yes and no: private fits in the loss's own metric, beside squared errors and a constant.

Invented tensors of two and three modes: products of factors, biases alone, counts with heavy tails, rare
yes, and nothing at all. Squared errors predict within the bounds, and at least 0.01 from what would make
an observed value impossible.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import sfumato as sf
from benchmarks.report import Figure, say
from sfumato import metrics
from sfumato.types import Array

BUDGETS = (10.0, 1.0, 0.1)
SHAPES = (((600, 300), 40_000), ((100, 60, 10), 20_000))
KINDS = {
    "poisson": ("planted", "biases", "heavy tails", "nothing"),
    "logistic": ("planted", "biases", "rare", "nothing"),
}
MOST = 100.0  # the public bound of counts
DATA_SEEDS = (1, 2, 3)


def predictor(kind: str, sizes: tuple[int, ...], rng: np.random.Generator) -> Array:
    """The linear predictor of all cells."""
    found = np.zeros(sizes)
    if kind == "nothing":
        return found
    for mode, size in enumerate(sizes):
        found += np.expand_dims(rng.normal(0, 0.6, size), [m for m in range(len(sizes)) if m != mode])
    if kind in ("planted", "rare"):
        letters = "abc"[: len(sizes)]
        factors = [rng.normal(size=(size, 3)) for size in sizes]
        formula = ",".join(f"{letter}r" for letter in letters) + "->" + letters
        found += 0.96 / np.sqrt(3) * np.einsum(formula, *factors)
    return found - (3.5 if kind == "rare" else 0.0)


def invented(
    loss: str, kind: str, sizes: tuple[int, ...], entries: int, seed: int
) -> tuple[sf.SparseTensor, sf.SparseTensor]:
    """Training and held-out entries."""
    rng = np.random.default_rng(seed)
    cells = predictor(kind, sizes, rng)
    chosen = rng.choice(cells.size, entries, replace=False)
    eta, bounds = cells.ravel()[chosen], (0.0, 1.0)
    if loss == "logistic":
        values = (rng.random(entries) < 1 / (1 + np.exp(-eta))).astype(float)
    else:
        rates = np.exp(np.minimum(0.7 * eta + 0.5, 5.0))
        if kind == "heavy tails":
            rates *= rng.gamma(0.5, 2.0, entries)
        values, bounds = np.minimum(rng.poisson(rates), MOST).astype(float), (0.0, MOST)
    modes = tuple(
        sf.Mode(name, size) for name, size in zip(("user", "item", "place"), sizes, strict=False)
    )
    places = np.stack(np.unravel_index(chosen, sizes)).astype(np.int32)
    tensor = sf.SparseTensor(places, values, modes, bounds)
    held = rng.random(entries) < 0.2
    return tensor.take(~held), tensor.take(held)


def losses_of(loss: str, data: Any, unit: str, epsilon: float, seed: int) -> list[float]:
    """Of the private constant, squared errors, and the loss itself."""
    train, test = data
    labels = {mode.name: list(range(mode.size)) for mode in train.modes}
    public = sf.Public(labels=labels, entries=train.n_entries)
    privacy = sf.Privacy(epsilon, 1e-6, unit=unit, local="user", public=public, seed=seed)
    metric: Callable[[Any, Any], float] = metrics.poisson_deviance
    high = np.inf
    if loss == "logistic":
        metric, high = metrics.log_loss, 0.99
    fits = (
        sf.Biases(sweeps=0, privacy=privacy),
        sf.CP(privacy=privacy),
        sf.CP(loss=loss, privacy=privacy),
    )
    predicted = [fit.fit(train).predict(test) for fit in fits]
    squared = [np.clip(each, 0.01, high) for each in predicted[:2]]
    return [metric(test.values, each) for each in (*squared, predicted[2])]


def run(quick: bool) -> list[Figure]:
    warnings.simplefilter("ignore", sf.PrivacyWarning)
    figures = []
    seeds = DATA_SEEDS[:1] if quick else DATA_SEEDS
    for loss, kinds in KINDS.items():
        for (sizes, entries), kind in ((shape, kind) for shape in SHAPES for kind in kinds):
            made = [invented(loss, kind, sizes, entries, seed) for seed in seeds]
            for unit in ("entry", "user"):
                for epsilon in BUDGETS[1:2] if quick else BUDGETS:
                    found = np.mean(
                        [losses_of(loss, d, unit, epsilon, s) for s, d in enumerate(made)], axis=0
                    )
                    constant, squared, ours = found
                    what = f"{loss}, {kind}, {len(sizes)} modes, one {unit}, epsilon {epsilon:g}"
                    text = f"{ours:.4f} (squared errors {squared:.4f}, constant {constant:.4f})"
                    say(f"{what}: {text}")
                    figures.append(Figure(what, ours, text, min(constant, squared)))
    return figures
