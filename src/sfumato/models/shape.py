"""What is fitted: which model to tensors with which modes. Public, and known before any data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Literal

from sfumato.checks import MOST_SIZE, check_kind, check_number
from sfumato.data.tensor import Mode, passing_times
from sfumato.errors import SettingError
from sfumato.models.multilinear import CPModel, Multilinear, TuckerModel
from sfumato.records import record

Kind = Literal["cp", "tucker"]

_USUAL_RANK, _MOST_RANK = 8, 20
_ENTRIES_PER_PARAMETER = 4


def usual_rank(sizes: Sequence[int], entries: int | None = None) -> int:
    """The rank of a CP model where none is given.

    Eight, or up to twenty where there are four entries for each parameter of the factors and twice as
    many levels in every mode: learnt penalties shrink away what is too much there, at little cost.
    """
    there = [size for size in sizes if size]
    most = min(
        (_MOST_RANK, (entries or 0) // (_ENTRIES_PER_PARAMETER * max(1, sum(there))), min(there) // 2)
    )
    return min(max(_USUAL_RANK, most), *there)


@record
@dataclass(frozen=True)
class Shape:
    """The modes and the model: plain data, without labels, since these may be what is protected.

    ``ranks`` has one number for each mode; those of a CP model are equal.
    """

    modes: tuple[Mode, ...]
    ranks: tuple[int, ...]
    kind: Kind = "cp"
    dtype: str = "float64"
    fit_mean: bool = True
    fit_biases: bool = True

    # What follows from these, settled once.
    sizes: tuple[int, ...] = field(init=False, repr=False, compare=False)
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    order: int = field(init=False, repr=False, compare=False)
    core_size: int = field(init=False, repr=False, compare=False)  # entries that a fit may change

    def __post_init__(self) -> None:
        for settled, value in {
            "sizes": tuple(mode.size for mode in self.modes),
            "names": tuple(mode.name for mode in self.modes),
            "order": len(self.modes),
            "core_size": prod(self.ranks) if self.kind == "tucker" else 0,
        }.items():
            object.__setattr__(self, settled, value)

    @classmethod
    def of(cls, modes: Sequence[Mode], ranks: Sequence[int], kind: Kind, **rest: Any) -> Shape:
        """The same without labels."""
        return cls(tuple(mode.unlabelled for mode in modes), tuple(map(int, ranks)), kind, **rest)

    def zeros(self) -> Multilinear:
        """The model with all parameters zero."""
        if self.kind == "cp":
            return CPModel.zeros(self.sizes, self.ranks[0], self.dtype)
        return TuckerModel.zeros(self.sizes, self.ranks, self.dtype)

    def with_rank(self, rank: int) -> Shape:
        """The same with one rank in every mode; of a Tucker model no more than a mode has levels."""
        most = self.sizes if self.kind == "tucker" else (0,) * self.order
        return replace(self, ranks=tuple(min(rank, size) if size else rank for size in most))

    def per_mode(self, setting: float | Mapping[str, float], what: str, rest: float) -> list[float]:
        """A setting given as one number, or as a mapping from mode names (``rest`` elsewhere)."""
        if not isinstance(setting, Mapping):
            check_number(**{what: setting})
            return [float(setting)] * self.order
        unknown = set(setting) - set(self.names)
        if unknown:
            raise SettingError(
                f"{what} names {sorted(unknown, key=str)}, but the modes are {', '.join(self.names)}"
            )
        check_number(**{f"{what} of {name}": number for name, number in setting.items()})
        return [float(setting.get(name, rest)) for name in self.names]

    def prior_means(self, given: Mapping[str, float] | None, most: float = MOST_SIZE) -> list[float]:
        """What each mode's factor shrinks towards: one for times beside two other modes, else zero.

        A mode that shrinks to one drops out of the product, so that with little data a tensor with
        times falls back to the tensor without them. ``most`` is how large they may be.
        """
        usual = dict(zip(self.names, map(float, passing_times(self.modes)), strict=True))
        if given is not None:
            check_kind(Mapping, "numbers by the names of modes", prior_mean=given)
        means = self.per_mode({**usual, **(given or {})}, "prior_mean", 0.0)
        check_number(-most, most, **{f"prior_mean[{m}]": mean for m, mean in enumerate(means)})
        return means
