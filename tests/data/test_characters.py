"""Words as the bytes that spell them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from legato.data.batching.batches import Array
from legato.data.batching.examples import Example, collate_examples
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.data.text.word_bytes import BEGIN, END, MOST, PADDING, SYMBOLS, vocabulary_bytes, word_bytes


def spelt(row: Array) -> bytes:
    """The bytes back from a row."""
    inner = row[(row != PADDING) & (row != BEGIN) & (row != END)]
    return bytes((inner - 1).tolist())


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=6))
def test_words_short_enough_are_spelt_in_full(words: list[str]) -> None:
    table = word_bytes(words, most=200)
    assert [spelt(row) for row in table] == [word.encode() for word in words]


@given(st.lists(st.text(min_size=1).map(lambda s: s.encode("utf-8", "ignore").decode()), min_size=1, max_size=4))
def test_a_word_stands_between_its_marks_and_before_padding(words: list[str]) -> None:
    table = word_bytes(words)
    assert table.shape[1] <= MOST
    assert ((table >= 0) & (table < SYMBOLS)).all()
    for word, row in zip(words, table, strict=True):
        used = np.flatnonzero(row)
        if not word:
            assert not used.size
            continue
        assert row[0] == BEGIN
        assert row[used[-1]] == END
        assert used.tolist() == list(range(len(used)))


def test_a_long_word_loses_its_end_but_not_its_mark() -> None:
    row = word_bytes(["x" * 99])[0]
    assert len(row) == MOST
    assert spelt(row) == b"x" * (MOST - 2)
    assert row[-1] == END


def test_no_words_give_an_empty_table() -> None:
    assert word_bytes([]).shape[0] == 0


def test_an_empty_word_is_a_row_of_zeros() -> None:
    assert not word_bytes(["", "a"])[0].any()


def test_a_vocabulary_of_words_is_spelt_and_its_marks_are_not() -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(name="word"), ["the naïve cat\nthe end\n"])
    table = vocabulary_bytes(tokenizer)
    assert len(table) == tokenizer.size
    for word in ("the", "naïve", "cat", "<unk>"):
        index = tokenizer.id_of(word)
        assert index is not None
        assert spelt(table[index]) == word.encode()
    assert not table[tokenizer.eos_id].any()


def test_pieces_are_spelt_without_the_space_before_them() -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(name="bpe", size=270), ["the cat the cat the cat the é"])
    pieces = tokenizer.pieces
    assert pieces is not None
    table = vocabulary_bytes(tokenizer)
    joined = [index for index in range(tokenizer.size) if pieces[index].startswith(b" ") and len(pieces[index]) > 1]
    assert joined
    assert [spelt(table[index]) for index in joined] == [pieces[index][1:] for index in joined]


def test_batches_of_few_shapes_have_few_widths_of_words() -> None:
    rows = [Example([1, 2], characters=word_bytes(["a", "abcdefg"])), Example([3], characters=word_bytes(["abc"]))]
    loose, few = collate_examples(rows).inputs.characters, collate_examples(rows, pad_to=8).inputs.characters
    assert loose is not None
    assert few is not None
    assert loose.shape == (2, 2, 9)
    assert few.shape == (2, 8, 16)
    assert (few[:, :2, :9] == loose).all()
    assert int((few != 0).sum()) == int((loose != 0).sum())
