"""Where randomness comes from: the operating system, or a seed for experiments."""

from __future__ import annotations

import os

import numpy as np


class Entropy:
    """The source of all noise of one fit.

    Without a seed, released noise is drawn by OpenDP's exact samplers and noise inside compiled
    kernels by AES in counter mode, keyed by the operating system. With a seed the same laws are drawn
    by NumPy's default generator, so that a run can be repeated: whoever knows the seed can subtract
    the noise, so a seeded result is for experiments.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed
        self._seeded = None if seed is None else np.random.default_rng(seed)

    @property
    def exact(self) -> bool:
        """Whether OpenDP's samplers are to be used where they have the law."""
        return self._seeded is None

    def generator(self) -> np.random.Generator:
        """A generator for noise in floating-point arithmetic, for compiled kernels too."""
        if self._seeded is not None:
            return self._seeded.spawn(1)[0]
        from randomgen import AESCounter

        return np.random.Generator(AESCounter(key=int.from_bytes(os.urandom(16))))

    def public_seed(self) -> int:
        """A seed for random choices that hide nothing, such as starting points."""
        return int(self.generator().integers(0, 2**63))
