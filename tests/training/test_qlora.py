"""Adapters that learn beside narrow matrices (QLoRA): what is frozen stays as narrow as it is."""

from __future__ import annotations

import json
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import legato
from legato.config import validate
from legato.errors import ConfigError, FolderError
from legato.folders.exports import export
from legato.folders.model_folder import load_model, read_model
from legato.folders.weights import load_tensors
from legato.models.base import count_parameters
from legato.models.model_with_head import HeadSpec, body_of
from legato.nn.linear import Linear
from legato.nn.quantized import Narrow, QuantizedLinear, is_quantized, quantize, quantize_layers
from legato.runs.config import check, settings_for
from legato.runs.train import train
from legato.training.adapt import AdaptConfig, Base, adapt
from tiny_adapted import IDS, adapted, answer, published_folder, published_folders, saved, shake
from tiny_reviews import settings as reviews
from tiny_runs import write_text

WIDE = {"width": 32, "heads": 2, "feedforward": 64}
RUN = {
    "train.steps": 30,
    "train.lr": 0.02,
    "train.batch_tokens": 128,
    "train.log_every": 1,
    "train.samples": 0,
    "train.tensorboard": "false",
    "train.precision": "float32",
    "device": "cpu",
    "adapt": "lora",
    "adapt.targets": "all-linear",
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return published_folders(tmp_path_factory, ("bert", "gpt2", "llama"), **WIDE)


@pytest.fixture(scope="module")
def narrow(bases: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("narrow")
    return {name: export(place, "legato", out=root / name, quantize="int8") for name, place in bases.items()}


def texts(folder: Path) -> dict[str, Any]:
    return {"data.train": str(write_text(folder / "train.txt")), "data.valid": str(write_text(folder / "valid.txt"))}


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line and "split" not in line]


@pytest.mark.parametrize("bits", [8, 4])
def test_gradients_are_those_of_the_dequantised_weights(bits: int) -> None:
    torch.manual_seed(0)
    layer = Linear(64, 32)
    mine = QuantizedLinear(layer, quantize(layer.weight, bits))
    plain = Linear(64, 32)
    plain.weight, plain.bias = nn.Parameter(mine.weight), nn.Parameter(layer.bias.detach().clone())
    x = torch.randn(2, 5, 64)
    found, expected = (
        torch.autograd.grad(each(given).square().sum(), (given, each.bias))
        for each, given in ((mine, x.clone().requires_grad_()), (plain, x.clone().requires_grad_()))
    )
    torch.testing.assert_close(found, expected)
    with torch.autocast("cpu", torch.bfloat16):
        y = mine(x.requires_grad_())
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, plain.weight.sum(0).expand_as(x), rtol=0.05, atol=0.05)


def test_no_wide_matrix_is_kept_for_the_gradient() -> None:
    layer = Linear(64, 32)
    mine = QuantizedLinear(layer, quantize(layer.weight, 8))
    kept: list[tuple[int, ...]] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tuple(tensor.shape)) or tensor, lambda x: x
    ):
        mine(torch.randn(5, 64, requires_grad=True))
    assert (32, 64) not in kept
    assert (64, 32) not in kept


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_adapters_have_the_gradients_that_they_have_beside_the_dequantised_weights(
    name: str, bases: dict[str, Path]
) -> None:
    """… of a float model that holds them."""
    models = []
    for dense in (False, True):
        loaded = load_model(bases[name])
        base = Base.of(str(bases[name]), loaded)
        model = loaded.module
        if dense:
            wide = deepcopy(model)
            quantize_layers(wide, "int4")
            layers = dict(wide.named_modules())
            for path, layer in model.named_modules():
                if isinstance(layers[path], Narrow):
                    layer.weight.data = layers[path].weight
        else:
            quantize_layers(model, "int4")
        torch.manual_seed(1)
        adapt(model, validate(AdaptConfig, {"name": "lora", "rank": 2, "targets": "all-linear"}), base)
        torch.manual_seed(2)
        shake(model)
        output = model.train()(legato_batch())
        model.readout(output.hidden).square().mean().backward()
        models.append({n: p.grad for n, p in model.named_parameters() if p.requires_grad})
    assert models[0].keys() == models[1].keys()
    torch.testing.assert_close(models[0], models[1], rtol=1e-3, atol=1e-6)


