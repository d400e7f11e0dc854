"""The Vision Transformer: Hugging Face's folders both ways, other sizes of pictures, a head on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from legato.data.batching.batch import Batch, Inputs
from legato.data.image.image_processor import ImageProcessor
from legato.data.processors import Processors
from legato.errors import ConfigError, LegatoError
from legato.folders.model_folder import load_model, save_model
from legato.models.base import Sizes
from legato.models.vit import ViTConfig, ViTModel

SMALL: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "image_size": 12,
    "patch_size": 4,
}


def pictures(height: int = 12, width: int = 12) -> Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(0))


def their_folder(folder: Path, name: str, **more: Any) -> Any:
    torch.manual_seed(0)
    model = getattr(transformers, name)(transformers.ViTConfig(**SMALL, **more)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    ImageProcessor(size=(12, 12)).save(folder)
    return model


@pytest.mark.parametrize("options", [{}, {"qkv_bias": False, "hidden_act": "relu"}])
@torch.no_grad()
def test_their_folder_gives_their_states(options: dict[str, Any], tmp_path: Path) -> None:
    theirs = their_folder(tmp_path, "ViTModel", **options)
    ours = load_model(tmp_path).module
    expected = theirs(pictures(), output_hidden_states=True)
    found = ours.states(Batch(Inputs(values=pictures())))
    torch.testing.assert_close(found[-1], expected.last_hidden_state, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.pooled(found[-1]), expected.pooler_output, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[0], expected.hidden_states[0], rtol=1e-4, atol=1e-4)


def test_reading_a_folder_never_waits_for_numbers_that_are_not_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's `trunc_normal_` draws until all is inside its bounds; of memory that nobody fills it may never be."""
    their_folder(tmp_path, "ViTModel")

    def refuse(*given: Any, **options: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(torch.nn.init, "trunc_normal_", refuse)
    load_model(tmp_path)


@pytest.mark.parametrize("size", [(12, 20), (4, 4), (24, 24)])
@torch.no_grad()
def test_positions_are_stretched_as_theirs(size: tuple[int, int], tmp_path: Path) -> None:
    theirs = their_folder(tmp_path, "ViTModel")
    ours = load_model(tmp_path).module
    expected = theirs(pictures(*size), interpolate_pos_encoding=True).last_hidden_state
    torch.testing.assert_close(ours(Batch(Inputs(values=pictures(*size)))).hidden, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_their_classifier_gives_their_logits(tmp_path: Path) -> None:
    theirs = their_folder(tmp_path, "ViTForImageClassification", num_labels=5)
    ours = load_model(tmp_path).module
    found = ours(Batch(Inputs(values=pictures()))).logits
    torch.testing.assert_close(found, theirs(pictures()).logits, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_our_folder_is_theirs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = ViTConfig(layers=2, width=24, heads=3, feedforward=40, image=12, patch=4, pooler=True)
    ours = ViTModel(config, Sizes(0)).eval()
    processors = Processors(others={"image": ImageProcessor(size=(12, 12))})
    save_model(tmp_path, ours, processors, task="image-classification", about={}, card="")
    theirs = transformers.ViTModel.from_pretrained(tmp_path).eval()
    expected = theirs(pictures())
    hidden = ours(Batch(Inputs(values=pictures()))).hidden
    torch.testing.assert_close(hidden, expected.last_hidden_state, rtol=1e-4, atol=1e-4)
    again = load_model(tmp_path)
    assert again.module.config == ours.config
    assert again.processors.fingerprints() == processors.fingerprints()
    torch.testing.assert_close(again.module(Batch(Inputs(values=pictures()))).hidden, hidden)


@pytest.mark.parametrize("name", ["ViTModel", "ViTForImageClassification"])
@torch.no_grad()
def test_their_class_is_named_again(name: str, tmp_path: Path) -> None:
    expected = their_folder(tmp_path, name)(pictures())
    loaded = load_model(tmp_path)
    save_model(tmp_path, loaded.module, loaded.processors, task=loaded.task, about=loaded.about, card="")
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [name]
    again = getattr(transformers, name).from_pretrained(tmp_path).eval()(pictures())
    torch.testing.assert_close(again[0], expected[0], rtol=1e-4, atol=1e-4)


def test_patches_have_to_fill_the_picture() -> None:
    with pytest.raises(ValueError, match="patch=5 does not divide image=12"):
        ViTConfig(image=12, patch=5)
    model = ViTModel(ViTConfig(layers=1, width=8, heads=1, image=12, patch=4), Sizes(0))
    with pytest.raises(LegatoError, match="no patches of 4 pixels"):
        model(Batch(Inputs(values=torch.zeros(1, 3, 10, 12))))


def test_a_folder_of_other_channels_is_refused(tmp_path: Path) -> None:
    their_folder(tmp_path, "ViTModel", num_channels=1)
    with pytest.raises(LegatoError, match="num_channels is 1; Legato has only 3"):
        load_model(tmp_path)


def test_heads_that_do_not_divide_are_named() -> None:
    with pytest.raises((ConfigError, ValueError), match="heads=5 does not divide width=24"):
        ViTConfig(width=24, heads=5)
