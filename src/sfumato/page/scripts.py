"""The same fit as a Python script, and as a notebook."""

from __future__ import annotations

import json
from typing import Any

from sfumato.page.choices import Choices
from sfumato.page.wording import Places, reads_labels

_INTRODUCTION = (
    "A private fit. Each run charges the budget once more: to the ledger, where there is one. The "
    "bounds, sizes and numbers below are public, and do not come from the data."
)
_EXPLAINED = (
    "# True: labels that occur in the file are known to everyone, which the guarantee assumes.\n"
)


def cells(choices: Choices, epsilon: float, places: Places) -> list[str]:
    """The code in parts, each of which is a cell of a notebook."""
    return [
        "from pathlib import Path\n\nimport sfumato as sf",
        _reading(choices, places),
        _promise(choices, epsilon, places),
        *_fitting(choices, places),
    ]


def script(choices: Choices, epsilon: float, places: Places) -> str:
    return f'"""{_INTRODUCTION}"""\n\n' + "\n\n".join(cells(choices, epsilon, places)) + "\n"


def notebook(choices: Choices, epsilon: float, places: Places) -> str:
    """A notebook of version 4, whose first cell says what it does."""
    first: dict[str, Any] = {"cell_type": "markdown", "id": "about", "metadata": {}}
    code: list[dict[str, Any]] = [
        {
            "cell_type": "code",
            "id": f"part-{number + 1}",
            "execution_count": None,
            "metadata": {},
            "outputs": [],
            "source": source.splitlines(keepends=True),
        }
        for number, source in enumerate(cells(choices, epsilon, places))
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {
        "cells": [{**first, "source": [_INTRODUCTION]}, *code],
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(whole, indent=1) + "\n"


def _call(start: str, arguments: dict[str, object], end: str = ")") -> str:
    """A call with an argument in each line; those that are None are left out."""
    lines = [f"    {name}={value}," for name, value in arguments.items() if value is not None]
    return "\n".join([start, *lines, end])


def _shown(value: object) -> str | None:
    return None if value is None or value == {} else repr(value)


def _reading(choices: Choices, places: Places) -> str:
    bounds = None if choices.loss == "logistic" else _shown(choices.bounds)
    return _call(
        "entries = sf.read(\n    " + repr(str(places.file)) + ",",
        {
            "modes": list(choices.modes),
            "value": repr(choices.value),
            "bins": _shown(dict(choices.bins)),
            "bounds": bounds or "(0.0, 1.0)",
        },
    )


def _labels(choices: Choices, places: Places) -> str | None:
    """Labels that everyone knows, mode by mode."""
    said, read_off = [], reads_labels(choices)
    for m, (mode, known) in enumerate(choices.known.items()):
        if known.how == "file" and read_off:
            said.append(f"{mode!r}: True")
        elif known.how == "range":
            said.append(f"{mode!r}: [str(n) for n in range(1, {known.size} + 1)]")
        elif known.how == "list":
            path = str(places.labels(m))
            said.append(f'{mode!r}: Path({path!r}).read_text("utf-8").splitlines()')
    return "{" + ", ".join(said) + "}" if said else None


def _promise(choices: Choices, epsilon: float, places: Places) -> str:
    owners = [known.size for known in choices.known.values() if known.how == "owners"]
    public = _call(
        "public = sf.Public(",
        {
            "entries": choices.entries,
            "labels": _labels(choices, places),
            "units": owners[0] if owners else None,
            "spread": choices.spread,
        },
    )
    limited = choices.limit is not None and places.ledger is not None and places.new_ledger
    privacy = _call(
        "privacy = sf.Privacy(",
        {
            "epsilon": repr(epsilon),
            "delta": repr(choices.delta),
            "unit": repr(choices.unit),
            "max_entries": choices.max_entries,
            "local": _shown(choices.local),
            "public": "public",
            "ledger": None if places.ledger is None else repr(str(places.ledger)),
            "limit": f"sf.Budget({choices.limit!r}, {choices.delta!r})" if limited else None,
        },
    )
    return f"{_EXPLAINED if reads_labels(choices) else ''}{public}\n{privacy}"


def _fitting(choices: Choices, places: Places) -> list[str]:
    model = _call(
        "model = sf.CP(",
        {
            "privacy": "privacy",
            "loss": repr(choices.loss),
            "duplicates": repr(choices.duplicates),
            "unseen": '"bias"',
        },
    )
    keep = (
        f"out = {str(places.out)!r}\nmodel.save(out)"
        "  # release/ is covered by the guarantee; owner/ is not\nprint(model.guarantee_)"
    )
    if choices.test is None:
        return [f"{model}.fit(entries)\n{keep}"]
    parts = (
        "entries = sf.prepare.clip(entries, entries.bounds)\n"
        f"train, test = sf.prepare.split_by_label(entries, {choices.test!r}, seed=0)"
    )
    measured = 'print(f"RMSE at held-out entries {model.rmse(test):.4f}, not for release")'
    return [parts, f"{model}.fit(train)\n{keep}", measured]
