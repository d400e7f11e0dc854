"""Windows and texts that share a row, without a mask: the same as with one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from legato.data.batching.batches import Packed, WindowShape
from legato.nn.attention import visible, written_out_attention
from legato.nn.feedforward import BlockShape
from legato.nn.multihead import AttentionView
from legato.nn.positions import Rotary
from legato.nn.spans import flash, spanned
from legato.nn.spans.flash import flash_attention, text_borders
from legato.nn.spans.spanned import BLOCK, MANY, block_mask, blocked_attention, spans_of
from legato.nn.transformer import Stack, expect_documents

B, H, K = 2, 4, 8


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def parts_of(length: int, heads: int = H, kv_heads: int = H) -> list[Tensor]:
    counts = (heads, kv_heads, kv_heads)
    return [torch.randn(B, length, count, K, dtype=torch.float64, requires_grad=True) for count in counts]


def masked(parts: list[Tensor], seen: Tensor) -> Tensor:
    return written_out_attention(*(part.transpose(1, 2) for part in parts), seen)[0].transpose(1, 2)


def seen_by(length: int, *, causal: bool, window: int | None, documents: Tensor | None = None) -> Tensor:
    places = torch.arange(length, device=None if documents is None else documents.device)
    seen = visible(places, places, causal=causal, window=window)
    if documents is None:
        return seen
    return seen & (documents[:, :, None] == documents[:, None, :]).unsqueeze(1)


def same_with_gradients(found: Tensor, expected: Tensor, inputs: list[Tensor], **close: float) -> None:
    up = torch.randn_like(expected)
    torch.testing.assert_close(found, expected, **close)
    slopes = torch.autograd.grad(found, inputs, up), torch.autograd.grad(expected, inputs, up)
    torch.testing.assert_close(*slopes, **close)


# ── block by block ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kv_heads", [H, 2])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("length", "window"), [(1, 3), (BLOCK, 3), (BLOCK + 1, BLOCK), (3 * BLOCK, 1), (200, 5), (200, 64), (290, 70)]
)
def test_attention_by_blocks_is_that_with_a_mask(
    length: int, window: int, causal: bool, several: bool, kv_heads: int
) -> None:
    parts = parts_of(length, kv_heads=kv_heads)
    texts = torch.stack([torch.arange(length) // 50, torch.arange(length) // 77]) if several else None
    mask = block_mask(parts[0], window, causal, texts)
    found = blocked_attention(*(part.transpose(1, 2) for part in parts), mask, window, causal=causal).transpose(1, 2)
    expected = masked(parts, seen_by(length, causal=causal, window=window, documents=texts))
    same_with_gradients(found, expected, parts)
    with torch.no_grad():  # other ways to cut
        mask = block_mask(parts[0], window, causal, texts)
        again = blocked_attention(*(part.transpose(1, 2) for part in parts), mask, window, causal=causal)
        torch.testing.assert_close(again.transpose(1, 2), expected)


def stack_of(layers: int = 2, **options: Any) -> Stack:
    shape = BlockShape(width=H * K, heads=H, inner=16, norm_first=True, kv_heads=options.pop("kv_heads", None))
    return Stack("decoder", layers, shape, **{"causal": True, **options}).double()


def test_a_stack_with_a_window_makes_no_mask_where_texts_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    made, x = stack_of(window=[8, None], rotary=Rotary(MANY * BLOCK + 3, K)), torch.randn(B, MANY * BLOCK + 3, H * K)
    x = x.double().requires_grad_()
    view = made._view(x, None, None, 8)
    assert view.mask is None
    assert view.spans is not None
    assert view.spans[:3] == (True, 8, "blocks")
    found = made(x)
    for block in made.layers:
        block.attention.fused = False
    assert made._view(x, None, None, 8).mask is not None
    same_with_gradients(found, made(x), [x])


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("lengths", [None, (MANY * BLOCK + 3, 70), (3, MANY * BLOCK)])
def test_an_encoder_with_a_window_makes_no_mask_where_texts_are_long(
    lengths: tuple[int, ...] | None, several: bool, trained: bool
) -> None:
    """With padding, with the way around it that evaluation has, and with texts that share a row."""
    length = MANY * BLOCK + 3
    made = stack_of(causal=False, window=[8, None], rotary=Rotary(length, K)).train(trained)
    x = torch.randn(B, length, H * K).double().requires_grad_()
    documents = torch.arange(length).expand(B, -1) // 100 if several else None
    counts = None if lengths is None else torch.tensor(lengths)
    inside = torch.ones(B, length, 1) if counts is None else (torch.arange(length) < counts[:, None]).unsqueeze(2)
    with torch.set_grad_enabled(trained):
        view = made._view(x, counts, documents, 8)
        assert view.mask is None
        assert view.spans is not None
        found = made(x, counts, documents=documents) * inside
        for block in made.layers:
            block.attention.fused = False
        assert made._view(x, counts, documents, 8).mask is not None
        expected = made(x, counts, documents=documents) * inside
    if trained:
        same_with_gradients(found, expected, [x, *made.parameters()])
    torch.testing.assert_close(found, expected)


def test_a_window_as_long_as_the_text_is_none() -> None:
    made = stack_of(window=8)
    assert made._view(torch.zeros(B, 8, H * K), None, None, 8) == AttentionView(causal=True)


@pytest.mark.parametrize(
    "options",
    [
        {"causal": True, "window": None},  # nothing to limit
        {"causal": False, "window": None, "documents": torch.zeros(B, MANY * BLOCK)},
        {"causal": True, "window": MANY * BLOCK},  # few blocks
    ],
)
@torch.no_grad()
def test_on_a_cpu_the_rest_needs_a_mask_outside_training(options: dict[str, Any]) -> None:
    assert spans_of(torch.zeros(B, MANY * BLOCK, H * K), K, **options) is None


# ── texts that share a row ────────────────────────────────────────────────────────────────────────


def test_borders_are_where_texts_begin_and_rows_do() -> None:
    documents = torch.tensor([[0, 0, 0, 0], [0, 1, 1, 2], [3, 3, 3, 3]])
    assert text_borders(documents, 5).tolist() == [0, 4, 5, 7, 8, 12]
    assert text_borders(documents, 8).tolist() == [0, 4, 5, 7, 8, 12, 12, 12, 12]


def test_packed_batches_say_how_many_texts_they_have_at_most() -> None:
    drawn = np.random.default_rng(0)
    lengths = drawn.integers(1, 40, size=300)
    starts = np.cumsum(lengths) - lengths
    shape = WindowShape(rows=4, window=32, seed=0)
    batches = Packed(np.ones(lengths.sum(), np.int32), starts, shape, start=0, eos=0)
    bounds = set()
    for step in range(3 * batches.steps_per_epoch):
        inputs = batches.at(step).inputs
        assert inputs.document_ids is not None
        assert inputs.most_documents is not None
        there = sum(len(set(row)) for row in inputs.document_ids.tolist())
        assert there <= inputs.most_documents
        borders = text_borders(inputs.document_ids, inputs.most_documents)
        assert borders.diff().count_nonzero() == there
        bounds.add(inputs.most_documents)
    assert len(bounds) <= 2  # few shapes


# ── flash attention, with the equation in the place of PyTorch's kernel ───────────────────────────


def texts(query: Tensor, key: Tensor, value: Tensor, borders: Tensor | None, left: int, right: int) -> Tensor:
    """What the kernel computes, text by text: (B, T, H, K), or (N, H, K) with borders."""
    if borders is None:
        rows = list(zip(query, key, value, strict=True))
    else:
        cuts = borders.diff().tolist()
        rows = list(zip(query.split(cuts), key.split(cuts), value.split(cuts), strict=True))
    found = []
    for row in rows:
        places = torch.arange(len(row[0]))
        ahead = places - places[:, None]
        seen = (ahead <= right if right >= 0 else ahead < len(places)) & (ahead >= -left if left >= 0 else True)
        found.append(masked([part.unsqueeze(0) for part in row], seen)[0] if len(places) else row[0])
    return torch.stack(found) if borders is None else torch.cat(found)


def equation_for_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that everything around the kernel runs without a GPU."""

    def forward(
        query: Tensor, key: Tensor, value: Tensor, borders: Any, other: Any, most: int, most_keys: int, *given: Any,
        window_size_left: int, window_size_right: int,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        dropout, causal, debug = given
        assert (dropout, causal, debug) == (0.0, (window_size_left, window_size_right) == (-1, 0), False)
        assert most == most_keys
        assert other is borders
        with torch.no_grad():
            context = texts(query, key, value, borders, window_size_left, window_size_right)
        shape = query.shape[:-1] if borders is None else (query.shape[1], query.shape[0])
        return context, torch.zeros(shape), torch.zeros(2), torch.zeros(()), torch.zeros(0)

    def backward(
        slope: Tensor, query: Tensor, key: Tensor, value: Tensor, context: Tensor, sums: Any, borders: Any, *_: Any,
        window_size_left: int, window_size_right: int,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        def gradients() -> tuple[Tensor, ...]:
            inputs = [part.detach().clone().requires_grad_() for part in (query, key, value)]
            again = texts(*inputs, borders, window_size_left, window_size_right)
            torch.testing.assert_close(again, context)
            return torch.autograd.grad(again, inputs, slope)

        with ThreadPoolExecutor(1) as elsewhere:  # inside an operator there is no autograd
            return elsewhere.submit(gradients).result()

    kernels = SimpleNamespace(_flash_attention_forward=forward, _flash_attention_backward=backward)
    monkeypatch.setattr(flash, "_aten", kernels)
    monkeypatch.setattr(spanned, "flash_takes", lambda *_: True)


DOCUMENTS = torch.tensor([[0] * 3 + [1] * 9, [0] * 7 + [1] * 4 + [2]])


@pytest.mark.parametrize("kv_heads", [H, 1])
@pytest.mark.parametrize("documents", [None, DOCUMENTS])
@pytest.mark.parametrize(("causal", "window"), [(True, 4), (False, 3), (True, None), (False, None)])
def test_the_operator_hands_over_what_is_seen(
    causal: bool, window: int | None, documents: Tensor | None, kv_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    equation_for_kernel(monkeypatch)
    parts = parts_of(12, kv_heads=kv_heads)
    borders = None if documents is None else text_borders(documents, 7)
    found = flash_attention(*parts, borders, causal=causal, window=window)
    same_with_gradients(found, masked(parts, seen_by(12, causal=causal, window=window, documents=documents)), parts)


@pytest.mark.parametrize("options", [{"window": 4}, {"window": [None, 3], "kv_heads": 2}, {"causal": False}])
@pytest.mark.parametrize("documents", [None, DOCUMENTS])
def test_a_stack_without_masks_is_the_one_with_them(
    documents: Tensor | None, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, x = stack_of(**options), torch.randn(B, 12, H * K).double().requires_grad_()
    expected = made(x, documents=documents)
    equation_for_kernel(monkeypatch)
    expect_documents(made, 7)
    if documents is not None:
        assert made._view(x, None, documents, 4).spans is not None
    same_with_gradients(made(x, documents=documents), expected, [x, *made.parameters()])
    made.eval()
    assert documents is None or made._view(x, None, documents, 4).spans is None  # nobody has counted those


@pytest.mark.slow
def test_compilers_see_one_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    equation_for_kernel(monkeypatch)
    made, x = stack_of(window=4), torch.randn(B, 12, H * K).double().requires_grad_()
    expect_documents(made, 7)
    expected = made(x, documents=DOCUMENTS)
    compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
    same_with_gradients(compiled(x, documents=DOCUMENTS), expected, [x])


def test_what_the_kernel_is_asked_once_a_compiler_takes_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash, "_known", {3: True})
    compiled = torch.compile(lambda x: x + 1 if flash._works(3) else x, backend="eager", fullgraph=True)
    assert compiled(torch.zeros(())) == 1


def test_without_the_kernel_that_is_said_once_and_masks_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: torch.device) -> None:
        raise RuntimeError("no kernel image\nand more")

    monkeypatch.setattr(flash, "_known", {})
    monkeypatch.setattr(flash, "_problem", refuse)
    with pytest.warns(UserWarning, match="attention is made with masks, since flash attention cannot be: no kernel"):
        assert not flash._works(0)
    assert not flash._works(0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="flash attention needs a GPU")
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("window", [None, 100])
def test_flash_attention_is_the_equation_on_a_gpu(window: int | None, several: bool) -> None:
    length = 700
    parts = [torch.randn(B, length, H, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    documents = (torch.arange(length, device="cuda") // 150).expand(B, -1)
    assert flash.flash_takes(parts[0], torch.bfloat16, 64)
    borders = text_borders(documents, 20) if several else None
    found = flash_attention(*parts, borders, causal=True, window=window)
    seen = seen_by(length, causal=True, window=window, documents=documents if several else None).to("cuda")
    same_with_gradients(found, masked(parts, seen), parts, rtol=2e-2, atol=2e-2)
