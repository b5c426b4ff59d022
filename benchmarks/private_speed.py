"""Speed of private fits: exact noise beside OpenDP's, alternating rounds beside ALS sweeps, whole fits,
gradient steps beside SGD and Opacus.

Opacus runs in a process of its own: with the interpreter that ``SFUMATO_OPACUS`` names, else with
this one. Where it is not installed it is left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time_ns
from typing import Any

import numpy as np

import sfumato as sf
from benchmarks.report import Figure, say
from benchmarks.timing import Action, Disturbance, Rounds, interleave, timed, warm_up
from sfumato import SparseTensor
from sfumato.engines.local import Local
from sfumato.errors import DataError
from sfumato.fit.admit import with_labels_of
from sfumato.fit.plan import PrivatePlan
from sfumato.kernels.discrete import DiscreteLaw
from sfumato.kernels.numba.chacha import WORDS
from sfumato.kernels.numba.discrete_noise import draw
from sfumato.kernels.numba.normals import fill_normals, make_normals
from sfumato.models.shape import Shape
from sfumato.privacy.clipping import Clipped
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Draw
from sfumato.privacy.mechanisms import Noisy
from sfumato.privacy.sampling import with_noise
from sfumato.privacy.units import Entry
from sfumato.sites.memory import Site
from sfumato.solvers.gradient.minibatch import MinibatchSGD
from sfumato.solvers.private.gradient.levels import Start
from sfumato.solvers.private.gradient.solver import PrivateSGD
from sfumato.solvers.protocol import Run

SHAPE = (100_000, 20_000, 365)
NAMES = ("user", "item", "day")
BOUNDS = (-4.0, 4.0)  # about three standard deviations of the planted values
RANK = 16
RATES = (0.0001, 0.001, 0.01)
OPACUS_RATES = (0.01, 0.1)


@dataclass(frozen=True)
class Sizes:
    """How much to measure."""

    entries: int = 10_000_000
    repetitions: int = 5
    opacus_steps: int = 8
    rounds: int = 5
    numbers: int = 2_000_000  # of exact noise


QUICK = Sizes(500_000, 2, 3, 1, 100_000)


def run(quick: bool) -> list[Figure]:
    sizes, disturbance = QUICK if quick else Sizes(), Disturbance()
    say(f"private steps: {sizes.entries:,} entries, {' x '.join(f'{n:,}' for n in SHAPE)}, rank {RANK}")
    planted = sf.synthetic.cp(SHAPE, RANK, entries=sizes.entries, dtype=np.float32, modes=NAMES)
    figures = _exact_noise(sizes)
    for rate in RATES:
        figures += _beside_minibatches(planted.tensor, rate, sizes)
    tensor = sf.prepare.clip(planted.tensor, BOUNDS).astype(np.float64)
    del planted
    figures += _beside_sweeps(tensor, sizes)
    figures += _whole_fits(None if quick else tensor)
    del tensor
    figures += _beside_opacus(sizes)
    share = disturbance.share()
    if share is not None:
        figures.append(Figure("private speed run: CPU time taken by others", share, f"{share:.0%}"))
    return figures


class PrivatePasses:
    """A private fit without mean and biases that goes on; each call is one pass, in seconds."""

    def __init__(
        self, tensor: SparseTensor, rate: float, biases: bool = False, threads: int = 1
    ) -> None:
        counts = np.maximum(np.concatenate([tensor.counts(n) for n in tensor.mode_names]), 1.0)
        spread = float(tensor.values.std())
        variance = np.full(tensor.order, 0.1 * spread**2)
        start = Start(float(tensor.values.mean()), np.zeros(counts.size), counts, spread, variance)
        ranks = (RANK,) * tensor.order
        shape = Shape.of(tensor.modes, ranks, "cp", dtype="float32", fit_biases=biases)
        bounds = (float(tensor.values.min()), float(tensor.values.max()))
        facts = Facts(shape, Entry(), bounds, tensor.n_entries)
        self._solver = PrivateSGD(noise=0.5, rate=rate, start=start)
        self._charge = self._solver.charges(facts)[0]
        self._state = self._solver.init(Run(), facts)
        self._engine, self._entropy = Local(Site(tensor, threads)), Entropy()

    def __call__(self) -> float:
        """Answer a question for a pass; settling the next one's steps is not timed."""
        query, draw = self._solver.ask(self._state), Draw(self._charge, self._entropy)
        answers: list[Any] = []
        seconds = timed(lambda: answers.append(self._engine.released(query, draw)))
        self._state, _ = self._solver.update(self._state, answers[0])
        return seconds


