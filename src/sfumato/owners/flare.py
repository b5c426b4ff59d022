"""A party of a fit as a cell of NVIDIA FLARE, whose ways are kept inside of this module.

Of FLARE it is ``CoreCell`` that is used, which frames, routes and reconnects, and its asyncio driver.
Left out are jobs, streams of objects and peers that connect to each other, and all that could take a
message for more than bytes:

- A connection is TLS 1.3 with certificates on both sides, of the kits' root and no other. FLARE's own
  contexts would trust the machine's authorities too, and so a driver of our own makes them.
- A peer has the name in its certificate. FLARE compares it with the cell's name when a connection
  begins; each message is held against it once more here, since FLARE takes a message's origin from the
  message itself.
- On the wire are frames: 16 bytes, headers as msgpack, and a body. msgpack makes nothing but numbers,
  text, bytes, lists and mappings. A body is unpacked by FOBS, FLARE's serialiser of objects, if its
  sender says so in the headers. A message that says so is dropped before FLARE looks at its body, as is
  one for somebody else, of another channel, encrypted, or that asks for a reply. Nothing is ever
  unpickled.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from nvflare.apis.fl_constant import ConnectionSecurity
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import (
    Encoding,
    MessageHeaderKey,
    MessagePropKey,
    MessageType,
    ReturnCode,
)
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.drivers.aio_conn import AioConnection
from nvflare.fuel.f3.drivers.aio_tcp_driver import AioTcpDriver
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.drivers.net_utils import parse_url
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.stats_pool import StatsPoolManager

from sfumato.owners.hub import LOG
from sfumato.owners.kits import LEADER, SITE, Kit

Hears = Callable[[str, Mapping[str, Any], bytes], None]  # who sent it, its headers and its content
MOST_BYTES = 2**31 - 2**22  # of a message: FLARE's frames have 2 GiB
_SCHEME, _CHANNEL, _PREFIX = "satcp://", "sfumato", "sfumato_"
_BUFFER = 2**20  # bytes that asyncio reads at a time; its 64 kB make large messages slow
_HANDSHAKE, _END = 30.0, 5.0  # seconds
# FLARE logs lost connections as errors, which are no news here: hubs and sites say what became of them.
_NOISY: dict[str, tuple[str, ...]] = {LEADER: ("drivers.aio_conn", "cellnet.core_cell")}
_NOISY[SITE] = (*_NOISY[LEADER], "sfm.conn_manager")  # at the leader, this one tells of posers
_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 60_000}


def _quiet(role: str) -> None:
    """FLARE tells of every connection; whoever has set its loggers keeps what was set."""
    levels = {"nvflare": logging.ERROR}
    levels |= {f"nvflare.fuel.f3.{name}": logging.CRITICAL for name in _NOISY[role]}
    for name, level in levels.items():
        if logging.getLogger(name).level == logging.NOTSET:
            logging.getLogger(name).setLevel(level)


def _cell_name(name: str) -> str:
    """FLARE reads dots in names as paths and knows some words; no name of a party has a tilde."""
    return "site~" + name.replace(".", "~")


def _context(kit: Kit) -> ssl.SSLContext:
    """One root, certificates on both sides. Hosts are not compared: names and purposes are."""
    leads = kit.role == LEADER
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if leads else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(kit.root)
    context.load_cert_chain(kit.certificate, kit.key)
    return context


class _Connection(AioConnection):  # type: ignore[misc]
    """One that is closed in the thread that it lives in, as asyncio wants it."""

    def close(self) -> None:
        self.closing = True
        self.aio_ctx.run_coro(self._end())

    async def _end(self) -> None:
        with suppress(Exception):  # whatever the other end did to it: it is over
            self.writer.close()
            await self.writer.wait_closed()


class _Driver(AioTcpDriver):  # type: ignore[misc]
    """FLARE's asyncio driver with contexts and sockets of our own."""

    def __init__(self, kit: Kit, listening: socket.socket | None) -> None:
        super().__init__()
        self._listening, self.ssl_context = listening, _context(kit)
        self.attempts, self.trouble = 0, "it was closed from the other side"

    def connect(self, connector: Any) -> None:
        try:
            super().connect(connector)
        except Exception as error:
            self.trouble = str(error) or type(error).__name__
            raise
        finally:
            self.attempts += 1

    async def _tcp_connect(self, host: str, port: str) -> None:
        reader, writer = await asyncio.open_connection(
            host, port, ssl=self.ssl_context, limit=_BUFFER, ssl_handshake_timeout=_HANDSHAKE
        )
        await self._create_connection(reader, writer)

    async def _tcp_listen(self, host: str, port: str) -> None:  # noqa: ARG002
        self.server = await asyncio.start_server(
            self._create_connection,
            sock=self._listening,
            ssl=self.ssl_context,
            limit=_BUFFER,
            ssl_handshake_timeout=_HANDSHAKE,
        )
        await self.server.serve_forever()

    async def _create_connection(self, reader: Any, writer: Any) -> None:
        """With probes, so that a machine that lost its power does not count as there for hours."""
        plain = writer.get_extra_info("socket")
        with suppress(OSError, AttributeError):  # not every system has all of them
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _ALIVE.items():
                plain.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        connection = _Connection(self.connector, self.aio_ctx, reader, writer, True)
        self.add_connection(connection)
        await connection.read_loop()
        self.close_connection(connection)

    def shutdown(self) -> None:
        """Not waited for: FLARE holds a lock meanwhile that closed connections ask for."""
        self.close_all()
        self.aio_ctx.run_coro(self._deafen())

    async def _deafen(self) -> None:
        if self.server is not None:
            self.server.close()


