"""Tasks that are generated: small enough to train in a minute, sharp enough to tell models apart.

- `copy`, `reverse`, `sort`: the source's letters, as they are, backwards, in order;
- `brackets`: the beginning of a balanced string; the target closes what is open;
- `recall`: a letter, then `distance` letters of another alphabet, then `?`; the target is the first
  letter. A network that forgets within `distance` steps can only guess.
- `language`: English-like clauses of `length` words and their translation into an invented language that
  puts adjectives behind their noun and the verb at the end: a translation whose word order differs.

Rows are a pure function of (task, settings, split, seed). Each split draws from a stream of its own,
and a held-out row that training holds too is drawn again, so validation measures the rule and not
memory; where the space is too small for that (a few letters, short rows) repeats remain. More rows of
training go on from the fewer: a longer training set begins with the shorter one.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from legato.config import Section, validate
from legato.data.sources.files import SPLITS
from legato.errors import ConfigError, brief, suggest

TOY: Final = "toy:"  # what the names of toys begin with, as sources
LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
QUERY: Final = "?"
CLOSING: Final = {"(": ")", "[": "]", "{": "}"}
LONGEST: Final = 100_000  # letters of a row, and between two of them
MOST_ROWS: Final = 100_000_000
REDRAWS: Final = 50  # then the space is taken to be exhausted

ToyRow = tuple[str, str]


def _span(value: Any) -> tuple[int, int]:
    """`5` as (5, 5), `[3, 9]` as (3, 9)."""
    parts = list(value) if isinstance(value, (list, tuple)) else [value, value]
    try:
        low, high = (int(str(part)) for part in parts)
    except ValueError:
        raise ValueError("should be a whole number, or two as in [3,9]") from None
    if not 1 <= low <= high <= LONGEST:
        raise ValueError(f"should be from 1 to {LONGEST:,}, and the first of two not above the second")
    return low, high


Span = Annotated[int | tuple[int, int], BeforeValidator(_span)]


class ToyConfig(Section):
    """Sizes of a generated task. A span is one number, or [low, high] drawn for each row."""

    symbols: int = Field(8, ge=2, le=26, description="different letters")
    length: Span = Field((4, 12), description="of copy, reverse, sort, brackets and language")
    distance: Span = Field(20, description="of recall; of a span, every doubling is equally likely")
    count: int = Field(10_000, ge=1, le=MOST_ROWS, description="rows to train on")
    valid_count: int = Field(500, ge=1, le=MOST_ROWS, description="rows of validation, and of testing")

    def as_trained(self, toy: Mapping[str, Any]) -> tuple[ToyConfig, int]:
        """What a model was trained with, but for the settings that are given, and its seed.

        Rows that training has not seen are unseen under that seed alone. `toy` is what the model's folder says.
        """
        settings = {**toy.get("settings", {}), **self.model_dump(exclude_unset=True)}
        return validate(ToyConfig, settings), toy.get("seed", 0)


def toy_rows(name: str, config: ToyConfig, split: str, seed: int) -> list[ToyRow]:
    """Rows of (source, target), each a string of symbols with spaces between.

    >>> toy_rows("reverse", ToyConfig(length=3, count=1), "train", seed=0)
    [('g a f', 'f a g')]
    """
    if name not in _DRAW:
        raise ConfigError(f"there is no toy task '{brief(name)}'; {suggest(name, TOYS)}")
    if split not in SPLITS:
        raise ConfigError(f"a toy task has no split '{split}'; {suggest(split, SPLITS)}")
    draw = _DRAW[name]
    stream = _stream(name, "train", seed)
    train = [draw(stream, config) for _ in range(config.count)]
    if split == "train":
        return train
    seen = set(train)
    stream = _stream(name, split, seed)
    return [_unseen(draw, stream, config, seen) for _ in range(config.valid_count)]


def _stream(name: str, split: str, seed: int) -> random.Random:
    # Python's own hash() of a string differs from process to process.
    digest = hashlib.sha256(f"{name}/{split}/{seed}".encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "little"))


def _unseen(draw: Draw, stream: random.Random, config: ToyConfig, seen: set[ToyRow]) -> ToyRow:
    for _ in range(REDRAWS):
        row = draw(stream, config)
        if row not in seen:
            break
    return row


def _size(stream: random.Random, span: int | tuple[int, int]) -> int:
    return span if isinstance(span, int) else stream.randint(*span)


def _letters(stream: random.Random, config: ToyConfig) -> list[str]:
    return stream.choices(LETTERS[: config.symbols], k=_size(stream, config.length))


def _rearranged(order: Callable[[list[str]], Iterable[str]]) -> Draw:
    def draw(stream: random.Random, config: ToyConfig) -> ToyRow:
        letters = _letters(stream, config)
        return " ".join(letters), " ".join(order(letters))

    return draw


def _brackets(stream: random.Random, config: ToyConfig) -> ToyRow:
    length = _size(stream, config.length)
    prefix: list[str] = []
    still_open: list[str] = []
    for place in range(length):
        # The last bracket may not close the only open one: the target would be empty.
        must_open = not still_open or (place == length - 1 and len(still_open) == 1)
        if must_open or stream.random() < 0.5:
            still_open.append(stream.choice("([{"))
            prefix.append(still_open[-1])
        else:
            prefix.append(CLOSING[still_open.pop()])
    return " ".join(prefix), " ".join(CLOSING[bracket] for bracket in reversed(still_open))


def _recall(stream: random.Random, config: ToyConfig) -> ToyRow:
    letters = LETTERS[: config.symbols]
    remembered = stream.choice(letters)
    low, high = (config.distance,) * 2 if isinstance(config.distance, int) else config.distance
    # Every doubling as likely as any other: short ones teach what to do, long ones how long to do it.
    distance = min(high, int(low * ((high + 1) / low) ** stream.random()))
    return " ".join([remembered, *stream.choices(letters.upper(), k=distance), QUERY]), remembered


def _dictionary(words: str) -> dict[str, str]:
    """`dog hundo, cat kavi` as each word and its translation."""
    return dict(zip(words.replace(",", "").split()[::2], words.replace(",", "").split()[1::2], strict=True))


NOUNS: Final = _dictionary(
    "dog hundo, cat kavi, bird birdo, horse selu, child pikko, woman nare, man viro, tree arbo, house domi, "
    "river rivo, stone lapi, star stelo"
)
ADJECTIVES: Final = _dictionary(
    "big granda, small eta, old maljuna, young juna, red ruga, green verda, quiet sila, fast rapa"
)
VERBS: Final = _dictionary(
    "sees vidas, follows sekvas, likes amas, finds trovas, hears odas, paints pentas, carries portas, "
    "forgets forgesas"
)
AND: Final = ("and", "kaj")
MOST_ADJECTIVES: Final = 3  # of one noun


def _language(stream: random.Random, config: ToyConfig) -> ToyRow:
    length = max(3, _size(stream, config.length))
    # A clause has 3 words and up to 6 adjectives; all but the first cost an "and".
    clauses = stream.randint(-(-(length + 1) // 10), (length + 1) // 4)
    adjectives = [0] * (2 * clauses)
    for _ in range(length + 1 - 4 * clauses):
        free = [noun for noun, count in enumerate(adjectives) if count < MOST_ADJECTIVES]
        adjectives[stream.choice(free)] += 1
    source: list[str] = []
    target: list[str] = []
    for clause in range(clauses):
        if clause:
            source.append(AND[0])
            target.append(AND[1])
        verb = stream.choice(list(VERBS))
        for side in (0, 1):
            noun = stream.choice(list(NOUNS))
            said = stream.sample(list(ADJECTIVES), adjectives[2 * clause + side])
            source += [*said, noun] if side else [*said, noun, verb]
            target += [NOUNS[noun], *(ADJECTIVES[word] for word in said)]
        target.append(VERBS[verb])
    return " ".join(source), " ".join(target)


Draw = Callable[[random.Random, ToyConfig], ToyRow]
_DRAW: Final[dict[str, Draw]] = {
    "copy": _rearranged(list),
    "reverse": _rearranged(reversed),
    "sort": _rearranged(sorted),
    "brackets": _brackets,
    "recall": _recall,
    "language": _language,
}
TOYS: Final = tuple(_DRAW)
TOY_SOURCES: Final = tuple(f"{TOY}{name}" for name in TOYS)
