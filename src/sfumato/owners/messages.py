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
from typing import Any

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
    keys: Mapping[str, str]


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
    """Noisy sums behind masks; their deviation and step are public."""

    values: Array
    deviation: float
    step: float
    public: tuple[Array, ...] = ()


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


def digest_of(plain: Any) -> str:
    """Of a question or a model: equal for equal bits."""
    return sha256(to_wire(plain)).hexdigest()


def read(message: bytes, kind: Any) -> Any:
    """A message of the kind that has to come here."""
    plain = from_wire(message)
    if not isinstance(plain, kind):
        raise RefusedError(f"a {type(plain).__name__} was sent where another message has to come")
    return plain
