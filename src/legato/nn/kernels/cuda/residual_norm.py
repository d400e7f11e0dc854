"""Training's way from one sublayer to the next, s = x + y and n = norm(s), in one kernel, and back in another.

What a compiler makes of the same reads the residual stream once more for the gradient that y gets in its own width.
The plain twin is `x + y` and the norm's module; `nn/transformer.py` says when it is taken.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, disable-error-code="import-not-found,untyped-decorator"
from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

MOST: Final = 8192  # the widest row that a program holds
PROGRAMS: Final = 8  # of the backward kernel, for each multiprocessor
FORWARD_WARPS: Final = 4
BACKWARD_WARPS: Final = 8


@triton.jit
def forward_rows(
    x, y, weight, bias, s, n, stats, rows, width, eps, RMS: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    there = at < width
    place = row * width + at
    total = tl.load(x + place, mask=there, other=0.0).to(tl.float32) + tl.load(y + place, mask=there, other=0.0)
    total = total.to(s.dtype.element_ty)
    tl.store(s + place, total, mask=there)
    total = total.to(tl.float32)
    mean = 0.0 if RMS else tl.sum(total, 0) / width
    apart = tl.where(there, total - mean, 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(apart * apart, 0) / width + eps)
    made = apart * inverse * tl.load(weight + at, mask=there, other=0.0)
    if BIAS:
        made += tl.load(bias + at, mask=there, other=0.0)
    tl.store(n + place, made.to(n.dtype.element_ty), mask=there)
    tl.store(stats + row, mean)
    tl.store(stats + rows + row, inverse)


@triton.jit
def _both_sums(one, two, other_one, other_two):
    return one + other_one, two + other_two


@triton.jit
def backward_rows(
    ds, dn, s, stats, weight, dx, dy, sums, rows, width, each, RMS: tl.constexpr, MORE: tl.constexpr,
    NARROW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradients of `each` rows, and their sums for the norm's weight and bias."""
    program = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    there = at < width
    gamma = tl.load(weight + at, mask=there, other=0.0).to(tl.float32)
    of_weight = tl.zeros((BLOCK,), tl.float32)
    of_bias = tl.zeros((BLOCK,), tl.float32)
    first = program.to(tl.int64) * each
    end = tl.minimum(first + each, rows)
    place = first * width + at
    asked = there & (at * 0 + first < end)
    slope = tl.load(dn + place, mask=asked, other=0.0)
    total = tl.load(s + place, mask=asked, other=0.0)
    more = tl.load(ds + place, mask=asked, other=0.0) if MORE else total
    for row in range(first, end):
        asked = there & (at * 0 + row + 1 < end)  # the next row, while this one is worked on
        next_slope = tl.load(dn + place + width, mask=asked, other=0.0)
        next_total = tl.load(s + place + width, mask=asked, other=0.0)
        next_more = tl.load(ds + place + width, mask=asked, other=0.0) if MORE else next_total
        inverse = tl.load(stats + rows + row)
        unit = total.to(tl.float32) * inverse if RMS else (total.to(tl.float32) - tl.load(stats + row)) * inverse
        unit = tl.where(there, unit, 0.0)
        given = slope.to(tl.float32)
        of_weight += given * unit
        of_bias += given
        given *= gamma
        if RMS:
            made = given - unit * (tl.sum(given * unit, 0) / width)
        else:
            along, mean = tl.reduce((given * unit, given), 0, _both_sums)
            made = given - (unit * along + mean) / width
        made *= inverse
        if MORE:
            made += more.to(tl.float32)
        tl.store(dx + place, made.to(dx.dtype.element_ty), mask=there)
        if NARROW:
            tl.store(dy + place, made.to(dy.dtype.element_ty), mask=there)
        slope, total, more = next_slope, next_total, next_more
        place += width
    tl.store(sums + 2 * program * width + at, of_weight, mask=there)
    tl.store(sums + (2 * program + 1) * width + at, of_bias, mask=there)


# ── as operators that autograd and a compiler know ────────────────────────────────────────────


