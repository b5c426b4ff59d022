"""Journals: what was answered or added up, on disk before anybody hears of it.

A file of messages (:mod:`sfumato.wire`), each with its length and digest, that is only ever appended
to, by one process at a time. Whatever is in it may have been sent; whatever is not was not: a last
message that was cut off is removed. So a process that was killed and starts anew says the same again, to
the last byte, and draws no noise twice.
"""

from __future__ import annotations

import os
from hashlib import sha256
from typing import Any

from sfumato.checks import as_path
from sfumato.data.io.folders import lock_file, sync
from sfumato.errors import DataError
from sfumato.wire import WireError, from_wire, to_wire

_MAGIC = b"sfumato journal 1\n"
_HEAD = 8 + 32 + 8  # bytes before a message: its length, its digest, and a check of these two


class Journal:
    """A file of plain data. Whatever is wrong with it is a :class:`DataError` in words."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = as_path("journal", path).absolute()
        self._descriptor = -1
        try:
            new = [folder for folder in self.path.parents if not folder.exists()]
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Of the owner alone: it holds what a site knows.
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            self.entries = self._read()
            for folder in (self.path.parent, *(each.parent for each in new)):
                sync(folder)  # the file's name is to last as long as what is in it
        except OSError as error:
            self.close()
            raise DataError(
                f"the journal {self.path} cannot be used: {error.strerror or error}"
            ) from error
        except BaseException:
            self.close()
            raise

    def _read(self) -> list[Any]:
        """All messages, for this process alone; a last one that was cut off is taken off the file."""
        if not lock_file(self._descriptor):
            raise DataError(f"{self.path} is in use: another process answers for this site")
        content = self.path.read_bytes()
        if content[: len(_MAGIC)] != _MAGIC[: len(content)]:
            raise DataError(f"{self.path} is no journal; it was left as it is")
        if len(content) < len(_MAGIC):
            os.ftruncate(self._descriptor, 0)
            self._write(_MAGIC)
            return []
        entries, at = [], len(_MAGIC)
        while at < len(content):
            message = self._message(content, at)
            if message is None:  # cut off: it was never sent
                os.ftruncate(self._descriptor, at)
                break
            try:
                entries.append(from_wire(message))
            except WireError as error:
                raise self._damaged() from error
            at += _HEAD + len(message)
        return entries

    def _message(self, content: bytes, at: int) -> bytes | None:
        """The message that begins there; None where the file ends before it does.

        Whatever is whole and not as it was written is damage, not a write that was cut off.
        """
        head = content[at : at + _HEAD]
        if len(head) < _HEAD:
            return None
        if _check(head[:40]) != head[40:]:
            raise self._damaged()
        size = int.from_bytes(head[:8], "little")
        message = content[at + _HEAD : at + _HEAD + size]
        if len(message) < size:
            return None
        if sha256(message).digest() != head[8:40]:
            raise self._damaged()
        return message

    def _damaged(self) -> DataError:
        return DataError(
            f"the journal {self.path} is damaged: what was answered is unknown, so that nothing more "
            "can be. Begin a new study"
        )

    def append(self, plain: Any) -> None:
        """On disk when it returns."""
        message = to_wire(plain)
        head = len(message).to_bytes(8, "little") + sha256(message).digest()
        self._write(head + _check(head) + message)
        self.entries.append(plain)

    def _write(self, content: bytes) -> None:
        try:
            written = 0
            while written < len(content):
                written += os.write(self._descriptor, content[written:])
            os.fsync(self._descriptor)
        except OSError as error:
            self.close()  # half a message may be there, which the next opening removes
            raise DataError(
                f"the journal {self.path} could not be written ({error.strerror or error}), so nothing "
                "was sent: make room and start again"
            ) from error

    def of(self, kind: type) -> list[Any]:
        """The entries of a kind, in order."""
        return [entry for entry in self.entries if isinstance(entry, kind)]

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check(head: bytes) -> bytes:
    return sha256(head).digest()[:8]
