"""The same fit again and again, on either of two neighbours, and what each release shows.

Runs are made in batches by processes of their own. Batches that are done are kept in a folder where one
is given, so that an audit that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sfumato.auditing.neighbours import Neighbours
from sfumato.auditing.views import observed
from sfumato.data.io.write import replacing
from sfumato.errors import SettingError
from sfumato.estimators.base import TensorEstimator
from sfumato.estimators.coupled import Coupled
from sfumato.fit.request import Privacy
from sfumato.privacy.caveats import without_warnings
from sfumato.processes import each_done
from sfumato.solvers.protocol import DivergedError
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.auditing.coupled_subject import RelationNeighbours

Runs = Mapping[str, Array]  # by what was seen: one row for each run; "side" says on which neighbour
Tell = Callable[[int], None]
_BATCH = 20  # runs that are made, and kept, together
_DIVERGED = "diverged"


@dataclass(frozen=True, eq=False)
class Trial:
    """What is run: an estimator, two neighbours, and what an adversary looks at.

    With a ``seed`` the noise of every run follows from it, so that an audit can be repeated; it has the
    law of secret noise, drawn by the same code. Without one it is drawn as in a real fit.
    """

    estimator: TensorEstimator | Coupled
    neighbours: Neighbours | RelationNeighbours
    sees: tuple[str, ...] | None = None
    seed: int | None = 0

    def run(self, number: int) -> dict[str, Any]:
        """What run ``number`` shows; odd ones are made on the second neighbour."""
        side = number % 2
        seed = None if self.seed is None else seed_from(self.seed, number)
        try:
            files = released(self.estimator, self.neighbours.sides[side], seed)
        except DivergedError:  # whoever waits for the release sees that there is none
            return {"side": side, "form": _DIVERGED}
        pair = self.neighbours
        relation = None if isinstance(pair, Neighbours) else pair.relation
        return {"side": side, **observed(files, pair.cells, self.sees, relation)}

    def fingerprint(self) -> str:
        """What runs depend on: those of another trial must not be taken for this one's."""
        kinds = type(self.estimator), type(privacy_of(self.estimator).method)
        params = {k: v for k, v in self.estimator.get_params().items() if k not in _NO_MATTER}
        digest = hashlib.sha256(code_of(kinds))
        digest.update(in_full((kinds[0].__name__, params)))
        for side in self.neighbours.sides:
            for name, tensor in side.items() if isinstance(side, Mapping) else [("", side)]:
                modes = [(mode.name, mode.size, mode.bin, mode.labels) for mode in tensor.modes]
                digest.update(in_full((name, modes, tensor.bounds)))
                digest.update(tensor.coordinates.tobytes())
                digest.update(tensor.values.tobytes())
        digest.update(repr((self.neighbours.canary, self.sees, self.seed)).encode())
        return digest.hexdigest()


_NO_MATTER = ("progress", "threads")
# What cannot matter to a release, nor to what is seen of one; all else does, whatever is added.
_CANNOT_MATTER = ("auditing", "cli", "demo.py", "papers", "report")
_VIEWS = "auditing/views.py"


def _files_that_matter() -> set[Path]:
    library = Path(__file__).parents[1]
    all_files = set(library.rglob("*.py"))
    left_out = {f for f in all_files if f.relative_to(library).parts[0] in _CANNOT_MATTER}
    return all_files - left_out | {library / _VIEWS}


@cache
def code_of(kinds: tuple[type, ...]) -> bytes:
    """Digest of the code of a run: a mechanism that was mended makes another audit."""
    files = _files_that_matter()
    for kind in kinds:
        with suppress(TypeError):  # what was typed at a prompt has no file
            files.add(Path(inspect.getsourcefile(kind) or __file__))
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files))).digest()


def in_full(settings: Any) -> bytes:
    with np.printoptions(threshold=sys.maxsize, floatmode="unique"):
        return repr(settings).encode()


def released(
    estimator: TensorEstimator | Coupled, data: Any, noise_seed: int | None
) -> dict[str, bytes]:
    """The files of one release of a fit, with one thread and without a charge to a ledger."""
    privacy = replace(privacy_of(estimator), seed=noise_seed, ledger=None, limit=None)
    own: Any = copy.copy(estimator).set_params(privacy=privacy, threads=1, progress=None)
    with without_warnings():
        files: dict[str, bytes] = own.fit(data).release_files(force=True)
    return files


