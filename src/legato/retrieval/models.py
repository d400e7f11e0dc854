"""What retrieval asks of models, as small protocols; `legato.rag` makes them of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Encoder(Protocol):
    """Makes vectors of texts."""

    @property
    def name(self) -> str:
        """Where it can be loaded from."""
        ...

    def encode(self, texts: Sequence[str]) -> Any:
        """A vector for each text, (N, D)."""
        ...


class Reranker(Protocol):
    """Says how well passages fit a question, having read both together."""

    def score(self, question: str, passages: Sequence[str]) -> list[float]: ...


class ChatModel(Protocol):
    """Writes an answer to messages."""

    @property
    def special_tokens(self) -> Sequence[str]:
        """Texts that its tokenizer would read as something else than text."""
        ...

    def fits(self, messages: Sequence[dict[str, str]], room: int) -> bool:
        """Whether it can read them, and write so many tokens behind them."""
        ...

    def write(self, messages: Sequence[dict[str, str]], max_tokens: int, emit: Callable[[str], None]) -> str:
        """The answer, whose pieces are handed to `emit` as they come."""
        ...


@dataclass(frozen=True)
class Span:
    """The part of a passage that answers a question; "" where none does."""

    text: str
    score: float


class SpanReader(Protocol):
    """Finds the part of a text that answers a question."""

    def answer(self, question: str, passages: Sequence[str]) -> list[Span]: ...
