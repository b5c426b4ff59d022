"""What a round costs beside the work of the slowest site: MovieLens 1M, items at rank 8, three sites.

Ray has its workers, FLARE its sites in processes of their own over mutual TLS, all on this machine. Each
site notes how long it worked on an answer; the rest of a round is what travelling and adding up take.
Rounds are those that ask for items' rows; figures are medians.

``python -m benchmarks rounds``
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import sfumato as sf
from benchmarks.report import Figure, say
from sfumato.engines.ray import Worker
from sfumato.fit.admit import with_labels_of
from sfumato.fit.completion import carry_out_private
from sfumato.owners import cells
from sfumato.owners.kits import Kit, make_kits
from sfumato.owners.participant import Participant
from sfumato.owners.study import Study
from sfumato.privacy.clipping import Clipped
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.ledger import Ledger
from sfumato.sites.memory import Site
from sfumato.sites.parts import dealt_by
from sfumato.solvers.protocol import SumQuery

RANK, SITES = 8, 3
RAY_BAR, FLARE_BAR = 0.05, 0.25
START_BAR = 120.0


def run(quick: bool) -> list[Figure]:
    try:
        ratings = sf.datasets.movielens("100k" if quick else "1m")
    except sf.SfumatoError as error:
        say(f"MovieLens is skipped: {error}")
        return []
    figures = []
    for name, measure in (("Ray", _on_ray), ("FLARE", _on_flare)):
        try:
            figures += measure(ratings)
        except sf.MissingExtraError as error:
            say(f"{name} is skipped: {error}")
    return figures


def _estimator(ratings: sf.SparseTensor, **rest: Any) -> sf.CP:
    public = with_labels_of(ratings.modes, sf.Public(entries=ratings.n_entries))
    privacy = sf.Privacy(
        10.0, 1e-5, unit="user", local="user", method="alternating", public=public, **rest
    )
    return sf.CP(RANK, privacy=privacy)


def _figure(name: str, overheads: list[float], whole: list[float], bar: float) -> Figure:
    text = f"{median(overheads):.3f} s of {median(whole):.3f} s ({len(whole)} rounds)"
    return Figure(
        f"{name}, {SITES} sites: a round beside the slowest site", median(overheads), text, bar
    )


# -- Ray ------------------------------------------------------------------------------------------


class TimedWorker(Worker):
    """A worker that notes how long it worked."""

    def clipped(self, query: SumQuery) -> Clipped:
        begin = perf_counter()
        answer = super().clipped(query)
        self._seconds = perf_counter() - begin
        return answer

    def seconds(self) -> float:
        return self._seconds


def _on_ray(ratings: sf.SparseTensor) -> list[Figure]:
    import sfumato.engines.ray as engines

    plan: Any = _estimator(ratings, seed=1).plan(ratings.modes, bounds=ratings.bounds)
    makers = [partial(Site, part) for part in dealt_by(ratings, 0, SITES)]
    overheads, whole = list[float](), list[float]()
    usual, engines.Worker = engines.Worker, TimedWorker  # type: ignore[misc]
    try:
        with sf.Ray(workers=SITES).open(makers) as engine:
            inner = engine.clipped

            def timed(query: SumQuery) -> Clipped:
                begin = perf_counter()
                answer = inner(query)
                seconds = perf_counter() - begin
                if answer.values.size >= RANK * ratings.shape[1]:
                    whole.append(seconds)
                    overheads.append(seconds - max(engine._call("seconds")))
                return answer

            engine.clipped = timed  # type: ignore[method-assign]
            carry_out_private(plan, engine, Ledger(plan.task.unit), Entropy(1))
    finally:
        engines.Worker = usual  # type: ignore[misc]
    return [_figure("Ray", overheads, whole, RAY_BAR)]


# -- FLARE ----------------------------------------------------------------------------------------


def _on_flare(ratings: sf.SparseTensor) -> list[Figure]:
    names = [f"site-{number + 1}" for number in range(SITES)]
    study = sf.make_study(
        _estimator(ratings), ratings.mode_names, names, bounds=ratings.bounds or (1, 5)
    )
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_kits(folder / "kits", f"localhost:{_free_port()}", names)
        study.save(folder / "study")
        begin = perf_counter()
        sites = [
            subprocess.Popen([sys.executable, "-m", "benchmarks.rounds", place, str(number)])
            for number in range(SITES)
        ]
        with cells.CellHub(Kit.read(folder / "kits" / "leader")) as hub:
            hub.wait(300)
            rounds, inner = list[float](), hub.ask

            def timed(topic: str, messages: Any, seconds: float) -> Any:
                asked = perf_counter()
                answers = inner(topic, messages, seconds)
                if topic == "round":
                    rounds.append(perf_counter() - asked)
                return answers

            hub.ask = timed  # type: ignore[method-assign]
            sf.lead(study, hub, folder / "lead")
            took = perf_counter() - begin
        for site in sites:
            site.wait(60)
        worked = [_noted(folder / name / "seconds") for name in names]
    slowest = list(map(max, zip(*worked, strict=True)))
    large = [size >= 8 * RANK * ratings.shape[1] for _, size in slowest]
    pairs = [(a, b[0]) for a, b, kept in zip(rounds, slowest, large, strict=True) if kept]
    return [
        _figure("FLARE", [a - b for a, b in pairs], [a for a, _ in pairs], FLARE_BAR),
        Figure(f"FLARE, {SITES} sites: processes started to release", took, f"{took:.1f} s", START_BAR),
    ]


def _noted(path: Path) -> list[tuple[float, int]]:
    return [(float(a), int(b)) for a, b in (line.split() for line in path.read_text().splitlines())]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _serve(folder: Path, number: int) -> None:
    """One site, in a process of its own; it notes seconds and bytes of each answer."""
    study, name = Study.read(folder / "study"), f"site-{number + 1}"
    ratings = sf.datasets.movielens("1m" if study.facts.sizes[0] > 1000 else "100k")
    part = dealt_by(ratings, 0, SITES)[number]
    with Participant(study, name, part, folder / name) as participant:
        noted = (folder / name / "seconds").open("w")

        def handler(topic: str, message: bytes) -> bytes:
            begin = perf_counter()
            answer = participant(topic, message)
            if topic == "round":
                noted.write(f"{perf_counter() - begin} {len(answer)}\n")
            return answer

        serve: Callable[..., None] = cells.serve
        serve(Kit.read(folder / "kits" / name), handler)
        noted.close()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]))
