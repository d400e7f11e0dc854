"""Muon: PyTorch's steps for matrices of layers, AdamW's for the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from legato.errors import CheckpointError, ConfigError
from legato.folders.weights import load_tensors, save_tensors
from legato.models.base import Sizes
from legato.models.gpt2 import GPT2Config, GPT2Model
from legato.models.resnet import ResNetConfig, ResNetModel
from legato.models.word2vec import Word2VecConfig, Word2VecModel
from legato.training.config import TrainConfig
from legato.training.muon import orthogonal
from legato.training.optimizers import make_optimizer, optimizer_tensors, restore_optimizer

CPU = torch.device("cpu")
SETTINGS = TrainConfig(optimizer="muon", lr=0.02, weight_decay=0.1)


def network() -> GPT2Model:
    torch.manual_seed(0)
    return GPT2Model(GPT2Config(layers=2, width=16, heads=2), Sizes(vocabulary=20))


def draw_gradients(model: torch.nn.Module, step: int) -> None:
    draw = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=draw)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 4, 12), (2, 12, 4)])
def test_every_direction_becomes_about_as_long(shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    values = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
    assert values.min() > 0.5
    assert values.max() < 1.3


def test_matrices_of_layers_have_the_steps_of_pytorchs_muon() -> None:
    ours, theirs = network(), network()
    made = make_optimizer(ours, SETTINGS, CPU)
    inside = [p for name, p in theirs.named_parameters() if ".layers." in name and p.dim() == 2]
    outside = [p for p in theirs.parameters() if all(p is not other for other in inside)]
    assert len(inside) == 2 * 4  # queries, keys and values; output; two of the feed-forward layer
    muon = torch.optim.Muon(inside, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    tables = {"params": [p for p in outside if p.dim() == 2], "weight_decay": 0.1}
    rest = {"params": [p for p in outside if p.dim() < 2], "weight_decay": 0.0}
    adamw = torch.optim.AdamW([tables, rest], lr=0.02, betas=(0.9, 0.99))
    for step in range(3):
        draw_gradients(ours, step)
        draw_gradients(theirs, step)
        made.step()
        muon.step()
        adamw.step()
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        # PyTorch's iteration is in bf16; three steps are about 0.02 · 0.2 · 3 long.
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-3 if ".layers." in name else 1e-6, msg=name)


def test_filters_are_matrices_too_and_a_gradient_that_is_none_is_no_step() -> None:
    config = ResNetConfig(image=32, stem="3x3", embedding=4, widths=[4, 8], depths=[1, 1])
    model = ResNetModel(config, Sizes(vocabulary=0))
    made = make_optimizer(model, SETTINGS, CPU)
    filters = [p for group in made.param_groups if group["orthogonal"] for p in group["params"]]
    assert {p.dim() for p in filters} == {4}
    before = [p.detach().clone() for p in filters]
    filters[0].grad = torch.randn_like(filters[0])
    made.step()
    moved = [not torch.equal(a, b) for a, b in zip(before, filters, strict=True)]
    assert moved == [True] + [False] * (len(filters) - 1)


def test_its_state_goes_through_a_file_and_back_to_the_same_bits(tmp_path: Path) -> None:
    straight, other = network(), network()
    first, second = make_optimizer(straight, SETTINGS, CPU), make_optimizer(other, SETTINGS, CPU)
    draw_gradients(straight, 0)
    first.step()
    save_tensors(optimizer_tensors(first, straight), tmp_path / "state.safetensors")
    tensors = load_tensors(tmp_path / "state.safetensors")
    other.load_state_dict(straight.state_dict())
    restore_optimizer(second, other, tensors)
    for model, optimizer in ((straight, first), (other, second)):
        draw_gradients(model, 1)
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), other.parameters(), strict=True))
    with pytest.raises(CheckpointError, match="keeps nothing called"):  # of a run with another optimiser
        restore_optimizer(make_optimizer(other, TrainConfig(), CPU), other, tensors)


def test_a_model_without_layers_has_nothing_for_it() -> None:
    model = Word2VecModel(Word2VecConfig(width=4), Sizes(vocabulary=9))
    with pytest.raises(ConfigError, match="muon is for matrices of layers, and model=word2vec trains none"):
        make_optimizer(model, SETTINGS, CPU)
