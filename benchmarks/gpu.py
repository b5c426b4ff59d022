"""Fits on a GPU: private sums, sweeps of ALS and whole fits, beside the bytes that have to move.

``python -m benchmarks gpu billion`` has private sums of a billion entries instead, ``gpu answers``
private biases, moments and alternating fits of users, predictions, lists and components, each beside
processors. Needs a GPU that JAX finds. Entries are random; what is timed does not depend on their
values. Peers are sums of the same size written plainly in JAX and, where it is there, in PyTorch, and a
sweep of a matrix by implicit where that is there with rmm. ``gpu host`` needs none: it is what a private
fit takes beside its sums, on processors.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from importlib.util import find_spec
from statistics import median
from time import perf_counter
from typing import Any
from unittest import mock

import numpy as np

import sfumato as sf
from benchmarks.report import Figure, say
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.kernels.numba.alternating import CORE, Features, entry_sums, padded_metric
from sfumato.kernels.numba.normal import Ridge, Uncertainty
from sfumato.kernels.numba.threads import available_threads
from sfumato.models.multilinear import CPModel, Multilinear, TuckerModel
from sfumato.models.shape import Shape
from sfumato.sites.device import DeviceSite, by_hand, solve_rows
from sfumato.sites.memory import Site
from sfumato.solvers.private.alternating.solver import PrivateAlternating

SHAPE, RANK, BANDWIDTH = (100_000, 20_000, 365), 16, 4.3e12
SIZES = (10_000_000, 200_000_000, 300_000_000)
BILLION = 1_000_000_000
_REPEATS = 5


def run(quick: bool, *which: str) -> list[Figure]:
    from sfumato.kernels.jax import accelerated

    for name in which:
        if name not in PARTS:
            raise SystemExit(f"there is no {name}; there are {', '.join(PARTS)}")
    there = accelerated()
    if not there:
        say("no GPU that JAX finds: only what is done beside it is measured")
    asked = which or (("sizes", "host") if there else ("host",))
    return [figure for name in asked if there or name == "host" for figure in PARTS[name](quick)]


def _sizes(quick: bool) -> list[Figure]:
    figures = []
    for entries in (1_000_000,) if quick else SIZES:
        tensor = random_entries(entries)
        site = _site(tensor)
        figures += _sums(site) + _sweep(site, entries)
        del site
        gc.collect()
        if entries < SIZES[-1]:
            figures.append(_whole_fit(tensor))
        figures += _peers(tensor) + _implicit(entries) if entries <= SIZES[0] else []
        del tensor
        gc.collect()
    return figures


def _billion(quick: bool) -> list[Figure]:
    """Private sums of a billion entries: on the device, and in chunks from the host's memory."""
    entries = 1_000_000 if quick else BILLION
    tensor, figures = random_entries(entries), []
    for resident in (True, False):
        site = _site(tensor)
        site._resident = resident and site._resident
        say(f"{entries:,} entries, {'on the device' if site._resident else 'streamed'}")
        figures += _sums(site, ("cp",))
        del site
        gc.collect()
    return figures


def _answers(quick: bool) -> list[Figure]:
    """The same work on the device and on processors: fits from a tensor to the model, and questions."""
    entries = 200_000 if quick else SIZES[0]
    shape = (2_000, 400) if quick else SHAPE[:2]
    tensor, figures = random_entries(entries, shape), list[Figure]()
    for method in ("bias", "moments", PrivateAlternating(sweeps=5)):
        name = method if isinstance(method, str) else method.name
        figures += _beside(
            f"private fit by {name}, a user protected, {entries:,} entries",
            lambda device, method=method: _owned(method, tensor, device),
        )
    model = sf.CP(RANK, solver=sf.ALS(sweeps=1), duplicates="mean").fit(tensor)

    def asked(device: str, ask: Callable[[], Any]) -> Any:
        model.device = device
        return ask()

    figures += _beside(
        f"predictions of {entries:,} cells", lambda device: asked(device, lambda: model.predict(tensor))
    )
    lists = "lists of 10 for everybody"
    figures += _beside(lists, lambda device: asked(device, lambda: model.lists(10)))
    cube = np.random.default_rng(0).normal(size=(100 if quick else 1000,) * 3)
    return figures + _beside(
        f"2 components of a dense tensor of {cube.size:,} cells",
        lambda device: sf.PowerMethod(2, restarts=8, iterations=5, symmetric=False, device=device).fit(
            cube
        ),
    )