def _normals_of_a_pass(tensor: SparseTensor, rate: float) -> int:
    """Expected normal numbers in a pass: for each row whenever it is touched, and at the end."""
    counts = np.concatenate([tensor.counts(name) for name in tensor.mode_names])
    touched = -np.expm1(counts * np.log1p(-rate)).sum() * round(1 / rate)
    return int((touched + counts.size) * RANK)


def _beside_minibatches(tensor: SparseTensor, rate: float, sizes: Sizes) -> list[Figure]:
    batch = round(rate * tensor.n_entries)
    solver = MinibatchSGD(batch=batch, step=1e-3, ridge_per_entry=0.001)
    plain = sf.CP(RANK, solver=solver, mean=False, biases=False, threads=1, dtype=np.float32)
    small = sf.synthetic.cp((20, 20, 20), RANK, entries=300, dtype=np.float32).tensor
    PrivatePasses(small, 0.1)()  # compile
    Rounds(plain, small)
    normals, stream = _normals_of_a_pass(tensor, rate), make_normals(Entropy().generator())
    block = np.empty(1000 * WORDS, np.float32)
    fill_normals(*stream, block)
    actions: dict[str, Action] = {
        "plain": Rounds(plain, tensor),
        "private": PrivatePasses(tensor, rate),
        "noise": lambda: timed(partial(fill_normals, *stream, block)) * normals / block.size,
    }
    seconds = {name: min(times) for name, times in interleave(actions, sizes.repetitions).items()}
    ratio = seconds["private"] / seconds["plain"]
    what = f"private pass, batches of {rate:.2%}"
    text = f"{ratio:.2f} x ({seconds['private']:.2f} s, not private {seconds['plain']:.2f} s)"
    noise = f"{seconds['noise']:.2f} s for {normals / 1e6:.0f} M normal numbers"
    return [
        Figure(f"{what}: over one that is not private, same batches", ratio, text, 3.0),
        Figure(f"{what}: noise by itself", seconds["noise"], noise),
    ]


# -- exact noise ----------------------------------------------------------------------------------

SCALES = (0.3, 1.0, 12.0, 1e3, 2.0**25 * 1.3, 2.0**36 * 1.7, 2.0**45)  # in steps of a grid
MOST_NANOSECONDS, LEAST_RATIO = 40.0, 200.0
_OPENDP_NUMBERS = 20_000


def _exact_noise(sizes: Sizes) -> list[Figure]:
    """Processor time of a number on one thread, tables at hand; OpenDP's draws in between."""
    figures = []
    for kind, name in (("gaussian", "discrete Gaussian"), ("geometric", "geometric")):
        for scale in SCALES:
            ours, theirs = [], []
            law, zeros = DiscreteLaw(kind, scale), np.zeros(_OPENDP_NUMBERS, np.int64)
            for _ in range(sizes.repetitions):
                ours.append(_nanoseconds(partial(draw, law, sizes.numbers, Entropy().words(), 1)))
                by_opendp = partial(with_noise, zeros, law, Entropy(sampler="opendp"))
                theirs.append(_nanoseconds(by_opendp))
            each = min(ours) / sizes.numbers
            ratio = min(theirs) / zeros.size / each
            what = f"{name} noise, scale {scale:.3g}"
            figures += [
                Figure(f"{what}: ns a number and core", each, f"{each:.1f} ns", MOST_NANOSECONDS),
                Figure(f"{what}: over OpenDP's", ratio, f"{ratio:.0f} x as fast", LEAST_RATIO, True),
            ]
        say(f"{name}: {figures[-2].text} at the largest scale, {figures[-1].text}")
    return figures


