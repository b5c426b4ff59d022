"""Private networks: accuracy, calibration and time on pictures, and steps beside Opacus.

``python -m benchmarks networks [mnist] [mlp] [digits] [letters] [speed]``, all of them by default.
Opacus runs in a process of its own: with the interpreter that ``SFUMATO_OPACUS`` names, else with this
one; ``pip install 'sfumato[opacus]'`` installs it. Where it is missing it is left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

import sfumato as sf
from benchmarks.letters import letters
from benchmarks.report import Figure, say
from sfumato.errors import DataError
from sfumato.types import Array

MNIST_BARS = {0.1: 0.957, 0.5: 0.976, 1.0: 0.981, 2.0: 0.983, 3.0: 0.985, 8.0: 0.987}
MLP_BARS = {10.0: 0.96, 1.0: 0.935, 0.5: 0.92}
DIGITS_EPSILONS = (0.5, 1.0, 3.0, 10.0)  # those of paper E, and one between
LETTERS_EPSILONS = (0.5, 1.0, 3.0, 8.0)
SEEDS = 3
SPLITS = 10
STEPS_OF = {"784,1000,10": 2500, "3969,10": 2500}  # layers, and the batch
BATCHES = (500, 2500, 10_000)
_BINS = 15


def run(quick: bool, *which: str) -> list[Figure]:
    figures: list[Figure] = []
    for name in which or PARTS:
        if name not in PARTS:
            raise SystemExit(f"there is no {name}; there are {', '.join(PARTS)}")
        try:
            figures += PARTS[name](quick)
        except DataError as error:
            say(f"{name} is skipped: {error}")
    return figures


# -- accuracy -------------------------------------------------------------------------------------


def calibration_error(chances: Array, right: Array) -> float:
    """Expected calibration error: how far confidence lies from the share that is right, over 15 bins."""
    confidence = chances.max(1)
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = np.bincount(bins, confidence - right, _BINS)
    return float(np.abs(gaps).sum() / len(right))


def _scores(model: sf.PrivateClassifier, inputs: Any, targets: Array) -> tuple[float, float, float]:
    """Accuracy, negative log likelihood and calibration error; targets are places among the classes."""
    chances = model.predict_proba(inputs)
    right = chances.argmax(1) == targets
    likely = np.maximum(chances[np.arange(len(targets)), targets], 1e-12)
    return float(right.mean()), float(-np.log(likely).mean()), calibration_error(chances, right)


def _figure(what: str, rows: Sequence[Sequence[float]], bar: float | None) -> Figure:
    """The mean over runs of accuracy, likelihood, calibration and seconds of a processor."""
    accuracy, loss, gap, seconds = np.mean(rows, axis=0)
    spread = np.std([row[0] for row in rows])
    text = (
        f"{accuracy:.4f} +- {spread:.4f} (NLL {loss:.3f}, ECE {gap:.3f}, {seconds:.0f} s of CPU, "
        f"{len(rows)} runs)"
    )
    say(f"{what}: {text}")
    return Figure(what, float(accuracy), text, bar, True)


def _fitted(make: Callable[[], sf.PrivateClassifier], train: Any, test: Any) -> tuple[float, ...]:
    begin = process_time()
    model = make().fit(*train)
    seconds = process_time() - begin
    return *_scores(model, *test), seconds


def _classifier(
    epsilon: float, delta: float, examples: int, classes: int, **settings: Any
) -> sf.PrivateClassifier:
    privacy = sf.Privacy(epsilon, delta, unit="example", public=sf.Public(entries=examples))
    return sf.PrivateClassifier(privacy=privacy, classes=list(range(classes)), **settings)


def _mnist(quick: bool) -> tuple[Any, Any]:
    data = sf.datasets.mnist()
    few, some = (2000, 1000) if quick else (None, None)
    train = data.train_images[:few], data.train_labels[:few].astype(int)
    return train, (data.test_images[:some], data.test_labels[:some].astype(int))


def mnist(quick: bool) -> list[Figure]:
    """Scattering and a linear layer, the default for pictures."""
    train, test = _mnist(quick)
    figures = []
    for epsilon, bar in list(MNIST_BARS.items())[: 1 if quick else None]:

        def make(epsilon: float = epsilon) -> sf.PrivateClassifier:
            return _classifier(epsilon, 1e-5, len(train[0]), 10, bounds=(0, 255))

        rows = [_fitted(make, train, test) for _ in range(1 if quick else SEEDS)]
        figures.append(_figure(f"MNIST, scattering, epsilon {epsilon:g}, delta 1e-5", rows, bar))
    return figures


def mlp(quick: bool) -> list[Figure]:
    """A hidden layer on plain pixels."""
    (images, labels), (others, answers) = _mnist(quick)
    train = images.reshape(len(images), -1), labels
    test = others.reshape(len(others), -1), answers
    figures = []
    for epsilon, bar in list(MLP_BARS.items())[: 1 if quick else None]:

        def make(epsilon: float = epsilon) -> sf.PrivateClassifier:
            steps = 20 if quick else None
            return _classifier(
                epsilon, 1e-4, len(images), 10, hidden=(256,), bounds=(0, 255), steps=steps
            )

        rows = [_fitted(make, train, test) for _ in range(1 if quick else SEEDS)]
        figures.append(_figure(f"MNIST, 784 - 256 - 10, epsilon {epsilon:g}, delta 1e-4", rows, bar))
    return figures


def digits(quick: bool) -> list[Figure]:
    """The 1,797 digits of 8 x 8 pixels that come with scikit-learn, a fifth of them to test on."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return _on_splits("digits", data.images, data.target, 16, DIGITS_EPSILONS, quick)


