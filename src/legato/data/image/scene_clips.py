"""Clips of one shape that moves, and which way: left, right, up, down, clockwise or anticlockwise.

The picture has no edges: what leaves it on one side comes in on the other. So in every frame each place is as likely
as any other, whichever way the shape moves, and no single frame says anything of the direction: whoever knows it has
compared frames.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Final

import numpy as np

from legato.data.image.scenes import (
    COLOURS,
    RADII,
    SIDE,
    SIZES,
    Drawn,
    Pixels,
    ScenesConfig,
    background,
    draw_ground,
    draw_shade,
    in_split,
    stream_of,
)
from legato.data.image.shape_masks import KINDS, paint, shape_mask
from legato.data.sources.toys import TOY

_STEPS: Final = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
_TURNS: Final = {"clockwise": 1, "anticlockwise": -1}  # as y grows downwards
DIRECTIONS: Final = (*_STEPS, *_TURNS)
CLIPS: Final = f"{TOY}clips"  # as a source
WAY: Final = (SIDE // 4, SIDE * 5 // 8)  # how far a shape goes in all
ORBIT: Final = (SIDE // 8, SIDE // 4)  # how far from the middle it turns around
SWEEP: Final = (0.6, 1.0)  # of a whole turn, in all
STRIDE: Final = 1 / 3  # of a turn from frame to frame at most: half a turn is the same both ways


@dataclass(frozen=True)
class Clip:
    """A shape that moves. `path` holds its x and y in each frame, in pixels, both from 0 to before the side."""

    frames: Pixels  # (N, S, S, 3)
    direction: str
    kind: str
    colour: str
    size: str
    path: tuple[tuple[float, float], ...]


def draw_clip(config: ScenesConfig, split: str, seed: int, number: int) -> Clip:
    """The clip of this number, whatever others there are."""
    key = f"clips/{split}/{seed}/{number}"
    stream = stream_of(key)
    while True:
        kind, colour, size = stream.choice(KINDS), stream.choice(tuple(COLOURS)), stream.choice(SIZES)
        radius = stream.choice(RADII[size])
        direction = stream.choice(DIRECTIONS)
        path = _path(stream, direction, config.frames)
        if in_split((kind, colour, radius, path), split):
            break
    unit = config.size / SIDE
    rgb = draw_shade(stream, colour)
    empty = background(config.size, draw_ground(stream), key)
    frames = np.repeat(empty[None], config.frames, axis=0)
    places = tuple((x * unit, y * unit) for x, y in path)
    for frame, (x, y) in zip(frames, places, strict=True):
        paint(frame, rgb, *shape_mask(kind, x, y, radius * unit))
    return Clip(frames, direction, kind, colour, size, places)


def _path(stream: random.Random, direction: str, frames: int) -> list[tuple[int, int]]:
    """Where a shape is in each frame, in the units of a scene; the first place is drawn from all alike."""
    x, y = stream.randrange(SIDE), stream.randrange(SIDE)
    if direction in _STEPS:
        right, down = _STEPS[direction]
        step = stream.randint(*WAY) / (frames - 1)
        moves = [(round(right * step * frame), round(down * step * frame)) for frame in range(frames)]
    else:
        phase, orbit = stream.uniform(0, 2 * math.pi), stream.uniform(*ORBIT)
        sweep = stream.uniform(SWEEP[0], min(SWEEP[1], STRIDE * (frames - 1)))
        step = _TURNS[direction] * sweep * 2 * math.pi / (frames - 1)
        angles = [phase + step * frame for frame in range(frames)]
        moves = [(round(orbit * math.cos(angle)), round(orbit * math.sin(angle))) for angle in angles]
    return [((x + right) % SIDE, (y + down) % SIDE) for right, down in moves]


class Clips(Drawn[Clip]):
    """The clips of a split, as many as its scenes."""

    settings = ("size", "frames")

    def draw(self, number: int) -> Clip:
        return draw_clip(self.config, self.split, self.seed, number)

    def content(self, row: Clip) -> tuple[str, Pixels]:
        return repr((row.direction, row.kind, row.colour, row.size, row.path)), row.frames
