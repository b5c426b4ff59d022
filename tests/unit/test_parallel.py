"""Kernels and their threads: what is said while compiling, and small numbers."""

import os
import subprocess
import sys

import numpy as np

from sfumato.parallel import kernel, run, scratch

FIT = """
import sfumato as sf
sf.CP(1).fit(sf.synthetic.cp((4, 4), 1, entries=12).tensor)
"""


def test_compiling_is_said_once_and_then_never_again(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    said = [
        subprocess.run(
            [sys.executable, "-c", FIT], env=environment, capture_output=True, text=True, check=True
        ).stderr
        for _ in range(2)
    ]
    assert said == ["compiling kernels, once per machine: up to 20 s\n", ""]


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
