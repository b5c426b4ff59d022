"""Ctrl-C is heard at once, also while the compiler holds everything up."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

WAITING = "interrupted: waiting for the compiler to finish"


@contextmanager
def heard_at_once() -> Iterator[None]:
    """Say so at once where Ctrl-C comes while kernels compile, which takes seconds to end.

    Python acts on a signal between two instructions of its own, and a compiler is one that lasts. The
    number of the signal comes through a pipe before that, to a thread that waits for it. Handlers stay
    as they are; a program that listens like this itself is left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    other = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    if other != -1:
        signal.set_wakeup_fd(other)
    listener = threading.Thread(target=_listen, args=(reading,), name="sfumato-interrupts", daemon=True)
    listener.start()
    try:
        yield
    finally:
        if other == -1:
            signal.set_wakeup_fd(-1)
        os.close(writing)  # which ends the listener
        listener.join()
        os.close(reading)


def _listen(reading: int) -> None:
    while signals := os.read(reading, 64):
        if signal.SIGINT in signals and _compiling():
            print(WAITING, file=sys.stderr, flush=True)


def _compiling() -> bool:
    kernels = sys.modules.get("sfumato.kernels.numba.compiler")  # nothing compiles before it is imported
    return kernels is not None and bool(kernels.compiling())
