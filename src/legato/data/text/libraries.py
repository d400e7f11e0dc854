"""Other people's libraries that read files and texts, held so that whatever they raise is one line.

`tokenizers` raises plain `Exception`s, and panics where it had not thought of something: that is a `BaseException`,
which passes by every `except Exception`. All that it does here goes through a `Library`, so that no caller can
forget. What is called before there is one, and other libraries, stand inside `clear_of_panics`.

Tokenizers of others with regular expressions, or sizes, that nobody has looked at are held to a time. A
tokenizer.json may cut, replace and join text by any pattern, and one such as `a*a*\\d` takes longer than anybody
waits for on a text of a few thousand letters; so does WordPiece where words may be of any length. The `tokenizers`
library cannot be interrupted, but it lets other threads run while it works on a batch: so such a tokenizer works in a
thread of its own, and whoever waits for it too long says so. What it began goes on until the process ends.

One that makes texts many times longer takes more memory than there is, which ends the process: it is refused before
it is loaded (text_growth.py). Loading runs the patterns, too, over the tokens that were added; that is tried first
where it can be ended (sandbox/). The patterns that most published tokenizers share are known, and theirs are left as
they are.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from legato import sandbox
from legato.data.text.text_growth import check_growth
from legato.errors import DataError, LegatoError, brief, is_panic, panics_unprinted
from legato.input_files import read_bytes

LARGEST: Final = 1 << 28  # bytes of a tokenizer's file; the largest are a tenth of it
# What lets other threads run, so that it can be timed: one text alone would keep all of them waiting.
TIMED: Final = ("encode_batch", "encode_batch_fast", "decode_batch")

SECONDS = 5.0  # for a call, and …
SECONDS_A_LETTER = 2e-5  # … for each character or token beside; the library needs a hundredth of it

MAX_LETTERS: Final = 200  # of a word that WordPiece cuts without being timed; published ones say 100
MAX_PREFIX: Final = 8  # characters before what goes on with a word; published ones have ##
ESCAPED: Final = re.compile(rb"\\u00[4-7]")
_WORDS: Final = r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ENDINGS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
LLAMA3_WORDS: Final = _ENDINGS + _WORDS  # GPT-4's, too
QWEN2_WORDS: Final = _ENDINGS + _WORDS.replace("{1,3}", "", 1)
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
TEKKEN_WORDS: Final = (  # Mistral's later ones: a word ends before a capital
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KNOWN: Final = frozenset(
    {
        r"[\s\S]",  # ours: char
        "\\n|<(?=eos>)",  # ours: unigram
        r"\s+",
        " {2,}",  # sentencepiece's, as XLM-R, T5 and Marian have them
        r"[0-9][0-9][0-9]",  # Falcon
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2
        LLAMA3_WORDS,
        QWEN2_WORDS,  # Qwen 3's, too
        TEKKEN_WORDS,
    }
)


# What may be slow in a tokenizer.json: an entry's name, and whether a value of it is one that nobody has looked at.
SLOW: Final[dict[str, Callable[[Any], bool]]] = {
    "Regex": lambda value: isinstance(value, str) and value not in KNOWN,
    # WordPiece tries every end of every piece of a word, each with the prefix before it: the cube of a word's length.
    "max_input_chars_per_word": lambda value: isinstance(value, int) and value > MAX_LETTERS,
    "continuing_subword_prefix": lambda value: isinstance(value, str) and len(value) > MAX_PREFIX,
}
WRITTEN: Final = re.compile(rb'"(%b)"\s*:\s*("(?:[^"\\]|\\.)*+"|\d+)' % "|".join(SLOW).encode())


class TooSlow(DataError):
    """A text for which a tokenizer takes longer than anybody waits."""


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
        theirs = isinstance(problem, Exception) or is_panic(problem)
        if isinstance(problem, LegatoError | MemoryError) or not theirs:
            raise  # ours, the user's or the system's
        raise error(f"{what}: {brief(problem, 200) or type(problem).__name__}") from None


class Library:
    """A `tokenizers.Tokenizer`, with all that it has; an error names the file that it was read from.

    >>> import tokenizers
    >>> Library(tokenizers.Tokenizer(tokenizers.models.BPE())).get_vocab_size()
    0
    """

    __slots__ = ("_held", "slow", "source")
    slow: tuple[str, ...]
    source: str  # the file that it was read from; nothing for one that was made here

    def __init__(self, held: Any, source: str = "", slow: Sequence[str] = ()) -> None:
        """`source` is the file for messages; where something of it may be `slow`, it is timed."""
        if isinstance(held, Library):
            held, source, slow = held._held, source or held.source, slow or held.slow
        for name, value in (("_held", held), ("source", source), ("slow", tuple(slow))):
            object.__setattr__(self, name, value)

    @classmethod
    def read(cls, file: Path) -> Library:
        """From a tokenizer.json."""
        import tokenizers

        data = read_bytes(file, LARGEST)
        check_growth(file, data, KNOWN)
        slow = slow_parts_of(data)
        try_loading(file, slow)
        with clear_of_panics(f"{file} is not a tokenizer that can be read"), panics_unprinted():
            return cls(tokenizers.Tokenizer.from_buffer(data), str(file), slow)

    @classmethod
    def parse(cls, text: str, source: str = "") -> Library:
        """From the text of one."""
        import tokenizers

        with clear_of_panics(f"{source or 'this'} is not a tokenizer that can be read"), panics_unprinted():
            return cls(tokenizers.Tokenizer.from_str(text), source, slow_parts_of(text.encode("utf-8", "replace")))

    def copy(self) -> Library:
        return Library.parse(self.to_str(), self.source)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._held, name)  # whatever the library's object has, it has here
        return partial(self._call, found) if callable(found) else found

    def _call(self, method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        try:  # without a context manager, which takes longer than decoding a token
            if self.slow and method.__name__ in TIMED:
                return within_time(lambda: method(*given, **named), _letters(given[0]), self.slow)
            return method(*given, **named)
        except BaseException:
            with clear_of_panics(f"the tokenizer {self.source or 'that was made for this data'} failed on a text"):
                raise

    def encode(self, text: str, pair: str | None = None, *, add_special_tokens: bool = True) -> Any:
        if not self.slow:
            return self._call(self._held.encode, text, pair, add_special_tokens=add_special_tokens)
        return self.encode_batch([text if pair is None else (text, pair)], add_special_tokens=add_special_tokens)[0]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        if not self.slow:
            return str(self._call(self._held.decode, ids, skip_special_tokens=skip_special_tokens))
        return str(self.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)[0])

    def __setattr__(self, name: str, value: Any) -> None:
        self._call(setattr, self._held, name, value)

    def __reduce__(self) -> Any:
        return Library, (self._held, self.source, self.slow)


def _letters(texts: Sequence[Any]) -> int:
    """Characters of texts and of pairs of them, or tokens."""
    return sum(len(text) if not isinstance(text, tuple) else sum(map(len, text)) for text in texts)


# --- what may be slow ---------------------------------------------------------------------------------


def slow_parts(spec: Any) -> list[str]:
    """What may be slow in a tokenizer.json, or in a part of it, as a message shows it."""
    return [_shown(name, value) for name, value in _entries(spec) if SLOW[name](value)]


def slow_parts_of(data: bytes) -> list[str]:
    """The same of its text, mostly without reading a large vocabulary; nothing where it is no JSON."""
    try:
        if ESCAPED.search(data):  # a name may be written by its letters' numbers
            return slow_parts(json.loads(data))
        found = ((name.decode(), json.loads(value)) for name, value in WRITTEN.findall(data))
        return [_shown(name, value) for name, value in found if SLOW[name](value)]
    except (ValueError, RecursionError):
        return []  # the library says what is wrong


def _shown(name: str, value: Any) -> str:
    return str(value) if name == "Regex" else f"{name}={brief(value)}"


def _entries(part: Any) -> Iterator[tuple[str, Any]]:
    waiting = [part]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield from ((name, part[name]) for name in SLOW if name in part)
            # The vocabulary is large, and no place for patterns.
            waiting += [inner for name, inner in part.items() if name not in ("vocab", "merges", "added_tokens")]
        elif isinstance(part, list):
            waiting += part


def try_loading(path: Path, slow: Sequence[str]) -> None:
    """Refuse a tokenizer.json that runs away when it is loaded; `slow` is what may be slow in it."""
    if not slow:
        return
    try:
        sandbox.call("try_tokenizer", path=str(path.resolve()))
    except sandbox.OverBudget as problem:
        raise DataError(
            f"{path} takes more than {problem} to load, since it says {_listed(slow)}; use another tokenizer"
        ) from None
    except sandbox.Failed:
        return  # the library says what is wrong


def _listed(slow: Sequence[str]) -> str:
    return brief(", ".join(f"'{part}'" for part in slow), 200)


def within_time(work: Callable[[], Any], size: int, slow: Sequence[str]) -> Any:
    """What `work`, a call of the library on `size` characters or tokens, gives; an error where it takes too long."""
    results: list[Any] = []
    problems: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as problem:  # a panic of the library's is no Exception
            problems.append(problem)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    allowed = SECONDS + SECONDS_A_LETTER * size
    thread.join(allowed)
    if problems:
        raise problems[0]
    if not results:
        raise TooSlow(
            f"the tokenizer takes more than {allowed:.3g} s for {size:,} characters or tokens, since its file says "
            f"{_listed(slow)}; use another tokenizer, or shorten what has no spaces in it"
        )
    return results[0]
