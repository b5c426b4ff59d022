"""Names of the files and folders of a model."""

from __future__ import annotations

from pathlib import Path

JSON, TENSORS = "model.json", "model.safetensors"
GUARANTEE_JSON, LABEL, DEPLOYMENT = "guarantee.json", "LABEL.md", "deployment.yaml"
EARLIER = "guarantee.txt"  # which the label has replaced
NOT_FOR_RELEASE = "NOT-FOR-RELEASE.txt"
REPORT, HOLDERS_REPORT = "report.html", "report-not-for-release.html"
MANIFEST = "manifest.json"
SIGNATURE, NEW_SIGNATURE = "signature.json", "signature.json.new"
RELEASE, OWNER = "release", "owner"

UNLISTED = frozenset({MANIFEST, SIGNATURE, NEW_SIGNATURE})  # what no manifest can or need list
_PAGES = {REPORT, HOLDERS_REPORT}
_FILES = UNLISTED | _PAGES | {JSON, TENSORS, GUARANTEE_JSON, LABEL, DEPLOYMENT, EARLIER, NOT_FOR_RELEASE}
_FOLDERS = frozenset({RELEASE, OWNER})


def is_model(folder: Path) -> bool:
    """Whether a folder holds a model, or a private fit."""
    return any(
        (folder / part / JSON).is_file() and (folder / part / TENSORS).is_file()
        for part in ("", RELEASE, OWNER)
    )


def foreign(folder: Path) -> str | None:
    """The name of something in a model's folder that is no part of a model."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        known = _FOLDERS if path.is_dir() else _FILES
        if path.name not in known or not set(inside.parts[:-1]) <= _FOLDERS:
            return str(inside)
    return None
