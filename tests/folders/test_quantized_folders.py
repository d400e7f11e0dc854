"""Folders of quantised weights, and models read into other widths."""

from __future__ import annotations

import json
import tarfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import legato
from legato.data.batching.batch import Inputs
from legato.errors import ConfigError, FolderError
from legato.folders.adapters.saving import digest_of
from legato.folders.exports import export
from legato.folders.finding import find_model
from legato.folders.model_folder import read_model
from legato.models.model_with_head import body_of
from legato.nn.quantized import QuantizedCell, QuantizedLinear, is_quantized
from legato.nn.recurrent import Cell
from legato.runs.train import train
from tiny_tasks import tiny

WIDE = {"model": "llama", "model.layers": 2, "model.width": 32, "model.heads": 2, "tokenizer": "char"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEGATO_CACHE", str(place / "cache"))
        train("lm", {**tiny("lm", place), **WIDE}, out=place / "run")
    return place / "run" / "best"


@torch.no_grad()
def hidden(model: legato.Model) -> torch.Tensor:
    body = body_of(model.module)
    batch = body.smallest_batch()
    if batch.inputs.characters is not None:
        batch.inputs.characters = torch.arange(1, 9).view(1, 1, 8)  # of none but padding, only biases count
    if body.is_encoder_decoder and batch.source is None:
        batch.source = Inputs(torch.tensor([[1, 2, 3]]))
    return body(batch).hidden.float()


@pytest.mark.parametrize("width", ["int8", "int4"])
def test_a_quantised_folder_is_what_quantising_gives(folder: Path, width: str, tmp_path: Path) -> None:
    written = export(folder, "legato", out=tmp_path / width, quantize=width)
    kept, made, plain = legato.load(written), legato.load(folder, quantize=width), legato.load(folder)
    torch.testing.assert_close(hidden(kept), hidden(made), rtol=0, atol=0)
    assert not torch.equal(hidden(kept), hidden(plain))
    assert is_quantized(kept.module)
    assert kept.generate("a", max_tokens=5) == made.generate("a", max_tokens=5)
    assert legato.load(written, quantize=width).module.embedding.blocks.equal(kept.module.embedding.blocks)
    config = json.loads((written / "config.json").read_text())
    bits = 8 if width == "int8" else 4
    assert config["quantization_config"].pop("original") == digest_of(plain.module)
    assert config["quantization_config"] == {"quant_method": "legato", "bits": bits, "group_size": 32}
    sizes = [sum(file.stat().st_size for file in place.glob("*.safetensors")) for place in (written, folder)]
    assert sizes[0] < sizes[1] / 2


RECURRENT = {
    "lstm": ("lm", {"model": "lstm"}),
    "gru": ("lm", {"model": "gru"}),
    "elman": ("lm", {"model": "elman"}),
    "tied": ("lm", {"model": "lstm", "model.tied": True, "model.embedding": 64}),
    "seq2seq": ("translation", {"model": "seq2seq"}),
    "elmo": ("lm", {"model": "elmo", "tokenizer": "word"}),
    "tagger": ("tagging", {"model": "lstm", "model.bidirectional": True}),
    "deepspeech": ("speech", {"model": "deepspeech"}),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", [*RECURRENT])
@pytest.mark.parametrize("width", ["int8", "int4"])
def test_recurrent_models_have_narrow_folders(kind: str, width: str, tmp_path: Path) -> None:
    task, more = RECURRENT[kind]
    given = {key: value for key, value in tiny(task, tmp_path).items() if key != "model.heads"}
    settings = {**given, **more, "model.width": 64, "train.steps": 1}
    train(task, settings, out=tmp_path / "run")
    written = export(tmp_path / "run", "legato", out=tmp_path / width, quantize=width)
    best = find_model(tmp_path / "run")
    kept, made, plain = legato.load(written), legato.load(best, quantize=width), legato.load(best)
    cells = [part for part in body_of(kept.module).modules() if isinstance(part, Cell)]
    assert cells
    assert all(isinstance(cell, QuantizedCell) for cell in cells)
    torch.testing.assert_close(hidden(kept), hidden(made), rtol=0, atol=0)
    assert not torch.equal(hidden(kept), hidden(plain))
    expected = hidden(plain)
    assert (hidden(kept) - expected).norm() < (0.05 if width == "int8" else 0.4) * expected.norm()
    sizes = [sum(file.stat().st_size for file in place.glob("*.safetensors")) for place in (written, best)]
    assert sizes[0] < sizes[1] / 2
    if kept.module.can_generate and task == "lm":
        assert kept.generate("a", max_tokens=5) == made.generate("a", max_tokens=5)


@pytest.mark.parametrize("dtype", ["bfloat16", "bf16", "float16", "half"])
def test_weights_are_read_into_their_width(folder: Path, dtype: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = legato.load(folder, "cpu", dtype=dtype)
    wanted = torch.bfloat16 if dtype.startswith("b") else torch.float16
    assert {parameter.dtype for parameter in model.module.parameters()} == {wanted}
    torch.testing.assert_close(hidden(model), hidden(legato.load(folder)), rtol=0.05, atol=0.05)
    assert torch.get_default_dtype() == torch.float32
    assert isinstance(model.generate("a", max_tokens=3), str)


def test_what_a_width_cannot_be_is_said(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="quantize=int3: did you mean 'int8'"):
        legato.load(folder, quantize="int3")
    with pytest.raises(ConfigError, match="dtype=double: there is auto, bfloat16, float16, float32"):
        legato.load(folder, dtype="double")
    written = export(folder, "legato", out=tmp_path / "q", quantize="int8")
    with pytest.raises(FolderError, match="holds int8 weights, which cannot become int4"):
        legato.load(written, quantize="int4")
    with pytest.raises(FolderError, match="holds int8 weights, which only Legato reads so"):
        export(written, "hf", out=tmp_path / "h")
    with pytest.raises(ConfigError, match="say which: --quantize int8 or --quantize int4"):
        export(folder, "legato", out=tmp_path / "h")
    with pytest.raises(FolderError, match="holds quantised weights, which cannot be trained"):
        read_model(written, sketched=True)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"quant_method": "gptq"}, "quantised by 'gptq', which Legato does not read"),
        ({"group_size": 64}, "should say bits 8 or 4, in groups of 32"),
        ({"bits": 3}, "should say bits 8 or 4, in groups of 32"),
    ],
)
def test_what_config_json_says_of_widths_is_checked(
    folder: Path, change: dict[str, Any], told: str, tmp_path: Path
) -> None:
    written = export(folder, "legato", out=tmp_path / "q", quantize="int8")
    config = json.loads((written / "config.json").read_text())
    config["quantization_config"] |= change
    (written / "config.json").write_text(json.dumps(config))
    with pytest.raises(FolderError, match=told):
        legato.load(written)


