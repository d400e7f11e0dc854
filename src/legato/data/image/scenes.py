"""Pictures that are made and not downloaded: coloured shapes on a plain ground (`data.train=toy:scenes`).

A scene has one shape or several, each of a kind, a colour and a size, each in a place of its own among three by
three. What is there is known, so what is true of it can be said: its class, captions (`scene_captions`), questions
with their answers and statements that are true or false (`scene_questions`), boxes. Of moving shapes there are clips
(`scene_clips`).

Scene `number` is a pure function of (settings, split, seed, number): more of them move none, and its size in pixels
scales it and changes nothing else. No two shapes of a scene have both kind and colour in common, so that "the red
circle" is one of them.

What is there also decides which split a scene may be in, by its hash, and it is drawn until it is in its own: no
scene of one split is one of another, whatever their seeds.
"""

from __future__ import annotations

import hashlib
import random
import zlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar, overload

import numpy as np
from pydantic import Field

from legato.config import Section, validate
from legato.data.digests import sha256_of
from legato.data.image.shape_masks import KINDS, Box, paint, shape_mask
from legato.data.sources.files import SPLITS
from legato.data.sources.toys import MOST_ROWS, TOY
from legato.errors import ConfigError, suggest

SCENES: Final = f"{TOY}scenes"  # as a source
VERSION: Final = 1  # of what is drawn: another one makes other scenes of the same settings
SIDE: Final = 128  # of a scene, in the units in which places and radii are drawn
PLACES: Final = (21, 64, 107)  # the middles of three columns, and of three rows
REACH: Final = 20  # how far from its place's middle a shape may extend
COLOURS: Final = {
    "red": (214, 40, 40),
    "green": (46, 160, 67),
    "blue": (36, 92, 214),
    "yellow": (250, 215, 40),
    "purple": (136, 48, 180),
    "orange": (246, 128, 24),
    "white": (248, 248, 248),
    "black": (20, 20, 22),
}
RADII: Final = {"small": (9, 10, 11), "large": (17, 18, 19, 20)}
SIZES: Final = tuple(RADII)
GROUND: Final = (125, 165)  # from the darkest shade of the background to the lightest
TINT: Final = 8  # how far a colour of the background may be from grey
SHADE: Final = 8  # how far a shape's colour may be from that of its name
AGAIN: Final = 0.3  # how often a shape takes its kind from one before it, and as often its colour
SAMPLE: Final = 16  # rows that are drawn for a digest

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
R = TypeVar("R")
_COLOURS: Final = tuple(COLOURS)


class ScenesConfig(Section):
    """Scenes that are made: how large, how many, how full."""

    size: int = Field(64, ge=32, le=1024, description="pixels of a scene's side")
    most_shapes: int = Field(4, ge=1, le=len(PLACES) ** 2, description="a scene has from 1 to as many")
    frames: int = Field(8, ge=3, le=256, description="of a clip")
    count: int = Field(10_000, ge=1, le=MOST_ROWS, description="scenes to train on")
    valid_count: int = Field(500, ge=1, le=MOST_ROWS, description="scenes of validation")
    test_count: int = Field(500, ge=1, le=MOST_ROWS, description="scenes of testing")

    def as_trained(self, toy: Mapping[str, Any]) -> tuple[ScenesConfig, int]:
        """What a model was trained with, but for the settings that are given, and its seed.

        `toy` is what the model's folder says.
        """
        settings = {**toy.get("settings", {}), **self.model_dump(exclude_unset=True)}
        return validate(ScenesConfig, settings), toy.get("seed", 0)

    def count_of(self, split: str) -> int:
        return {"train": self.count, "valid": self.valid_count, "test": self.test_count}[split]


@dataclass(frozen=True)
class Shape:
    """One shape; all lengths in pixels."""

    kind: str
    colour: str
    size: str
    box: Box  # left, top, right, bottom of the pixels it touches
    place: tuple[int, int]  # row and column, each 0 to 2
    x: float
    y: float
    radius: float
    rgb: tuple[int, int, int]  # a shade of its colour

    @property
    def name(self) -> str:
        """`red circle`: no other shape of the scene has it."""
        return f"{self.colour} {self.kind}"


@dataclass(frozen=True)
class Scene:
    """What is in a picture. `key` says which scene it is; all that is drawn for it follows from that."""

    shapes: tuple[Shape, ...]
    size: int
    most_shapes: int  # that there might have been
    ground: tuple[int, int, int]  # the background's shade
    key: str

    @property
    def largest(self) -> Shape:
        """The shape whose kind, or colour, is the scene's class; of two as large, the first."""
        return max(self.shapes, key=lambda shape: shape.radius)


def picture(scene: Scene) -> Pixels:
    """The scene in red, green and blue, (S, S, 3)."""
    canvas = background(scene.size, scene.ground, scene.key)
    for shape in scene.shapes:
        paint(canvas, shape.rgb, *shape_mask(shape.kind, shape.x, shape.y, shape.radius))
    return canvas


def background(size: int, ground: tuple[int, int, int], key: str) -> Pixels:
    """A shade with slight noise, the same in all three colours: (S, S, 3)."""
    # SHAKE and not NumPy's numbers, which another version may draw otherwise.
    noise = np.frombuffer(hashlib.shake_128(key.encode()).digest(size * size), np.uint8)
    grain = ((noise & 7) + (noise >> 5)).reshape(size, size, 1)  # 0 to 14, 7 the likeliest
    return grain + (np.array(ground, np.uint8) - 7)


