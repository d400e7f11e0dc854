"""What stands at the positions of a sequence, for people who look at it: tokens, patches, frames of sound."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from legato.data.batching.batch import Batch
from legato.data.text.tokenizers import AnyTokenizer

Kind = Literal["token", "patch", "frame", "query"]
INPUT, SOURCE, TARGET = "input", "source", "target"  # the streams that parts of a model read


@dataclass(frozen=True)
class Positions:
    """The positions that one part of a model reads.

    >>> Positions("token", ("a", "dog")).count
    2
    """

    kind: Kind
    names: tuple[str, ...]  # what each is called: a token's text; a patch or a frame has its number
    grid: tuple[int, int] | None = None  # of patches: rows and columns
    seconds: float | None = None  # of frames: from one to the next

    @property
    def count(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Reading:
    """One input as a model reads it: a batch of one row, and what stands in it."""

    batch: Batch
    positions: dict[str, Positions] = field(default_factory=dict)  # by stream
    written: list[str] | None = None  # the token that belongs behind each of the last stream's positions


def named_tokens(tokenizer: AnyTokenizer, ids: Iterable[int]) -> Positions:
    """Tokens, each by what it adds to a text."""
    return Positions("token", tuple(shown_token(tokenizer, int(index)) for index in ids))


def shown_token(tokenizer: AnyTokenizer, index: int) -> str:
    """What a token adds to a text; the name of one that adds nothing, or that is no more than an output."""
    if index >= tokenizer.size:
        return f"<{index}>"
    if index in tokenizer.special_ids:
        return tokenizer.token(index)
    if tokenizer.pieces is None:
        return tokenizer.decode([index]) or tokenizer.token(index)
    return tokenizer.pieces[index].decode("utf-8", "replace")
