"""Errors that a person can act on.

Every mistake of the user's is a `LegatoError`: one line that says what is wrong, where, and what to
do about it. The command line prints that line and exits with code 2; anything else that escapes is
ours, and exits with code 1.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

LONGEST = 480  # characters in a message
ENDING = 160  # of those, the ones at its end, which say what to do
MATCHED = 200  # characters of a word that is compared with others, and how many others those are at most
COMPARED = 10_000
LISTED = 40  # names in a list of what there is
LISTED_LENGTH = 360  # characters of that list


class LegatoError(Exception):
    """Something the user can put right. The message is one line."""

    def __init__(self, message: str) -> None:
        line = " ".join(message.split())
        if len(line) > LONGEST:  # whoever wrote it should have used `brief`; the end says what to do
            line = f"{line[: LONGEST - ENDING - 3]} … {line[-ENDING:]}"
        super().__init__(line)


class ConfigError(LegatoError):
    """A setting that is unknown, of the wrong type, or out of range."""


class DataError(LegatoError):
    """A file or corpus that is missing, empty, unreadable or too small."""


class FolderError(LegatoError):
    """A model or run folder that is missing something, or holds something it should not."""


class CheckpointError(FolderError):
    """A checkpoint that is damaged or does not belong to this run."""


class DeviceError(LegatoError):
    """A device that this machine does not have, or that ran out of memory."""


class DivergenceError(LegatoError):
    """Training reached a loss or gradient that is not finite."""


def brief(value: Any, most: int = 60) -> str:
    """A value as a message shows it: on one line, and its beginning only where it is long.

    >>> brief("ab" * 50, 10), brief([1, 2])
    ('ababababa…', '[1, 2]')
    """
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    text = " ".join((value[: 10 * most] if isinstance(value, str) else str(value)).split())
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= most else text[: most - 1] + "…"


def suggest(word: str, known: Iterable[str]) -> str:
    """A clause that names the nearest known word, or lists what there is.

    >>> suggest("widht", ["width", "layers"])
    "did you mean 'width'?"
    """
    names = sorted(known)
    word = word[:MATCHED]
    near = difflib.get_close_matches(word, [name for name in names[:COMPARED] if len(name) <= MATCHED], n=1)
    if near:
        return f"did you mean '{brief(near[0])}'?"
    return f"there is {listed(names)}" if names else "there is none"


def listed(names: Iterable[Any], most: int = LISTED, *, quote: str = "") -> str:
    """Names for a message: the first ones, and how many more there are.

    >>> listed(["a", "b", "c"], 2, quote="'")
    "'a', 'b' and 1 more"
    """
    every = list(names)
    shown: list[str] = []
    room = LISTED_LENGTH
    for name in every[:most]:
        one = f"{quote}{brief(name, 40)}{quote}"
        if shown and len(one) > room:
            break
        shown.append(one)
        room -= len(one) + 2
    rest = len(every) - len(shown)
    return ", ".join(shown) + (f" and {rest:,} more" if rest else "")