def stream_of(key: str) -> random.Random:
    """Random draws that follow from a text alone, in every process."""
    # Python's own hash() of a string differs from process to process.
    return random.Random(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little"))


def in_split(facts: object, split: str) -> bool:
    """Whether what has these facts may be in this split: a third of all may be in each."""
    return zlib.crc32(repr(facts).encode()) % len(SPLITS) == SPLITS.index(split)


def draw_ground(stream: random.Random) -> tuple[int, int, int]:
    grey = stream.randint(*GROUND)
    red, green, blue = (grey + stream.randint(-TINT, TINT) for _ in range(3))
    return red, green, blue


def draw_shade(stream: random.Random, colour: str) -> tuple[int, int, int]:
    """A shade that still has this colour's name."""
    red, green, blue = (min(255, max(0, level + stream.randint(-SHADE, SHADE))) for level in COLOURS[colour])
    return red, green, blue


def _draw_names(stream: random.Random, count: int) -> list[tuple[str, str]]:
    """Kinds and colours of shapes, no two of which have both in common."""
    names: list[tuple[str, str]] = []
    while len(names) < count:
        # Some repeat a kind or a colour, or there would rarely be two of anything to count.
        kind = stream.choice(names)[0] if names and stream.random() < AGAIN else stream.choice(KINDS)
        colour = stream.choice(names)[1] if names and stream.random() < AGAIN else stream.choice(_COLOURS)
        if (kind, colour) not in names:
            names.append((kind, colour))
    return names


def _draw_layout(stream: random.Random, count: int) -> list[tuple[int, int, int, int]]:
    """Place, radius, x and y of shapes, in units of which a side has `SIDE`."""
    layout = []
    for place in stream.sample(range(len(PLACES) ** 2), count):
        radius = stream.choice(RADII[stream.choice(SIZES)])
        row, column = divmod(place, len(PLACES))
        slack = REACH - radius
        x, y = (PLACES[part] + stream.randint(-slack, slack) for part in (column, row))
        layout.append((place, radius, x, y))
    return layout


def draw_scene(config: ScenesConfig, split: str, seed: int, number: int) -> Scene:
    """The scene of this number, whatever others there are."""
    key = f"scenes/{split}/{seed}/{number}"
    stream = stream_of(key)
    count = stream.randint(1, config.most_shapes)
    names = _draw_names(stream, count)
    layout = _draw_layout(stream, count)
    while not in_split(sorted(zip(names, layout, strict=True)), split):
        layout = _draw_layout(stream, count)  # and not the names: every class is as likely in every split
    unit = config.size / SIDE
    shapes = []
    for (kind, colour), (place, radius, x, y) in zip(names, layout, strict=True):
        size = "small" if radius in RADII["small"] else "large"
        scaled = x * unit, y * unit, radius * unit
        box, _ = shape_mask(kind, *scaled)
        where = divmod(place, len(PLACES))
        shapes.append(Shape(kind, colour, size, box, where, *scaled, draw_shade(stream, colour)))
    return Scene(tuple(shapes), config.size, config.most_shapes, draw_ground(stream), key)


class Drawn(Sequence[R], Generic[R]):
    """The rows of a split, each drawn when it is read and none kept; any process may read any of them."""

    settings: ClassVar[tuple[str, ...]]  # what decides a row, beside the seed

    def __init__(self, config: ScenesConfig, split: str, seed: int) -> None:
        if split not in SPLITS:
            raise ConfigError(f"{SCENES} has no split '{split}'; {suggest(split, SPLITS)}")
        self.config = config
        self.split = split
        self.seed = seed

    def __len__(self) -> int:
        return self.config.count_of(self.split)

    @overload
    def __getitem__(self, number: int) -> R: ...
    @overload
    def __getitem__(self, number: slice) -> list[R]: ...
    def __getitem__(self, number: int | slice) -> R | list[R]:
        rows = range(len(self))[number]
        return [self.draw(row) for row in rows] if isinstance(rows, range) else self.draw(rows)

    @abstractmethod
    def draw(self, number: int) -> R:
        """The row of this number."""

    @abstractmethod
    def content(self, row: R) -> tuple[str, Pixels]:
        """All that a row is, for its digest: facts and pixels."""

    def digest(self) -> str:
        """SHA-256 of what decides the rows, and of the first ones as they are: another way to draw them shows."""
        settings = self.config.model_dump_json(include=set(self.settings))
        parts: list[str | bytes] = [f"{VERSION} {settings} {self.split} {self.seed} {len(self)}"]
        for row in self[:SAMPLE]:
            facts, pixels = self.content(row)
            parts += [facts, pixels.tobytes()]
        return sha256_of(parts)


class Scenes(Drawn[Scene]):
    """The scenes of a split.

    >>> scenes = Scenes(ScenesConfig(most_shapes=2), "train", seed=0)
    >>> len(scenes), [shape.name for shape in scenes[3].shapes]
    (10000, ['yellow cross'])
    """

    settings = ("size", "most_shapes")

    def draw(self, number: int) -> Scene:
        return draw_scene(self.config, self.split, self.seed, number)

    def content(self, row: Scene) -> tuple[str, Pixels]:
        return repr(row), picture(row)
