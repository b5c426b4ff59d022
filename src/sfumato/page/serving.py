"""Serving the page on this machine, to one browser."""

from __future__ import annotations

import os
import socket
import warnings
import webbrowser
from collections.abc import Callable
from pathlib import Path

import uvicorn

from sfumato.errors import PrivacyWarning, SettingError
from sfumato.page.app import application
from sfumato.page.guard import ENTRANCE
from sfumato.page.opened import Folder
from sfumato.page.workshop import Workshop

HOST = "127.0.0.1"


def serve(
    folder: Path, ledger: Path | None, port: int, *, browser: bool, tell: Callable[[str], None]
) -> None:
    """Serve until Ctrl-C; port 0 is any that is free."""
    opened = Folder(folder)
    opened.prepare()
    warnings.simplefilter("ignore", PrivacyWarning)  # the page says itself what a promise is worth
    workshop = Workshop(opened, None if ledger is None else ledger.resolve())
    listening = _listening(port)
    number = listening.getsockname()[1]
    app = application(workshop, [f"{HOST}:{number}", f"localhost:{number}"])
    address = f"http://{HOST}:{number}{workshop.known.base}{ENTRANCE}?token={workshop.known.token}"
    tell(f"the page is at {address}\nonly this machine can open it; Ctrl-C ends it")
    if browser:
        webbrowser.open(_leading_to(address, opened.kept).as_uri())
    settings = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, ws="none", lifespan="on"
    )
    with listening:
        uvicorn.Server(settings).run(sockets=[listening])


def _leading_to(address: str, folder: Path) -> Path:
    """A file that leads a browser to an address: words of commands can be read by all on a machine."""
    file = folder / "open.html"
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as written:
        written.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}">')
    return file


def _listening(port: int) -> socket.socket:
    """A socket that listens on this machine alone."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((HOST, port))
        made.listen()  # a browser that is quick waits, and nobody else can take the port
    except OSError as error:
        made.close()
        raise SettingError(f"port {port} is taken: name another with --port, or leave it out") from error
    return made
