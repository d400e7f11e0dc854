"""How a model reads texts: the special tokens it wants around them, where words begin, what is cut off.

    encoders                    [CLS] a [SEP]       [CLS] a [SEP] b [SEP]
    decoders, recurrent models  a                   a <eos> b

A decoder whose tokenizer's file puts special tokens around texts reads them so: that of a model trained here has
`<eos>` before every text, as a prompt has.

Every task whose data are rows reads through this, in training and in use alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import numpy as np

from legato.data.batching.examples import Example
from legato.data.text.tokenizers import AnyTokenizer, Tokenizer
from legato.data.text.word_bytes import word_bytes
from legato.errors import TextsCut, warn

AT_ONCE = 1024  # sentences that are cut side by side


@dataclass
class TextReader:
    """Texts, pairs of texts and words to rows."""

    tokenizer: AnyTokenizer
    max_length: int | None = None  # tokens of a row, special tokens included
    segments: bool = False  # whether the model tells first texts from second ones
    characters: bool = False  # whether it reads the bytes of words
    adds_special_tokens: bool = False  # whether special tokens stand around a text
    cut: int = field(default=0, init=False, compare=False)  # texts and pairs that lost their ends, not yet told

    @property
    def padding(self) -> int:
        return self.tokenizer.pad_id or 0

    def words(self, words: Sequence[str]) -> Example:
        return self.sentences([words])[0]

    def texts(self, texts: Iterable[str]) -> list[Example]:
        """A row for each text; an empty one is still one token."""
        held = list(texts)
        if self.characters:
            return [self._spelt(text.split()) for text in held]
        return [self._one(ids.tolist()) for ids in self.tokenizer.encode_many(held)]

    def pairs(self, pairs: Iterable[tuple[str, str]]) -> list[Example]:
        """A row for each pair; what is too long is cut where it is longest."""
        held = list(pairs)
        if self.characters:
            return [self._spelt_pair(first.split(), second.split()) for first, second in held]
        firsts = self.tokenizer.encode_many([first for first, _ in held])
        seconds = self.tokenizer.encode_many([second for _, second in held])
        return [self._two(a.tolist(), b.tolist()) for a, b in zip(firsts, seconds, strict=True)]

    def sentences(self, sentences: Sequence[Sequence[str]]) -> list[Example]:
        """A row for each list of words, with each one's first place; those beyond `max_length` are absent."""
        if self.tokenizer.name == "word" or self.characters:
            return [self._characters(words) if self.characters else self._whole_words(words) for words in sentences]
        assert isinstance(self.tokenizer, Tokenizer)
        return [self._of_pieces(found) for found in pieces_of_words(self.tokenizer, sentences)]

    def warn_of_cuts(self) -> None:
        """A warning that says how many of the texts and pairs so far were cut; the next one begins to count anew."""
        count, self.cut = self.cut, 0
        if count and self.max_length is not None:
            warn(TextsCut(count, self.max_length))

    # --- rows ----------------------------------------------------------------------------------------

    @cached_property
    def alone(self) -> tuple[list[int], list[int]]:
        """The special tokens before and behind a text."""
        if self.adds_special_tokens:
            first, last = self.tokenizer.cls_and_sep
            return [first], [last]
        if not isinstance(self.tokenizer, Tokenizer):
            return [], []
        before, _, behind = template_tokens(self.tokenizer, pair=False)
        return before, behind

    @cached_property
    def paired(self) -> tuple[list[int], list[int], list[int]]:
        """Special tokens before, between and behind two texts: RoBERTa has two in the middle, a decoder its own."""
        tokenizer = self.tokenizer
        if self.adds_special_tokens:
            first, last = tokenizer.cls_and_sep
            doubled = isinstance(tokenizer, Tokenizer) and count_pair_template(tokenizer) == 4
            return [first], [last] * (2 if doubled else 1), [last]
        if isinstance(tokenizer, Tokenizer) and (tokenizer.follows_own_template or count_pair_template(tokenizer)):
            return template_tokens(tokenizer, pair=True)
        return [], [tokenizer.eos_id], []

    def room(self, special: int) -> int | None:
        """Tokens of text that a row with so many special tokens may have."""
        return None if self.max_length is None else max(self.max_length - special, 1)

    def _one(self, ids: list[int]) -> Example:
        before, behind = self.alone
        room = self.room(len(before) + len(behind))
        self.cut += room is not None and len(ids) > room
        ids = [*before, *ids[:room], *behind]
        return Example(ids or [self.tokenizer.eos_id])  # a text alone is a first text

    def _two(self, a: list[int], b: list[int]) -> Example:
        before, between, behind = self.paired
        room = self.room(len(before) + len(between) + len(behind))
        self.cut += room is not None and len(a) + len(b) > room
        a, b = cut_longest_first(a, b, room)
        ids = [*before, *a, *between, *b, *behind]
        kinds = [0] * (len(before) + len(a) + len(between)) + [1] * (len(b) + len(behind))
        return Example(ids or [self.tokenizer.eos_id], kinds if self.adds_special_tokens and self.segments else None)

    def _of_pieces(self, pieces: Sequence[Sequence[int]]) -> Example:
        """Words as their tokens; one that does not fit whole is left out with all behind it."""
        before, behind = self.alone
        room = self.room(len(before) + len(behind))
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
        row.positions = [start + len(before) for start in starts]
        return row

    def _whole_words(self, words: Sequence[str]) -> Example:
        return self._of_pieces([[self._id(word)] for word in words])

    def _characters(self, words: Sequence[str]) -> Example:
        row = self._whole_words(words)
        assert row.positions is not None
        found = word_bytes(list(words[: len(row.positions)]))
        row.characters = np.zeros((len(row.ids), found.shape[1] if found.size else 1), dtype=np.int64)
        if row.positions:
            row.characters[row.positions] = found
        return row

    def _spelt(self, words: Sequence[str]) -> Example:
        """A text as its words; those beyond `max_length` are cut off."""
        row = self._characters(words)
        self.cut += len(row.positions or ()) < len(words)
        return row

    def _spelt_pair(self, first: Sequence[str], second: Sequence[str]) -> Example:
        """Both, and the EOS token between them, which is spelt with no letters."""
        row = self._spelt([*first, "", *second])
        assert row.positions is not None
        if len(first) < len(row.positions):
            middle = row.positions[len(first)]
            row.ids[middle] = self.tokenizer.eos_id
            assert row.characters is not None
            row.characters[middle] = 0
        return row

    def _id(self, word: str) -> int:
        tokenizer = self.tokenizer
        found = tokenizer.id_of(word.lower() if tokenizer.lowercase else word)
        if found is None or found in tokenizer.special_ids:  # a special token that somebody types is no special token
            found = tokenizer.unk_id
        return tokenizer.eos_id if found is None else found


