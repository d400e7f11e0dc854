"""Errors that a person can act on.

Every mistake of the user's is a `LegatoError`: one line that says what is wrong, where, and what to
do about it. The command line prints that line and exits with code 2; anything else that escapes is
ours, and exits with code 1.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

LONGEST = 2000  # characters in a message
LISTED = 40  # names in a list of what there is


class LegatoError(Exception):
    """Something the user can put right. The message is one line."""

    def __init__(self, message: str) -> None:
        line = " ".join(message.split())
        if len(line) > LONGEST:  # whoever wrote it should have used `brief`; the end says what to do
            line = f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}"
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


class NotFiniteError(LegatoError):
    """A model whose weights or answers are not finite numbers."""


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
    near = difflib.get_close_matches(word[:200], names, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{brief(near[0])}'?"
    more = f" and {len(names) - LISTED:,} more" if len(names) > LISTED else ""
    return "there is " + ", ".join(brief(name) for name in names[:LISTED]) + more if names else "there is none"
