"""What decoders ask of a stack: a window for each layer, several texts in a row, heads of any width and normed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from legato.nn.capture import record
from legato.nn.feedforward import BlockShape
from legato.nn.multihead import AttentionView, SelfAttention
from legato.nn.positions import Rotary
from legato.nn.transformer import Stack, places_in

T, D, H = 9, 16, 4
SHAPE = BlockShape(D, H, 24, norm_first=True)
DOCUMENTS = torch.tensor([[0] * 4 + [1] * 5, [3] * 1 + [4] * 6 + [9] * 2])


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def close(left: Any, right: Any) -> None:
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-10)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def stack(shape: BlockShape = SHAPE, *, causal: bool = True, layers: int = 2, **asked: Any) -> Stack:
    made = Stack("stack", layers, shape, causal=causal, **asked).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return made


def weights(made: Stack, x: Tensor, layer: int) -> Tensor:
    """Who looks at whom, (B, H, T, T)."""
    with record() as trace, torch.no_grad():
        made(x)
    return trace[f"stack.{layer}.attention.weights"][0]


# --- one window a layer -----------------------------------------------------------------------------


def test_one_window_is_every_layers() -> None:
    assert stack(window=3).windows == [3, 3]


@pytest.mark.parametrize("causal", [True, False])
def test_each_layer_looks_as_far_as_its_own_window(causal: bool) -> None:
    made = stack(causal=causal, layers=3, window=[None, 2, 4])
    back = torch.arange(T)[:, None] - torch.arange(T)
    for layer, window in enumerate(made.windows):
        seen = back.abs() < (window or T)
        seen = seen & (back >= 0) if causal else seen
        assert torch.equal(weights(made, randn(1, T, D), layer)[0, 0] > 0, seen)


def test_windows_as_long_as_the_text_change_nothing() -> None:
    made, x = stack(), randn(2, T, D)
    before = made(x)
    made.windows = [T, None]
    close(made(x), before)


@pytest.mark.parametrize("window", [[2, None], [None, 3], [2, 3]])
def test_a_cache_keeps_each_layers_window(window: list[int | None]) -> None:
    made, x = stack(window=window, rotary=Rotary(T, D // H)), randn(2, T, D)
    whole = made(x)
    with torch.no_grad():
        cache = made.start(2, T)
        pieces = [made.extend(part, cache.open(part.shape[1])) for part in x.split([4, 1, 1, 3], dim=1)]
    close(torch.cat(pieces, 1), whole)


@pytest.mark.parametrize("window", [[2, None], [None, 3]])
def test_a_ragged_cache_keeps_each_layers_window(window: list[int | None]) -> None:
    made, x, lengths = stack(window=window), randn(2, T, D), torch.tensor([5, 2])
    ends = torch.stack([x[0, :5], torch.cat([x[1, :3], x[1, :2]])])  # the second row has two tokens, at the end
    with torch.no_grad():
        cache = made.start(2, T)
        made.extend(ends, cache.open(5, lengths))
        after = [made.extend(x[:, at : at + 1], cache.open(1)) for at in range(5, T)]
    for row, length in enumerate(lengths.tolist()):
        alone = made(torch.cat([x[row, :length], x[row, 5:]])[None])[0, length:]
        close(torch.cat(after, 1)[row], alone)


# --- several texts in a row -------------------------------------------------------------------------


def test_places_are_counted_in_each_text() -> None:
    assert places_in(DOCUMENTS).tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 4], [0, 0, 1, 2, 3, 4, 5, 0, 1]]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 2, [3, None]])
def test_texts_of_one_row_do_not_see_each_other(causal: bool, window: Any) -> None:
    made, x = stack(causal=causal, window=window, rotary=Rotary(T, D // H)), randn(2, T, D)
    together = made(x, documents=DOCUMENTS)
    for row in range(2):
        for document in DOCUMENTS[row].unique():
            inside = DOCUMENTS[row] == document
            close(together[row, inside], made(x[row : row + 1, inside])[0])


def test_texts_of_one_row_give_one_another_no_gradient() -> None:
    made, x = stack(), randn(2, T, D).requires_grad_()
    made(x, documents=DOCUMENTS)[0, 4:].sum().backward()
    assert x.grad is not None
    assert not x.grad[0, :4].any()
    assert x.grad[0, 4:].any()


# --- computed again ---------------------------------------------------------------------------------


def gradients(made: Stack, x: Tensor) -> list[Tensor]:
    made.zero_grad()
    torch.manual_seed(1)  # the same dropout
    made(x).square().sum().backward()
    return [p.grad.clone() for p in made.parameters() if p.grad is not None]


def test_blocks_computed_again_give_the_same_gradients() -> None:
    made, x = stack(BlockShape(D, H, 24, dropout=0.3, dropout_attention=0.2)).train(), randn(2, T, D)
    kept = gradients(made, x)
    made.recompute = True
    close(gradients(made, x), kept)
    assert len(kept) == len(list(made.parameters()))


def test_nothing_is_computed_again_where_there_are_no_gradients() -> None:
    made, x = stack().train(), randn(2, T, D)
    calls: list[int] = []
    made.layers[0].register_forward_pre_hook(lambda *_: calls.append(1))
    made.recompute = True
    with torch.no_grad():
        made(x)
    made(x).sum().backward()
    assert len(calls) == 3  # once without gradients; once, and again for them


# --- heads ------------------------------------------------------------------------------------------


def test_heads_may_be_wider_than_their_share() -> None:
    attention = SelfAttention(BlockShape(D, H, 24, kv_heads=2, head_width=10))
    assert attention.qkv.weight.shape == ((4 + 2 + 2) * 10, D)
    assert attention.output.weight.shape == (D, 4 * 10)


def test_heads_of_any_width_are_cached() -> None:
    shape = BlockShape(D, 3, 24, kv_heads=1, head_width=10, norm_heads=True)
    made, x = stack(shape, rotary=Rotary(T, 10)), randn(2, T, D)
    with torch.no_grad():
        cache = made.start(2, T)
        pieces = [made.extend(part, cache.open(part.shape[1])) for part in x.split([4, 1, 4], dim=1)]
    close(torch.cat(pieces, 1), made(x))


def test_without_a_width_of_their_own_heads_divide_the_width() -> None:
    with pytest.raises(ValueError, match="3 heads do not divide a width of 16"):
        SelfAttention(BlockShape(D, 3, 24))


def test_normed_heads_are_of_one_length_before_they_are_compared() -> None:
    attention, x = SelfAttention(BlockShape(D, H, 24, eps=0.0, bias=False, norm_heads=True)).double(), randn(1, T, D)
    with record() as trace, torch.no_grad():
        attention(x, AttentionView())
        attention(10 * x, AttentionView())
    once, tenfold = trace["weights"]
    close(tenfold, once)


def test_normed_heads_follow_their_equation() -> None:
    attention = SelfAttention(BlockShape(D, H, 24, eps=1e-6, bias=False, norm_heads=True)).double()
    with torch.no_grad():
        for norm in (attention.query_norm, attention.key_norm):
            assert norm is not None
            norm.weight.uniform_(0.5, 2)
    x = randn(1, T, D)
    with record() as trace, torch.no_grad():
        attention(x, AttentionView())
        query, key, _ = (part.view(T, H, D // H) for part in attention.qkv(x)[0].chunk(3, dim=-1))
        query, key = (
            part / (part.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight  # type: ignore[union-attr]
            for part, norm in ((query, attention.query_norm), (key, attention.key_norm))
        )
        scores = torch.einsum("thk,shk->hts", query, key) / math.sqrt(D // H)
    close(trace["weights"][0][0], scores.softmax(-1))


@pytest.mark.parametrize(("qkv", "output"), [(True, False), (False, True), (False, False)])
def test_the_biases_of_attention_are_chosen_apart(qkv: bool, output: bool) -> None:
    block = stack(BlockShape(D, H, 24, bias=False, bias_qkv=qkv, bias_attention=output)).layers[0]
    assert (block.attention.qkv.bias is not None) == qkv  # type: ignore[union-attr]
    assert (block.attention.output.bias is not None) == output  # type: ignore[union-attr]
    assert block.feedforward.inner.bias is None  # type: ignore[union-attr]
