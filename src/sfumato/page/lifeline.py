"""A process that ends when the page does, whatever has ended it: nobody could cancel it then."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import cache

PATIENCE = 5.0  # seconds that a process has to end by itself


@cache
def lifeline() -> int:
    """Standard input of processes of this page: nothing comes, and it ends when the page does."""
    reading, _ = os.pipe()  # the other end stays open here, and here alone
    return reading


def end_with_input() -> None:
    """End this process, and what it starts, once its standard input ends."""
    threading.Thread(target=_wait, name="sfumato-lifeline", daemon=True).start()


def _wait() -> None:
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGINT)  # as Ctrl-C: it can say what stands
    time.sleep(PATIENCE)
    os.killpg(0, signal.SIGKILL)
