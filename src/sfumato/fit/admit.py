"""What a private fit is shown of the data: known labels, values within public bounds, capped units.

Nothing here raises an error or says a number that depends on the entries, but one: that there are more
owners than were said to be at most. How many values lie beyond the bounds, or how many entries have a
label that is not public, is data.

*Owners* are the levels of the mode whose rows stay with them, and those of the mode that is the unit.
Who they are and how many is what presence means, so that labels read off the data never count there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.data import prepare
from sfumato.data.tensor import Mode, SparseTensor, find_mode
from sfumato.errors import SettingError
from sfumato.fit.request import Privacy
from sfumato.kernels.numba.ordering import sort_entries
from sfumato.kernels.numba.threads import available_threads
from sfumato.privacy.clipping import clip_values
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.trust import ONE_OWNER, Trust
from sfumato.privacy.units import PrivacyUnit, Public, Unit, parse_unit
from sfumato.surface import either


@dataclass(frozen=True)
class Protected:
    """What a private fit protects: its unit, what is said to be public, and whose rows are local.

    ``part`` says that it is of one period of several. ``declared`` is what the caller has said to be
    public, where ``public`` has more: labels that were released before.
    """

    unit: PrivacyUnit
    public: Public
    local: int | None = None
    trust: Trust = ONE_OWNER
    part: bool = False
    declared: Public | None = None

    @classmethod
    def by(cls, privacy: Privacy, modes: Sequence[Mode]) -> Protected:
        """What was asked for, of a tensor with these modes."""
        unit = parse_unit(privacy.unit, [mode.name for mode in modes], privacy.max_entries)
        privacy.trust.check_unit(unit)
        local, part = local_mode(privacy, unit, modes), privacy.period is not None
        return cls(unit, privacy.public, local, privacy.trust, part)

    def owners(self, names: Sequence[str]) -> list[str]:
        """The mode whose levels are people, of whom nothing may be read off the data; none or one."""
        if self.local is not None:
            return [names[self.local]]
        return [self.unit.mode] if isinstance(self.unit, Unit) else []


def local_mode(privacy: Privacy, unit: PrivacyUnit, modes: Sequence[Mode]) -> int | None:
    """The mode whose rows stay with their owners."""
    if privacy.local is None:
        return None
    if privacy.local == "auto":
        joint = privacy.analysis == "proven" and privacy.can_be_joint
        return find_mode(modes, unit.mode) if isinstance(unit, Unit) and joint else None
    if not unit.hides_presence:
        raise SettingError(
            "rows stay with their owners where presence is protected: use the unit 'entry' or a mode"
        )
    if isinstance(unit, Unit) and privacy.local != unit.mode:
        raise SettingError(f"the unit is one {unit.mode}: only rows of {unit.mode} can be its own")
    return find_mode(modes, privacy.local)


def admit(tensor: SparseTensor, protected: Protected, entropy: Entropy) -> SparseTensor:
    """The tensor as a private fit may see it."""
    unit, public, local = protected.unit, protected.public, protected.local
    bounds, cap_seed = _bounds_of(tensor), entropy.public_seed()
    check_labels(tensor.modes, protected)
    tensor = with_public_labels(tensor, public)
    if local is not None and public.units is not None:
        places = _places(public.units, entropy)
        tensor = _with_public_number(tensor, local, public.units, places)
    clipped = clip_values(tensor.values, *bounds)
    tensor = tensor.with_values(clipped.astype(tensor.values.dtype), bounds)
    if isinstance(unit, Unit) and unit.max_entries is not None:
        tensor = prepare.cap(tensor, unit.mode, unit.max_entries, cap_seed)
    return tensor


def _bounds_of(tensor: SparseTensor, name: str = "") -> tuple[float, float]:
    if tensor.bounds is None:
        which = f", here of {name!r}" if name else ""
        raise SettingError(
            f"a private fit needs public bounds of the values{which}, from knowledge and not from the "
            "data: " + either("read(..., bounds=(1, 5))", f"--bounds {name + '=1,5' if name else '1 5'}")
        )
    return tensor.bounds


def admit_several(
    tensors: Mapping[str, SparseTensor],
    protected: Mapping[str, Protected],
    public: Public,
    entropy: Entropy,
) -> dict[str, SparseTensor]:
    """Relations as a private fit may see them, levels of modes of one name numbered alike.

    ``public`` is what is said of all of them. Those without a :class:`Protected` are public tables,
    whose labels count wherever labels in the data do.
    """
    every = list(dict.fromkeys(name for tensor in tensors.values() for name in tensor.mode_names))
    given = () if isinstance(public.labels, bool) else public.labels
    unknown = [name for name in given if name not in (*every, ...)]
    if unknown:
        raise SettingError(f"public labels name {unknown}, which are no modes")
    for name, how in protected.items():
        _bounds_of(tensors[name], name)
        check_labels(tensors[name].modes, how)
        if isinstance(how.unit, Unit) and how.unit.max_entries is not None:
            raise SettingError("a cap on entries is for one tensor: leave max_entries out")
    admitted = {name: with_public_labels(tensor, public) for name, tensor in tensors.items()}
    admitted = _numbered_alike(admitted)
    owner = _owner_of(tensors, protected)
    if owner is not None and public.units is not None:
        places = _places(public.units, entropy)
        for name, tensor in admitted.items():
            if owner in tensor.mode_names:
                mode = tensor.mode_index(owner)
                admitted[name] = _with_public_number(tensor, mode, public.units, places)
    for name in protected:
        tensor = admitted[name]
        values = clip_values(tensor.values, *_bounds_of(tensor))
        admitted[name] = tensor.with_values(values.astype(np.float64), tensor.bounds)
    return admitted


def _owner_of(tensors: Mapping[str, SparseTensor], protected: Mapping[str, Protected]) -> str | None:
    """The mode whose rows stay with their owners, in the relations that have it."""
    for name, how in protected.items():
        if how.local is not None:
            return tensors[name].mode_names[how.local]
    return None


def _numbered_alike(tensors: Mapping[str, SparseTensor]) -> dict[str, SparseTensor]:
    """The relations with one list of labels for modes of one name: those of all of them.

    Nothing is said of what they have in common, which is data.
    """
    found: dict[str, list[Mode]] = {}
    for tensor in tensors.values():
        for mode in tensor.modes:
            found.setdefault(mode.name, []).append(mode)
    united = {name: _united(modes) for name, modes in found.items()}
    return {name: _renumbered(tensor, united) for name, tensor in tensors.items()}


def _united(modes: Sequence[Mode]) -> Mode:
    first, *others = modes
    if all(mode == first for mode in others):
        return first
    if any(mode.bin != first.bin or (mode.labels is None) != (first.labels is None) for mode in others):
        raise SettingError(
            f"mode {first.name!r} is not written alike in all relations: give it labels, and one bin "
            "of times, in all of them"
        )
    if first.labels is None:
        raise SettingError(
            f"mode {first.name!r} has another number of levels in each relation, and no labels that say "
            "which are the same: give labels, or rename one mode"
        )
    labels = sorted({str(label) for mode in modes for label in labels_of(mode)})
    return Mode(first.name, len(labels), np.array(labels, object), first.bin)


def _renumbered(tensor: SparseTensor, united: Mapping[str, Mode]) -> SparseTensor:
    modes = [united[name] for name in tensor.mode_names]
    if tuple(modes) == tensor.modes:
        return tensor
    coordinates = tensor.coordinates.copy()
    for m, (old, new) in enumerate(zip(tensor.modes, modes, strict=True)):
        if old != new:
            level_of = {str(label): level for level, label in enumerate(labels_of(new))}
            levels = np.array([level_of[str(label)] for label in labels_of(old)], np.int32)
            coordinates[m] = levels[coordinates[m]]
    return _ordered(coordinates, tensor.values.copy(), modes, tensor.bounds)


# -- what has to be public ------------------------------------------------------------------------


def check_labels(modes: Sequence[Mode], protected: Protected) -> None:
    """Where presence is protected: what is released, and all sizes, have to be public."""
    unit, public, local = protected.unit, protected.public, protected.local
    names = [mode.name for mode in modes]
    _check_given(names, public, local)
    if not unit.hides_presence:
        return
    owners = protected.owners(names)
    if local is not None:
        _check_owners(names[local], public)
    elif owners and not public.lists(owners[0]):
        raise SettingError(
            f"which {owners[0]} occur is what is protected, and their labels would be released: give "
            f"the labels of all that may occur, {_labels_flag(owners[0])}"
        )
    missing = [name for name in names if name not in owners and public.labels_of(name) is False]
    if missing:
        raise SettingError(
            f"which labels of {' and '.join(missing)} occur is protected too, and they would be "
            f"released: give the labels that everyone knows, {_labels_flag(missing[0])}; or declare "
            f"those in the data public, {either('Public(labels=True)', '--labels-are-public')}, which "
            "the guarantee then lists as an assumption"
        )


def _check_given(names: Sequence[str], public: Public, local: int | None) -> None:
    """Whatever is declared to be public has to have a place where it counts."""
    given = () if isinstance(public.labels, bool) else public.labels
    unknown = [name for name in given if name not in (*names, ...)]
    if unknown:
        raise SettingError(f"public labels name {unknown}, which are no modes")
    if public.units is not None and local is None:
        raise SettingError(
            f"{_units_flag()} is the number of owners whose rows stay with them, and here all rows are "
            "released: leave it out"
        )


def _check_owners(name: str, public: Public) -> None:
    """How many rows stay with their owners sizes the fit, so it has to be public."""
    if public.lists(name):
        if public.units is not None:
            raise SettingError(
                f"the public labels of {name} say how many there are: leave {_units_flag()} out"
            )
        return
    if public.units is None:
        read_off = public.labels_of(name) is True
        why = ", and labels read off the data would show it" if read_off else ""
        raise SettingError(
            f"which {name} occur is protected, and so is how many{why}: say how many there are at most, "
            f"{either('Public(units=N)', '--public-units N')}, with N rounded up from what everyone "
            f"knows; or give the labels of all that may occur, {_labels_flag(name)}"
        )


def public_modes(modes: Sequence[Mode], protected: Protected) -> tuple[Mode, ...]:
    """The modes with as many levels as they have for a fit: all that settings may depend on."""
    public, local = protected.public, protected.local
    sizes = [len(public.listed(m.name)) if public.lists(m.name) else m.size for m in modes]
    if local is not None and public.units is not None:
        sizes[local] = public.units
    return tuple(
        mode if mode.size == size else Mode(mode.name, size, None, mode.bin)
        for mode, size in zip(modes, sizes, strict=True)
    )


def with_labels_of(modes: Sequence[Mode], public: Public) -> Public:
    """The same facts with every label listed: for data that are made up, or only planned for."""
    return replace(public, labels={mode.name: labels_of(mode) for mode in modes}, units=None)


def _units_flag() -> str:
    return either("Public(units=...)", "--public-units")


def _labels_flag(name: str) -> str:
    return either(f"Public(labels={{{name!r}: [...]}})", f"--public-labels {name}=FILE")


def public_facts(modes: Sequence[Mode], protected: Protected) -> tuple[str, ...]:
    """What a guarantee assumes to be public, as the caller declared it, in words."""
    unit, public = protected.unit, protected.public
    facts = _facts_of_presence(modes, protected)
    if public.entries is not None and unit.hides_presence:
        facts.append(f"the number of entries, about {public.entries:,}, is public")
    if public.spread is not None:
        facts.append(f"the spread of the values, about {public.spread:g}, is public")
    if public.profile is not None:
        facts.append("the profile that settings were chosen by is public, not taken from the data")
    return tuple(facts)


def _facts_of_presence(modes: Sequence[Mode], protected: Protected) -> list[str]:
    unit, public, local = protected.unit, protected.declared or protected.public, protected.local
    if not unit.hides_presence:
        return ["which cells were observed is public"]
    names = [mode.name for mode in modes]
    owners = protected.owners(names)
    given = [name for name in names if public.lists(name)]
    read_off = [name for name in names if public.labels_of(name) is True and name not in owners]
    facts = []
    if given:
        facts.append(f"the labels given for {' and '.join(given)} are public")
    if read_off:
        facts.append(
            f"the labels of {' and '.join(read_off)} are public, though they were read off the data"
        )
    if local is not None and not public.lists(names[local]):
        facts.append(f"that {names[local]} has at most {modes[local].size:,} levels is public")
    return facts


# -- owners ---------------------------------------------------------------------------------------


def _places(units: int, entropy: Entropy) -> NDArray[np.int64]:
    """The places that owners take, in the order of their labels, among as many as there are at most.

    A newcomer must not shift the others: where an entry is the unit, rows of owners are parameters under
    noise, and of many owners only those at some places are asked how large their rows are. So owners are
    put at random places, which nobody is told. The places of those who are there in both of two
    neighbouring data sets then have the same law. Proof: ``proofs/gradient.md``, Sizes.
    """
    return entropy.generator().permutation(units)


def _with_public_number(
    tensor: SparseTensor, local: int, units: int, places: NDArray[np.int64]
) -> SparseTensor:
    """The local mode with as many levels as are said to be public; the rest have no entries."""
    mode = tensor.modes[local]
    if mode.size > units:
        raise SettingError(
            f"there are more levels of {mode.name} than the public number, {units:,}: give a larger "
            + _units_flag()
        )
    names = [str(label) for label in labels_of(mode)]
    nobody = "nobody"
    while any(name.startswith(f"({nobody} ") for name in names):
        nobody += "'"
    names += [f"({nobody} {number + 1})" for number in range(units - mode.size)]
    labels = np.empty(units, object)
    labels[places] = names
    coordinates = tensor.coordinates.copy()
    coordinates[local] = places[coordinates[local]]
    modes = list(tensor.modes)
    modes[local] = Mode(mode.name, units, labels, mode.bin)
    return _ordered(coordinates, tensor.values.copy(), modes, tensor.bounds)


# -- labels ---------------------------------------------------------------------------------------


def with_public_labels(tensor: SparseTensor, public: Public) -> SparseTensor:
    """Entries whose labels are public, numbered by the public labels where these are listed."""
    listed = [m for m, mode in enumerate(tensor.modes) if public.lists(mode.name)]
    if not listed:
        return tensor
    modes, coordinates = list(tensor.modes), tensor.coordinates.copy()
    for m in listed:
        mode = tensor.modes[m]
        modes[m] = _public_mode(mode, public.listed(mode.name))
        # As text, letter by letter: were 7 and 07 to become one level, adding an entry at the one
        # would change the other's.
        level_of = {str(label): level for level, label in enumerate(labels_of(modes[m]))}
        levels = np.array([level_of.get(str(label), -1) for label in labels_of(mode)], np.int32)
        coordinates[m] = levels[coordinates[m]]
    known = (coordinates >= 0).all(axis=0)
    return _ordered(coordinates[:, known], tensor.values[known], modes, tensor.bounds)


def _ordered(
    coordinates: NDArray[np.int32],
    values: NDArray[Any],
    modes: Sequence[Mode],
    bounds: tuple[float, float] | None,
) -> SparseTensor:
    """A tensor of entries that were renumbered, whose arrays become its own; there may be none."""
    coordinates, values = np.ascontiguousarray(coordinates), np.ascontiguousarray(values)
    sort_entries(coordinates, values, tuple(mode.size for mode in modes), available_threads())
    return SparseTensor(coordinates, values, tuple(modes), bounds, _checked=True)


def labels_of(mode: Mode) -> Sequence[object]:
    return range(mode.size) if mode.labels is None else mode.labels.tolist()


def _public_mode(mode: Mode, labels: Sequence[object]) -> Mode:
    if mode.labels is None and isinstance(labels, range) and labels == range(len(labels)):
        return Mode(mode.name, len(labels), None, mode.bin)
    given = list(labels)
    if len(given) < 2:
        raise SettingError(f"public labels of {mode.name!r}: give all that may occur, two or more")
    whole = all(isinstance(label, int | np.integer) for label in given)
    array = np.array(given if whole else [str(label) for label in given], np.int64 if whole else object)
    return Mode(mode.name, len(given), array, mode.bin)
