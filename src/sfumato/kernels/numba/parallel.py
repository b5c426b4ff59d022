"""Compiled kernels and the threads that run them.

Kernels release the GIL and are handed out to a thread pool, one disjoint piece of work each. That
keeps compilation short, works from any thread of the caller, and makes results depend on how the
work is cut, never on which thread runs first.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numba
import numpy as np
from numba.core import event as numba_event
from numba.core.caching import FunctionCache

from sfumato.kernels.numba.simd import flush_denormals

# Sums may be reordered so that they vectorise; NaN and infinity keep their meaning, because a
# diverging fit is recognised by them.
REORDERED_SUMS = {"reassoc", "contract", "arcp", "nsz"}


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function over arrays; the machine code is cached for the next process."""
    return _compiled(function)


def ordered_kernel(function: Callable[..., Any]) -> Any:
    """The same with every sum in the order in which it is written: for sums that add up what is lost."""
    return _compiled(function, fastmath=False)


def inlined(function: Callable[..., Any]) -> Any:
    """Compile a small function into each kernel that calls it."""
    return _compiled(function, forceinline=True)


def _compiled(function: Callable[..., Any], **options: Any) -> Any:
    usual = {"nogil": True, "fastmath": REORDERED_SUMS, "error_model": "numpy"}
    dispatcher: Any = numba.njit(**{**usual, **options})(function)
    try:
        dispatcher._cache = _Cache(function)
    except RuntimeError:  # Numba has found no folder that can be written
        _say_not_kept()
    return dispatcher


class _Cache(FunctionCache):
    """Machine code on disk. It saves time and no more: where that fails, kernels are compiled anew."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        # Numba compiles anew when a kernel's own file changes. Kernels call functions of other files:
        # all files that hold compiled functions have to count.
        index: Any = self._cache_file
        index._source_stamp = (index._source_stamp, _sources_stamp())

    def load_overload(self, *what: Any) -> Any:
        try:
            return super().load_overload(*what)
        except _UNUSABLE:
            return None

    def save_overload(self, *what: Any) -> None:
        try:
            super().save_overload(*what)
        except _UNUSABLE:
            _say_not_kept()


_UNUSABLE = (OSError, EOFError, UnpicklingError)  # a full disk, no rights, half a file


@cache
def _say_not_kept() -> None:
    logging.getLogger("sfumato").warning(
        "compiled kernels cannot be kept, as their folder cannot be written: every process compiles "
        "them anew. Set NUMBA_CACHE_DIR to a folder that can be written"
    )


@cache
def _sources_stamp() -> tuple[float, int]:
    """Of all compiled code: it lies in this folder, see ``_compiled``."""
    files = [path.stat() for path in Path(__file__).parent.glob("*.py")]
    return max(file.st_mtime for file in files), sum(file.st_size for file in files)


_events: Any = numba_event  # it has no types


class _Compiler(numba_event.Listener):
    """What the compiler is at. One thread at a time compiles: Numba sees to it."""

    depth = 0  # of kernels that wait for those they call

    def on_start(self, event: Any) -> None:
        self.depth += 1
        if event.data["dispatcher"].__module__.startswith(__package__ or ""):
            _say_that_it_takes_long()

    def on_end(self, event: Any) -> None:  # noqa: ARG002
        self.depth -= 1


@cache
def _say_that_it_takes_long() -> None:
    """Silence of ten seconds looks like a fault."""
    logging.getLogger("sfumato").warning("compiling kernels, once per machine: up to 20 s")


_compiler = _Compiler()
_events.register("numba:compile", _compiler)


def compiling() -> bool:
    """Whether a kernel is being compiled, which nothing can interrupt."""
    return _compiler.depth > 0


_MARGIN = 32  # elements: 128 bytes or more, since processors fetch lines in pairs


@inlined
def scratch(size: int, dtype: Any) -> Any:
    """Zeros for one thread's own use inside a kernel.

    Small arrays of two threads may come to lie in one cache line, which then goes back and forth at
    every write and halves the speed of both; a margin on either side prevents that.
    """
    return np.zeros(size + 2 * _MARGIN, dtype)[_MARGIN : _MARGIN + size]


def available_threads() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@kernel
def _prepare_thread() -> None:
    flush_denormals()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "sfumato", initializer=_prepare_thread)


if hasattr(os, "register_at_fork"):
    # A forked process has the pools but not their threads: it would wait for them for ever.
    os.register_at_fork(after_in_child=_pool.cache_clear)


def run(tasks: Iterable[Callable[[], None]], threads: int) -> None:
    """Run tasks that write to disjoint memory, and wait for all of them.

    Even a single thread is one of ours: it is set up for kernels, the caller's is not touched.
    """
    for future in [_pool(threads).submit(task) for task in tasks]:
        future.result()
