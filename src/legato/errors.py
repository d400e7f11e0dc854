"""Errors that a person can act on.

Every mistake of the user's is a `LegatoError`: one line that says what is wrong, where, and what to
do about it. The command line prints that line and exits with code 2; anything else that escapes is
ours, and exits with code 1.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LegatoError(Exception):
    """Something the user can put right. The message is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


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


def suggest(word: str, known: Iterable[str]) -> str:
    """A clause that names the nearest known word, or lists what there is.

    >>> suggest("widht", ["width", "layers"])
    "did you mean 'width'?"
    """
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{near[0]}'?"
    return "there is " + ", ".join(names) if names else "there is none"
