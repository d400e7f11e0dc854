"""Tokenizers of others with regular expressions, or sizes, that nobody has looked at: held to a time.

A tokenizer.json may cut, replace and join text by any pattern, and one such as `a*a*\\d` takes longer than anybody
waits for on a text of a few thousand letters; so does WordPiece where words may be of any length. The `tokenizers`
library cannot be interrupted, but it lets other threads run while it works on a batch: so such a tokenizer works in a
thread of its own, and whoever waits for it too long says so. What it began goes on until the process ends.

Loading it runs the patterns, too, over the tokens that were added; that is tried first where it can be ended
(sandbox/). The patterns that most published tokenizers share are known, and theirs are left as they are.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from legato import sandbox
from legato.errors import DataError, brief

SECONDS = 5.0  # for a call, and …
SECONDS_A_LETTER = 2e-5  # … for each character or token beside; the library needs a hundredth of it

MAX_LETTERS: Final = 200  # of a word that WordPiece cuts without being timed; published ones say 100
MAX_PREFIX: Final = 8  # characters before what goes on with a word; published ones have ##
ESCAPED: Final = re.compile(rb"\\u00[4-7]")
_WORDS: Final = r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ENDINGS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
KNOWN: Final = frozenset(
    {
        r"[\s\S]",  # ours: char
        "\\n|<(?=eos>)",  # ours: unigram
        r"\s+",
        " {2,}",  # sentencepiece's, as XLM-R, T5 and Marian have them
        r"[0-9][0-9][0-9]",  # Falcon
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2
        _ENDINGS + _WORDS,  # GPT-4, LLaMA 3
        _ENDINGS + _WORDS.replace("{1,3}", "", 1),  # Qwen 2 and 3
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
        raise DataError(
            f"the tokenizer takes more than {allowed:.3g} s for {size:,} characters or tokens, since its file says "
            f"{_listed(slow)}; use another tokenizer, or shorten what has no spaces in it"
        )
    return results[0]
