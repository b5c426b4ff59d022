"""Model folders, releases and ledgers that were damaged: each is loaded, and used where it loads.

Half of the damage is done behind a manifest that is made right again, as a forger would, so that the
code behind it is reached as well.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from multiprocessing import parent_process
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

import sfumato as sf
from benchmarks.fuzz.harness import Subject
from sfumato.store import guarantee_of, has_manifest, signed_by
from sfumato.store.manifest import manifest_of
from sfumato.store.names import MANIFEST, UNLISTED

LEDGER = "ledger"
SAMPLES = np.random.default_rng(0).standard_normal((200, 4))


# -- whole models ---------------------------------------------------------------------------------


def _tensor() -> sf.SparseTensor:
    return sf.synthetic.cp((6, 5, 4), 2, entries=80, seed=0).tensor


def _ratings() -> sf.SparseTensor:
    users = np.array([f"u{number}" for number in range(6)], object)
    items = np.arange(10, 15)
    modes = (sf.Mode("user", 6, users), sf.Mode("item", 5, items))
    cells = np.array([[u, i] for u in range(6) for i in range(5) if (u + i) % 3]).T
    values = np.random.default_rng(0).integers(1, 6, cells.shape[1]).astype(float)
    return sf.SparseTensor(cells, values, modes, bounds=(1, 5))


def _private() -> sf.CP:
    labels = {"user": [f"u{number}" for number in range(6)], "item": list(range(10, 15))}
    privacy = sf.Privacy(
        5.0, 1e-3, unit="user", public=sf.Public(labels=labels, entries=20), method="alternating"
    )
    return sf.CP(2, privacy=privacy).fit(_ratings())


def _coupled(solver: Any) -> sf.Coupled:
    counts = np.random.default_rng(0).poisson(2.0, (6, 5)).astype(float)
    cells = np.indices((6, 5)).reshape(2, -1)
    first = sf.SparseTensor(cells, counts.ravel(), (sf.Mode("user", 6), sf.Mode("item", 5)))
    second = sf.SparseTensor(cells, counts.ravel()[::-1], (sf.Mode("user", 6), sf.Mode("place", 5)))
    return sf.Coupled(2, solver, threads=1).fit({"ratings": first, "visits": second})


def _components() -> sf.PowerMethod:
    privacy = sf.Privacy(5.0, 1e-3, unit=sf.TensorEntry(1.0))
    vector = np.array([0.6, 0.8, 0.0, 0.0])
    return sf.PowerMethod(1, 3, 2, privacy=privacy).fit(60 * np.einsum("a,b,c", *[vector] * 3))


def _signed(folder: Path) -> None:
    key = sf.new_key(folder.parent / "key")
    sf.sign(_private().release(folder), key)


def _ledger(folder: Path) -> None:
    folder.mkdir()
    ledger = folder / LEDGER
    for epsilon in (1.0, 2.0):
        privacy = sf.Privacy(
            epsilon, 1e-3, unit="entry", ledger=ledger, public=sf.Public(20, labels=True)
        )
        sf.Biases(privacy=privacy).fit(_ratings())


BASES: dict[str, Callable[[Path], object]] = {
    "cp": lambda folder: sf.CP(2).fit(_tensor()).save(folder),
    "tucker": lambda folder: sf.Tucker((2, 3, 1), solver="sgd").fit(_tensor()).save(folder),
    "biases": lambda folder: sf.Biases().fit(_ratings()).save(folder),
    "release": lambda folder: _private().release(folder),
    "owner": lambda folder: _private().save(folder),
    "coupled ML": lambda folder: _coupled(sf.Multiplicative(5)).save(folder),
    "coupled VB": lambda folder: _coupled(sf.Variational(5)).save(folder),
    "coupled Langevin": lambda folder: _coupled(
        sf.Langevin("poisson", samples=5, burn_in=2, thin=1, chains=2)
    ).save(folder),
    "components": lambda folder: _components().save(folder),
    "signed": _signed,
    LEDGER: _ledger,
}


class Whole:
    """One folder of each kind, made when it is first asked for and gone with the process."""

    def __init__(self) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="fuzz-whole-")
        self._made: dict[str, Path] = {}

    def __getitem__(self, kind: str) -> Path:
        if kind not in self._made:
            folder = Path(self._place.name, kind.replace(" ", "-"), "model")
            folder.parent.mkdir()
            BASES[kind](folder)
            self._made[kind] = folder
        return self._made[kind]


WHOLE = Whole()


# -- damage ---------------------------------------------------------------------------------------

ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 2**31, 2**63, 10**400, 0.5, -0.0, 1e308, 1e400, float("nan"), "",
    "1", "cp", "é\0", [], [0], [[]], {}, {"a": 1}, list(range(50)),
)  # fmt: skip
DTYPES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}


def flip(random: Random, file: Path) -> None:
    content = bytearray(file.read_bytes())
    for _ in range(random.choice((1, 1, 1, 3, 30)) if content else 0):
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    file.write_bytes(content)


def cut(random: Random, file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: random.randrange(len(content) + 1)])


def splice(random: Random, file: Path) -> None:
    content = file.read_bytes()
    place, other = sorted(random.randrange(len(content) + 1) for _ in range(2))
    middle = random.choice(
        (b"", random.randbytes(20), content[place:other] * 2, b"\0" * 5, b"[" * 10**5)
    )
    file.write_bytes(content[:place] + middle + content[other:])


def edit(random: Random, file: Path) -> None:
    """Another value, another name or none, somewhere in JSON; anything else is spliced."""
    lines = file.read_text("utf-8").splitlines() if file.name == LEDGER else [file.read_bytes().decode()]
    number = random.randrange(len(lines))
    whole = json.loads(lines[number])
    places = list(_places(whole))
    if not places:
        return splice(random, file)
    holder, name = random.choice(places)
    how = random.randrange(4)
    if how == 0:
        del holder[name]
    elif how == 1 and isinstance(holder, dict):
        holder[random.choice(("", "x", "sha256", name.upper()))] = holder.pop(name)
    else:
        holder[name] = _other(random, holder[name], places)
    lines[number] = json.dumps(whole)
    if random.random() < 0.05:
        lines[number] = lines[number].replace(":", ":" + "[" * 10**5 + "]" * 10**5 + ",", 1)
    file.write_text("\n".join(lines), "utf-8")
    return None


def _places(value: Any) -> Any:
    items = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for name, inner in items:
        yield value, name
        yield from _places(inner)


def _other(random: Random, value: Any, places: list[Any]) -> Any:
    """An odd value, a value from elsewhere, or nearly the same one."""
    how = random.randrange(5)
    if how == 0:
        holder, name = random.choice(places)
        return holder[name]
    if how == 1 and isinstance(value, int | float):
        return random.choice((value + 1, value - 1, -value, value * 2, value * 10**9, float(value)))
    if how == 1 and isinstance(value, list):
        return random.choice((value[:-1], value * 2, value[::-1]))
    return random.choice(ODD)


def reshape(random: Random, file: Path) -> None:
    """Another type, shape, name or no data of some array; the numbers are made to fit it, or not."""
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    data = {
        name: content[end + about["data_offsets"][0] : end + about["data_offsets"][1]]
        for name, about in header.items()
    }
    name = random.choice(sorted(header))
    shape = header[name]["shape"]
    how = random.randrange(6)
    if how == 0:
        header[name]["dtype"] = random.choice(sorted(DTYPES))
    elif how == 1 and shape:
        shape[random.randrange(len(shape))] = random.choice((0, 1, 2, 7, 2**31, 2**40))
    elif how == 2:
        header[name]["shape"] = random.choice(
            ([], [1], shape[::-1], [*shape, 1], shape[:-1], [0, 2**40])
        )
    elif how == 3:
        header[random.choice(("x", "factor_9", "core", "own_turn"))] = header.pop(name)
    elif how == 4:
        del header[name]
    else:
        odd = random.choice((np.nan, np.inf, -np.inf, 1e300, -1e300, -1.0, 0.0))
        values = (
            np.frombuffer(data[name], np.float64).copy() if len(data[name]) % 8 == 0 else np.zeros(1)
        )
        values[random.randrange(max(values.size, 1)) : random.choice((1, 2, 10**6))] = odd
        data[name] = values.tobytes()
    file.write_bytes(_tensors(header, data, fill=random.random() < 0.8))


def _tensors(header: dict[str, Any], data: dict[str, bytes], fill: bool) -> bytes:
    body = b""
    for name, about in header.items():
        content = data.get(name, b"")
        size = int(np.prod(about["shape"], dtype=object)) * DTYPES[about["dtype"]]
        if fill and 0 <= size < 10**6:
            content = (content * (size // max(len(content), 1) + 1))[:size].ljust(size, b"\0")
        about["data_offsets"] = [len(body), len(body) + len(content)]
        body += content
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def strange(random: Random, file: Path) -> None:
    """Something that is no file, or none at all."""
    how = random.randrange(6)
    file.unlink()
    if how == 0:
        os.mkfifo(file)
    elif how == 1:
        file.mkdir()
    elif how == 2:
        file.symlink_to(file.name)
    elif how == 3:
        file.symlink_to("/dev/zero")
    elif how == 4:
        with open(file, "wb") as sparse:
            sparse.truncate(1 << 43)


def crowd(random: Random, file: Path) -> None:
    name = random.choice(
        ("notes.txt", ".hidden", "model.bin", "guarantee.json", "owner", "release", "é")
    )
    if not (file.parent / name).exists():
        (file.parent / name).write_bytes(random.choice((b"", b"{}", file.read_bytes())))


def swap(random: Random, file: Path) -> None:
    """The file of another kind of model."""
    others = [path for kind in BASES for path in WHOLE[kind].rglob(file.name)]
    file.write_bytes(random.choice(others).read_bytes())


TEXTS = (edit, edit, edit, edit, edit, flip, cut, splice, strange, crowd, swap)
NUMBERS = (reshape, reshape, reshape, flip, cut, splice, strange, swap)


_READABLE = 1 << 30


def damage(random: Random, folder: Path) -> None:
    """Do harm to some files of a folder, and in half of all cases make its manifest right again."""
    for _ in range(random.choice((1, 1, 1, 2))):
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        files = [path for path in files if 0 < path.stat().st_size < _READABLE]
        if not files:
            return
        file = random.choice(files)
        is_text = file.suffix == ".json" or file.name == LEDGER
        kinds = NUMBERS if file.suffix == ".safetensors" else TEXTS if is_text else (flip, cut, strange)
        try:
            random.choice(kinds)(random, file)
        except (ValueError, TypeError, LookupError, RecursionError):  # damaged already: otherwise then
            flip(random, file)
    if random.random() < 0.5:
        for part in (folder, folder / "release", folder / "owner"):
            if part.is_dir() and (part / MANIFEST).is_file():
                seal(part)


def seal(folder: Path) -> None:
    listed = [path for path in sorted(folder.iterdir()) if path.name not in UNLISTED]
    if all(path.is_file() and path.stat().st_size < _READABLE for path in listed):
        files = {path.name: path.read_bytes() for path in listed}
        (folder / MANIFEST).write_bytes(manifest_of(files))


# -- use ------------------------------------------------------------------------------------------


def use(kind: str, folder: Path) -> None:
    """Load a folder, and do with it what people do."""
    if kind == LEDGER:
        ledger = sf.Ledger(sf.Entry(), path=folder / LEDGER)
        ledger.epsilon(1e-3)
        return
    str(guarantee_of(folder)), signed_by(folder), has_manifest(folder)
    model = sf.load(folder)
    repr(model)
    if isinstance(model, sf.Coupled):
        _use_coupled(model)
    elif isinstance(model, sf.PowerMethod):
        model.weights_ + model.weight_deviations_, model.factors_, model.to_tensor()
    else:
        _use_estimator(model)
    if getattr(model, "guarantee_", None) is None:
        sf.load(model.save(folder.parent / "again"))


def _use_estimator(model: Any) -> None:
    labels = {mode.name: mode.label(0) if mode.size else "nobody" for mode in model.modes_}
    for given in (labels, {name: [label] * 3 for name, label in labels.items()}):
        model.predict(**given)
    model.predict(**dict.fromkeys(labels, "unknown"), unseen="bias")
    for mode in model.modes_:
        if mode.size:
            model.top(
                mode.name, 3, **{name: label for name, label in labels.items() if name != mode.name}
            )
    if model.local_ is not None and model.own_prior_ is not None:
        own = pa.table({**{name: [label] for name, label in labels.items()}, "its value": [3.0]})
        model.predict(own.drop_columns("its value"), own=own, own_value="its value")


def _use_coupled(model: sf.Coupled) -> None:
    for name, relation in model.relations_.items():
        labels = {model.modes_[d].name: model.modes_[d].label(0) for d in relation.modes}
        model.predict(name, **labels, reliance=True)
        if model.posterior_ is not None:
            model.predict(name, **labels, interval=0.9)


def attempt(kind: str, seed: int, folder: Path) -> None:
    model = folder / "model"
    shutil.copytree(WHOLE[kind], model)
    damage(Random(f"{kind} {seed}"), model)
    use(kind, model)


SUBJECT = Subject("models", tuple(BASES), attempt)

if parent_process() is not None:  # a case must not be charged with fits and the compiler's time
    for _kind in BASES:
        use(_kind, WHOLE[_kind])
        shutil.rmtree(WHOLE[_kind].parent / "again", ignore_errors=True)
