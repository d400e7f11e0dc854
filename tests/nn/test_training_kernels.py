"""Kernels for training on a CPU beside their plain twins."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from legato.data.batching.batch import IGNORE
from legato.nn.attention import additive, fused_attention, written_out_attention
from legato.nn.dropout import dropout
from legato.nn.kernels import training as kernels
from legato.nn.kernels.library import Dropout, training_library
from legato.nn.losses import vocabulary as losses
from legato.nn.spans.spanned import spanned_attention, spans_of

needs_library = pytest.mark.skipif(training_library() is None, reason="there is no compiler")
WORD = 2**32 - 1


def row_keys(seed: int, rows: int) -> Tensor:
    """(rows, 2): `RowKey` of cpu/random.h, in Python's whole numbers."""
    found = []
    for row in range(rows):
        x = (seed + (row + 1) * 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        x ^= x >> 31
        found.append((x & WORD, x >> 32))
    return torch.tensor(found)


def kept(drawing: Dropout, rows: int, length: int) -> Tensor:
    """Which numbers of some rows stay, and how large they become: (rows, length)."""
    first, second = row_keys(drawing.seed, rows).split(1, 1)
    x = (torch.arange(length) * 0x9E3779B9 + first) & WORD
    x = (x ^ x >> 16) * 0x7FEB352D & WORD
    x = ((x ^ x >> 15) + second) & WORD
    x = x * 0x846CA68B & WORD
    return ((x ^ x >> 16) >= drawing.threshold) * drawing.scale


def fixed(monkeypatch: pytest.MonkeyPatch, share: float) -> Dropout:
    """What will be drawn."""
    drawing = kernels.dropout_of(share)
    monkeypatch.setattr(kernels, "dropout_of", lambda share: drawing)
    return drawing


def plain_attention(query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None, drawing: Dropout) -> Tensor:
    """Attention with what is drawn, written out."""
    rows, heads, queries, size = query.shape
    key, value = (x.repeat_interleave(heads // x.shape[1], 1) for x in (key, value))
    scores = query @ key.transpose(-2, -1) / math.sqrt(size)
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    weights = scores.softmax(-1)
    if drawing.threshold:
        weights = weights * kept(drawing, rows * heads * queries, key.shape[2]).view_as(weights)
    return weights @ value


SHAPES = [  # rows, heads, kv heads, queries, keys, size, causal, masked, dropout
    (2, 3, 3, 70, 70, 64, True, False, 0.1),
    (2, 4, 2, 33, 47, 20, False, True, 0.3),
    (1, 2, 1, 200, 200, 64, True, True, 0.0),
    (1, 1, 1, 1, 5, 8, False, False, 0.5),
    (2, 2, 2, 130, 260, 32, False, False, 0.1),
    (1, 2, 2, 129, 129, 72, True, False, 0.2),
]


def parts_of(rows: int, heads: int, shared: int, queries: int, keys: int, size: int, dtype: Any) -> list[Tensor]:
    """Queries, keys and values that lie as a product leaves them."""
    shapes = ((queries, heads), (keys, shared), (keys, shared))
    return [torch.randn(rows, n, h, size, dtype=dtype).transpose(1, 2).requires_grad_() for n, h in shapes]


def compare(found: Tensor, expected: Tensor, parts: list[Tensor], wide: list[Tensor], tolerance: float) -> None:
    """Values and gradients, by the size of their difference."""
    slope = torch.randn_like(found)
    mine = [found, *torch.autograd.grad(found, parts, slope)]
    theirs = [expected, *torch.autograd.grad(expected, wide, slope.double())]
    for one, other in zip(mine, theirs, strict=True):
        assert one.shape == other.shape
        assert (one.double() - other).norm() <= tolerance * other.norm() + 1e-12


@needs_library
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("dtype", "tiles"), [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)], ids=str
)
def test_attention_is_the_plain_one_with_the_same_draws(
    shape: tuple[Any, ...], dtype: torch.dtype, tiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    *sizes, causal, masked, share = shape
    rows, _, _, queries, keys, _ = sizes
    run = kernels._run
    monkeypatch.setattr(kernels, "_run", lambda task, dtype, back: run(task, dtype, back=back, tiles=tiles))
    parts = parts_of(*sizes, dtype)
    mask = (torch.arange(keys) < torch.randint(1, keys, (rows, 1)))[:, None, None] if masked else None
    drawing = fixed(monkeypatch, share)
    wide = [x.detach().double().requires_grad_() for x in parts]
    past = torch.ones(queries, keys, dtype=torch.bool).tril() if causal else None
    seen = past if mask is None else mask if past is None else mask & past
    expected = plain_attention(*wide, seen, drawing)  # type: ignore[misc]
    given = None if mask is None else mask if causal else additive(mask, dtype)
    found = kernels.dropout_attention(*parts, given, causal=causal, dropout=share)  # type: ignore[misc]
    compare(found, expected, parts, wide, 2e-6 if dtype == torch.float32 else 1e-2)


@needs_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "shared"), [(3, 3), (4, 2)])
def test_gradients_of_queries_keys_and_values_in_one_tensor_are_the_same(
    heads: int, shared: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    fixed(monkeypatch, 0.2)
    qkv = torch.randn(2, 70, heads + 2 * shared, 16, dtype=dtype, requires_grad=True)
    mask = (torch.arange(70) < torch.tensor([[70], [40]]))[:, None, None]
    one = kernels.self_attention(qkv, heads, mask, dropout=0.2)
    other = kernels.dropout_attention(*kernels.heads_of(qkv, heads), mask, dropout=0.2).transpose(1, 2)
    assert torch.equal(one, other)
    slope = torch.randn_like(one)
    assert torch.equal(*(torch.autograd.grad(x, qkv, slope)[0] for x in (one, other)))


@pytest.mark.thinned(2)
@needs_library
@pytest.mark.parametrize("window", [None, 1, 7, 90])
@pytest.mark.parametrize("share", [0.0, 0.1])
@pytest.mark.parametrize(("dtype", "tiles"), [(torch.float32, False), (torch.bfloat16, True)], ids=str)
def test_windows_and_texts_that_share_a_row(
    window: int | None, share: float, dtype: torch.dtype, tiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    run = kernels._run
    monkeypatch.setattr(kernels, "_run", lambda task, dtype, back: run(task, dtype, back=back, tiles=tiles))
    rows, heads, shared, length, size = 2, 4, 2, 300, 16
    begins = torch.rand(rows, length) < 0.02
    documents = begins.long().cumsum(1)
    qkv = torch.randn(rows, length, heads + 2 * shared, size, dtype=dtype, requires_grad=True)
    spans = spans_of(torch.empty(rows, length, 1, dtype=dtype), size, True, window, documents, dropout=share)
    assert spans is not None
    assert spans.way == "window"
    drawing = fixed(monkeypatch, share)
    ahead = torch.arange(length) - torch.arange(length)[:, None]
    seen = (ahead <= 0) & (ahead > -(window or length)) & (documents[:, :, None] == documents[:, None])
    wide = qkv.detach().double().requires_grad_()
    query, key, value = (x.transpose(1, 2) for x in wide.split((heads, shared, shared), dim=2))
    expected = plain_attention(query, key, value, seen[:, None], drawing).transpose(1, 2)
    found = spanned_attention(qkv, heads, spans, share)
    compare(found, expected, [qkv], [wide], 2e-6 if dtype == torch.float32 else 1e-2)


@needs_library
def test_a_row_that_sees_nothing_has_a_context_and_no_gradient() -> None:
    torch.manual_seed(0)
    parts = parts_of(2, 1, 1, 3, 4, 16, torch.float32)
    mask = torch.tensor([[True] * 4, [False] * 4])[:, None, None]
    for given in (mask, additive(mask, torch.float32)):
        found = kernels.dropout_attention(*parts, given, dropout=0.5)  # type: ignore[misc]
        gradients = torch.autograd.grad(found.sum(), parts)
        assert found.isfinite().all()
        for gradient in gradients:
            assert gradient.isfinite().all()
            assert not gradient[1].any()


@needs_library
def test_what_is_not_finite_stays_so() -> None:
    parts = parts_of(1, 2, 2, 40, 40, 16, torch.float32)
    with torch.no_grad():
        parts[0][0, 1, 7, 3] = torch.nan
    found = kernels.dropout_attention(*parts, causal=True, dropout=0.1)  # type: ignore[misc]
    assert found[0, 1, 7].isnan().all()
    assert found[0, 0].isfinite().all()
    assert found[0, 1, :7].isfinite().all()


@needs_library
def test_attention_in_training_goes_through_it_and_elsewhere_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    run = kernels._run
    monkeypatch.setattr(kernels, "_run", lambda *given, **named: (called.append("ours"), run(*given, **named)))
    parts = parts_of(2, 2, 2, 8, 8, 16, torch.float32)
    fused_attention(*parts, causal=True, dropout=0.1)  # type: ignore[misc]
    assert called == ["ours"]
    fused_attention(*parts, causal=True)  # type: ignore[misc]
    mask = torch.ones(2, 1, 8, 8, dtype=torch.bool)
    fused_attention(*parts, mask, dropout=0.1)  # type: ignore[misc]
    with torch.no_grad():
        fused_attention(*parts, causal=True)  # type: ignore[misc]
    assert called == ["ours"]
    long = parts_of(1, 1, 1, kernels.FEW, kernels.FEW, 16, torch.float32)
    found, expected = fused_attention(*long, causal=True), written_out_attention(*long, causal=True)[0]  # type: ignore[misc]
    assert called == ["ours"] * 2
    torch.testing.assert_close(found, expected)


@needs_library
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_no_draw(threads: int) -> None:
    torch.manual_seed(3)
    x, parts = torch.randn(50_000), parts_of(3, 2, 2, 100, 100, 32, torch.float32)
    made = []
    before = torch.get_num_threads()
    for count in (1, threads):
        torch.set_num_threads(count)
        try:
            torch.manual_seed(5)
            attended = kernels.dropout_attention(*parts, causal=True, dropout=0.2)  # type: ignore[misc]
            made.append([dropout(x, 0.3), attended, *torch.autograd.grad(attended.square().sum(), parts)])
        finally:
            torch.set_num_threads(before)
    for one, other in zip(*made, strict=True):
        assert torch.equal(one, other)


@needs_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 15, 4096, 9001])
def test_dropout_is_what_its_draws_say(dtype: torch.dtype, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x = torch.randn(count, dtype=dtype, requires_grad=True)
    drawing = fixed(monkeypatch, 0.3)
    mask = kept(drawing, -(-count // 4096), 4096).flatten()[:count].float()
    found = dropout(x, 0.3)
    torch.testing.assert_close(found, (x.float() * mask).to(dtype))
    slope = torch.randn_like(x)
    torch.testing.assert_close(torch.autograd.grad(found, x, slope)[0], (slope.float() * mask).to(dtype))


@needs_library
def test_as_many_numbers_are_dropped_as_asked_for_and_none_knows_of_another() -> None:
    torch.manual_seed(0)
    first, second = (dropout(torch.ones(400, 5000), 0.1) == 0 for _ in range(2))
    for gone in (first, second):
        assert abs(float(gone.double().mean()) - 0.1) < 0.002
        assert float((gone.double().mean(1) - 0.1).abs().max()) < 0.025
        assert float((gone.double().mean(0) - 0.1).abs().max()) < 0.08
        assert abs(float((gone[:, 1:] & gone[:, :-1]).double().mean()) - 0.01) < 0.001
        assert abs(float((gone[1:] & gone[:-1]).double().mean()) - 0.01) < 0.001
    assert abs(float((first & second).double().mean()) - 0.01) < 0.001


def test_dropout_of_nothing_and_in_evaluation_is_the_same_tensor() -> None:
    x = torch.randn(3)
    assert dropout(x, 0.0) is x
    assert dropout(x, 0.5, False) is x


def test_dropout_without_the_library_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "training_library", lambda: None)
    x = torch.randn(100)
    torch.manual_seed(0)
    found = dropout(x, 0.5)
    torch.manual_seed(0)
    assert torch.equal(found, F.dropout(x, 0.5))


@needs_library
@pytest.mark.parametrize("tanh", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.bfloat16, 2e-2)])
def test_gelu_and_its_gradient(tanh: bool, dtype: torch.dtype, tolerance: float) -> None:
    x = torch.linspace(-11, 11, 10_001).to(dtype).requires_grad_()
    wide = x.detach().double().requires_grad_()
    found, expected = kernels.gelu(x, tanh=tanh), F.gelu(wide, approximate="tanh" if tanh else "none")
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)
    mine, theirs = torch.autograd.grad(found.sum(), x)[0], torch.autograd.grad(expected.sum(), wide)[0]
    torch.testing.assert_close(mine.double(), theirs, atol=tolerance, rtol=tolerance)
    assert kernels.gelu(torch.tensor([torch.nan]), tanh=tanh).isnan().all()


