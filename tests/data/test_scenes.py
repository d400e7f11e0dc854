"""Scenes that are made: boxes that fit, words that are true of them, nothing that words or one frame give away."""

from __future__ import annotations

import hashlib
import pickle
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from legato.config import validate
from legato.data.image.scene_captions import CAPTIONS, NUMBERS, captions
from legato.data.image.scene_clips import DIRECTIONS, Clips
from legato.data.image.scene_questions import all_answers, questions, statements
from legato.data.image.scenes import COLOURS, Scene, Scenes, ScenesConfig, picture
from legato.data.image.shape_masks import KINDS
from legato.errors import ConfigError

FEW = ScenesConfig(count=400, valid_count=100, test_count=100)
KIND = "|".join(KINDS)
COLOUR = "|".join(COLOURS)
NUMBER = "|".join(NUMBERS)
RELATION = "above|over|below|under|(?:to the )?left of|(?:to the )?right of"
PLACE = (
    "(?:at the|in the) (?:(?:top|bottom) (?:left|centre|right)|centre left|centre right|centre|middle)(?: corner)?"
    # The longest first, or "centre left" would be read as "centre".
)


def scenes(split: str = "train", seed: int = 0, **settings: Any) -> Scenes:
    return Scenes(validate(ScenesConfig, {**FEW.model_dump(), **settings}), split, seed)


# What is there, worked out from boxes and pixels and not from what the scene says of itself.


@dataclass(frozen=True)
class Fact:
    kind: str
    colour: str
    size: str
    row: int
    column: int


def nearest_colour(pixel: Any) -> str:
    return min(COLOURS, key=lambda name: int(((np.array(COLOURS[name]) - pixel) ** 2).sum()))


def shape_pixels(scene: Scene, number: int) -> Any:
    """The pixels (S, S) that are otherwise without this shape."""
    others = tuple(shape for place, shape in enumerate(scene.shapes) if place != number)
    return (picture(scene) != picture(replace(scene, shapes=others))).any(-1)


def facts_of(scene: Scene) -> list[Fact]:
    facts = []
    pixels, empty = picture(scene).astype(int), picture(replace(scene, shapes=())).astype(int)
    for shape in scene.shapes:
        left, top, right, bottom = shape.box
        difference = abs(pixels - empty)[top:bottom, left:right].sum(-1).ravel()
        colour = nearest_colour(pixels[top:bottom, left:right].reshape(-1, 3)[difference.argmax()])
        size = "large" if max(right - left, bottom - top) > 0.21 * scene.size else "small"
        row, column = (int(1.5 * (low + high) / scene.size) for low, high in ((top, bottom), (left, right)))
        facts.append(Fact(shape.kind, colour, size, row, column))
    return facts


def the(facts: Iterable[Fact], words: str) -> Fact:
    """The one shape that `red circle` or `circle` names."""
    named = [fact for fact in facts if words in (fact.kind, f"{fact.colour} {fact.kind}")]
    assert len(named) == 1, words
    return named[0]


def stands(one: Fact, relation: str, other: Fact) -> bool:
    word = relation.removeprefix("to the ").removesuffix(" of")
    return {
        "above": one.row < other.row,
        "over": one.row < other.row,
        "below": one.row > other.row,
        "under": one.row > other.row,
        "left": one.column < other.column,
        "right": one.column > other.column,
    }[word]


def lies(fact: Fact, place: str) -> bool:
    words = set(place.split())
    row = 0 if "top" in words else 2 if "bottom" in words else 1
    column = 0 if "left" in words else 2 if "right" in words else 1
    return (fact.row, fact.column) == (row, column)


def count(facts: Sequence[Fact], words: str) -> int:
    """How many `red shapes`, `circles`, `shapes` there are."""
    singular = re.sub(r"(?<!s)s$", "", re.sub("crosses$", "cross", words))
    return sum(all(word in ("shape", fact.colour, fact.kind) for word in singular.split()) for fact in facts)


# Pictures and boxes.


@pytest.mark.parametrize("size", [32, 64, 100])
def test_a_box_holds_all_that_its_shape_changes_and_no_more(size: int) -> None:
    for scene in scenes(size=size)[:60]:
        for number, shape in enumerate(scene.shapes):
            rows, columns = shape_pixels(scene, number).nonzero()
            assert shape.box == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)