def _host(quick: bool) -> list[Figure]:
    """A private fit whose sums cost nothing: they are those that were made first, again and again."""
    tensor, made = random_entries(1_000_000 if quick else SIZES[0]), dict[int, Any]()

    def again(site: Site, model: Multilinear, block: int, features: Features) -> Any:
        if block not in made:
            made[block] = entry_sums(model, block, features, site.by_mode(block), site.threads)
        return made[block].copy()

    with mock.patch.object(Site, "entry_sums", again):
        seconds = timed(lambda: _private(tensor, "cpu"), 3)
    what = f"private fit, {tensor.n_entries:,} entries, 20 rounds, beside its sums: seconds"
    say(f"{what}: {seconds:.2f} s, sums of biases included")
    return [Figure(what, seconds, f"{seconds:.2f} s")]


def _owned(method: str | PrivateAlternating, tensor: SparseTensor, device: str) -> sf.CP:
    public = sf.Public(labels=True, units=tensor.shape[0], entries=tensor.n_entries)
    privacy = sf.Privacy(3.0, 1e-9, unit="user", method=method, public=public, seed=1)
    return sf.CP(privacy=privacy, device=device, duplicates="mean").fit(tensor)


def _beside(what: str, work: Callable[[str], Any]) -> list[Figure]:
    """Seconds there, and how many times as fast that is as on processors."""
    here, there = (timed(lambda device=device: work(device), 1) for device in ("cpu", "gpu"))
    shown = f"{there:.2f} s ({here / there:.1f} times as fast as on processors)"
    say(f"{what}: {shown}")
    return [Figure(f"{what}: seconds", there, shown)]


PARTS: dict[str, Callable[[bool], list[Figure]]] = {
    "sizes": _sizes,
    "billion": _billion,
    "answers": _answers,
    "host": _host,
}


def _site(tensor: SparseTensor) -> DeviceSite:
    """For CP models of the rank; the Tucker models here are no larger."""
    return DeviceSite(tensor, available_threads(), Shape.of(tensor.modes, (RANK,) * 3, "cp"))


def random_entries(entries: int, shape: tuple[int, ...] = SHAPE) -> SparseTensor:
    """Entries anywhere, sorted by the first mode."""
    random = np.random.default_rng(0)
    cells = np.empty((len(shape), entries), np.int32)
    counts = random.multinomial(entries, np.full(shape[0], 1 / shape[0]))
    cells[0] = np.repeat(np.arange(shape[0], dtype=np.int32), counts)  # as if drawn and sorted
    for mode, size in enumerate(shape[1:], 1):
        cells[mode] = random.integers(0, size, entries, dtype=np.int32)
    values = random.standard_normal(entries, dtype=np.float32)
    np.clip(values, -4, 4, out=values)
    modes = tuple(Mode(name, n) for name, n in zip(("user", "item", "day"), shape, strict=False))
    return SparseTensor(cells, values, modes, (-4.0, 4.0), _checked=True)


def timed(action: Callable[[], Any], repeats: int = _REPEATS) -> float:
    """Seconds, the median; once before to warm up."""
    action()
    seconds = []
    for _ in range(repeats):
        begin = perf_counter()
        action()
        seconds.append(perf_counter() - begin)
    return median(seconds)


def _model(kind: str = "cp") -> Multilinear:
    random = np.random.default_rng(1)
    model = CPModel.zeros(SHAPE, RANK) if kind == "cp" else TuckerModel.zeros(SHAPE, (4, 4, 4))
    for factor in model.factors:
        factor[:] = random.normal(size=factor.shape)
    model.free_core[:] = random.normal(size=model.free_core.shape)
    return model


def _sums(site: DeviceSite, kinds: tuple[str, ...] = ("cp", "tucker")) -> list[Figure]:
    """Private sums of each block: those of a mode with many levels, with some, and with few."""
    entries, figures = site.tensor.n_entries, []
    for kind in kinds:
        model = _model(kind)
        for block in [*range(3), *([CORE] if kind == "tucker" else [])]:
            size = model.free_core.size if block == CORE else model.ranks[block]
            metric = np.ones((1, size)) if block == CORE else np.eye(size) + 0.01
            features = Features(padded_metric(metric), 6.0, 3.0, 0.0 if block == CORE else 1.0)
            seconds, whole = _timed_sums(site, model, block, features)
            rate, name = (
                entries / seconds / 1e9,
                "core" if block == CORE else site.tensor.mode_names[block],
            )
            bound = entries * 4 * 4 / BANDWIDTH / seconds  # levels and values are read once
            bar = 5.0 if kind == "cp" and block == 0 else None
            figures.append(
                Figure(
                    f"private sums, {kind}, {name}, {entries:,} entries: billions a second",
                    rate,
                    f"{rate:.2f} ({seconds * 1e3:.2f} ms, {bound:.0%} of the memory bound; "
                    f"{whole * 1e3:.1f} ms with copies)",
                    bar,
                    True,
                )
            )
            say(f"{figures[-1].what}: {figures[-1].text}")
    return figures


