"""Errors that a person can act on.

Every mistake of the user's is a `LegatoError`: one line that says what is wrong, where, and what to
do about it. The command line prints that line and exits with code 2; anything else that escapes is
ours, and exits with code 1.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

LONGEST = 480  # characters in a message
ENDING = 160  # of those, the ones at its end, which say what to do
MATCHED = 200  # characters of a word that is compared with others, and how many others those are at most
COMPARED = 10_000
LISTED = 40  # names in a list of what there is
LISTED_LENGTH = 360  # characters of that list
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]")


class LegatoError(Exception):
    """Something the user can put right. The message is one line."""

    def __init__(self, message: str) -> None:
        line = without_controls(" ".join(message.split()))
        if len(line) > LONGEST:  # whoever wrote it should have used `brief`; the end says what to do
            line = f"{line[: LONGEST - ENDING - 3]} … {line[-ENDING:]}"
        super().__init__(line)


def warn(note: str | Warning) -> None:
    """Warn, at the line of the caller's own that led here: Python shows that line, and `notes` the text alone."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "legato":
        frame, level = frame.f_back, level + 1
    warnings.warn(note, stacklevel=level)


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


class TextsCut(UserWarning):
    """Texts that are longer than what a model reads, and whose ends it has not seen."""

    def __init__(self, count: int, most: int) -> None:
        texts = "1 text is" if count == 1 else f"{count:,} texts are"
        super().__init__(f"{texts} longer than the {most:,} tokens that the model reads; what is beyond was cut off")
        self.count, self.most = count, most


# How PyTorch and NumPy say that they were asked for more than there is: in messages of their commonest errors.
NO_MEMORY = ("allocate memory", "out of memory", "not enough memory", "unable to allocate")
TOO_LARGE = ("overflow", "too big", "dimension exceeded", "too large to convert", "exceeds the limit")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def reason_of(problem: BaseException) -> str | None:
    """What is to be said of an exception that is no `LegatoError`, and yet speaks of the input or of the machine.

    Memory, depth, sizes and the file system end somewhere, and nobody can look at every place beforehand. None for
    whatever else there is, which is a fault in the program.
    """
    said = brief(problem, 200)
    lower = said.lower()
    if isinstance(problem, OSError):
        return _file_reason(problem, said)
    if isinstance(problem, MemoryError) or any(part in lower for part in NO_MEMORY):
        why = f" ({said})" if said else ""
        return f"there is not enough memory for this{why}; use smaller batches, a smaller model or less data"
    if isinstance(problem, RecursionError):
        return "something in the input is nested too deeply to be read; make it flatter"
    if isinstance(problem, UnicodeError):
        return f"a text holds what is no character ({said}); write it in UTF-8"
    kind = (type(problem).__module__, type(problem).__name__)
    said_so = isinstance(problem, RuntimeError | ValueError) and any(part in lower for part in TOO_LARGE)
    if isinstance(problem, OverflowError) or kind == ("struct", "error") or said_so:
        return f"a number is larger than can be worked with ({said}); give a smaller one"
    if is_panic(problem):
        return f"a library broke off over this input ({said}); look at what was given to it"
    return None


def is_panic(problem: BaseException) -> bool:
    """Whether a library written in Rust broke off; what it raises is no `Exception`, and has no public name."""
    return type(problem).__name__ == "PanicException"


def _file_reason(problem: OSError, said: str) -> str:
    name = brief(problem.filename, 200) if problem.filename is not None else "a file"
    if problem.errno in FULL:
        return f"the disk is full: {name} could not be written; free some space"
    if problem.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{name} may not be read or written by this user; change its permissions, or name another place"
    if problem.errno in (errno.EMFILE, errno.ENFILE):
        return "too many files are open; close other programs, or raise the limit (ulimit -n)"
    if problem.errno is None:
        return f"a file could not be used: {said}"
    return f"{name} could not be used: {problem.strerror}; check the name and the place"


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


def without_controls(text: str) -> str:
    r"""A text from elsewhere as a terminal may show it: what steers it, or turns letters' order, is spelled out.

    In a line of JSON it says the same as before.

    >>> print(without_controls("a\x1b[31mb"), without_controls("x\u202ey"))
    a\u001b[31mb x\u202ey
    """
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def suggest(word: Any, known: Iterable[str]) -> str:
    """A clause that names the nearest known word, or lists what there is.

    >>> suggest("widht", ["width", "layers"])
    "did you mean 'width'?"
    """
    names = sorted(known)
    folded = {name.lower(): name for name in reversed(names[:COMPARED]) if len(name) <= MATCHED}
    near = difflib.get_close_matches(str(word)[:MATCHED].lower(), folded, n=1)
    if near:
        return f"did you mean '{brief(folded[near[0]])}'?"
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


_HOLDING: Final = threading.Lock()


@contextmanager
def panics_unprinted() -> Iterator[None]:
    """Hold back what is written to standard error, and drop it where a panic comes: Rust prints each by itself.

    For opening things, one at a time, and not for calls that may be given up on: the stream is the whole process's.
    """
    with _HOLDING:
        try:
            held, kept = tempfile.TemporaryFile(), os.dup(2)  # noqa: SIM115
        except OSError:  # there is no such stream, or no place to hold it
            yield
            return
        with held:
            panicked = False
            try:
                os.dup2(held.fileno(), 2)
                yield
            except BaseException as problem:
                panicked = is_panic(problem)
                raise
            finally:
                os.dup2(kept, 2)
                os.close(kept)
                held.seek(0)
                if not panicked:
                    with suppress(OSError):  # nobody is there to read it
                        os.write(2, held.read())
