"""What holds for all tests, and what tests of several folders ask for by name."""

import gc
import os
import sys

import pytest

# Each process of tests has one core. With more threads than cores, products of small matrices take ten
# times as long. NumPy is not loaded yet: it looks here once, and so do the programs that tests start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Programs that tests start would compile all of the package at every start, and pytest all of the tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Kernels for a GPU run on numba's simulator; this too is looked at once.
os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")


def pytest_collection_finish() -> None:
    """Modules and the list of tests are there to the end: no need to look for garbage among them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture
def few_starts(monkeypatch):
    """Input perturbation as of large models, with two starts: for tests that ask nothing of the model.

    Small models are started eight times, and take as long as all else in such a test.
    """
    from sfumato.solvers.behind import fitting

    monkeypatch.setattr(fitting, "_SMALL_MODEL", 0)


@pytest.fixture
def few_trees(monkeypatch):
    """Audits with few random trees: for tests of which these are no part.

    A hundred take as long as all else in a small audit.
    """
    from sfumato.auditing import attacks

    monkeypatch.setattr(attacks, "_TREES", 10)