def _timed_sums(
    site: DeviceSite, model: Multilinear, block: int, features: Features
) -> tuple[float, float]:
    """Seconds of the sums alone, and with copies of the model there and of the sums back."""
    whole = timed(lambda: site.entry_sums(model, block, features))
    if by_hand(model.ranks, model.free_core.size):
        return timed(_by_hand(site, model, block, features)), whole
    import jax

    from sfumato.kernels.jax import double_precision
    from sfumato.kernels.jax.alternating import put, sums_there

    chunks: Any = site.chunks(max(block, 0))
    with double_precision():
        p, how, levels, size = put(model, block, features)
        alone = timed(lambda: jax.block_until_ready(sums_there(p, how, chunks, block, levels, size)))
    return alone, whole


def _by_hand(site: DeviceSite, model: Multilinear, mode: int, features: Features) -> Callable[[], Any]:
    from numba import cuda

    from sfumato.kernels.cuda.alternating import put, sums_there

    entries, sizes = site.entries(mode), (model.order, model.shape[mode], model.ranks[mode])
    there = put(model, mode, features, entries)

    def sums() -> None:
        sums_there(*there, entries, *sizes)
        cuda.synchronize()

    return sums


def _sweep(site: DeviceSite, entries: int) -> list[Figure]:
    """A plain sweep of ALS in single precision: all modes, sums and solutions, with copies."""
    seconds, of_sums = _timed_sweep(site, RANK)
    bound = 3 * entries * 4 * 4 / BANDWIDTH / seconds
    bar = {SIZES[0]: 0.015, SIZES[1]: 0.250}.get(entries)
    shown = (
        f"{seconds * 1e3:.1f} ms, of which sums {of_sums * 1e3:.1f} ms ({bound:.0%} of the memory bound)"
    )
    figure = Figure(f"ALS sweep, {entries:,} entries: seconds", seconds, shown, bar)
    say(f"{figure.what}: {shown}")
    return [figure]


def _timed_sweep(site: DeviceSite, rank: int) -> tuple[float, float]:
    """Seconds of a sweep, and of its sums alone."""
    import jax

    model = CPModel.zeros(site.tensor.shape, rank, np.float32)
    for factor in model.factors:
        factor[:] = np.random.default_rng(1).normal(size=factor.shape)
    certain = Uncertainty(np.zeros((0, model.rows.shape[1]), np.float32), np.zeros(0), np.zeros(0))
    ridge = Ridge(np.full(model.rows.shape[1], 5.0), 0.0, 0.0, np.inf, 0.0, 1.0)

    def made(solved: bool) -> None:
        for mode in range(model.order):
            here = model.span(mode)
            sums = site.normal_equations(model, certain, mode, 0, model.shape[mode])
            if not solved:
                jax.block_until_ready(tuple(sums))
                continue
            where = model.rows[here], model.biases[here], certain.rows[:0], certain.biases
            solve_rows(sums, ridge, rank, *where)

    return timed(lambda: made(True)), timed(lambda: made(False))


def _whole_fit(tensor: SparseTensor) -> Figure:
    """A private fit from a tensor in memory to the model, timed once: 20 rounds at rank 16."""
    entries = tensor.n_entries
    if entries <= SIZES[0]:
        _private(tensor, "gpu")  # which compiles the kernels
    begin = perf_counter()
    _private(tensor, "gpu")
    seconds = perf_counter() - begin
    bar = {SIZES[0]: 3.0, SIZES[1]: 40.0}.get(entries)
    figure = Figure(
        f"private fit, {entries:,} entries, 20 rounds: seconds",
        seconds,
        f"{seconds:.1f} s",
        bar,
    )
    say(f"{figure.what}: {figure.text}")
    return figure


