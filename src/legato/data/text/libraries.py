"""Other people's libraries that read files and texts, held so that whatever they raise is one line.

`tokenizers` raises plain `Exception`s, and panics where it had not thought of something: that is a `BaseException`,
which passes by every `except Exception`. All that it does here goes through a `Library`, so that no caller can
forget. What is called before there is one, and other libraries, stand inside `clear_of_panics`. What may be
slow in a tokenizer that is read is found here, too, and a `Library` of it is held to a time (guarded_library.py).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from legato.data.text.guarded_library import slow_parts_of, try_loading, within_time
from legato.errors import DataError, LegatoError, brief, is_panic
from legato.input_files import read_bytes

LARGEST: Final = 1 << 28  # bytes of a tokenizer's file; the largest are a tenth of it


@contextmanager
def clear_of_panics(what: str, error: type[LegatoError] = DataError) -> Iterator[None]:
    """Whatever a library raises inside is an `error`: `what` says which file, and what could not be done with it.

    >>> with clear_of_panics("a.json is not a tokenizer that can be read"): raise Exception("no model")
    Traceback (most recent call last):
    legato.errors.DataError: a.json is not a tokenizer that can be read: no model
    """
    try:
        yield
    except BaseException as problem:
        raise _clear(problem, what, error) from None


@contextmanager
def _panics_unprinted() -> Iterator[None]:
    """Hold back what is written to standard error, and drop it where a panic comes: Rust prints each by itself.

    Not for calls that others run beside, or that may be given up on: the stream is the whole process's.
    """
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


def _clear(problem: BaseException, what: str, error: type[LegatoError] = DataError) -> BaseException:
    """What to raise in its place: itself where it is ours, the user's or the system's."""
    kept = isinstance(problem, LegatoError | MemoryError) or not (isinstance(problem, Exception) or is_panic(problem))
    if kept:
        return problem
    return error(f"{what}: {brief(problem, 200) or type(problem).__name__}")


class Library:
    """A `tokenizers.Tokenizer`, with all that it has; an error names the file that it was read from.

    >>> import tokenizers
    >>> Library(tokenizers.Tokenizer(tokenizers.models.BPE())).get_vocab_size()
    0
    """

    __slots__ = ("_held", "_what", "slow")

    def __init__(self, held: Any, source: str = "", slow: Sequence[str] = ()) -> None:
        """`source` is the file for messages; where something of it may be `slow`, it is timed."""
        object.__setattr__(self, "_held", held._held if isinstance(held, Library) else held)
        file = source or (held.source if isinstance(held, Library) else "")
        object.__setattr__(self, "_what", file)
        object.__setattr__(self, "slow", tuple(slow or (held.slow if isinstance(held, Library) else ())))

    @classmethod
    def read(cls, file: Path) -> Library:
        """From a tokenizer.json."""
        import tokenizers

        data = read_bytes(file, LARGEST)
        slow = slow_parts_of(data)
        try_loading(file, slow)
        with clear_of_panics(f"{file} is not a tokenizer that can be read"), _panics_unprinted():
            return cls(tokenizers.Tokenizer.from_buffer(data), str(file), slow)

    @classmethod
    def parse(cls, text: str, source: str = "") -> Library:
        """From the text of one."""
        import tokenizers

        with clear_of_panics(f"{source or 'this'} is not a tokenizer that can be read"), _panics_unprinted():
            return cls(tokenizers.Tokenizer.from_str(text), source, slow_parts_of(text.encode("utf-8", "replace")))

    def copy(self) -> Library:
        return Library.parse(self.to_str(), self.source)

    @property
    def source(self) -> str:
        """The file that it was read from; nothing for one that was made here."""
        return str(self._what)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._held, name)
        return _clearing(found, self._failed) if callable(found) else found

    # One text alone would keep all other threads waiting, and nobody could look at a clock; a batch of one does not.

    def encode(self, text: str, pair: str | None = None, *, add_special_tokens: bool = True) -> Any:
        if not self.slow:
            return _clearing(self._held.encode, self._failed)(text, pair, add_special_tokens=add_special_tokens)
        return self.encode_batch([text if pair is None else (text, pair)], add_special_tokens=add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[Any], *, add_special_tokens: bool = True) -> Any:
        return self._timed(self._held.encode_batch, texts, _letters, add_special_tokens=add_special_tokens)

    def encode_batch_fast(self, texts: Sequence[Any], *, add_special_tokens: bool = True) -> Any:
        return self._timed(self._held.encode_batch_fast, texts, _letters, add_special_tokens=add_special_tokens)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        if not self.slow:
            return str(_clearing(self._held.decode, self._failed)(ids, skip_special_tokens=skip_special_tokens))
        [text] = self._timed(self._held.decode_batch, [list(ids)], _letters, skip_special_tokens=skip_special_tokens)
        return str(text)

    def _timed(self, method: Callable[..., Any], given: Any, size: Callable[[Any], int], **named: Any) -> Any:
        call = _clearing(method, self._failed)
        if not self.slow:
            return call(given, **named)
        return within_time(lambda: call(given, **named), size(given), self.slow)

    def __setattr__(self, name: str, value: Any) -> None:
        with clear_of_panics(self._failed):
            setattr(self._held, name, value)

    def __reduce__(self) -> Any:
        return Library, (self._held, self.source, self.slow)

    @property
    def _failed(self) -> str:
        return f"the tokenizer {self.source or 'that was made for this data'} failed on a text"


def _clearing(method: Callable[..., Any], what: str) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        try:
            return method(*given, **named)
        except BaseException as problem:
            raise _clear(problem, what) from None

    return call


def _letters(texts: Sequence[Any]) -> int:
    """Characters of texts and of pairs of them, or tokens."""
    return sum(len(text) if not isinstance(text, tuple) else sum(map(len, text)) for text in texts)