def test_shapes_lie_inside_the_picture_and_never_on_each_other() -> None:
    for scene in scenes(most_shapes=9)[:100]:
        taken = np.zeros((64, 64), int)
        for shape in scene.shapes:
            left, top, right, bottom = shape.box
            assert 0 <= left < right <= 64
            assert 0 <= top < bottom <= 64
            taken[top:bottom, left:right] += 1
        assert taken.max() == 1


def test_colours_sizes_and_places_can_be_seen() -> None:
    for scene in scenes(most_shapes=9)[:200]:
        assert facts_of(scene) == [Fact(shape.kind, shape.colour, shape.size, *shape.place) for shape in scene.shapes]


def test_kinds_look_different_from_each_other() -> None:
    scene = scenes(most_shapes=1)[0]
    shape = replace(scene.shapes[0], x=32.0, y=32.0, radius=4.5, rgb=(0, 0, 0))
    for radius in (4.5, 10.0):
        drawn = [
            picture(replace(scene, shapes=(replace(shape, kind=kind, radius=radius),))).astype(int) for kind in KINDS
        ]
        differences = [abs(one - other).sum() for number, one in enumerate(drawn) for other in drawn[:number]]
        assert min(differences) > 1000 * radius


def test_edges_are_smooth() -> None:
    scene = scenes(most_shapes=1)[0]
    circle = replace(scene.shapes[0], kind="circle", x=32.0, y=32.0, radius=10.0, rgb=(255, 255, 255))
    covered = (picture(replace(scene, shapes=(circle,), ground=(7, 7, 7)))[..., 0].astype(float) / 255).sum()
    empty = picture(replace(scene, shapes=(), ground=(7, 7, 7)))[..., 0] / 255
    covered -= empty.sum() * (1 - np.pi * 100 / 64**2)
    assert covered == pytest.approx(np.pi * 100, rel=0.01)


def test_the_same_seed_gives_the_same_bytes_in_another_process() -> None:
    code = (
        "import hashlib; from legato.data.image.scenes import *;"
        "from legato.data.image.scene_captions import captions;"
        "row = Scenes(ScenesConfig(), 'valid', 3)[17];"
        "print(hashlib.sha256(picture(row).tobytes() + repr((row, captions(row))).encode()).hexdigest())"
    )
    row = Scenes(ScenesConfig(), "valid", 3)[17]
    here = hashlib.sha256(picture(row).tobytes() + repr((row, captions(row))).encode()).hexdigest()
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert there.strip() == here


def test_what_is_drawn_stays_as_it_is_for_ever() -> None:
    # Runs that go on compare digests: whoever changes what is drawn changes VERSION and these.
    assert Scenes(ScenesConfig(), "train", 0).digest()[:16] == "359e27fa56fcc08f"
    assert Clips(ScenesConfig(), "train", 0).digest()[:16] == "e52745bf750520ff"


def test_a_scene_is_the_same_whatever_else_is_drawn() -> None:
    many, few = scenes(count=1000), scenes(count=30)
    assert [many[number] for number in (29, 3, 11)] == [list(few)[number] for number in (29, 3, 11)]
    assert few[-1] == few[29]
    assert few[5:8] == [few[5], few[6], few[7]]
    with pytest.raises(IndexError):
        few[30]
    assert pickle.loads(pickle.dumps(few))[7] == few[7]


def test_a_larger_picture_shows_the_same_scene() -> None:
    for small, large in zip(scenes()[:50], scenes(size=128)[:50], strict=True):
        assert facts_of(small) == facts_of(large)
        for one, other in zip(small.shapes, large.shapes, strict=True):
            assert np.abs(np.array(one.box) * 2 - np.array(other.box)).max() <= 2


@pytest.mark.slow
def test_no_scene_of_one_split_is_one_of_another_whatever_the_seed() -> None:
    def contents(split: str, seed: int) -> set[Any]:
        rows = Scenes(ScenesConfig(count=4000, valid_count=4000, test_count=4000, most_shapes=1), split, seed)
        return {tuple((shape.name, shape.x, shape.y, shape.radius) for shape in row.shapes) for row in rows}

    train = contents("train", 0) | contents("train", 1)
    valid, test = contents("valid", 0) | contents("valid", 1), contents("test", 0)
    assert not train & valid
    assert not train & test
    assert not valid & test
    assert contents("train", 0) != contents("train", 1)


def test_a_digest_tells_data_apart() -> None:
    one = scenes().digest()
    assert one == scenes().digest() == scenes(frames=5, valid_count=7).digest()
    others = [scenes("valid"), scenes(seed=1), scenes(size=65), scenes(most_shapes=3), scenes(count=401)]
    assert len({one, *(other.digest() for other in others)}) == 6


