"""Model folders that are damaged on purpose."""

import json

from sfumato.store.manifest import manifest_of
from sfumato.store.names import MANIFEST, UNLISTED


def sealed(folder):
    """The folder with a manifest of what it holds now, so that what lies behind it is reached."""
    files = {file.name: file.read_bytes() for file in folder.iterdir() if file.name not in UNLISTED}
    (folder / MANIFEST).write_bytes(manifest_of(files))
    return folder


def edit(folder, name="model.json", **changes):
    """Other fields in a file of JSON, and a manifest that says so."""
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **changes}), "utf-8")
    return sealed(folder)


def cut(folder, name, keep=0.5):
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: int(len(data) * keep)])
    return folder


def as_of_format_1(folder):
    """A folder as versions before manifests wrote it."""
    import hashlib

    checksum = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    edit(folder, format=1, sha256=checksum)
    (folder / MANIFEST).unlink()
    return folder