def letter_pictures(quick: bool) -> list[Figure]:
    """Invented pictures, large and small: what settings were chosen on."""
    figures = []
    for number, size in ((600, 28), (600, 8)) if quick else ((24_000, 28), (6000, 8)):
        pictures, targets = letters(number, size, seed=size)
        name = f"letters {size} x {size}, {number:,}"
        figures += _on_splits(name, pictures, targets, 1, LETTERS_EPSILONS, quick, SEEDS)
    return figures


def _on_splits(
    name: str,
    pictures: Array,
    targets: Array,
    brightest: float,
    epsilons: Sequence[float],
    quick: bool,
    splits: int = SPLITS,
) -> list[Figure]:
    figures = []
    for epsilon in epsilons[:1] if quick else epsilons:
        rows = []
        for split in range(1 if quick else splits):
            order = np.random.default_rng(split).permutation(len(targets))
            seen, rest = np.split(order, [len(order) * 4 // 5])

            def make(epsilon: float = epsilon, examples: int = len(seen)) -> sf.PrivateClassifier:
                return _classifier(epsilon, 1e-4, examples, 10, bounds=(0, brightest))

            train, test = (pictures[seen], targets[seen]), (pictures[rest], targets[rest])
            rows.append(_fitted(make, train, test))
        figures.append(_figure(f"{name}, epsilon {epsilon:g}, delta 1e-4", rows, None))
    return figures


# -- speed ----------------------------------------------------------------------------------------


def speed(quick: bool) -> list[Figure]:
    """One step with its noise, ours and Opacus' in turn, and the memory that it takes by batch size."""
    figures = []
    steps = 2 if quick else 10
    for sizes, batch in STEPS_OF.items():
        found: dict[str, list[float]] = {"ours": [], "opacus": []}
        for kind in ("ours", "opacus", "ours", "opacus"):
            found[kind] += (_peer(kind, sizes, batch, steps) or {}).get("seconds", [])
        mine, theirs = (min(found[kind], default=np.nan) for kind in ("ours", "opacus"))
        what = f"private step, {sizes.replace(',', ' - ')}, batch {batch:,}"
        beside = f" (Opacus with ghost clipping {1000 * theirs:.0f} ms)" if np.isfinite(theirs) else ""
        text = f"{1000 * mine:.0f} ms{beside}"
        say(f"{what}: {text}")
        figures.append(Figure(f"{what}: seconds", mine, text))
        if np.isfinite(theirs):
            figures.append(
                Figure(f"{what}: Opacus over ours", theirs / mine, f"{theirs / mine:.2f} x", 2.0, True)
            )
        figures += _memory(sizes, BATCHES[:1] if quick else BATCHES)
    return figures


def _memory(sizes: str, batches: Sequence[int]) -> list[Figure]:
    figures = []
    for batch in batches:
        grown = {kind: (_peer(kind, sizes, batch, 2) or {}).get("grown") for kind in ("ours", "opacus")}
        if grown["ours"] is not None:
            shown = ", ".join(f"{k} {v / 2**20:.0f} MiB" for k, v in grown.items() if v is not None)
            what = f"memory of a step, {sizes.replace(',', ' - ')}, batch {batch:,}"
            say(f"{what}: {shown}")
            figures.append(Figure(what, grown["ours"] / 2**20, shown))
    return figures


def _peer(kind: str, sizes: str, batch: int, steps: int) -> dict[str, Any] | None:
    """What a process of its own has measured; or nothing, and a line that says why."""
    python = os.environ.get("SFUMATO_OPACUS", sys.executable) if kind == "opacus" else sys.executable
    script = Path(__file__).with_name("network_peer.py")
    command = [python, str(script), kind, sizes, str(batch), str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        say(f"{kind} is skipped: {done.stderr.strip().splitlines()[-1]}")
        return None
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


PARTS = {
    "mnist": mnist,
    "mlp": mlp,
    "digits": digits,
    "letters": letter_pictures,
    "speed": speed,
}