def test_a_split_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"toy:scenes has no split 'trian'.*train"):
        scenes("trian")
    with pytest.raises(ConfigError, match="most_shapes"):
        scenes(most_shapes=10)


def test_settings_of_a_model_are_kept_but_for_those_given() -> None:
    trained = {"settings": {"size": 96, "most_shapes": 2}, "seed": 5}
    config, seed = validate(ScenesConfig, {"test_count": 9}).as_trained(trained)
    assert (config.size, config.most_shapes, config.test_count, seed) == (96, 2, 9, 5)


@pytest.mark.slow
def test_a_scene_of_one_shape_has_a_class_and_classes_are_equally_frequent() -> None:
    rows = scenes(most_shapes=1, count=4000)
    assert all(len(row.shapes) == 1 for row in rows[:100])
    for counts in (Counter(row.largest.kind for row in rows), Counter(row.largest.colour for row in rows)):
        assert len(counts) == 8
        assert min(counts.values()) > 420
        assert max(counts.values()) < 580
    full = next(row for row in scenes() if len({shape.radius for shape in row.shapes}) == 4)
    assert full.largest.radius == max(shape.radius for shape in full.shapes)


# Words.


def check_caption(text: str, facts: list[Fact]) -> None:
    """Each shape, its size, where it is to the next, its place, how many there are; and no word is left over."""
    noun = rf"an? (?:(large|big|small|little) )?({COLOUR}) ({KIND})(?: that is (large|big|small|little))?"
    named = []
    for match in re.finditer(noun, text):
        size, colour, kind, behind = match.groups()
        fact = the(facts, f"{colour} {kind}")
        named.append((match.start(), match.end(), fact))
        for word in (size, behind):
            assert word is None or {"big": "large", "little": "small"}.get(word, word) == fact.size
    assert named
    for number, (_, end, fact) in enumerate(named):
        if place := re.match(f" ({PLACE})", text[end:]):
            assert lies(fact, place[1])
        if relation := re.match(f" ({RELATION}) (?=an? )", text[end:]):
            assert named[number + 1][0] == end + relation.end()
            assert stands(fact, relation[1], named[number + 1][2])
    if total := re.search(rf"\b({NUMBER}) shapes?\b", text):
        assert NUMBERS.index(total[1]) == len(facts)
    if place := re.match(f"one shape ({PLACE}) which is ", text):
        assert lies(facts[0], place[1])
    rest = re.sub("|".join((noun, PLACE, f"(?:{RELATION})", rf"(?:{NUMBER}) shapes?")), "", text)
    assert set(rest.split()) <= {
        *["there", "is", "are", "a", "picture", "of", "the", "shows", "and", "with", "which", "one"]
    }, rest
    assert re.search(r"\ba (?=orange)|\ban (?!orange)", text) is None


@pytest.mark.parametrize("most_shapes", [1, 2, 4, 9])
def test_captions_are_true_and_five_different_ones(most_shapes: int) -> None:
    for scene in scenes(most_shapes=most_shapes)[:250]:
        texts = captions(scene)
        assert len(set(texts)) == len(texts) == CAPTIONS
        assert texts == captions(scene)
        facts = facts_of(scene)
        for text in texts:
            check_caption(text, facts)


def test_captions_have_a_small_vocabulary_that_is_used() -> None:
    words = Counter(word for scene in scenes() for text in captions(scene) for word in text.split())
    assert 45 <= len(words) <= 65
    assert min(words.values()) >= 10


