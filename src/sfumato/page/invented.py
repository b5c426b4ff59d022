"""A file of invented data with the public numbers of a fit: to see what it does before any budget."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
from numpy.typing import NDArray

from sfumato.data.synthetic import typical
from sfumato.data.tensor import Mode
from sfumato.errors import SettingError
from sfumato.fit.outlook import Outlook
from sfumato.models.losses import LOSSES
from sfumato.page.choices import Choices, Known
from sfumato.page.wording import Places, plan_order, words

MOST_ENTRIES = 3_000_000
_HELD_OUT = 0.1
_BEGINS = {"hour": "h", "day": "D", "week": "W", "month": "M"}


def preview(choices: Choices, epsilon: float, folder: Path) -> list[str]:
    """The words of the same fit of invented data, which lie in a folder made anew."""
    if choices.entries > MOST_ENTRIES:
        raise SettingError(
            f"a preview invents {MOST_ENTRIES:,} entries at most, and here are {choices.entries:,}: "
            "what is expected stands above, and needs no preview"
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    places = Places(folder / "invented.csv", folder / "model")
    _write(choices, places.file)
    return words(_about_invented(choices), epsilon, places)


def _about_invented(choices: Choices) -> Choices:
    """The same choices, with labels as they are invented."""
    known = {
        mode: levels if levels.how == "owners" or mode in choices.bins else Known(levels.size, "range")
        for mode, levels in choices.known.items()
    }
    return replace(choices, known=known, test=_HELD_OUT, limit=None)


def _write(choices: Choices, path: Path) -> None:
    modes = [Mode(mode, known.size, bin=choices.bins.get(mode)) for mode, known in choices.known.items()]
    facts = plan_order(replace(choices, goal="epsilon", wanted=1.0)).plan.task.facts
    made = typical(modes, choices.entries, people=Outlook(facts).people).tensor
    columns = {mode.name: _labels(mode, made.coordinates[m]) for m, mode in enumerate(modes)}
    columns[choices.value] = pa.array(_values(choices, made.values))
    pacsv.write_csv(pa.table(columns), path)


def _labels(mode: Mode, levels: NDArray[np.int32]) -> pa.Array:
    if mode.bin is None:
        return pa.array((levels + 1).astype(str))
    first = np.array("2000-01-03").astype(f"datetime64[{_BEGINS[mode.bin]}]")
    times = first + levels.astype(np.int64)
    return pa.array(times.astype("datetime64[s]").astype(str))


def _values(choices: Choices, drawn: NDArray[Any]) -> NDArray[np.float64]:
    """Values of variance one within the bounds, as large as they are said to spread when fitted."""
    if choices.loss == "logistic":
        return np.asarray(drawn > 0, np.float64)
    low, high = LOSSES[choices.loss].fitted_bounds(choices.bounds) or choices.bounds
    spread = choices.spread or (high - low) / 4
    fitted = np.clip((low + high) / 2 + spread * drawn, low, high)
    return np.rint(fitted**2) if choices.loss == "poisson" else fitted