def _private(tensor: SparseTensor, device: str) -> sf.CP:
    privacy = sf.Privacy(
        epsilon=3.0,
        delta=1e-9,
        unit="entry",
        method=PrivateAlternating(sweeps=20),
        public=sf.Public(labels=True, entries=tensor.n_entries),
        seed=1,
    )
    return sf.CP(RANK, privacy=privacy, device=device, duplicates="mean").fit(tensor)


def _peers(tensor: SparseTensor) -> list[Figure]:
    """The same private sums of the first mode as one would write them at first."""
    import jax
    import jax.numpy as jnp

    from sfumato.kernels.jax import double_precision

    entries, figures = tensor.n_entries, []
    model = _model()
    with double_precision():
        cells = jax.device_put(tensor.coordinates)
        values, rows = (
            jax.device_put(tensor.values),
            [jax.device_put(f.astype(np.float32)) for f in model.factors],
        )

        @jax.jit
        def plain(cells: Any, values: Any, rows: Any) -> Any:
            design = rows[1][cells[1]] * rows[2][cells[2]]
            target = jnp.clip(values - (design * rows[0][cells[0]]).sum(1), -3, 3)
            x = design / jnp.maximum(1, jnp.linalg.norm(design, axis=1) / 6)[:, None]
            steps = jnp.trunc(x * target[:, None] * 2.0**24).astype(jnp.int64)
            return jnp.zeros((SHAPE[0], RANK), jnp.int64).at[cells[0]].add(steps)

        seconds = timed(lambda: jax.block_until_ready(plain(cells, values, rows)))
    shown = f"{entries / seconds / 1e9:.2f} ({seconds * 1e3:.2f} ms)"
    figures.append(Figure("private sums, plain JAX: billions a second", entries / seconds / 1e9, shown))
    say(f"{figures[-1].what}: {shown}")
    if find_spec("torch") is not None:
        figures.append(_torch(tensor, model))
        say(f"{figures[-1].what}: {figures[-1].text}")
    return figures


def _implicit(entries: int) -> list[Figure]:
    """A sweep by implicit's ALS on the GPU, where that is there: of a matrix, at a multiple of 32."""
    if find_spec("implicit") is None or find_spec("rmm") is None:
        return []
    from implicit.gpu.als import AlternatingLeastSquares
    from scipy.sparse import csr_matrix

    tensor, rank = random_entries(entries, SHAPE[:2]), 32
    matrix = csr_matrix((np.abs(tensor.values) + 1, tuple(tensor.coordinates)), tensor.shape)

    def fitted(sweeps: int) -> float:
        model, begin = AlternatingLeastSquares(factors=rank, iterations=sweeps), perf_counter()
        model.fit(matrix, show_progress=False)
        np.asarray(model.user_factors.to_numpy())  # once all is done
        return perf_counter() - begin

    fitted(1)
    theirs = (fitted(12) - fitted(2)) / 10
    site = DeviceSite(tensor, available_threads(), Shape.of(tensor.modes, (rank,) * 2, "cp"))
    ours, _ = _timed_sweep(site, rank)
    shown = f"{theirs * 1e3:.1f} ms, ours {ours * 1e3:.1f} ms ({theirs / ours:.1f} times as fast)"
    what = f"peer: a sweep of a matrix of {entries:,} entries by implicit, rank {rank}"
    say(f"{what}: {shown}")
    return [Figure(what, theirs / ours, shown, 1.0, True)]


def _torch(tensor: SparseTensor, model: Multilinear) -> Figure:
    import torch

    cells = torch.as_tensor(np.array(tensor.coordinates), device="cuda").long()
    values = torch.as_tensor(np.array(tensor.values), device="cuda")
    rows = [torch.as_tensor(f.astype(np.float32), device="cuda") for f in model.factors]

    def plain() -> None:
        design = rows[1][cells[1]] * rows[2][cells[2]]
        target = (values - (design * rows[0][cells[0]]).sum(1)).clamp(-3, 3)
        x = design / (design.norm(dim=1) / 6).clamp(min=1)[:, None]
        steps = (x * target[:, None] * 2.0**24).trunc().long()
        out = torch.zeros((SHAPE[0], RANK), dtype=torch.int64, device="cuda")
        out.index_add_(0, cells[0], steps)
        torch.cuda.synchronize()

    seconds, entries = timed(plain), tensor.n_entries
    shown = f"{entries / seconds / 1e9:.2f} ({seconds * 1e3:.2f} ms)"
    return Figure("private sums, plain PyTorch: billions a second", entries / seconds / 1e9, shown)
