"""Tokenizers of others whose regular expressions nobody has looked at: held to a time.

A tokenizer.json may cut, replace and join text by any pattern, and one such as `a*a*\\d` takes longer than anybody
waits for on a text of a few thousand letters. The `tokenizers` library cannot be interrupted, but it lets other
threads run while it works on a batch: so such a tokenizer works in a thread of its own, and whoever waits for it too
long says so. What it began goes on until the process ends.

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

WRITTEN: Final = re.compile(rb'"Regex"\s*:\s*("(?:[^"\\]|\\.)*+")')
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


def unknown_patterns(spec: Any) -> list[str]:
    """The regular expressions in a tokenizer.json, or in a part of it, that are none of the known ones."""
    return [pattern for pattern in _patterns(spec) if pattern not in KNOWN]


def _patterns(part: Any) -> Iterator[str]:
    waiting = [part]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if isinstance(part.get("Regex"), str):
                yield part["Regex"]
            # The vocabulary is large, and no place for patterns.
            waiting += [inner for name, inner in part.items() if name not in ("vocab", "merges", "added_tokens")]
        elif isinstance(part, list):
            waiting += part


def try_loading(path: Path, data: bytes) -> None:
    """Refuse a tokenizer.json whose patterns run away when it is loaded; `data` is what is in it."""
    try:
        if ESCAPED.search(data):  # the word may be written by its letters' numbers
            patterns = unknown_patterns(json.loads(data))
        else:  # without reading a large vocabulary
            patterns = [found for found in map(json.loads, WRITTEN.findall(data)) if found not in KNOWN]
    except (ValueError, RecursionError):
        return  # the library says what is wrong
    if not patterns:
        return
    try:
        sandbox.call("try_tokenizer", path=str(path.resolve()))
    except sandbox.OverBudget as problem:
        listed = brief(", ".join(f"'{pattern}'" for pattern in patterns), 200)
        raise DataError(f"{path} takes more than {problem} to load; its patterns are {listed}") from None
    except sandbox.Failed:
        return  # the library says what is wrong


def within_time(work: Callable[[], Any], size: int, patterns: Sequence[str]) -> Any:
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
        listed = brief(", ".join(f"'{pattern}'" for pattern in patterns), 200)
        raise DataError(
            f"the tokenizer takes more than {allowed:.3g} s for {size:,} characters or tokens: its patterns "
            f"{listed} are too slow for this text; use another tokenizer, or shorten what has no spaces in it"
        )
    return results[0]
