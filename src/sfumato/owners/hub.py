"""How whoever leads a fit talks to the owners that take part: bytes there, bytes back.

A *site* is an owner's side. It has a handler, which makes an answer of a topic and a message. A *hub* is
the leader's side: it asks all sites at once and waits for as long as it is told. A site gives an answer;
or it refuses and says why; or nothing comes of it in time, and then it counts as lost for this question,
whatever it sends later.

A message is handed to a site once at most, so that nobody is charged twice for one question.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from sfumato.checks import check_positive, check_text, shown
from sfumato.errors import SettingError, SfumatoError, SiteLostError

Handler = Callable[[str, bytes], bytes]  # topic and message to answer, at a site
LOG = logging.getLogger("sfumato.owners")

UNEXPECTED = "an error at the site, which its owner finds in the site's own log"
MOST_TOPIC = 200  # letters
_MOST_TEXT = 2000  # letters of a refusal
_LOST = (ConnectionError, TimeoutError)  # what a handler in this process raises to play a lost site
_LOOK, _TELL = 0.05, 10.0  # seconds between looks at who is there, and between words about it


@dataclass(frozen=True)
class Answers:
    """What came back of one question. Whoever is in neither did not answer in time: lost, or late."""

    given: dict[str, bytes]
    refused: dict[str, str]  # why, by site


@dataclass(frozen=True)
class Reply:
    """What a site says to one message: an answer, or why there is none."""

    given: bool
    content: bytes

    @property
    def text(self) -> str:
        """Of a refusal. It comes from somebody else: no line breaks, and no longer than a message."""
        text = self.content[: 4 * _MOST_TEXT].decode("utf-8", "replace")
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:_MOST_TEXT]


def replied(
    handler: Handler, topic: str, message: bytes, through: tuple[type[Exception], ...] = ()
) -> Reply:
    """What a handler makes of a message.

    Errors of sfumato's are refusals, and their text is sent. The text of any other error stays at the
    site, since it may show data; those of the kinds ``through`` are for whoever calls.
    """
    try:
        answer = handler(topic, message)
        if not isinstance(answer, bytes):
            raise TypeError(f"a handler gave a {type(answer).__name__} instead of bytes")  # noqa: TRY301
    except SfumatoError as error:
        return Reply(False, f"{type(error).__name__}: {error}".encode(errors="replace"))
    except through:
        raise
    except Exception:
        LOG.exception("no answer to %s", shown(topic))
        return Reply(False, UNEXPECTED.encode())
    return Reply(True, answer)


class Hub(ABC):
    """All sites of a fit, as its leader sees them."""

    sites: tuple[str, ...]  # who takes part, by name

    @abstractmethod
    def present(self) -> tuple[str, ...]:
        """Who can be reached now."""

    @abstractmethod
    def _ask(self, topic: str, messages: Mapping[str, bytes], seconds: float) -> dict[str, Reply]:
        """What came back in time."""

    @abstractmethod
    def close(self) -> None:
        """Tell sites that the fit is over, and stop listening."""

    def wait(self, seconds: float, tell: Callable[[tuple[str, ...]], None] | None = None) -> None:
        """Until all sites are there; ``tell`` hears now and then who is missing."""
        check_positive(seconds=seconds)
        end, told, again = time.monotonic() + seconds, None, 0.0
        while missing := tuple(sorted(set(self.sites) - set(self.present()))):
            now = time.monotonic()
            if now >= end:
                raise SiteLostError(
                    f"not there after {seconds:g} seconds: {', '.join(missing)}. See that they were "
                    "started with their own kits, and that they can reach the leader's address"
                )
            if tell is not None and (missing != told or now >= again):
                tell(missing)
                told, again = missing, now + _TELL
            time.sleep(min(_LOOK, end - now))

    def ask(self, topic: str, messages: Mapping[str, bytes], seconds: float) -> Answers:
        """Hand each site its message, and take what answers come within so many seconds."""
        self._check(topic, messages, seconds)
        replies = self._ask(topic, messages, seconds)
        return Answers(
            {site: reply.content for site, reply in replies.items() if reply.given},
            {site: reply.text for site, reply in replies.items() if not reply.given},
        )

    def _check(self, topic: str, messages: Mapping[str, bytes], seconds: float) -> None:
        check_positive(seconds=seconds)
        check_text(topic=topic)
        if not 0 < len(topic) <= MOST_TOPIC:
            raise SettingError(f"a topic has 1 to {MOST_TOPIC} letters, got {shown(topic)}")
        for site, message in messages.items():
            if site not in self.sites:
                raise SettingError(f"no site is called {shown(site)}: there are {', '.join(self.sites)}")
            if not isinstance(message, bytes):
                raise SettingError(f"a message must be bytes, got a {type(message).__name__} for {site}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class InProcess(Hub):
    """Sites in this process, one after the other: for tests and simulations.

    A handler that raises ``ConnectionError`` or ``TimeoutError`` plays a site that is lost or late.
    Time limits mean nothing here.
    """

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        if not handlers:
            raise SettingError("a fit between owners needs at least one site")
        self.handlers = dict(handlers)
        self.sites = tuple(self.handlers)
        self.away: set[str] = set()  # who cannot be reached; for tests to change
        self.closed = False

    def present(self) -> tuple[str, ...]:
        return () if self.closed else tuple(site for site in self.sites if site not in self.away)

    def _ask(self, topic: str, messages: Mapping[str, bytes], seconds: float) -> dict[str, Reply]:  # noqa: ARG002
        if self.closed:
            raise SettingError("this hub is closed: make a new one")
        replies = {}
        for site in [each for each in messages if each not in self.away]:
            with suppress(*_LOST):
                replies[site] = replied(self.handlers[site], topic, messages[site], _LOST)
        return replies

    def close(self) -> None:
        self.closed = True