def answer_of(text: str, facts: list[Fact]) -> str:
    """What is true, from the words of the question alone."""

    def one_of(found: Iterable[Fact]) -> Fact:
        (fact,) = found
        return fact

    rules: list[tuple[str, Callable[..., str]]] = [
        (rf"what colour is the ({KIND})\?", lambda kind: the(facts, kind).colour),
        (
            rf"(?:what is the ({COLOUR}) shape|which shape is ({COLOUR}))\?",
            lambda one, other: one_of(fact for fact in facts if fact.colour == (one or other)).kind,
        ),
        (
            r"(?:what size is the (.+)|is the (.+) small or large)\?",
            lambda one, other: the(facts, one or other).size,
        ),
        (rf"what is ({PLACE})\?", lambda place: one_of(fact for fact in facts if lies(fact, place)).kind),
        (
            rf"what colour is the shape ({PLACE})\?",
            lambda place: one_of(fact for fact in facts if lies(fact, place)).colour,
        ),
        (r"how many (.+) are there\?", lambda words: NUMBERS[count(facts, words)]),
        (r"is there an? (.+)\?", lambda words: "yes" if count(facts, words) else "no"),
        (
            rf"is the (.+) ({RELATION}) the (.+)\?",
            lambda one, relation, other: "yes" if stands(the(facts, one), relation, the(facts, other)) else "no",
        ),
        (
            rf"what is ({RELATION}) the (.+)\?",
            lambda relation, other: one_of(f for f in facts if stands(f, relation, the(facts, other))).kind,
        ),
        (
            rf"what colour is the shape ({RELATION}) the (.+)\?",
            lambda relation, other: one_of(f for f in facts if stands(f, relation, the(facts, other))).colour,
        ),
    ]
    answers = {rule(*match.groups()) for pattern, rule in rules if (match := re.fullmatch(pattern, text))}
    assert len(answers) == 1, text
    return answers.pop()


@pytest.mark.parametrize("most_shapes", [1, 2, 4, 9])
def test_answers_are_right_and_among_four_options(most_shapes: int) -> None:
    known = set(all_answers(most_shapes))
    for scene in scenes(most_shapes=most_shapes)[:250]:
        facts = facts_of(scene)
        drawn = questions(scene)
        assert len(drawn) >= 4
        assert drawn == questions(scene)
        for question in drawn:
            assert question.answer == answer_of(question.text, facts)
            assert question.answer in known
            if question.options:
                assert question.answer in question.options
                assert len(set(question.options)) == 4
            else:
                assert question.answer in ("yes", "no", "small", "large")


@pytest.mark.slow
def test_questions_of_every_sort_are_asked_and_answers_are_balanced() -> None:
    drawn = [question for scene in scenes(count=2000) for question in questions(scene)]
    sorts = Counter(question.sort for question in drawn)
    assert len(sorts) == 8
    assert min(sorts.values()) > 1000
    answers = Counter(question.answer for question in drawn)
    assert set(answers) == set(all_answers(4))
    assert len(answers) == 25
    for sort in ("existence", "relation"):
        here = [question.answer for question in drawn if question.sort == sort]
        assert 0.46 < here.count("yes") / len(here) < 0.54
    for pool in (KINDS, tuple(COLOURS), ("small", "large")):
        assert max(answers[word] for word in pool) < 1.35 * min(answers[word] for word in pool)
    places = Counter(question.options.index(question.answer) for question in drawn if question.options)
    assert max(places.values()) < 1.1 * min(places.values())
    firsts = Counter(questions(scene)[0].sort for scene in scenes())
    assert len(firsts) == 8


def is_true(text: str, facts: list[Fact]) -> bool:
    if match := re.fullmatch(rf"there (is|are) ({NUMBER}) (.+)", text):
        number = NUMBERS.index(match[2])
        assert (match[1] == "is") == (number == 1) == (match[3] == "cross" or not match[3].endswith("s"))
        return count(facts, match[3]) == number
    if match := re.fullmatch(r"there is an? (.+)", text):
        return count(facts, match[1]) > 0
    if match := re.fullmatch(f"the (.+) is ({RELATION}) the (.+)", text):
        return stands(the(facts, match[1]), match[2], the(facts, match[3]))
    if match := re.fullmatch(f"the (.+) is ({PLACE})", text):
        return lies(the(facts, match[1]), match[2])
    match = re.fullmatch(f"the (.+) is (small|large|{COLOUR})", text)
    assert match, text
    fact = the(facts, match[1])
    return match[2] in (fact.size, fact.colour)


@pytest.mark.parametrize("most_shapes", [1, 2, 4, 9])
def test_statements_are_true_or_false_as_they_say(most_shapes: int) -> None:
    for scene in scenes(most_shapes=most_shapes)[:250]:
        facts = facts_of(scene)
        drawn = statements(scene)
        assert len(drawn) >= 3
        assert drawn == statements(scene)
        for statement in drawn:
            assert statement.label == ("true" if is_true(statement.text, facts) else "false")


