"""Invented pictures of letters, on which settings of networks were chosen: glyphs of fonts, bent.

The fonts are those that come with matplotlib. Each picture is a letter in one of them, turned, sheared,
scaled, moved and warped at random, so that no picture of any data set that is scored is among them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sfumato.types import Array

CLASSES = "ABCDEFGHJK"
_FAMILIES = ("DejaVu", "STIXGeneral", "cmr10", "cmss10", "cmtt10", "cmb10")
_GLYPH = 64  # pixels of the pictures that letters are drawn on
_KNOTS = 4  # of the warp, along each side


def letters(number: int, size: int, seed: int = 0, bend: float = 1.0) -> tuple[Array, Array]:
    """So many pictures of ``size`` x ``size`` pixels between 0 and 1, and which letter each is."""
    generator = np.random.default_rng(seed)
    glyphs = _glyphs()
    targets = generator.integers(0, len(CLASSES), number)
    pictures = np.empty((number, size, size), np.float32)
    for place, target in enumerate(targets):
        glyph = glyphs[target][generator.integers(len(glyphs[target]))]
        pictures[place] = _bent(glyph, size, bend, generator)
    brightest = np.maximum(pictures.max((1, 2), keepdims=True), 1e-3)
    return np.clip(pictures / brightest, 0, 1), targets


def _glyphs() -> list[list[Array]]:
    """Every letter in every font."""
    from matplotlib import get_data_path
    from PIL import Image, ImageDraw, ImageFont

    files = sorted(Path(get_data_path(), "fonts", "ttf").glob("*.ttf"))
    fonts = [f for f in files if f.stem.startswith(_FAMILIES) and "Display" not in f.stem]
    drawn: list[list[Array]] = []
    for letter in CLASSES:
        drawn.append([])
        for file in fonts:
            picture = Image.new("L", (_GLYPH, _GLYPH))
            draw, font = ImageDraw.Draw(picture), ImageFont.truetype(str(file), 44)
            left, top, right, bottom = draw.textbbox((0, 0), letter, font=font)
            corner = (_GLYPH - left - right) / 2, (_GLYPH - top - bottom) / 2
            draw.text(corner, letter, font=font, fill=255)
            drawn[-1].append(np.asarray(picture, np.float32) / 255)
    return drawn


def _bent(glyph: Array, size: int, bend: float, generator: np.random.Generator) -> Array:
    """One glyph, seen through a random map of the plane."""
    from scipy.ndimage import gaussian_filter, map_coordinates

    angle, shear = bend * generator.normal(0, [0.2, 0.25])
    scale, shift = np.exp(bend * generator.normal(0, 0.12)), bend * generator.normal(0, 2, 2)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    linear = turn @ np.array([[1, shear], [0, 1]]) * (1.1 / scale)
    side = (np.arange(size) - (size - 1) / 2) * (_GLYPH / size)
    at = np.stack(np.meshgrid(side, side, indexing="ij"))
    along = np.arange(size) / (size - 1) * (_KNOTS - 1)
    between = np.meshgrid(along, along, indexing="ij")
    knots = 3 * bend * generator.normal(size=(2, _KNOTS, _KNOTS))
    warp = np.stack([map_coordinates(each, between, order=1) for each in knots])
    where = np.einsum("ij,jxy->ixy", linear, at) + shift[:, None, None] + (_GLYPH - 1) / 2 + warp
    blur = generator.uniform(0.5, 1.5) if size > 8 else 3.0  # small pictures keep every eighth pixel
    return np.asarray(map_coordinates(gaussian_filter(glyph, blur), where, order=1))
