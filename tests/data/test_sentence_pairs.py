"""Pairs of sentences: what a document and a sentence are, and that half of the seconds follow."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from batches_compared import spread_targets
from legato.data.batching.batch import IGNORE
from legato.data.batching.batches import BatchShape
from legato.data.batching.masking import Frame, Masker
from legato.data.batching.sentence_pairs import (
    FOLLOWS,
    RANDOM,
    DocumentSentences,
    SentencePairs,
    documents_of,
    draw_pairs,
    split_sentences,
)
from legato.data.formats.text import Text
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.errors import DataError

# Each word tells its document and its sentence: d3s2 is the second of the third.
DOCUMENTS = [[f"d{d}s{s} " * 5 for s in range(9)] for d in range(12)]
FILE = "\n\n".join("\n".join(sentences) for sentences in DOCUMENTS)
TOKENIZER = Tokenizer.train(TokenizerConfig(name="word", masked=True), [FILE])


def text(*documents: str) -> Text:
    return Text("a test", list(documents), "0")


def pairs(written: Text | None = None, window: int = 35, rows: int = 4, seed: int = 0, **more: bool) -> SentencePairs:
    sentences = DocumentSentences.of(written or text(FILE), TOKENIZER, (window - 3) // 2)
    masker, frame = Masker.of(TOKENIZER), Frame.of(TOKENIZER)
    shape = BatchShape(batch_tokens=rows * window, seed=seed, **more)
    return SentencePairs(sentences, masker, frame, shape, window=window)


def test_documents_lie_between_blank_lines_and_sentences_are_lines() -> None:
    assert list(documents_of(text("One.\nTwo!\n\n \nThree?\nFour"))) == [["One.", "Two!"], ["Three?", "Four"]]


def test_a_heading_joins_what_follows() -> None:
    assert list(documents_of(text("Title\n\nOne\nTwo\n\nEnd"))) == [["Title", "One", "Two"], ["End"]]


def test_rows_of_a_table_are_documents() -> None:
    assert list(documents_of(text("One\nTwo", "Three\n\nFour"))) == [["One", "Two"], ["Three", "Four"]]


def test_a_document_of_one_line_is_split_at_the_ends_of_sentences() -> None:
    assert list(documents_of(text("It rains. Does it? Yes, 3.5 mm!"))) == [["It rains.", "Does it?", "Yes, 3.5 mm!"]]
    assert split_sentences("no end at all") == ["no end at all"]


def test_a_long_line_is_split_too() -> None:
    line = "A sentence of some words. " * 20
    found = next(iter(documents_of(text(line + "\nshort. line."))))
    assert len(found) == 21
    assert found[-1] == "short. line."


def test_half_of_the_seconds_follow() -> None:
    sentences = DocumentSentences.of(text(FILE), TOKENIZER, 16)
    labels = np.concatenate([draw_pairs(sentences, 32, np.random.default_rng(s))[:, 4] for s in range(20)])
    assert labels.mean() == pytest.approx(0.5, abs=0.05)


def test_what_follows_is_of_the_same_document_and_what_is_random_is_not() -> None:
    sentences = DocumentSentences.of(text(FILE), TOKENIZER, 16)
    starts = sentences.borders[sentences.documents]
    found = draw_pairs(sentences, 32, np.random.default_rng(1))
    document = np.searchsorted(starts, found[:, [0, 2]], "right")
    same = document[:, 0] == document[:, 1]
    assert same[found[:, 4] == FOLLOWS].all()
    assert not same[found[:, 4] == RANDOM].any()
    assert (found[:, 2] >= found[:, 1])[found[:, 4] == FOLLOWS].all()


@pytest.mark.parametrize("most", [2, 5, 11, 59])
def test_where_a_pair_is_cut_does_not_tell_whether_it_follows(most: int) -> None:
    draw = np.random.default_rng(0)
    counts = draw.integers(most // 3 + 1, most + 1, 4000 // most)  # sentences of each document
    borders = np.cumsum([0, *draw.integers(8, 40, counts.sum())])
    sentences = DocumentSentences(np.arange(borders[-1]), borders, np.cumsum([0, *counts]))
    found = draw_pairs(sentences, 125, draw)
    whole = np.isin(found[:, :4], borders).tolist()  # (pairs, 4): which of its borders are those of sentences
    seen = Counter((*row, int(label)) for row, label in zip(whole, found[:, 4], strict=True))
    best = sum(max(seen[*kind, FOLLOWS], seen[*kind, RANDOM]) for kind in {key[:4] for key in seen})
    assert best / len(found) < 0.6


def test_pairs_fit_and_neither_side_is_empty() -> None:
    for room in (2, 3, 8, 32, 400):
        sentences = DocumentSentences.of(text(FILE), TOKENIZER, max(room // 2, 1))
        found = draw_pairs(sentences, room, np.random.default_rng(2))
        first, second = found[:, 1] - found[:, 0], found[:, 3] - found[:, 2]
        assert (first > 0).all()
        assert (second > 0).all()
        assert (first + second <= room).all()


def test_most_pairs_fill_the_window() -> None:
    long = text("\n\n".join("\n".join(f"w{n} " * 5 for n in range(60)) for _ in range(6)))
    batches = pairs(long, window=35)
    lengths = torch.cat(
        [x for s in range(batches.steps_per_epoch) if (x := batches.at(s).inputs.lengths) is not None]
    )
    assert (lengths == 35).float().mean() > 0.6


def test_a_row_reads_cls_first_sep_second_sep() -> None:
    batch = pairs().at(0)
    assert batch.targets is not None
    assert batch.inputs.segments is not None
    assert batch.inputs.lengths is not None
    ids = torch.where(spread_targets(batch) == IGNORE, batch.inputs.ids, spread_targets(batch))
    for row, kinds, length in zip(ids, batch.inputs.segments, batch.inputs.lengths, strict=True):
        ends = (row == TOKENIZER.sep_id).nonzero().flatten().tolist()
        assert row[0] == TOKENIZER.cls_id
        assert len(ends) == 2
        assert ends[1] == length - 1
        assert kinds.tolist() == [0] * (ends[0] + 1) + [1] * (ends[1] - ends[0]) + [0] * (len(row) - ends[1] - 1)


def test_a_step_gives_the_same_pairs_and_another_epoch_others() -> None:
    one, two = pairs(), pairs()
    two.at(one.steps_per_epoch * 2)
    assert torch.equal(one.at(1).inputs.ids, two.at(1).inputs.ids)
    assert torch.equal(one.at(1).inputs.ids, pairs().at(1).inputs.ids)
    assert not torch.equal(
        one.at(1).inputs.ids, one.at(1 + one.steps_per_epoch).inputs.ids[:, : one.at(1).inputs.ids.shape[1]]
    )


def test_alike_batches_have_one_shape() -> None:
    batches = pairs(fixed_shape=True)
    shapes = {batches.at(step).inputs.ids.shape for step in range(batches.steps_per_epoch)}
    assert shapes == {torch.Size([batches.rows, 35])}


def test_a_step_reads_about_as_many_tokens_as_asked_for() -> None:
    speeches = text("\n\n".join(f"who is it {n}\nit is me {n}" for n in range(400)))
    batches = pairs(speeches, window=35, rows=8)
    read = [batches.at(step).read for step in range(batches.steps_per_epoch)]
    assert batches.rows > 8
    assert 0.8 * 280 < sum(read) / len(read) < 1.2 * 280


def test_a_single_document_draws_from_elsewhere_in_itself() -> None:
    batches = pairs(text("\n".join(f"s{n} " * 5 for n in range(80))))
    labels = torch.cat([x for s in range(batches.steps_per_epoch) if (x := batches.at(s).labels) is not None])
    assert 0.2 < labels.float().mean() < 0.8


def test_too_little_text_is_refused() -> None:
    with pytest.raises(DataError, match="too few for pairs"):
        pairs(text("one line"))
    with pytest.raises(DataError, match="fewer than one batch"):
        pairs(rows=10_000)
