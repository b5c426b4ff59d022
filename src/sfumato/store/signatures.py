"""Signatures of model folders: Ed25519 over the bytes of the manifest, which covers every other file.

A signature lies beside the manifest in ``signature.json`` and can be made, checked and thrown away
without touching anything else. It names the key that made it, which proves nothing: whoever verifies
brings the public key from elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import NamedTuple

from sfumato.checks import as_path
from sfumato.errors import ModelFileError, SignatureError
from sfumato.store import keys
from sfumato.store.manifest import Contents, existing_folder, read_folder
from sfumato.store.names import MANIFEST, NEW_SIGNATURE, NOT_FOR_RELEASE, RELEASE, SIGNATURE
from sfumato.store.reading import SMALL, damage, parse_json, read_file

_ALGORITHM = "Ed25519"
_PREFIX = b"sfumato: signature of the manifest of a model folder, version 1\n"  # and of nothing else
_PathLike = str | os.PathLike[str]


def new_key(file: _PathLike) -> Path:
    """Make a key: the private one in ``file``, for you alone to read, the public one in ``file.pub``.

    Neither file may exist. The public key is for everybody who is to verify.

    Parameters
    ----------
    file : path
        Where to.

    Returns
    -------
    Path
        Of the private key.

    Examples
    --------
    >>> import sfumato as sf
    >>> sf.new_key("key").name
    'key'
    """
    private, public = keys.new_pair()
    path = as_path("file", file)
    beside = path.with_name(f"{path.name}.pub")
    if os.path.lexists(beside):
        raise ModelFileError(f"{beside} is there already, and is not written over")
    _write_new(path, private, 0o600)
    try:
        _write_new(beside, public, 0o644)
    except BaseException:
        path.unlink()  # a key whose public part is nowhere is of no use
        raise
    return path


def sign(folder: _PathLike, key: _PathLike) -> str:
    """Sign a release, or a model folder, with a private key; gives the key's fingerprint.

    Of a private fit's folder its release is signed. All files are held against the manifest first; none
    of them is touched, and a signature that was there is replaced.

    Parameters
    ----------
    folder : path
        That ``save`` or ``release`` has written.
    key : path
        File of the private key.

    Returns
    -------
    str
        The fingerprint.

    Examples
    --------
    >>> import sfumato as sf
    >>> folder = (
    ...     sf.Biases().fit(sf.synthetic.ratings_like(30, 20, 5, 400)).save("model")
    ... )
    >>> key = sf.new_key("key")
    >>> sf.sign("model", key) == sf.verify("model", "key.pub")
    True
    """
    private = keys.read_private(as_path("key", key))
    contents = _contents(folder)
    public = private.public_key().public_bytes_raw()
    signature = {
        "algorithm": _ALGORITHM,
        "key": public.hex(),
        "signature": private.sign(_message(contents)).hex(),
    }
    _write_signature(contents.path, f"{json.dumps(signature, indent=1)}\n".encode())
    return fingerprint(public)


def verify(folder: _PathLike, key: _PathLike) -> str:
    """Check that a release is whole and was signed by the owner of a public key; gives its fingerprint.

    Whatever is wrong is a ``ModelFileError``: a ``SignatureError`` where it is the signature.

    Parameters
    ----------
    folder : path
        That was signed.
    key : path
        File of the public key.

    Returns
    -------
    str
        The fingerprint.

    Examples
    --------
    >>> import pathlib, sfumato as sf
    >>> folder = (
    ...     sf.Biases().fit(sf.synthetic.ratings_like(30, 20, 5, 400)).save("model")
    ... )
    >>> fingerprint = sf.sign(folder, sf.new_key("key"))
    >>> written = pathlib.Path(folder, "manifest.json").write_text(
    ...     "{}"
    ... )  # somebody meddles
    >>> sf.verify(folder, "key.pub")
    Traceback (most recent call last):
        ...
    sfumato.errors.ModelFileError: model/manifest.json is damaged: 'format'
    """
    public = keys.read_public(as_path("key", key))
    contents = _contents(folder)
    signature = _read_signature(contents.path)
    if signature is None:
        raise SignatureError(f"{contents.path} is not signed")
    mine = public.public_bytes_raw()
    if signature.key != mine:
        raise SignatureError(
            f"{contents.path} was signed by another key: {fingerprint(signature.key)}, where {key} is "
            f"{fingerprint(mine)}"
        )
    if not keys.is_signed(public, signature.signature, _message(contents)):
        raise SignatureError(
            f"the signature of {contents.path} is wrong: this is not the release that was signed"
        )
    return fingerprint(mine)


def signed_by(folder: _PathLike) -> str | None:
    """The fingerprint of the key that a signature names, without verifying it; None without one."""
    signature = _read_signature(_release_in(folder))
    return None if signature is None else fingerprint(signature.key)


def has_manifest(folder: _PathLike) -> bool:
    """Whether changes to a release, or a model folder, can be noticed at all."""
    return (_release_in(folder) / MANIFEST).is_file()


def fingerprint(public: bytes) -> str:
    """A short name of a public key, which no other key has."""
    digest = hashlib.sha256(public).hexdigest()[:32]
    return ":".join(digest[place : place + 4] for place in range(0, len(digest), 4))


class _Signature(NamedTuple):
    key: bytes
    signature: bytes


def _release_in(folder: _PathLike) -> Path:
    path = existing_folder(folder)
    return path / RELEASE if os.path.lexists(path / RELEASE) else path


def _contents(folder: _PathLike) -> Contents:
    contents = read_folder(_release_in(folder))
    if contents.manifest is None:
        raise SignatureError(
            f"{contents.path} has no manifest, as an earlier version wrote it: load it and save it again"
        )
    if NOT_FOR_RELEASE in contents.files:
        raise SignatureError(f"{contents.path} holds rows of owners, which are not to be released")
    return contents


def _message(contents: Contents) -> bytes:
    return _PREFIX + (contents.manifest or b"")


def _read_signature(folder: Path) -> _Signature | None:
    path = folder / SIGNATURE
    if not os.path.lexists(path):
        return None
    found = parse_json(read_file(path, SMALL), path)
    with damage(path):
        if found["algorithm"] != _ALGORITHM:
            raise ValueError(f"this version of sfumato knows signatures by {_ALGORITHM} alone")
        made = _Signature(*(bytes.fromhex(found[name]) for name in _Signature._fields))
        if [part.hex() for part in made] != [found[name] for name in _Signature._fields]:
            raise ValueError("it is not as sfumato writes signatures")
        return made


def _write_signature(folder: Path, content: bytes) -> None:
    """Put a signature where none or an older one is, at one stroke."""
    new = folder / NEW_SIGNATURE
    try:
        new.unlink(missing_ok=True)  # of a process that was killed
        _write_new(new, content, 0o644)
        os.replace(new, folder / SIGNATURE)
    except ModelFileError:
        raise
    except OSError as error:
        raise ModelFileError(f"{folder / SIGNATURE} cannot be written: {error.strerror}") from error


def _write_new(path: Path, content: bytes, mode: int) -> None:
    """Write a file that was not there, and have it on disk."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(handle)
    except FileExistsError as error:
        raise ModelFileError(f"{path} is there already, and is not written over") from error
    except OSError as error:
        raise ModelFileError(f"{path} cannot be written: {error.strerror}") from error
