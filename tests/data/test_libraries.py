"""What other people's libraries raise is one line that names the file, be it an exception or a panic."""

from __future__ import annotations

import copy
import json
import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from legato.data.text.libraries import Library, clear_of_panics
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.errors import ConfigError, DataError, panics_unprinted

TRAINED = Tokenizer.train(TokenizerConfig(name="bpe", size=300), ["the cat sat on the mat"] * 5)


def spec(**changed: Any) -> dict[str, Any]:
    return {**json.loads(TRAINED.library.to_str()), **changed}


def written(folder: Path, content: dict[str, Any]) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return folder / "tokenizer.json"


def with_model(**changed: Any) -> dict[str, Any]:
    return spec(model={**spec()["model"], **changed})


@pytest.mark.parametrize(
    "content",
    [
        spec(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),  # a panic
        with_model(continuing_subword_prefix="é"),  # another one
        spec(normalizer={"type": "Replace", "pattern": {"Regex": "("}, "content": ""}),
        spec(normalizer={"type": "no such thing"}),
        with_model(vocab=None),
        with_model(vocab={"a": 10**25}),
        with_model(vocab={"a": -1}),
        spec(added_tokens=[{"id": "x"}]),
        spec(model={}),
        {},
    ],
)
def test_a_tokenizer_file_that_breaks_the_library_is_one_line(content: dict[str, Any], tmp_path: Path) -> None:
    file = written(tmp_path, content)
    for place in (file, tmp_path):
        with pytest.raises(DataError, match="is not a tokenizer that can be read") as caught:
            Tokenizer.load(place)
        assert str(file) in str(caught.value)
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "content",
    [
        spec(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        with_model(continuing_subword_prefix="é"),
    ],
)
def test_a_panic_over_a_file_prints_nothing_by_itself(
    content: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DataError, match="is not a tokenizer that can be read"):
        Tokenizer.load(written(tmp_path, content))
    assert capfd.readouterr().err == ""


def test_what_else_is_printed_while_a_file_is_read_comes_through(capfd: pytest.CaptureFixture[str]) -> None:
    with suppress(ValueError), panics_unprinted():
        os.write(2, b"a warning\n")
        raise ValueError("no panic")
    os.write(2, b"and another\n")
    assert capfd.readouterr().err == "a warning\nand another\n"


def test_a_tokenizer_that_breaks_off_over_a_text_is_one_line(tmp_path: Path) -> None:
    odd = spec(normalizer={"type": "Replace", "pattern": {"String": ""}, "content": "aa"})
    file = written(tmp_path, odd)
    loaded = Tokenizer.load(file)
    for use in (
        lambda: loaded.encode("the cat"),
        lambda: loaded.library.encode("the cat"),
        lambda: loaded.encode_with_special_tokens("the cat"),
        lambda: loaded.encode_many_with_special_tokens(["the cat"]),
        lambda: loaded.encode_template("the cat"),
        lambda: loaded.library.encode_batch(["the cat"]),
    ):
        with pytest.raises(DataError, match="failed on a text") as caught:
            use()
        assert str(file) in str(caught.value)


def test_a_tokenizer_without_any_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no token at all"):
        Tokenizer.load(written(tmp_path, spec(model={"type": "BPE", "vocab": {}, "merges": []}, added_tokens=[])))


@pytest.mark.parametrize("ids", [[2**40], [-1], [10**25]])
def test_ids_that_the_library_cannot_hold_are_one_line(ids: list[int]) -> None:
    with pytest.raises(DataError, match="failed on a text"):
        TRAINED.library.decode(ids)


@pytest.mark.parametrize("name", ["byte", "char", "word", "bpe", "unigram", "wordpiece"])
@pytest.mark.parametrize("masked", [False, True])
def test_training_on_half_a_character_is_one_line(name: str, masked: bool) -> None:
    config = TokenizerConfig.model_validate({"name": name, "masked": masked})
    if name == "byte":  # it looks at no text
        assert Tokenizer.train(config, ["a\ud800b"]).size
        return
    with pytest.raises(ConfigError, match=f"tokenizer={name} could not be trained"):
        Tokenizer.train(config, ["a\ud800b"])


def test_an_interruption_and_a_lack_of_memory_stay_what_they_are() -> None:
    for problem in (KeyboardInterrupt(), SystemExit(3), MemoryError(), ConfigError("ours")):
        with pytest.raises(type(problem)), clear_of_panics("x"):
            raise problem


def test_a_held_library_is_copied_and_pickled_whole() -> None:
    held = Library(TRAINED.library, "a.json")
    for other in (copy.copy(held), pickle.loads(pickle.dumps(held)), held.copy()):
        assert other.source == "a.json"
        assert other.encode("the cat").ids == TRAINED.library.encode("the cat").ids
    assert Library(held).source == "a.json"
    with pytest.raises(AttributeError):
        held.nothing_of_the_kind  # noqa: B018


def test_a_sentencepiece_model_that_is_none_is_one_line(tmp_path: Path) -> None:
    from legato.data.text.sentencepieces import load_marian_vocabulary

    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_bytes(b"\x0a\xff\xff\xff\xff no model")
    (tmp_path / "vocab.json").write_text('{"</s>": 0}')
    with pytest.raises(DataError, match=r"source\.spm is not a sentencepiece model"):
        load_marian_vocabulary(tmp_path)
