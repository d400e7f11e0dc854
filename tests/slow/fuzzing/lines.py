"""Damage to text: its lines, its columns, its letters, its encoding."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from fuzzing.values import NUMBERS, TEXTS

LETTERS: Final = [
    *("\t", '"', "'", ",", ";", "|", "\r", "\x00", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\ufeff", "\u202e"),
    *(
        "\ufffd",
        "\u0301" * 200,
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "(",
        ")",
        "[",
        "{",
        "{}",
        "<",
        "%",
        "\\",
    ),
    *("[MASK]", "<mask>", "<eos>", "<unk>", "</s>", ">>xx<<", "-DOCSTART-", "#"),
]


def _at(lines: list[str], draw: random.Random) -> int:
    return draw.randrange(len(lines))


def _delete(lines: list[str], draw: random.Random) -> list[str]:
    kept = draw.choice([0.0, 0.1, 0.5, 0.9])
    return [line for line in lines if draw.random() < kept]


def _double(lines: list[str], draw: random.Random) -> list[str]:
    place = _at(lines, draw)
    return [*lines[:place], *[lines[place]] * draw.choice([2, 50]), *lines[place + 1 :]]


def _swap(lines: list[str], draw: random.Random) -> list[str]:
    return draw.sample(lines, len(lines))


def _blank(lines: list[str], draw: random.Random) -> list[str]:
    place = _at(lines, draw)
    return [*lines[:place], draw.choice(["", "", " ", "\t", "\u3000"]), *lines[place + draw.randrange(2) :]]


def _join(lines: list[str], draw: random.Random) -> list[str]:
    place = _at(lines, draw)
    return [*lines[:place], draw.choice(["", " ", "\t", "\r"]).join(lines[place : place + 2]), *lines[place + 2 :]]


def _column(lines: list[str], draw: random.Random) -> list[str]:
    """A field of one line: gone, twice, another's, or something else."""
    place = _at(lines, draw)
    separator = max("\t, ", key=lines[place].count)
    fields = lines[place].split(separator)
    which = draw.randrange(len(fields))
    kind = draw.randrange(5)
    if kind == 0:
        del fields[which]
    elif kind == 1:
        fields.insert(which, fields[which])
    elif kind == 2:
        fields[which] = draw.choice(lines[_at(lines, draw)].split(separator))
    elif kind == 3:
        fields[which] = str(draw.choice(NUMBERS))
    else:
        fields[which] = draw.choice(TEXTS)
    return [*lines[:place], separator.join(fields), *lines[place + 1 :]]


def _every_column(lines: list[str], draw: random.Random) -> list[str]:
    """The same field of every line becomes one thing."""
    separator = max("\t, ", key="".join(lines).count)
    which, made = draw.randrange(3), draw.choice(["", "x", "1", "0.5", "nan", "-1", str(10**25), "O", "B-X", "I-X"])
    rows = [line.split(separator) for line in lines]
    return [separator.join([*row[:which], made, *row[which + 1 :]]) if len(row) > which else made for row in rows]


def _letter(lines: list[str], draw: random.Random) -> list[str]:
    place = _at(lines, draw)
    line, cut = lines[place], draw.randrange(len(lines[place]) + 1)
    return [*lines[:place], line[:cut] + draw.choice(LETTERS) + line[cut:], *lines[place + 1 :]]


def _huge(lines: list[str], draw: random.Random) -> list[str]:
    place = _at(lines, draw)
    word = draw.choice(["a", "ab", "狗", "(", "1", "a.", "a b "]) * draw.choice([300, 20_000, 200_000])
    return [*lines[:place], draw.choice([word, lines[place] + word, word + " " + lines[place]]), *lines[place + 1 :]]


def _line(lines: list[str], draw: random.Random) -> list[str]:
    return [*lines[: (place := _at(lines, draw))], draw.choice(TEXTS), *lines[place + draw.randrange(2) :]]


def _many(lines: list[str], draw: random.Random) -> list[str]:
    return lines * draw.choice([3, 40])


CHANGES: Final[dict[str, Callable[[list[str], random.Random], list[str]]]] = {
    "delete": _delete,
    "double": _double,
    "swap": _swap,
    "blank": _blank,
    "join": _join,
    "column": _column,
    "every-column": _every_column,
    "letter": _letter,
    "huge": _huge,
    "line": _line,
    "many": _many,
}
ENCODINGS: Final = ("utf-16", "utf-16-be", "utf-32", "utf-8-sig", "latin-1", "shift-jis")


def change_text(text: str, kind: str, draw: random.Random) -> bytes:
    """The text with one change."""
    if kind == "encoding":
        return ("é" + text).encode(draw.choice(ENCODINGS), "replace")
    lines = CHANGES[kind](text.split("\n"), draw)
    return draw.choice(["\n", "\n", "\n", "\r\n", "\r"]).join(lines).encode("utf-8", "surrogatepass")


KINDS: Final = (*CHANGES, "encoding")
