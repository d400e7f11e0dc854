"""GELU of a product and its bias in one kernel, and in another the gradient of both: a compiler reads it twice."""

# mypy: allow-untyped-defs, allow-incomplete-defs, disable-error-code="import-not-found,untyped-decorator"
from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from legato.nn.kernels.cuda.residual_norm import multiprocessors

FORWARD: Final = 1024  # units that a program looks at together
BACKWARD: Final = 512
PROGRAMS: Final = 16  # of the backward kernel, for each multiprocessor


@triton.jit
def _share(x, TANH: tl.constexpr):
    """How much of x GELU lets through: Φ(x), or what is near it."""
    if TANH:  # 0.5 (1 + tanh y) = σ(2 y)
        return 1.0 / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def forward_units(x, bias, out, width, TANH: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = at < width
    place = tl.program_id(0).to(tl.int64) * width + at
    given = tl.load(x + place, mask=there, other=0.0).to(tl.float32) + tl.load(bias + at, mask=there, other=0.0)
    tl.store(out + place, (given * _share(given, TANH)).to(out.dtype.element_ty), mask=there)


@triton.jit
def backward_units(up, x, bias, down, sums, rows, width, each, TANH: tl.constexpr, BLOCK: tl.constexpr):
    """The gradient of some units of `each` rows, and its sums for the bias."""
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = at < width
    added = tl.load(bias + at, mask=there, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    first = tl.program_id(0).to(tl.int64) * each
    for row in range(first, tl.minimum(first + each, rows)):
        place = row * width + at
        slope = tl.load(up + place, mask=there, other=0.0).to(tl.float32)
        given = tl.load(x + place, mask=there, other=0.0).to(tl.float32) + added
        share = _share(given, TANH)
        if TANH:
            steep = share * (1.0 - share) * (1.5957691216057308 + 0.2140644488 * given * given)
        else:
            steep = 0.3989422804014327 * tl.exp(-0.5 * given * given)
        slope *= share + given * steep
        total += slope
        tl.store(down + place, slope.to(down.dtype.element_ty), mask=there)
    tl.store(sums + tl.program_id(0) * width + at, total, mask=there)


@torch.library.custom_op(
    "legato::biased_gelu", mutates_args=(), schema="(Tensor x, Tensor bias, bool tanh) -> Tensor"
)
def _forward(x, bias, tanh):
    x = x.contiguous()
    out, width = torch.empty_like(x), x.shape[-1]
    if x.numel():
        grid = (x.numel() // width, triton.cdiv(width, FORWARD))
        forward_units[grid](x, bias, out, width, TANH=tanh, BLOCK=FORWARD, num_warps=4)
    return out


@_forward.register_fake
def _forward_shape(x, bias, tanh):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op(
    "legato::biased_gelu_backward",
    mutates_args=(),
    schema="(Tensor up, Tensor x, Tensor bias, bool tanh) -> (Tensor, Tensor)",
)
def _backward(up, x, bias, tanh):
    up, x = up.contiguous(), x.contiguous()
    down, width = torch.empty_like(x), x.shape[-1]
    rows, parts = x.numel() // width, triton.cdiv(width, BACKWARD)
    each = triton.cdiv(max(rows, 1), max(PROGRAMS * multiprocessors(x.device) // parts, 1))
    programs = triton.cdiv(max(rows, 1), each)
    sums = torch.empty(programs, width, dtype=torch.float32, device=x.device)
    backward_units[(programs, parts)](
        up, x, bias, down, sums, rows, width, each, TANH=tanh, BLOCK=BACKWARD, num_warps=4
    )
    return down, sums.sum(0)


@_backward.register_fake
def _backward_shapes(up, x, bias, tanh):
    down = torch.empty_like(x, memory_format=torch.contiguous_format)
    return down, torch.empty(x.shape[-1], dtype=torch.float32, device=x.device)


def _remember(ctx, inputs, output):
    x, bias, ctx.tanh = inputs
    ctx.save_for_backward(x, bias)


def _gradients(ctx, up):
    x, bias = ctx.saved_tensors
    down, total = torch.ops.legato.biased_gelu_backward(up, x, bias, ctx.tanh)
    return down, total.to(bias.dtype), None


_forward.register_autograd(_gradients, setup_context=_remember)


def biased_gelu(x: Tensor, bias: Tensor, *, tanh: bool) -> Tensor:
    """gelu(x + b), by its definition or the formula with tanh."""
    made: Tensor = torch.ops.legato.biased_gelu(x, bias, tanh)
    return made
