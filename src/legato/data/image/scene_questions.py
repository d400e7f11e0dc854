"""Questions about scenes with their answers, and statements about them that are true or false.

A question, or a statement, says nothing of its answer without the picture: yes and no, true and false are drawn by
a coin; a wrong shape is made of what is there (the kind of one, the colour of another), a wrong relation is the
opposite of one that holds, a wrong number is one that is right for something else in the scene. So whatever is said
is as often right as wrong.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from legato.data.image.scene_captions import (
    NUMBERS,
    OPPOSITES,
    PLACE_NAMES,
    RELATIONS,
    place_of,
    relates,
    relations_of,
    with_article,
)
from legato.data.image.scenes import COLOURS, SIZES, Scene, Shape, stream_of
from legato.data.image.shape_masks import KINDS

YES_NO: Final = ("yes", "no")
TRUE_FALSE: Final = ("true", "false")
OPTIONS: Final = 4  # of a question with several to choose from
_COLOURS: Final = tuple(COLOURS)
_NAMES: Final = tuple(name for row in PLACE_NAMES for name in row)


@dataclass(frozen=True)
class Question:
    """A question about a scene. `options` are four answers and the right one among them, or none of a yes or no."""

    sort: str
    text: str
    answer: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class Statement:
    """What is said of a scene, and whether it is `true` or `false`."""

    sort: str
    text: str
    label: str


def all_answers(most_shapes: int) -> tuple[str, ...]:
    """Every answer to a question about scenes of so many shapes at most."""
    return (*YES_NO, *KINDS, *_COLOURS, *SIZES, *NUMBERS[: most_shapes + 1])


def questions(scene: Scene) -> list[Question]:
    """One question of each sort that the scene allows, in an order that is drawn: the first is of any sort."""
    stream = stream_of(f"{scene.key}/questions")
    drawn = []
    for sort in stream.sample(tuple(_QUESTIONS), len(_QUESTIONS)):
        pair = _QUESTIONS[sort](stream, scene)
        if pair is not None:
            text, answer = pair
            drawn.append(Question(sort, text, answer, _options(stream, answer, scene.most_shapes)))
    return drawn


def statements(scene: Scene) -> list[Statement]:
    """One statement of each sort that the scene allows, in an order that is drawn."""
    stream = stream_of(f"{scene.key}/statements")
    drawn = []
    for sort in stream.sample(tuple(_STATEMENTS), len(_STATEMENTS)):
        right = stream.random() < 0.5
        text = _STATEMENTS[sort](stream, scene, right)
        if text is not None:
            drawn.append(Statement(sort, text, TRUE_FALSE[not right]))
    return drawn


def _options(stream: random.Random, answer: str, most_shapes: int) -> tuple[str, ...]:
    """Four answers of the answer's sort, in any order; none where there are not as many."""
    for pool in (KINDS, _COLOURS, NUMBERS[: max(OPTIONS, most_shapes + 1)]):
        if answer in pool:
            others = stream.sample([other for other in pool if other != answer], OPTIONS - 1)
            return tuple(stream.sample([answer, *others], OPTIONS))
    return ()


def _name(shape: Shape, scene: Scene) -> str:
    """`circle`, or `red circle` where there are others."""
    return shape.name if sum(shape.kind == other.kind for other in scene.shapes) > 1 else shape.kind


def _other(stream: random.Random, pool: Sequence[str], but: str) -> str:
    return stream.choice([word for word in pool if word != but])


def _absent(stream: random.Random, scene: Scene) -> tuple[str, str]:
    """Colour and kind of no shape, though where it can be of two: who looks for either alone will see it."""
    names = {shape.name for shape in scene.shapes}
    pairs = [(one.colour, other.kind) for one in scene.shapes for other in scene.shapes]
    mixed = [pair for pair in pairs if " ".join(pair) not in names]
    if mixed:
        return stream.choice(mixed)
    shape = stream.choice(scene.shapes)
    near = [(shape.colour, kind) for kind in KINDS] + [(colour, shape.kind) for colour in _COLOURS]
    return stream.choice([pair for pair in near if " ".join(pair) not in names])


def _existence(stream: random.Random, scene: Scene, right: bool) -> str:
    """What is there, or is not: `a red circle`, `a circle`, `a red shape`."""
    chosen = stream.choice(scene.shapes)
    form = stream.randrange(4)
    if form >= 2:
        return with_article(chosen.name if right else " ".join(_absent(stream, scene)))
    pool, word = ((KINDS, chosen.kind), (_COLOURS, chosen.colour))[form]
    if not right:
        there = {word for shape in scene.shapes for word in (shape.kind, shape.colour)}
        absent = [other for other in pool if other not in there]
        if not absent:  # nine shapes may have every colour there is
            return with_article(" ".join(_absent(stream, scene)))
        word = stream.choice(absent)
    return with_article(word if form == 0 else f"{word} shape")


def _relation(stream: random.Random, scene: Scene, right: bool) -> tuple[str, str, str] | None:
    """Two shapes and what is, or is not, between them: `circle`, `above`, `square`."""
    if len(scene.shapes) < 2:
        return None
    one, other = stream.sample(scene.shapes, 2)
    relation = stream.choice(relations_of(one, other))
    return _name(one, scene), relation if right else OPPOSITES[relation], _name(other, scene)


def _plural(words: str, count: int) -> str:
    if count == 1:
        return words
    return f"{words}es" if words.endswith("s") else f"{words}s"


Query = tuple[str, str]  # a question and its answer


