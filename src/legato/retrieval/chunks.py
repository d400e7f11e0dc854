"""Chunks: a document cut into passages, along its structure and no longer than a length, with an overlap.

Blocks (paragraphs, lists, tables) under the same headings are packed until the next would be too long; a block that
is too long by itself is cut between sentences, a sentence between words, and what has no spaces anywhere. The last
sentences of a passage begin the next one of the same section, so that what is said across a cut is found, too.

Lengths are in words: runs of letters, signs, and single characters of scripts that write no spaces. A word of more
than eight letters counts as several, as tokenizers have it; so passages of 160 words are seldom beyond 256 tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from legato.errors import ConfigError, brief
from legato.retrieval.records import Block, Document

SIZE: Final = 160  # words: within the 256 tokens that common sentence encoders read
OVERLAP: Final = 30
MAX_SIZE: Final = 100_000
LONG_WORD: Final = 8
MAX_HEADING: Final = 300  # characters of the headings over a passage
_SINGLE: Final = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_WORDS: Final = re.compile(rf"[{_SINGLE}]|[^\W{_SINGLE}]+|[^\w\s]")
_ENDS: Final = re.compile(r"(?<=[.!?])[\"')\]]?\s+|(?<=[。！？])|\n+")


@dataclass(frozen=True)
class Chunking:
    """How long passages are, in words, and how much neighbours share; a size of 0 leaves documents whole."""

    size: int = SIZE
    overlap: int = OVERLAP

    def __post_init__(self) -> None:
        if not (isinstance(self.size, int) and isinstance(self.overlap, int)):
            raise ConfigError(f"a passage and its overlap are whole words, not {brief((self.size, self.overlap))}")
        if not 0 <= self.size <= MAX_SIZE:
            raise ConfigError(f"a passage of {self.size:,} words: give 1 to {MAX_SIZE:,}, or 0 for whole documents")
        if self.overlap < 0 or (self.size and self.overlap > self.size // 2):
            raise ConfigError(f"an overlap of {self.overlap:,} words does not suit passages of {self.size:,}")


@dataclass(frozen=True)
class Chunk:
    """A piece of a document."""

    text: str
    start: int
    end: int
    heading: str
    page: int | None


@dataclass(frozen=True)
class _Piece:
    text: str
    start: int
    words: int
    opens: bool  # whether it begins a block


def count_words(text: str) -> int:
    """How long a text is.

    >>> count_words("Two words"), count_words("日本語"), count_words("Donaudampfschiffahrt")
    (2, 3, 3)
    """
    words = _WORDS.findall(text)
    return len(words) + sum((len(word) - 1) // LONG_WORD for word in words if len(word) > LONG_WORD)


def chunks_of(document: Document, how: Chunking) -> Iterator[Chunk]:
    """The passages of a document in order."""
    section: list[Block] = []
    for block in document.blocks:
        if section and how.size and (block.headings, block.page) != (section[0].headings, section[0].page):
            yield from _section_chunks(section, how)
            section = []
        section.append(block)
    if section:
        yield from _section_chunks(section, how)


def _section_chunks(blocks: list[Block], how: Chunking) -> Iterator[Chunk]:
    heading = " › ".join(blocks[0].headings)[:MAX_HEADING]
    held: list[_Piece] = []
    words = shared = 0  # `shared` of the pieces held stood in the passage before
    for piece in _pieces(blocks, how):
        if len(held) > shared and how.size and words + piece.words > how.size:
            yield _chunk(held, heading, blocks[0].page)
            held = _tail(held, min(how.overlap, how.size - piece.words))
            words, shared = sum(one.words for one in held), len(held)
        held.append(piece)
        words += piece.words
    if len(held) > shared:
        yield _chunk(held, heading, blocks[0].page)


def _tail(pieces: list[_Piece], room: int) -> list[_Piece]:
    """The last pieces that fit into the overlap."""
    kept: list[_Piece] = []
    for piece in reversed(pieces):
        room -= piece.words
        if room < 0:
            break
        kept.append(piece)
    return kept[::-1]


def _chunk(pieces: list[_Piece], heading: str, page: int | None) -> Chunk:
    parts = [pieces[0].text]
    for piece in pieces[1:]:
        parts += ["\n\n" if piece.opens else "", piece.text]
    last = pieces[-1]
    return Chunk("".join(parts).strip(), pieces[0].start, last.start + len(last.text), heading, page)


def _pieces(blocks: list[Block], how: Chunking) -> Iterator[_Piece]:
    """What is never cut: a block, or the sentences of a long one, or as many words as fit of a long sentence."""
    for block in blocks:
        whole = count_words(block.text)
        if not how.size or whole <= min(how.size, max(how.overlap, 1)):
            yield _Piece(block.text, block.start, whole, True)
            continue
        first = True
        for start, end in _spans(block.text):
            text = block.text[start:end]
            words = count_words(text)
            if words <= how.size:
                yield _Piece(text, block.start + start, words, first)
                first = False
                continue
            for begin, stop in _fitting(block.text, start, end, how.size):
                text = block.text[begin:stop]
                yield _Piece(text, block.start + begin, count_words(text), first)
                first = False


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """Where the sentences of a text begin and end, the spaces behind them included."""
    start = 0
    for found in _ENDS.finditer(text):
        if found.end() > start and text[start : found.end()].strip():
            yield start, found.end()
            start = found.end()
    if text[start:].strip():
        yield start, len(text)


def _fitting(text: str, start: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    """A sentence in parts of at most `size` words; a word that is longer than that is cut, too."""
    begin, words = start, 0
    for found in _WORDS.finditer(text, start, end):
        length = 1 + (found.end() - found.start() - 1) // LONG_WORD
        if words and words + length > size:
            yield begin, found.start()
            begin, words = found.start(), 0
        while length > size:
            stop = begin + size * LONG_WORD
            yield begin, stop
            begin, length = stop, 1 + max(found.end() - stop - 1, 0) // LONG_WORD
        words += length
    if begin < end:
        yield begin, end
