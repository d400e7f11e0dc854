"""Other people's libraries that read files and texts, held so that whatever they raise is one line.

`tokenizers` raises plain `Exception`s, and panics where it had not thought of something: that is a `BaseException`,
which passes by every `except Exception`. Everything that it does goes through a `Library`: no caller can forget.
What is called before there is one, and other libraries, stand inside `clear_of_panics`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from legato.errors import DataError, LegatoError, brief, is_panic


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

    __slots__ = ("_held", "_what")

    def __init__(self, held: Any, source: str = "") -> None:
        object.__setattr__(self, "_held", held._held if isinstance(held, Library) else held)
        file = source or (held.source if isinstance(held, Library) else "")
        object.__setattr__(self, "_what", file)

    @classmethod
    def read(cls, file: Path) -> Library:
        """From a tokenizer.json."""
        import tokenizers

        with clear_of_panics(f"{file} is not a tokenizer that can be read"):
            return cls(tokenizers.Tokenizer.from_file(str(file)), str(file))

    @classmethod
    def parse(cls, text: str, source: str = "") -> Library:
        """From the text of one."""
        import tokenizers

        with clear_of_panics(f"{source or 'this'} is not a tokenizer that can be read"):
            return cls(tokenizers.Tokenizer.from_str(text), source)

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

    def __setattr__(self, name: str, value: Any) -> None:
        with clear_of_panics(self._failed):
            setattr(self._held, name, value)

    def __reduce__(self) -> Any:
        return Library, (self._held, self.source)

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
