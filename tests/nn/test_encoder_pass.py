"""Whole texts through an encoder: the C++ pass against the modules it stands for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from legato.nn.capture import record
from legato.nn.feedforward import BlockShape
from legato.nn.kernels import encoder
from legato.nn.kernels.encoder import encoder_pass
from legato.nn.kernels.library import library
from legato.nn.kernels.stack_layout import BROAD, as_broad
from legato.nn.linear import Linear
from legato.nn.positions import Rotary
from legato.nn.quantized import QuantizedLinear, quantize_layers
from legato.nn.transformer import Stack

pytestmark = pytest.mark.skipif(library() is None, reason="needs a C++ compiler")

SHAPES: dict[str, dict[str, Any]] = {
    "post-norm": {"activation": "gelu"},
    "pre-norm": {"activation": "relu", "norm_first": True},
    "rms and a gate": {"activation": "swiglu", "norm_first": True, "norm": "rms", "bias": False},
    "shared keys": {"activation": "silu", "kv_heads": 2, "norm_first": True},
    "wide heads": {"activation": "quick-gelu", "head_width": 48},
    "tanh": {"activation": "gelu-tanh"},
}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "WORTH", 0)


def made(width: int = 64, layers: int = 2, **shape: Any) -> Stack:
    torch.manual_seed(0)
    given = {"activation": "gelu", **shape}
    stack = Stack("encoder", layers, BlockShape(width=width, heads=4, inner=2 * width, **given), causal=False).eval()
    with torch.no_grad():
        for parameter in stack.parameters():  # biases and norms that a fresh model has at 0 and 1
            parameter.add_(0.1 * torch.randn_like(parameter))
    return stack


def both_ways(
    stack: Stack, x: Tensor, lengths: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> tuple[Tensor, Tensor]:
    """With the kernels and without; padding is nobody's."""
    with torch.no_grad():
        assert encoder_pass(stack, x) is not None
        found = stack(x, lengths)
        with monkeypatch.context() as patched:
            patched.setattr(encoder, "encoder_pass", lambda *_: None)
            expected = stack(x, lengths)
    if lengths is not None:
        inside = torch.arange(x.shape[1]) < lengths[:, None]
        return found[inside], expected[inside]
    return found, expected


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lengths", [None, [1, 37, 16], [37, 37, 36]], ids=["even", "ragged", "nearly even"])
def test_a_pass_is_what_the_modules_do(
    shape: str, lengths: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, x = made(**SHAPES[shape]), torch.randn(3, 37, 64)
    given = None if lengths is None else torch.tensor(lengths)
    torch.testing.assert_close(*both_ways(stack, x, given, monkeypatch), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 6, 7, 11, 59, 61, 130])