@torch.library.custom_op(
    "legato::residual_norm",
    mutates_args=(),
    schema="(Tensor x, Tensor y, Tensor weight, Tensor? bias, float eps, bool rms, ScalarType dtype)"
    " -> (Tensor, Tensor, Tensor)",
)
def _forward(x, y, weight, bias, eps, rms, dtype):
    x, y = x.contiguous(), y.contiguous()
    s, n, stats = _forward_shapes(x, y, weight, bias, eps, rms, dtype)
    width = x.shape[-1]
    rows = x.numel() // width
    if rows:
        forward_rows[(rows,)](
            x, y, weight, bias, s, n, stats, rows, width, eps, RMS=rms, BIAS=bias is not None,
            BLOCK=triton.next_power_of_2(width), num_warps=FORWARD_WARPS if width <= 1024 else 8,
        )  # fmt: skip
    return s, n, stats


@_forward.register_fake
def _forward_shapes(x, y, weight, bias, eps, rms, dtype):
    s = torch.empty(x.shape, dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    n = torch.empty(x.shape, dtype=dtype, device=x.device)
    stats = torch.empty(2, x.numel() // x.shape[-1], dtype=torch.float32, device=x.device)
    return s, n, stats


@torch.library.custom_op(
    "legato::residual_norm_backward",
    mutates_args=(),
    schema="(Tensor? ds, Tensor dn, Tensor s, Tensor stats, Tensor weight, bool rms, ScalarType narrow)"
    " -> (Tensor, Tensor, Tensor)",
)
def _backward(ds, dn, s, stats, weight, rms, narrow):
    ds, dn = None if ds is None else ds.contiguous(), dn.contiguous()
    dx, dy, _ = _backward_shapes(ds, dn, s, stats, weight, rms, narrow)
    width = s.shape[-1]
    rows = s.numel() // width
    programs = max(min(rows, PROGRAMS * multiprocessors(s.device)), 1)
    sums = torch.empty(programs, 2, width, dtype=torch.float32, device=s.device)
    backward_rows[(programs,)](
        ds, dn, s, stats, weight, dx, dy, sums, rows, width, triton.cdiv(rows, programs), RMS=rms,
        MORE=ds is not None, NARROW=dy.numel() > 0, BLOCK=triton.next_power_of_2(width), num_warps=BACKWARD_WARPS,
    )  # fmt: skip
    return dx, dy, sums.sum(0)


@_backward.register_fake
def _backward_shapes(ds, dn, s, stats, weight, rms, narrow):
    dy = torch.empty(s.shape if narrow != s.dtype else (0,), dtype=narrow, device=s.device)
    return torch.empty_like(s), dy, torch.empty(2, s.shape[-1], dtype=torch.float32, device=s.device)


def _remember(ctx, inputs, output):
    x, y, weight, bias, _, rms, _ = inputs
    s, _, stats = output
    ctx.save_for_backward(s, stats, weight)
    ctx.rms, ctx.biased, ctx.dtypes = rms, bias is not None, (x.dtype, y.dtype)
    ctx.set_materialize_grads(False)


def _gradients(ctx, ds, dn, _):
    s, stats, weight = ctx.saved_tensors
    wide, narrow = ctx.dtypes
    if dn is None:
        return (None if ds is None else ds.to(wide)), (None if ds is None else ds.to(narrow)), *(None,) * 5
    dx, dy, sums = torch.ops.legato.residual_norm_backward(ds, dn, s, stats, weight, ctx.rms, narrow)
    of_weight, of_bias = sums[0].to(weight.dtype), sums[1].to(weight.dtype) if ctx.biased else None
    return dx.to(wide), dy if narrow != s.dtype else dx, of_weight, of_bias, None, None, None


_forward.register_autograd(_gradients, setup_context=_remember)


def residual_norm(x: Tensor, y: Tensor, norm: nn.LayerNorm | nn.RMSNorm, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """s = x + y, and norm(s) in `dtype`."""
    rms = isinstance(norm, nn.RMSNorm)
    bias = None if rms else norm.bias
    s, n, _ = torch.ops.legato.residual_norm(x, y, norm.weight, bias, norm.eps, rms, dtype)
    return s, n


def multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def can_join(norm: Any) -> bool:
    """Whether a program has room for a norm that is stock."""
    if norm.weight is None or norm.eps is None:
        return False
    return norm.weight.dim() == 1 and norm.weight.numel() <= MOST
