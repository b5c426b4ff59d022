"""Who may ask the page for something: one browser on this machine, which has shown the token."""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sfumato.surface import command_line

ENTRANCE = "/enter"
OPENING = "/open"  # takes uploads
MOST_UPLOADED = 2**30  # bytes
MOST_POSTED = 2**23
_READS = ("GET", "HEAD")
_MOST_OPEN = 200  # permits that wait for an answer

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # without any, browsers say of a form no longer where it is from
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Secrets:
    """What only the browser that was let in knows: made anew at every start."""

    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    cookie: str = field(
        default_factory=lambda: f"sfumato_page_{secrets.token_hex(4)}"
    )  # not a port's own
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    # Of all addresses, and so the cookie's: browsers send cookies to every port of a host.
    base: str = field(default_factory=lambda: f"/{secrets.token_urlsafe(16)}")


def same(given: str | None, wanted: str) -> bool:
    """Whether two secrets are the same, in a time that tells nothing."""
    return given is not None and hmac.compare_digest(given.encode(), wanted.encode())


class Guard:
    """Looks at every request before anything else does, and adds headers to every answer."""

    def __init__(
        self, app: ASGIApp, known: Secrets, hosts: Collection[str], most_uploaded: int = MOST_UPLOADED
    ) -> None:
        self._app, self._known, self._hosts = app, known, frozenset(hosts)
        self._most_uploaded = most_uploaded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        if scope["type"] != "http":
            return  # nothing here speaks over web sockets
        request = Request(scope)
        refusal = self._refusal(request)
        if refusal is not None:
            await PlainTextResponse(*refusal)(scope, receive, send_guarded)
            return
        beneath = {**scope, "root_path": self._known.base}
        with command_line():  # whose flags the page has its own words for
            await self._app(beneath, self._limited(request, receive), send_guarded)

    def _refusal(self, request: Request) -> tuple[str, int] | None:
        """Why this is not answered, with the status; None where it is."""
        headers = request.headers
        host, entering = headers.get("host", ""), request.url.path == self._known.base + ENTRANCE
        if len(headers.getlist("host")) != 1 or host not in self._hosts:
            return "This page answers on 127.0.0.1 alone.", 421
        if request.method not in (*_READS, "POST"):
            return "This is not done here.", 405
        if not self._is_own(headers, host, request.method in _READS, entering):
            return "This was asked for by another page.", 403
        if not entering and not same(self._session(headers), self._known.session):
            return "Open the address with its token, as sfumato page has printed it.", 403
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length) > self._most(request):
            return self._too_large(request)
        return None

    @staticmethod
    def _is_own(headers: Headers, host: str, reads: bool, entering: bool) -> bool:
        """Whether a request comes from this page: posts say so, others may not say the contrary."""
        origin = headers.get("origin")
        if origin is not None:
            return origin == f"http://{host}"
        if not reads:
            return False
        return entering or headers.get("sec-fetch-site", "none") in ("same-origin", "none")

    def _session(self, headers: Headers) -> str | None:
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(headers.get("cookie", ""))
        except CookieError:
            return None
        found = cookies.get(self._known.cookie)
        return None if found is None else found.value

    def _most(self, request: Request) -> int:
        return self._most_uploaded if request.url.path == self._known.base + OPENING else MOST_POSTED

    def _too_large(self, request: Request) -> tuple[str, int]:
        most = self._most(request)
        return (
            f"More was sent than the {most / 2**20:,.0f} MiB that are taken. Put a larger file into the "
            "folder that sfumato page was started with, and open it by its path.",
            413,
        )

    def _limited(self, request: Request, receive: Receive) -> Receive:
        """What is received, counted: the length that a request states may be wrong, or missing."""
        most, taken = self._most(request), 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > most:
                words, status = self._too_large(request)
                raise HTTPException(status, words)
            return message

        return counted


@dataclass
class Confirmations:
    """One-time permits to spend: each is for one fit, as it was shown, on a ledger as it then was.

    Using one ends all others, which other tabs may show: their ledger has changed.
    """

    _open: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, about: str) -> str:
        with self._lock:
            nonce = secrets.token_urlsafe(24)
            self._open[nonce] = about
            while len(self._open) > _MOST_OPEN:
                del self._open[next(iter(self._open))]
            return nonce

    def use(self, nonce: str, about: str) -> bool:
        """Whether it is good for what is about to be done; it is not good again."""
        with self._lock:
            if self._open.get(nonce) != about:
                return False
            self._open.clear()
            return True
