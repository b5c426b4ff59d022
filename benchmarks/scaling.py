"""How a fit scales over workers: a simulation, held against what two Ray workers take here.

A sweep of ALS, or a round of a private fit, is a list of questions. Of each kind it is measured here, at
one site with one thread, what an entry takes at the data and a row where answers are used, and how large
questions and answers are. The simulation asks the same questions of a larger problem and of more
workers: it sends them over a network, waits for the slowest worker, takes the answers in over the
driver's one link, adds them up and uses them. Nothing overlaps, as nothing does in the engine.

Rows of the mode that the data are cut by lie at one worker each: questions of ALS about some of them
leave the others idle. ``in parts`` is the same with those rows solved where they lie, which no engine
does yet.

Deviation: the simulation of two workers on this machine, whose messages are copies in its memory, over
what two Ray workers took in the same run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import sfumato as sf
from benchmarks.report import Figure, aligned, say
from sfumato.engines.local import Local
from sfumato.fit.completion import carry_out, carry_out_private
from sfumato.fit.plan import Plan, PrivatePlan
from sfumato.models.shape import Shape
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.ledger import Ledger
from sfumato.records import is_record, parts_of
from sfumato.sites.memory import Site
from sfumato.sites.parts import cut_by
from sfumato.solvers.least_squares.questions import RowsQuery
from sfumato.solvers.private.alternating.queries import BlockQuery

RANK, ROUNDS = 16, 3
HERE = (60_000, 20_000, 365)
BEYOND, BEYOND_ENTRIES = (10_000_000, 1_000_000, 365), 10_000_000_000
WORKERS = (1, 2, 8, 64)
BOUNDS = (-4.0, 4.0)


@dataclass(frozen=True)
class Link:
    """How messages travel: bytes a second either way, and seconds that each takes besides."""

    there: float
    back: float
    latency: float


NETWORK = Link(1e9, 1e9, 1e-3)
SPREAD = 0.1  # standard deviation of the logarithm of a worker's time


# -- what is asked, as measured -------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """The questions of one kind in a sweep or round.

    ``block`` is how many rows one is about, None where all of them; ``own`` whether the rows are those
    that the data are cut by.
    """

    name: str
    mode: int
    block: int | None
    own: bool
    entry_seconds: float
    row_seconds: float
    answer_bytes: float  # of a row
    sent_bytes: float  # of a row of the model, once for each kind


@dataclass
class Call:
    """A question that was asked, and when."""

    query: Any
    begin: float
    end: float
    answer_bytes: int
    used: float = 0.0  # seconds until the next one


def size_of(plain: Any) -> int:
    """Bytes of the arrays in a message."""
    if isinstance(plain, np.ndarray):
        return plain.nbytes
    if is_record(plain):
        return sum(map(size_of, parts_of(plain).values()))
    return sum(map(size_of, plain)) if isinstance(plain, tuple) else 0


def watched(engine: Any, wanted: type) -> list[Call]:
    """The calls of one kind that an engine will have answered."""
    calls = list[Call]()

    def watch(answer: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def ask(query: Any) -> Any:
            begin = perf_counter()
            found = answer(query)
            if isinstance(query, wanted):
                calls.append(Call(query, begin, perf_counter(), size_of(found)))
            return found

        return ask

    engine.answer, engine.clipped = watch(engine.answer), watch(engine.clipped)
    return calls


def rounds_of(calls: Sequence[Call], end: float) -> list[list[Call]]:
    """The calls of each round but the first, which makes layouts."""
    for call, following in zip(calls, [*(each.begin for each in calls[1:]), end], strict=True):
        call.used = following - call.end
    number = len(calls) // ROUNDS
    return [list(calls[number * k : number * (k + 1)]) for k in range(1, ROUNDS)]


def seconds_of(calls: Iterable[Call]) -> float:
    return sum(call.end - call.begin + call.used for call in calls)


def mode_of(query: Any) -> int:
    return int(query.rows.mode if isinstance(query, RowsQuery) else max(query.block, 0))


def kinds_of(rounds: Sequence[Sequence[Call]], shape: Sequence[int], entries: int) -> list[Kind]:
    """What the questions of a round take, by mode: the least over the rounds."""
    made = []
    # Whatever follows an answer is about rows of all modes, in private rounds in the last one's wake.
    using = min(sum(call.used for call in calls) for calls in rounds) / sum(shape)
    for mode, size in enumerate(shape):
        mine = [[call for call in calls if mode_of(call.query) == mode] for calls in rounds]
        first = mine[0][0].query
        block = first.rows.high - first.rows.low if isinstance(first, RowsQuery) else None
        made.append(
            Kind(
                f"{type(first).__name__} {mode}",
                mode,
                block,
                mode == 0 and block is not None,
                min(sum(call.end - call.begin for call in calls) for calls in mine) / entries,
                using,
                sum(call.answer_bytes for call in mine[0]) / size,
                size_of(first.model) / sum(shape),
            )
        )
    return made


# -- the simulation -------------------------------------------------------------------------------


def simulated(
    kinds: Iterable[Kind],
    shape: Sequence[int],
    entries: int,
    workers: int,
    link: Link,
    adding: float,
    spread: float = 0.0,
    in_parts: bool = False,
    seed: int = 0,
) -> float:
    """Seconds of a sweep or round, question by question; ``adding`` is seconds for each byte."""
    rng, clock = np.random.default_rng(seed), 0.0
    for kind in kinds:
        rows, alone = shape[kind.mode], kind.own and workers > 1
        if alone and in_parts:  # each worker solves its own rows and sends these alone
            kind = replace(kind, block=None, answer_bytes=8.0 * (RANK + 1) / workers)  # noqa: PLW2901
            work = kind.entry_seconds * entries + kind.row_seconds * rows
            clock += _asked(kind, shape, link, workers) + _slowest(rng, workers, spread) * work / workers
            clock += workers * rows * kind.answer_bytes / link.back
            continue
        questions = 1 if kind.block is None else ceil(rows / kind.block)
        answer = kind.answer_bytes * rows / questions
        answering = 1 if alone else workers  # who has entries of these rows
        work = kind.entry_seconds * entries / questions / answering
        clock += _asked(kind, shape, link, workers)
        for _ in range(questions):
            clock += link.latency + _slowest(rng, answering, spread) * work
            clock += answering * answer / link.back + (answering - 1) * answer * adding
        clock += kind.row_seconds * rows
    return clock


def _asked(kind: Kind, shape: Sequence[int], link: Link, workers: int) -> float:
    """The model goes to every worker with the first question of a kind, over the driver's link."""
    return link.latency + workers * kind.sent_bytes * sum(shape) / link.there


