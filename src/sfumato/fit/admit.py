"""What a private fit is shown of the data: known labels, values within public bounds, capped units.

Nothing here raises an error or says a number that depends on the entries: how many values lie beyond
the bounds, or how many entries have a label that is not public, is data.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sfumato.data import prepare
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import SettingError
from sfumato.privacy.clip import clip_values
from sfumato.privacy.unit import PrivacyUnit, Public, Unit


def admit(
    tensor: SparseTensor, unit: PrivacyUnit, public: Public, local: int | None, cap_seed: int
) -> SparseTensor:
    """The tensor as a private fit may see it."""
    if tensor.bounds is None:
        raise SettingError(
            "a private fit needs public bounds of the values, from knowledge and not from the data: "
            "read(..., bounds=(1, 5)), or --bounds 1 5"
        )
    bounds = tensor.bounds
    check_labels(tensor.modes, unit, public, local)
    if unit.hides_presence and not isinstance(public.labels, bool):
        tensor = _with_public_labels(tensor, public)
        if local is not None and tensor.modes[local].name not in public.labels:
            tensor = _with_public_number(tensor, local, public.units or 0)
    clipped = clip_values(tensor.values, *bounds).values
    tensor = tensor.with_values(clipped.astype(tensor.values.dtype), bounds)
    if isinstance(unit, Unit) and unit.max_entries is not None:
        tensor = prepare.cap(tensor, unit.mode, unit.max_entries, cap_seed)
    return tensor


def check_labels(modes: Sequence[Mode], unit: PrivacyUnit, public: Public, local: int | None) -> None:
    """Where presence is protected, the labels that are released have to be public."""
    if not unit.hides_presence or public.labels is True:
        return
    given = {} if isinstance(public.labels, bool) else public.labels
    unknown = set(given) - {mode.name for mode in modes}
    if unknown:
        raise SettingError(f"public labels name {sorted(unknown)}, which are no modes")
    missing = [mode.name for m, mode in enumerate(modes) if m != local and mode.name not in given]
    if local is not None and modes[local].name not in given:
        _check_number(modes[local].name, unit, public)
    if missing:
        raise SettingError(
            f"which labels of {' and '.join(missing)} occur is protected too, and they would be "
            "released: give the labels that everyone knows, Public(labels={mode: [...]}) or "
            "--public-labels MODE=FILE; or declare those in the data public, Public(labels=True) or "
            "--labels-are-public, which the guarantee then lists as an assumption"
        )


def _check_number(name: str, unit: PrivacyUnit, public: Public) -> None:
    """How many rows stay with their owners sizes the fit, so it has to be public.

    Where entries are protected, rows of the local mode take part in the fit under noise. One entry of
    somebody new must not shift them: then the labels themselves have to be public.
    """
    labels = f"give the labels of all, Public(labels={{{name!r}: [...]}}) or --public-labels {name}=FILE"
    if not isinstance(unit, Unit):
        raise SettingError(
            f"which {name} occur is protected, and a new one would change the fit: {labels}"
        )
    if public.units is None:
        raise SettingError(
            f"which {name} occur is protected, and so is how many: say how many there are at most, "
            f"Public(units=...) or --public-units N, or {labels}"
        )


def _with_public_number(tensor: SparseTensor, local: int, units: int) -> SparseTensor:
    """The local mode with as many levels as are said to be public; the rest have no entries."""
    mode = tensor.modes[local]
    if mode.size > units:
        raise SettingError(
            f"there are more levels of {mode.name} than the public number, {units:,}: give a larger one"
        )
    names = [str(label) for label in _labels(mode)]
    names += [f"(nobody {number + 1})" for number in range(units - mode.size)]
    modes = list(tensor.modes)
    modes[local] = Mode(mode.name, units, np.array(names, object), mode.bin)
    return SparseTensor(tensor.coordinates, tensor.values, tuple(modes), tensor.bounds, _checked=True)


def _with_public_labels(tensor: SparseTensor, public: Public) -> SparseTensor:
    """Entries whose labels are public, numbered by the public labels."""
    assert not isinstance(public.labels, bool)
    modes, coordinates = list(tensor.modes), tensor.coordinates.copy()
    for m, mode in enumerate(tensor.modes):
        if mode.name not in public.labels:
            continue
        modes[m] = _public_mode(mode, public.labels[mode.name])
        # As text, letter by letter: were 7 and 07 to become one level, adding an entry at the one
        # would change the other's.
        level_of = {str(label): level for level, label in enumerate(_labels(modes[m]))}
        levels = np.array([level_of.get(str(label), -1) for label in _labels(mode)], np.int32)
        coordinates[m] = levels[coordinates[m]]
    known = (coordinates >= 0).all(axis=0)
    renumbered = coordinates[:, known]
    order = np.lexsort(renumbered[::-1])
    return SparseTensor(
        np.ascontiguousarray(renumbered[:, order]),
        np.ascontiguousarray(tensor.values[known][order]),
        tuple(modes),
        tensor.bounds,
        _checked=True,
    )


def _labels(mode: Mode) -> list[object]:
    return list(range(mode.size)) if mode.labels is None else mode.labels.tolist()


def _public_mode(mode: Mode, labels: Sequence[object]) -> Mode:
    given = list(labels)
    if len(given) < 2:
        raise SettingError(f"public labels of {mode.name!r}: give all that may occur, two or more")
    whole = all(isinstance(label, int | np.integer) for label in given)
    array = np.array(given if whole else [str(label) for label in given], np.int64 if whole else object)
    return Mode(mode.name, len(given), array, mode.bin)