class Party:
    """One party's cell, which hears only peers of its kit, and only kinds of messages it has ears for.

    ``changed`` is told who is linked from now on, or no more. Functions are called from FLARE's threads.
    """

    def __init__(
        self,
        kit: Kit,
        ears: Mapping[str, Hears],
        changed: Callable[[str, bool], None],
        listening: socket.socket | None = None,
    ) -> None:
        _quiet(kit.role)
        leads = kit.role == LEADER
        self._own = FQCN.ROOT_SERVER if leads else _cell_name(kit.name)
        peers = {_cell_name(s): s for s in kit.sites} if leads else {FQCN.ROOT_SERVER: kit.leader}
        self._peers, self._cells = peers, {name: cell for cell, name in peers.items()}
        self._ears, self._changed = dict(ears), changed
        self._suspects: set[object] = set()
        self._cell = self._made(kit, leads)
        self.driver = _Driver(kit, listening)
        mode = Mode.PASSIVE if leads else Mode.ACTIVE
        self._line = self._begun(parse_url(_SCHEME + kit.address), mode)

    def _made(self, kit: Kit, leads: bool) -> Any:
        side = "server" if leads else "client"
        credentials = {
            DriverParams.CA_CERT.value: str(kit.root),
            DriverParams[f"{side.upper()}_CERT"].value: str(kit.certificate),
            DriverParams[f"{side.upper()}_KEY"].value: str(kit.key),
            DriverParams.CONNECTION_SECURITY.value: ConnectionSecurity.MTLS,
        }
        url = _SCHEME + kit.address
        cell = CoreCell(self._own, url, True, credentials, auth_identity_map=self._peers)
        # What FLARE keeps for each process: cells, which would talk to each other past TLS, and their
        # statistics. Either would let a name be used only once.
        CoreCell.ALL_CELLS.pop(self._own)
        for pool in [name for name in StatsPoolManager.pools if name.endswith(f"@{self._own.lower()}")]:
            StatsPoolManager.delete_pool(pool)
        cell.add_incoming_filter("*", "*", self._stopped)
        for kind in self._ears:
            cell.register_request_cb(_CHANNEL, kind, self._heard)
        cell.set_cell_connected_cb(lambda agent: self._told(agent.get_fqcn(), True))
        cell.set_cell_disconnected_cb(lambda agent: self._told(agent.get_fqcn(), False))
        return cell

    def _begun(self, params: dict[str, Any], mode: Mode) -> threading.Thread:
        """The thread that listens or dials, again and again.

        The cell would start it itself, with a driver of FLARE's, and as one that a program waits for at
        its end.
        """
        communicator = self._cell.communicator
        handle = communicator.add_connector_advanced(self.driver, mode, params, secure=True)
        connector = communicator.conn_manager.connectors[handle]
        connector.started = True
        run = communicator.conn_manager.start_connector_task
        line = threading.Thread(target=run, args=(connector,), name="sfumato-line", daemon=True)
        line.start()
        communicator.start()
        self._cell.running = True
        return line

    def _told(self, cell: str, linked: bool) -> None:
        if cell in self._peers:
            self._changed(self._peers[cell], linked)

    def _stopped(self, message: Any) -> Any:
        """Something where a message must go no further, before FLARE looks at its body."""
        peer = message.get_prop(MessagePropKey.ENDPOINT).name
        if self._is_plain(message, peer):
            return None
        if peer not in self._suspects and len(self._suspects) < 1000:  # one line each
            self._suspects.add(peer)
            certified = message.get_prop(MessagePropKey.COMMON_NAME)
            LOG.warning("dropped a message of %r, which no party of this fit would send", certified)
        return make_reply(ReturnCode.INVALID_REQUEST)

    def _is_plain(self, message: Any, peer: str) -> bool:
        header, keys = message.headers.get, MessageHeaderKey
        certified = message.get_prop(MessagePropKey.COMMON_NAME)
        return (
            peer in self._peers
            and certified == self._peers[peer]
            and header(keys.ORIGIN) == header(keys.FROM_CELL) == peer
            and header(keys.DESTINATION) == self._own
            and header(keys.MSG_TYPE) == MessageType.REQ
            and header(keys.CHANNEL) == _CHANNEL
            and header(keys.TOPIC) in self._ears
            and header(keys.PAYLOAD_ENCODING) in (Encoding.BYTES, Encoding.NONE)
            and not any(map(header, (keys.SECURE, keys.ENCRYPTED, keys.REPLY_EXPECTED, keys.CONN_URL)))
        )

    def _heard(self, message: Any) -> None:
        sender = self._peers[message.get_prop(MessagePropKey.ENDPOINT).name]
        kind = message.headers[MessageHeaderKey.TOPIC]
        start = len(_PREFIX)
        own = {str(k)[start:]: v for k, v in message.headers.items() if str(k).startswith(_PREFIX)}
        self._ears[kind](sender, own, bytes(message.payload or b""))

    def linked(self, name: str) -> bool:
        return self._cells[name] in self._cell.agents

    def send(self, to: str, kind: str, headers: Mapping[str, Any], content: bytes = b"") -> bool:
        """Whether a message was on its way; whether it came is another matter."""
        if not self.linked(to) or not self._cell.running:
            return False
        message = Message({_PREFIX + name: value for name, value in headers.items()}, content)
        cell = self._cells[to]
        with suppress(RuntimeError):  # stopped just now
            failed = self._cell.fire_and_forget(_CHANNEL, kind, cell, message, optional=True)
            return not failed.get(cell)
        return False

    def stop(self) -> None:
        """Close all connections. FLARE would take its leave of each peer, and wait for what they say."""
        self._cell.agents.clear()
        self._cell.stop()
        self._line.join(_END)
