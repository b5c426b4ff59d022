"""What was seen: NDCG@10 and recall@10 of private lists on MovieLens, and on invented data.

A fifth of each user's entries is held out. Settings were chosen on MovieLens 100K and invented data; of
``implicit`` and of our open fit, rank, ridge and weight were too. ``SFUMATO_IMPLICIT`` names a Python
interpreter that has ``implicit``; where it is missing it is left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import sfumato as sf
from benchmarks.report import Figure, say
from sfumato.errors import DataError
from sfumato.estimators.lists import Choice, Lists, scored

K = 10
BUDGETS = (10.0, 1.0, 0.1)
SEEDS = 3
PEER = ("32", "10", "2")  # factors, regularisation and alpha: best of a grid on MovieLens 100K
Split = tuple[sf.SparseTensor, sf.SparseTensor]


def split(tensor: sf.SparseTensor, seed: int = 0, share: float = 0.2) -> Split:
    """So much of each owner's entries held out, rounded down."""
    owners = tensor.coordinates[0]
    order = np.lexsort((np.random.default_rng(seed).random(tensor.n_entries), owners))
    counts = np.bincount(owners, minlength=tensor.shape[0])
    place = np.empty(tensor.n_entries, np.int64)
    place[order] = np.arange(tensor.n_entries) - (np.cumsum(counts) - counts)[owners[order]]
    held = place < np.floor(share * counts)[owners]
    return tensor.take(~held), tensor.take(held)


def planted(tastes: int, users: int = 3000, items: int = 500, seed: int = 0) -> sf.SparseTensor:
    """Popular and less popular items; users of several tastes, or all of one."""
    rng = np.random.default_rng(seed)
    popular = 0.5 / np.sqrt(1 + rng.permutation(items))
    mine, its = rng.integers(0, tastes, users), rng.integers(0, tastes, items)
    chance = popular * np.where(mine[:, None] == its, 1.0, 0.2 if tastes > 1 else 1.0)
    cells = np.stack(np.nonzero(rng.random(chance.shape) < chance)).astype(np.int32)
    modes = (sf.Mode("user", users), sf.Mode("item", items))
    return sf.SparseTensor(cells, np.ones(cells.shape[1]), modes)


def privacy(train: sf.SparseTensor, epsilon: float, unit: str, seed: int) -> sf.Privacy:
    labels = {mode.name: [mode.label(n) for n in range(mode.size)] for mode in train.modes}
    public = sf.Public(labels=labels, entries=train.n_entries)
    return sf.Privacy(epsilon, 1e-6, unit=unit, local="user", public=public, seed=seed)


def implicit_lists(train: sf.SparseTensor) -> Lists | None:
    """Those of the peer; or nothing, and a line that says why."""
    python = os.environ.get("SFUMATO_IMPLICIT", sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder, "train.npz"), Path(folder, "lists.npy")
        np.savez(given, owner=train.coordinates[0], item=train.coordinates[1], shape=train.shape)
        # Isolated: this module is called as the library is.
        script = Path(__file__).with_name("implicit_peer.py")
        command = [python, "-I", str(script), str(given), *PEER, str(K), str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            say(f"implicit is skipped: {done.stderr.strip().splitlines()[-1]}")
            return None
        return Lists(np.load(made), *train.modes, Choice(mode=1, of=0, at={}))


def measure(name: str, data: Split, units: tuple[str, ...]) -> list[Figure]:
    train, test = data
    figures = []

    def add(what: str, found: dict[str, float], bar: float | None = None) -> float:
        text = f"NDCG@10 {found['ndcg']:.4f}, recall@10 {found['recall']:.4f}"
        say(f"{name}, {what}: {text}")
        figures.append(Figure(f"{name}, {what}", found["ndcg"], text, bar, True))
        return found["ndcg"]

    add("popularity, open", sf.Biases(loss="seen").fit(train).list_scores(test, K))
    add("ours, open", sf.CP(32, loss="seen").fit(train).list_scores(test, K))
    peer = implicit_lists(train)
    if peer is not None:
        add("implicit's ALS, open", scored(peer, test.coordinates))
    for unit in units:
        for epsilon in BUDGETS:
            means: dict[str, dict[str, float]] = {}
            for what, kind in (("popularity", sf.Biases), ("seen together", sf.CP)):
                found = [
                    kind(loss="seen", privacy=privacy(train, epsilon, unit, seed))
                    .fit(train)
                    .list_scores(test, K)
                    for seed in range(SEEDS)
                ]
                means[what] = {k: float(np.mean([each[k] for each in found])) for k in found[0]}
            at = f"one {unit}, epsilon {epsilon:g}"
            bar = add(f"private popularity, {at}", means["popularity"])
            add(f"private, {at}", means["seen together"], bar)
    return figures


def run(quick: bool) -> list[Figure]:
    figures = []
    for size in ("100k",) if quick else ("1m", "100k"):
        try:
            data = split(sf.datasets.movielens(size))
        except DataError as error:
            say(f"MovieLens {size} is skipped: {error}")
            continue
        figures += measure(f"MovieLens {size}", data, ("user",))
    for tastes in (4, 1):
        name = f"invented, {tastes} taste{'s' if tastes > 1 else ''}"
        figures += measure(name, split(planted(tastes)), ("user",))
    return figures
