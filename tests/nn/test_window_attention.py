"""Our kernels for windows and texts that share a row: the same as the equation with a mask.

They run on a GPU, or in Triton's interpreter; there the tests of this file are run again, in a process of their own.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from interpreted_kernels import DEVICE, GPU, needs_interpreter, needs_kernels, run_interpreted
from legato.nn.attention import visible, written_out_attention
from legato.nn.feedforward import BlockShape
from legato.nn.positions import Rotary
from legato.nn.spans import spanned
from legato.nn.spans import window as operator
from legato.nn.spans.spanned import spans_of
from legato.nn.spans.window import Reach, window_attention
from legato.nn.transformer import Stack

DTYPE = torch.bfloat16 if GPU else torch.float32
TILES = [(128, 64), (64, 128)] if GPU else [(32, 16), (16, 32)]


@pytest.mark.slow
@needs_interpreter
def test_all_of_this_file_in_triton_interpreter() -> None:
    run_interpreted(__file__)


def qkv_of(length: int, heads: int = 2, kv_heads: int = 2, width: int = 16) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(2, length, heads + 2 * kv_heads, width).to(DEVICE, DTYPE).requires_grad_()


def texts_of(length: int) -> Tensor:
    """One row with borders in and between blocks, one that is a single text."""
    borders = torch.tensor([1, 5, length // 3, length // 3 + 1, length // 2, length - 2])
    first = torch.searchsorted(borders, torch.arange(length), right=True)
    return torch.stack([first, torch.zeros_like(first)]).to(DEVICE)


def equation(qkv: Tensor, heads: int, window: int | None, documents: Tensor | None) -> Tensor:
    places = torch.arange(qkv.shape[1], device=qkv.device)
    seen = visible(places, places, causal=True, window=window)
    if documents is not None:
        seen = seen & (documents[:, :, None] == documents[:, None, :]).unsqueeze(1)
    shared = (qkv.shape[2] - heads) // 2
    parts = (part.transpose(1, 2) for part in qkv.double().split((heads, shared, shared), dim=2))
    return written_out_attention(*parts, seen)[0].transpose(1, 2)


def check(qkv: Tensor, heads: int, window: int | None, documents: Tensor | None = None) -> None:
    reach = None if documents is None else Reach.of(documents, window)
    found = window_attention(qkv, heads, window, reach)
    right = equation(qkv, heads, window, documents)
    up = torch.randn_like(right)
    slopes = torch.autograd.grad(found, qkv, up.to(DTYPE))[0], torch.autograd.grad(right, qkv, up)[0]
    close = {"rtol": 2e-2, "atol": 2e-2} if GPU else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(found.double(), right, **close)
    torch.testing.assert_close(slopes[0].double(), slopes[1].double(), **close)


def cut(monkeypatch: pytest.MonkeyPatch, queries: int, keys: int, split: bool) -> None:
    from legato.nn.kernels.cuda import window_attention as kernels

    tile = kernels.Tile(queries, keys, 4, 2, split)
    monkeypatch.setattr(kernels, "TILES", dict.fromkeys(kernels.TILES, tile))


@needs_kernels
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [*TILES, (64, 64) if GPU else (32, 32)])
@pytest.mark.parametrize(("length", "window"), [(96, 1), (96, 16), (96, 33), (77, 40), (96, 200), (7, 3)])
def test_windows(length: int, window: int, queries: int, keys: int, split: bool, monkeypatch) -> None:
    cut(monkeypatch, queries, keys, split)
    check(qkv_of(length), 2, window)


@needs_kernels
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(("queries", "keys"), TILES)
@pytest.mark.parametrize(("length", "window"), [(96, None), (96, 20), (77, None), (77, 9), (77, 50)])
def test_texts_that_share_a_row(
    length: int, window: int | None, queries: int, keys: int, split: bool, monkeypatch
) -> None:
    cut(monkeypatch, queries, keys, split)
    check(qkv_of(length), 2, window, texts_of(length))


@needs_kernels
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_fewer_heads_of_keys_and_values(kv_heads: int, split: bool, monkeypatch) -> None:
    cut(monkeypatch, *TILES[0], split)
    check(qkv_of(70, heads=4, kv_heads=kv_heads), 4, 25)
    check(qkv_of(70, heads=4, kv_heads=kv_heads), 4, 25, texts_of(70))


@needs_kernels
@pytest.mark.parametrize("width", operator.WIDTHS)
def test_widths_with_the_blocks_that_are_used(width: int) -> None:
    check(qkv_of(200, heads=1, kv_heads=1, width=width), 1, 70)


@needs_kernels
def test_part_of_a_wider_tensor_is_read_where_it_lies() -> None:
    wide = torch.randn(2, 40, 8, 16).to(DEVICE, DTYPE).requires_grad_()
    check(wide[:, 3:, 1:7], 2, 9)  # rows and tokens lie further apart
    check(wide[..., :6, :].transpose(0, 1), 2, 1)


@needs_kernels
def test_a_gradient_that_is_one_number() -> None:
    qkv = qkv_of(40)
    found, right = window_attention(qkv, 2, 9), equation(qkv, 2, 9, None)
    slopes = torch.autograd.grad(found.sum(), qkv)[0], torch.autograd.grad(right.sum(), qkv)[0]
    torch.testing.assert_close(slopes[0].float(), slopes[1].float(), rtol=2e-2, atol=2e-2 if GPU else 1e-5)


@needs_kernels
def test_compilers_see_one_operator() -> None:
    qkv, documents = qkv_of(40), texts_of(40)

    def attend(qkv: Tensor, documents: Tensor) -> Tensor:
        return window_attention(qkv, 2, 9, Reach.of(documents, 9))

    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)(qkv, documents)
    expected = attend(qkv, documents)
    up = torch.randn_like(expected)
    torch.testing.assert_close(compiled, expected)
    slopes = torch.autograd.grad(compiled, qkv, up)[0], torch.autograd.grad(expected, qkv, up)[0]
    torch.testing.assert_close(*slopes)


@needs_kernels
def test_the_operator_is_what_it_says_of_itself() -> None:
    reach = Reach.of(texts_of(20))
    torch.library.opcheck(torch.ops.legato.window_attention.default, (qkv_of(20), 2, 5, None, None))
    torch.library.opcheck(torch.ops.legato.window_attention.default, (qkv_of(20), 2, 20, *reach))


@needs_kernels
@pytest.mark.parametrize("documents", [False, True])
def test_a_stack_through_the_kernels_is_the_one_with_masks(documents: bool, monkeypatch) -> None:
    shape = BlockShape(width=64, heads=4, inner=16, norm_first=True, kv_heads=2)
    made = Stack("decoder", 2, shape, causal=True, window=[9, None], rotary=Rotary(40, 16)).to(DEVICE, DTYPE)
    x = torch.randn(2, 40, 64).to(DEVICE, DTYPE).requires_grad_()
    texts = texts_of(40) if documents else None
    monkeypatch.setattr(spanned, "window_takes", lambda *_: False)
    expected = made(x, documents=texts)
    monkeypatch.setattr(spanned, "window_takes", lambda *_: True)
    spans = made._view(x, None, texts, 9).spans
    assert spans is not None
    assert spans.way == "window"
    found, inputs = made(x, documents=texts), [x, *made.parameters()]
    up = torch.randn_like(expected)
    close = {"rtol": 5e-2, "atol": 5e-2} if GPU else {"rtol": 1e-3, "atol": 1e-4}
    torch.testing.assert_close(found, expected, **close)
    slopes = torch.autograd.grad(found, inputs, up), torch.autograd.grad(expected, inputs, up)
    torch.testing.assert_close(*slopes, **close)


def test_dropout_of_weights_is_left_to_flash_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    for takes in ("window_takes", "flash_takes"):
        monkeypatch.setattr(spanned, takes, lambda *_: True)
    monkeypatch.setattr(spanned.kernels, "takes", lambda x: False)  # which are for CPUs
    x = torch.zeros(2, 40, 64)
    ways = [
        spans_of(x, 16, causal, 9, dropout=dropout) for causal, dropout in ((True, 0.0), (True, 0.1), (False, 0.0))
    ]
    assert [spans and spans.way for spans in ways] == ["window", "flash", "flash"]


def test_reach_is_that_of_texts_and_windows() -> None:
    documents = torch.tensor([[0, 0, 0, 1, 1], [4, 4, 4, 4, 4]])
    assert Reach.of(documents).first.tolist() == [[0, 0, 0, 3, 3], [0] * 5]
    assert Reach.of(documents).last.tolist() == [[2, 2, 2, 4, 4], [4] * 5]
    assert Reach.of(documents, 2).first.tolist() == [[0, 0, 1, 3, 3], [0, 0, 1, 2, 3]]
    assert Reach.of(documents, 2).last.tolist() == [[1, 2, 2, 4, 4], [1, 2, 3, 4, 4]]


def test_without_the_kernels_that_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: torch.device, width: int) -> None:
        raise RuntimeError("out of resource\nand more")

    monkeypatch.setattr(operator, "_known", {})
    monkeypatch.setattr(operator, "_problem", refuse)
    with pytest.warns(UserWarning, match="since our kernel cannot be used: out of resource"):
        assert not operator._works(0, 64)
    assert not operator._works(0, 64)
