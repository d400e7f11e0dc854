"""What training does on a CPU besides products, by our own kernels: attention, dropout, GELU and losses.

PyTorch draws dropout masks in one thread, keeps them for the way back, and has no attention with dropout that does
without all T × S weights. Here what is dropped is a function of a seed and of the place (`cpu/random.h`): threads
draw side by side, and the way back draws again. The seed comes from PyTorch's generator, so that a run that is
seeded, or resumed, drops the same.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from legato.nn.kernels.library import Attention, BiasedGelu, Dropout, Loss, Strides, training_library

DTYPES: Final = (torch.float32, torch.bfloat16)
FEW: Final = 64
MULTIPLE: Final = 16  # of which a width is where a kernel goes row by row: no vector of any machine lies in two
ROWS: Final = 32  # that are summed together (cpu/elementwise.h)
UNSEEN: Final = -1e29  # what is added to the score of a masked key


def supports(x: Tensor) -> bool:
    """Whether there are kernels for such numbers."""
    return x.is_cpu and x.dtype in DTYPES and not torch.compiler.is_compiling() and training_library() is not None


def takes(x: Tensor) -> bool:
    """Whether `dropout` and `gelu` are for it: where gradients will be asked for."""
    return torch.is_grad_enabled() and supports(x)


def dropout(x: Tensor, share: float) -> Tensor:
    """As `F.dropout`."""
    made: Tensor = _Dropout.apply(x, dropout_of(share))
    return made


def gelu(x: Tensor, *, tanh: bool) -> Tensor:
    """As `F.gelu`."""
    made: Tensor = _Gelu.apply(x, tanh)
    return made


def biased_gelu(x: Tensor, bias: Tensor, *, tanh: bool) -> Tensor:
    """gelu(x + b), which on its way back sums b's gradient over rows. A width is a multiple of `MULTIPLE`."""
    made: Tensor = _BiasedGelu.apply(x, bias, tanh)
    return made


def losses_and_gradient(logits: Tensor, targets: Tensor, vocabulary: int, smoothing: float, ignored: int) -> Tensor:
    """The losses of a chunk of logits, (2,), which become the gradient of the first: `nn/losses/vocabulary.py`."""
    made = training_library()
    assert made is not None
    assert logits.is_contiguous()
    targets, losses = targets.contiguous(), torch.empty(len(logits), 2)
    task = Loss(
        *(logits.data_ptr(), *logits.shape, vocabulary, targets.data_ptr()),
        *(ignored, smoothing, losses.data_ptr()),
    )
    made.losses(ctypes.byref(task), logits.dtype == torch.bfloat16, torch.get_num_threads())
    return losses.sum(0)


def attention_takes(query: Tensor, key: Tensor, mask: Tensor | None, dropout: float) -> bool:
    """Whether `dropout_attention` is for these: on a CPU, in training, with at most a mask of keys.

    A few keys without dropout are faster by PyTorch's kernel, but for bfloat16, which it has none for everywhere.
    """
    return (
        takes(query)
        and (dropout > 0 or key.shape[2] >= FEW or query.dtype == torch.bfloat16)
        and key.dtype == query.dtype
        and query.numel() > 0
        and key.numel() > 0
        and (mask is None or (mask.dim() == 4 and mask.shape[1] == mask.shape[2] == 1 and not mask.requires_grad))
    )


def dropout_attention(
    query: Tensor,  # (B, H, T, K)
    key: Tensor,  # (B, H, S, K), or with fewer heads
    value: Tensor,
    mask: Tensor | None = None,  # (B, 1, 1, S), True where there is something to see, or `additive`
    *,
    causal: bool = False,
    dropout: float = 0.0,
    first: Tensor | None = None,  # (B, T) int32: the first key that each query sees, where `causal`; it never falls
) -> Tensor:
    """`written_out_attention` without its weights, (B, H, T, K)."""
    added = _added(mask, query.shape[0], key.shape[2])
    attended: Tensor = _Attention.apply(query, key, value, None, added, first, causal, dropout_of(dropout))
    return attended.transpose(1, 2)


def self_attention(
    qkv: Tensor,  # (B, T, H + 2 · kv heads, K)
    heads: int,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    first: Tensor | None = None,
) -> Tensor:
    """The same of tokens to one another, (B, T, H, K); all their gradients are written into one tensor."""
    query, key, value = heads_of(qkv.detach(), heads)
    added = _added(mask, query.shape[0], key.shape[2])
    attended: Tensor = _Attention.apply(query, key, value, qkv, added, first, causal, dropout_of(dropout))
    return attended


def heads_of(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (B, H, T, K) of a product (B, T, H + 2 · kv heads, K)."""
    shared = (qkv.shape[2] - heads) // 2
    query, key, value = qkv.split((heads, shared, shared), dim=2)  # at once: one pass joins their gradients
    return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)


def _added(mask: Tensor | None, rows: int, keys: int) -> Tensor | None:
    """A mask as what is added to scores of base two, (B, S)."""
    if mask is None:
        return None
    wide = mask[:, 0, 0].expand(rows, keys)
    if wide.dtype == torch.bool:
        return torch.zeros(rows, keys).masked_fill_(~wide, UNSEEN)
    return (wide.float() * math.log2(math.e)).clamp_(min=UNSEEN)


def dropout_of(share: float) -> Dropout:
    """A new seed's."""
    if not share:
        return Dropout(0, 0, 1.0)
    threshold = min(round(share * 2**32), 2**32 - 1)
    seed = int(torch.empty((), dtype=torch.int64).random_())
    return Dropout(seed, threshold, 1 / (1 - threshold / 2**32))


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dropout: Dropout) -> Tensor:
        ctx.dropout = dropout
        return _dropped(x, dropout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        return _dropped(slope, ctx.dropout), None


def _dropped(x: Tensor, dropout: Dropout) -> Tensor:
    made, x = training_library(), x.contiguous()
    assert made is not None
    y, narrow = torch.empty_like(x), x.dtype == torch.bfloat16
    made.dropout(x.data_ptr(), y.data_ptr(), x.numel(), narrow, ctypes.byref(dropout), torch.get_num_threads())
    return y


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tanh: bool) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        ctx.tanh = tanh
        return _gelu(x, None, tanh)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return _gelu(x, slope.to(x.dtype).contiguous(), ctx.tanh), None


