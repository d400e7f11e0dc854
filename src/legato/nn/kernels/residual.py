"""Training's way from one sublayer to the next on a CPU, in one pass over memory, and back in another (`residual.h`).

    s = x + dropout(y)        n = norm(s)

The plain twin is `dropout`, the sum and the norm's module, which draw the same. Under autocast n comes at once in the
dtype that products are made in, and y's gradient in y's, so that nothing is cast. Sums over rows are the same with
any number of threads.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from legato.nn.kernels import library, training
from legato.nn.kernels.description import is_stock
from legato.nn.kernels.library import Dropout, training_library


def can_join(norm: Any) -> bool:
    """Whether the kernels have room for a norm that is stock."""
    if norm.weight is None or norm.eps is None:
        return False
    return norm.weight.dim() == 1 and norm.weight.numel() % training.MULTIPLE == 0


def takes(x: Tensor, y: Tensor, norm: nn.Module) -> bool:
    """Whether `residual_norm` is for norm(x + y): where gradients will be asked for, and nobody looks at the norm."""
    fit = training.takes(x) and y.dtype in training.DTYPES and x.shape == y.shape
    return fit and is_stock(norm) and can_join(norm)


def residual_norm(
    x: Tensor,
    y: Tensor | None,
    norm: nn.LayerNorm | nn.RMSNorm,
    dtype: torch.dtype,
    share: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """s = x + dropout(y), and norm(s) in `dtype`. Where there is no y, s is x."""
    if y is not None and y.dtype != x.dtype and x.dtype == torch.bfloat16:
        x = x.to(y.dtype)
    if x.dtype == torch.bfloat16:
        dtype = x.dtype
    bias = None if isinstance(norm, nn.RMSNorm) else norm.bias
    rms, eps = isinstance(norm, nn.RMSNorm), norm.eps
    s, n = _ResidualNorm.apply(x, y, norm.weight, bias, rms, eps, dtype, training.dropout_of(share))
    return x if y is None else s, n


class _ResidualNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        rms: bool,
        eps: float,
        dtype: torch.dtype,
        dropout: Dropout,
    ) -> tuple[Tensor | None, Tensor]:
        x, y = x.contiguous(), None if y is None else y.contiguous()
        s, n = None if y is None else torch.empty_like(x), torch.empty_like(x, dtype=dtype)
        stats = torch.empty(x.numel() // x.shape[-1], 2)
        gamma, beta = weight.float(), None if bias is None else bias.float()
        ctx.rms, ctx.eps, ctx.dropout, ctx.biased = rms, eps, dropout, bias is not None
        ctx.narrow = _narrow(x, y, n)
        task = _task(ctx, x if s is None else s, stats, gamma)
        task.stream, task.added, task.sum, task.normed, task.bias = map(_place, (x, y, s, n, beta))
        _run(task, ctx.narrow, back=False)
        ctx.save_for_backward(x if s is None else s, stats, weight)
        ctx.added = None if y is None else y.dtype
        ctx.set_materialize_grads(False)
        return s, n

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, ds: Tensor | None, dn: Tensor | None) -> tuple[Tensor | None, ...]:
        s, stats, weight = ctx.saved_tensors
        if dn is None:  # nobody used the norm
            dn = s.new_zeros(s.shape, dtype=torch.bfloat16 if ctx.narrow & 4 else torch.float32)
        dn, ds = dn.contiguous(), None if ds is None else ds.contiguous()
        dx = torch.empty_like(s)
        alike = ctx.added is None or (ctx.added == s.dtype and not ctx.dropout.threshold)
        dy = None if alike else torch.empty_like(s, dtype=ctx.added)
        parts = torch.empty(-(-len(stats) // training.ROWS), 2, s.shape[-1])
        slopes, gamma = torch.empty(2, s.shape[-1]), weight.float()
        task = _task(ctx, s, stats, gamma)
        task.sum_slope, task.normed_slope, task.stream_slope, task.added_slope = map(_place, (ds, dn, dx, dy))
        task.parts, task.slopes = parts.data_ptr(), slopes.data_ptr()
        _run(task, ctx.narrow, back=True)
        of_weight, of_bias = slopes.to(weight.dtype)
        added = None if ctx.added is None else dx if dy is None else dy
        return dx, added, of_weight, of_bias if ctx.biased else None, None, None, None, None


def _place(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _narrow(*tensors: Tensor | None) -> int:
    """Which are bfloat16: 1, the stream; 2, what is added; 4, what the norm leaves."""
    return sum(1 << i for i, x in enumerate(tensors) if x is not None and x.dtype == torch.bfloat16)


def _task(ctx: Any, s: Tensor, stats: Tensor, gamma: Tensor) -> library.Residual:
    task = library.Residual(s.numel() // s.shape[-1], s.shape[-1], stream=s.data_ptr(), stats=stats.data_ptr())
    task.weight, task.eps, task.rms, task.dropout = gamma.data_ptr(), ctx.eps, ctx.rms, ctx.dropout
    return task


def _run(task: library.Residual, narrow: int, *, back: bool) -> None:
    made = training_library()
    assert made is not None
    made.residual(ctypes.byref(task), back, narrow, torch.get_num_threads())
