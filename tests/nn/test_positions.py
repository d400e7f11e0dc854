"""Positions: by hand, and beside Hugging Face's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from legato.nn.positions import Learned, Rotary, Sinusoidal, rotate, sinusoids, timescale_sinusoids


def close(left: Any, right: Any) -> None:
    torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-6)


def test_sinusoids_are_the_paper_s() -> None:
    table = sinusoids(20, 6)
    for place, i in ((0, 0), (1, 0), (7, 1), (19, 2)):
        angle = place / 10000 ** (2 * i / 6)
        close(table[place, i].item(), math.sin(angle))
        close(table[place, 3 + i].item(), math.cos(angle))


@pytest.mark.parametrize("width", [6, 7, 64])
def test_sinusoids_are_those_of_hugging_face_s_marian(width: int) -> None:
    marian = pytest.importorskip("transformers.models.marian.modeling_marian")
    theirs = marian.MarianSinusoidalPositionalEmbedding(600, width).create_weight()
    torch.testing.assert_close(sinusoids(600, width), theirs, rtol=0, atol=2e-7)


def test_timescales_go_from_one_to_ten_thousand() -> None:
    table = timescale_sinusoids(20, 6)
    for place, i in ((0, 0), (1, 0), (7, 1), (19, 2)):
        angle = place / 10000 ** (i / 2)
        close(table[place, i].item(), math.sin(angle))
        close(table[place, 3 + i].item(), math.cos(angle))


def test_tables_that_can_be_made_again_are_not_saved() -> None:
    assert dict(Sinusoidal(9, 4).state_dict()) == {}
    assert dict(Rotary(9, 4).state_dict()) == {}
    assert list(Sinusoidal(9, 4).parameters()) == []


@pytest.mark.parametrize("table", [Sinusoidal(9, 4), Learned(9, 4)], ids=["sinusoidal", "learned"])
def test_a_stretch_and_its_numbers_ask_for_the_same(table: Any) -> None:
    numbers = torch.tensor([[2, 3, 4], [2, 3, 4]])
    close(table(numbers), table(slice(2, 5)).expand(2, 3, 4))


def test_learned_positions_are_trained() -> None:
    table = Learned(9, 4)
    table(slice(2, 5)).sum().backward()
    assert table.weight.grad is not None
    assert table.weight.grad.any(1).tolist() == [2 <= place < 5 for place in range(9)]


def test_a_rotation_by_hand() -> None:
    # Width 2 has one pair, turned by its position in radians.
    turned = rotate(torch.tensor([1.0, 0.0]).expand(1, 3, 1, 2), Rotary(3, 2)(slice(0, 3)))[0, :, 0]
    close(turned, torch.tensor([[math.cos(p), math.sin(p)] for p in range(3)]))


def test_a_rotation_keeps_lengths() -> None:
    x = torch.randn(2, 9, 3, 8)
    close(rotate(x, Rotary(9, 8)(slice(0, 9))).norm(dim=-1), x.norm(dim=-1))


def test_rotated_products_depend_on_the_distance_alone() -> None:
    query, key = torch.randn(8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    rotary = Rotary(40, 8)
    products = []
    for place in (0, 5, 29):
        turned = [
            rotate(x.view(1, 1, 1, 8), rotary(slice(at, at + 1))).flatten()
            for x, at in ((query, place + 7), (key, place))
        ]
        products.append(float(turned[0] @ turned[1]))
    close(products, [products[0]] * 3)


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_rotation_is_that_of_hugging_face_s_llama(theta: float) -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = pytest.importorskip("transformers").LlamaConfig(
        hidden_size=32, num_attention_heads=2, rope_parameters={"rope_type": "default", "rope_theta": theta}
    )
    query, key = torch.randn(2, 2, 50, 16), torch.randn(2, 2, 50, 16)  # (B, H, T, K)
    places = torch.arange(50)[None]
    theirs = llama.apply_rotary_pos_emb(query, key, *llama.LlamaRotaryEmbedding(config)(query, places))
    rotation = Rotary(50, 16, theta)(slice(0, 50))
    for mine, other in zip((query, key), theirs, strict=True):
        close(rotate(mine.transpose(1, 2), rotation).transpose(1, 2), other)


def test_rows_may_stand_at_different_places() -> None:
    x, rotary = torch.randn(2, 3, 1, 4), Rotary(9, 4)
    numbers = torch.tensor([[0, 1, 2], [5, 6, 7]])
    turned = rotate(x, rotary(numbers))
    close(turned[0], rotate(x[:1], rotary(slice(0, 3)))[0])
    close(turned[1], rotate(x[1:], rotary(slice(5, 8)))[0])
