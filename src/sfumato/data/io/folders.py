"""Folders that appear whole or not at all: what saving models and cutting tensors share.

What is new is written in a *work folder* beside its place. A lock shows the folder to be in use for
as long as its process lives, so that what a killed process left behind can be told from what is
being written.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sfumato.errors import DataError

_RANDOM = "[a-z0-9_]{8}"  # how mkdtemp ends a name
NEW, OLD = "new", "old"


@contextmanager
def writing(place: object) -> Iterator[None]:
    """The one place where a system's complaint about a data folder that is written becomes an error."""
    try:
        yield
    except OSError as error:
        advice = "name another folder"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "make room, or name a folder on a larger disk"
        raise DataError(
            f"{place} could not be written: {error.strerror or error}. Nothing was changed "
            f"there: {advice}"
        ) from error


@contextmanager
def new_folder(target: Path) -> Iterator[tuple[Path, Path]]:
    """A folder that takes the place of ``target`` once all is written, and one for what is not to stay.

    What is at ``target`` is replaced: whoever calls has made sure that it may be. Where two folders
    cannot change places at one stroke, there is an instant without either; the old one is put back
    if moving fails.
    """
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target)
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.cutting-", dir=target.parent))
    lock = locked(work, wait=True)
    try:
        with writing(target):
            (work / NEW).mkdir()
            (work / "aside").mkdir()
        yield work / NEW, work / "aside"
        with writing(target):
            _sync_folders(work / NEW)
            put_in_place(work / NEW, target, work)
            sync(target.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        unlock(lock)


def put_in_place(new: Path, target: Path, work: Path) -> None:
    """A finished folder where it belongs; what was there before is in the work folder then."""
    if not os.path.lexists(target):
        os.rename(new, target)
    elif not exchanged(new, target):
        os.rename(target, work / OLD)
        try:
            os.rename(new, target)
        except BaseException:
            os.rename(work / OLD, target)
            raise


def _remove_leftovers(target: Path) -> None:
    """Work folders of processes that live no more; they may be as large as the data."""
    name = re.compile(rf"{re.escape(f'.{target.name}.cutting-')}{_RANDOM}")
    with suppress(OSError), os.scandir(target.parent) as entries:
        left = [Path(entry.path) for entry in entries if name.fullmatch(entry.name)]
        for work in left:
            lock = locked(work)
            if lock is not None:
                shutil.rmtree(work, ignore_errors=True)
                unlock(lock)


def _sync_folders(folder: Path) -> None:
    """The names of files, whose contents were synced when they were written."""
    for place, _, _ in os.walk(folder):
        sync(Path(place))


# -- what systems offer ---------------------------------------------------------------------------


def exchanged(one: Path, other: Path) -> bool:
    """Let two folders change places at one stroke; False where the system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    renameat2.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    if renameat2(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code))


def sync(path: Path) -> None:
    """See a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def locked(folder: Path, *, wait: bool = False) -> int | None:
    """A handle that holds the lock of a folder; None where a living process does, or there are none."""
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def lock_file(descriptor: int) -> bool:
    """Have an open file to oneself until it is closed; False where another process has it.

    Where the system has no such locks, nothing keeps others out.
    """
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        return True
    except BlockingIOError:
        return False
    return True


def unlock(lock: int | None) -> None:
    """Let go of a lock."""
    if lock is not None:
        os.close(lock)