def _nanoseconds(action: Callable[[], object]) -> float:
    begin = process_time_ns()
    action()
    return process_time_ns() - begin


# -- alternating fits ---------------------------------------------------------------------------

UNITS = {"entry": 1e-6, "user": 1e-5}  # with their delta
MOST_SWEEPS = 2.0  # that a round may take, beside its noise
MOST_WITH_NOISE = 1.6  # times what the same round takes without noise
# Seconds that whole fits may take: of MovieLens 1M, and of ten million entries.
MOST_SECONDS = {"entry": 2.5, "user": 1.5, "biases, entry": 0.5, "biases, user": 0.5}
MOST_SECONDS_OF_LARGE = {"entry": 60.0, "user": 40.0}


def _alternating(tensor: SparseTensor, unit: str, method: Any = "alternating") -> sf.Privacy:
    """Epsilon 10, and users keep their rows; the noise is exact."""
    public = with_labels_of(tensor.modes, sf.Public(entries=tensor.n_entries))
    return sf.Privacy(10.0, UNITS[unit], unit=unit, local="user", method=method, public=public)


class _TimedDraw(Draw):
    """A draw that notes how long its noise took."""

    seconds = 0.0

    def release(self, clipped: Clipped) -> Noisy:
        answers: list[Noisy] = []
        self.seconds = timed(lambda: answers.append(super(_TimedDraw, self).release(clipped)))
        return answers[0]


class AlternatingRounds:
    """An alternating private fit that goes on; each call is one round, in seconds without its noise.

    ``noise`` has the seconds that exact noise took, by round. Biases, and the first round, which builds
    layouts, are made here.
    """

    def __init__(self, tensor: SparseTensor, unit: str, rank: int = RANK) -> None:
        estimator = sf.CP(rank, privacy=_alternating(tensor, unit), threads=2)
        plan = estimator.plan(tensor.modes, bounds=tensor.bounds)
        assert isinstance(plan, PrivatePlan)
        self._solver = plan.task.solver
        self._state = self._solver.init(plan.run, plan.task.facts)
        self._engine, self._entropy = Local(Site(tensor, plan.run.threads)), Entropy()
        self._charges, self._completed = iter(plan.charges), 0
        self.noise: list[float] = []
        self()
        self.noise.clear()

    def __call__(self) -> float:
        begin, before, noise = perf_counter(), self._completed, 0.0
        while self._completed == before:
            draw = _TimedDraw(next(self._charges), self._entropy)
            answer = self._engine.released(self._solver.ask(self._state), draw)
            self._state, info = self._solver.update(self._state, answer)
            self._completed, noise = info.completed, noise + draw.seconds
        self.noise.append(noise)
        return perf_counter() - begin - noise


def _beside_sweeps(tensor: SparseTensor, sizes: Sizes) -> list[Figure]:
    """Rounds beside sweeps of ALS for the same model, in float64 and on two threads both."""
    plain = sf.CP(RANK, threads=2, dtype=np.float64)
    small = sf.prepare.clip(sf.synthetic.cp((20, 19, 18), 2, entries=400, modes=NAMES).tensor, BOUNDS)
    warm_up(sf.CP(2, threads=2), small)
    figures = []
    for unit in UNITS:
        AlternatingRounds(small, unit, rank=2)  # compile
        rounds = AlternatingRounds(tensor, unit)
        actions: dict[str, Action] = {"sweep": Rounds(plain, tensor), "round": rounds}
        found = interleave(actions, sizes.rounds)
        sweep, seconds, noise = (min(times) for times in (found["sweep"], found["round"], rounds.noise))
        what = f"alternating round, {unit}, {tensor.n_entries / 1e6:g} M entries"
        text = f"{seconds / sweep:.2f} x ({seconds:.2f} s; sweep {sweep:.2f} s)"
        whole = (seconds + noise) / seconds
        told = f"{whole:.2f} x ({noise:.2f} s of noise)"
        say(f"{what}: {text}, exact noise {noise:.2f} s")
        figures += [
            Figure(f"{what}: without noise, over an ALS sweep", seconds / sweep, text, MOST_SWEEPS),
            Figure(f"{what}: over the same without noise", whole, told, MOST_WITH_NOISE),
        ]
        del rounds, actions
    return figures


