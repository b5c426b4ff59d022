"""Kernels and threads: where they lie, what is said while compiling, where machine code is kept."""

import ast
import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import sfumato
from sfumato.kernels.numba.compiler import kernel
from sfumato.kernels.numba.threads import run, scratch

PACKAGE = Path(sfumato.__file__).parent
COMPILED = PACKAGE / "kernels" / "numba"
TWINS = sorted((PACKAGE / "kernels" / "reference").glob("[a-z]*.py"))

# -- where compiled code lies -----------------------------------------------------------------------


def imported_by(file):
    """Modules that a file imports anything from, whether at its top or in a function."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def may_compile(file):
    """Whether a file gets hold of a decorator that compiles: Numba's, or one of ours."""
    ours = "sfumato.kernels.numba.compiler"
    return any(name.split(".")[0] == "numba" or name.startswith(ours) for name in imported_by(file))


def test_all_compiled_code_lies_in_one_folder():
    """A change in that folder makes kernels compile anew: one that lay elsewhere would be left out."""
    compiling = {file.parent for file in PACKAGE.rglob("*.py") if may_compile(file)}
    assert compiling == {COMPILED, PACKAGE / "kernels" / "cuda"}


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.stem)
def test_a_twin_takes_records_and_numbers_of_kernels_and_no_function(twin):
    """Or it would be held against itself."""
    for name in imported_by(twin):
        module, _, part = name.rpartition(".")
        if module.startswith(("sfumato.kernels.numba.", "sfumato.kernels.jax.")):
            taken = getattr(import_module(module), part)
            assert isinstance(taken, type) or not callable(taken), name


OWN_KERNEL = """
import numpy as np
from sfumato.kernels.numba.compiler import kernel
from sfumato.kernels.numba.threads import scratch

@kernel
def doubled(x):
    own = scratch(1, np.float64)
    own[0] = FACTOR * x
    return own[0]

print(doubled(4.0) == 4.0 * FACTOR)
"""


def test_the_kernel_of_a_plug_in_is_kept_until_its_file_changes(tmp_path):
    plug_in, kept = tmp_path / "plug_in.py", {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    run_it = f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; import plug_in"
    plug_in.write_text(OWN_KERNEL.replace("FACTOR", "2.0"))
    assert said_by(run_it, kept) == "compiling kernels, once per machine: up to 20 s\n"
    assert said_by(run_it, kept) == ""
    plug_in.write_text(OWN_KERNEL.replace("FACTOR", "3.00"))
    assert said_by(run_it, kept) == "compiling kernels, once per machine: up to 20 s\n"


# -- what is said, and what is kept -----------------------------------------------------------------

FIT = """
import sfumato as sf
model = sf.CP(1).fit(sf.synthetic.cp((4, 4), 1, entries=12).tensor)
print(model.predict(mode0=1, mode1=2) < 100)
"""
TWO_KERNELS = """
import numpy as np
from sfumato.kernels.numba.ordering import slots_by
print(slots_by(np.array([1, 0, 1], np.int32), 2).tolist() == [1, 0, 2])
"""


def said_by(program, environment):
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout == "True\n"
    return ended.stderr


def test_compiling_is_said_once_and_then_never_again(tmp_path):
    kept = {"NUMBA_CACHE_DIR": str(tmp_path)}
    said = [said_by(TWO_KERNELS, kept) for _ in range(2)]
    assert said == ["compiling kernels, once per machine: up to 20 s\n", ""]


def test_every_kernel_of_a_fit_is_kept():
    """Others may be compiling for the same place, and the last to write wins: it is tried again."""
    assert any(said_by(FIT, {}) == "" for _ in range(3))


def test_where_no_folder_can_be_written_kernels_work_and_that_is_said_once(tmp_path):
    # Root may write to what is read-only: files stand where there would have to be folders.
    nowhere = tmp_path / "file"
    nowhere.touch()
    package = tmp_path / "lib" / "sfumato"
    shutil.copytree(Path(sfumato.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in {file.parent for file in package.rglob("*.py")}:
        (folder / "__pycache__").touch()
    below = {name: str(nowhere / "x") for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME")}
    said = said_by(TWO_KERNELS, {**below, "PYTHONPATH": str(package.parent)})
    assert said.count("compiled kernels cannot be kept") == 1
    assert "NUMBA_CACHE_DIR" in said


def test_a_damaged_cache_is_no_cache(tmp_path):
    kept = {"NUMBA_CACHE_DIR": str(tmp_path)}
    said_by(TWO_KERNELS, kept)
    files = [file for file in tmp_path.rglob("*.nbi") if file.is_file()]
    assert files
    for file in files:
        file.write_bytes(file.read_bytes()[:9])
    said_by(TWO_KERNELS, kept)
    for file in files:  # the place of a file that cannot be replaced: as a disk that is full
        file.unlink()
        file.mkdir()
        (file / "in-the-way").touch()
    assert "compiled kernels cannot be kept" in said_by(TWO_KERNELS, kept)


def test_kernel_threads_take_denormal_numbers_for_zero_and_the_caller_does_not():
    smallest = np.full(1, np.finfo(np.float32).tiny)
    halves = np.empty(1, np.float32)

    @kernel
    def halve(x, out):
        out[0] = x[0] * np.float32(0.5)

    run([lambda: halve(smallest, halves)], 1)
    if os.uname().machine == "x86_64":
        assert halves[0] == 0
    assert smallest[0] * np.float32(0.5) > 0


def test_scratch_memory_is_zero_and_of_the_size_asked_for():
    @kernel
    def make(size):
        return scratch(size, np.float32)

    assert make(5).tolist() == [0.0] * 5
