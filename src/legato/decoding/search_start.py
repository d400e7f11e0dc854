"""What a search of one input begins with, as a task searches: for who looks at the search itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from legato.data.text.any_tokenizer import AnyTokenizer
from legato.decoding.frontier import LogitsProcessor


@dataclass(frozen=True)
class SearchStart:
    """What a search of one input begins with, as its task searches."""

    model: Any
    prompt: list[int]
    tokenizer: AnyTokenizer  # of what is written
    limit: int  # the most tokens
    usual: int  # how many there are where nobody says
    ends: tuple[int, ...]
    written: Callable[[Sequence[int]], str]  # tokens as the task's answer
    encoded: Callable[[str], list[int]]  # a text to begin with as tokens
    length_penalty: float = 1.0
    memory: Any = None
    source: list[int] | None = None  # its tokens, where it has any
    suppress: tuple[int, ...] = ()
    suppress_first: tuple[int, ...] = ()
    allowed: Callable[[list[int]], Collection[int]] | None = None  # what may follow
    processor: LogitsProcessor | None = None
    normalised: bool = False
    text_of: Callable[[Sequence[int]], str] | None = None  # by which the search tells that two read the same
