"""Many independent jobs side by side: one process per core, one thread in each."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

from threadpoolctl import threadpool_limits

from sfumato.errors import SettingError
from sfumato.kernels.numba.threads import available_threads
from sfumato.surface import either, setting

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")


def each_done(
    function: Callable[[Job], Outcome], jobs: Sequence[Job], processes: int | None = None
) -> Iterator[tuple[int, Outcome]]:
    """The number and the outcome of every job, in the order in which they end.

    With one process the jobs run in the caller's own, in their order; with more, ``function`` and the
    jobs have to be importable and picklable. A job that fails ends the whole: those not yet begun are
    dropped, and its error is raised. Jobs should ask for one thread each.
    """
    wanted = available_threads() if processes is None else processes
    if wanted < 1:
        raise SettingError(f"{setting('processes')} must be 1 or more, got {processes}")
    if min(wanted, len(jobs)) <= 1:
        for number, job in enumerate(jobs):
            with threadpool_limits(1):
                outcome = function(job)
            yield number, outcome
        return
    # Spawned, not forked: threads of compiled kernels do not survive a fork.
    with ProcessPoolExecutor(min(wanted, len(jobs)), get_context("spawn"), _prepare) as pool:
        futures = {pool.submit(function, job): number for number, job in enumerate(jobs)}
        try:
            for future in as_completed(futures):
                yield futures.pop(future), future.result()
        except BrokenProcessPool as error:
            script = (
                ", or this is a script whose calls are not under `if __name__ == '__main__':`, which "
                "processes need"
            )
            raise SettingError(
                f"a process ended before its work did: memory may be short{either(script, '')}. With "
                f"{either('processes=1', '--processes 1')} all work is done in one"
            ) from error
        finally:  # after an error or Ctrl-C: what has begun is waited for, the rest is dropped
            for future in futures:
                future.cancel()


def _prepare() -> None:
    """Ctrl-C is for the parent to act on, and BLAS is to start no threads beside the processes.

    Threads that wait for each other at every small product make a fit ten times slower.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threadpool_limits(1)
