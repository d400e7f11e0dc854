"""Documents packed into rows: none lost, none seen from another, one shape, a pure function of the step."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batches_compared import same
from legato.data.batching.batch import Batch
from legato.data.batching.batches import Packed, WindowShape
from legato.data.cache import cached_ids, document_starts
from legato.data.formats.text import Text
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.errors import DataError

EOS = 0
LENGTHS = st.lists(st.integers(0, 12), min_size=2, max_size=30)


def packed(lengths: list[int], *, start: int = EOS, rows: int = 2, window: int = 5, seed: int = 0) -> Packed:
    """Documents whose tokens are 100·(number + 1) + place: each tells where it stands."""
    documents = [[EOS, *(100 * (i + 1) + place for place in range(n))] for i, n in enumerate(lengths)]
    starts = np.cumsum([0, *(len(d) for d in documents[:-1])])
    ids = np.concatenate([np.array(d, dtype=np.int32) for d in documents])
    return Packed(ids, starts, WindowShape(rows=rows, window=window, seed=seed), start=start, eos=EOS)


def fits(lengths: list[int]) -> bool:
    return sum(lengths) + len(lengths) >= 10


def epoch_of(batches: Packed, epoch: int) -> list[Batch]:
    first = epoch * batches.steps_per_epoch
    return [batches.at(step) for step in range(first, first + batches.steps_per_epoch)]


@given(lengths=LENGTHS.filter(fits), epoch=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_a_target_is_the_next_token_of_the_same_document_or_its_end(lengths: list[int], epoch: int) -> None:
    for batch in epoch_of(packed(lengths), epoch):
        assert batch.targets is not None
        for token, target in zip(batch.inputs.ids.flatten().tolist(), batch.targets.flatten().tolist(), strict=True):
            number, place = divmod(token, 100)
            if token == EOS:  # a first token, or the end of an empty document
                assert target == EOS or target % 100 == 0
            else:
                assert target == (EOS if place + 1 == lengths[number - 1] else token + 1)


@given(lengths=LENGTHS.filter(fits), epoch=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_a_border_is_where_a_document_begins(lengths: list[int], epoch: int) -> None:
    for batch in epoch_of(packed(lengths), epoch):
        assert batch.inputs.document_ids is not None
        for ids, documents in zip(batch.inputs.ids.tolist(), batch.inputs.document_ids.tolist(), strict=True):
            assert documents[0] == 0
            for (_, before), (token, after) in pairwise(zip(ids, documents, strict=True)):
                assert after - before == (token == EOS)


@given(lengths=LENGTHS.filter(fits), epoch=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_a_token_is_read_at_most_once_an_epoch_and_few_are_left_out(lengths: list[int], epoch: int) -> None:
    batches = packed(lengths)
    seen = Counter(token for batch in epoch_of(batches, epoch) for token in batch.inputs.ids.flatten().tolist())
    assert all(count == 1 for token, count in seen.items() if token != EOS)
    assert sum(seen.values()) > sum(lengths) + len(lengths) - batches.tokens_per_step


@given(steps=st.lists(st.integers(0, 60), min_size=1, max_size=6), seed=st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_a_batch_depends_on_the_step_alone(steps: list[int], seed: int) -> None:
    used = packed([3, 9, 0, 7, 5], seed=seed)
    for step in steps:
        mine, other = used.at(step), packed([3, 9, 0, 7, 5], seed=seed).at(step)
        assert same(mine, other)
        assert mine.tokens == mine.read == mine.inputs.token_ids.numel()


def test_seeds_and_epochs_differ() -> None:
    lengths = [7] * 20
    firsts = [packed(lengths, seed=seed).at(step).inputs.ids.tolist() for seed in (0, 1) for step in (0, 16)]
    assert len({str(first) for first in firsts}) == 4


def test_every_document_is_read_behind_the_start_mark_and_ends_with_the_end_mark() -> None:
    batches = packed([4] * 10, start=7, window=5, rows=1)
    tokens = [pair for s in range(batches.steps_per_epoch) for pair in _pairs(batches.at(s))]
    assert all((a == 7) == (b % 100 == 0 and b != EOS) for a, b in tokens)
    assert any(b == EOS for _, b in tokens)
    assert all(a != EOS for a, _ in tokens)


def _pairs(batch: Batch) -> list[tuple[int, int]]:
    assert batch.targets is not None
    return list(zip(batch.inputs.ids.flatten().tolist(), batch.targets.flatten().tolist(), strict=True))


def test_too_little_text_is_refused_with_the_numbers() -> None:
    with pytest.raises(DataError, match=r"holds 9 tokens, fewer than one batch of 2 × 5"):
        packed([3, 4])


@pytest.mark.parametrize("name", ["char", "word", "bpe"])
@pytest.mark.parametrize(
    "documents", [["a b\nc\n", "d\n", "e f"], ["a b", "c d\n", "\n", "e"], ["a <eos> b", " ", "c\n\nd\n"]]
)
def test_starts_are_where_each_document_is_read_behind_its_mark(name: str, documents: list[str]) -> None:
    text = Text("t", documents, f"{name} {documents}")
    tokenizer = Tokenizer.train(TokenizerConfig(name=name), documents)
    ids = cached_ids(text, tokenizer)
    starts = document_starts(ids, text, tokenizer)
    assert len(starts) == len(documents)
    for start, document in zip(starts, documents, strict=True):
        expected = tokenizer.encode(document).tolist()
        assert ids[start] == tokenizer.eos_id
        assert ids[start + 1 : start + 1 + len(expected)].tolist() == expected