def legato_batch() -> Any:
    from legato.data.batching.batch import Batch, Inputs

    return Batch(Inputs(IDS))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_run_learns_beside_a_narrow_folder(name: str, narrow: dict[str, Path], tmp_path: Path) -> None:
    before = load_tensors(narrow[name] / "model.safetensors")
    result = train("lm", {**texts(tmp_path), **RUN, "from": str(narrow[name])}, out=tmp_path / "run")
    found = losses(tmp_path / "run")
    assert sum(found[-5:]) < 0.9 * sum(found[:5])
    assert result.trainable < result.parameters / 2
    model, base = legato.load(tmp_path / "run"), legato.load(narrow[name])
    assert is_quantized(model.module)
    assert result.parameters == count_parameters(base.module)
    after = load_tensors(narrow[name] / "model.safetensors")
    for key, tensor in before.items():
        assert torch.equal(tensor, after[key])
    held = base.module.state_dict()
    for key, tensor in model.module.state_dict().items():
        if "low_rank" not in key:
            assert torch.equal(tensor, held[key]), key
    assert isinstance(model.generate("the", max_tokens=4), str)
    assert not any(file.name == "model.safetensors" for file in (tmp_path / "run" / "best").iterdir())


def test_an_adapter_of_a_narrow_base_is_one_for_the_wide_base_too(
    bases: dict[str, Path], narrow: dict[str, Path], tmp_path: Path
) -> None:
    model, loaded = adapted(narrow["llama"], name="lora", rank=3, targets="all-linear")
    folder = saved(tmp_path / "a", model, loaded)
    again = load_model(folder)
    torch.testing.assert_close(answer(again.module), answer(model), atol=1e-4, rtol=1e-4)
    for file, keys in {"legato.json": ("base", "path"), "adapter_config.json": ("base_model_name_or_path",)}.items():
        content = json.loads((folder / file).read_text())
        place = content
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = str(bases["llama"])
        (folder / file).write_text(json.dumps(content))
    wide = load_model(folder)
    assert not is_quantized(wide.module)
    found, expected = answer(wide.module), answer(model)
    assert (found - expected).norm() < 0.15 * expected.norm()
    assert (answer(load_model(bases["llama"]).module) - expected).norm() > 0.5 * expected.norm()


@pytest.mark.slow
def test_a_base_is_made_narrow_for_its_adapters(bases: dict[str, Path], tmp_path: Path) -> None:
    settings = {**texts(tmp_path), **RUN, "from": str(bases["llama"]), "quantize": "int4"}
    train("lm", settings, out=tmp_path / "run")
    found = losses(tmp_path / "run")
    assert sum(found[-5:]) < 0.9 * sum(found[:5])
    wide = legato.load(tmp_path / "run")
    assert not is_quantized(wide.module)
    model = legato.load(tmp_path / "run", quantize="int4")  # as it was trained: beside, not rounded with them
    layer = model.module.stack.layers[0].attention.qkv
    assert layer.low_rank is not None
    base = legato.load(bases["llama"], quantize="int4")
    assert torch.equal(layer.blocks, base.module.stack.layers[0].attention.qkv.blocks)
    other = legato.load(tmp_path / "run", quantize="int8")  # added first
    assert other.module.stack.layers[0].attention.qkv.low_rank is None
    expected = answer(wide.module)
    for each in (model, other):
        assert (answer(each.module) - expected).norm() < 0.5 * expected.norm()
    shutil.rmtree(tmp_path / "run" / "best")
    with pytest.raises(ConfigError, match="quantize is int4"):
        train(None, {"resume": str(tmp_path / "run"), "quantize": "int8", "train.steps": 40})