def _slowest(rng: np.random.Generator, workers: int, spread: float) -> float:
    """How much longer than usual the slowest of some workers takes."""
    return float(np.exp(spread * rng.standard_normal(workers).max()))


# -- what is measured -----------------------------------------------------------------------------


def invented(entries: int) -> sf.SparseTensor:
    planted = sf.synthetic.cp(HERE, 4, entries=entries, snr=1.0, seed=0)
    return sf.prepare.clip(planted.tensor, BOUNDS)


def plans(tensor: sf.SparseTensor) -> dict[str, tuple[Any, type]]:
    """A fit by ALS and a private one, with the questions that are looked at."""
    shape = Shape(tensor.modes, (RANK,) * tensor.order)
    labels = {mode.name: range(mode.size) for mode in tensor.modes}
    public = sf.Public(entries=tensor.n_entries, labels=labels)
    method = sf.PrivateAlternating(sweeps=ROUNDS)
    privacy = sf.Privacy(5, 1e-6, unit="entry", method=method, public=public, seed=1)
    private = sf.CP(RANK, privacy=privacy).plan(tensor.modes, bounds=BOUNDS, entries=tensor.n_entries)
    openly = Plan(shape, sf.ALS(sweeps=ROUNDS, ridge=1.0, presence=False))
    return {"ALS": (openly, RowsQuery), "private rounds": (private, BlockQuery)}


def traced(plan: Any, engine: Any, wanted: type) -> list[list[Call]]:
    """The calls of a fit's rounds."""
    calls = watched(engine, wanted)
    if isinstance(plan, PrivatePlan):
        carry_out_private(plan, engine, Ledger(plan.task.unit), Entropy(5))
    else:
        carry_out(plan, engine)
    return rounds_of(calls, calls[-1].end)


