"""Scaled dot-product attention: by hand, written out, fused."""

from __future__ import annotations

import math
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from legato.nn.attention import (
    additive,
    fused_attention,
    trusted_kernels,
    visible,
    weigh,
    written_out_attention,
)

B, H, T, S, K = 3, 4, 5, 7, 8


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def close(left: Any, right: Any) -> None:
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-10)


def heads(length: int, count: int = H) -> Tensor:
    return torch.randn(B, count, length, K, dtype=torch.float64, requires_grad=True)


def padding(length: int) -> Tensor:
    """Some keys at the end of the first rows are not there, (B, 1, 1, S)."""
    lengths = torch.tensor([length - 2, 1, length])
    return (torch.arange(length) < lengths[:, None])[:, None, None]


def test_the_lecture_s_scores_give_its_weights() -> None:
    # q · k of 112, 96, 16 and 8 over a key of length 64 are 14, 12, 2 and 1 after scaling.
    query = torch.zeros(1, 1, 1, 64)
    query[..., 0] = 1
    key = torch.zeros(1, 1, 4, 64)
    key[..., 0] = torch.tensor([112.0, 96.0, 16.0, 8.0])
    value = torch.eye(4)[None, None]
    context, weights = written_out_attention(query, key, value)
    assert [round(w, 3) for w in weights.flatten().tolist()] == [0.881, 0.119, 0.0, 0.0]
    close(context, weights)
    torch.testing.assert_close(fused_attention(query, key, torch.eye(4, 64)[None, None])[..., :4], weights)


MASKS: dict[str, tuple[int, bool, str | None]] = {
    "plain": (S, False, None),
    "causal": (T, True, None),
    "padding": (S, False, "bool"),
    "padding, additive": (S, False, "additive"),
    "causal and padding": (T, True, "bool"),
    "causal and padding, additive": (T, True, "additive"),
}


@pytest.mark.parametrize("kv_heads", [H, 2, 1])
@pytest.mark.parametrize("kind", MASKS)
def test_fused_attention_equals_written_out_in_output_and_gradients(kind: str, kv_heads: int) -> None:
    length, causal, form = MASKS[kind]
    inputs = [heads(T), heads(length, kv_heads), heads(length, kv_heads)]
    mask = None if form is None else padding(length)
    if mask is not None and form == "additive":
        mask = additive(mask, torch.float64)
    fused = fused_attention(*inputs, mask, causal=causal)
    written, weights = written_out_attention(*inputs, mask, causal=causal)
    close(fused, written)
    close(weights.sum(-1), torch.ones(B, H, T, dtype=torch.float64))
    up = torch.randn_like(written)
    close(torch.autograd.grad(fused, inputs, up), torch.autograd.grad(written, inputs, up))


@pytest.mark.parametrize("kv_heads", [H, 2])
def test_one_query_a_row_attends_as_it_does_among_others(kv_heads: int) -> None:
    query, key, value = heads(T), heads(S, kv_heads), heads(S, kv_heads)
    whole = fused_attention(query, key, value, padding(S))
    for t in range(T):
        close(fused_attention(query[:, :, t : t + 1], key, value, padding(S)), whole[:, :, t : t + 1])


def test_a_kernel_may_leave_its_output_in_another_order_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = heads(1), heads(S, 2), heads(S, 2)
    whole = fused_attention(query, key, value, padding(S))
    kernel = torch.nn.functional.scaled_dot_product_attention

    def queries_outside(*inputs: Any, **others: Any) -> Tensor:
        """As kernels for CUDA do: (B, T, H, K) in memory."""
        return kernel(*inputs, **others).transpose(1, 2).contiguous().transpose(1, 2)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", queries_outside)
    close(fused_attention(query, key, value, padding(S)), whole)


def test_a_key_outside_the_mask_has_no_weight() -> None:
    _, weights = written_out_attention(heads(T), heads(S), heads(S), padding(S))
    assert not weights.masked_select(~padding(S)).any()


def test_a_row_that_sees_nothing_gets_zeros() -> None:
    mask = torch.tensor([[True, False], [False, False]])
    assert weigh(torch.randn(2, 2), mask)[1].tolist() == [0, 0]


