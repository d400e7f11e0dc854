"""GGUF files that are none, are cut or lie: one line that says what is wrong, soon and with little memory."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import legato
from legato.cli import main
from legato.errors import FolderError, LegatoError
from legato.folders.finding import find_model
from legato.folders.gguf.header import MAX_ITEMS, read_header
from legato.folders.model_folder import load_model, read_config
from tiny_exports import is_one_line
from tiny_gguf import bpe_entries, converted, gguf_file, sentencepiece_entries, theirs, write

Damage = Callable[[bytes], bytes]


def complaint(path: Path | str) -> str:
    with pytest.raises(FolderError) as caught:
        load_model(find_model(path))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file's bytes."""
    return gguf_file(tmp_path_factory.mktemp("made") / "m.gguf", kind="Q8_0").read_bytes()


def put(data: bytes, at: int, form: str, *values: int) -> bytes:
    new = struct.pack(f"<{form}", *values)
    return data[:at] + new + data[at + len(new) :]


def behind(data: bytes, text: str) -> int:
    return data.index(text.encode()) + len(text.encode())


DAMAGE: dict[str, tuple[Damage, str]] = {
    "nothing": (lambda data: b"", "does not begin with GGUF"),
    "another kind of file": (lambda data: b"PK\3\4" + data, "does not begin with GGUF"),
    "a pointer to a file": (lambda data: b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "the first version": (lambda data: put(data, 4, "I", 1), "it is of version 1; Legato reads versions 2 and 3"),
    "the other order of bytes": (lambda data: put(data, 4, "I", 3 << 24), "the other order"),
    "absurdly many tensors": (
        lambda data: put(data, 8, "Q", 2**63),
        "says that it holds 9,223,372,036,854,775,808 t",
    ),
    "absurdly many entries": (lambda data: put(data, 16, "Q", 2**40), "says that it holds 1,099,511,627,776 entries"),
    "a few tensors more": (lambda data: put(data, 8, "Q", 99_000), "cannot be read as GGUF"),
    "an endless key": (lambda data: put(data, 24, "Q", 2**62), "ends in the middle of what it says of itself"),
    "a vocabulary without end": (
        lambda data: put(data, behind(data, "tokenizer.ggml.tokens") + 8, "Q", 2**50),
        "ends in the middle of what it says of itself",
    ),
    "types of tokens without end": (
        lambda data: put(data, behind(data, "tokenizer.ggml.token_type") + 8, "Q", 2**50),
        "ends in the middle of what it says of itself",
    ),
    "arrays of arrays": (
        lambda data: put(data, behind(data, "tokenizer.ggml.tokens") + 4, "I", 9),
        "'tokenizer.ggml.tokens' is an array of a type 9",
    ),
    "an unknown type of value": (
        lambda data: put(data, behind(data, "llama.block_count"), "I", 77),
        "'llama.block_count' is of a type 77",
    ),
    "a text that is none": (
        lambda data: data.replace(b"llama.block_count", b"\xff" * len("llama.block_count")),
        "holds what is no UTF-8 text",
    ),
    "an entry twice": (
        lambda data: data.replace(b"llama.embedding_length", b"llama.context_length\0\0").replace(
            struct.pack("<Q", 22) + b"llama.context_length", struct.pack("<Q", 20) + b"llama.context_length"
        ),
        "cannot be read as GGUF",
    ),
    "a tensor twice": (
        lambda data: data.replace(b"blk.1.attn_q.weight", b"blk.0.attn_q.weight"),
        "the tensor 'blk.0.attn_q.weight' is there twice",
    ),
    "a tensor of many sizes": (
        lambda data: put(data, behind(data, "blk.0.attn_q.weight"), "I", 2**31),
        "the tensor 'blk.0.attn_q.weight' has 2,147,483,648 sizes",
    ),
    "a tensor of absurd sizes": (
        lambda data: put(data, behind(data, "blk.0.attn_q.weight") + 4, "QQ", 2**40, 2**60),
        "'blk.0.attn_q.weight' should end at byte",
    ),
    "a tensor of no size": (
        lambda data: put(data, behind(data, "blk.0.attn_q.weight") + 4, "Q", 0),
        "'blk.0.attn_q.weight' has shape (64, 0)",
    ),
    "rows that no blocks fill": (
        lambda data: put(data, behind(data, "blk.0.attn_q.weight") + 4, "Q", 63),
        "which no blocks of 32 Q8_0 fill",
    ),
    "a tensor beyond the end": (
        lambda data: put(data, behind(data, "blk.0.attn_q.weight") + 24, "Q", 2**63),
        "'blk.0.attn_q.weight' should end at byte",
    ),
    "a tensor on top of another": (
        lambda data: put(data, behind(data, "blk.0.attn_q.weight") + 24, "Q", 0),
        "lie in the same place",
    ),
    "a tensor between places": (
        lambda data: put(data, behind(data, "blk.0.attn_q.weight") + 24, "Q", 33),
        "begins at byte 33, between two of 32",
    ),
    "a shape of another model": (
        lambda data: put(data, behind(data, "blk.0.attn_q.weight") + 4, "QQ", 128, 32),
        "'blk.0.attn_q.weight' should have shape (64, 64), but has (32, 128)",
    ),
    "a tensor by another name": (
        lambda data: data.replace(b"blk.0.attn_q.weight", b"blk.0.attn_x.weight"),
        "lacks the tensor 'blk.0.attn_q.weight'",
    ),
    "numbers cut off": (lambda data: data[:-4000], "should end at byte"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_said_in_one_line(kind: str, made: bytes, tmp_path: Path) -> None:
    damage, said = DAMAGE[kind]
    path = tmp_path / "m.gguf"
    path.write_bytes(damage(made))
    assert said in complaint(path)
    assert str(path) in complaint(path)


ENTRIES: list[tuple[dict[str, Any], str]] = [
    ({"general.architecture": "phi3"}, "holds a 'phi3'; of GGUF files Legato reads llama, qwen2, qwen3, gpt2"),
    ({"general.architecture": None}, "lacks 'general.architecture'"),
    ({"general.type": "adapter"}, "holds no whole model but 'adapter'"),
    ({"general.type": [1, 2]}, "'general.type' should be a text, not a list of 2"),
    ({"split.count": 3}, "llama-gguf-split --merge"),
    ({"general.alignment": 33}, "'general.alignment' is 33, which is no power of two"),
    ({"llama.block_count": None}, "lacks 'llama.block_count'"),
    ({"llama.block_count": "two"}, "'llama.block_count' should be a whole number from 1 to 16,777,216, not 'two'"),
    ({"llama.block_count": 3}, "lacks the tensor 'blk.2.attn_norm.weight'"),
    ({"llama.block_count": 1}, "holds a tensor that this architecture lacks: 'blk.1."),
    ({"llama.block_count": 2**31}, "'llama.block_count' should be a whole number from 1 to 16,777,216"),
    ({"llama.context_length": 2**30}, "'llama.context_length' should be a whole number"),
    ({"llama.embedding_length": 0}, "'llama.embedding_length' should be a whole number"),
    ({"llama.embedding_length": 128}, "should have shape"),
    ({"llama.attention.head_count": 5}, "heads=5 does not divide width=64"),
    ({"llama.attention.head_count_kv": [1, 2]}, "differs from layer to layer"),
    ({"llama.attention.key_length": 8}, "'llama.attention.value_length' is 16, and heads have a width of 8"),
    ({"llama.rope.dimension_count": 8}, "'llama.rope.dimension_count' is 8, and heads have a width of 16"),
    ({"llama.rope.scaling.type": "yarn"}, "'llama.rope.scaling.type' is yarn; Legato has only none or linear"),
    ({"llama.rope.freq_base": float("nan")}, "'llama.rope.freq_base' should be a number"),
    ({"llama.rope.freq_base": -1.0}, "theta"),
    ({"llama.attention.layer_norm_rms_epsilon": 0.0}, "should be a small number above 0"),
    ({"llama.expert_count": 8}, "'llama.expert_count' is 8; Legato has only 0"),
    ({"llama.attention.causal": False}, "'llama.attention.causal' is False"),
    ({"llama.logit_scale": 16.0}, "'llama.logit_scale' is 16.0; Legato has only 0 or 1"),
    ({"llama.rope.scaling.type": [1, 2]}, "'llama.rope.scaling.type' is (1, 2)"),
    ({"tokenizer.ggml.bos_token_id": [1, 2]}, "'tokenizer.ggml.bos_token_id' is (1, 2)"),
    ({"llama.attention.sliding_window": [8, 9]}, "differs from layer to layer"),
    ({"llama.attention.sliding_window": "wide"}, "'llama.attention.sliding_window' should be a whole number"),
    ({"tokenizer.ggml.model": None}, "lacks 'tokenizer.ggml.model'"),
    ({"tokenizer.ggml.model": "bert"}, "its tokenizer is 'bert'; Legato reads gpt2"),
    ({"tokenizer.ggml.pre": None}, "lacks 'tokenizer.ggml.pre'"),
    (
        {"tokenizer.ggml.pre": "viking"},
        "by the rule 'viking', and how that is done Legato does not know; it knows gpt",
    ),
    ({"tokenizer.ggml.tokens": None}, "lacks 'tokenizer.ggml.tokens'"),
    ({"tokenizer.ggml.tokens": 5}, "'tokenizer.ggml.tokens' should be a list of texts, not '5'"),
    (
        {"tokenizer.ggml.tokens": ["a", "b"]},
        "'tokenizer.ggml.token_type' should be a list of 2 numbers, not a list of",
    ),
    ({"tokenizer.ggml.merges": None}, "lacks 'tokenizer.ggml.merges'"),
    ({"tokenizer.ggml.merges": ["no such"]}, "has a tokenizer that cannot be made"),
    ({"tokenizer.ggml.eos_token_id": 320}, "'tokenizer.ggml.eos_token_id' is 320, and there are 320 tokens"),
    ({"tokenizer.ggml.eos_token_id": "</s>"}, "'tokenizer.ggml.eos_token_id' is </s>"),
    ({"tokenizer.ggml.add_bos_token": 1}, "'tokenizer.ggml.add_bos_token' should be true or false"),
    (
        {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": None},
        "lacks 'tokenizer.ggml.bos_token_id'",
    ),
    ({"tokenizer.chat_template": 7}, "'tokenizer.chat_template' should be a text"),
]


@pytest.mark.parametrize(
    ("entries", "said"), ENTRIES, ids=lambda value: "" if isinstance(value, str) else str(value)[:50]
)
def test_an_entry_that_is_missing_or_wrong_is_named(entries: dict[str, Any], said: str, tmp_path: Path) -> None:
    assert said in complaint(gguf_file(tmp_path / "m.gguf", **entries))


def test_a_tokenizer_of_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    tokens = [*bpe_entries()["tokenizer.ggml.tokens"], "more"]
    more = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * len(tokens)}
    assert "the tokenizer has 321 tokens, the model only 320" in complaint(gguf_file(tmp_path / "m.gguf", **more))


def test_scores_that_are_missing_are_named(tmp_path: Path) -> None:
    entries = {**sentencepiece_entries(prefix=True)[1], "tokenizer.ggml.scores": None}
    assert "lacks 'tokenizer.ggml.scores'" in complaint(gguf_file(tmp_path / "m.gguf", **entries))


def test_positions_slowed_by_another_rule_are_refused(tmp_path: Path) -> None:
    entries, tensors = converted(theirs("llama3"))
    tensors["rope_freqs.weight"][::2] *= 3
    path = write(tmp_path / "m.gguf", {**entries, **bpe_entries()}, tensors)
    assert "slows positions by a rule that Legato does not have" in complaint(path)


def test_a_header_without_end_takes_no_memory(made: bytes, tmp_path: Path) -> None:
    """A file may have terabytes and hold none."""
    path = tmp_path / "m.gguf"
    path.write_bytes(put(made, behind(made, "tokenizer.ggml.tokens") + 8, "Q", 2**24))
    os.truncate(path, 2**40)
    assert f"its arrays have more than {MAX_ITEMS:,} texts and numbers" in complaint(path)
    path.write_bytes(put(made, 24, "Q", 2**30))
    os.truncate(path, 2**40)
    assert "what it says of itself is longer than" in complaint(path)


def test_a_file_that_was_written_over_since_is_not_read_on(tmp_path: Path) -> None:
    path = gguf_file(tmp_path / "m.gguf")
    header = read_header(path)
    gguf_file(path, "llama-tied")
    with pytest.raises(FolderError, match="was written over while it was read; begin again"):
        header.raw(header.tensors["token_embd.weight"], 4)


def test_what_is_no_file_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    gguf_file(tmp_path / "model.gguf")
    assert complaint("mdel.gguf") == "there is no file mdel.gguf; did you mean 'model.gguf'?"
    assert "there is no file org/name.gguf; one on the hub has to be fetched first" in complaint("org/name.gguf")
    (tmp_path / "d").mkdir()
    assert "d is no model folder: it has no config.json" in complaint("d")
    gguf_file(tmp_path / "d" / "a.gguf")
    assert "a.gguf in it is a model by itself: name that file" in complaint("d")
    (tmp_path / "notes.txt").write_text("hello")
    assert "notes.txt is no model folder, nor a GGUF file" in complaint("notes.txt")
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "pipe.gguf" in complaint("pipe.gguf")
    gguf_file(tmp_path / "blob")  # as the hub's cache calls files
    assert legato.load("blob").module.config.name == "llama"


def test_a_command_ends_with_one_line(
    made: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(made[:1000])
    for words in (["generate", str(path), "a"], ["eval", str(path)], ["train", "lm", f"from={path}", "data.train=x"]):
        monkeypatch.setattr("sys.argv", ["legato", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        is_one_line((ended.value.code, *capsys.readouterr()), f"{path} cannot be read as GGUF")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_cut_and_flipped_bytes_are_refused_or_harmless(seed: int, made: bytes, tmp_path: Path) -> None:
    drawn, path = random.Random(seed), tmp_path / "m.gguf"
    path.write_bytes(made)
    end = read_header(path).start
    large = [b"\xff" * 8, bytes(8), (2**40).to_bytes(8, "little"), (2**62).to_bytes(8, "little")]
    for _ in range(150):
        data = bytearray(made)
        how, at = drawn.choice(["flip", "flip", "cut", "large", "swap"]), drawn.randrange(end - 8)
        if how == "flip":
            for _ in range(drawn.choice([1, 1, 4])):
                data[drawn.randrange(end)] ^= 1 << drawn.randrange(8)
        elif how == "cut":
            del data[drawn.randrange(len(data)) :]
        elif how == "large":
            data[at : at + 8] = drawn.choice(large)
        else:
            other, size = drawn.randrange(end - 64), drawn.randrange(1, 64)
            data[at : at + size], data[other : other + size] = data[other : other + size], data[at : at + size]
        path.write_bytes(data)
        for read in (load_model, read_config):
            with suppress(LegatoError):
                read(path)
