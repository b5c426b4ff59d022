"""Answers from workers of a Ray cluster, which hold parts of one owner's data.

Each worker is an actor with sites of its own, and does with a query what ``answers.py`` says; what comes
back is added up here. Ray sends objects by pickle: it is for machines that trust each other.

Every call has a time limit. A worker that died, or that does not answer in time, ends the fit with a
:class:`SiteLostError`: what was charged stays charged, and no sum is made over the others alone.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import Any

from sfumato.checks import check_count, check_positive, check_text, given
from sfumato.engines.answers import OwnRows, added, own_rows_of, part_of_answer, with_own_rows
from sfumato.engines.local import Local
from sfumato.engines.protocol import Engine
from sfumato.errors import MissingExtraError, SettingError, SiteLostError
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_prior import OwnPrior
from sfumato.privacy.clipping import Clipped, combine
from sfumato.sites.memory import Site
from sfumato.solvers.protocol import PartQuery, Query, SumQuery
from sfumato.surface import setting

SiteMaker = Callable[[int], Site]  # a site with so many threads
_STORE = 256 * 2**20  # bytes of Ray's own store, where a cluster is started here


@dataclass(frozen=True)
class Ray:
    """Fit on a Ray cluster: ``sf.CP(engine=sf.Ray(workers=3))``. Needs ``sfumato[ray]``.

    Parameters
    ----------
    workers : int
        How many parts the data are cut into, each held by one worker.
    address : str or None
        Of a cluster that runs already; by default one is started on this machine, and ended.
    timeout : float
        Seconds that a worker has for one answer.
    threads : int
        Of each worker.

    Examples
    --------
    >>> import sfumato as sf
    >>> estimator = sf.CP(rank=2, engine=sf.Ray(workers=3))
    >>> sf.Ray(workers=0).check()
    Traceback (most recent call last):
        ...
    sfumato.errors.SettingError: workers must be a whole number from 1 on, got 0
    """

    workers: int = 2
    address: str | None = None
    timeout: float = 600.0
    threads: int = 1

    def check(self) -> None:
        """Raise for what no cluster could do, before data are touched."""
        check_count(workers=self.workers, threads=self.threads)
        check_positive(timeout=self.timeout)
        check_text(**given(address=self.address))
        _ray()

    def check_solver(self, solver: Any) -> None:
        """Refuse a solver that goes from one holder of data to the next, before any is begun."""
        if self.workers > 1 and getattr(solver, "chains", False):
            raise SettingError(
                f"{solver.name!r} goes from one part of the data to the next, so that {self.workers} "
                f"workers would wait for each other: use {setting('solver', 'als')}, or leave "
                f"{setting('engine')} out"
            )

    def open(self, makers: Sequence[SiteMaker]) -> RayEngine:
        """Workers with these sites, dealt out in order."""
        self.check()
        return RayEngine(self, makers)


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "fitting on a Ray cluster") from error
    return ray


class Worker(Local):
    """What runs at the other end: sites of its own, and what is asked of them."""

    def __init__(self, makers: Sequence[SiteMaker], threads: int) -> None:
        super().__init__(*(make(threads) for make in makers))
        self._asked: Any = None

    def part_of_answer(self, query: Query) -> Any | None:
        """None, instead of a message full of zeros, where these sites have nothing to add."""
        self._asked = query
        return part_of_answer(query, self.held)

    def part_of_next(self, part: Any) -> Any | None:
        """The same of a question that differs from the last one in its part."""
        return self.part_of_answer(self._asked.about(part))

    def own_rows(self, model: Multilinear, prior: OwnPrior) -> list[OwnRows]:
        return own_rows_of(model, prior, self.held)

    def process(self) -> int:
        """Which process this is, on its machine."""
        return os.getpid()


class RayEngine(Engine):
    """The workers of one fit."""

    def __init__(self, settings: Ray, makers: Sequence[SiteMaker]) -> None:
        if not makers:
            raise SettingError("a fit needs at least one site")
        self._settings, self._ray = settings, _ray()
        self._begun = not self._ray.is_initialized()
        number = min(settings.workers, len(makers))
        if self._begun:
            self._begin(number)
        # No processors are asked for: a worker waits for most of a fit, and there may be more of them.
        remote = self._ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(Worker)
        dealt = [
            makers[len(makers) * w // number : len(makers) * (w + 1) // number] for w in range(number)
        ]
        self._workers = [remote.remote(mine, settings.threads) for mine in dealt]
        self._asked: Any = None

    def _begin(self, number: int) -> None:
        here: dict[str, Any] = {"num_cpus": number, "object_store_memory": _STORE}
        self._ray.init(
            address=self._settings.address,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            **(here if self._settings.address is None else {}),
        )

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(f"worker {number + 1}" for number in range(len(self._workers)))

    def _call(self, name: str, *arguments: Any) -> list[Any]:
        """What all workers return, in their order."""
        sent = [self._ray.put(argument) for argument in arguments]  # once, whoever reads it
        asked = [getattr(worker, name).remote(*sent) for worker in self._workers]
        errors, limit = self._ray.exceptions, self._settings.timeout
        try:
            answers: list[Any] = self._ray.get(asked, timeout=limit)
        except errors.GetTimeoutError as error:
            late = len(asked) - len(self._ray.wait(asked, num_returns=len(asked), timeout=0)[0])
            raise SiteLostError(
                f"{late} of {len(asked)} workers did not answer within {limit:g} seconds: give more "
                f"time ({setting('timeout')}), or see what they are doing. What was charged stays "
                "charged"
            ) from error
        except errors.RayTaskError as error:  # raised by our own code, at a worker
            raise error.cause from error
        except errors.RayError as error:
            raise SiteLostError(
                f"a worker of the Ray cluster is gone ({type(error).__name__}). What was charged stays "
                "charged"
            ) from error
        return answers

    def check_shape(self, shape: Any) -> None:
        self._call("check_shape", shape)

    def answer(self, query: Query) -> Any:
        if isinstance(query, PartQuery) and query.follows(self._asked):
            found = self._call("part_of_next", query.part)  # without a model that workers have
        else:
            found = self._call("part_of_answer", query)
        self._asked = query
        parts = [part for part in found if part is not None]
        return added(query, parts or self._call("answer", query)[:1])

    def clipped(self, query: SumQuery) -> Clipped:
        return combine(self._call("clipped", query))

    def with_own_rows(self, model: Multilinear, prior: OwnPrior) -> Multilinear:
        parts: list[OwnRows] = reduce(list.__add__, self._call("own_rows", model, prior))
        return with_own_rows(model, prior, parts)

    def forget(self) -> None:
        self._call("forget")

    def close(self) -> None:
        if not self._ray.is_initialized():
            return
        for worker in self._workers:
            with suppress(self._ray.exceptions.RayError):
                self._ray.kill(worker)
        if self._begun:
            self._ray.shutdown()