def test_a_causal_query_sees_itself() -> None:
    _, weights = written_out_attention(heads(T), heads(T), heads(T), causal=True)
    assert (weights.diagonal(dim1=-2, dim2=-1) > 0).all()
    assert not weights.triu(1).any()


def test_dropped_weights_are_scaled_up() -> None:
    value = torch.ones(B, H, S, K, dtype=torch.float64)
    context, _ = written_out_attention(heads(T), heads(S), value, dropout=0.5)
    assert not torch.allclose(context, torch.ones_like(context))
    many = torch.stack([written_out_attention(heads(T), heads(S), value, dropout=0.5)[0] for _ in range(50)])
    assert float(many.detach().mean()) == pytest.approx(1, abs=0.05)


def seen(places: Tensor, **asked: Any) -> list[list[int]]:
    return visible(places, places, **asked).int().tolist()


def test_a_window_of_two_sees_the_neighbours() -> None:
    places = torch.arange(4)
    assert seen(places, causal=False, window=2) == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    assert seen(places, causal=True, window=2) == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]


def test_a_window_of_one_sees_only_itself() -> None:
    assert seen(torch.arange(3), causal=True, window=1) == torch.eye(3).int().tolist()


def test_without_a_window_everything_or_the_past_is_seen() -> None:
    assert seen(torch.arange(3), causal=False) == torch.ones(3, 3).int().tolist()
    assert seen(torch.arange(3), causal=True) == torch.ones(3, 3).tril().int().tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_an_additive_mask_is_zero_where_there_is_something_to_see(dtype: torch.dtype) -> None:
    mask = padding(S)
    added = additive(mask, dtype)
    assert added.dtype == dtype
    assert torch.equal(added == 0, mask)
    assert torch.isfinite(added).all()
    assert all(stride % 8 == 0 for stride in added.stride()[:-1])


@pytest.mark.parametrize(
    ("learns", "plain", "taken"),
    [(True, False, False), (True, True, True), (False, False, False), (False, True, False)],
)
def test_cudnn_is_left_out_where_its_gradients_can_be_nan_and_where_nothing_is_trained(
    learns: bool, plain: bool, taken: bool
) -> None:
    query: Any = SimpleNamespace(is_cuda=True, requires_grad=learns)
    with trusted_kernels(query, plain):
        assert torch.backends.cuda.cudnn_sdp_enabled() == taken
    assert torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize("learns", [(False, False), (False, True), (True, False)])
def test_it_comes_back_with_the_last_of_those_that_left_it_out(learns: tuple[bool, bool]) -> None:
    one, other = (
        trusted_kernels(cast("Any", SimpleNamespace(is_cuda=True, requires_grad=each)), False) for each in learns
    )
    with ExitStack() as later:  # as threads may interleave
        with one:
            later.enter_context(other)
            assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("queries", "keys", "masked"), [(1, 64, False), (64, 64, False), (704, 704, True)])
def test_scores_far_below_zero_have_gradients_on_a_gpu(queries: int, keys: int, masked: bool) -> None:
    def drawn(length: int) -> Tensor:
        return torch.randn(B, H, length, 32, device="cuda", dtype=torch.bfloat16)

    query, key, value = 0.1 * drawn(queries), 0.1 * drawn(keys), drawn(keys)
    query[..., 0], key[..., 0] = 1.0, -120 * math.sqrt(32)
    inputs = [each.requires_grad_() for each in (query, key, value)]
    mask = additive(padding(keys).cuda(), torch.bfloat16) if masked else None
    fused_attention(*inputs, mask).float().square().sum().backward()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in inputs)


@torch.no_grad()
def test_heads_that_lie_apart_in_memory_give_the_same_of_long_sequences() -> None:
    """On a CPU they are copied side by side first."""
    from legato.nn.attention import FAR

    qkv = torch.randn(2, FAR + 5, 3, 4, 8)
    query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
    torch.testing.assert_close(
        fused_attention(query, key, value), written_out_attention(query, key, value)[0], rtol=1e-5, atol=1e-5
    )
