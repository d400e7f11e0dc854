"""Linear layers: several matrices in one, and the ways to a product."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from legato.nn.feedforward import BlockShape
from legato.nn.linear import ARM, Linear, PartlyBiased, pack
from legato.nn.multihead import SelfAttention


@pytest.mark.parametrize("packs", [False, True])
@torch.no_grad()
def test_matrices_without_a_bias_stand_beside_those_that_have_one(packs: bool) -> None:
    layer, x = PartlyBiased(5, (4, 3, 2), (True, False, True)).eval(), torch.randn(7, 5)
    layer.bias.normal_()
    if packs:
        pack(layer)
    expected = F.linear(x, layer.weight) + torch.cat([layer.bias[:4], torch.zeros(3), layer.bias[4:]])
    torch.testing.assert_close(layer(x), expected)


def test_a_missing_bias_is_no_parameter() -> None:
    layer = PartlyBiased(5, (4, 3, 2), (False, True, True))
    assert {name: tuple(part.shape) for name, part in layer.named_parameters()} == {"weight": (9, 5), "bias": (5,)}


@torch.no_grad()
def test_a_bias_of_keys_would_change_nothing() -> None:
    torch.manual_seed(0)
    shape = {"width": 8, "heads": 2, "inner": 8}
    without, biased = SelfAttention(BlockShape(**shape, bias_key=False)), SelfAttention(BlockShape(**shape))
    without.qkv.bias.normal_()
    query, value = without.qkv.bias.chunk(2)
    biased.load_state_dict({**without.state_dict(), "qkv.bias": torch.cat([query, torch.randn(8), value])})
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(without(x), biased(x))


@pytest.mark.parametrize("packs", [False, True])
@torch.no_grad()
def test_gelu_of_a_product_is_the_same_in_one_pass(packs: bool) -> None:
    layer, x = Linear(5, 8).eval(), torch.randn(7, 5)
    if packs:
        pack(layer)
    torch.testing.assert_close(layer.gelu(x), F.gelu(F.linear(x, layer.weight, layer.bias)))


@pytest.mark.parametrize("rows", [1, 2, 9])
@torch.no_grad()
def test_float16_products_are_those_of_float32_whichever_way_they_are_made(rows: int) -> None:
    torch.manual_seed(0)
    layer, x = Linear(64, 8).half().eval(), torch.randn(3, rows, 64).half()
    expected = F.linear(x.float(), layer.weight.float(), layer.bias.float())
    found = layer(x)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.float(), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.skipif(not ARM, reason="of Arm CPUs")
def test_float16_products_are_widened_from_two_rows_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row is what PyTorch has a kernel for."""
    asked: list[torch.dtype] = []
    plain = F.linear
    monkeypatch.setattr(F, "linear", lambda x, *others: (asked.append(x.dtype), plain(x, *others))[1])
    layer = Linear(16, 8).half().eval()
    for shape in ((1, 16), (16,), (2, 16), (2, 1, 16)):
        assert layer(torch.randn(shape).half()).dtype == torch.float16
    assert asked == [torch.float16, torch.float16, torch.float32, torch.float32]
