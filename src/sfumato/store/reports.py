"""Pages in the folders of models: one that may be handed out is a part of its release."""

from __future__ import annotations

import os
from pathlib import Path

from sfumato.errors import ModelFileError
from sfumato.store.manifest import existing_folder, read_folder, with_manifest
from sfumato.store.models import rebound_owner, write_folder, write_own, write_private
from sfumato.store.names import HOLDERS_REPORT, JSON, OWNER, RELEASE, REPORT


def put_reports(
    folder: str | os.PathLike[str], released: str | None, mine: str | None
) -> tuple[Path, ...]:
    """Put pages into a model's folder; gives where they are.

    Parameters
    ----------
    folder : of a model, or of a private fit.
    released : a page that holds what the release holds. It becomes a file of the release, so that its
        manifest and later signatures are about it too.
    mine : a page for the holder; beside a release it is not a part of it, and says so in its name.
    """
    path = existing_folder(folder)
    if os.path.lexists(path / RELEASE):
        if released is None:
            raise ModelFileError(f"{path} holds a release: its page has to be made from it")
        return _beside_release(path, released, mine)
    text = mine if released is None else released
    if text is None:
        return ()
    if not (path / JSON).is_file():  # all of it is its owner's
        write_own(_with_page(path / OWNER, text), path)
        return (path / OWNER / REPORT,)
    write_folder(_with_page(path, text), path)
    return (path / REPORT,)


def _with_page(path: Path, text: str) -> dict[str, bytes]:
    return with_manifest({**read_folder(path).files, REPORT: text.encode()})


def _beside_release(path: Path, released: str, mine: str | None) -> tuple[Path, ...]:
    release = read_folder(path / RELEASE)
    files = with_manifest({**release.files, REPORT: released.encode()})
    owner = None
    if os.path.lexists(path / OWNER):
        owner = rebound_owner(path / OWNER, release, files)
    beside = {} if mine is None else {HOLDERS_REPORT: mine.encode()}
    write_private(files, owner, path, beside)
    return (path / RELEASE / REPORT, *(path / name for name in beside))