def test_any_number_of_tokens_is_right(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.testing.assert_close(
        *both_ways(made(), torch.randn(1, tokens, 64), None, monkeypatch), rtol=1e-4, atol=2e-5
    )


def test_more_inputs_than_are_multiplied_at_once_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    stack, x = made(width=832, layers=1), torch.randn(1, 13, 832)  # blocks of 768 inputs: two of 832, three of 1,664
    torch.testing.assert_close(*both_ways(stack, x, None, monkeypatch), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_change_nothing(threads: int) -> None:
    stack, x, before = made(), torch.randn(3, 50, 64), torch.get_num_threads()
    with torch.no_grad():
        expected = stack(x)
        try:
            torch.set_num_threads(threads)
            assert torch.equal(stack(x), expected)
        finally:
            torch.set_num_threads(before)


def in_bytes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers (N, K/128, 128) up to 127, and the scale of each 128."""
    groups = x.unflatten(1, (-1, BROAD))
    largest = groups.abs().amax(-1, keepdim=True)
    return (groups * torch.where(largest > 0, 127 / largest, 0)).round(), largest / 127


@pytest.mark.parametrize("narrow", ["int8", "int4"])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 13, 131])
def test_products_with_one_scale_for_128_inputs(narrow: str, rows: int) -> None:
    """To rounding what whole numbers and their scales give: the plain twin of the kernel, written out."""
    torch.manual_seed(0)
    layer = torch.nn.ModuleList([Linear(256, 48)])
    quantize_layers(layer, narrow)
    linear: Any = layer[0]
    kernels, x, y = library(), torch.randn(rows, 256), torch.empty(rows, 48)
    assert kernels is not None
    matrix = as_broad(kernels, linear.as_matrix())
    kernels.linear(matrix, x.data_ptr(), rows, y.data_ptr(), 0, 2)
    weights, of_weights = in_bytes(linear.weight)
    inputs, of_inputs = in_bytes(x)
    sums = torch.einsum("ngk,rgk->rng", weights.double(), inputs.double())
    expected = (sums * of_weights.squeeze(-1) * of_inputs.squeeze(-1).unsqueeze(1)).sum(-1) + linear.bias
    # A number halfway between two may be rounded either way, and moves a sum by one product.
    assert (y - expected).norm() < 1e-3 * expected.norm()


@pytest.mark.parametrize("narrow", ["int8", "int4"])
@pytest.mark.parametrize("width", [64, 128], ids=["scales of 32 inputs", "scales of 128 inputs"])
@pytest.mark.parametrize("tokens", [3, 37])
def test_narrow_matrices_are_about_what_they_stand_for(narrow: str, width: int, tokens: int) -> None:
    """Beside the dequantised weights, with activations as they are; products themselves are held above."""
    stack, x = made(width), torch.randn(2, tokens, width)
    quantize_layers(stack, narrow)
    dense = made(width)
    with torch.no_grad():
        for one, other in zip(stack.modules(), dense.modules(), strict=True):
            if isinstance(one, QuantizedLinear) and isinstance(other, Linear):
                other.weight.copy_(one.weight)
        found, expected = stack(x), dense(x)
    assert (found - expected).norm() < 0.05 * expected.norm()


def test_a_row_with_nan_does_not_look_finite() -> None:
    stack, x = made(128), torch.randn(2, 5, 128)
    quantize_layers(stack, "int8")
    x[1, 2, 3] = torch.nan
    with torch.no_grad():
        found = stack(x)
    assert found[0].isfinite().all()
    assert found[1].isnan().all()


def test_the_pass_follows_changed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    stack, x = made(), torch.randn(2, 9, 64)
    with torch.no_grad():
        before = stack(x)
        stack.layers[0].attention.qkv.weight.mul_(2)  # type: ignore[union-attr, operator]
    found, expected = both_ways(stack, x, None, monkeypatch)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)
    assert not torch.allclose(found, before, atol=1e-3)


def test_modules_do_what_the_kernels_do_not() -> None:
    x = torch.randn(2, 9, 64)
    assert encoder_pass(made(), x) is None  # somebody may want gradients
    with torch.no_grad():
        assert encoder_pass(made(), x) is not None
        assert encoder_pass(made().train(), x) is None
        assert encoder_pass(made(head_width=24), x) is None
        assert encoder_pass(made(), x.double()) is None
        shape = BlockShape(width=64, heads=4, inner=64, activation="gelu")
        assert encoder_pass(Stack("s", 1, shape, causal=True).eval(), x) is None
        assert encoder_pass(Stack("s", 1, shape, causal=False, window=4).eval(), x) is None
        assert encoder_pass(Stack("s", 1, shape, causal=False, rotary=Rotary(9, 16)).eval(), x) is None
        with record():
            assert encoder_pass(made(), x) is None
        heard = made()
        heard.layers[1].register_forward_hook(lambda *_: None)
        assert encoder_pass(heard, x) is None


def test_float_matrices_are_laid_out_once_enough_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "WORTH", 40)
    stack, x = made(), torch.randn(2, 9, 64)
    with torch.no_grad():
        assert [encoder_pass(stack, x) is not None for _ in range(3)] == [False, False, True]
        narrow = made()
        quantize_layers(narrow, "int8")
        assert encoder_pass(narrow, x) is not None
