"""Captions of scenes: five true descriptions of each, from a small grammar.

They speak of the same shapes, in the order in which one sees them (the large ones first, then as one reads), so that
what a caption says follows from the picture; how it says it is drawn. Lower case without punctuation, as captions are
scored.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from legato.data.image.scenes import Scene, Shape, stream_of

CAPTIONS: Final = 5  # of a scene
NUMBERS: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
OPPOSITES: Final = {"above": "below", "below": "above", "left of": "right of", "right of": "left of"}
RELATIONS: Final = tuple(OPPOSITES)
PLACE_NAMES: Final = (
    ("at the top left", "at the top centre", "at the top right"),
    ("at the centre left", "in the centre", "at the centre right"),
    ("at the bottom left", "at the bottom centre", "at the bottom right"),
)
_SYNONYMS: Final = {
    "large": ("large", "big"),
    "small": ("small", "little"),
    "above": ("above", "over"),
    "below": ("below", "under"),
    "left of": ("left of", "to the left of"),
    "right of": ("right of", "to the right of"),
    "in the centre": ("in the centre", "in the middle"),
    "at the top left": ("at the top left", "in the top left corner"),
    "at the top right": ("at the top right", "in the top right corner"),
    "at the bottom left": ("at the bottom left", "in the bottom left corner"),
    "at the bottom right": ("at the bottom right", "in the bottom right corner"),
}
_SIZED: Final = 0.7  # how often a shape's size is said


def relates(one: Shape, relation: str, other: Shape) -> bool:
    """Whether one shape is above, below, left of or right of another: in another row, or column, of places."""
    axis = 0 if relation in ("above", "below") else 1
    step = other.place[axis] - one.place[axis]
    return step > 0 if relation in ("above", "left of") else step < 0


def relations_of(one: Shape, other: Shape) -> list[str]:
    """One or two of them: no two shapes have one place."""
    return [relation for relation in RELATIONS if relates(one, relation, other)]


def place_of(shape: Shape) -> str:
    """`at the top left`"""
    row, column = shape.place
    return PLACE_NAMES[row][column]


def with_article(words: str) -> str:
    """`an orange circle`"""
    return f"an {words}" if words.startswith("o") else f"a {words}"


def captions(scene: Scene) -> list[str]:
    """Five different ones.

    >>> from legato.data.image.scenes import Scenes, ScenesConfig
    >>> captions(Scenes(ScenesConfig(), "train", seed=0)[0])[0]
    'a black cross right of a little purple star'
    """
    stream = stream_of(f"{scene.key}/captions")
    seen = sorted(scene.shapes, key=lambda shape: (shape.size != "large", shape.place))
    forms = _FORMS[min(len(seen), len(_FORMS)) - 1]
    texts: list[str] = []
    for form in stream.sample(forms, CAPTIONS):
        text = form(stream, seen)
        while text in texts:
            text = form(stream, seen)
        texts.append(text)
    return texts


def _said(stream: random.Random, words: str) -> str:
    return stream.choice(_SYNONYMS.get(words, (words,)))


def _shape(stream: random.Random, shape: Shape) -> str:
    """`a big red circle`, `a red circle`"""
    size = f"{_said(stream, shape.size)} " if stream.random() < _SIZED else ""
    return with_article(f"{size}{shape.name}")


def _placed(stream: random.Random, shape: Shape) -> str:
    return f"{_shape(stream, shape)} {_said(stream, place_of(shape))}"


def _related(stream: random.Random, one: Shape, other: Shape) -> str:
    relation = _said(stream, stream.choice(relations_of(one, other)))
    return f"{_shape(stream, one)} {relation} {_shape(stream, other)}"


def _listed(stream: random.Random, shapes: list[Shape]) -> str:
    return " and ".join(_shape(stream, shape) for shape in shapes)


Form = Callable[[random.Random, list[Shape]], str]
# For one shape, for two, and for more; of the latter the first three are spoken of.
_FORMS: Final[tuple[list[Form], ...]] = (
    [
        lambda stream, shapes: _placed(stream, shapes[0]),
        lambda stream, shapes: f"there is {_placed(stream, shapes[0])}",
        lambda stream, shapes: f"a picture of {_shape(stream, shapes[0])}",
        lambda stream, shapes: f"the picture shows {_placed(stream, shapes[0])}",
        lambda stream, shapes: f"{with_article(shapes[0].name)} that is {_said(stream, shapes[0].size)}",
        lambda stream, shapes: f"one shape {_said(stream, place_of(shapes[0]))} which is {_shape(stream, shapes[0])}",
    ],
    [
        lambda stream, shapes: _related(stream, shapes[0], shapes[1]),
        lambda stream, shapes: _related(stream, shapes[1], shapes[0]),
        lambda stream, shapes: f"there is {_related(stream, shapes[0], shapes[1])}",
        lambda stream, shapes: f"a picture of {_listed(stream, shapes)}",
        lambda stream, shapes: f"{_placed(stream, shapes[0])} and {_placed(stream, shapes[1])}",
        lambda stream, shapes: f"two shapes with {_related(stream, shapes[0], shapes[1])}",
    ],
    [
        lambda stream, shapes: f"{_related(stream, *shapes[:2])} and {_placed(stream, shapes[2])}",
        lambda stream, shapes: f"{_shape(stream, shapes[0])} and {_related(stream, *shapes[1:3])}",
        lambda stream, shapes: f"there is {_related(stream, *shapes[:2])} and {_shape(stream, shapes[2])}",
        lambda stream, shapes: f"a picture of {_listed(stream, shapes[:3])}",
        lambda stream, shapes: f"{NUMBERS[len(shapes)]} shapes with {_related(stream, *shapes[:2])}",
        lambda stream, shapes: f"there are {NUMBERS[len(shapes)]} shapes and one is {_placed(stream, shapes[0])}",
    ],
)
