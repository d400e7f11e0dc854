"""Texts from the command line, from a file or from standard input, as they come; a meter of how many are done."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, TextIO, TypeVar

from legato.data.sources.files import lines_of
from legato.errors import DataError
from legato.input_files import open_file, path_of
from legato.interrupts import CODE

FIRST = 32  # lines in the first block
LONGEST = 1 << 26  # bytes of a line
PATIENCE = 0.05  # seconds to wait for one more line before working on those that are there

T = TypeVar("T")


class Texts:
    """Texts given on the command line, or what `unit` says; the same face as `Lines`."""

    def __init__(self, texts: Sequence[str], unit: str = "text") -> None:
        self.unit = unit
        # Bytes that are no UTF-8 reach Python as half characters; here they read as in a file.
        read = [read_utf8(_raw(text)) for text in texts]
        self.texts = [text for text, _ in read]
        self.spoilt: int | None = next((number for number, (_, whole) in enumerate(read, start=1) if not whole), None)

    def blocks(self, size: int, first: int | None = None) -> Iterator[list[str]]:
        return _growing(self.texts, size, first)


class Items:
    """What is no text, such as pictures, each of which is a `unit`; the same face again."""

    spoilt: int | None = None

    def __init__(self, items: Sequence[Any], unit: str) -> None:
        self.items, self.unit = items, unit

    def blocks(self, size: int, first: int | None = None) -> Iterator[list[Any]]:
        return _growing(self.items, size, first)


def _growing(items: Sequence[T], size: int, first: int | None) -> Iterator[list[T]]:
    """Lists of `size` items, in order; with `first` the first ones shorter, so that something shows soon."""
    start, now = 0, size if first is None else first
    while start < len(items):
        yield list(items[start : start + now])
        start, now = start + now, min(2 * now, size)


class Lines:
    """The lines of a file, or of standard input when `path` is None, in blocks.

    A file gives full blocks. Standard input gives what has arrived: somebody who types gets an answer to each
    line, a pipe gets full blocks. A last line without its newline counts; bytes that are no UTF-8 become U+FFFD,
    and `spoilt` is the number of the first line that had any, known when the line is given.
    Whether it ends, is closed midway or breaks: the lines that came are given.
    """

    unit = "line"

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.spoilt: int | None = None

    def blocks(self, size: int, first: int | None = None) -> Iterator[list[str]]:
        """Lists of at most `size` lines, in order; the first ones shorter, so that something shows soon."""
        arrived: queue.Queue[str | BaseException | None] = queue.Queue(maxsize=4 * size)
        threading.Thread(target=self._read, args=(arrived,), daemon=True).start()
        ended: BaseException | bool = False
        now = min(FIRST if first is None else first, size)
        while not ended:
            block: list[str] = []
            while len(block) < now:
                try:
                    # The first line is worth waiting for; the ones behind it only while they keep coming.
                    item = arrived.get(timeout=PATIENCE if block and self.path is None else None)
                except queue.Empty:
                    break
                if not isinstance(item, str):
                    ended = item or True
                    break
                block.append(item)
            if block:
                yield block
            now = min(2 * now, size)
        if isinstance(ended, BaseException):  # after the lines that came before it
            raise ended

    def _read(self, arrived: queue.Queue[Any]) -> None:
        try:
            with self._open() as stream:
                for number, raw in lines_of(stream, self.path or "standard input", LONGEST):
                    text, whole = read_utf8(raw)
                    if not whole and self.spoilt is None:
                        self.spoilt = number
                    if number == 1:
                        text = text.removeprefix("\ufeff")
                    arrived.put(text.rstrip("\r\n"))
            arrived.put(None)
        except ValueError:  # standard input was closed under us
            arrived.put(None)
        except BaseException as problem:
            arrived.put(problem)

    def _open(self) -> BinaryIO:
        if self.path is None:
            if sys.stdin is None or sys.stdin.closed:
                raise DataError("there is no text, and standard input is closed; give a text or --file")
            if sys.stdin.isatty():
                print("one text a line; end with Ctrl-D", file=sys.stderr)
            try:
                # Not sys.stdin itself: the thread still waits on it when Ctrl-C ends the program, and Python would
                # crash as it closes what another thread holds.
                return open(sys.stdin.fileno(), "rb", closefd=False)
            except OSError:  # what stands for standard input is no file
                return sys.stdin.buffer
        return open_file(path_of(self.path))


@contextmanager
def leaving(source: Texts | Items | Lines) -> Iterator[None]:
    """Somebody who types leaves by Ctrl-C, of which nothing is said; elsewhere it interrupts."""
    try:
        yield
    except KeyboardInterrupt:
        if isinstance(source, Lines) and source.path is None:
            sys.exit(CODE)
        raise


def _raw(text: str) -> bytes:
    """The bytes that a word of the command line was; half a character that stands for none stays one that is none."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def read_utf8(raw: bytes) -> tuple[str, bool]:
    """The text, with U+FFFD for bytes that are no UTF-8, and whether there were none of those.

    >>> read_utf8(b"caf\\xe9")
    ('caf�', False)
    """
    try:
        return raw.decode("utf-8"), True
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace"), False


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


class Meter:
    """How many lines are done and how fast, on a terminal's standard error; silent elsewhere.

    Where answers are `printed` on a terminal, too, it would disturb them.
    """

    def __init__(self, enabled: bool, *, printed: bool = True, unit: str = "lines") -> None:
        self.unit = unit
        self.enabled = enabled and _is_terminal(sys.stderr) and not (printed and _is_terminal(sys.stdout))
        self.done = 0
        self.started = time.monotonic()

    def __enter__(self) -> Meter:
        return self

    def advance(self, lines: int) -> None:
        self.done += lines
        if self.enabled:
            speed = self.done / max(time.monotonic() - self.started, 1e-9)
            print(f"\r{self.done:,} {self.unit}, {speed:,.1f} a second", end="", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        print(("\n" if self.enabled and self.done else "") + text, file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self.enabled and self.done:
            print(file=sys.stderr)