def seed_from(*numbers: int) -> int:
    """A seed that follows from others."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def carry_out(
    trial: Trial,
    runs: int,
    folder: Path | None = None,
    processes: int | None = None,
    tell: Tell = lambda _: None,
) -> Runs:
    """``runs`` runs, half on each neighbour; ``tell`` hears how many have been added."""
    batches = [range(start, min(start + _BATCH, runs)) for start in range(0, runs, _BATCH)]
    done = {} if folder is None else _read_batches(folder, trial, batches, tell)
    missing = [batch for batch in batches if batch.start not in done]
    jobs = [(trial, batch) for batch in missing]
    for number, made in each_done(_run_batch, jobs, processes):
        done[missing[number].start] = made
        if folder is not None:
            _write_batch(folder, missing[number], made)
        tell(len(missing[number]))
    return _stacked([run for batch in batches for run in done[batch.start]])


def _run_batch(job: tuple[Trial, range]) -> list[dict[str, Any]]:
    trial, numbers = job
    return [trial.run(number) for number in numbers]


def _stacked(runs: Sequence[Mapping[str, Any]]) -> Runs:
    """Runs as arrays.

    Where a release has no such part as the first one, or one of another shape, the first one's stands
    in for it: its form tells it apart. What is compared must not depend on later runs, since it is part
    of the choice of an attack.
    """
    first = next((run for run in runs if run["form"] != _DIVERGED), runs[0])
    return {
        name: np.stack([_part(run, name, np.asarray(usual)) for run in runs])
        for name, usual in first.items()
        if name != "form"
    } | {"form": np.array([run["form"] for run in runs])}


def _part(run: Mapping[str, Any], name: str, usual: Array) -> Array:
    part = np.asarray(run.get(name, usual))
    return part if part.shape == usual.shape else usual


# -- runs on disk ---------------------------------------------------------------------------------


def _read_batches(
    folder: Path, trial: Trial, batches: Sequence[range], tell: Tell
) -> dict[int, list[dict[str, Any]]]:
    """The batches that are there already; a folder of another audit is refused."""
    folder.mkdir(parents=True, exist_ok=True)
    marker, mine = folder / "trial.json", {"fingerprint": trial.fingerprint()}
    if marker.is_file():
        if json.loads(marker.read_text("utf-8")) != mine:
            raise SettingError(
                f"{folder} holds the runs of another audit (other data, settings or version): name "
                "another folder, or delete it"
            )
    elif any(folder.iterdir()):
        raise SettingError(f"{folder} is not empty and holds no audit: name another folder")
    else:
        with replacing(marker) as file:
            file.write(json.dumps(mine).encode())
    done = {}
    for batch in batches:
        path = _batch_path(folder, batch)
        if path.is_file():
            with np.load(path, allow_pickle=False) as arrays:
                done[batch.start] = _unpacked(dict(arrays), len(batch))
            tell(len(batch))
    return done


def _write_batch(folder: Path, batch: range, runs: Sequence[Mapping[str, Any]]) -> None:
    packed = {f"{number}/{name}": part for number, run in enumerate(runs) for name, part in run.items()}
    content = io.BytesIO()
    np.savez_compressed(content, **packed)
    with replacing(_batch_path(folder, batch)) as file:
        file.write(content.getvalue())


def _unpacked(arrays: Mapping[str, Array], count: int) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = [{} for _ in range(count)]
    for key, part in arrays.items():
        number, _, name = key.partition("/")
        runs[int(number)][name] = part.item() if part.ndim == 0 else part
    return runs


def _batch_path(folder: Path, batch: range) -> Path:
    return folder / f"runs-{batch.start:07d}-{batch.stop:07d}.npz"


def privacy_of(estimator: TensorEstimator | Coupled) -> Privacy:
    """The privacy that an estimator promises."""
    if not isinstance(estimator, TensorEstimator | Coupled):
        raise SettingError("an audit takes an estimator with privacy=..., such as sf.CP(2, privacy=...)")
    if estimator.privacy is None:
        raise SettingError("this estimator promises no privacy: give it privacy=...")
    return estimator.privacy