@pytest.mark.slow
@pytest.mark.parametrize("most_shapes", [1, 4])
def test_words_alone_say_nothing_of_what_is_true(most_shapes: int) -> None:
    drawn = [
        (sort, re.sub(f"{KIND}|{COLOUR}", "_", text.replace(" an ", " a ")), label)
        for scene in scenes(count=4000, most_shapes=most_shapes)
        for sort, text, label in [
            *((row.sort, row.text, row.label == "true") for row in statements(scene)),
            *((row.sort, row.text, row.answer == "yes") for row in questions(scene) if row.answer in ("yes", "no")),
        ]
    ]
    by_text = defaultdict(list)
    for sort, text, label in drawn:
        by_text[sort, text].append(label)
    assert len({sort for sort, _ in by_text}) == (4 if most_shapes == 1 else 7)
    for key, labels in by_text.items():
        # Four standard errors of a coin's mean.
        assert abs(sum(labels) / len(labels) - 0.5) < 2 / len(labels) ** 0.5, key


# Clips.


def test_a_clip_moves_as_it_says() -> None:
    for clip in Clips(ScenesConfig(size=64), "train", 0)[:200]:
        assert clip.frames.shape == (8, 64, 64, 3)
        assert clip.frames.dtype == np.uint8
        steps = (np.diff(np.array(clip.path), axis=0) + 32) % 64 - 32  # the shorter way around
        if clip.direction in ("clockwise", "anticlockwise"):
            turns = np.cross(np.pad(steps[:-1], ((0, 0), (0, 1))), np.pad(steps[1:], ((0, 0), (0, 1))))[:, 2]
            assert (np.median(turns) > 0) == (clip.direction == "clockwise")
        else:
            right, down = steps.sum(0)
            moved = {"left": (-right, down), "right": (right, down), "up": (-down, right), "down": (down, right)}
            along, across = moved[clip.direction]
            assert along >= 16
            assert across == 0


def test_the_shape_is_where_the_path_says_and_wraps_around() -> None:
    wrapped = 0
    for clip in Clips(ScenesConfig(), "train", 0)[:60]:
        ground = np.median(clip.frames.reshape(-1, 3), axis=0)
        for frame, (x, y) in zip(clip.frames, clip.path, strict=True):
            centred = np.roll(frame, (32 - int(y), 32 - int(x)), axis=(0, 1))
            rows, columns = (abs(centred - ground).max(-1) > 25).nonzero()
            assert rows.min() >= 20
            assert rows.max() <= 44
            assert columns.min() >= 20
            assert columns.max() <= 44
            wrapped += not (11 <= x <= 53 and 11 <= y <= 53)
    assert wrapped > 50


@pytest.mark.slow
def test_no_single_frame_tells_where_a_shape_moves() -> None:
    clips = Clips(ScenesConfig(size=32, count=3000), "train", 0)[:]
    directions = Counter(clip.direction for clip in clips)
    assert set(directions) == set(DIRECTIONS)
    assert min(directions.values()) > 400
    for frame in (0, 4, 7):
        for direction in DIRECTIONS:
            places = np.array([clip.path[frame] for clip in clips if clip.direction == direction])
            quarters, _, _ = np.histogram2d(*places.T, bins=4, range=((0, 32), (0, 32)))
            mean = len(places) / 16
            # Chi-squared of 15 degrees of freedom: above 45 once in 10,000 times where all are equally likely.
            assert ((quarters - mean) ** 2 / mean).sum() < 45
    for trait in ("kind", "colour", "size"):
        pairs = Counter((clip.direction, vars(clip)[trait]) for clip in clips)
        values = len({value for _, value in pairs})
        assert max(pairs.values()) < 1.5 * len(clips) / 6 / values


def test_three_frames_tell_both_ways_of_turning_apart() -> None:
    for clip in Clips(ScenesConfig(frames=3), "train", 0)[:300]:
        if clip.direction in ("clockwise", "anticlockwise"):
            one, other = (np.diff(np.array(clip.path), axis=0) + 32) % 64 - 32
            assert (one[0] * other[1] - one[1] * other[0] > 0) == (clip.direction == "clockwise")


@pytest.mark.slow
def test_clips_are_the_same_whatever_else_is_drawn_and_differ_between_splits() -> None:
    few, many = (Clips(ScenesConfig(count=count), "train", 0) for count in (20, 2000))
    assert (few[13].frames == many[13].frames).all()
    paths = [{clip.path for clip in Clips(FEW, split, 0)} for split in ("train", "valid", "test")]
    assert not paths[0] & paths[1]
    assert not paths[0] & paths[2]
    assert not paths[1] & paths[2]
    assert few.digest() != many.digest() != Clips(ScenesConfig(count=2000, frames=9), "train", 0).digest()