def test_a_head_learns_with_the_adapters(narrow: dict[str, Path], tmp_path: Path) -> None:
    given = {key: value for key, value in reviews(tmp_path).items() if not key.startswith(("model", "tokenizer"))}
    settings = {**given, "from": str(narrow["bert"]), "adapt": "lora", "train.steps": 4, "device": "cpu"}
    train("classification", settings, out=tmp_path / "run")
    model = legato.load(tmp_path / "run")
    assert is_quantized(body_of(model.module))
    assert model.predict(["good"])


@pytest.mark.slow
def test_it_goes_on_to_the_same_bits(narrow: dict[str, Path], tmp_path: Path) -> None:
    settings = {**texts(tmp_path), **RUN, "from": str(narrow["gpt2"]), "train.checkpoint_every": 2, "train.steps": 4}
    train("lm", {**settings, "train.schedule": "constant"}, out=tmp_path / "whole")
    train("lm", {**settings, "train.schedule": "constant", "train.steps": 2}, out=tmp_path / "run")
    train(None, {"resume": str(tmp_path / "run"), "train.steps": 4})
    found, expected = (
        load_tensors(tmp_path / run / "last" / "adapter_model.safetensors") for run in ("run", "whole")
    )
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor)


@pytest.mark.parametrize("how", ["full", "head", "bitfit"])
def test_only_adapters_train_beside_narrow_matrices(how: str, narrow: dict[str, Path], tmp_path: Path) -> None:
    given = {**texts(tmp_path), "from": str(narrow["gpt2"]), "adapt": how, "device": "cpu"}
    with pytest.raises(FolderError, match="holds quantised weights, which cannot be trained; use adapt=lora"):
        train("lm", given, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="quantize=int8: quantised weights cannot be trained; add adapt=lora"):
        check(settings_for("lm", {**given, "quantize": "int8"}))


def test_what_cannot_be_is_said(bases: dict[str, Path], narrow: dict[str, Path], tmp_path: Path) -> None:
    given = {**texts(tmp_path), **RUN}
    with pytest.raises(ConfigError, match="quantize"):
        check(settings_for("lm", {**given, "from": str(bases["gpt2"]), "quantize": "int3"}))
    with pytest.raises(FolderError, match="holds int8 weights, which cannot become int4"):
        train("lm", {**given, "from": str(narrow["gpt2"]), "quantize": "int4"}, out=tmp_path / "run")
    model, loaded = adapted(narrow["gpt2"], name="lora")
    folder = saved(tmp_path / "a", model, loaded)
    with pytest.raises(ConfigError, match="an adapter beside quantised weights"):
        train("lm", {**given, "from": str(folder)}, out=tmp_path / "run")
    with pytest.raises(FolderError, match="is an adapter beside int8 weights: it cannot be merged into those"):
        export(folder, "legato", out=tmp_path / "q", quantize="int8")
    with pytest.raises(FolderError, match="holds int8 weights, which only Legato reads so"):
        export(folder, "hf", out=tmp_path / "h")


def test_a_narrow_base_that_became_another_is_refused(bases: dict[str, Path], tmp_path: Path) -> None:
    base = export(bases["gpt2"], "legato", out=tmp_path / "base", quantize="int8")
    model, loaded = adapted(base, name="lora")
    folder = saved(tmp_path / "a", model, loaded)
    shutil.rmtree(base)
    other = published_folder(tmp_path / "other", "gpt2", **{**WIDE, "layers": 1})
    export(other, "legato", out=base, quantize="int8")
    with pytest.raises(FolderError, match="is an adapter for another base"):
        load_model(folder)


def test_parameters_are_counted_whether_narrow_or_not(bases: dict[str, Path], narrow: dict[str, Path]) -> None:
    for name, place in bases.items():
        assert count_parameters(read_model(narrow[name]).module) == count_parameters(load_model(place).module)


def test_a_head_of_a_narrow_base_counts(narrow: dict[str, Path]) -> None:
    model, _ = adapted(narrow["bert"], head=HeadSpec(kind="classes", outputs=2, pool="mean"), name="lora", rank=2)
    inside = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {name for name in inside if "low_rank" not in name} == {"head.weight", "head.bias"}
