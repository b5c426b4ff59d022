"""Ed25519 keys in PEM files."""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from sfumato.errors import ModelFileError
from sfumato.store.reading import SMALL, read_file
from sfumato.surface import either

_UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm)


def new_pair() -> tuple[bytes, bytes]:
    """A private key and its public one, as they are written to files."""
    key = Ed25519PrivateKey.generate()
    return (
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
    )


def read_private(path: Path) -> Ed25519PrivateKey:
    content = read_file(path, SMALL)
    try:
        key = load_pem_private_key(content, password=None)
    except _UNREADABLE as error:
        raise ModelFileError(
            f"{path} is no private key, or has a password: make one with "
            + either("sfumato.new_key", "sfumato sign --new-key")
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ModelFileError(f"{path} is a private key, but not one of Ed25519")
    return key


def read_public(path: Path) -> Ed25519PublicKey:
    content = read_file(path, SMALL)
    try:
        key = load_pem_public_key(content)
    except _UNREADABLE as error:
        raise ModelFileError(
            f"{path} is no public key: give the file that ends in .pub, not the private one"
        ) from error
    if not isinstance(key, Ed25519PublicKey):
        raise ModelFileError(f"{path} is a public key, but not one of Ed25519")
    return key


def is_signed(public: Ed25519PublicKey, signature: bytes, message: bytes) -> bool:
    try:
        public.verify(signature, message)
    except InvalidSignature:
        return False
    return True
