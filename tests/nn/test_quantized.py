"""Weights of 8 and 4 bits: what blocks hold, products with them, and layers that have them."""

from __future__ import annotations

import pickle

import pytest
import torch
import torch.nn.functional as F

from legato.nn.kernels.library import library
from legato.nn.linear import Linear, PartlyBiased
from legato.nn.quantized import (
    EVEN,
    GROUP,
    STEPS,
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedReadout,
    QuantizedWeight,
    hold_layers,
    hold_weights,
    is_quantized,
    quantize,
    quantize_layers,
)
from legato.nn.readout import Readout, TokenEmbedding

SHAPES = [(16, 32), (48, 96), (20, 32), (33, 50), (128, 64)]


def off_by(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("bits", "most"), [(8, 0.008), (4, 0.11)])
def test_blocks_hold_about_what_the_matrix_was(shape: tuple[int, int], bits: int, most: float) -> None:
    torch.manual_seed(0)
    weight = torch.randn(shape)
    narrow = quantize(weight, bits)
    dense = narrow.dequantize()
    assert dense.shape == weight.shape
    assert off_by(dense, weight) < most
    again = quantize(dense, bits).dequantize()  # what fits already stays
    assert off_by(again, dense) < most / 4
    numbers = -(-shape[0] // 16) * 16 * -(-shape[1] // 32) * 32
    assert narrow.nbytes == numbers * bits // 8 + numbers // GROUP * 2


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_tiny_and_large_numbers_lose_no_more(bits: int, scale: float) -> None:
    torch.manual_seed(0)
    weight = torch.randn(32, 64)
    found = quantize(weight * scale, bits).dequantize()
    assert off_by(found / scale, quantize(weight, bits).dequantize()) < 0.03


@pytest.mark.parametrize("bits", [8, 4])
def test_zeros_stay_zeros(bits: int) -> None:
    assert not quantize(torch.zeros(32, 64), bits).dequantize().any()
    weight = torch.randn(32, 64)
    weight[:, 32:] = 0
    assert not quantize(weight, bits).dequantize()[:, 32:].any()


@pytest.mark.parametrize("minimums", [False, True])
@pytest.mark.parametrize("bits", [8, 4])
def test_what_is_put_in_is_what_comes_out(bits: int, minimums: bool) -> None:
    torch.manual_seed(0)
    rows, columns = 20, 70
    groups = -(-columns // GROUP)
    scales, least = torch.rand(rows, groups).half(), torch.randn(rows, groups).half()
    codes = torch.randint(-127, 128, (rows, columns)) if bits == 8 else torch.randint(16, (rows, columns))
    table = None if bits == 8 else torch.tensor(STEPS if minimums else EVEN, dtype=torch.int8)
    narrow = QuantizedWeight.of(
        codes.to(torch.int8), scales, bits, minimums=least if minimums else None, table=table, exponent=-3
    )
    each = torch.arange(columns) // GROUP
    values = codes.float() if table is None else table[codes].float()
    expected = (values * scales.float()[:, each] + (least.float()[:, each] if minimums else 0)) / 8
    torch.testing.assert_close(narrow.dequantize(), expected)
    places = torch.tensor([[3, 0], [19, 3]])
    torch.testing.assert_close(narrow.rows(places), expected[places])


def eight_bits(x: torch.Tensor) -> torch.Tensor:
    """What activations are where the kernels multiply them: the plain twin of their rounding."""
    groups = F.pad(x, (0, -x.shape[-1] % GROUP)).unflatten(-1, (-1, GROUP))
    largest = groups.abs().amax(-1, keepdim=True)
    codes = (groups * torch.where(largest > 0, 127 / largest, 0)).round()
    return (codes * (largest / 127)).flatten(-2)[..., : x.shape[-1]]


@pytest.mark.skipif(library() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 17])
@pytest.mark.parametrize("bits", [8, 4])
@torch.no_grad()
def test_the_kernels_product_is_that_of_what_the_blocks_hold(shape: tuple[int, int], rows: int, bits: int) -> None:
    torch.manual_seed(0)
    layer = Linear(shape[1], shape[0])
    narrow = QuantizedLinear(layer, quantize(layer.weight, bits))
    x = torch.randn(rows, 1, shape[1]) * torch.logspace(-3, 3, rows)[:, None, None]
    expected = F.linear(eight_bits(x), narrow.weight, layer.bias)
    torch.testing.assert_close(narrow(x), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert off_by(narrow(x), F.linear(x, narrow.weight, layer.bias)) < 0.02


@pytest.mark.skipif(library() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("bits", [8, 4])
@torch.no_grad()
def test_minimums_are_added_in_products(bits: int) -> None:
    torch.manual_seed(0)
    layer, codes = Linear(64, 32), torch.randint(16, (32, 64)).to(torch.int8)
    table = None if bits == 8 else torch.tensor(STEPS, dtype=torch.int8)
    least = torch.randn(32, 2).half()
    narrow = QuantizedLinear(
        layer, QuantizedWeight.of(codes, torch.rand(32, 2).half(), bits, minimums=least, table=table)
    )
    for rows in (1, 4, 6):
        x = torch.randn(rows, 64)
        expected = F.linear(eight_bits(x), narrow.weight, layer.bias)
        torch.testing.assert_close(narrow(x), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_without_kernels_and_under_autograd_the_weights_are_dequantised() -> None:
    layer = Linear(64, 32)
    narrow = QuantizedLinear(layer, quantize(layer.weight, 8))
    x = torch.randn(5, 64, requires_grad=True)
    narrow(x).sum().backward()
    torch.testing.assert_close(x.grad, narrow.weight.sum(0).expand(5, -1))
    torch.testing.assert_close(narrow(x), F.linear(x, narrow.weight, layer.bias))


@torch.no_grad()
def test_a_model_that_changes_its_dtype_keeps_its_scales() -> None:
    layer = Linear(64, 32)
    narrow = QuantizedLinear(layer, quantize(layer.weight, 8))
    before, bias = narrow.weight, layer.bias.clone()
    found = narrow.to(torch.bfloat16)
    assert found.weight.dtype == torch.bfloat16
    torch.testing.assert_close(found.weight, before.bfloat16())
    x = torch.randn(3, 64).bfloat16()
    assert off_by(found(x).float(), F.linear(x.float(), before, bias)) < 0.02


@pytest.mark.parametrize("width", ["int8", "int4"])
@pytest.mark.parametrize("biased", [(True, False, True), (False, True, False), (True, True, True)])
def test_the_biases_of_stacked_matrices_stay_where_they_are(biased: tuple[bool, ...], width: str) -> None:
    module, x = torch.nn.Module(), torch.randn(5, 64)
    module.qkv = PartlyBiased(64, (32, 16, 48), biased).eval()
    torch.nn.init.normal_(module.qkv.bias, std=10)
    held = iter(module.qkv.bias.detach().split([rows for rows, has in zip((32, 16, 48), biased, strict=True) if has]))
    bias = torch.cat(
        [next(held) if has else torch.zeros(rows) for rows, has in zip((32, 16, 48), biased, strict=True)]
    )
    assert quantize_layers(module, width) == 1
    expected = F.linear(x, module.qkv.weight, bias)
    torch.testing.assert_close(module.qkv(x), expected)  # under autograd, so by the dequantised matrix
    with torch.no_grad():
        assert off_by(module.qkv(x), expected) < 0.02
        module.qkv.bias.mul_(-1)  # what the kernels were given is of a bias that is no more
        assert off_by(module.qkv(x), expected - 2 * bias) < 0.02


def tied() -> torch.nn.Module:
    torch.manual_seed(0)
    module = torch.nn.Module()
    module.embedding, module.output = TokenEmbedding(50, 32), Readout(32, 50)
    module.output.weight = module.embedding.weight
    module.inner, module.small = PartlyBiased(32, (16, 16), (True, False)), Linear(8, 2)
    return module.eval()


@pytest.mark.parametrize("width", ["int8", "int4"])
@torch.no_grad()
def test_layers_become_narrow_and_tied_ones_stay_tied(width: str) -> None:
    module, x, tokens = tied(), torch.randn(4, 32), torch.tensor([[1, 49]])
    expected = module.output(x), module.embedding(tokens), module.inner(x)
    assert quantize_layers(module, width) == 3
    assert is_quantized(module)
    assert isinstance(module.embedding, QuantizedEmbedding)
    assert isinstance(module.output, QuantizedReadout)
    assert module.output.blocks is module.embedding.blocks
    assert module.inner.bits == (8 if width == "int8" else 4)
    assert type(module.small) is Linear
    for found, wanted in zip((module.output(x), module.embedding(tokens), module.inner(x)), expected, strict=True):
        assert found.shape == wanted.shape
        assert off_by(found, wanted) < (0.02 if width == "int8" else 0.2)
    assert quantize_layers(module, width) == 0


def test_a_tied_layer_that_has_floats_of_its_own_keeps_them() -> None:
    module = tied()
    weight = quantize(module.embedding.weight, 8)
    assert hold_weights(module, {"embedding": weight}, {"output"}) == ["embedding"]
    assert isinstance(module.embedding, QuantizedEmbedding)
    assert type(module.output) is Readout
    other = tied()
    hold_weights(other, {"embedding": weight})
    assert isinstance(other.output, QuantizedReadout)


@torch.no_grad()
def test_what_was_saved_is_held_again() -> None:
    module, other, x = tied(), tied(), torch.randn(4, 32)
    quantize_layers(module, "int4")
    tensors = {name: tensor for name, tensor in module.state_dict().items() if not name.startswith("output.")}
    hold_layers(other, tensors)
    assert other.inner.blocks is tensors["inner.blocks"]
    other.inner.bias.copy_(module.inner.bias)
    for name in ("output", "inner"):
        torch.testing.assert_close(getattr(other, name)(x), getattr(module, name)(x))
    copied = pickle.loads(pickle.dumps(module))
    torch.testing.assert_close(copied.inner(x), module.inner(x))


@pytest.mark.parametrize(
    ("name", "tensor", "told"),
    [
        ("inner.blocks", torch.zeros(2, 1, 7, dtype=torch.uint8), "'inner.blocks' is (2, 1, 7) uint8"),
        ("inner.blocks", torch.zeros(2, 1, 288), "float32, but of a matrix 32 × 32 it is (2, 1, 288) uint8"),
        ("inner.table", torch.zeros(3), "'inner.table' should be 16 numbers"),
        ("inner.exponent", torch.tensor(0.5), "'inner.exponent' should be one whole number"),
        ("inner.exponent", torch.tensor(9000), "'inner.exponent' should be one whole number"),
    ],
)
def test_what_does_not_fit_is_named(name: str, tensor: torch.Tensor, told: str) -> None:
    module = tied()
    quantize_layers(module, "int4")
    with pytest.raises(ValueError, match="inner") as caught:
        hold_layers(tied(), {**module.state_dict(), name: tensor})
    assert told in str(caught.value)


@torch.no_grad()
def test_weights_that_were_steps_above_minimums_stay_what_they_are() -> None:
    torch.manual_seed(0)
    codes, scales, least = torch.randint(16, (32, 64)), torch.rand(32, 2).half() / 8, torch.randn(32, 2).half()
    codes[:, ::32], codes[:, 1::32] = 0, 15
    each = torch.arange(64) // GROUP
    weight = codes * scales.float()[:, each] + least.float()[:, each]
    found = quantize(weight, 4)
    assert found.minimums
    assert off_by(found.dequantize(), weight) < 1e-3
    assert not quantize(torch.randn(32, 64), 4).minimums


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("rows", [1, 4])
@torch.no_grad()
def test_what_is_not_finite_is_not_hidden(bad: float, rows: int) -> None:
    layer = Linear(64, 32)
    narrow, x = QuantizedLinear(layer, quantize(layer.weight, 8)), torch.randn(rows, 64)
    x[0, 40] = bad
    found = narrow(x)
    assert not found[0].isfinite().any()
    assert found[1:].isfinite().all()
