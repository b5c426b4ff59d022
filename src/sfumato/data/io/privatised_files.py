"""Files of privatised values: a table, and a record of what its values have passed.

The record is in the metadata of a Parquet file, and in a file of JSON beside a .csv or .tsv one. It says
by which channel, under which promise, and of which table (by its hash), so that a fit can use its
likelihood and nobody takes noisy values for clean ones. Nothing in it is trusted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sfumato.checks import LEAST_SIZE, MOST_SIZE, as_path, check_text
from sfumato.data.channels import Additive, Geometric, Response
from sfumato.data.io.files import existing_file, file_kind
from sfumato.data.io.write import cells_table, replacing, write_table
from sfumato.data.privatised import Passed, Privatised
from sfumato.data.tensor import SparseTensor
from sfumato.errors import DataError, SettingError
from sfumato.typed import check_fields, finite_number, made_of

FORMAT = 1
_KEY = b"sfumato.privatised"
_ENDING = ".privatised.json"
_MOST_BYTES = 1 << 20  # of a record
_MOST_CUTS = 1 << 12
_MOST_STEPS = 2.0**41  # between bounds, from zero, and of noise
_LEAST_SCALE, _LEAST_EPSILON = 1e-9, 1e-9
_CHANNELS = {"response": Response, "geometric": Geometric, "additive": Additive}
_FIELDS: dict[str, Any] = {
    "format": int,
    "modes": tuple[str, ...],
    "value": str,
    "bins": dict[str, str],
    "channel": dict[str, Any],
    "bounds": tuple[float, float] | None,
    "step": float,
    "answers": tuple[float, ...],
    "guarantee": dict[str, Any],
    "sha256": str | None,
}


def record_beside(path: str | os.PathLike[str]) -> Path:
    """The file with the record of a .csv or .tsv file."""
    given = Path(path)
    return given.with_name(given.name + _ENDING)


def write_privatised(
    privatised: Privatised, path: str | os.PathLike[str], value: str = "value"
) -> list[Path]:
    """Write privatised entries as .csv, .tsv or .parquet, with their record; what was written.

    Parameters
    ----------
    privatised : Privatised
        What :func:`sfumato.privatise` gave.
    path : path
        Ends with .csv, .tsv or .parquet.
    value : str
        What the column of values is called.

    Returns
    -------
    list of Path
        The table and its record.

    Examples
    --------
    >>> import sfumato as sf
    >>> noisy = sf.privatise(sf.synthetic.ratings_like(30, 20, 5, 400), epsilon=3)
    >>> [
    ...     file.name
    ...     for file in sf.write_privatised(noisy, "noisy.csv", value="rating")
    ... ]
    ['noisy.csv', 'noisy.csv.privatised.json']
    """
    path = as_path("path", path)
    check_text(value=value)
    if len(privatised.passed) != 1 or privatised.has_clean:
        raise SettingError("only what was privatised at once is written: write each part by itself")
    tensor = privatised.tensor
    table = cells_table(tensor.coordinates, tensor.values, tensor.modes, value)
    said = _record(privatised, value)
    if path.suffix.lower() == ".parquet":
        text = json.dumps({**said, "sha256": None}, sort_keys=True)
        write_table(table.replace_schema_metadata({_KEY: text.encode()}), path)
        return [path]
    beside = record_beside(path)
    # A new table beside an old record would be refused; an old one beside a new record as well.
    write_table(table, path)
    said["sha256"] = _hash(path)
    with replacing(beside) as file:
        file.write(json.dumps(said, sort_keys=True, indent=1).encode())
    return [path, beside]


def _record(privatised: Privatised, value: str) -> dict[str, Any]:
    (passed,), modes = privatised.passed, privatised.modes
    kind = next(name for name, each in _CHANNELS.items() if isinstance(passed.channel, each))
    return {
        "format": FORMAT,
        "modes": [mode.name for mode in modes],
        "value": value,
        "bins": {mode.name: mode.bin for mode in modes if mode.bin is not None},
        "channel": {"kind": kind, **asdict(passed.channel)},
        "bounds": passed.bounds,
        "step": passed.step,
        "answers": passed.answers,
        "guarantee": dict(privatised.promises[0]) if privatised.promises else {},
    }


def _hash(path: Path) -> str:
    digest = sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


# -- reading --------------------------------------------------------------------------------------


def is_privatised(source: Any) -> bool:
    """Whether a file says that its values are privatised."""
    if not isinstance(source, str | os.PathLike):
        return False
    path = Path(source)
    if not path.is_file():
        return False
    if path.suffix.lower() == ".parquet":
        return _metadata(path) is not None
    return record_beside(path).is_file()


def read_privatised(source: str | os.PathLike[str]) -> Privatised:
    """Entries that were privatised, as :func:`sfumato.privatise` or its command wrote them.

    Parameters
    ----------
    source : path
        The .csv, .tsv or .parquet file; its record lies beside it.

    Returns
    -------
    Privatised
        The entries with what their values have passed.

    Examples
    --------
    >>> import sfumato as sf
    >>> noisy = sf.privatise(sf.synthetic.ratings_like(30, 20, 5, 400), epsilon=3)
    >>> files = sf.write_privatised(noisy, "noisy.csv")
    >>> sf.read_privatised("noisy.csv").n_entries
    400
    """
    from sfumato.data.io.read import read

    path = existing_file(source)
    said = _said(path)
    names, value, bins = said["modes"], said["value"], said["bins"]
    tensor = read(path, names, value, bins=bins, privatised=True)
    with _damage_named(path):
        passed = _passed(said)
    if not np.isfinite(tensor.values).all():
        raise DataError(f"{path}: some privatised values are missing, so that they were changed")
    passed.released(tensor.values)  # which have to be answers of the channel
    return Privatised(
        SparseTensor(tensor.coordinates, tensor.values, tensor.modes, _checked=True),
        (passed,),
        None,
        (said["guarantee"],),
    )


def _metadata(path: Path) -> bytes | None:
    try:
        found = pq.read_schema(path).metadata or {}
    except (pa.ArrowException, OSError):
        return None  # whatever is wrong is said where it is read
    text: bytes | None = found.get(_KEY)
    return text


def _said(path: Path) -> dict[str, Any]:
    """The record of a file, every field of it known and of its type."""
    parquet = file_kind(path) == "parquet"
    beside = record_beside(path)
    if not parquet and not beside.is_file():
        raise DataError(
            f"{path} does not say that its values are privatised: {beside.name} has to lie beside it"
        )
    if not parquet and beside.stat().st_size > _MOST_BYTES:
        raise DataError(f"{beside} is no record of privatised values: it is too large")
    text = _metadata(path) if parquet else beside.read_bytes()
    if text is None:
        raise DataError(f"{path} does not say that its values are privatised")
    with _damage_named(path):
        said = _parsed(text)
    if not parquet and said["sha256"] != _hash(path):
        raise DataError(
            f"{path} is not the table that {beside.name} is about: one of the two was changed. Bring "
            "both as they were written"
        )
    return said


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise DataError(f"the record of privatised values of {path} is damaged: {error}") from error


def _parsed(text: bytes) -> dict[str, Any]:
    said = check_fields(json.loads(text), _FIELDS, "the record")
    if missing := sorted(set(_FIELDS) - set(said)):
        raise ValueError(f"it lacks {', '.join(missing)}")
    if said["format"] != FORMAT:
        raise ValueError(f"it has format {said['format']}, and this version reads {FORMAT}")
    return said


def _passed(said: Mapping[str, Any]) -> Passed:
    channel = dict(said["channel"])
    kind = _CHANNELS.get(channel.pop("kind", ""))
    if kind is None:
        raise ValueError(f"its channel is none of {', '.join(_CHANNELS)}")
    made: Any = made_of(kind, {name: _floats(value) for name, value in channel.items()}, "the channel")
    step = finite_number(said["step"], "step")
    passed = Passed(made, _floats(said["bounds"]), step, _floats(said["answers"]))
    check_passed(passed)
    return passed


def _floats(value: Any) -> Any:
    """Whole numbers of JSON, which may have any length, as doubles."""
    if isinstance(value, list | tuple):
        return tuple(_floats(each) for each in value)
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def check_passed(passed: Passed) -> None:
    """That a record from outside describes a channel that there can be."""
    channel, bounds, step = passed.channel, passed.bounds, passed.step
    if not LEAST_SIZE <= step <= MOST_SIZE:
        raise ValueError("a step is a number above zero")
    if bounds is None and not isinstance(channel, Geometric):
        raise ValueError("its bounds are missing")
    if bounds is not None and not bounds[0] < bounds[1]:
        raise ValueError("its bounds are not two numbers, the lower one first")
    if bounds is not None and step > 1.000001 * (bounds[1] - bounds[0]):
        raise ValueError("its step is larger than its range")
    if isinstance(channel, Response):
        numbers = _numbers_of_response(channel, passed.answers)
    else:
        numbers = _numbers_of_noise(channel, bounds)
    if isinstance(channel, Geometric) and channel.step != step:
        raise ValueError("its steps differ")
    steps = np.abs([*numbers, *(bounds or ())]) / step
    if not (np.isfinite(steps).all() and steps.max() <= _MOST_STEPS):
        raise ValueError("its numbers are not finite, or too large for its step")


def _numbers_of_response(channel: Response, answers: tuple[float, ...]) -> list[float]:
    cuts = np.array(channel.cuts)
    if channel.others or not 1 <= len(cuts) < _MOST_CUTS or not (np.diff(cuts) > 0).all():
        raise ValueError("its cuts are not some numbers in order")
    if not channel.epsilon >= _LEAST_EPSILON or len(answers) != channel.categories:
        raise ValueError("its answers are not those of its channel")
    return [*channel.cuts, *answers]


def _numbers_of_noise(channel: Geometric | Additive, bounds: tuple[float, float] | None) -> list[float]:
    high = [] if channel.high is None else [channel.high]
    if (channel.low, *high) != (bounds or (channel.low,)):
        raise ValueError("its range is not that of its bounds")
    steps = channel.scale if isinstance(channel, Geometric) else channel.scale / (high[0] - channel.low)
    if not _LEAST_SCALE <= steps <= _MOST_STEPS:
        raise ValueError("its scale is none of a noise that can be seen behind")
    if isinstance(channel, Additive) and channel.clamp is not None:
        if not channel.clamp[0] <= channel.low < channel.high <= channel.clamp[1]:
            raise ValueError("its clamp is not around its range")
        return [channel.low, *high, *channel.clamp]
    return [channel.low, *high]