@needs_library
@pytest.mark.parametrize("tanh", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.bfloat16, 1e-2)])
def test_gelu_with_a_bias_and_the_biass_gradient(tanh: bool, dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    x, bias = (3 * torch.randn(70, 48)).to(dtype).requires_grad_(), torch.randn(48, requires_grad=True)
    wide = [part.detach().double().requires_grad_() for part in (x, bias)]
    found = kernels.biased_gelu(x, bias, tanh=tanh)
    expected = F.gelu(wide[0] + wide[1], approximate="tanh" if tanh else "none")
    compare(found, expected, [x, bias], wide, tolerance)
    assert kernels.biased_gelu(torch.full((1, 16), torch.nan), bias[:16], tanh=tanh).isnan().all()


@needs_library
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("rows", "vocabulary", "columns"), [(1, 3, 3), (5, 70, 80), (9, 1000, 1000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_losses_and_their_gradient_are_the_plain_ones(
    smoothing: float, rows: int, vocabulary: int, columns: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    logits = (5 * torch.randn(rows, columns)).to(dtype)
    targets = torch.randint(0, vocabulary, (rows,))
    targets[rows // 2] = IGNORE if rows > 1 else targets[0]
    expected, slope = losses._gradient(logits.clone(), targets, vocabulary, smoothing, torch.float32)
    found = kernels.losses_and_gradient(logits, targets, vocabulary, smoothing, IGNORE)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits, slope, rtol=1e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-5)


@needs_library
def test_losses_of_logits_that_are_not_finite_are_not() -> None:
    logits = torch.zeros(2, 40)
    logits[0, 3] = torch.nan
    assert kernels.losses_and_gradient(logits, torch.tensor([1, 1]), 40, 0.0, IGNORE).isnan().all()
