"""Folders that appear whole or not at all, and take the place of older ones without a gap.

A new model is written inside a *work folder* beside its place, ``.NAME.saving-`` and random letters. A
lock shows it to be in use for as long as its process lives. It is then put in its place: where there is
a model already the two change places at one stroke. Where the system cannot do that, the old one is
moved to the work folder first; should the process be killed before the new one has moved, the next that
loads or saves there puts the old one back.

Work folders of killed processes, which may hold rows of owners, are removed by the next save.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sfumato.checks import as_path
from sfumato.data.io.folders import NEW, OLD, locked, put_in_place, sync, unlock
from sfumato.errors import ModelFileError, SaveError
from sfumato.store.names import GUARANTEE_JSON, OWNER, RELEASE, foreign, is_model

_RANDOM = "[a-z0-9_]{8}"  # how mkdtemp ends a name
_PROBE = 1 << 16  # bytes that are written to see whether any can be


# -- before anything is spent ---------------------------------------------------------------------


def check_destination(folder: str | os.PathLike[str], *, in_parts: bool = True) -> None:
    """Refuse a place where a model cannot be written, so that a fit can be spared.

    A little is really written there, and removed. A model ``in_parts`` is a release with more beside it.
    """
    target = _resolved(folder)
    _check_replaceable(target)
    if in_parts:
        check_no_release(target)
    try:
        _try_to_write(target)
    except OSError as error:
        raise ModelFileError(
            f"{folder} cannot be written: {error.strerror or error}; name another folder"
        ) from error


def check_no_release(folder: str | os.PathLike[str]) -> None:
    """Refuse to put a model where a release is: what stays with owners would be handed out with it."""
    target = _resolved(folder)
    if target.name in (RELEASE, OWNER) and is_model(target.parent):
        raise ModelFileError(
            f"{target} is a part of the model in {target.parent}: name that folder, or another one"
        )
    if (target / GUARANTEE_JSON).is_file():
        raise ModelFileError(
            f"{target} is a release, to be handed out, and a model holds more than that: name another "
            "folder"
        )


def _check_replaceable(target: Path) -> None:
    """Only an empty folder and an earlier model, with nothing else in it, may be replaced."""
    try:
        objection = _objection(target) if target.exists() else None
    except OSError as error:
        objection = f"cannot be read: {error.strerror}; name another folder"
    if objection is not None:
        raise ModelFileError(f"{target} {objection}")


def _objection(target: Path) -> str | None:
    if not target.is_dir():
        return "is a file; name a folder"
    if os.path.ismount(target):
        return "is where a disk is mounted; name a folder inside it"
    if any(target.iterdir()) and not is_model(target):
        return "is not empty and holds no model; name another folder"
    other = foreign(target)
    if other is not None:
        return f"holds {other} beside a model, which would be lost: move it, or name another folder"
    return None


def _try_to_write(target: Path) -> None:
    if target.is_dir() and not os.access(target, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    while not target.parent.exists():
        target = target.parent
    with _work_folder(target) as work, open(work / "probe", "wb") as probe:
        probe.write(os.urandom(_PROBE))  # which no file system can compress away
        probe.flush()
        os.fsync(probe.fileno())


def _resolved(folder: str | os.PathLike[str]) -> Path:
    """Where a folder really lies, whatever links lead there."""
    try:
        return as_path("folder", folder).resolve()
    except (OSError, RuntimeError) as error:
        raise ModelFileError(f"{folder} is no folder: {error}") from error


# -- replacing ------------------------------------------------------------------------------------


@contextmanager
def replacing_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """A new folder to write to, which takes the place of ``folder`` once all is written.

    A folder that is there already is replaced only if it is empty or an earlier model.
    """
    target = _resolved(folder)
    recover(target)
    _check_replaceable(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target)
        with _work_folder(target) as work:
            new = work / NEW
            new.mkdir()
            yield new
            _sync_all(new)
            put_in_place(new, target, work)
            sync(target.parent)
    except OSError as error:
        raise SaveError(folder, error.strerror or str(error)) from error


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _sync_all(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        sync(path)


# -- work folders ---------------------------------------------------------------------------------


@contextmanager
def _work_folder(target: Path) -> Iterator[Path]:
    """A folder that is locked while this process lives, for its owner's eyes alone, gone afterwards."""
    while True:
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.saving-", dir=target.parent))
        lock = locked(work, wait=True)
        if work.exists():  # else another save took it for a leftover before it was locked
            break
        unlock(lock)
    try:
        yield work
    finally:
        if _only_copy(work, target) is None:
            shutil.rmtree(work, ignore_errors=True)
        unlock(lock)


def _work_folders(target: Path) -> list[Path]:
    name = re.compile(rf"{re.escape(f'.{target.name}.saving-')}{_RANDOM}")
    with suppress(OSError), os.scandir(target.parent) as entries:
        return [
            Path(entry.path)
            for entry in entries
            if name.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        ]
    return []


def _remove_leftovers(target: Path) -> None:
    """Work folders of processes that live no more."""
    for work in _work_folders(target):
        lock = locked(work)
        if lock is not None:
            shutil.rmtree(work, ignore_errors=True)
            unlock(lock)


def _only_copy(work: Path, target: Path) -> Path | None:
    """The old model, where its place is empty."""
    old = work / OLD
    return old if old.is_dir() and not os.path.lexists(target) else None


def recover(folder: str | os.PathLike[str]) -> None:
    """Put an old model back that was moved aside by a save that was then killed."""
    if os.path.lexists(folder):
        return
    target = _resolved(folder)
    for work in _work_folders(target):
        old = _only_copy(work, target)
        if old is None:
            continue
        lock = locked(work)
        if lock is None:
            raise ModelFileError(f"{folder} is being replaced at this moment: try again")
        try:
            old = _only_copy(work, target)  # whoever had the lock may have done it
            if old is not None:
                os.rename(old, target)
                shutil.rmtree(work, ignore_errors=True)
        except OSError as error:
            raise ModelFileError(
                f"a save to {folder} was interrupted and left the model in {old}; it cannot be moved "
                f"back: {error.strerror}"
            ) from error
        finally:
            unlock(lock)
