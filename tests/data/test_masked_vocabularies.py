"""Vocabularies with a mask: BERT's marks, whatever the kind, and what other libraries make of the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from legato.config import validate
from legato.data.text.text_reader import TextReader
from legato.data.text.tokenizers import NAMES, Tokenizer, TokenizerConfig
from legato.errors import ConfigError

TEXT = "The foxes jumped over lazy dogs.\nOthers, unbelievably, did not jump at all!\n" * 10


def made(name: str, **more: object) -> Tokenizer:
    size = 290 if name in ("bpe", "unigram", "wordpiece") else None
    return Tokenizer.train(validate(TokenizerConfig, {"name": name, "size": size, "masked": True, **more}), [TEXT])


TRAINED = {name: made(name) for name in NAMES}


def test_wordpiece_numbers_the_marks_as_bert_does() -> None:
    tokenizer = TRAINED["wordpiece"]
    assert [tokenizer.token(i) for i in range(5)] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id) == (
        0,
        1,
        2,
        3,
        4,
    )
    assert tokenizer.eos_id == 3
    assert tokenizer.name == "wordpiece"
    assert made("wordpiece", lowercase=True).lowercase


def test_robertas_marks_are_those_of_its_kind(tmp_path: Path) -> None:
    tokenizer = made("bpe", special_tokens="roberta")
    names = [tokenizer.token(index) for index in (tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)]
    assert names == ["<s>", "</s>", "<mask>"]
    assert (tokenizer.pad_id, tokenizer.eos_id) == (0, tokenizer.sep_id)
    assert tokenizer.size == 290
    assert not {"<eos>", "[CLS]"} & set(tokenizer.library.get_vocab())
    around = tokenizer.encode_with_special_tokens("dogs")
    assert (around[0], around[-1]) == (tokenizer.cls_id, tokenizer.sep_id)
    reader = TextReader(tokenizer, None, False, False, True)
    assert reader.paired == ([tokenizer.cls_id], [tokenizer.sep_id] * 2, [tokenizer.sep_id])
    tokenizer.save(tmp_path)
    assert Tokenizer.load(tmp_path).encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_can_have_a_mask(name: str) -> None:
    tokenizer = TRAINED[name]
    assert tokenizer.name == name
    assert {tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id} <= tokenizer.special_ids
    assert tokenizer.encode(TEXT).tolist() == tokenizer._library_ids(TEXT)


@pytest.mark.parametrize("name", ["bpe", "wordpiece", "unigram"])
def test_the_marks_count_among_the_size(name: str) -> None:
    assert TRAINED[name].size <= 290


@pytest.mark.parametrize("name", NAMES)
def test_no_text_turns_into_a_mark(name: str) -> None:
    tokenizer = TRAINED[name]
    found = set(tokenizer.encode("The [MASK] and [CLS] [SEP] [PAD] dogs").tolist())
    assert not found & tokenizer.special_ids


@pytest.mark.parametrize("name", NAMES)
def test_training_again_gives_the_same(name: str) -> None:
    assert made(name).fingerprint() == TRAINED[name].fingerprint()


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_one_is_itself_again(name: str, tmp_path: Path) -> None:
    TRAINED[name].save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert (again.name, again.mask_id, again.eos_id) == (name, TRAINED[name].mask_id, TRAINED[name].eos_id)
    assert again.encode(TEXT).tolist() == TRAINED[name].encode(TEXT).tolist()


def test_too_small_a_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="261"):
        made("bpe", size=260)


@pytest.mark.parametrize("name", NAMES)
def test_transformers_frames_and_masks_alike(name: str, tmp_path: Path) -> None:
    auto = pytest.importorskip("transformers").AutoTokenizer
    ours = TRAINED[name]
    ours.save(tmp_path, segments=True)
    theirs = auto.from_pretrained(tmp_path)
    assert (theirs.mask_token_id, theirs.cls_token_id, theirs.sep_token_id) == (
        ours.mask_id,
        ours.cls_id,
        ours.sep_id,
    )
    text, more = "The foxes jumped", "Others did not"
    found = theirs(text, more)
    first, second = ours.encode(text).tolist(), ours.encode(more).tolist()
    assert found["input_ids"] == [ours.cls_id, *first, ours.sep_id, *second, ours.sep_id]
    assert found["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert theirs("The [MASK] jumped")["input_ids"].count(ours.mask_id) == 1
