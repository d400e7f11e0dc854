"""The residual network: Hugging Face's folders both ways, small pictures, a head on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from legato.config import validate
from legato.data.batching.batch import Batch, Inputs
from legato.data.image.image_processor import ImageProcessor
from legato.data.processors import Processors
from legato.errors import ConfigError, FolderError, LegatoError
from legato.folders.model_folder import load_model, read_config, refusal, save_model
from legato.models.base import Sizes
from legato.models.model_with_head import HeadSpec, ModelWithHead
from legato.models.resnet import ResNetConfig, ResNetModel
from legato.nn.capture import record

SMALL: dict[str, Any] = {"embedding_size": 6, "hidden_sizes": [8, 12, 16], "depths": [2, 1, 2], "layer_type": "basic"}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"layer_type": "bottleneck"},
    {"layer_type": "bottleneck", "downsample_in_bottleneck": True, "hidden_act": "gelu"},
    {"downsample_in_first_stage": True, "hidden_act": "silu"},
]
OWN: dict[str, Any] = {"embedding": 6, "widths": [8, 12, 16], "depths": [2, 1, 2], "image": 32}


def pictures(height: int = 40, width: int = 40, rows: int = 2) -> Tensor:
    return torch.randn(rows, 3, height, width, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def shake(model: nn.Module) -> None:
    """Other numbers than those that networks begin with, running statistics included."""
    generator = torch.Generator().manual_seed(1)
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            noise = 0.2 * torch.randn(tensor.shape, generator=generator)
            tensor.add_(noise.abs() if name.endswith("running_var") else noise)
        else:
            tensor.fill_(7)


def their_folder(folder: Path, name: str, **more: Any) -> Any:
    torch.manual_seed(0)
    model = getattr(transformers, name)(transformers.ResNetConfig(**{**SMALL, **more})).eval()
    shake(model)
    model.save_pretrained(folder)
    ImageProcessor(size=(40, 40)).save(folder)
    return model


def our_model(**more: Any) -> ResNetModel:
    torch.manual_seed(0)
    model = ResNetModel(validate(ResNetConfig, {**OWN, **more}), Sizes(0)).eval()
    shake(model)
    return model


def processors() -> Processors:
    return Processors(others={"image": ImageProcessor(size=(32, 32))})


def states_of(model: Any, pixels: Tensor) -> list[Tensor]:
    found: list[Tensor] = model.states(Batch(Inputs(values=pixels)))
    return found


def logits_of(model: Any, pixels: Tensor) -> Tensor:
    found: Tensor = model(Batch(Inputs(values=pixels))).logits
    return found


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [(40, 40), (33, 47)])
@pytest.mark.parametrize("options", OPTIONS)
@torch.no_grad()
def test_their_folder_gives_their_grids(options: dict[str, Any], size: tuple[int, int], tmp_path: Path) -> None:
    theirs = their_folder(tmp_path, "ResNetModel", **options)
    ours = load_model(tmp_path).module
    expected = theirs(pictures(*size), output_hidden_states=True).hidden_states
    found = states_of(ours, pictures(*size))
    assert len(found) == len(expected) == 4
    for our, their in zip(found, expected, strict=True):
        close(our, their.flatten(2).transpose(1, 2))
    rows, columns = ours.grid(*size)  # type: ignore[operator]
    assert (rows, columns) == tuple(expected[-1].shape[2:])
    assert found[-1].shape == (2, rows * columns, ours.out_width)


@pytest.mark.parametrize("options", OPTIONS)
@torch.no_grad()
def test_their_classifier_gives_their_logits(options: dict[str, Any], tmp_path: Path) -> None:
    theirs = their_folder(tmp_path, "ResNetForImageClassification", num_labels=5, **options)
    loaded = load_model(tmp_path)
    assert (loaded.task, loaded.about["labels"][4]) == ("image-classification", "LABEL_4")
    close(logits_of(loaded.module, pictures()), theirs(pictures()).logits)


@pytest.mark.parametrize("options", [{}, {"block": "bottleneck", "downsample_in_bottleneck": True}])
@torch.no_grad()
def test_our_folder_is_theirs(options: dict[str, Any], tmp_path: Path) -> None:
    ours = our_model(**options)
    save_model(tmp_path, ours, processors(), task="image-classification", about={}, card="")
    theirs, told = transformers.ResNetModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(told.values())
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["ResNetModel"]
    hidden = states_of(ours, pictures())[-1]
    close(theirs.eval()(pictures()).last_hidden_state.flatten(2).transpose(1, 2), hidden)
    state = theirs.state_dict()
    assert torch.equal(state["embedder.embedder.normalization.running_var"], ours.stem.norm.running_var)  # type: ignore[arg-type]
    assert state["embedder.embedder.normalization.num_batches_tracked"] == 7
    again = load_model(tmp_path)
    assert again.module.config == ours.config == read_config(tmp_path)
    assert torch.equal(states_of(again.module, pictures())[-1], hidden)


@torch.no_grad()
def test_our_classifier_is_theirs(tmp_path: Path) -> None:
    ours = ModelWithHead(our_model(), validate(HeadSpec, {"kind": "classes", "outputs": 3})).eval()
    assert (ours.shape.pool, refusal(ours.body)) == ("mean", None)
    about = {"labels": ["cat", "dog", "horse"], "kind": "classes"}
    save_model(tmp_path, ours, processors(), task="image-classification", about=about, card="")
    theirs, told = transformers.ResNetForImageClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(told.values())
    assert theirs.config.id2label == {0: "cat", 1: "dog", 2: "horse"}
    close(theirs.eval()(pictures()).logits, logits_of(ours, pictures()))
    close(logits_of(load_model(tmp_path).module, pictures()), logits_of(ours, pictures()))


@torch.no_grad()
def test_a_stem_for_small_pictures_leaves_them_as_large_as_they_are(tmp_path: Path) -> None:
    ours = our_model(stem="3x3")
    states = states_of(ours, pictures(32, 32))
    assert [tuple(state.shape[1:]) for state in states] == [(1024, 6), (1024, 8), (256, 12), (64, 16)]
    assert (ours.stride, ours.grid(32, 32)) == (4, (8, 8))
    save_model(tmp_path, ours, processors(), task="image-classification", about={}, card="")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "legato-resnet"
    assert refusal(ours) == "Hugging Face's ResNet begins with stem=7x7 alone, and this one with stem=3x3"
    again = load_model(tmp_path).module
    assert again.config == ours.config
    assert torch.equal(states_of(again, pictures(32, 32))[-1], states[-1])


@pytest.mark.parametrize("widths", [[8, 12, 16], [6, 6, 6]])
@pytest.mark.parametrize("layers", ["mix", "sum-all"])
def test_a_head_cannot_mix_grids_of_several_sizes(layers: str, widths: list[int]) -> None:
    shape = validate(HeadSpec, {"kind": "classes", "outputs": 3, "layers": layers})
    with pytest.raises(ConfigError, match=f"head.layers={layers} needs layers of one grid; those of this resnet"):
        ModelWithHead(our_model(widths=widths), shape)


@torch.no_grad()
def test_a_head_can_read_an_earlier_stage() -> None:
    shape = validate(HeadSpec, {"kind": "classes", "outputs": 3, "layers": "second-to-last"})
    model = ModelWithHead(our_model(), shape).eval()
    assert model(Batch(Inputs(values=pictures(32, 32)))).hidden.shape == (2, 16, 12)


def test_the_settings_are_resnet_18s_and_make_resnet_50() -> None:
    def count(**settings: Any) -> int:
        with torch.device("meta"):
            model = ResNetModel(validate(ResNetConfig, settings), Sizes(0))
        return sum(parameter.numel() for parameter in model.parameters())

    assert count() == 11_176_512  # of 11.7 million, the rest being 1,000 classes
    deep = {"block": "bottleneck", "widths": [256, 512, 1024, 2048], "depths": [3, 4, 6, 3]}
    assert count(**deep) == 23_508_032


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"widths": [8, 16]}, "widths names 2 stages and depths 3"),
        ({"widths": [8, 2, 8], "block": "bottleneck"}, "a bottleneck of width 2 has nothing inside"),
        ({"widths": [8, 0, 8]}, "greater than or equal to 1"),
        ({"depths": []}, "at least 1 item"),
        ({"stem": "5x5"}, "stem=5x5"),
    ],
)
def test_settings_that_make_no_network_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        validate(ResNetConfig, {**OWN, **settings}, "model")


def test_what_is_no_picture_is_refused() -> None:
    with pytest.raises(LegatoError, match=r"resnet reads pictures of shape \(3, height, width\), not \(1, 8, 8\)"):
        our_model()(Batch(Inputs(values=torch.zeros(2, 1, 8, 8))))


def test_the_last_grid_is_captured_place_by_place() -> None:
    model = our_model()
    with record() as trace, torch.no_grad():
        states = model.read(Batch(Inputs(values=pictures(32, 32))))
    assert trace["hidden"][0].equal(states)
    assert trace.axes["hidden"] == ("row", "position", "unit")


def test_a_folder_whose_statistics_are_not_its_own_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    their_folder(tmp_path, "ResNetModel")
    file, name = tmp_path / "model.safetensors", "embedder.embedder.normalization.running_mean"
    tensors = load_file(file)
    for other, reason in ((torch.zeros(5), r"should have shape \(6,\), but has \(5,\)"), (None, "lacks the tensor")):
        changed = {key: tensor for key, tensor in tensors.items() if key != name}
        save_file(changed if other is None else {**changed, name: other}, file, metadata={"format": "pt"})
        with pytest.raises(FolderError, match=reason):
            load_model(tmp_path)
    count = "embedder.embedder.normalization.num_batches_tracked"
    save_file({**tensors, count: torch.tensor(1.5)}, file, metadata={"format": "pt"})
    with pytest.raises(FolderError, match="holds float32 numbers, not int64"):
        load_model(tmp_path)


def test_how_pictures_lie_in_memory_changes_no_grid() -> None:
    """On a GPU their channels lie side by side."""
    torch.manual_seed(0)
    model = ResNetModel(validate(ResNetConfig, {"name": "resnet", **OWN}, "model"), Sizes(0)).eval()
    shake(model)
    plain, other = pictures(32, 32), pictures(32, 32).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        pairs = list(zip(model.grids(plain), model.grids(other), strict=True))
    assert all(theirs.is_contiguous(memory_format=torch.channels_last) for _, theirs in pairs)
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=5e-5)