def test_blocks_that_do_not_fit_are_named(folder: Path, tmp_path: Path) -> None:
    written = export(folder, "legato", out=tmp_path / "q", quantize="int8")
    file = written / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("qkv.blocks"))
    tensors[name] = tensors[name][:, :, 1:].contiguous()
    save_file(tensors, file)
    with pytest.raises(FolderError, match=r"qkv\.blocks' is"):
        legato.load(written)
    del tensors[name]
    save_file(tensors, file)
    with pytest.raises(FolderError, match="lacks the tensor"):
        legato.load(written)


def test_a_model_without_such_matrices_is_refused(tmp_path: Path) -> None:
    train("lm", tiny("lm", tmp_path), out=tmp_path / "run")
    with pytest.raises(ConfigError, match="has no matrix large enough: 32 inputs and 16 outputs are the least"):
        legato.load(tmp_path / "run", quantize="int8")


def test_a_layer_knows_its_width(folder: Path) -> None:
    model = legato.load(folder, quantize="int4")
    layers = [part for part in model.module.modules() if isinstance(part, QuantizedLinear)]
    assert {layer.bits for layer in layers} == {4, 8}  # tables of tokens have 8


@pytest.mark.slow
@pytest.mark.parametrize(
    "archive", sorted((Path(__file__).parents[1] / "saved/quantized").glob("*.tar.xz")), ids=lambda each: each.name
)
def test_what_was_quantised_before_scores_the_same(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """See `tests/save_quantized.py`. The first of them had recurrent cells of floats beside narrow layers."""
    with tarfile.open(archive) as held:
        held.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    expected = json.loads((tmp_path / "expected.json").read_text())
    assert expected
    for name, loss in expected.items():
        model = legato.load(tmp_path / name, device="cpu")
        assert is_quantized(model.module), name
        assert model.evaluate(test="valid.txt")["loss"] == pytest.approx(loss, rel=1e-3), name
        with pytest.raises(FolderError, match="cannot become"):
            legato.load(tmp_path / name, quantize="int4" if name.endswith("int8") else "int8")
