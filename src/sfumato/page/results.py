"""What came of a fit: the guarantee, lists, and files to download."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sfumato import store
from sfumato.errors import SettingError
from sfumato.estimators.base import TensorEstimator
from sfumato.estimators.loading import load
from sfumato.report.page.contents import Held
from sfumato.report.records import Result
from sfumato.solvers.private.constant import PrivateConstant

RELEASE = "release"
_LISTED = 10
_SUGGESTED = 500  # labels to choose from


@dataclass(frozen=True)
class Fitted:
    """A model that was fitted on the page."""

    model: Path
    guarantee: list[tuple[str, str]]
    summary: tuple[str, ...]
    modes: tuple[str, ...]
    own: str | None  # the mode whose rows stay with their owners

    @property
    def listable(self) -> list[str]:
        """Modes whose levels can be listed by what is predicted: things, and no owners."""
        return [mode for mode in self.modes if mode != self.own]


def fitted(model: Path) -> Fitted:
    """What a folder of a model says of itself."""
    guarantee = store.guarantee_of(model)
    if guarantee is None:
        raise SettingError(f"{model} has no guarantee")
    loaded = _loaded(model)
    names = tuple(mode.name for mode in loaded.modes_)
    own = None if loaded.local_ is None else names[loaded.local_]
    return Fitted(model, _pairs(str(guarantee)), guarantee.odds().sentences(), names, own)


def _pairs(text: str) -> list[tuple[str, str]]:
    """The guarantee line by line: what is said, and of what; lines that go on are put together."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        name, said = line[:15].strip(), line[15:].strip()
        if name or not found:
            found.append((name, said))
        else:
            found[-1] = (found[-1][0], f"{found[-1][1]} {said}")
    return found


def _loaded(model: Path) -> TensorEstimator:
    loaded: Any = load(model)
    if not isinstance(loaded, TensorEstimator):
        raise SettingError(f"{model} is no model of one table")
    return loaded


def release_zip(model: Path) -> bytes:
    """The files of the release, and nothing else."""
    packed = io.BytesIO()
    folder = model / RELEASE
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                archive.write(path, f"{RELEASE}/{path.relative_to(folder).as_posix()}")
    return packed.getvalue()


def release_report(model: Path) -> bytes:
    """A page about the release, which holds what this does and nothing else."""
    with TemporaryDirectory() as folder:
        made = _loaded(model / RELEASE).report(Path(folder) / "report.html", release=True)
        return made.read_bytes()


def holders_report(
    model: Path, ledger: Path | None, errors: Sequence[Result], said: Sequence[str]
) -> bytes:
    """The page for the holder alone: with owners' rows, the ledger, and errors at held-out entries."""
    held = Held(results=tuple(errors), remarks=tuple(said))
    return _loaded(model)._page(ledger=ledger, held=held).text.encode()


def top_list(model: Path, mode: str, labels: dict[str, str]) -> list[tuple[str, float]]:
    """The levels of a mode with the highest predictions, where the other modes are as given."""
    loaded = _loaded(model)
    typed = {name: _typed(loaded, name, label) for name, label in labels.items() if name != mode}
    return [(str(label), value) for label, value in loaded.top(mode, _LISTED, **typed)]


def _typed(loaded: TensorEstimator, name: str, label: str) -> object:
    """A label as the model has it, where labels are numbers."""
    if not label:
        raise SettingError(f"name one {name}")
    found = next(mode for mode in loaded.modes_ if mode.name == name)
    first = found.label(0) if found.size else label
    return int(label) if not isinstance(first, str) and label.isdigit() else label


def suggested(model: Path) -> dict[str, list[str]]:
    """Labels of each mode to choose from, as far as they are few."""
    modes = _loaded(model).modes_
    return {
        mode.name: [str(mode.label(level)) for level in range(mode.size)]
        for mode in modes
        if 0 < mode.size <= _SUGGESTED
    }


def held_out(result: dict[str, Any]) -> list[Result]:
    """Errors at entries that were held out: for the holder alone."""
    names = ("name", "rmse", "seconds")
    return [Result(**{name: each[name] for name in names}) for each in result["held_out"]]


def does_not_pay(errors: Sequence[Result]) -> str | None:
    """What the command line says of a fit that does not beat its rivals; None where it does.

    Private ones, where they were measured; else the average of all, which any fit has to beat.
    """
    if not errors or errors[-1].name.startswith(PrivateConstant.name):
        return None
    *rivals, fit = errors
    private = [each for each in rivals if not each.name.endswith(", not private")]
    better = [each.name for each in private or rivals[:1] if each.rmse <= fit.rmse]
    if not better:
        return None
    return (
        f"The fit does not beat {' and '.join(better)} here: what it adds to these is lost in its "
        "noise. A larger epsilon or more data could change that."
    )
