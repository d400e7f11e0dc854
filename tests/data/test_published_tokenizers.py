"""The tokenizers of published folders: every form cuts text as `transformers` cuts it, and prompts begin as there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, processors, trainers

from legato.data.text.tokenizers import Tokenizer
from legato.errors import DataError
from tiny_published import END, SPECIAL_TOKENS, TEXT, byte_level, write

TEXTS = ["the cat", "", " hello  world ", "A Ünïcode Straße", "狗 🐶", "a [MASK] <mask> b", f"x{END}y", "don't\nstop"]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def bert_vocabulary(folder: Path, **settings: Any) -> Path:
    library: Any = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = tokenizers.normalizers.BertNormalizer()
    library.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=BERT, show_progress=False)
    library.train_from_iterator([*TEXT, "Ünïcode A S"], trainer)
    names = sorted(library.get_vocab(), key=library.get_vocab().get)
    (folder / "vocab.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    write(folder / "config.json", {"model_type": "bert"})
    if settings:
        write(folder / "tokenizer_config.json", settings)
    return folder


def bpe_vocabulary(folder: Path, kind: str, **settings: Any) -> Path:
    byte_level(ROBERTA if kind == "roberta" else [END]).model.save(str(folder))
    write(folder / "config.json", {"model_type": kind})
    if settings:
        write(folder / "tokenizer_config.json", settings)
    return folder


def as_there(folder: Path) -> None:
    """Our ids, with and without marks around a text, are those of `transformers`."""
    transformers = pytest.importorskip("transformers")
    theirs, ours = transformers.AutoTokenizer.from_pretrained(folder), Tokenizer.load(folder)
    for text in TEXTS:
        assert ours.encode_with_special_tokens(text) == theirs(text)["input_ids"], text
        assert ours.encode_template(text) == theirs(text, add_special_tokens=False)["input_ids"], text
    for role in ("cls", "sep", "mask", "pad", "bos"):
        there = getattr(theirs, f"{role}_token_id")
        assert there is None or getattr(ours, f"{role}_id") == there, role


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tokenizer_class": "BertTokenizer", "do_lower_case": False},
        {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "strip_accents": False},
        {"tokenizer_class": "BertTokenizerFast", "tokenize_chinese_chars": False},
    ],
)
def test_a_bert_vocabulary_is_read(settings: dict[str, Any], tmp_path: Path) -> None:
    as_there(bert_vocabulary(tmp_path, **settings))


@pytest.mark.parametrize("kind", ["gpt2", "roberta"])
def test_a_byte_level_vocabulary_is_read(kind: str, tmp_path: Path) -> None:
    as_there(bpe_vocabulary(tmp_path, kind))


def test_a_byte_level_vocabulary_with_a_space_before_is_read(tmp_path: Path) -> None:
    as_there(bpe_vocabulary(tmp_path, "gpt2", tokenizer_class="GPT2Tokenizer", add_prefix_space=True))


def test_added_tokens_are_read(tmp_path: Path) -> None:
    folder = bpe_vocabulary(tmp_path, "gpt2")
    size = len(json.loads((folder / "vocab.json").read_text()))
    write(folder / "added_tokens.json", {"<two>": size + 1, "<one>": size})
    assert Tokenizer.load(folder).encode_template("<one><two>") == [size, size + 1]


def complaint(folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        Tokenizer.load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_added_tokens_with_a_gap_are_named(tmp_path: Path) -> None:
    write(bpe_vocabulary(tmp_path, "gpt2") / "added_tokens.json", {"<far>": 9999})
    assert complaint(tmp_path).endswith("added_tokens.json numbers '<far>' 9999, which leaves a gap")


@pytest.mark.parametrize("kind", ["Qwen2Tokenizer", "CLIPTokenizer"])
def test_a_vocabulary_that_does_not_tell_enough_is_refused(kind: str, tmp_path: Path) -> None:
    bpe_vocabulary(tmp_path, "gpt2", tokenizer_class=kind)
    assert f"how a {kind} cuts text its vocab.json does not say; make one with transformers" in complaint(tmp_path)


def test_a_vocabulary_of_an_unknown_model_is_refused(tmp_path: Path) -> None:
    bpe_vocabulary(tmp_path, "blenderbot")
    assert "how a blenderbot's tokenizer cuts text" in complaint(tmp_path)


def test_a_sentencepiece_model_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    assert "has a sentencepiece tokenizer but no tokenizer.json; make one with transformers" in complaint(tmp_path)


def test_a_vocabulary_without_marks_is_no_berts(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("the\ncat\n")
    write(tmp_path / "config.json", {"model_type": "bert"})
    assert complaint(tmp_path).endswith("vocab.txt lacks [UNK], so it is not BERT's kind of vocabulary")


def test_a_broken_vocabulary_is_named(tmp_path: Path) -> None:
    bpe_vocabulary(tmp_path, "gpt2")
    (tmp_path / "merges.txt").write_text("#version: 0.2\nzz\n")
    assert "has a vocab.json and merges.txt that cannot be read" in complaint(tmp_path)
    for content, said in (("{", " is not valid JSON"), ('{"a": 1000000000}', ": 'a' should be less than 16777216")):
        (tmp_path / "vocab.json").write_text(content)
        assert f"{tmp_path / 'vocab.json'}{said}" in complaint(tmp_path)


def test_a_folder_without_any_is_named(tmp_path: Path) -> None:
    assert complaint(tmp_path).startswith(f"there is no tokenizer {tmp_path / 'tokenizer.json'}")


# ── roles and prompts ─────────────────────────────────────────────────────────────────────────────


def foreign(folder: Path, library: Any = None, **settings: Any) -> Tokenizer:
    library = byte_level() if library is None else library
    library.save(str(folder / "tokenizer.json"))
    write(folder / "tokenizer_config.json", {"eos_token": END, **settings})
    loaded = Tokenizer.load(folder)
    loaded.follows_own_template = True
    return loaded


def test_a_prompt_of_ours_stands_behind_the_end_mark(tmp_path: Path) -> None:
    ours = foreign(tmp_path)
    ours.follows_own_template = False
    assert ours.prompt("the cat") == [ours.eos_id, *ours.encode("the cat")]
    assert ours.prompt(f"the{END}").count(ours.eos_id) == 1


def test_a_published_prompt_has_nothing_before_it_where_its_file_says_nothing(tmp_path: Path) -> None:
    loaded = foreign(tmp_path)
    assert loaded.prompt("the cat") == loaded.encode("the cat").tolist()


def test_a_published_prompt_begins_as_its_file_says(tmp_path: Path) -> None:
    library = byte_level()
    begin = library.token_to_id("<s>")
    library.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", begin)])
    loaded = foreign(tmp_path, library)
    assert loaded.prompt("the cat") == [begin, *loaded.encode("the cat")]
    assert loaded.prompt("") == [begin]


@pytest.mark.parametrize(("named", "begins"), [({"bos_token": "<s>"}, "<s>"), ({}, END)])
def test_an_empty_published_prompt_begins_somewhere(named: dict[str, str], begins: str, tmp_path: Path) -> None:
    loaded = foreign(tmp_path, **named)
    assert loaded.prompt("") == [loaded.id_of(begins)]


def test_a_mark_in_a_published_prompt_is_a_mark(tmp_path: Path) -> None:
    loaded = foreign(tmp_path)
    assert loaded.prompt(f"the{END}") == [*loaded.encode("the"), loaded.eos_id]


def test_half_a_character_in_a_prompt_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="half a surrogate pair"):
        foreign(tmp_path).prompt("a\ud800")


def test_roles_are_those_that_the_settings_name(tmp_path: Path) -> None:
    loaded = foreign(tmp_path, bos_token={"content": "<s>"}, pad_token="</s>", unk_token=END, cls_token="<|im_end|>")
    names = [loaded.token_name(index or 0) for index in (loaded.bos_id, loaded.pad_id, loaded.cls_id)]
    assert names == ["<s>", "</s>", "<|im_end|>"]
    assert loaded.unk_id is None  # bytes are never unknown


def test_the_older_file_of_roles_is_read_too(tmp_path: Path) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    write(tmp_path / "special_tokens_map.json", {"eos_token": {"content": "<|im_end|>"}, "bos_token": "<s>"})
    loaded = Tokenizer.load(tmp_path)
    assert (loaded.token_name(loaded.eos_id), loaded.token_name(loaded.bos_id or 0)) == ("<|im_end|>", "<s>")


def test_padding_and_cutting_that_a_file_asks_for_are_left_out(tmp_path: Path) -> None:
    library = byte_level()
    library.enable_truncation(3)
    library.enable_padding(length=9, pad_id=SPECIAL_TOKENS.index("<s>"), pad_token="<s>")
    loaded = foreign(tmp_path, library)
    assert loaded.decode(loaded.encode_with_special_tokens("the cat sat on the mat")) == "the cat sat on the mat"
    assert loaded.decode(loaded.encode("the cat sat on the mat").tolist()) == "the cat sat on the mat"


def test_a_tokenizer_that_is_saved_keeps_its_roles(tmp_path: Path) -> None:
    loaded = foreign(tmp_path, bos_token="<s>", pad_token="</s>")
    loaded.save(tmp_path / "again")
    again = Tokenizer.load(tmp_path / "again")
    assert (again.bos_id, again.pad_id, again.eos_id) == (loaded.bos_id, loaded.pad_id, loaded.eos_id)


@pytest.mark.parametrize("content", ["{", "[]", "\x00", "[" * 100_000])
def test_settings_that_do_not_parse_are_refused(content: str, tmp_path: Path) -> None:
    folder = bert_vocabulary(tmp_path)
    (folder / "tokenizer_config.json").write_text(content)
    with pytest.raises(
        DataError, match=r"tokenizer_config\.json (is not valid JSON|should hold a JSON object)"
    ) as caught:
        Tokenizer.load(folder)
    assert "\n" not in str(caught.value)
