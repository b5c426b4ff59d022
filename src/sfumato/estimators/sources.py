"""Where a fit's entries come from: a tensor in memory, or shards on disk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sfumato.data import prepare
from sfumato.data.privatised import Privatised
from sfumato.data.shards import Shards
from sfumato.data.tensor import Mode, SparseTensor, check_tensor
from sfumato.engines.local import Local
from sfumato.engines.protocol import Engine
from sfumato.engines.ray import Ray
from sfumato.errors import SettingError
from sfumato.estimators.intake import admitted, as_tensor, cast, checked
from sfumato.fit.admit import Protected, check_labels
from sfumato.models.losses import LOSSES, Loss
from sfumato.models.shape import Shape
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.units import Public, Unit
from sfumato.sites.device import DeviceSite, owned_there
from sfumato.sites.memory import Site
from sfumato.sites.parts import cut_by, dealt_by
from sfumato.sites.received import ReceivedSite
from sfumato.sites.shards import ShardSite
from sfumato.surface import setting


class Described(Protocol):
    """What a fitted estimator keeps of what it was fitted to."""

    @property
    def modes(self) -> tuple[Mode, ...]: ...

    @property
    def bounds(self) -> tuple[float, float] | None: ...

    @property
    def n_entries(self) -> int | None: ...


class Source(ABC):
    """Entries that can be fitted: what is known of them, and who answers for them."""

    modes: tuple[Mode, ...]
    bounds: tuple[float, float] | None
    n_entries: int
    dtype: np.dtype[Any]
    cut_by: int = 0  # the mode that parts of them are cut by, where nothing has to be kept together
    several: bool = False  # whether they lie in parts, whoever is asked

    def of_loss(self, loss: Loss) -> Source:
        """On the scale that a loss fits."""
        if loss.name != "squared":
            raise SettingError(
                f"{setting('loss', loss.name)} is for a tensor in memory: these entries are fitted as "
                "they are"
            )
        return self

    @abstractmethod
    def checked(self, duplicates: prepare.DuplicatePolicy, dtype: DTypeLike) -> Source:
        """As a fit without privacy takes them, in this precision."""

    @abstractmethod
    def admitted(
        self, protected: Protected, duplicates: prepare.DuplicatePolicy, entropy: Entropy
    ) -> Source:
        """As a private fit may see them."""

    @abstractmethod
    def cast(self, dtype: DTypeLike) -> Source:
        """In this precision."""

    @abstractmethod
    def engine(self, settings: Ray | None, together: int, threads: int, sites: int = 1) -> Engine:
        """Who answers; all entries of a level of the mode ``together`` lie at one site.

        ``sites`` of several owners are played, where there is more than one.
        """


def source_of(X: Any, y: Any = None) -> Source:
    """What ``fit`` was given: shards, the folder of some, a tensor, or a table with values."""
    if y is None and isinstance(X, str | PathLike):
        return ShardSource(Shards(X))
    if y is None and isinstance(X, Privatised):
        return ReceivedSource(X)
    return ShardSource(X) if isinstance(X, Shards) else TensorSource(as_tensor(X, y))


class ReceivedSource(Source):
    """Entries that were privatised before they came: a fit of them sees nothing else, and is free."""

    def __init__(self, received: Privatised) -> None:
        self.received = received
        self.modes, self.bounds = received.modes, received.bounds
        self.n_entries, self.dtype = received.n_entries, received.tensor.values.dtype

    def checked(self, duplicates: prepare.DuplicatePolicy, dtype: DTypeLike) -> ReceivedSource:  # noqa: ARG002
        """Several entries at one cell are several answers, and count as such."""
        return self

    def admitted(self, *_: Any) -> Source:
        raise SettingError(
            "these values are privatised already, and a fit of them needs no budget: leave "
            f"{setting('privacy')} out"
        )

    def cast(self, dtype: DTypeLike) -> ReceivedSource:  # noqa: ARG002
        return self

    def engine(self, settings: Ray | None, together: int, threads: int, sites: int = 1) -> Engine:  # noqa: ARG002
        if settings is not None:
            raise SettingError("privatised values are fitted in this process: leave the engine out")
        return Local(ReceivedSite(self.received, threads))


class TensorSource(Source):
    """A tensor in memory."""

    def __init__(self, tensor: SparseTensor, loss: Loss = LOSSES["squared"]) -> None:
        check_tensor(tensor)
        self.tensor, self.loss = tensor, loss  # entries as they came: what lets them in maps them
        self.modes, self.n_entries = tensor.modes, tensor.n_entries
        self.bounds = loss.fitted_bounds(tensor.bounds)
        self.dtype = tensor.values.dtype

    @property
    def cells(self) -> NDArray[np.int32]:
        """Where entries are."""
        return self.tensor.coordinates

    def of_loss(self, loss: Loss) -> TensorSource:
        loss.check(self.tensor.bounds)
        return TensorSource(self.tensor, loss)

    def checked(self, duplicates: prepare.DuplicatePolicy, dtype: DTypeLike) -> TensorSource:
        return TensorSource(cast(checked(self.tensor, duplicates, self.loss), dtype))

    def admitted(
        self, protected: Protected, duplicates: prepare.DuplicatePolicy, entropy: Entropy
    ) -> TensorSource:
        return TensorSource(admitted(self.tensor, protected, duplicates, entropy, self.loss))

    def cast(self, dtype: DTypeLike) -> TensorSource:
        return TensorSource(cast(self.tensor, dtype))

    def engine(self, settings: Ray | None, together: int, threads: int, sites: int = 1) -> Engine:
        if settings is None:
            parts = dealt_by(self.tensor, together, sites) if sites > 1 else [self.tensor]
            return Local(*(Site(part, threads) for part in parts))
        parts = cut_by(self.tensor, together, settings.workers)
        return settings.open([partial(Site, part) for part in parts])

    def on_device(self, threads: int, shape: Shape, entries: float, blocks: int) -> Engine:
        """The same on a GPU, for a model of this shape.

        With about so many ``entries``, a public number, sums by owner are made there as far as they fit,
        and those of so many ``blocks`` by unit.
        """
        owned = bool(entries) and owned_there(shape, entries, blocks)
        return Local(DeviceSite(self.tensor, threads, shape, owned, blocks))


@dataclass(frozen=True)
class _ShardMaker:
    """Opens a shard where it is needed, from a folder that all workers see."""

    folder: str
    number: int

    def __call__(self, threads: int) -> ShardSite:
        return ShardSite(Shards(self.folder), self.number, threads)


class ShardSource(Source):
    """Shards on disk, which are fitted as they lie there: what would change them is an error."""

    def __init__(self, shards: Shards) -> None:
        self.shards = shards
        self.modes, self.bounds, self.n_entries = shards.modes, shards.bounds, shards.n_entries
        self.dtype, self.cut_by = shards.dtype, shards.by
        self.several = sum(map(bool, shards.entries)) > 1

    def checked(self, duplicates: prepare.DuplicatePolicy, dtype: DTypeLike) -> ShardSource:
        self._check_parts(duplicates)
        return self.cast(dtype)

    def _check_parts(self, duplicates: prepare.DuplicatePolicy | None) -> None:
        """Values within bounds, and unless it does not matter one entry at a cell; shard by shard."""
        if duplicates not in (None, "error"):
            raise SettingError(
                f"{setting('duplicates', str(duplicates))} would change what lies on disk: merge them "
                "before the shards are made"
            )
        for number in range(len(self.shards)):
            part = self.shards.part(number)
            prepare.check_values(part)
            if duplicates is not None:
                prepare.merge_duplicates(part, duplicates)

    def admitted(
        self,
        protected: Protected,
        duplicates: prepare.DuplicatePolicy,
        entropy: Entropy,
    ) -> ShardSource:
        unit, public = protected.unit, protected.public
        if self.bounds is None:
            raise SettingError(
                "a private fit needs public bounds of the values: make the shards with "
                f"{setting('bounds')}"
            )
        check_labels(self.modes, protected)
        self._check_public(public)
        if isinstance(unit, Unit) and unit.max_entries is not None:
            raise SettingError(
                f"a cap on entries would change what lies on disk: leave {setting('max_entries')} out"
            )
        self._check_parts(None if unit.hides_presence else duplicates)
        entropy.public_seed()  # that of a cap, which there is none of: seeded noise is a tensor's then
        return self

    def _check_public(self, public: Public) -> None:
        """Shards are numbered by their own labels: public ones have to be these, in their order."""
        if public.units is not None:
            raise SettingError(
                "shards have their owners numbered already: make them with the labels of all that may "
                f"occur ({setting('labels')}), and list the same labels as public instead of their "
                "number"
            )
        for mode in self.modes:
            if public.lists(mode.name):
                own = range(mode.size) if mode.labels is None else mode.labels.tolist()
                if [str(label) for label in public.listed(mode.name)] != [str(label) for label in own]:
                    raise SettingError(
                        f"the shards have other labels of {mode.name} than the public ones: make them "
                        f"with {setting('labels')}, the same as the public labels"
                    )

    def cast(self, dtype: DTypeLike) -> ShardSource:
        if self.dtype != np.dtype(dtype):
            raise SettingError(
                f"the shards hold {self.dtype}, and this fit computes in {np.dtype(dtype)}: make them "
                f"with {setting('dtype', np.dtype(dtype).name)}"
            )
        return self

    def engine(
        self,
        settings: Ray | None,
        together: int,
        threads: int,
        sites: int = 1,  # noqa: ARG002
    ) -> Engine:
        """Each shard is a site, whoever owns them."""
        if together != self.shards.by:
            wanted, own = self.modes[together].name, self.modes[self.shards.by].name
            raise SettingError(
                f"all entries of one {wanted} have to be in one shard, and these are cut by {own}: make "
                f"them with {setting('by', wanted)}"
            )
        numbers = [number for number, entries in enumerate(self.shards.entries) if entries]
        if settings is None:
            return Local(*(ShardSite(self.shards, number, threads) for number in numbers))
        return settings.open([_ShardMaker(str(self.shards.folder), number) for number in numbers])
