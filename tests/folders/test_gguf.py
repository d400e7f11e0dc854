"""GGUF files as models: the numbers are `transformers`' own, and texts become the same tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import legato
from legato.cli import main
from legato.data.batching.batch import Batch, Inputs
from legato.folders.gguf.token_entries import RULES
from legato.folders.model_folder import read_config, read_model
from tiny_gguf import (
    CONFIGS,
    LINES,
    SIZE,
    bpe_entries,
    gguf_file,
    hf_logits,
    sentencepiece_entries,
    theirs,
    trained,
)

IDS = list(range(3, 103))


def logits(model: legato.Model, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model.module.readout(model.module(Batch(Inputs(torch.tensor([ids])))).hidden)[0]


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = legato.load(gguf_file(tmp_path / "m.gguf", name))
    assert torch.allclose(logits(model, IDS), hf_logits(theirs(name), IDS), atol=1e-4)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_packed_weights_are_near_those_that_were_packed(kind: str, tmp_path: Path) -> None:
    whole = logits(legato.load(gguf_file(tmp_path / "whole.gguf")), IDS)
    packed = logits(legato.load(gguf_file(tmp_path / "packed.gguf", kind=kind)), IDS)
    near = torch.nn.functional.cosine_similarity(whole.flatten(), packed.flatten(), dim=0)
    assert near > (0.999 if kind in ("F16", "BF16", "Q8_0") else 0.9)


def test_what_a_file_says_of_its_model_becomes_settings(tmp_path: Path) -> None:
    llama: Any = read_config(gguf_file(tmp_path / "a.gguf", "llama"))
    assert (llama.theta, llama.eps, llama.kv_heads, llama.tied) == (5000.0, 1e-5, 2, False)
    assert read_config(gguf_file(tmp_path / "b.gguf", "llama-tied")).tied
    slowed: Any = read_config(gguf_file(tmp_path / "c.gguf", "llama3"))
    assert slowed.scaling.model_dump() == {"type": "llama3", "factor": 8.0, "low": 1.0, "high": 4.0, "length": 64}
    assert read_config(gguf_file(tmp_path / "d.gguf", "qwen3")).family == "qwen3"  # type: ignore[attr-defined]
    window: Any = read_config(gguf_file(tmp_path / "e.gguf", **{"llama.attention.sliding_window": 16}))
    assert (window.family, window.window) == ("mistral", 16)


def test_a_list_of_equal_numbers_of_heads_is_one_number(tmp_path: Path) -> None:
    config: Any = read_config(gguf_file(tmp_path / "m.gguf", **{"llama.attention.head_count_kv": [2, 2]}))
    assert config.kv_heads == 2


@pytest.mark.parametrize("name", ["llama", "llama3", "gpt2"])
def test_a_sketch_reads_its_weights_later(name: str, tmp_path: Path) -> None:
    path = gguf_file(tmp_path / "m.gguf", name)
    sketched, whole = read_model(path, sketched=True), read_model(path)
    assert all(parameter.is_meta for parameter in sketched.module.parameters())
    fresh = type(whole.module)(whole.module.config, whole.module.sizes)
    assert sketched.put_into(fresh) == set()
    for name, tensor in whole.module.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], tensor)


# --- tokenizers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.names[0])
def test_byte_level_bpe_cuts_text_as_the_tokenizer_it_was_made_of(rule: Any, tmp_path: Path) -> None:
    library = trained(rule.pattern, rule.single_digits, rule.whole_words)
    model = legato.load(gguf_file(tmp_path / "m.gguf", **bpe_entries(rule.names[0], library)))
    library.encode_special_tokens = True
    for line in LINES:
        if rule.composed:
            line = line.replace("e\u0301", "é")
        assert model.tokenizer.encode(line).tolist() == library.encode(line).ids
        assert model.tokenizer.decode(model.tokenizer.encode(line).tolist()) == line
    first = [1] if rule.adds_bos else []
    assert model.tokenizer.prompt("dog") == [*first, *library.encode("dog").ids]


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepieces_bpe_cuts_text_as_sentencepiece(
    prefix: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, entries = sentencepiece_entries(prefix=prefix)
    monkeypatch.setitem(CONFIGS["llama"], "vocab_size", theirs.get_piece_size())
    tokenizer: Any = legato.load(gguf_file(tmp_path / "m.gguf", **entries)).tokenizer
    for line in LINES:
        assert tokenizer.encode(line).tolist() == theirs.encode(line)
        assert tokenizer.decode(theirs.encode(line)) == line
    assert tokenizer.prompt("dog") == [1, *theirs.encode("dog")]  # unless a file says otherwise


def test_what_a_file_says_stands_around_texts(tmp_path: Path) -> None:
    added = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    tokenizer = legato.load(gguf_file(tmp_path / "m.gguf", **added)).tokenizer
    assert tokenizer.prompt("dog") == [1, *tokenizer.encode("dog").tolist(), 2]


def test_special_tokens_are_found_in_prompts_and_never_in_text(tmp_path: Path) -> None:
    model = legato.load(gguf_file(tmp_path / "m.gguf"))
    assert 2 in model.tokenizer.prompt("<|im_end|>")
    assert 2 not in model.tokenizer.encode("<|im_end|>").tolist()
    assert model.loaded.ends == (0, 2)  # <|endoftext|> and <|im_end|>


def test_two_tokens_of_one_spelling_leave_the_others_numbers_as_they_are(tmp_path: Path) -> None:
    entries = bpe_entries()
    tokens = entries["tokenizer.ggml.tokens"]
    twice = {"tokenizer.ggml.tokens": [*tokens[:-1], tokens[10]]}
    tokenizer = legato.load(gguf_file(tmp_path / "m.gguf", **twice, **{"tokenizer.ggml.merges": ["h e"]})).tokenizer
    assert tokenizer.id_of(tokens[10]) == 10
    assert tokenizer.id_of(tokens[-2]) == SIZE - 2


# --- commands -----------------------------------------------------------------------------------------


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object) -> tuple[str, str]:
    monkeypatch.setattr("sys.argv", ["legato", *map(str, words)])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert not ended.value.code, err
    return out, err


def test_a_file_talks_by_its_own_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = gguf_file(tmp_path / "m.gguf")
    model = legato.load(path)
    spelt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert model.chat_ids("hi") == model.tokenizer.prompt(spelt)
    out, _ = run(monkeypatch, capsys, "generate", path, "hi", "--chat", "--max-tokens", 6, "--json")
    found = json.loads(out)["results"][0]["tokens"]
    with torch.no_grad():
        hf = theirs("llama").generate(
            torch.tensor([model.chat_ids("hi")]),
            max_new_tokens=6,
            do_sample=False,
            eos_token_id=[0, 2],
            pad_token_id=0,
        )
    assert found == [token for token in hf[0, len(model.chat_ids("hi")) :].tolist() if token not in (0, 2)]


@pytest.mark.slow
def test_other_commands_take_a_file_where_they_take_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, text = gguf_file(tmp_path / "m.gguf"), tmp_path / "a.txt"
    text.write_text("the dog runs\n" * 40)
    run(monkeypatch, capsys, "eval", path, f"data.test={text}")
    run(monkeypatch, capsys, "embed", path, "--file", text, "--out", tmp_path / "v.npy")
    run(monkeypatch, capsys, "inspect", path, "the dog")
    settings = [
        f"data.train={text}",
        "train.steps=2",
        "train.batch_tokens=64",
        "train.validate_every=2",
        "device=cpu",
    ]
    for adapt in ("full", "lora"):
        out = tmp_path / adapt
        run(monkeypatch, capsys, "train", "lm", f"from={path}", f"adapt={adapt}", f"out={out}", *settings)
        assert legato.load(out).tokenizer.prompt("dog") == legato.load(path).tokenizer.prompt("dog")
        run(monkeypatch, capsys, "generate", out, "the", "--max-tokens", 3)


def test_a_file_becomes_a_folder_that_transformers_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = gguf_file(tmp_path / "m.gguf", "llama-tied")
    out, _ = run(monkeypatch, capsys, "export", path, "--to", "hf")
    folder = tmp_path / "m-hf"
    assert out == f"{folder}\n"
    hf = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert torch.allclose(hf_logits(hf, IDS), hf_logits(theirs("llama-tied"), IDS), atol=1e-5)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("The dog, 1234")["input_ids"] == legato.load(path).tokenizer.prompt("The dog, 1234")
    assert tokenizer.chat_template == legato.load(folder).loaded.chat.source  # type: ignore[union-attr]
    assert legato.load(folder).loaded.ends == (0, 2)
