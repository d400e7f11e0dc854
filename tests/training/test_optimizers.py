"""Optimisers and averages against numbers worked by hand and PyTorch's plain loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from legato.folders.weights import load_tensors, save_tensors
from legato.models.base import Sizes
from legato.models.gpt2 import GPT2Config, GPT2Model
from legato.training.config import TrainConfig
from legato.training.optimizers import Average, make_optimizer, optimizer_tensors, restore_optimizer

CPU = torch.device("cpu")


class One(nn.Module):
    """One matrix and one bias."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        self.bias = nn.Parameter(torch.tensor([1.0, -1.0]))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def make_steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int, seed: int = 0) -> None:
    draw = torch.Generator().manual_seed(seed)
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.randn(4, 3, generator=draw)).pow(2).sum().backward()
        optimizer.step()


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("settings", [{"optimizer": "adamw"}, {"optimizer": "sgd", "momentum": 0.9, "lr": 0.01}])
def test_the_fused_optimiser_makes_the_same_steps_as_the_plain_one(settings: Any) -> None:
    config = TrainConfig(weight_decay=0.1, **settings)
    fused, plain = network(), network()
    ours = make_optimizer(fused, config, CPU)
    theirs = make_optimizer(plain, config, torch.device("mps"))  # a device without fused kernels
    assert ours.defaults["fused"]
    assert not theirs.defaults["fused"]
    make_steps(fused, ours, 5)
    make_steps(plain, theirs, 5)
    torch.testing.assert_close(weights(fused), weights(plain), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_only_matrices_decay(optimizer: Any) -> None:
    model = One()
    made = make_optimizer(model, TrainConfig(optimizer=optimizer, lr=0.5, weight_decay=0.2), CPU)
    model.matrix.grad, model.bias.grad = torch.zeros(2, 2), torch.zeros(2)
    made.step()
    # With no gradient, w ← w - lr · decay · w = 0.9 w.
    torch.testing.assert_close(model.matrix.detach(), torch.tensor([[0.9, 1.8], [2.7, 3.6]]))
    torch.testing.assert_close(model.bias.detach(), torch.tensor([1.0, -1.0]))


def test_a_frozen_parameter_is_left_to_itself() -> None:
    model = One()
    model.matrix.requires_grad_(False)
    made = make_optimizer(model, TrainConfig(), CPU)
    assert [p.shape for group in made.param_groups for p in group["params"]] == [model.bias.shape]


@pytest.mark.parametrize(
    "settings", [{"optimizer": "adamw"}, {"optimizer": "sgd", "momentum": 0.9, "lr": 0.01}, {"optimizer": "sgd"}]
)
def test_optimiser_state_goes_through_a_file_and_back_to_the_same_bits(settings: Any, tmp_path: Path) -> None:
    config = TrainConfig(**settings)
    straight = network()
    first = make_optimizer(straight, config, CPU)
    make_steps(straight, first, 3)
    save_tensors(optimizer_tensors(first, straight), tmp_path / "state.safetensors")

    other = network()
    other.load_state_dict(straight.state_dict())
    second = make_optimizer(other, config, CPU)
    restore_optimizer(second, other, load_tensors(tmp_path / "state.safetensors"))
    make_steps(straight, first, 3, seed=1)
    make_steps(other, second, 3, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(weights(straight), weights(other), strict=True))


def follow(average: Average, model: One, values: list[float]) -> None:
    """Let the bias take each of `values` in turn."""
    for value in values:
        with torch.no_grad():
            model.bias.fill_(value)
        average.update()


def test_polyak_average_is_the_mean_of_the_weights_since_it_began() -> None:
    model = One()
    average = Average(model, None)
    follow(average, model, [1.0, 2.0, 6.0])
    torch.testing.assert_close(average.weights["bias"], torch.tensor([3.0, 3.0]))


def test_exponential_average_follows_its_formula() -> None:
    model = One()
    average = Average(model, decay=0.5)
    follow(average, model, [4.0, 8.0, 16.0, 0.0])
    # a = 4; 4 + ½(8 - 4) = 6; 6 + ½(16 - 6) = 11; 11 + ½(0 - 11) = 5.5
    torch.testing.assert_close(average.weights["bias"], torch.tensor([5.5, 5.5]))


def test_a_young_exponential_average_counts_evenly() -> None:
    model = One()
    average = Average(model, decay=0.99)
    follow(average, model, [1.0, 2.0, 6.0])
    torch.testing.assert_close(average.weights["bias"], torch.tensor([3.0, 3.0]))


def test_the_average_stands_in_and_steps_back_exactly() -> None:
    model = network()
    average = Average(model, decay=0.7)
    make_steps(model, make_optimizer(model, TrainConfig(), CPU), 2)
    average.update()
    make_steps(model, make_optimizer(model, TrainConfig(), CPU), 2)
    average.update()
    own, averaged = weights(model), [w.clone() for w in average.weights.values()]
    with average.applied():
        assert all(torch.equal(a, b) for a, b in zip(weights(model), averaged, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(weights(model), own, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(average.weights.values(), averaged, strict=True))


def test_the_average_steps_back_after_an_error_too() -> None:
    model = One()
    average = Average(model, None)
    follow(average, model, [1.0, 5.0])
    with pytest.raises(RuntimeError), average.applied():
        raise RuntimeError
    assert model.bias.tolist() == [5.0, 5.0]


def test_an_average_goes_through_tensors_and_back() -> None:
    model = One()
    average = Average(model, None)
    follow(average, model, [1.0, 2.0])
    again = Average(model, None)
    again.restore({name: tensor.clone() for name, tensor in average.weights.items()}, average.updates)
    follow(average, model, [6.0])
    follow(again, model, [6.0])
    assert torch.equal(again.weights["bias"], average.weights["bias"])


def test_a_transformers_matrices_and_tables_decay_and_its_norms_and_biases_do_not() -> None:
    model = GPT2Model(GPT2Config(layers=1, width=8, heads=2), Sizes(5))
    decaying, others = make_optimizer(model, TrainConfig(weight_decay=0.1), CPU).param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    assert all(names[id(p)].endswith("weight") and "norm" not in names[id(p)] for p in decaying["params"])
    assert all(names[id(p)].endswith("bias") or "norm" in names[id(p)] for p in others["params"])
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
