"""Hiding words: how many, which, what becomes of them, and that a step always hides the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from batches_compared import spread_targets
from legato.data.batching.batch import IGNORE, Batch, Inputs
from legato.data.batching.batches import WindowShape
from legato.data.batching.masking import (
    Frame,
    MaskedWindows,
    Masker,
    WordStarts,
    fixed_batches,
    masked_tokenizer,
)
from legato.data.text.tokenizers import NAMES, Tokenizer, TokenizerConfig
from legato.errors import DataError

TEXT = "The unbelievable foxes jumped over lazy dogs. Others, unbelievably, did not jump at all!\n" * 40


def made(name: str) -> Tokenizer:
    size = 300 if name in ("bpe", "unigram", "wordpiece") else None
    return Tokenizer.train(TokenizerConfig(name=name, size=size, masked=True), [TEXT])  # type: ignore[arg-type]


TOKENIZERS = {name: made(name) for name in NAMES}
PIECES = TOKENIZERS["wordpiece"]


def windows(name: str = "wordpiece", whole: bool = False, seed: int = 0, **more: int) -> MaskedWindows:
    tokenizer = TOKENIZERS[name]
    masker = Masker.of(tokenizer, whole_words=whole)
    shape = WindowShape(**{"rows": 4, "window": 34, "seed": seed, **more})
    return MaskedWindows(tokenizer.encode(TEXT), masker, Frame.of(tokenizer), shape)


def hidden(batch: Batch) -> torch.Tensor:
    return spread_targets(batch) != IGNORE


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_fifteen_percent_are_hidden_and_no_mark(name: str, whole: bool) -> None:
    batches = windows(name, whole)
    for step in range(6):
        batch = batches.at(step)
        assert batch.targets is not None
        per_row = hidden(batch).sum(1)
        assert (per_row <= round(0.15 * 32)).all()
        assert (per_row >= 1).all()
        assert not np.isin(batch.targets[batch.targets != IGNORE], list(TOKENIZERS[name].special_ids)).any()


def test_where_nothing_is_hidden_the_text_is_as_it_was() -> None:
    batch = windows().at(0)
    assert batch.targets is not None
    whole = torch.where(hidden(batch), spread_targets(batch), batch.inputs.ids)
    assert (whole[:, 0] == PIECES.cls_id).all()
    assert (whole[:, -1] == PIECES.sep_id).all()
    assert PIECES.decode(whole[0].tolist()) in " ".join([PIECES.decode(PIECES.encode(TEXT).tolist())] * 2)


def test_eight_of_ten_are_masked_one_is_another_token_and_one_stays() -> None:
    masker = Masker.of(PIECES)
    ids = np.full((200, 102), PIECES.id_of("the") or 9)
    ids[:, 0], ids[:, -1] = PIECES.cls_id, PIECES.sep_id
    found = masker.hide(Inputs(torch.from_numpy(ids)), np.random.default_rng(0))
    chosen, read = hidden(found).numpy(), found.inputs.token_ids.numpy()
    assert chosen.sum() == 200 * 15
    masked = (read[chosen] == PIECES.mask_id).mean()
    stays = (read[chosen] == ids[chosen]).mean()
    assert masked == pytest.approx(0.8, abs=0.03)
    assert stays == pytest.approx(0.1, abs=0.03)
    others = read[chosen & (read != PIECES.mask_id)]
    assert not np.isin(others, [*PIECES.special_ids, PIECES.unk_id]).any()


def test_a_step_hides_the_same_whenever_it_is_asked_and_another_epoch_something_else() -> None:
    one, two = windows(), windows()
    two.at(7)
    assert torch.equal(one.at(3).inputs.ids, two.at(3).inputs.ids)
    assert not torch.equal(one.at(3).inputs.ids, one.at(3 + one.steps_per_epoch).inputs.ids)
    assert not torch.equal(one.at(3).inputs.ids, windows(seed=1).at(3).inputs.ids)


def test_an_epoch_shows_every_token_about_once() -> None:
    batches = windows(rows=1)
    seen = sum(batches.at(step).read for step in range(batches.steps_per_epoch))
    assert seen == pytest.approx(len(PIECES.encode(TEXT)) * 34 / 32, rel=0.1)


@pytest.mark.parametrize("whole", [False, True])
def test_places_name_every_hidden_token_once(whole: bool) -> None:
    batch = windows(whole=whole).at(0)
    assert batch.positions is not None
    assert batch.targets is not None
    assert batch.positions.shape == (4, 5)
    assert (batch.targets != IGNORE).sum() == batch.tokens == hidden(batch).sum()


def test_a_row_split_off_keeps_its_places() -> None:
    batch = windows().at(0)
    parts = batch.split(2)
    assert batch.positions is not None
    assert torch.equal(torch.cat([part.positions for part in parts if part.positions is not None]), batch.positions)
    assert sum(part.tokens for part in parts) == batch.tokens


@pytest.mark.parametrize("name", ["wordpiece", "bpe", "unigram", "char"])
def test_whole_words_are_hidden_whole(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    words = WordStarts(tokenizer)
    batches = windows(name, whole=True, window=102)
    for step in range(batches.steps_per_epoch):
        batch = batches.at(step)
        assert batch.targets is not None
        chosen = hidden(batch).numpy()
        ids = torch.where(hidden(batch), spread_targets(batch), batch.inputs.ids).numpy()
        number = np.cumsum(words.starts(ids), axis=1)
        for row in range(len(ids)):
            for word in np.unique(number[row][chosen[row]]):
                assert chosen[row][number[row] == word].all()


def test_a_word_begins_at_a_space_and_goes_on_with_its_pieces() -> None:
    for name in NAMES:
        tokenizer = TOKENIZERS[name]
        ids = tokenizer.encode("foxes jumped unbelievably")
        starts = WordStarts(tokenizer).starts(ids[None])[0]
        text = [tokenizer.token(int(i)) for i in ids]
        assert starts.sum() == 3, text


def test_a_word_longer_than_all_that_is_hidden_is_hidden_piece_by_piece() -> None:
    tokenizer = TOKENIZERS["char"]
    ids = np.full((3, 42), tokenizer.id_of("a") or 0)
    ids[:, 0], ids[:, -1] = tokenizer.cls_id, tokenizer.sep_id
    found = Masker.of(tokenizer, whole_words=True).hide(Inputs(torch.from_numpy(ids)), np.random.default_rng(0))
    assert (hidden(found).sum(1) == 6).all()


@pytest.mark.parametrize("whole", [False, True])
def test_one_token_is_hidden_even_of_the_shortest_row_and_none_of_an_empty_one(whole: bool) -> None:
    masker, frame = Masker.of(PIECES, whole_words=whole), Frame.of(PIECES)
    rows = frame.rows([PIECES.encode("dogs"), np.zeros(0, dtype=int), PIECES.encode("lazy dogs over")])
    found = masker.hide(rows, np.random.default_rng(0))
    assert hidden(found).sum(1).tolist()[:2] == [1, 0]
    assert not hidden(found)[:, 0].any()  # what spare positions point at


def test_padding_is_never_hidden() -> None:
    masker, frame = Masker.of(PIECES, 0.9), Frame.of(PIECES)
    rows = frame.rows([PIECES.encode("lazy dogs"), PIECES.encode("The foxes jumped over lazy dogs.")])
    found = masker.hide(rows, np.random.default_rng(0))
    assert rows.lengths is not None
    end = int(rows.lengths[0])
    assert not hidden(found)[0, end:].any()
    assert (found.inputs.token_ids[0, end:] == PIECES.pad_id).all()


def test_fixed_batches_cover_the_text_and_only_mask() -> None:
    ids = PIECES.encode(TEXT)[:700]
    batches = fixed_batches(ids, Masker.of(PIECES), Frame.of(PIECES), rows=3, window=34)
    assert sum(batch.read for batch in batches) == 700 + 2 * -(-700 // 32)
    for batch, again in zip(
        batches, fixed_batches(ids, Masker.of(PIECES), Frame.of(PIECES), rows=3, window=34), strict=True
    ):
        assert torch.equal(batch.inputs.ids, again.inputs.ids)
        assert (batch.inputs.ids[hidden(batch)] == PIECES.mask_id).all()


def test_a_tokenizer_without_marks_gets_them() -> None:
    plain = Tokenizer.train(TokenizerConfig(name="bpe", size=300), [TEXT])
    marked = masked_tokenizer(plain)
    assert marked.size == plain.size + 4
    assert None not in (marked.mask_id, marked.cls_id, marked.sep_id, marked.pad_id)
    assert marked.encode(TEXT).tolist() == plain.encode(TEXT).tolist()
    assert masked_tokenizer(marked) is marked
    with pytest.raises(DataError, match="no mask"):
        Masker.of(plain)


def test_too_short_a_text_is_refused() -> None:
    with pytest.raises(DataError, match="fewer than one batch of 4 × 9000"):
        windows(window=9000)
