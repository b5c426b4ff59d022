"""How functions over arrays are compiled, and where their machine code is kept.

All compiled code of this package lies in this folder. Functions of others, of a test or a plug-in say,
may be compiled in the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from weakref import WeakSet

import numba
from numba.core import event as numba_event
from numba.core.caching import FunctionCache
from numba.core.runtime.nrt import rtsys

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


def ordered_inlined(function: Callable[..., Any]) -> Any:
    """The same for ordered kernels."""
    return _compiled(function, forceinline=True, fastmath=False)


_made: WeakSet[Any] = WeakSet()  # what the functions above have made


def _compiled(function: Callable[..., Any], **options: Any) -> Any:
    usual = {"nogil": True, "fastmath": REORDERED_SUMS, "error_model": "numpy"}
    dispatcher: Any = numba.njit(**{**usual, **options})(function)
    _made.add(dispatcher)
    try:
        dispatcher._cache = _Cache(function)
    except RuntimeError:  # Numba has found no folder that can be written
        _say_not_kept()
    return dispatcher


# -- machine code on disk -----------------------------------------------------------------------


class _Cache(FunctionCache):
    """Machine code on disk. It saves time and no more: where that fails, kernels are compiled anew."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        # Numba compiles anew when a kernel's own file changes. Kernels call functions of other files,
        # and those of a plug-in may call ours: all of our files have to count as well.
        index: Any = self._cache_file
        index._source_stamp = (index._source_stamp, _sources_stamp())

    def load_overload(self, signature: Any, target: Any) -> Any:
        try:
            if not numba.__version__.startswith(_RUNS_WITHOUT_COMPILER):
                return super().load_overload(signature, target)
            rtsys.initialize(target)
            return self._load_overload(signature, target)
        except _UNUSABLE:
            return None

    def save_overload(self, *what: Any) -> None:
        try:
            super().save_overload(*what)
        except _UNUSABLE:
            _say_not_kept()


# Before it loads what was compiled, Numba makes ready to compile, which takes 0.2 s and half of SciPy.
# Of these versions it is known that machine code needs the runtime alone; to compile, they make ready.
_RUNS_WITHOUT_COMPILER = ("0.68.",)
_UNUSABLE = (OSError, EOFError, UnpicklingError)  # a full disk, no rights, half a file


@cache
def _say_not_kept() -> None:
    logging.getLogger("sfumato").warning(
        "compiled kernels cannot be kept, as their folder cannot be written: every process compiles "
        "them anew. Set NUMBA_CACHE_DIR to a folder that can be written"
    )


@cache
def _sources_stamp() -> tuple[float, int]:
    """Of all compiled code, and of the numbers beside it that are compiled in."""
    here = Path(__file__).parent
    files = [path.stat() for folder in (here, here.parent) for path in folder.glob("*.py")]
    return max(file.st_mtime for file in files), sum(file.st_size for file in files)


# -- what the compiler is at --------------------------------------------------------------------

_events: Any = numba_event  # it has no types


class _Compiler(numba_event.Listener):
    """What the compiler is at. One thread at a time compiles: Numba sees to it."""

    depth = 0  # of kernels that wait for those they call

    def on_start(self, event: Any) -> None:
        self.depth += 1
        if event.data["dispatcher"] in _made:
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
