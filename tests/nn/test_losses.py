"""The loss in chunks equals the loss at once, gradients included."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from legato.data.batching.batch import IGNORE
from legato.nn.losses import vocabulary as losses
from legato.nn.losses.vocabulary import chunked_nll

N, D, V, PADDED = 13, 6, 11, 16


def parts(dtype: torch.dtype, bias: bool = True, seed: int = 0) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    hidden = torch.randn(N, D, generator=draw).to(dtype).requires_grad_()
    weight = torch.randn(PADDED, D, generator=draw).to(dtype).requires_grad_()
    shift = torch.randn(PADDED, generator=draw).to(dtype).requires_grad_() if bias else None
    targets = torch.randint(V, (N,), generator=draw)
    targets[[2, 7]] = IGNORE
    return hidden, weight, shift, targets


def at_once(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float) -> Tensor:
    """The twin: all logits together, PyTorch's own loss."""
    logits = F.linear(hidden, weight, bias)[:, :V]
    return F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 4, 13, 100])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_chunks_give_the_loss_and_gradients_of_the_whole(
    dtype: torch.dtype, rows: int, bias: bool, smoothing: float
) -> None:
    *inputs, targets = parts(dtype, bias)
    given = [x for x in inputs if x is not None]
    total, plain = chunked_nll(*inputs, targets, V, smoothing, chunk=rows * PADDED)
    whole = at_once(*inputs, targets, smoothing)
    torch.testing.assert_close(total, whole)
    torch.testing.assert_close(plain, at_once(*inputs, targets, 0.0))
    found, expected = (torch.autograd.grad(loss / 3, given) for loss in (total, whole))
    torch.testing.assert_close(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_gradients_are_those_of_small_differences(smoothing: float) -> None:
    hidden, weight, bias, targets = parts(torch.float64)
    assert torch.autograd.gradcheck(
        lambda h, w, b: chunked_nll(h, w, b, targets, V, smoothing, chunk=4 * PADDED)[0], (hidden, weight, bias)
    )


def test_padding_gets_no_probability_and_no_gradient() -> None:
    hidden, weight, bias, targets = parts(torch.float32)
    with torch.no_grad():
        weight[V:] = 100.0  # would win everywhere
    total, _ = chunked_nll(hidden, weight, bias, targets, V, 0.1)
    total.backward()
    assert bias is not None
    assert weight.grad is not None
    assert bias.grad is not None
    assert not weight.grad[V:].any()
    assert not bias.grad[V:].any()
    torch.testing.assert_close(total, at_once(hidden, weight, bias, targets, 0.1))


def test_ignored_targets_cost_nothing_and_teach_nothing() -> None:
    hidden, weight, bias, targets = parts(torch.float32)
    total, plain = chunked_nll(hidden, weight, bias, torch.full_like(targets, IGNORE), V)
    total.backward()
    assert total == plain == 0
    assert hidden.grad is not None
    assert not hidden.grad.any()
    assert weight.grad is not None
    assert not weight.grad.any()


def test_only_the_gradients_that_are_asked_for_are_made() -> None:
    hidden, weight, bias, targets = parts(torch.float32)
    chunked_nll(hidden.detach(), weight, None, targets, V)[0].backward()
    assert hidden.grad is None
    assert weight.grad is not None
    assert bias is not None
    assert bias.grad is None
    with torch.no_grad():
        assert not chunked_nll(hidden, weight, bias, targets, V)[0].requires_grad


def test_under_autocast_products_are_bf16_and_sums_float32() -> None:
    hidden, weight, bias, targets = parts(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        total, _ = chunked_nll(hidden, weight, bias, targets, V, chunk=4 * PADDED)
    found = torch.autograd.grad(total, (hidden, weight))
    assert total.dtype == torch.float32
    assert all(gradient.dtype == torch.float32 for gradient in found)
    whole = at_once(hidden, weight, bias, targets, 0.0)
    torch.testing.assert_close(total, whole, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(found, torch.autograd.grad(whole, (hidden, weight)), rtol=5e-2, atol=5e-2)


def test_the_gradient_can_be_taken_twice() -> None:
    hidden, weight, bias, targets = parts(torch.float32)
    total, _ = chunked_nll(hidden, weight, bias, targets, V)
    first = torch.autograd.grad(total, weight, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(total, weight), first)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_what_is_compiled_computes_the_same(smoothing: float) -> None:
    draw = torch.Generator().manual_seed(3)
    logits, targets = torch.randn(N, PADDED, generator=draw) * 5, parts(torch.float32)[-1]
    plain = losses._gradient(logits.clone(), targets, V, smoothing, torch.float32)
    fused = losses._fused_gradient(logits, targets, V, smoothing, torch.float32)
    torch.testing.assert_close(fused[0], plain[0])
    counted = targets != IGNORE  # in the other rows nobody reads it
    torch.testing.assert_close(fused[1][counted], plain[1][counted])


@pytest.mark.parametrize("rows", [256, 2048])
def test_batches_of_powers_of_two_fall_into_equal_chunks(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    made = losses._losses_and_slope
    watched = lambda logits, *rest: seen.append(len(logits)) or made(logits, *rest)  # noqa: E731
    monkeypatch.setattr(losses, "_losses_and_slope", watched)
    hidden = torch.randn(rows, 2, requires_grad=True)
    chunked_nll(hidden, torch.randn(V, 2), None, torch.zeros(rows, dtype=torch.long), V, chunk=100 * V)
    assert len(set(seen)) == 1
    assert seen[0] <= 100


def test_without_gradients_none_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a gradient was made")

    monkeypatch.setattr(losses, "_losses_and_slope", refuse)
    hidden, weight = torch.randn(6, 4), torch.randn(9, 4, requires_grad=True)
    with torch.no_grad():
        total, _ = chunked_nll(hidden, weight, None, torch.arange(6), 9, chunk=18)
    assert torch.allclose(
        total, torch.nn.functional.cross_entropy(hidden @ weight.t(), torch.arange(6), reduction="sum")
    )


@pytest.mark.parametrize(("gib", "times"), [(8, 1), (40, 1), (79.1, 2), (139.8, 4), (288, 4)])
def test_a_gpu_of_much_memory_has_larger_chunks(gib: float, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    about = SimpleNamespace(total_memory=int(gib * 2**30))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: about)
    assert losses.chunk_size(torch.device("cuda", 0)) == times * losses.CHUNK["cuda"]
    assert losses.chunk_size(torch.device("cpu")) == losses.CHUNK["cpu"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="only a GPU adds narrow products to wide sums")
def test_narrow_products_are_added_to_wide_sums() -> None:
    left, right = (torch.randn(96, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    place = torch.randn(64, 64, device="cuda")
    expected = place + left.float().t() @ right.float()
    losses._add_product(place, left.t(), right, first=False)
    torch.testing.assert_close(place, expected, rtol=1e-2, atol=1e-1)
    losses._add_product(place.fill_(torch.nan), left.t(), right, first=True)
    torch.testing.assert_close(place, left.float().t() @ right.float(), rtol=1e-2, atol=1e-1)


def test_a_kernel_that_cannot_be_used_is_left_out_and_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: torch.device) -> bool:
        raise RuntimeError("no C compiler\nand more of it")

    monkeypatch.setattr(losses, "_one", {})
    monkeypatch.setattr(losses, "has_kernels", lambda: True)
    monkeypatch.setattr(losses, "_kernel_is_right", fail)
    with pytest.warns(UserWarning, match="which cannot be used: no C compiler$"):
        assert not losses._in_one_kernel(0)
    monkeypatch.setattr(losses, "_kernel_is_right", lambda device: True)
    assert not losses._in_one_kernel(0)  # it is not tried again
    assert losses._in_one_kernel(1)
