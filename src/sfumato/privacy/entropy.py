"""Where randomness comes from: the operating system, or a seed for experiments."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np

from sfumato.errors import SettingError
from sfumato.types import Array

SECRET = 32  # bytes
_BLOCK = 16  # bytes that AES encrypts at a time
_ZEROS = memoryview(bytes(1 << 19))
Sampler = Literal["sfumato", "opendp"]


class Words:
    """Independent streams of random words: AES in counter mode, each with a range of counters."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import algorithms

        self._cipher = algorithms.AES(key)

    def stream(self, number: int) -> Callable[[int], Array]:
        """Gives so many words more at every call; two calls of this with one number give the same."""
        from cryptography.hazmat.primitives.ciphers import Cipher, modes

        counter = modes.CTR((number << 64).to_bytes(16))
        encryptor: Any = Cipher(self._cipher, counter).encryptor()
        return partial(_encrypted_zeros, encryptor)


def _encrypted_zeros(encryptor: Any, count: int) -> Array:
    """So many words. Written in place: making new bytes of them takes longer than the cipher."""
    size = 8 * count
    out = np.empty(size + _BLOCK - 1, np.uint8)  # which has room for a block that is not full
    for begin in range(0, size, len(_ZEROS)):
        encryptor.update_into(_ZEROS[: size - begin], out[begin:])
    words: Array = out[:size].view("<u8")
    words.flags.writeable = False  # as kernels were compiled for
    return words


class Entropy:
    """The source of all noise of one fit: keys of AES in counter mode, from the operating system.

    With a seed the keys follow from it, and the same code draws noise that can be repeated: whoever
    knows the seed can subtract it, so a seeded result is for experiments. With a ``secret`` of 32 bytes
    from the operating system, which its owner keeps, keys follow from that: the same noise can be drawn
    again after a break. ``sampler`` says who draws exact noise: OpenDP's has its own keys, and can
    neither be seeded nor repeated.
    """

    def __init__(
        self, seed: int | None = None, sampler: Sampler = "sfumato", secret: bytes | None = None
    ) -> None:
        if seed is not None and sampler != "sfumato":
            raise SettingError("OpenDP's sampler cannot be seeded: leave out the seed, or the sampler")
        if sampler == "opendp" and find_spec("opendp") is None:
            raise SettingError(
                "OpenDP is not installed: pip install 'sfumato[opendp]', or leave out the sampler"
            )
        if secret is not None and (seed is not None or sampler != "sfumato" or len(secret) != SECRET):
            raise SettingError(f"a secret has {SECRET} bytes, and is for our own sampler without a seed")
        self.seed, self.sampler, self._secret, self._drawn = seed, sampler, secret, 0
        self._seeds = None if seed is None else np.random.SeedSequence(seed)

    @property
    def seeded(self) -> bool:
        return self._seeds is not None

    def _key(self) -> bytes:
        """A new one at every call."""
        if self._secret is not None:
            self._drawn += 1
            return sha256(b"sfumato noise" + self._drawn.to_bytes(8) + self._secret).digest()[:16]
        if self._seeds is None:
            return os.urandom(16)
        return self._seeds.spawn(1)[0].generate_state(2, np.uint64).tobytes()

    def words(self) -> Words:
        """For exact noise."""
        return Words(self._key())

    def generator(self) -> np.random.Generator:
        """For noise in floating-point arithmetic, in compiled kernels too, and for whole numbers."""
        from randomgen import AESCounter

        return np.random.Generator(AESCounter(key=int.from_bytes(self._key())))

    def public_seed(self) -> int:
        """A seed for random choices that hide nothing, such as starting points."""
        return int(self.generator().integers(0, 2**63))
