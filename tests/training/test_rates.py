"""Layers and heads that learn at rates of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import legato
from legato.errors import ConfigError
from legato.models.base import SequenceModel, Sizes
from legato.models.model_with_head import HeadSpec, ModelWithHead
from legato.registry import MODELS
from legato.training.config import TrainConfig
from legato.training.optimizers import make_optimizer, rate_shares
from tiny_reviews import write_reviews


def model_of(name: str, headed: bool = True, **changes: Any) -> SequenceModel:
    body = MODELS.get(name)(MODELS.get(name).Config(name=name, width=8, **changes), Sizes(20))
    return ModelWithHead(body, HeadSpec(kind="classes", outputs=2)) if headed else body


def test_all_learn_alike_unless_said() -> None:
    assert set(rate_shares(model_of("bert", layers=2, heads=2), TrainConfig()).values()) == {1.0}


@pytest.mark.parametrize(("name", "more"), [("bert", {"heads": 2}), ("gpt2", {"heads": 2}), ("lstm", {})])
def test_a_layer_learns_at_a_share_of_the_one_above(name: str, more: dict[str, Any]) -> None:
    shares = rate_shares(model_of(name, layers=3, **more), TrainConfig(layer_decay=0.5))
    assert shares["body.embedding.weight"] == 0.0625
    of_layers = [{share for name, share in shares.items() if f"layers.{i}." in name} for i in range(3)]
    assert of_layers == [{0.125}, {0.25}, {0.5}]
    assert shares["head.weight"] == 1.0
    above = [share for name, share in shares.items() if "pooler" in name or name.endswith("stack.norm.weight")]
    assert set(above) <= {1.0}


def test_a_head_may_have_its_own_rate() -> None:
    shares = rate_shares(model_of("bert", layers=2, heads=2), TrainConfig(lr=0.01, head_lr=0.05))
    assert {name for name, share in shares.items() if share == 5.0} == {"head.weight", "head.bias"}
    assert set(shares.values()) == {1.0, 5.0}


def test_what_reads_pictures_and_what_reads_text_may_have_their_own_rates() -> None:
    tower = {"layers": 1, "width": 8, "heads": 2}
    config = MODELS.get("clip").Config(vision={**tower, "image": 8, "patch": 4}, text=tower, projection=4)
    model = MODELS.get("clip")(config, Sizes(20))
    shares = rate_shares(model, TrainConfig(lr=0.01, encoder_lr=0.001, text_lr=0.005))
    expected = {"vision": 0.1, "text": 0.5}
    assert shares == {name: pytest.approx(expected.get(name.split(".")[0], 1.0)) for name in shares}
    assert {name.split(".")[0] for name in shares} > {"vision", "text"}


def test_what_does_not_fit_the_model_is_refused() -> None:
    for key, part in (("encoder_lr", "encoder"), ("text_lr", "text")):
        with pytest.raises(ConfigError, match=rf"train\.{key} is for models with a model\.{part}; model=gpt2 has no"):
            rate_shares(model_of("gpt2", headed=False, layers=1, heads=2), TrainConfig(**{key: 0.1}))
    with pytest.raises(ConfigError, match=r"train\.head_lr is for tasks that put a head on a model"):
        rate_shares(model_of("gpt2", headed=False, layers=1, heads=2), TrainConfig(head_lr=0.1))
    with pytest.raises(ConfigError, match=r"train\.layer_decay is for models of layers, and model=window has none"):
        rate_shares(model_of("window"), TrainConfig(layer_decay=0.9))
    frozen = model_of("bert", layers=2, heads=2)
    for name, parameter in frozen.named_parameters():
        parameter.requires_grad_(name.startswith("head."))
    with pytest.raises(ConfigError, match=r"train\.layer_decay is for layers that are tuned"):
        rate_shares(frozen, TrainConfig(layer_decay=0.9))


def test_a_step_moves_each_by_its_share() -> None:
    """The first step of Adam moves every weight by its rate."""
    model = model_of("bert", layers=2, heads=2, dropout=0)
    config = TrainConfig(lr=0.01, layer_decay=0.5, head_lr=0.04, eps=1e-20)
    optimizer = make_optimizer(model, config, torch.device("cpu"))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        group["lr"] = 0.01 * group["share"]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    shares = rate_shares(model, config)
    for name, parameter in model.named_parameters():
        expected = torch.full_like(parameter, 0.01 * shares[name])
        torch.testing.assert_close(before[name] - parameter, expected, rtol=1e-3, atol=1e-6)


def test_a_small_gradient_beside_a_large_eps_moves_nothing() -> None:
    model = model_of("window")
    optimizer = make_optimizer(model, TrainConfig(lr=0.1, eps=1.0), torch.device("cpu"))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-6)
    optimizer.step()
    torch.testing.assert_close(list(model.parameters()), before, rtol=0, atol=1e-6)


def run_settings(folder: Path) -> dict[str, Any]:
    write_reviews(folder / "train.tsv", seed=1)
    return {
        "data.train": str(folder / "train.tsv"),
        "model": "bert",
        "model.width": 8,
        "model.heads": 2,
        "model.layers": 2,
        "tokenizer.size": 120,
        "train.batch_rows": 8,
        "train.tensorboard": False,
        "train.schedule": "constant",
        "train.warmup": 0,
        "device": "cpu",
    }


@pytest.mark.slow
def test_a_run_trains_a_head_at_its_own_rate(tmp_path: Path) -> None:
    settings = {**run_settings(tmp_path), "train.steps": 2, "train.lr": 1e-30}
    kept = []
    for name, rate in (("still", 1e-30), ("moving", 0.01)):
        run = legato.train("classification", {**settings, "train.head_lr": rate}, out=tmp_path / name, quiet=True)
        kept.append(load_file(run.run / "last" / "model.safetensors"))
    moved = {name for name in kept[0] if not torch.allclose(kept[0][name], kept[1][name], atol=1e-9)}
    assert moved == {"head.head.weight", "head.head.bias"}


@pytest.mark.slow
def test_a_run_with_rates_of_its_own_goes_on_where_it_was(tmp_path: Path) -> None:
    settings = {**run_settings(tmp_path), "train.layer_decay": 0.8, "train.head_lr": 0.01}
    whole = legato.train("classification", settings, out=tmp_path / "whole", quiet=True, **{"train.steps": 6})
    legato.train("classification", settings, out=tmp_path / "parts", quiet=True, **{"train.steps": 3})
    parts = legato.train(resume=str(tmp_path / "parts"), quiet=True, **{"train.steps": 6})
    assert whole.steps == parts.steps == 6
    weights = [(run.run / "last" / "model.safetensors").read_bytes() for run in (whole, parts)]
    assert weights[0] == weights[1]
