"""Models as GGUF files: read back they are the same, `transformers` reads the same, and what cannot be is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

import legato
from legato.config import validate
from legato.data.batching.batch import Batch, Inputs
from legato.data.processors import Processors
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.folders.gguf.blocks import PACKINGS
from legato.folders.gguf.header import read_header
from legato.folders.model_folder import load_model, save_model
from legato.models.base import Sizes
from legato.models.model_with_head import HeadSpec, ModelWithHead
from legato.registry import MODELS
from tiny_exports import is_one_line
from tiny_exports import saved as saved_pairs
from tiny_gguf import CHATML, CONFIGS, LINES, SPECIAL, TEXTS, gguf_file, sentencepiece_entries, theirs

BPE = Tokenizer.train(TokenizerConfig(name="bpe", size=300), TEXTS)
SMALL: dict[str, Any] = {"width": 64, "layers": 2, "heads": 4, "length": 64}
MODELS_WRITTEN: dict[str, dict[str, Any]] = {
    "llama": {"name": "llama", "kv_heads": 2},
    "tied": {"name": "llama", "tied": True, "theta": 123456.0},
    "biases": {"name": "llama", "bias": True, "bias_feedforward": True},
    "linear": {"name": "llama", "scaling": {"type": "linear", "factor": 2.0}},
    "llama3": {"name": "llama", "head_width": 32, "scaling": {"type": "llama3", "factor": 8.0, "length": 32}},
    "mistral": {"name": "llama", "family": "mistral"},
    "qwen2": {"name": "llama", "family": "qwen2"},
    "qwen3": {"name": "llama", "family": "qwen3", "head_width": 32},
    "gpt2": {"name": "gpt2"},
    "gpt2 with a readout of its own": {"name": "gpt2", "tied": False},
}


def saved(folder: Path, tokenizer: Any = BPE, about: dict[str, Any] | None = None, **settings: Any) -> Path:
    """A model on random weights, in a folder."""
    torch.manual_seed(0)
    kind = MODELS.get(settings["name"])
    module = kind(validate(kind.Config, {**SMALL, **settings}), Sizes(tokenizer.size))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    folder.mkdir(parents=True)
    save_model(folder, module, Processors(tokenizer), task="lm", about=about or {}, card="")
    return folder


def state(model: legato.Model) -> dict[str, Tensor]:
    return dict(model.module.state_dict())


@pytest.mark.parametrize("which", MODELS_WRITTEN)
def test_what_is_written_reads_back_bit_by_bit(which: str, export: Any, tmp_path: Path) -> None:
    folder, out = saved(tmp_path / "m", **MODELS_WRITTEN[which]), tmp_path / "m.gguf"
    assert export(folder, "--to", "gguf") == (0, f"{out}\n", "")
    before, after = legato.load(folder), legato.load(out)
    assert state(before).keys() == state(after).keys()
    for name, tensor in state(before).items():
        assert torch.equal(state(after)[name], tensor), name
    prompts = ["The dog runs", "", "Größe 1234 🙂"]
    assert [after.prompt_ids(p) for p in prompts] == [before.prompt_ids(p) for p in prompts]
    assert after.generate(prompts, max_tokens=12) == before.generate(prompts, max_tokens=12)
    assert after.loaded.ends == before.loaded.ends
    settings, again = before.module.config.model_dump(), after.module.config.model_dump()
    free = ("family", "head_width", "feedforward", "kv_heads", "dropout", "dropout_embedding", "dropout_attention")
    assert {k: v for k, v in settings.items() if k not in free} == {k: v for k, v in again.items() if k not in free}


@pytest.mark.parametrize("which", ["llama", "tied", "qwen2", "gpt2"])  # of others it does not read all entries
def test_transformers_reads_the_same_model(which: str, export: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = saved(tmp_path / "m", **MODELS_WRITTEN[which])
    assert export(folder, "--to", "gguf")[0] == 0
    hf = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", dtype=torch.float32).eval()
    ids = list(range(40))
    model = legato.load(folder)
    with torch.no_grad():
        found = hf(torch.tensor([ids])).logits[0]
        ours = model.module.readout(model.module(Batch(Inputs(torch.tensor([ids])))).hidden)[0]
    assert torch.allclose(found, ours, atol=1e-4)


@pytest.mark.parametrize(
    ("quantize", "matrix", "embedding"),
    [
        ("f32", "F32", "F32"),
        ("f16", "F16", "F16"),
        ("bf16", "BF16", "BF16"),
        ("q8_0", "Q8_0", "Q8_0"),
        ("q4_0", "Q4_0", "Q8_0"),
    ],
)
def test_matrices_are_written_as_asked_for(
    quantize: str, matrix: str, embedding: str, export: Any, tmp_path: Path
) -> None:
    folder, out = saved(tmp_path / "m", name="llama"), tmp_path / "out.gguf"
    assert export(folder, "--to", "gguf", "--out", out, "--quantize", quantize)[0] == 0
    header = read_header(out)
    kinds = {name: PACKINGS[tensor.kind].name for name, tensor in header.tensors.items()}
    assert kinds["blk.0.attn_q.weight"] == matrix
    assert kinds["token_embd.weight"] == embedding
    assert kinds["output_norm.weight"] == "F32"
    whole, packed = state(legato.load(folder)), load_model(out).module.state_dict()
    reader = {tensor.name: tensor for tensor in gguf.GGUFReader(out).tensors}["output.weight"]
    expected = gguf.quants.dequantize(reader.data, reader.tensor_type)
    assert np.array_equal(packed["output.weight"][: len(expected)].numpy(), expected)
    near = {"f32": 0.0, "f16": 1e-3, "bf16": 1e-2, "q8_0": 1e-2, "q4_0": 1e-1}[quantize]
    assert all(torch.allclose(packed[name], tensor, atol=near) for name, tensor in whole.items())


def test_rows_that_no_blocks_fill_are_halves(export: Any, tmp_path: Path) -> None:
    folder, out = saved(tmp_path / "m", name="gpt2", width=40), tmp_path / "m.gguf"
    assert export(folder, "--to", "gguf", "--quantize", "q8_0")[0] == 0
    kinds = {name: PACKINGS[tensor.kind].name for name, tensor in read_header(out).tensors.items()}
    assert (kinds["blk.0.attn_qkv.weight"], kinds["blk.0.ffn_down.weight"]) == ("F16", "Q8_0")
    assert kinds["position_embd.weight"] == "F32"
    assert legato.load(out).generate("The dog", max_tokens=3)


@pytest.mark.slow
def test_a_files_own_model_is_written_again(export: Any, tmp_path: Path) -> None:
    for name in CONFIGS:
        path, out = gguf_file(tmp_path / f"{name}.gguf", name), tmp_path / f"{name}-again.gguf"
        assert export(path, "--to", "gguf", "--out", out)[0] == 0
        before, after = legato.load(path), legato.load(out)
        assert all(torch.equal(state(after)[key], tensor) for key, tensor in state(before).items())
        assert after.loaded.ends == before.loaded.ends
        ours, first = read_header(out).entries, read_header(path).entries
        for key in ("tokens", "merges", "pre", "bos_token_id", "eos_token_id"):
            assert ours[f"tokenizer.ggml.{key}"] == first[f"tokenizer.ggml.{key}"]
        assert ours["tokenizer.ggml.token_type"] == first["tokenizer.ggml.token_type"]
        assert ours["tokenizer.chat_template"] == CHATML
        assert after.chat_ids("hi") == before.chat_ids("hi")


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepieces_bpe_is_written_with_scores_and_bytes(
    prefix: bool, export: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces, entries = sentencepiece_entries(prefix=prefix)
    monkeypatch.setitem(CONFIGS["llama"], "vocab_size", pieces.get_piece_size())
    path, out = gguf_file(tmp_path / "m.gguf", **entries), tmp_path / "again.gguf"
    assert export(path, "--to", "gguf", "--out", out)[0] == 0
    ours = read_header(out).entries
    assert ours["tokenizer.ggml.model"] == "llama"
    assert [*ours["tokenizer.ggml.token_type"]] == entries["tokenizer.ggml.token_type"]
    tokenizer = legato.load(out).tokenizer
    for line in LINES:
        assert tokenizer.encode(line).tolist() == pieces.encode(line)
    folder = tmp_path / "folder"
    assert export(out, "--to", "hf", "--out", folder)[0] == 0
    assert legato.load(folder).tokenizer.prompt(" a dog") == [1, *pieces.encode(" a dog")]


def test_a_vocabulary_of_bytes_is_written(export: Any, tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(name="byte"), [])
    folder = saved(tmp_path / "m", tokenizer, name="gpt2")
    assert export(folder, "--to", "gguf")[0] == 0
    again = legato.load(tmp_path / "m.gguf")
    for line in LINES:
        assert again.tokenizer.encode(line).tolist() == tokenizer.encode(line).tolist()
        assert again.tokenizer.prompt(line) == tokenizer.prompt(line)


def test_special_tokens_of_ours_are_control_tokens(export: Any, tmp_path: Path) -> None:
    tokenizer = BPE.with_special_tokens(SPECIAL)
    assert export(saved(tmp_path / "m", tokenizer, name="gpt2"), "--to", "gguf")[0] == 0
    entries = read_header(tmp_path / "m.gguf").entries
    control = [n for n, kind in enumerate(entries["tokenizer.ggml.token_type"]) if kind == 3]
    assert control == sorted(tokenizer.special_ids)
    assert entries["tokenizer.ggml.add_bos_token"] is True
    assert entries["tokenizer.ggml.bos_token_id"] == entries["tokenizer.ggml.eos_token_id"] == tokenizer.eos_id


@pytest.mark.slow
def test_an_adapter_is_written_with_its_base(export: Any, tmp_path: Path) -> None:
    text, base = tmp_path / "a.txt", saved(tmp_path / "base", name="llama")
    text.write_text("the dog runs\n" * 40)
    settings: dict[str, Any] = {"data.train": str(text), "from": str(base), "adapt": "lora", "train.steps": 2}
    settings |= {"train.batch_tokens": 64, "train.validate_every": 2, "train.lr": 0.01, "device": "cpu"}
    legato.train("lm", settings, out=str(tmp_path / "run"))
    assert export(tmp_path / "run", "--to", "gguf", "--out", tmp_path / "a.gguf")[0] == 0
    merged = legato.load(tmp_path / "run")
    for name, tensor in state(legato.load(tmp_path / "a.gguf")).items():
        assert torch.equal(state(merged)[name], tensor)
    assert read_header(tmp_path / "a.gguf").entries["general.name"] == "run"


# --- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"name": "gpt2", "activation": "relu"}, "GPT-2 has activation=gelu-tanh, and this one relu"),
        ({"name": "llama", "family": "mistral", "window": 8}, "has no window, and this one has window=8"),
        ({"name": "llama", "family": "qwen3", "bias": True}, "qwen3 has no biases"),
        (
            {"name": "llama", "family": "qwen2", "scaling": {"type": "llama3", "factor": 8.0}},
            "no scaling.type=llama3",
        ),
    ],
)
def test_what_llama_cpp_lacks_is_named(settings: dict[str, Any], part: str, export: Any, tmp_path: Path) -> None:
    is_one_line(export(saved(tmp_path / "m", **settings), "--to", "gguf"), part)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_other_models_are_refused(name: str, export: Any, tmp_path: Path) -> None:
    more = {"name": name, "width": 8, "layers": 1} | ({"heads": 2} if name == "transformer" else {})
    folder = saved_pairs(tmp_path / "m", **more)
    is_one_line(export(folder, "--to", "gguf"), "written of gpt2 and llama", f"this is a {name}")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_classifier_is_refused(export: Any, tmp_path: Path) -> None:
    kind = MODELS.get("llama")
    body = kind(validate(kind.Config, {"name": "llama", **SMALL}), Sizes(BPE.size))
    module = ModelWithHead(body, validate(HeadSpec, {"kind": "classes", "outputs": 2}))
    (tmp_path / "m").mkdir()
    about = {"labels": ["a", "b"]}
    save_model(tmp_path / "m", module, Processors(BPE), task="classification", about=about, card="")
    is_one_line(export(tmp_path / "m", "--to", "gguf"), "is a model for classification")


@pytest.mark.parametrize(
    ("tokenizer", "why"), [("char", "it is char"), ("word", "it is word"), ("unigram", "it is unigram")]
)
def test_a_tokenizer_that_llama_cpp_lacks_is_named(tokenizer: str, why: str, export: Any, tmp_path: Path) -> None:
    made = Tokenizer.train(TokenizerConfig.model_validate({"name": tokenizer}), TEXTS)
    is_one_line(export(saved(tmp_path / "m", made, name="gpt2"), "--to", "gguf"), why, "tokenizer=bpe")
    lower = Tokenizer.train(TokenizerConfig(name="bpe", size=300, lowercase=True), TEXTS)
    is_one_line(export(saved(tmp_path / "l", lower, name="gpt2"), "--to", "gguf"), "by a rule of its own")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--quantize", "int8"), "cannot be written as 'int8' here; there is bf16, f16, f32, q4_0, q8_0"),
        (("--quantize", "q4_1"), "did you mean 'q4_0'?"),
        (("--out", "{folder}"), "holds the model itself, which would be lost"),
        (("--out", "{folder}/m.gguf"), "lies in {folder}, the model itself"),
    ],
)
def test_a_slip_is_named(words: tuple[str, str], part: str, export: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", name="gpt2")
    chosen = [word.format(folder=folder) for word in words]
    is_one_line(export(folder, "--to", "gguf", *chosen), part.format(folder=folder))


def test_a_file_is_written_over_only_when_forced(export: Any, tmp_path: Path) -> None:
    folder, out = saved(tmp_path / "m", name="gpt2"), tmp_path / "out.gguf"
    out.write_text("mine")
    is_one_line(export(folder, "--to", "gguf", "--out", out), f"{out} is there already", "--force")
    assert out.read_text() == "mine"
    assert export(folder, "--to", "gguf", "--out", out, "--force")[0] == 0
    is_one_line(export(out, "--to", "gguf"), "holds the model itself, which would be lost")
    (tmp_path / "d").mkdir()
    is_one_line(export(folder, "--to", "gguf", "--out", tmp_path / "d"), "is a folder; give --out the name of a file")


def test_without_its_package_the_way_to_install_it_is_told(
    export: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, path = saved(tmp_path / "m", name="gpt2"), gguf_file(tmp_path / "there.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    is_one_line(export(folder, "--to", "gguf"), "gguf is not installed", 'pip install "legato-nn[gguf]"')
    assert legato.load(path).generate("a", max_tokens=2) is not None  # reading does without


def test_theirs_is_a_model_with_opinions() -> None:
    """Else every test above would compare nothing with nothing."""
    assert theirs("llama").lm_head.weight.abs().mean() > 0.05
