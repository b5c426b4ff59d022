"""Hubs and sites on different machines, over cells of NVIDIA FLARE. Needs ``sfumato[owners]``.

The leader listens and sites dial. Every connection is TLS with certificates on both sides, and a site's
name is the one in its certificate. What travels, each as one message (``flare.py`` says in which form):

========  ==============  ==========================================================================
kind      from, to        with
========  ==============  ==========================================================================
here      site, leader    a random number that stands for this run of the site, every two seconds
ask       leader, site    topic, number of the question, seconds that it waits, and the message
answer    site, leader    number of the question, whether it is an answer or a refusal, and which
close     leader, site    nothing: the fit is over
========  ==============  ==========================================================================

A question is sent once. It counts as lost if its site starts anew, or is gone for longer than a broken
connection takes to come back; an answer to a question that nobody waits for any more is dropped.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from sfumato.errors import MissingExtraError, SettingError, SiteLostError
from sfumato.owners.hub import LOG, Handler, Hub, Reply, replied
from sfumato.owners.kits import LEADER, SITE, Kit

_GONE = 20.0  # seconds without a connection, after which a site counts as lost: FLARE waits 10 at most
_BEAT, _FIRST_BEAT = 2.0, 0.05  # seconds between signs of life, and before the first is repeated
_LOOK = 0.2  # seconds
_PATIENCE = 30.0  # seconds without a leader, after which a site says so


def _flare() -> Any:
    try:
        from sfumato.owners import flare
    except ImportError as error:
        raise MissingExtraError("owners", "fits between owners") from error
    return flare


# -- the leader -----------------------------------------------------------------------------------


@dataclass
class _Question:
    """One that is open."""

    number: str
    topic: str
    messages: Mapping[str, bytes]
    until: float
    asked: dict[str, str] = field(default_factory=dict)  # which run of a site has it
    missed: dict[str, float] = field(default_factory=dict)  # since when a site is not there
    lost: set[str] = field(default_factory=set)
    replies: dict[str, Reply] = field(default_factory=dict)

    def awaited(self) -> list[str]:
        return [site for site in self.messages if site not in self.replies and site not in self.lost]


class CellHub(Hub):
    """The leader's side: listens at the port of its kit until it is closed.

    Use it as a context manager: sites wait for more until it is closed.

    Parameters
    ----------
    kit : the leader's.
    host : the interface to listen at. By default all of them, unless the kit's address is of this
        machine alone.
    """

    def __init__(self, kit: Kit, host: str | None = None) -> None:
        kit.check_role(LEADER)
        flare = _flare()
        self.sites = kit.sites
        self._most: int = flare.MOST_BYTES
        self._news = threading.Condition()  # holds for all below
        self._runs: dict[str, str] = {}  # who is there, by site
        self._open: dict[str, _Question] = {}
        self._closed = False
        listening = _listening(kit, host)
        try:
            ears = {"here": self._here, "answer": self._answered}
            self._party = flare.Party(kit, ears, self._changed, listening)
        except BaseException:
            listening.close()
            raise

    def present(self) -> tuple[str, ...]:
        with self._news:
            return tuple(site for site in self.sites if site in self._runs)

    def _here(self, site: str, headers: Mapping[str, Any], _: bytes) -> None:
        with self._news:
            self._runs[site] = str(headers.get("run"))
            self._news.notify_all()

    def _changed(self, site: str, linked: bool) -> None:
        """A connection alone is not enough to be there: its other end may not be ready to listen yet."""
        with self._news:
            if not linked:
                self._runs.pop(site, None)
            self._news.notify_all()

    def _answered(self, site: str, headers: Mapping[str, Any], content: bytes) -> None:
        with self._news:
            question = self._open.get(str(headers.get("number")))
            if question is not None and site in question.asked and site in question.awaited():
                question.replies[site] = Reply(headers.get("given") is True, content)
                self._news.notify_all()

    def _ask(self, topic: str, messages: Mapping[str, bytes], seconds: float) -> dict[str, Reply]:
        if self._closed:
            raise SettingError("this hub is closed: make a new one")
        if any(len(message) > self._most for message in messages.values()):
            raise SettingError(f"a message has {self._most:,} bytes at most: cut it into several")
        question = _Question(secrets.token_hex(16), topic, messages, time.monotonic() + seconds)
        with self._news:
            self._open[question.number] = question
        try:
            while self._pursued(question):
                pass
        finally:
            with self._news:
                del self._open[question.number]
        return question.replies

    def _pursued(self, question: _Question) -> bool:
        """One look at a question, sent to whoever is there by now; whether to look again."""
        with self._news:
            awaited, left = question.awaited(), question.until - time.monotonic()
            if not awaited or left <= 0 or self._closed:
                return False
            self._give_up(question, awaited)
            ready = {site: self._runs[site] for site in awaited if site in self._runs}
            due = {site: run for site, run in ready.items() if site not in question.asked}
            question.asked |= due
            if not due:
                self._news.wait(min(left, _LOOK))
        about = {"topic": question.topic, "number": question.number, "seconds": float(left)}
        for site in due:
            if not self._party.send(site, "ask", about, question.messages[site]):
                with self._news:  # gone meanwhile: it has to show itself again
                    del question.asked[site]
                    self._runs.pop(site, None)
        return True

    def _give_up(self, question: _Question, awaited: list[str]) -> None:
        """On sites that started anew since they were asked, and on those that stay away."""
        now = time.monotonic()
        for site in awaited:
            run = self._runs.get(site)
            if run is not None:
                question.missed.pop(site, None)
                if question.asked.get(site, run) != run:
                    question.lost.add(site)
            elif now - question.missed.setdefault(site, now) > _GONE:
                question.lost.add(site)

    def close(self) -> None:
        with self._news:
            if self._closed:
                return
            self._closed = True
            self._news.notify_all()
        for site in self.sites:
            self._party.send(site, "close", {})
        time.sleep(_LOOK)  # it is sent by another thread, and nothing says when
        self._party.stop()


def _listening(kit: Kit, host: str | None) -> socket.socket:
    local = kit.host == "localhost" or kit.host.startswith("127.")
    place = host if host is not None else "127.0.0.1" if local else ""
    try:
        return socket.create_server((place, kit.port), reuse_port=False)
    except OSError as error:
        raise SettingError(
            f"nothing can listen at port {kit.port} of {place or 'this machine'}: "
            f"{error.strerror or error}. See whether another leader runs there, or have kits made for "
            "another address"
        ) from error


# -- a site ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Asked:
    """A message that came."""

    number: str
    topic: str
    until: float
    message: bytes


class _Site:
    """A site that serves."""

    def __init__(self, kit: Kit) -> None:
        self._leader, self._address = kit.leader, kit.address
        self._run = secrets.token_hex(16)
        self._linked = threading.Event()
        self._over = threading.Event()
        self._asked: SimpleQueue[_Asked] = SimpleQueue()
        self._losses = 0
        ears = {"ask": self._ask, "close": lambda *_: self._over.set()}
        self._party = _flare().Party(kit, ears, self._changed)
        threading.Thread(target=self._beat, name="sfumato-beat", daemon=True).start()

    def _changed(self, _: str, linked: bool) -> None:
        if linked:
            self._linked.set()
        else:
            self._losses += 1
            self._linked.clear()

    def _ask(self, _: str, headers: Mapping[str, Any], message: bytes) -> None:
        until = time.monotonic() + float(headers["seconds"])
        self._asked.put(_Asked(str(headers["number"]), str(headers["topic"]), until, message))

    def _beat(self) -> None:
        """Signs of life. The first may come before the leader is ready for it: it is repeated soon."""
        pause = _FIRST_BEAT
        while not self._over.is_set():
            if self._party.send(self._leader, "here", {"run": self._run}):
                self._over.wait(pause)
                pause = min(2 * pause, _BEAT)
            else:
                pause = _FIRST_BEAT
                self._linked.wait(_LOOK)
                self._over.wait(pause)

    def serve(self, handler: Handler, stop: threading.Event, reconnect: bool) -> None:
        away = time.monotonic()
        while not (stop.is_set() or self._over.is_set()):
            try:
                asked = self._asked.get(timeout=_LOOK)
            except Empty:
                away = self._looked_after(away, reconnect)
                continue
            # What nobody waits for any more is not begun.
            if time.monotonic() < asked.until:
                self._send(asked, replied(handler, asked.topic, asked.message), stop)

    def _send(self, asked: _Asked, reply: Reply, stop: threading.Event) -> None:
        """The connection may be broken just now: it is tried for as long as somebody waits."""
        if len(reply.content) > _flare().MOST_BYTES:
            reply = Reply(False, b"its answer is too large to be sent")
        about = {"number": asked.number, "given": reply.given}
        while not self._party.send(self._leader, "answer", about, reply.content):
            if stop.is_set() or self._over.wait(_LOOK) or time.monotonic() > asked.until:
                return

    def _looked_after(self, away: float, reconnect: bool) -> float:
        """Since when there is no leader; says so after a while, or ends where one try was to do."""
        now = time.monotonic()
        tried = self._losses or self._party.driver.attempts
        if self._linked.is_set() and not (tried and not reconnect):
            return now
        trouble = (
            f"no connection to {self._leader} at {self._address}: {self._party.driver.trouble}. See "
            "that the leader runs, that its address can be reached from here, and that both kits were "
            "made together"
        )
        if tried and not reconnect:
            raise SiteLostError(trouble)
        if now - away > _PATIENCE:
            LOG.warning("%s. Still trying", trouble)
            return now
        return away

    def end(self) -> None:
        self._over.set()
        self._linked.set()
        self._party.stop()


def serve(
    kit: Kit, handler: Handler, stop: threading.Event | None = None, reconnect: bool = True
) -> None:
    """Answer a leader's questions, until it closes the fit, ``stop`` is set, or one is interrupted.

    Messages are answered one by one, in the thread that calls this. A site may be started before its
    leader.

    Parameters
    ----------
    kit : this site's.
    handler : makes answers of topics and messages. What it raises of sfumato's errors is sent as a
        refusal.
    stop : ends serving when it is set, after the message at hand.
    reconnect : whether to dial again, for as long as it takes, where there is no connection to the
        leader; otherwise that is a ``SiteLostError``.
    """
    kit.check_role(SITE)
    site = _Site(kit)
    try:
        site.serve(handler, stop or threading.Event(), reconnect)
    finally:
        site.end()
