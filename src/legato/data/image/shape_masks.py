"""How much of each pixel a shape covers, for the pictures of `scenes`.

A shape is the set of points whose signed distance d to its outline is not above 0, and a pixel whose centre has the
distance d is covered by ½ − d of itself, at least nothing and at most wholly: exact for an edge along the pixels, and
close for any other. Edges are smooth, without the several samples per pixel that drawing them otherwise takes. Where
two edges meet at a tip, the distance to the nearer one falls slowly beyond it; so each tip is cut off where it ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np

WHOLE: Final = 256  # how a pixel that is covered wholly is counted
FAINT: Final = WHOLE // 8  # less is not seen, and not drawn
RING: Final = 0.55  # the hole's part of a ring's radius
SQUARE: Final = 0.88  # half the side of a square, as part of the radius: it would look larger than the others
ARM: Final = 0.34  # half the width of a cross's arms
DENT: Final = 0.45  # how far a star's inner corners are from its centre
TALL: Final = 0.87  # half the height of a triangle as wide as twice the radius: nearly √3/2
HEART: Final = 1 / (0.5 + math.sqrt(0.5))  # half the diagonal of the square that a heart's lobes stand on

Floats = np.ndarray[Any, np.dtype[np.float64]]
Mask = np.ndarray[Any, np.dtype[np.int32]]
Box = tuple[int, int, int, int]  # left, top, right, bottom: the pixels from the first to before the last two


def _circle(x: Floats, y: Floats, r: float) -> Floats:
    return np.sqrt(x * x + y * y) - r


def _ring(x: Floats, y: Floats, r: float) -> Floats:
    distance = _circle(x, y, 0.0)
    return np.maximum(distance - r, RING * r - distance)


def _square(x: Floats, y: Floats, r: float) -> Floats:
    return np.maximum(abs(x), abs(y)) - SQUARE * r


def _diamond(x: Floats, y: Floats, r: float) -> Floats:
    side = (abs(x) + abs(y) - r) * math.sqrt(0.5)
    return np.maximum(side, np.maximum(abs(x), abs(y)) - r)


def _triangle(x: Floats, y: Floats, r: float) -> Floats:
    slope = 2 * TALL
    side = (slope * abs(x) - y - TALL * r) / math.sqrt(1 + slope * slope)
    return np.maximum(side, np.maximum(abs(x) - r, abs(y) - TALL * r))


def _cross(x: Floats, y: Floats, r: float) -> Floats:
    lying = np.maximum(abs(x) - r, abs(y) - ARM * r)
    standing = np.maximum(abs(x) - ARM * r, abs(y) - r)
    return np.minimum(lying, standing)


def _star(x: Floats, y: Floats, r: float) -> Floats:
    # Ten times the same edge: each point is turned and mirrored to beside the one from a tip to its inner corner.
    fifth = 2 * math.pi / 5
    angle = abs((np.arctan2(x, -y) + fifth / 2) % fifth - fifth / 2)
    distance = _circle(x, y, 0.0)
    along, across = DENT * math.cos(fifth / 2) - 1, DENT * math.sin(fifth / 2)
    forward, aside = distance * np.cos(angle) - r, distance * np.sin(angle)
    edge = (forward * across - aside * along) / math.hypot(along, across)
    return np.maximum(edge, distance - r)


def _heart(x: Floats, y: Floats, r: float) -> Floats:
    half = HEART * r
    down = y - (math.sqrt(0.5) - 0.5) / 2 * half  # as far above the middle as below it
    lobe = _circle(abs(x) - half / 2, down + half / 2, half * math.sqrt(0.5))
    return np.minimum(_diamond(x, down, half), lobe)


_DISTANCE: Final[dict[str, Callable[[Floats, Floats, float], Floats]]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "cross": _cross,
    "ring": _ring,
    "diamond": _diamond,
    "heart": _heart,
}
KINDS: Final = tuple(_DISTANCE)


@lru_cache(maxsize=8192)
def _mask(kind: str, x: float, y: float, radius: float) -> tuple[int, int, Mask]:
    """The first column and row that a shape covers, and how much of each pixel (H, W, 1), out of `WHOLE`."""
    reach = math.ceil(radius) + 2
    first: Floats = np.arange(-reach, reach + 1, dtype=np.float64) + 0.5  # (N,) centres of pixels
    distance = _DISTANCE[kind]((first - x)[None, :], (first - y)[:, None], radius)  # (N, N)
    cover = np.rint((0.5 - distance).clip(0, 1) * WHOLE).astype(np.int32)
    cover[cover < FAINT] = 0
    rows, columns = (np.flatnonzero(cover.any(axis)) for axis in (1, 0))
    mask = cover[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1, None]
    mask.setflags(write=False)  # whoever asks next gets the same one
    return int(columns[0]) - reach, int(rows[0]) - reach, mask


def shape_mask(kind: str, x: float, y: float, radius: float) -> tuple[Box, Mask]:
    """The pixels that a shape around (x, y) touches, as a box, and how much it covers of each (H, W, 1).

    >>> box, mask = shape_mask("square", 8.0, 8.0, 5.0)
    >>> box, mask[0, :3, 0].tolist()
    ((3, 3, 13, 13), [102, 102, 102])
    """
    column, row = math.floor(x), math.floor(y)
    left, top, mask = _mask(kind, x - column, y - row, radius)
    height, width = mask.shape[:2]
    return (column + left, row + top, column + left + width, row + top + height), mask


def paint(canvas: np.ndarray[Any, np.dtype[np.uint8]], rgb: tuple[int, int, int], box: Box, mask: Mask) -> None:
    """A shape in its colour on a picture (H, W, 3); what leaves it on one side comes in on the other."""
    height, width = canvas.shape[:2]
    left, top, right, bottom = box
    where: Any = (slice(top, bottom), slice(left, right))
    if left < 0 or top < 0 or right > width or bottom > height:
        where = np.ix_(np.arange(top, bottom) % height, np.arange(left, right) % width)
    under = canvas[where].astype(np.int32)  # (h, w, 3)
    under += ((np.array(rgb, np.int32) - under) * mask + WHOLE // 2) // WHOLE
    canvas[where] = under
