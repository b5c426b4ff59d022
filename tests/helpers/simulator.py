"""numba-cuda's simulator with threads that take turns, and so take a tenth of the time.

Its own are threads of the system, which it looks after without a pause. Here each runs up to where all
wait for each other, first to last or last to first, as it is drawn for each block and each wait: what a
kernel reads before it is sure to be written comes out wrong in about half of its blocks.
"""

from contextvars import copy_context
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet


def take_turns() -> None:
    """From now on, in this process."""
    from numba.cuda.simulator import kernel, kernelapi

    kernelapi.threading = SimpleNamespace(current_thread=getcurrent)
    kernel.BlockManager = _Block


class _Thread(greenlet):
    """What kernels ask of the thread that they are run by."""

    def __init__(self, work: Any, block: Any, thread: Any, threads: tuple[int, ...]) -> None:
        super().__init__(work)
        self.gr_context = copy_context()
        from numba.cuda.simulator.kernelapi import Dim3

        self.blockIdx, self.threadIdx = Dim3(*block), Dim3(*thread)
        self.thread_id = thread[0] + threads[0] * (thread[1] + threads[1] * thread[2])

    def syncthreads(self) -> None:
        self.parent.switch()


class _Block:
    """Runs the threads of one block."""

    def __init__(self, work: Any, grid: Any, threads: Any, debug: bool) -> None:
        self._work, self._threads = work, threads

    def run(self, block: Any, *args: Any) -> None:
        with np.errstate(all="ignore"):  # a device says nothing of numbers that are none
            threads = np.ndindex(*self._threads)
            waiting = [_Thread(self._work, block, thread, self._threads) for thread in threads]
            given, turns = args, Random(str(block))
            while waiting:
                order = waiting if turns.random() < 0.5 else waiting[::-1]
                for thread in order:
                    thread.switch(*given)
                given = ()
                waiting = [thread for thread in waiting if not thread.dead]
