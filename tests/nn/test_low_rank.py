"""Low-rank adapters: one product for all parts, and the equation part by part."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from legato.nn.adapters.lora import LowRank, Part, merge
from legato.nn.linear import Linear, pack


def adapted(inputs: int, sizes: list[int], chosen: list[int], rank: int, scaling: float = 2.0) -> Linear:
    """A linear layer of matrices with so many rows each, of which the `chosen` ones have adapters."""
    layer = Linear(inputs, sum(sizes))
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    parts = [Part(str(index), starts[index], starts[index] + sizes[index]) for index in chosen]
    layer.low_rank = LowRank(inputs, sum(sizes), parts, rank, scaling)
    return layer


def learn(layer: Linear) -> None:
    assert layer.low_rank is not None
    with torch.no_grad():
        for b in layer.low_rank.up:
            b.normal_()


def written_out(low: LowRank, x: Tensor, y: Tensor) -> Tensor:
    """y, which is W x + b, with what the adapters add, part by part as in the equation; without dropout."""
    y = y.clone()
    for part, (a, b) in zip(low.parts, low.pairs(), strict=True):
        y[..., part.start : part.end] += low.scaling * (x @ a.t() @ b.t())
    return y


def test_an_adapter_adds_nothing_at_first() -> None:
    torch.manual_seed(0)
    layer = adapted(6, [4, 4], [0, 1], rank=2)
    x = torch.randn(3, 6)
    assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))
    assert layer.low_rank is not None
    assert bool((layer.low_rank.down != 0).all())


def test_the_equation_by_hand() -> None:
    layer = adapted(2, [1, 1], [1], rank=1, scaling=3.0)
    low = layer.low_rank
    assert low is not None
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        layer.bias.zero_()
        low.down.copy_(torch.tensor([[1.0, 2.0]]))
        low.up[0].fill_(5.0)
    # W x = (7, 11); the second row adds 3 · 5 · (1 · 7 + 2 · 11) = 435
    assert layer(torch.tensor([7.0, 11.0])).tolist() == [7.0, 446.0]


@settings(max_examples=30, deadline=None)
@given(
    inputs=st.integers(1, 9),
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    rank=st.integers(1, 4),
    data=st.data(),
)
def test_all_parts_at_once_and_the_equation_agree(
    inputs: int, sizes: list[int], rank: int, data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, unique=True).map(sorted))
    torch.manual_seed(rank)
    layer = adapted(inputs, sizes, chosen, rank)
    learn(layer)
    x = torch.randn(2, 3, inputs)
    plain = torch.nn.functional.linear(x, layer.weight, layer.bias)
    assert layer.low_rank is not None
    torch.testing.assert_close(layer(x), written_out(layer.low_rank, x, plain), atol=1e-5, rtol=1e-5)


def test_gradients_are_those_of_the_equation() -> None:
    torch.manual_seed(1)
    layer = adapted(6, [4, 3, 4], [0, 2], rank=2)
    learn(layer)
    layer.weight.requires_grad_(False)
    low = layer.low_rank
    assert low is not None
    x = torch.randn(5, 6, requires_grad=True)
    wanted = [x, low.down, *low.up]
    plain = torch.nn.functional.linear(x, layer.weight, layer.bias)
    slow = torch.autograd.grad(written_out(low, x, plain).square().sum(), wanted)
    fast = torch.autograd.grad(layer(x).square().sum(), wanted)
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-5)


def test_merging_changes_no_more_than_the_last_bits() -> None:
    torch.manual_seed(2)
    layer = adapted(16, [8, 8], [1], rank=4)
    learn(layer)
    x = torch.randn(7, 16)
    before = layer(x)
    assert layer.low_rank is not None
    for part, (a, b) in zip(layer.low_rank.parts, layer.low_rank.pairs(), strict=True):
        merge(layer.weight[part.start : part.end], a, b, layer.low_rank.scaling)
    layer.low_rank = None
    torch.testing.assert_close(layer(x), before, atol=1e-5, rtol=1e-5)


def test_the_layout_for_generation_has_the_adapter_too() -> None:
    torch.manual_seed(3)
    layer = adapted(16, [16], [0], rank=4)
    learn(layer)
    layer.eval()
    x = torch.randn(8, 16)
    with torch.no_grad():
        before = layer(x)
        pack(layer)
        torch.testing.assert_close(layer(x), before, atol=1e-5, rtol=1e-5)


def test_dropout_falls_on_what_the_adapter_reads_alone() -> None:
    torch.manual_seed(4)
    layer = adapted(64, [8], [0], rank=4)
    learn(layer)
    assert layer.low_rank is not None
    layer.low_rank.dropout = 0.5
    x = torch.randn(3, 64)
    assert not torch.equal(layer.train()(x), layer(x))
    assert torch.equal(layer.eval()(x), layer(x))
    with torch.no_grad():
        layer.low_rank.up[0].zero_()
    assert torch.equal(layer.train()(x), layer(x))  # the frozen product sees no dropout


def test_names_of_the_frozen_layer_stay_as_they_are() -> None:
    names = set(adapted(4, [4], [0], rank=1).state_dict())
    assert {"weight", "bias"} < names
    assert all(name in ("weight", "bias") or name.startswith("low_rank.") for name in names)


@pytest.mark.parametrize("parts", [[0], [0, 2]])
def test_under_autocast_both_products_are_made_in_bf16(parts: list[int]) -> None:
    torch.manual_seed(5)
    layer = adapted(16, [8, 8, 8], parts, rank=2)
    learn(layer)
    x = torch.randn(4, 16)
    with torch.autocast("cpu", torch.bfloat16):
        inside = layer(x)
    assert inside.dtype == torch.bfloat16
    torch.testing.assert_close(inside.float(), layer(x), atol=0.15, rtol=0.05)
