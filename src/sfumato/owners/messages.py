"""What a leader and sites say to each other: plain data, no questions and no code.

=========  ==========================================================  ===========================
topic      a site is told                                              and answers
=========  ==========================================================  ===========================
``join``   which study                                                 what round it has reached
``begin``  public keys of all sites, where sums are secure             that it has them
``round``  what was released of earlier rounds, and the digest of the  its sums, as the trust says:
           question that the leader works out from it                  plain, noisy, or masked too;
                                                                       or that it comes to other bits
``open``   which sites are in the sum of a round                       keys of masks to take off
``end``    the last releases, and the digest of the model              that it has the same
=========  ==========================================================  ===========================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import inf, prod
from typing import Any

import numpy as np

from sfumato.errors import SfumatoError
from sfumato.privacy.clipping import Clipped
from sfumato.privacy.mechanisms import Noisy, NoisyShare
from sfumato.records import record
from sfumato.types import Array
from sfumato.wire import from_wire, to_wire

JOIN, BEGIN, ROUND, OPEN, END = "join", "begin", "round", "open", "end"


class RefusedError(SfumatoError):
    """A site, or a leader, that does not do what it is asked: what was agreed on does not hold."""


@record
@dataclass(frozen=True)
class Join:
    study: str  # its digest


@record
@dataclass(frozen=True)
class Joined:
    answered: int  # rounds
    updated: int  # rounds whose release it knows
    key: str | None = None  # public, of secure sums


@record
@dataclass(frozen=True)
class Begin:
    """``leader`` is a name that was made up with the leader's journal: who has lost it cannot go on."""

    keys: Mapping[str, str]
    leader: str


@record
@dataclass(frozen=True)
class Begun:
    pass


@record
@dataclass(frozen=True)
class Round:
    """``released`` are those of rounds ``first``, ``first`` + 1 and so on up to this one's."""

    number: int
    first: int
    released: tuple[Noisy, ...]
    question: str  # digest
    parameters: Any = None  # the leader's own question, for whoever rounds otherwise


@record
@dataclass(frozen=True)
class Differs:
    """A site comes to other bits than the leader's: nothing was answered or charged."""


@record
@dataclass(frozen=True, eq=False)
class Masked:
    """Noisy sums behind masks, and what is public of them, one after the other; their step is public."""

    values: Array
    step: float


Sums = Clipped | NoisyShare | Masked


@record
@dataclass(frozen=True)
class Open:
    number: int
    present: tuple[str, ...]


@record
@dataclass(frozen=True)
class End:
    first: int
    released: tuple[Noisy, ...]
    model: str  # digest
    parameters: Any = None  # the leader's own model, for whoever rounds otherwise


@record
@dataclass(frozen=True)
class Ended:
    pass


def in_a_row(share: NoisyShare) -> Array:
    """All numbers of a share, those that are public included: what masks are added to."""
    parts = (share.values, *share.public)
    if any(part.dtype != np.int64 for part in parts):
        raise RefusedError("only whole numbers can be masked")
    return np.concatenate([part.ravel() for part in parts])


def out_of_row(numbers: Array, like: Clipped) -> tuple[Array, tuple[Array, ...]]:
    """The numbers of a share again, and those that are public."""
    ends = np.cumsum([prod(shape) for shape in like.shapes])
    parts = np.split(numbers, ends[:-1])
    values, *public = (part.reshape(shape) for part, shape in zip(parts, like.shapes, strict=True))
    return values, tuple(public)


def check_release(noisy: Noisy, like: Clipped) -> None:
    """Refuse what cannot have been released for a question that is answered like this.

    Kernels index arrays by level, and trust that there are as many numbers as levels.
    """
    shapes = [array.shape for array in (noisy.values, *noisy.public)]
    fits = (
        shapes == like.shapes
        and noisy.values.dtype == np.float64
        and bool(np.isfinite(noisy.values).all())
        and 0 < noisy.deviation < inf
        and all(a.dtype == b.dtype for a, b in zip(noisy.public, like.public, strict=True))
        and all(bool((array >= 0).all()) for array in noisy.public)
    )
    if not fits:
        raise RefusedError("what is said to have been released cannot have been: it has another form")


def digest_of(plain: Any) -> str:
    """Of a question or a model: equal for equal bits."""
    return sha256(to_wire(plain)).hexdigest()


def read(message: bytes, kind: Any) -> Any:
    """A message of the kind that has to come here."""
    plain = from_wire(message)
    if not isinstance(plain, kind):
        raise RefusedError(f"a {type(plain).__name__} was sent where another message has to come")
    return plain
