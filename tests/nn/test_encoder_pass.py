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
from legato.nn.kernels.library import Library, Matrix, library
from legato.nn.kernels.stack_layout import BROAD, KINDS, as_broad, suits
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
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_threads_change_nothing(threads: int, dtype: torch.dtype) -> None:
    stack, x, before = made().to(dtype), torch.randn(3, 50, 64).to(dtype), torch.get_num_threads()
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


# In float16: where the processor multiplies that.

HALVES = library()
needs_halves = pytest.mark.skipif(HALVES is None or not HALVES.multiplies_halves, reason="needs float16 products")


def half_product(x: Tensor, weight: Tensor, bias: Tensor | None, activation: int = 0) -> Tensor:
    """By the kernels, of a float16 matrix (N, K); x is float32."""
    kernels, panels = library(), weight.unflatten(0, (-1, 16)).transpose(1, 2).contiguous()
    assert isinstance(kernels, Library)
    matrix = Matrix(kind=KINDS[torch.float16], rows=len(weight), columns=weight.shape[1], data=panels.data_ptr())
    if bias is not None:
        matrix.bias = bias.data_ptr()
    y = torch.empty(len(x), len(weight))
    kernels.linear(matrix, x.data_ptr(), len(x), y.data_ptr(), activation, 2)
    return y


def summed_as_halves(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The plain twin: 32 products and eight such sums are added in float16, what 256 inputs come to in float32."""
    total = torch.zeros(len(x), len(weight)) if bias is None else bias.expand(len(x), -1).clone()
    x, weight = x.half().double(), weight.double()
    for start in range(0, x.shape[1], 256):
        sums = None
        for first in range(start, min(start + 256, x.shape[1]), 32):
            chain = torch.zeros_like(total, dtype=torch.float16)
            for k in range(first, min(first + 32, x.shape[1], start + 256)):
                chain = (chain.double() + x[:, k, None] * weight[:, k]).half()  # rounded once
            sums = chain if sums is None else chain + sums
        assert sums is not None
        total += sums.float()
    return total


@needs_halves
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 8, 15, 67])
@pytest.mark.parametrize("inputs", [16, 32, 80, 256, 304, 1600], ids=lambda count: f"{count} inputs")
def test_halves_are_summed_in_blocks(rows: int, inputs: int) -> None:
    """To the last bit; 1,024 inputs of a panel are read at a time, so 1,600 are two parts."""
    torch.manual_seed(0)
    x, weight, bias = torch.randn(rows, inputs), torch.randn(48, inputs).half(), torch.randn(48)
    found, expected = half_product(x, weight, bias), summed_as_halves(x, weight, bias)
    assert torch.equal(found, expected)
    assert torch.equal(half_product(x, weight, None), summed_as_halves(x, weight, None))
    exact = x.half().double() @ weight.double().T + bias
    assert (found - exact).norm() < 1.2e-3 * exact.norm()


@needs_halves
@pytest.mark.parametrize("inputs", [768, 3072])
def test_sums_of_halves_lose_less_than_bfloat16_inputs(inputs: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(64, inputs), 0.02 * torch.randn(256, inputs)
    exact = x.double() @ weight.double().T
    of_halves = half_product(x, weight.half(), None) - exact
    of_bfloat16 = x.bfloat16().float() @ weight.bfloat16().float().T - exact  # with float32 sums
    assert of_halves.norm() < 0.5 * of_bfloat16.norm()


@needs_halves
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan, 1e5, -7e4])
def test_a_row_beyond_float16_does_not_look_finite_and_changes_no_other(value: float) -> None:
    """float16 ends at 65,504."""
    torch.manual_seed(0)
    x, weight = torch.randn(11, 320), torch.randn(32, 320).half()
    before = half_product(x, weight, None)
    x[4, 300] = value
    for activation in (0, 1, 2):  # none, ReLU, GELU
        found = half_product(x, weight, None, activation)
        assert torch.equal(found.isfinite().all(1), torch.arange(11) != 4)
    found = half_product(x, weight, None)
    assert not found[4].isfinite().any()
    others = torch.arange(11) != 4
    assert torch.equal(found[others], before[others])


@needs_halves
def test_sums_of_256_inputs_have_to_fit_float16_and_whole_ones_do_not() -> None:
    weight, x = torch.ones(16, 1024).half(), torch.full((1, 1024), 240.0)
    assert torch.equal(half_product(x, weight, None), torch.full((1, 16), 245_760.0))  # four of 61,440
    assert torch.equal(half_product(2 * x, weight, None), torch.full((1, 16), torch.inf))
    x[:, 128:256] = -240  # sums that are large on the way only
    x[:, 256:] = 0
    assert torch.equal(half_product(2 * x, weight, None), torch.zeros(1, 16))
    assert torch.equal(half_product(8 * x, weight, None), torch.full((1, 16), torch.inf))  # and they come to 0


def half_and_wide(stack: Stack, x: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """By the pass in float16, and by the modules in float32 with the same weights; padding is nobody's."""
    half = stack.half()
    with torch.no_grad():
        assert encoder_pass(half, x.half()) is not None
        found = half(x.half(), lengths)
    wide = half.float()  # in place
    with record(), torch.no_grad():  # which only modules do
        expected = wide(x.half().float(), lengths)
    assert found.dtype == torch.float16
    if lengths is None:
        return found, expected
    inside = torch.arange(x.shape[1]) < lengths[:, None]
    assert not found[~inside].any()
    return found[inside], expected[inside]


@needs_halves
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lengths", [None, [1, 37, 16]], ids=["even", "ragged"])
def test_float16_is_within_3_thousandths_of_float32(shape: str, lengths: list[int] | None) -> None:
    stack, x = made(**SHAPES[shape]), torch.randn(3, 37, 64)
    found, expected = half_and_wide(stack, x, None if lengths is None else torch.tensor(lengths))
    assert (found - expected).norm() < 3e-3 * expected.norm()


@needs_halves
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 8, 9, 63, 65, 130])
def test_any_number_of_tokens_is_right_in_float16(tokens: int) -> None:
    found, expected = half_and_wide(made(), torch.randn(1, tokens, 64))
    assert (found - expected).norm() < 3e-3 * expected.norm()


