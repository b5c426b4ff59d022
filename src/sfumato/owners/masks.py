"""Secure sums: masks that hide each site's numbers and cancel in the sum (Bonawitz et al. 2017).

In every round a site adds to its numbers, modulo 2^64, one mask that it alone can make and one for each
other site, which both of them can make and which they add with opposite signs. What it sends is uniform
for whoever lacks the keys. When it is settled which sites are in the sum, each of these, once and for
one set of sites only, hands out its own mask's key and the keys that it shares with sites that are
missing: just what has to be taken off the sum. An answer that arrives later stays hidden by its own
mask, whose key was never asked for.

Keys of pairs are agreed on by X25519, keys of a round derived from them by HKDF, and masks are AES in
counter mode. Whoever leads passes public keys on, and is taken to do so as they are. What is proven with
this, and against whom: ``proofs/shares.md``, Secure sums.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sfumato.errors import SettingError
from sfumato.privacy.entropy import Words
from sfumato.records import record
from sfumato.types import Array

KEY = 32  # bytes of a public key, and of a key of one round
SECRET = 2 * KEY  # one half for keys that are agreed on, one for a site's own masks


@record
@dataclass(frozen=True)
class Revealed:
    """What one site of a sum hands out: its own mask's key, and those it shares with missing sites."""

    own: str
    shared: Mapping[str, str]


class Masks:
    """One site's side: its secret, and the public keys of all that take part."""

    def __init__(self, name: str, secret: bytes, public: Mapping[str, str], study: str) -> None:
        self.name, self._alone, self._study = name, secret[KEY:], study
        self._agreed = {
            other: agreed_key(secret[:KEY], _bytes(key))
            for other, key in public.items()
            if other != name
        }

    def mask(self, values: Array, number: int) -> Array:
        """Numbers that say nothing to whoever lacks the keys of this round."""
        masked = values.view(np.uint64) + _stream(self._own(number), values.size).reshape(values.shape)
        for other in self._agreed:
            masked += _signed(self.name, other, self._shared(other, number), values.shape)
        return np.asarray(masked.view(np.int64))

    def reveal(self, number: int, present: Sequence[str]) -> Revealed:
        """What has to be known to open the sum of a round over a set of sites, this one among them."""
        if self.name not in present:
            raise SettingError(f"{self.name} is not in the sum of round {number + 1}: nothing to open")
        missing = [other for other in self._agreed if other not in present]
        shared = {other: self._shared(other, number).hex() for other in missing}
        return Revealed(self._own(number).hex(), shared)

    def _own(self, number: int) -> bytes:
        return _derived(self._alone, self._study, f"own {number}")

    def _shared(self, other: str, number: int) -> bytes:
        return _derived(self._agreed[other], self._study, f"shared {number}")


def opened_sum(masked: Mapping[str, Array], revealed: Mapping[str, Revealed]) -> Array:
    """The sum of what sites have masked, from what each of them has handed out for this set."""
    if masked.keys() != revealed.keys():
        raise SettingError("a sum is opened with what all sites in it have handed out")
    first = next(iter(masked.values()))
    total = np.zeros(first.shape, np.uint64)
    for name, values in masked.items():
        keys = revealed[name]
        total += values.view(np.uint64)
        total -= _stream(_key(keys.own), values.size).reshape(values.shape)
        for other, key in keys.shared.items():
            if other in masked:
                raise SettingError(f"{name} has handed out what it shares with {other}, who is there")
            total -= _signed(name, other, _key(key), values.shape)
    return np.asarray(total.view(np.int64))


def new_secret() -> bytes:
    return os.urandom(SECRET)


def public_key(secret: bytes) -> str:
    """What others need of a secret."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(secret[:KEY]).public_key().public_bytes_raw().hex()


def agreed_key(secret: bytes, public: bytes) -> bytes:
    """What two sites know and nobody else."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    try:
        key: bytes = X25519PrivateKey.from_private_bytes(secret).exchange(
            X25519PublicKey.from_public_bytes(public)
        )
    except ValueError as error:  # not 32 bytes, or a point that makes every agreed key zero
        raise SettingError(f"a site's public key cannot be one: {error}") from error
    return key


def _derived(key: bytes, study: str, purpose: str) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), KEY, bytes.fromhex(study), purpose.encode()).derive(key)


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise SettingError("a site has handed out something that is no key") from error


def _key(text: str) -> bytes:
    key = _bytes(text)
    if len(key) != KEY:
        raise SettingError("a site has handed out something that is no key")
    return key


def _signed(name: str, other: str, key: bytes, shape: tuple[int, ...]) -> Array:
    """The mask of a pair: what the one adds the other takes off."""
    mask = _stream(key, int(np.prod(shape))).reshape(shape)
    return mask if name < other else np.asarray(np.negative(mask))  # modulo 2^64


def _stream(key: bytes, number: int) -> Array:
    return Words(key).stream(0)(number).astype(np.uint64)