def link_here(sent: float, answer: float) -> Link:
    """How fast two processes of this machine hand arrays of so many bytes on by Ray."""
    import ray

    class Echo:
        def __init__(self, size: int) -> None:
            self._array = np.ones(size)

        def take(self, array: Any) -> int:
            return int(array[::512].sum())

        def give(self) -> Any:
            return self._array

    actor: Any = ray.remote(num_cpus=0)(Echo).remote(int(answer) // 8)
    there, back, latency = list[float](), list[float](), list[float]()
    array = np.ones(int(sent) // 8)
    for _ in range(20):
        latency.append(_seconds(lambda: ray.get(actor.take.remote(np.zeros(512)))))
        there.append(_seconds(lambda: ray.get(actor.take.remote(ray.put(array)))))
        back.append(_seconds(lambda: np.sum(ray.get(actor.give.remote()))))
    ray.kill(actor)
    usual = median(latency)
    return Link(sent / max(median(there) - usual, 1e-4), answer / max(median(back) - usual, 1e-4), usual)


def adding_here() -> float:
    """Seconds for each byte of two answers that are added."""
    one, other = np.ones(1 << 21), np.ones(1 << 21)
    return min(_seconds(lambda: one + other) for _ in range(5)) / one.nbytes


def _seconds(work: Callable[[], Any]) -> float:
    begin = perf_counter()
    work()
    return perf_counter() - begin


def measured(entries: int) -> list[Figure]:
    tensor, settings = invented(entries), sf.Ray(workers=2)
    shape, figures, adding = tensor.shape, list[Figure](), adding_here()
    parts = cut_by(tensor, 0, 2)
    for name, (plan, wanted) in plans(tensor).items():
        alone = traced(plan, Local(Site(tensor, 1)), wanted)
        with settings.open([partial(Site, part) for part in parts]) as engine:
            sent, answer = size_of(alone[0][0].query.model), alone[0][0].answer_bytes
            link, together = link_here(sent, answer), traced(plan, engine, wanted)
        kinds = kinds_of([*alone, *traced(plan, Local(Site(tensor, 1)), wanted)], shape, entries)
        single, took = min(map(seconds_of, alone)), min(map(seconds_of, together))
        expected = simulated(kinds, shape, entries, 2, link, adding)
        one = simulated(kinds, shape, entries, 1, Link(np.inf, np.inf, 0.0), adding)
        _say_kinds(name, kinds, link)
        figures += [
            Figure(f"{name}: one site, simulated", one, f"{one:.2f} s"),
            Figure(f"{name}: one site, measured", single, f"{single:.2f} s"),
            Figure(f"{name}: two workers, simulated", expected, f"{expected:.2f} s"),
            Figure(f"{name}: two workers, measured", took, f"{took:.2f} s"),
            Figure(f"{name}: deviation", expected / took - 1, f"{expected / took - 1:+.0%}"),
        ]
        _say_beyond(name, kinds, adding)
    return figures


def _say_kinds(name: str, kinds: Iterable[Kind], link: Link) -> None:
    """What the simulation rests on."""
    rows = [("question", "us an entry", "us a row", "bytes a row back", "bytes a row there")]
    rows += [
        (
            kind.name,
            f"{1e6 * kind.entry_seconds:.3f}",
            f"{1e6 * kind.row_seconds:.1f}",
            f"{kind.answer_bytes:,.0f}",
            f"{kind.sent_bytes:,.0f}",
        )
        for kind in kinds
    ]
    say(f"{name}, measured here\n{aligned(rows)}")
    say(
        f"messages on this machine: {link.there / 1e9:.1f} GB/s there, {link.back / 1e9:.1f} GB/s back, "
        f"{1e3 * link.latency:.1f} ms\n"
    )


def _say_beyond(name: str, kinds: Sequence[Kind], adding: float) -> None:
    """Seconds of a sweep or round of the large problem, and how many times as fast as one worker."""
    rows, least = [("workers", "seconds", "faster", "in parts, seconds", "faster")], 0.0
    for workers in WORKERS:
        ask = partial(simulated, kinds, BEYOND, BEYOND_ENTRIES, workers, NETWORK, adding, SPREAD)
        now, then = ask(), ask(in_parts=True)
        least = least or now
        rows.append(
            (f"{workers}", f"{now:,.0f}", f"{least / now:.1f}", f"{then:,.0f}", f"{least / then:.1f}")
        )
    sizes = " x ".join(f"{size:,}" for size in BEYOND)
    say(f"{name}, {BEYOND_ENTRIES:,} entries of {sizes}, simulated\n{aligned(rows)}\n")


def run(quick: bool) -> list[Figure]:
    return measured(200_000 if quick else 4_000_000)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--entries", type=int, default=4_000_000, help="of what is measured here")
    for figure in measured(parser.parse_args().entries):
        say(f"{figure.what}: {figure.text}")


if __name__ == "__main__":
    main()
