"""Scattering of small images: fixed features that need no training, and so cost no privacy.

An image is filtered by Morlet wavelets of scales 2^0 .. 2^(J-1) and ``angles`` orientations, the modulus
is taken, and the result is averaged by a Gaussian of scale 2^J and kept at every 2^J-th place; moduli
are filtered once more by the coarser wavelets. Small shifts and deformations of an image hardly change
what comes out (J. Bruna and S. Mallat, "Invariant scattering convolution networks", 2013). The filters
are those of kymatio (Andreux et al. 2020), and so are the features, to single precision.

All filtering is in Fourier space, on images that are padded by reflection. A filtered image has no high
frequencies, so that it is kept at every 2^j-th place: there its spectrum is the mean of the parts that
fall on each other, and a filter's is its low part.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.types import Array

_SIGMA, _FREQUENCY = 0.8, 0.75 * np.pi  # of the finest wavelet
_CHUNK = 512  # images at once


class Bank(NamedTuple):
    """Spectra of filters on the padded grid."""

    pad: tuple[tuple[int, int], ...]
    wavelets: tuple[Array, ...]  # one for each scale: angles x height x width
    average: Array


def _gauss(shape: tuple[int, int], sigma: float, slant: float, angle: float, frequency: float) -> Array:
    """A Gaussian, whose sum over the plane is about one, times a wave along an angle; made periodic."""
    whole = [np.arange(-2 * size, 2 * size) for size in shape]
    x, y = np.meshgrid(*whole, indexing="ij")
    along, across = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    squares = (along**2 + slant**2 * across**2) / (2 * sigma**2)
    wave = np.exp(-squares + 1j * frequency * along) * slant / (2 * np.pi * sigma**2)
    return np.asarray(wave.reshape(4, shape[0], 4, shape[1]).sum((0, 2)))


def _morlet(shape: tuple[int, int], sigma: float, slant: float, angle: float, frequency: float) -> Array:
    """Such a wave less as much of its envelope as makes its sum zero."""
    wave = _gauss(shape, sigma, slant, angle, frequency)
    envelope = _gauss(shape, sigma, slant, angle, 0.0)
    return np.asarray(wave - wave.sum() / envelope.sum() * envelope)


@lru_cache(maxsize=8)
def bank(shape: tuple[int, int], scales: int, angles: int) -> Bank:
    """Filters for images of a shape."""
    unit = 1 << scales
    padded = ((shape[0] + unit) // unit + 1) * unit, ((shape[1] + unit) // unit + 1) * unit
    missing = [(size - given) for size, given in zip(padded, shape, strict=True)]
    wavelets = []
    for j in range(scales):
        turns = [(angles - angles // 2 - 1 - t) * np.pi / angles for t in range(angles)]
        each = [_morlet(padded, _SIGMA * 2**j, 4 / angles, turn, _FREQUENCY / 2**j) for turn in turns]
        # Spectra are real, as envelopes are even: rounding errors alone are imaginary.
        wavelets.append(np.real(np.fft.fft2(np.stack(each))).astype(np.float32))
    average = np.real(np.fft.fft2(_gauss(padded, _SIGMA * 2 ** (scales - 1), 1.0, 0.0, 0.0)))
    pads = tuple((gap // 2, (gap + 1) // 2) for gap in missing)
    return Bank(pads, tuple(wavelets), average.astype(np.float32))


def _folded(spectrum: jax.Array, by: int) -> jax.Array:
    """The spectrum of an image of which every ``by``-th place is kept."""
    *some, height, width = spectrum.shape
    parts = spectrum.reshape(*some, by, height // by, by, width // by)
    return parts.mean((-4, -2))


def _low(filters: Array, by: int) -> Array:
    """The low part of filters' spectra, for images of which every ``by``-th place is left."""
    for axis in (-2, -1):
        half = filters.shape[axis] // by // 2
        filters = np.concatenate(
            [np.split(filters, [half], axis)[0], np.split(filters, [-half], axis)[1]], axis
        )
    return filters


@partial(jax.jit, static_argnames=("scales", "angles"))
def _scattered(images: jax.Array, scales: int, angles: int) -> jax.Array:
    """Features of some images: a channel for each path, and its places."""
    filters = bank((images.shape[1], images.shape[2]), scales, angles)
    padded = jnp.pad(images, ((0, 0), *filters.pad), mode="reflect")

    def averaged(spectrum: jax.Array, taken: int) -> jax.Array:
        coarse = _folded(spectrum * _low(filters.average, 1 << taken), 1 << (scales - taken))
        return jnp.fft.ifft2(coarse).real[..., 1:-1, 1:-1]

    def moduli(spectrum: jax.Array, j: int, taken: int) -> jax.Array:
        """Spectra of what the wavelets of a scale leave, one more axis for the angles."""
        filtered = spectrum[..., None, :, :] * _low(filters.wavelets[j], 1 << taken)
        return jnp.fft.fft2(jnp.abs(jnp.fft.ifft2(_folded(filtered, 1 << (j - taken)))))

    whole = jnp.fft.fft2(padded)
    first, second = [], []
    for j in range(scales):
        once = moduli(whole, j, 0)
        first.append(averaged(once, j))
        coarser = [averaged(moduli(once, later, j), later) for later in range(j + 1, scales)]
        if coarser:
            second.append(jnp.concatenate(coarser, axis=2))
    zeroth = averaged(whole, 0)[:, None]
    places = zeroth.shape[-2:]
    paths = [part.reshape(images.shape[0], -1, *places) for part in (zeroth, *first, *second)]
    return jnp.concatenate(paths, axis=1)


def scattered(images: Array, scales: int = 2, angles: int = 8) -> Iterator[Array]:
    """Features of images (n x height x width), some images at a time: n x paths x height x width."""
    for begin in range(0, len(images), _CHUNK):
        part = np.zeros((_CHUNK, *images.shape[1:]), np.float32)  # one shape for all: compiled once
        size = len(images[begin : begin + _CHUNK])
        part[:size] = images[begin : begin + _CHUNK]
        yield np.asarray(_scattered(part, scales, angles))[:size]