def _whole_fits(tensor: SparseTensor | None) -> list[Figure]:
    """Seconds of fits with exact noise: as planned on MovieLens 1M, and on the large tensor, if any.

    The first fit to MovieLens compiles, or reads what was compiled; the best of three others counts.
    """
    figures = []
    try:
        ratings = sf.datasets.movielens("1m")
        for unit in UNITS:
            for method, name in (("auto", unit), ("bias", f"biases, {unit}")):
                fits = [sf.CP(privacy=_alternating(ratings, unit, method)) for _ in range(4)]
                fitted = min((fit.fit(ratings) for fit in fits), key=lambda fit: fit.fit_seconds_)
                what = f"whole private fit, {name}, MovieLens 1M, rank {fitted.model_.ranks[0]}"
                figures.append(_whole_fit(what, fitted, MOST_SECONDS[name]))
    except DataError as error:
        say(f"MovieLens 1M is skipped: {error}")
    if tensor is None:
        return figures
    for unit in UNITS:
        fitted = sf.CP(RANK, privacy=_alternating(tensor, unit)).fit(tensor)
        what = f"whole private fit, {unit}, {tensor.n_entries / 1e6:g} M entries, rank {RANK}"
        figures.append(_whole_fit(what, fitted, MOST_SECONDS_OF_LARGE[unit]))
    return figures


def _whole_fit(what: str, fitted: sf.CP, most: float) -> Figure:
    seconds = fitted.fit_seconds_
    say(f"{what}: {seconds:.2f} s")
    return Figure(what, seconds, f"{seconds:.2f} s, exact noise", most, bar_text=f"<= {most:g} s")


# -- Opacus -------------------------------------------------------------------------------------


def _beside_opacus(sizes: Sizes) -> list[Figure]:
    try:
        tensor = sf.datasets.movielens("1m").astype(np.float32)
    except DataError as error:
        say(f"opacus is skipped: {error}")
        return []
    figures: list[Figure] = []
    for rate in OPACUS_RATES:
        theirs = _opacus(tensor, rate, sizes.opacus_steps)
        if theirs is None:
            return figures
        passes = PrivatePasses(tensor, rate, biases=True, threads=2)
        ours = min(passes() for _ in range(sizes.repetitions)) * rate
        again = _opacus(tensor, rate, sizes.opacus_steps)
        step = min(theirs + (again or []))
        batch = rate * tensor.n_entries / 1e6
        text = f"{step / ours:.0f} x (ours {batch / ours:.1f}, Opacus {batch / step:.3f} M entries/s)"
        what = f"private steps, MovieLens 1M, batches of {rate:.0%}: ours over Opacus (ghost clipping)"
        figures.append(Figure(what, step / ours, text, 100.0, True))
    return figures


def _opacus(tensor: SparseTensor, rate: float, steps: int) -> list[float] | None:
    """Seconds of each step, the first left out; or nothing, and a line that says why."""
    python = os.environ.get("SFUMATO_OPACUS", sys.executable)
    script = Path(__file__).with_name("opacus_peer.py")
    with TemporaryDirectory() as folder:
        ratings = Path(folder) / "ratings.npz"
        user, item = tensor.coordinates
        np.savez(ratings, user=user, item=item, rating=tensor.values)
        command = [python, str(script), str(ratings), str(RANK), str(rate), str(steps + 1)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        say(f"opacus is skipped: {done.stderr.strip().splitlines()[-1]}")
        return None
    found = json.loads(done.stdout.splitlines()[-1])
    say(f"opacus {found['opacus']}, torch {found['torch']}, batches of {rate:.0%}")
    seconds: list[float] = found["seconds"][1:]
    return seconds
