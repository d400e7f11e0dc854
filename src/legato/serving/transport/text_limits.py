"""How long a text may be that a server reads: so many characters before it is cut into tokens, then so many tokens.

A model says itself how much it reads at once, or it reads on without end (recurrent networks, whatever is read in
windows). What is beyond a server's limit is refused before anything is computed of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from legato.data.text.libraries import TooSlow
from legato.data.text.tokenizers import AnyTokenizer
from legato.errors import LegatoError
from legato.models.base import SequenceModel
from legato.serving.app import Refusal

INPUT_TOKENS: Final = 8192  # of a text, unless the model reads more at once
TOKEN_CHARACTERS: Final = 64  # in texts that are read at all: few tokens are so long, and no text is of these alone
TOKEN_BYTES: Final = 512  # of a picture or a sound, which take about as long as a token for so many
CODE: Final = "context_length_exceeded"  # OpenAI's word for it


@dataclass(frozen=True)
class TextLimits:
    """The most tokens, and by those the most characters, of one text."""

    tokens: int
    reader: str = "this server"  # whose limit it is, for people

    @classmethod
    def of(cls, model: SequenceModel, tokens: int | None) -> TextLimits:
        """Of an input: `tokens` as the server was started with; None: 8,192, or as many as the model reads."""
        return cls(max(INPUT_TOKENS, model.max_length or 0) if tokens is None else tokens)

    def for_prompts(self, model: SequenceModel) -> TextLimits:
        """Of a prompt, which has to fit into what the model reads."""
        most = model.max_length
        return self if most is None or most > self.tokens else TextLimits(most, "the model")

    @property
    def characters(self) -> int:
        return TOKEN_CHARACTERS * self.tokens

    def check_characters(self, count: int, what: str, field: str) -> None:
        """Refuse a text of so many characters that to count its tokens would take long, and they would not fit."""
        if count > self.characters:
            raise self._refusal(f"{count:,} characters", f"{self.tokens:,} tokens", what, field)

    def check_tokens(self, count: int, what: str, field: str) -> None:
        if count > self.tokens:
            raise self._refusal(f"{count:,} tokens", f"{self.tokens:,}", what, field)

    def _refusal(self, count: str, most: str, what: str, field: str) -> Refusal:
        return Refusal(400, f"{what} has {count}, but {self.reader} reads {most} at most: shorten it", field, CODE)

    def input_lengths(
        self, inputs: Sequence[Any], tokenizer: AnyTokenizer | None, field: str
    ) -> list[tuple[int, int]]:
        """Of each input how many tokens its texts are, and as about how many its files take; refused with a long one.

        An input may be a text, the bytes of a file, or several of them.
        """
        texts = [list(_texts_in(each)) for each in inputs]
        for number, some in enumerate(texts):
            for text in some:
                self.check_characters(len(text), f"{field}.{number}", f"{field}.{number}")
        counts = iter(token_counts([text for some in texts for text in some], tokenizer))
        lengths = []
        for number, (each, some) in enumerate(zip(inputs, texts, strict=True)):
            own = [next(counts) for _ in some]
            self.check_tokens(max(own, default=0), f"{field}.{number}", f"{field}.{number}")
            lengths.append((sum(own), _bytes_in(each) // TOKEN_BYTES))
        return lengths


def token_counts(texts: Sequence[str], tokenizer: AnyTokenizer | None) -> Iterator[int]:
    """How many tokens each text is; of one that cannot be cut into tokens, and its model refuses, its characters.

    What takes too long is given up on at once: each try may leave a thread behind that goes on.
    """
    if tokenizer is None:
        yield from map(len, texts)
        return
    done = 0
    try:
        for ids in tokenizer.encode_many(texts):
            done += 1
            yield len(ids)
    except TooSlow:
        raise
    except LegatoError:  # one of those that were cut side by side
        for text in texts[done:]:
            try:
                yield len(tokenizer.encode(text))
            except TooSlow:
                raise
            except LegatoError:
                yield len(text)


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _texts_in(part)


def _bytes_in(value: Any) -> int:
    if isinstance(value, tuple | list):
        return sum(map(_bytes_in, value))
    return len(value) if isinstance(value, bytes) else 0
