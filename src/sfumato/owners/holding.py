"""A site's entries as a study numbers them: a tensor in memory, or shards on the site's disk."""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

import numpy as np

from sfumato.data import prepare
from sfumato.data.shards import Shards
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.engines.local import Local
from sfumato.errors import DataError
from sfumato.fit.admit import Protected, admit
from sfumato.owners.study import Study
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.units import Public, Unit
from sfumato.sites.memory import Site
from sfumato.sites.shards import ShardSite


class Holding(NamedTuple):
    """What answers for a site; the mode of its own owners, where these are not listed; and a digest of
    its entries, by which it knows after a restart that they are the same.
    """

    engine: Local
    owners: Mode | None
    digest: str


def hold(
    study: Study, name: str, entries: SparseTensor | Shards, entropy: Entropy, threads: int
) -> Holding:
    """Entries as a fit may see them: of public labels, clipped and capped."""
    names = [mode.name for mode in study.facts.modes]
    if list(entries.mode_names) != names:
        raise DataError(f"the study is about {', '.join(names)}, not {', '.join(entries.mode_names)}")
    if isinstance(entries, Shards):
        _check_shards(study, entries)
        sites = [ShardSite(entries, number, threads) for number in range(len(entries))]
        return Holding(Local(*sites), None, entries.digest)
    tensor, owners = _admitted(study, name, entries, entropy)
    digest = sha256(tensor.coordinates.tobytes() + tensor.values.tobytes()).hexdigest()
    return Holding(Local(Site(tensor, threads)), owners, digest)


def _admitted(
    study: Study, name: str, tensor: SparseTensor, entropy: Entropy
) -> tuple[SparseTensor, Mode | None]:
    member, facts, numbered = study.member(name), study.facts, study.numbered
    listed = {
        mode.name: range(mode.size) if labels is None else list(labels)
        for m, (mode, labels) in enumerate(zip(facts.modes, study.labels, strict=True))
        if m != numbered
    }
    units = None if numbered is None else member.last - member.first
    protected = Protected(
        facts.unit, Public(labels={...: False, **listed}, units=units), facts.local, facts.trust
    )
    if not facts.unit.hides_presence:
        tensor = prepare.merge_duplicates(tensor, "error")
    tensor = admit(tensor.with_values(tensor.values, facts.bounds), protected, entropy)
    tensor, owners = tensor.astype(np.dtype(facts.shape.dtype)), None
    if numbered is not None:
        owners = tensor.modes[numbered]
        tensor = _moved(tensor, numbered, member.first, facts.sizes[numbered])
    return tensor, owners


def _moved(tensor: SparseTensor, mode: int, first: int, size: int) -> SparseTensor:
    """The tensor with a mode's levels numbered from ``first`` on, among ``size``."""
    coordinates = tensor.coordinates.copy()
    coordinates[mode] += np.int32(first)
    modes = list(tensor.modes)
    modes[mode] = Mode(modes[mode].name, size, None, modes[mode].bin)
    return SparseTensor(coordinates, tensor.values, tuple(modes), tensor.bounds, _checked=True)


def _check_shards(study: Study, shards: Shards) -> None:
    """Shards are fitted as they lie there: what would change them is an error."""
    facts = study.facts
    together = facts.local if facts.local is not None else facts.unit_mode
    if study.numbered is not None:
        raise DataError(
            "shards have their owners numbered already, and the study leaves that to the sites: make a "
            "study that lists the labels of owners, or read the entries into memory"
        )
    for mode, own in zip(study.modes, shards.modes, strict=True):
        labels = [
            list(map(str, range(each.size) if each.labels is None else each.labels.tolist()))
            for each in (mode, own)
        ]
        if labels[0] != labels[1]:
            raise DataError(
                f"the shards have other labels of {mode.name} than the study: make them with "
                "labels=..., the same as the study's, in their order"
            )
    if shards.bounds != facts.bounds or shards.dtype != np.dtype(facts.shape.dtype):
        raise DataError(f"make the shards with bounds={facts.bounds} and dtype={facts.shape.dtype!r}")
    if together is not None and shards.by != together:
        raise DataError(f"make the shards with by={facts.modes[together].name!r}")
    if isinstance(facts.unit, Unit) and facts.unit.max_entries is not None:
        raise DataError("a cap on entries would change what lies on disk: read them into memory")
    for number in range(len(shards)):
        part = shards.part(number)
        prepare.check_values(part)
        if not facts.unit.hides_presence:
            prepare.merge_duplicates(part, "error")


def nobody(study: Study) -> Site:
    """A site without entries: what it answers has the form of every answer, and says nothing."""
    facts = study.facts
    cells = np.empty((len(facts.modes), 0), np.int32)
    values = np.empty(0, facts.shape.dtype)
    return Site(SparseTensor(cells, values, facts.modes, facts.bounds, _checked=True), 1)