def _ask_colour(stream: random.Random, scene: Scene) -> Query | None:
    single = [shape for shape in scene.shapes if _name(shape, scene) == shape.kind]
    if not single:
        return None
    shape = stream.choice(single)
    return f"what colour is the {shape.kind}?", shape.colour


def _ask_kind(stream: random.Random, scene: Scene) -> Query | None:
    colours = Counter(shape.colour for shape in scene.shapes)
    single = [shape for shape in scene.shapes if colours[shape.colour] == 1]
    if not single:
        return None
    shape = stream.choice(single)
    form = stream.choice(("what is the {} shape?", "which shape is {}?"))
    return form.format(shape.colour), shape.kind


def _ask_size(stream: random.Random, scene: Scene) -> Query:
    shape = stream.choice(scene.shapes)
    form = stream.choice(("what size is the {}?", "is the {} small or large?"))
    return form.format(_name(shape, scene)), shape.size


def _ask_place(stream: random.Random, scene: Scene) -> Query:
    shape = stream.choice(scene.shapes)
    if stream.random() < 0.5:
        return f"what is {place_of(shape)}?", shape.kind
    return f"what colour is the shape {place_of(shape)}?", shape.colour


def _ask_count(stream: random.Random, scene: Scene) -> Query:
    if stream.random() < 0.5:
        return "how many shapes are there?", NUMBERS[len(scene.shapes)]
    by_colour = stream.random() < 0.5
    there = [shape.colour if by_colour else shape.kind for shape in scene.shapes]
    counts = {word: there.count(word) for word in (_COLOURS if by_colour else KINDS)}
    # The number first and then of what, or nearly every answer would be zero or one.
    number = stream.choice(sorted(set(counts.values())))
    word = stream.choice([word for word in counts if counts[word] == number])
    what = f"{word} shapes" if by_colour else _plural(word, 2)
    return f"how many {what} are there?", NUMBERS[number]


def _ask_existence(stream: random.Random, scene: Scene) -> Query:
    right = stream.random() < 0.5
    return f"is there {_existence(stream, scene, right)}?", YES_NO[not right]


def _ask_relation(stream: random.Random, scene: Scene) -> Query | None:
    right = stream.random() < 0.5
    related = _relation(stream, scene, right)
    return None if related is None else ("is the {} {} the {}?".format(*related), YES_NO[not right])


def _ask_neighbour(stream: random.Random, scene: Scene) -> Query | None:
    """What is left of a shape, where there is one thing alone."""
    single = []
    for shape in scene.shapes:
        for relation in RELATIONS:
            there = [other for other in scene.shapes if relates(other, relation, shape)]
            if len(there) == 1:
                single.append((there[0], relation, shape))
    if not single:
        return None
    one, relation, shape = stream.choice(single)
    if stream.random() < 0.5:
        return f"what is {relation} the {_name(shape, scene)}?", one.kind
    return f"what colour is the shape {relation} the {_name(shape, scene)}?", one.colour


_QUESTIONS: Final[dict[str, Callable[[random.Random, Scene], Query | None]]] = {
    "colour": _ask_colour,
    "kind": _ask_kind,
    "size": _ask_size,
    "place": _ask_place,
    "count": _ask_count,
    "existence": _ask_existence,
    "relation": _ask_relation,
    "neighbour": _ask_neighbour,
}


def _state_colour(stream: random.Random, scene: Scene, right: bool) -> str | None:
    single = [shape for shape in scene.shapes if _name(shape, scene) == shape.kind]
    if not single:
        return None
    shape = stream.choice(single)
    return f"the {shape.kind} is {shape.colour if right else _other(stream, _COLOURS, shape.colour)}"


def _state_size(stream: random.Random, scene: Scene, right: bool) -> str:
    shape = stream.choice(scene.shapes)
    return f"the {_name(shape, scene)} is {shape.size if right else _other(stream, SIZES, shape.size)}"


def _state_place(stream: random.Random, scene: Scene, right: bool) -> str:
    shape = stream.choice(scene.shapes)
    place = place_of(shape)
    return f"the {_name(shape, scene)} is {place if right else _other(stream, _NAMES, place)}"


def _state_total(stream: random.Random, scene: Scene, right: bool) -> str | None:
    count = len(scene.shapes)
    others = [number for number in range(1, scene.most_shapes + 1) if number != count]
    if not others:  # it could only be true
        return None
    return _counted("shape", count if right else stream.choice(others))


def _counted(words: str, count: int) -> str:
    return f"there {'is' if count == 1 else 'are'} {NUMBERS[count]} {_plural(words, count)}"


def _state_count(stream: random.Random, scene: Scene, right: bool) -> str | None:
    """Two colours, or two kinds, of which there are not equally many: each with its own number, or the other's."""
    by_colour = stream.random() < 0.5
    counts = Counter(shape.colour if by_colour else shape.kind for shape in scene.shapes)
    pairs = [(word, other) for word in counts for other in counts if counts[word] != counts[other]]
    if not pairs:
        return None
    word, other = stream.choice(pairs)
    return _counted(f"{word} shape" if by_colour else word, counts[word if right else other])


def _state_existence(stream: random.Random, scene: Scene, right: bool) -> str:
    return f"there is {_existence(stream, scene, right)}"


def _state_relation(stream: random.Random, scene: Scene, right: bool) -> str | None:
    related = _relation(stream, scene, right)
    return None if related is None else "the {} is {} the {}".format(*related)


_STATEMENTS: Final[dict[str, Callable[[random.Random, Scene, bool], str | None]]] = {
    "colour": _state_colour,
    "size": _state_size,
    "place": _state_place,
    "total": _state_total,
    "count": _state_count,
    "existence": _state_existence,
    "relation": _state_relation,
}
