"""Pairs of sentences for BERT's second lesson: does the one follow the other?

    [CLS] A [SEP] B [SEP]         segments 0 … 0 1 … 1; B follows A, or is from elsewhere half of the time

A document is a paragraph between blank lines, or a row of a table; its sentences are its lines, a long line being
split where . ! or ? end a sentence. A and B are each as many sentences as fill the window together; what is too long
loses tokens at either end (Devlin et al. 2019, appendix A.2). One pair in ten is shorter, so that short texts are
known too. Whether B follows must not show in how a pair is cut: both kinds end with whole sentences, of about the
same length, and lose tokens in the same way; where a single sentence was split, a random B is part of one, too.

Notable: which pairs there are is drawn anew each epoch, as a list of borders in one long row of tokens; a batch is
cut from it. Epochs differ a little in how many pairs they give; the first one's number counts for all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from legato.data.batching.batch import Batch, Inputs
from legato.data.batching.batches import Array, BatchShape, mix_seed
from legato.data.batching.masking import Frame, Masker
from legato.data.formats.text import Text
from legato.data.text.tokenizers import AnyTokenizer
from legato.errors import DataError

LONG = 200  # characters; a longer line is more than one sentence
SHORT = 0.1  # share of pairs that are shorter than the window
FOLLOWS, RANDOM = 0, 1  # as Hugging Face numbers them

_BLANK = re.compile(r"\n[^\S\n]*\n\s*")
_END = re.compile(r"(?<=[.!?])[\"'”»)\]]*\s+")


def documents_of(text: Text) -> Iterator[list[str]]:
    """The sentences of each document; a paragraph of one sentence, as a heading is, joins the next."""
    parts = _BLANK.split(text.documents[0]) if len(text.documents) == 1 else text.documents
    waiting: list[str] = []
    for part in parts:
        lines = [stripped for line in part.split("\n") if (stripped := line.strip())]
        for line in lines:
            waiting += split_sentences(line) if len(lines) == 1 or len(line) > LONG else [line]
        if len(waiting) > 1:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def split_sentences(line: str) -> list[str]:
    """
    >>> split_sentences("It rains. Does it? Yes")
    ['It rains.', 'Does it?', 'Yes']
    """
    borders = [0, *(end.end() for end in _END.finditer(line)), len(line)]
    return [sentence for a, b in pairwise(borders) if (sentence := line[a:b].strip())]


@dataclass
class DocumentSentences:
    """All sentences as one row of tokens, with the borders of sentences and of documents."""

    ids: Array  # (tokens,)
    borders: Array  # (sentences + 1,), where each begins in `ids`
    documents: Array  # (documents + 1,), the number of each one's first sentence

    @classmethod
    def of(cls, text: Text, tokenizer: AnyTokenizer, most: int) -> DocumentSentences:
        """`most` tokens a sentence: a longer one is cut, so that there is always a part that follows another."""
        told = list(documents_of(text))
        # Where spaces are part of tokens, a sentence brings the one that parts it from what came before.
        lines = [
            " " * bool(n and not tokenizer.spaced) + line for document in told for n, line in enumerate(document)
        ]
        counts = [len(document) for document in told]
        ends = set(np.cumsum(counts).tolist())  # how many sentences there are at the end of each document
        special = list(tokenizer.special_ids)
        pieces: list[Array] = []
        documents = [0]
        for number, ids in enumerate(tokenizer.encode_many(lines), start=1):
            ids = ids[~np.isin(ids, special)]  # as the end of line is, in a vocabulary of words
            pieces += [ids[i : i + most] for i in range(0, len(ids), most)]
            if number in ends:
                documents.append(len(pieces))
        row = np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int32)
        return cls(row, np.cumsum([0, *map(len, pieces)]), np.unique(documents))


class SentencePairs:
    """Batches of pairs, drawn and hidden anew each epoch."""

    def __init__(
        self,
        sentences: DocumentSentences,
        masker: Masker,
        frame: Frame,
        shape: BatchShape,
        *,
        window: int,
    ) -> None:
        """`window` counts three special tokens; with a `fixed_shape` rows are padded to it, as a recorded step needs.

        A batch has as many rows as give `batch_tokens` tokens on average, but at most four times those of full rows.
        """
        self.sentences, self.masker, self.frame = sentences, masker, frame
        self.window, self.seed, self.fixed_shape = window, shape.seed, shape.fixed_shape
        name, batch_tokens = shape.name, shape.batch_tokens
        if len(sentences.borders) < 4:
            raise DataError(f"{name} has fewer than three sentences, too few for pairs; set data.next_sentence=false")
        self._plan(0)
        lengths = (self._pairs[:, [1, 3]] - self._pairs[:, [0, 2]]).sum(1) + 3
        filled = float(lengths.mean()) if len(lengths) else float(window)
        full = batch_tokens // window
        self.rows = rows = max(1, min(int(batch_tokens / filled), 4 * full))
        self.steps_per_epoch = len(self._pairs) // rows
        self.tokens_per_step = int(rows * filled)
        if self.steps_per_epoch == 0:
            raise DataError(
                f"{name} gives {len(self._pairs):,} pairs of sentences, fewer than one batch of {rows}; "
                "give a longer text, or lower train.batch_tokens or data.window"
            )

    def _plan(self, epoch: int) -> None:
        draw = np.random.default_rng(mix_seed(self.seed, "pairs", epoch))
        pairs = draw_pairs(self.sentences, self.window - 3, draw)
        self._pairs = pairs[draw.permutation(len(pairs))]
        self._planned = epoch

    def at(self, step: int) -> Batch:
        epoch, index = divmod(step, self.steps_per_epoch)
        if epoch != self._planned:
            self._plan(epoch)
        wanted = (index * self.rows + np.arange(self.rows)) % len(self._pairs)
        draw = np.random.default_rng(mix_seed(self.seed, "mask", step))
        width = self.window if self.fixed_shape else None
        return pair_batch(self.sentences.ids, self._pairs[wanted], self.masker, self.frame, draw, width)


def pair_batch(
    ids: Array,
    pairs: Array,
    masker: Masker,
    frame: Frame,
    draw: np.random.Generator,
    width: int | None = None,
    all_masked: bool = False,
) -> Batch:
    """The rows of `pairs` (B, 5), as `draw_pairs` gives them, with tokens hidden; all as wide as `width` says."""
    a, middle, c, d = (column[:, None] for column in pairs.T[:4])  # (B, 1) each
    second = middle - a + 2  # where the second sentence begins in its row
    lengths = (second + d - c + 1)[:, 0]
    at = np.arange(width or lengths.max())  # (T,)
    of_first, of_second = (at >= 1) & (at < second - 1), (at >= second) & (at < second + d - c)
    taken = ids[np.where(of_first, a + at - 1, np.where(of_second, c + at - second, 0))]
    rows = np.where(of_first | of_second, taken, frame.padding).astype(np.int64)
    rows[:, 0] = frame.first
    rows[(at == second - 1) | (at == lengths[:, None] - 1)] = frame.last
    segments = ((at >= second) & (at < lengths[:, None])).astype(np.int64)
    read = [torch.from_numpy(part) for part in (rows, lengths, segments)]
    inputs = Inputs(read[0], lengths=read[1], segments=read[2])
    batch = masker.hide(inputs, draw, all_masked=all_masked, fixed_shape=width is not None)
    batch.labels = torch.from_numpy(pairs[:, 4].copy())
    return batch


def draw_pairs(sentences: DocumentSentences, room: int, draw: np.random.Generator) -> Array:
    """Pairs that go once through all documents: (start A, end A, start B, end B, FOLLOWS or RANDOM), in tokens."""
    borders, documents = sentences.borders, sentences.documents
    pairs: list[tuple[int, int, int, int, int]] = []
    for first, last in pairwise(documents.tolist()):
        at = first
        while at < last:
            wish = room if draw.random() >= SHORT else int(draw.integers(2, room + 1))
            end = int(np.searchsorted(borders, borders[at] + wish))  # so many sentences are enough
            end = min(max(end, at + 1), last)
            start, stop = int(borders[at]), int(borders[end])
            alone = end - at == 1
            if alone and stop - start == 1:  # of one token
                at = end
                continue
            if alone:  # its rest follows its beginning
                split, middle = end, start + int(draw.integers(1, stop - start))
            else:
                split = int(draw.integers(at + 1, end))
                middle = int(borders[split])
            if draw.random() < 0.5:
                need = min(wish, stop - start) - (middle - start)  # as long as what follows, so that no length tells
                second = _elsewhere(sentences, first, last, at if alone else split, need, alone, draw)
                label, at = RANDOM, split  # what was not used comes again
            else:
                second = middle, stop
                label, at = FOLLOWS, end
            pairs.append((*_cut(start, middle, *second, max(wish, 2), draw), label))
    return np.array(pairs, dtype=np.int64).reshape(-1, 5)


def _elsewhere(
    sentences: DocumentSentences,
    first: int,
    last: int,
    following: int,
    need: int,
    inside: bool,
    draw: np.random.Generator,
) -> tuple[int, int]:
    """Where random sentences of one document, of `need` tokens or more, begin and end.

    They are of another document than that of the sentences `first` to `last`; where there is none, they begin with
    any sentence but the one that is `following`. With `inside` they begin within a sentence, as what follows does
    where a sentence was split: where a pair is cut must not tell which kind it is.
    """
    borders, documents = sentences.borders, sentences.documents
    count = len(borders) - 1
    if count > last - first:
        chosen = int(draw.integers(count - (last - first)))
        chosen += (last - first) * (chosen >= first)
    else:
        chosen = int(draw.integers(count - 1))
        chosen += chosen >= following
    begin, after = borders[chosen : chosen + 2].tolist()
    if inside and after - begin > 1:
        begin += int(draw.integers(1, after - begin))
    limit = borders[documents[np.searchsorted(documents, chosen, "right")]]
    end = np.searchsorted(borders, min(begin + max(need, 1), limit))  # whole sentences: `_cut` makes both kinds fit
    return begin, int(borders[end])


def _cut(a: int, b: int, c: int, d: int, room: int, draw: np.random.Generator) -> tuple[int, int, int, int]:
    """A and B cut to `room` tokens together: the longer one loses tokens first, some before and some behind."""
    first, second = b - a, d - c
    if first + second > room:
        keep_first = min(first, max(room - second, (room + 1) // 2))
        keep_second = room - keep_first
        a += int(draw.integers(first - keep_first + 1))
        c += int(draw.integers(second - keep_second + 1))
        b, d = a + keep_first, c + keep_second
    return a, b, c, d
