"""One party of a fit between owners, as a process of its own.

``cell_party.py leader KIT`` prints ``up`` when it listens. Each line that it reads then is JSON, a name
and arguments, and is answered by a line of JSON. ``cell_party.py site KIT`` serves until its standard
input ends. What follows is how to break the rules:

- ``once``: not to dial again; the error is printed.
- ``as=NAME``: under another's name, with one's own certificate.
- ``at=ADDRESS``: somewhere else than the kit says.
- ``bare``: without a certificate.
- ``leads``: to play the leader with a site's kit.
- ``forges``: after a first answer, to send what no site would.
"""

import json
import logging
import os
import signal
import ssl
import sys
import threading
import time
from dataclasses import replace

from sfumato.errors import DataError, SfumatoError
from sfumato.owners import cells, flare
from sfumato.owners.kits import Kit


def handler(topic: str, message: bytes) -> bytes:
    """What the sites of these tests do."""
    if topic == "refuse":
        raise DataError("too few entries")
    if topic == "fail":
        raise ValueError("entry 17 is 3.5")
    if topic == "process":
        return str(os.getpid()).encode()
    if topic == "patient":  # until a file is there
        while message and not os.path.exists(message):
            time.sleep(0.02)
    return message


def main() -> None:
    signal.alarm(300)  # whatever a test forgets to end
    logging.basicConfig(level=logging.WARNING)  # to the standard error, which tests look at
    role, folder, *how = sys.argv[1:]
    kit, ways = Kit.read(folder), dict(each.partition("=")[::2] for each in how)
    kit = replace(kit, name=ways.get("as", kit.name), address=ways.get("at", kit.address))
    if "leads" in ways:
        kit = replace(kit, role="leader")
    if "bare" in ways:
        flare._context = without_certificate
    if role == "leader":
        lead(kit)
    else:
        follow(kit, ways)


def follow(kit: Kit, ways: dict[str, str]) -> None:
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    if "forges" in ways:
        cells._Site._send = forged
    try:
        cells.serve(kit, handler, stop, reconnect="once" not in ways)
    except SfumatoError as error:
        print(json.dumps([type(error).__name__, str(error)]), flush=True)


def without_certificate(kit: Kit) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(kit.root)
    return context


# -- what no site would send ----------------------------------------------------------------------

FORGED = (
    {"cn__origin": "site~site-1", "cn__from": "site~site-1"},  # in another's name
    {"cn__destination": "site~site-1"},  # to another site, by way of the leader
    {"cn__payload_encoding": "fobs"},  # objects instead of bytes
    {"cn__channel": "cellnet", "cn__topic": "bulk", "cn__payload_encoding": "fobs"},
    {"cn__channel": "credential_manager", "cn__topic": "key_exchange", "cn__reply_expected": True},
)


def forged(site, asked, reply, stop) -> None:
    """An answer in all wrong ways first, and then in the right one."""
    cell, about = site._party._cell, {"number": asked.number, "given": True}
    for changes in FORGED:
        cell.out_req_filter_reg.reg.clear()
        cell.add_outgoing_request_filter("*", "*", changed, changes)
        site._party.send(site._leader, "answer", about, b"forged")
    cell.out_req_filter_reg.reg.clear()
    time.sleep(0.3)  # messages are taken up by several threads: let the wrong ones be first
    site._party.send(site._leader, "answer", about, reply.content)


def changed(message, changes) -> None:
    message.add_headers(changes)


# -- the leader -----------------------------------------------------------------------------------


def lead(kit: Kit) -> None:
    from nvflare.fuel.utils import fobs

    unpacked = []
    fobs.loads = lambda *_, **__: unpacked.append(1)
    with cells.CellHub(kit) as hub:
        print("up", flush=True)
        for line in sys.stdin:
            what, *arguments = json.loads(line)
            answer = len(unpacked) if what == "unpacked" else DONE[what](hub, *arguments)
            print(json.dumps(answer), flush=True)


def wait(hub, seconds):
    try:
        hub.wait(seconds)
    except SfumatoError as error:
        return [type(error).__name__, str(error)]


def wait_without(hub, site):
    """Until a site is missing."""
    while site in hub.present():
        time.sleep(0.05)


def echoed(hub, sizes, seconds):
    """Random bytes of so many sizes, there and back: from whom they came as they went."""
    messages = {site: os.urandom(size) for site, size in sizes.items()}
    given = hub.ask("echo", messages, seconds).given
    return sorted(site for site, message in messages.items() if given.get(site) == message)


def ask(hub, topic, texts, seconds):
    answers = hub.ask(topic, {site: text.encode() for site, text in texts.items()}, seconds)
    return {site: text.decode() for site, text in answers.given.items()}, answers.refused


def rounds(hub, size, count):
    """Seconds of each of several questions to all sites."""
    took = []
    for _ in range(count):
        messages = {site: os.urandom(size) for site in hub.sites}
        start = time.perf_counter()
        hub.ask("echo", messages, 30)
        took.append(time.perf_counter() - start)
    return took


DONE = {
    "wait": wait,
    "wait without": wait_without,
    "present": lambda hub: hub.present(),
    "echo": echoed,
    "ask": ask,
    "rounds": rounds,
}


if __name__ == "__main__":
    main()
