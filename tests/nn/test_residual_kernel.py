"""A residual sum and its norm in one kernel on a CPU, beside dropout, the sum and the norm's module."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from legato.nn.dropout import dropout
from legato.nn.feedforward import BlockShape
from legato.nn.kernels import residual, training
from legato.nn.kernels.library import training_library
from legato.nn.transformer import Stack

needs_library = pytest.mark.skipif(training_library() is None, reason="there is no compiler")
F32, BF16 = torch.float32, torch.bfloat16


def drawn_alike(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    drawing = training.dropout_of(share)
    monkeypatch.setattr(training, "dropout_of", lambda share: drawing)


def norm_of(kind: type[nn.Module], width: int) -> nn.Module:
    norm = kind(width, eps=1e-5)  # type: ignore[call-arg]
    for parameter in norm.parameters():
        nn.init.normal_(parameter, mean=1.0)
    return norm


@needs_library
@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (70, 48), (300, 384)])
@pytest.mark.parametrize(
    ("stream", "added", "normed"), [(F32, F32, F32), (F32, BF16, BF16), (F32, BF16, F32), (BF16,) * 3]
)
def test_values_and_gradients_are_the_plain_ones(
    kind: type[nn.Module],
    share: float,
    rows: int,
    width: int,
    stream: torch.dtype,
    added: torch.dtype,
    normed: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    drawn_alike(monkeypatch, share)
    norm = norm_of(kind, width).to(stream)
    x, y = torch.randn(rows, width).to(stream), torch.randn(rows, width).to(added)
    ds, dn = torch.randn(rows, width).to(stream), torch.randn(rows, width).to(normed)
    mask = dropout(torch.ones(rows, width, requires_grad=True), share).detach().double()
    parts = [x.requires_grad_(), y.requires_grad_(), *norm.parameters()]
    s, n = residual.residual_norm(x, y, norm, normed, share)  # type: ignore[arg-type]
    assert (s.dtype, n.dtype) == (stream, normed)
    mine = [s, n, *torch.autograd.grad([s, n], parts, [ds, dn])]
    wide = [part.detach().double().requires_grad_() for part in parts]
    total = wide[0] + wide[1] * mask
    apart = total if kind is nn.RMSNorm else total - total.mean(1, keepdim=True)
    scaled = apart / (apart.square().mean(1, keepdim=True) + 1e-5).sqrt() * wide[2]
    made = scaled if kind is nn.RMSNorm else scaled + wide[3]
    theirs = [total, made, *torch.autograd.grad([total, made], wide, [ds.double(), dn.double()])]
    for one, other in zip(mine, theirs, strict=True):
        assert (one.double() - other).norm() <= (1e-6 if normed == added == F32 else 1e-2) * other.norm()


@needs_library
@pytest.mark.parametrize("normed", [F32, BF16])
def test_a_norm_alone(normed: torch.dtype) -> None:
    torch.manual_seed(0)
    norm, x = norm_of(nn.LayerNorm, 64), torch.randn(3, 40, 64, requires_grad=True)
    s, n = residual.residual_norm(x, None, norm, normed)  # type: ignore[arg-type]
    assert s is x
    slope = torch.randn(n.shape)
    tolerance = 1e-5 if normed == F32 else 2e-2
    torch.testing.assert_close(n.float(), norm(x), atol=tolerance, rtol=tolerance)
    mine = torch.autograd.grad(n, [x, *norm.parameters()], slope.to(normed))
    theirs = torch.autograd.grad(norm(x), [x, *norm.parameters()], slope.to(normed).float())
    for one, other in zip(mine, theirs, strict=True):
        assert (one - other).norm() <= 1e-5 * other.norm()


@needs_library
def test_the_number_of_threads_changes_no_bit() -> None:
    torch.manual_seed(0)
    norm, x, y = norm_of(nn.LayerNorm, 96), *(torch.randn(200, 96, requires_grad=True) for _ in range(2))
    before, made = torch.get_num_threads(), []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        try:
            torch.manual_seed(1)
            s, n = residual.residual_norm(x, y, norm, F32, 0.2)  # type: ignore[arg-type]
            made.append([s, n, *torch.autograd.grad((s * n).sum(), [x, y, *norm.parameters()])])
        finally:
            torch.set_num_threads(before)
    for one, other in zip(*made, strict=True):
        assert torch.equal(one, other)


def trained_once(stack: Stack, x: Tensor, *, joined: bool, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    with monkeypatch.context() as patch:
        if not joined:
            patch.setattr(residual, "can_join", lambda norm: False)
        assert stack._joins(x) == (joined and stack.shape.norm_first)
        torch.manual_seed(3)
        made = stack(x)
        slope = torch.randn(made.shape)
        return [made, *torch.autograd.grad(made, [x, *stack.parameters()], slope)]


@needs_library
@pytest.mark.parametrize(("norm", "first"), [("layer", True), ("rms", True), ("layer", False)])
@pytest.mark.parametrize("narrow", [False, True])
def test_a_stack_trains_as_without_it(norm: str, first: bool, narrow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    shape = BlockShape(32, 2, 64, "gelu-tanh", norm=norm, norm_first=first, dropout=0.2, dropout_attention=0.2)
    stack = Stack("decoder", 2, shape, causal=True).train()
    x = torch.randn(2, 70, 32, requires_grad=True)
    with torch.autocast("cpu", BF16, enabled=narrow):
        mine, theirs = (trained_once(stack, x, joined=on, monkeypatch=monkeypatch) for on in (True, False))
    for one, other in zip(mine, theirs, strict=True):
        assert one.dtype == other.dtype
        assert (one - other).norm() <= (3e-2 if narrow else 1e-5) * other.norm()


@needs_library
def test_where_somebody_looks_or_a_width_does_not_fit_it_is_left_out() -> None:
    shape = BlockShape(32, 2, 64, norm_first=True)
    stack, x = Stack("decoder", 1, shape, causal=True).train(), torch.randn(1, 3, 32)
    assert stack._joins(x)
    with torch.no_grad():
        assert not stack._joins(x)
    handle = stack.layers[0].feedforward_norm.register_forward_hook(lambda *_: None)
    assert not stack._joins(x)
    handle.remove()
    assert not stack.eval()._joins(x)
    odd = Stack("decoder", 1, BlockShape(20, 2, 64, norm_first=True), causal=True).train()
    assert not odd._joins(torch.randn(1, 3, 20))
