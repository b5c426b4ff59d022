"""Time that the first fit spends compiling, and whether the next process finds it in the cache."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from itertools import product
from time import perf_counter

from benchmarks.report import Figure, say

MODELS = ("CP", "Tucker")
SOLVERS = ("als", "sgd", "minibatch")
BAR_SECONDS = 20


def run(quick: bool) -> list[Figure]:
    cases = list(product(MODELS, SOLVERS))
    figures = []
    for model, solver in cases[::3] if quick else cases:
        with tempfile.TemporaryDirectory() as cache:
            first, second = (_fit_elsewhere(model, solver, cache) for _ in range(2))
        say(f"{model} {solver}: first fit {first:.1f} s, in the next process {second:.2f} s")
        spent = first - second
        text = f"{spent:.1f} s (next process {second:.2f} s in all)"
        figures.append(Figure(f"compile {model} {solver}", spent, text, BAR_SECONDS))
        cached = second < first / 4
        figures.append(
            Figure(f"compile {model} {solver}: cached", cached, str(cached).lower(), 1, True, "true")
        )
    return figures


def _fit_elsewhere(model: str, solver: str, cache: str) -> float:
    """Seconds of a small fit in a new process; importing does not count."""
    command = [sys.executable, "-m", "benchmarks.compile", model, solver]
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return float(done.stdout)


def _fit_here(model: str, solver: str) -> float:
    import sfumato as sf

    tensor = sf.synthetic.cp((12, 11, 10), 2, entries=400).tensor
    estimator = getattr(sf, model)(3, solver=solver)
    begin = perf_counter()
    estimator.fit(tensor)
    return perf_counter() - begin


if __name__ == "__main__":
    print(_fit_here(*sys.argv[1:]))