@needs_halves
@pytest.mark.parametrize("width", [80, 1088], ids=["units that are no whole group", "more inputs than a part"])
def test_other_widths_are_right_in_float16(width: int) -> None:
    found, expected = half_and_wide(made(width, layers=1, head_width=16), torch.randn(1, 13, width))
    assert (found - expected).norm() < 5e-3 * expected.norm()


@needs_halves
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_text_with_a_missing_number_does_not_look_finite_in_float16(value: float) -> None:
    stack, x = made(activation="relu").half(), torch.randn(2, 5, 64).half()
    x[1, 2, 3] = value
    with torch.no_grad():
        found = stack(x)
    assert found[0].isfinite().all()
    assert found[1].isnan().all()


@needs_halves
def test_units_beyond_float16_do_not_look_finite() -> None:
    """Between products a stack is float32, but units are multiplied as float16."""
    stack, x = made(layers=1, activation="relu").half(), torch.randn(1, 5, 64).half()
    with torch.no_grad():
        stack.layers[0].feedforward.inner.bias[3] = 6e4  # type: ignore[union-attr, index]
        assert stack(x).isfinite().all()
        stack.layers[0].feedforward.inner.weight[3] = 6e4 * x[0, 2].sign()  # type: ignore[union-attr, index]
        assert not stack(x).isfinite().all()


@needs_halves
def test_float16_is_laid_out_at_once_and_only_for_encoders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "WORTH", 10_000)
    stack, x = made().half(), torch.randn(2, 9, 64)
    with torch.no_grad():
        assert encoder_pass(stack, x) is None  # which the weights are not
        assert encoder_pass(stack, x.half()) is not None
        assert encoder_pass(made(), x.half()) is None
        assert not suits(stack)  # as a decoder's step asks, whose caches are float32
        narrow = made()
        quantize_layers(narrow, "int8")
        assert encoder_pass(narrow.half(), x.half()) is None
        monkeypatch.setattr(library(), "multiplies_halves", False)
        assert encoder_pass(stack, x.half()) is None


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
