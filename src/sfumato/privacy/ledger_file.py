"""The file of a ledger: lines of JSON that are only ever appended to, by one process at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISREG
from typing import Any
from weakref import WeakSet

from sfumato.checks import as_path
from sfumato.data.io.folders import lock_file
from sfumato.errors import BudgetError

_MAGIC = b'{"sfumato_ledger"'  # how every ledger file begins
_LARGEST = 1 << 30  # bytes; no ledger comes near


class LedgerFile:
    """Where a ledger is kept. Whatever is wrong with it is a :class:`BudgetError` in words."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        given = as_path("ledger", path)
        with _in_words(given):
            self.path = given.absolute()  # where it is now, whatever folder a fit is left in
        self._descriptor = -1

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Open for appending, to this process alone; a cut-off last line is removed."""
        with _in_words(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = self._open(os.O_RDWR | os.O_APPEND | os.O_CREAT)
        _opened.add(self)
        try:
            with _in_words(self.path):
                if not lock_file(self._descriptor):
                    raise BudgetError(
                        f"{self.path} is in use by another fit; try again when it has ended"
                    )
                self._mend()
            yield
        finally:
            # By name, not by closing alone: a child that was forked a moment ago may have a copy still.
            _unlock(self._descriptor)
            self.close()

    def records(self) -> list[Any]:
        """What the whole lines say; nothing where there is no file, or no header that stands."""
        with _in_words(self.path):
            if self._descriptor >= 0:
                content = self._read(self._descriptor)
            else:
                try:
                    descriptor = self._open(os.O_RDONLY)
                except FileNotFoundError:
                    return []
                try:
                    content = self._read(descriptor)
                finally:
                    os.close(descriptor)
        try:
            lines, _cut_off = self._divided(content)
            return [json.loads(line) for line in lines.decode("utf-8").splitlines()]
        except (ValueError, RecursionError) as error:
            raise damaged(self.path, error) from error

    def append(self, record: dict[str, Any]) -> None:
        """On disk when it returns."""
        if self._descriptor < 0:
            raise BudgetError(f"{self.path} is not open for charging in this process")
        line = json.dumps(record, default=lambda number: number.item()).encode("utf-8") + b"\n"
        try:
            written = os.write(self._descriptor, line)
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._unwritten(error.strerror or "error") from error
        if written != len(line):
            raise self._unwritten("is the disk full?")

    def _unwritten(self, why: str) -> BudgetError:
        return BudgetError(
            f"{self.path} could not be written ({why}), so nothing was drawn for this charge; those "
            "before it stand. Make room and fit again: half a line at its end is removed then"
        )

    def sync_folder(self) -> None:
        """Make a new file's name as lasting as its content."""
        if os.name == "posix":
            with _in_words(self.path):
                folder = os.open(self.path.parent, os.O_RDONLY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)

    def close(self) -> None:
        """Let go of the file; in a forked process this leaves the lock with the one that holds it."""
        _opened.discard(self)
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    # -- reading ----------------------------------------------------------------------------------

    def _open(self, flags: int) -> int:
        # Without waiting: a pipe would never answer.
        flags |= getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
        descriptor = os.open(self.path, flags, 0o666)
        status = os.fstat(descriptor)
        if S_ISREG(status.st_mode) and status.st_size <= _LARGEST:
            return descriptor
        os.close(descriptor)
        raise BudgetError(f"{self.path} is not a ledger: it is no file, or one of over a gigabyte")

    def _read(self, descriptor: int) -> bytes:
        os.lseek(descriptor, 0, os.SEEK_SET)
        parts = list[bytes]()
        while part := os.read(descriptor, 1 << 20):
            parts.append(part)
        return b"".join(parts)

    def _divided(self, content: bytes) -> tuple[bytes, bytes]:
        """Whole lines, and what is left of a last one that was cut off."""
        if content[: len(_MAGIC)] != _MAGIC[: len(content)]:
            raise BudgetError(f"{self.path} is not a ledger; it was left as it is")
        end = content.rfind(b"\n") + 1
        lines, last = content[:end], content[end:]
        try:
            json.loads(last)
        except ValueError:
            return lines, last
        except RecursionError as error:
            raise damaged(self.path, error) from error
        return content, b""  # a whole record that lost its line end: it may have been drawn

    def _mend(self) -> None:
        """Take off half a line, or end a whole one."""
        lines, cut_off = self._divided(self._read(self._descriptor))
        if cut_off:
            os.ftruncate(self._descriptor, len(lines))
        elif lines and not lines.endswith(b"\n"):
            os.write(self._descriptor, b"\n")


def damaged(path: Path, error: BaseException) -> BudgetError:
    return BudgetError(
        f"{path} is not a ledger, or is damaged: {str(error)[:300]}. What was spent is unknown, so "
        "nothing more can be charged to it"
    )


@contextmanager
def _in_words(path: str | os.PathLike[str]) -> Iterator[None]:
    """Say of which file the system complains."""
    try:
        yield
    except (OSError, ValueError) as error:  # a ValueError: the name cannot be one
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise BudgetError(f"the ledger {os.fspath(path)!r} cannot be used: {why}") from error


# A forked process inherits descriptors, and a lock is held as long as any of them is open: it closes
# its own, so that the lock ends with the fit that took it.
def _unlock(descriptor: int) -> None:
    """Give the lock back; in a forked process there is no descriptor any more, and nothing to give."""
    with suppress(ImportError):
        import fcntl

        if descriptor >= 0:
            fcntl.flock(descriptor, fcntl.LOCK_UN)


_opened: WeakSet[LedgerFile] = WeakSet()


def _let_go() -> None:
    for file in list(_opened):
        file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