def parting(tokenizer: AnyTokenizer) -> AnyTokenizer:
    """The same tokenizer, whose file puts a special token between two texts: where it has none, `<eos>`."""
    if not isinstance(tokenizer, Tokenizer) or not (tokenizer.follows_own_template or count_pair_template(tokenizer)):
        return tokenizer  # one that was made here is read so
    before, between, behind = template_tokens(tokenizer, pair=True)
    if between:
        return tokenizer
    first, _, last = template_tokens(tokenizer, pair=False)
    return tokenizer.with_template((first, last), (before, [tokenizer.eos_id], behind))


def with_eos(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer, whose file puts `<eos>` behind each text, where it puts nothing there."""
    before, _, behind = template_tokens(tokenizer, pair=False)
    if behind:
        return tokenizer
    eos = [tokenizer.eos_id]
    return tokenizer.with_template((before, eos), (before, eos, eos))


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


# --- words and templates -------------------------------------------------------------------------------


def pieces_of_words(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]) -> list[list[list[int]]]:
    """The tokens of every word of every sentence; a word that would have none is unknown.

    The words are joined by spaces and cut as any text, so that they get the tokens that they would have there; where
    each token stands says whose it is.
    """
    found: list[list[list[int]]] = []
    for start in range(0, len(sentences), AT_ONCE):
        # A word without spaces in it, which would be two.
        part = [["_".join(word.split()) or "_" for word in words] for words in sentences[start : start + AT_ONCE]]
        encodings = tokenizer.library.encode_batch([" ".join(words) for words in part], add_special_tokens=False)
        for words, encoding in zip(part, encodings, strict=True):
            found.append(_grouped(tokenizer, words, encoding))
    return found


def count_pair_template(tokenizer: Tokenizer) -> int:
    """How many special tokens the file puts around and between two texts."""
    return int(tokenizer.full_library.num_special_tokens_to_add(True))


def template_tokens(tokenizer: Tokenizer, pair: bool) -> tuple[list[int], list[int], list[int]]:
    """The special tokens that the file puts before, between and behind texts: one text, or a pair of them."""
    count = int(tokenizer.full_library.num_special_tokens_to_add(pair))
    if not count:
        return [], [], []
    for text in _samples(tokenizer):
        found = tokenizer.full_library.encode(text, text) if pair else tokenizer.full_library.encode(text)
        whose = found.sequence_ids  # None for special tokens
        if (1 if pair else 0) not in whose:
            continue
        first = [place for place, text in enumerate(whose) if text == 0]
        last = [place for place, text in enumerate(whose) if text == 1] or first
        ids = found.ids
        return ids[: first[0]], ids[first[-1] + 1 : last[0]], ids[last[-1] + 1 :]
    return tokenizer.encode_with_special_tokens(""), [], []


def _samples(tokenizer: Tokenizer) -> Iterator[str]:
    """Texts of which one should be in the vocabulary."""
    yield "a"
    yield from (tokenizer.decode([index]) for index in range(tokenizer.size) if index not in tokenizer.special_ids)


def _grouped(tokenizer: Tokenizer, words: Sequence[str], encoding: object) -> list[list[int]]:
    """The tokens by the word that they stand in."""
    ends = list(accumulate(len(word) + 1 for word in words))  # where the next word begins, a space between
    groups: list[list[int]] = [[] for _ in words]
    word = 0
    for index, (first, last) in zip(encoding.ids, encoding.offsets, strict=True):  # type: ignore[attr-defined]
        # By its last letter: its first may be the space before the word.
        while word < len(words) - 1 and max(first, last - 1) >= ends[word]:
            word += 1
        if words:
            groups[word].append(index)
    unknown = tokenizer.eos_id if tokenizer.unk_id is None else tokenizer.unk_id
    return [group or [unknown] for group in groups]