def _gelu(x: Tensor, slope: Tensor | None, tanh: bool) -> Tensor:
    made = training_library()
    assert made is not None
    y, narrow, given = torch.empty_like(x), x.dtype == torch.bfloat16, None if slope is None else slope.data_ptr()
    made.gelu(x.data_ptr(), given, y.data_ptr(), x.numel(), narrow, tanh, torch.get_num_threads())
    return y


class _BiasedGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, tanh: bool) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x, bias)
        ctx.tanh = tanh
        return _biased_gelu(x, bias, None, None, tanh)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, None]:
        x, bias = ctx.saved_tensors
        of_bias = torch.empty(len(bias))
        of_x = _biased_gelu(x, bias, slope.to(x.dtype).contiguous(), of_bias, ctx.tanh)
        return of_x, of_bias.to(bias.dtype), None


def _biased_gelu(x: Tensor, bias: Tensor, slope: Tensor | None, of_bias: Tensor | None, tanh: bool) -> Tensor:
    made = training_library()
    assert made is not None
    y, wide, width = torch.empty_like(x), bias.float(), len(bias)
    task = BiasedGelu(x.numel() // width, width, x.data_ptr(), wide.data_ptr(), y=y.data_ptr())
    parts = torch.empty(0 if slope is None else -(-task.rows // ROWS), width)
    if slope is not None and of_bias is not None:
        task.slope, task.parts, task.slopes = slope.data_ptr(), parts.data_ptr(), of_bias.data_ptr()
    made.biased_gelu(ctypes.byref(task), x.dtype == torch.bfloat16, tanh, torch.get_num_threads())
    return y


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        qkv: Tensor | None,  # what they are parts of, which then has their gradients
        mask: Tensor | None,
        first: Tensor | None,
        causal: bool,
        dropout: Dropout,
    ) -> Tensor:
        query, key, value = _near(query), _near(key), _near(value)
        rows, heads, queries, size = query.shape
        context = query.new_empty(rows, queries, heads, size)
        sums = torch.empty(rows, heads, queries)
        ctx.save_for_backward(query, key, value, mask, first, context, sums)
        ctx.causal, ctx.dropout, ctx.joined = causal, dropout, qkv is not None
        task = _task((query, key, value, mask, first, context, sums), causal, dropout)
        _run(task, query.dtype, back=False)
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: recomputing makes them when they are asked for
        query, key, value = saved[:3]
        slope = _near(slope.to(query.dtype))  # (B, T, H, K)
        task = _task(saved, ctx.causal, ctx.dropout)
        rows, heads, length, size = query.shape
        made = [x.new_empty(x.shape[0], x.shape[2], x.shape[1], size) for x in (query, key, value) if not ctx.joined]
        joined = query.new_empty(rows, length, heads + 2 * key.shape[1], size) if ctx.joined else None
        if joined is not None:
            made = [x.transpose(1, 2) for x in heads_of(joined, heads)]
        task.slope, task.slope_at = slope.data_ptr(), Strides(slope.stride(0), slope.stride(2), slope.stride(1))
        task.query_slope, task.key_slope, task.value_slope = (x.data_ptr() for x in made)
        task.query_slope_stride, task.key_slope_stride = made[0].stride(1), made[1].stride(1)
        _run(task, query.dtype, back=True)
        if joined is not None:
            return None, None, None, joined, None, None, None, None
        return *(x.transpose(1, 2) for x in made), None, None, None, None, None


def _near(x: Tensor) -> Tensor:
    """With the numbers of a head one after the other."""
    return x if x.stride(-1) == 1 else x.contiguous()


TENSORS: Final = ("query", "key", "value", "mask", "first", "context", "sums")  # as they are saved


def _task(tensors: Sequence[Any], causal: bool, dropout: Dropout) -> Attention:
    query, key, value = tensors[:3]
    task = Attention(*query.shape[:2], key.shape[1], query.shape[2], key.shape[2], query.shape[3])
    for name, x in zip(TENSORS, tensors, strict=True):
        setattr(task, name, None if x is None else x.data_ptr())
    task.query_at, task.key_at, task.value_at = (Strides(*x.stride()[:3]) for x in (query, key, value))
    task.scale, task.causal, task.dropout = 1 / math.sqrt(query.shape[3]), causal, dropout
    return task


def _run(task: Attention, dtype: torch.dtype, *, back: bool, tiles: bool | None = None) -> None:
    made = training_library()
    assert made is not None
    tiles = made.multiplies_tiles if tiles is None else tiles
    made.attention(ctypes.byref(task), back, dtype == torch.bfloat16, tiles, torch.get_num_threads())
