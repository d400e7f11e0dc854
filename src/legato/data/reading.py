"""How a model reads texts: the marks it wants around them, where words begin, what is cut off.

    encoders                    [CLS] a [SEP]       [CLS] a [SEP] b [SEP]
    decoders, recurrent models  a                   a <eos> b

Every task whose data are rows reads through this, in training and in use alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from legato.data.rows import Row
from legato.data.tokenizers import AnyTokenizer, Tokenizer
from legato.data.word_pieces import marks_between, marks_of_pairs, pieces_of_words


@dataclass
class TextReader:
    """Texts, pairs of texts and words to rows."""

    tokenizer: AnyTokenizer
    longest: int | None = None  # tokens of a row, marks included
    segments: bool = False  # whether the model tells first texts from second ones
    characters: bool = False  # whether it reads the bytes of words
    framed: bool = False  # whether marks stand around a text

    @classmethod
    def of(cls, model: Any, tokenizer: AnyTokenizer, longest: int | None = None) -> TextReader:
        """What suits a model: its config, or the module itself. `longest` may be less than it could read."""
        config = getattr(model, "config", model)
        segments = getattr(config, "segments", None)
        most = getattr(config, "length", None)
        limits = [limit for limit in (most, longest) if limit is not None]
        return cls(
            tokenizer,
            min(limits, default=None),
            isinstance(segments, int) and segments > 1,
            bool(getattr(model, "reads_characters", getattr(config, "characters", 0))),
            hasattr(config, "masked_words"),  # the encoders' family
        )

    @property
    def padding(self) -> int:
        return self.tokenizer.pad_id or 0

    def text(self, text: str) -> Row:
        return self.texts([text])[0]

    def pair(self, first: str, second: str) -> Row:
        return self.pairs([(first, second)])[0]

    def words(self, words: Sequence[str]) -> Row:
        return self.sentences([words])[0]

    def texts(self, texts: Iterable[str]) -> list[Row]:
        """A row for each text; an empty one is still one token."""
        held = list(texts)
        if self.characters:
            return [self._characters(text.split()) for text in held]
        return [self._one(ids.tolist()) for ids in self.tokenizer.encode_many(held)]

    def pairs(self, pairs: Iterable[tuple[str, str]]) -> list[Row]:
        """A row for each pair; what is too long is cut where it is longest."""
        held = list(pairs)
        if self.characters:
            return [self._spelt_pair(first.split(), second.split()) for first, second in held]
        firsts = self.tokenizer.encode_many([first for first, _ in held])
        seconds = self.tokenizer.encode_many([second for _, second in held])
        return [self._two(a.tolist(), b.tolist()) for a, b in zip(firsts, seconds, strict=True)]

    def sentences(self, sentences: Sequence[Sequence[str]]) -> list[Row]:
        """A row for each list of words, with each one's first place; those beyond `longest` are absent."""
        if self.tokenizer.name == "word" or self.characters:
            return [self._characters(words) if self.characters else self._whole_words(words) for words in sentences]
        assert isinstance(self.tokenizer, Tokenizer)
        return [self._of_pieces(found) for found in pieces_of_words(self.tokenizer, sentences)]

    # --- rows ----------------------------------------------------------------------------------------

    @property
    def _marks(self) -> tuple[int, int]:
        tokenizer = self.tokenizer
        first = tokenizer.eos_id if tokenizer.cls_id is None else tokenizer.cls_id
        return first, tokenizer.eos_id if tokenizer.sep_id is None else tokenizer.sep_id

    @cached_property
    def _before(self) -> list[int]:
        """What a decoder's published tokenizer puts before every text."""
        tokenizer = self.tokenizer
        return tokenizer.framed("") if isinstance(tokenizer, Tokenizer) and tokenizer.foreign else []

    @cached_property
    def between(self) -> list[int]:
        """What stands between the two texts of a pair: RoBERTa has two marks there, a published decoder its own."""
        if not self.framed:
            tokenizer = self.tokenizer
            theirs = marks_between(tokenizer) if isinstance(tokenizer, Tokenizer) and tokenizer.foreign else []
            return theirs or [tokenizer.eos_id]
        doubled = isinstance(self.tokenizer, Tokenizer) and marks_of_pairs(self.tokenizer) == 4
        return [self._marks[1]] * (2 if doubled else 1)

    def room(self, marks: int) -> int | None:
        """Tokens of text that a row with so many marks may have."""
        return None if self.longest is None else max(self.longest - marks, 1)

    def _one(self, ids: list[int]) -> Row:
        if not self.framed:
            before = self._before
            ids = [*before, *ids[: self.room(len(before))]]
            return Row(ids or [self.tokenizer.eos_id])
        first, last = self._marks
        return Row([first, *ids[: self.room(2)], last])  # a text alone is a first text

    def _two(self, a: list[int], b: list[int]) -> Row:
        between = self.between
        before = [] if self.framed else self._before
        around = 2 if self.framed else len(before)
        a, b = cut_longest_first(a, b, self.room(around + len(between)))
        if not self.framed:
            return Row([*before, *a, *between, *b])
        first, last = self._marks
        ids = [first, *a, *between, *b, last]
        kinds = [0] * (1 + len(a) + len(between)) + [1] * (len(b) + 1)
        return Row(ids, kinds if self.segments else None)

    def _of_pieces(self, pieces: Sequence[Sequence[int]]) -> Row:
        """Words as their tokens; one that does not fit whole is left out with all behind it."""
        before = 1 if self.framed else len(self._before)
        room = self.room(2 if self.framed else before)
        ids: list[int] = []
        starts: list[int] = []
        for word in pieces:
            if room is not None and len(ids) + len(word) > room:
                if not starts:  # one word longer than the row
                    starts, ids = [0], list(word[:room])
                break
            starts.append(len(ids))
            ids += word
        row = self._one(ids)
        row.words = [start + before for start in starts]
        return row

    def _whole_words(self, words: Sequence[str]) -> Row:
        return self._of_pieces([[self._id(word)] for word in words])

    def _characters(self, words: Sequence[str]) -> Row:
        from legato.data.characters import word_bytes

        row = self._whole_words(words)
        assert row.words is not None
        found = word_bytes(list(words[: len(row.words)]))
        row.characters = np.zeros((len(row.ids), found.shape[1] if found.size else 1), dtype=np.int64)
        if row.words:
            row.characters[row.words] = found
        return row

    def _spelt_pair(self, first: Sequence[str], second: Sequence[str]) -> Row:
        """Both, and the end mark between them, which is spelt with no letters."""
        row = self._characters([*first, "", *second])
        if len(first) < len(row.ids):
            row.ids[len(first)] = self.tokenizer.eos_id
            assert row.characters is not None
            row.characters[len(first)] = 0
        return row

    def _id(self, word: str) -> int:
        tokenizer = self.tokenizer
        found = tokenizer.id_of(word.lower() if tokenizer.lowercase else word)
        if found is None or found in tokenizer.marks:  # a mark that somebody types is no mark
            found = tokenizer.unk_id
        return tokenizer.eos_id if found is None else found


def cut_longest_first(a: list[int], b: list[int], room: int | None) -> tuple[list[int], list[int]]:
    """Both within `room`, the longer one giving way first and keeping the odd token, as in `tokenizers`."""
    if room is None or len(a) + len(b) <= room:
        return a, b
    half = room // 2
    if len(a) <= half:
        return a, b[: room - len(a)]
    if len(b) <= half:
        return a[: room - len(b)], b
    more = room - half
    return (a[:more], b[:half]) if len(a) > len(b) else (a[:half], b[:more])
