"""Causal attention with windows and borders through kernels of ours (`kernels/cuda/window_attention.py`).

It takes queries, keys and values as one tensor and gives its gradient as one, so nothing is cut or put together. It
is an operator, whose gradient and shapes autograd, compilers and CUDA graphs know; it asks the device for nothing.

Its plain twin is `written_out_attention` with a mask. On every GPU both are compared once before it is used.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from legato.errors import warn
from legato.nn.kernels.cuda import has_kernels
from legato.nn.spans.check import problem_with

WIDTHS = (16, 32, 64, 128)  # of heads


class Reach(NamedTuple):
    """Between which tokens of its row each one sees and is seen, (B, T) int32 each; neither ever falls."""

    first: Tensor  # the first key that a query sees; the last is its own
    last: Tensor  # the last query that sees a key

    @classmethod
    def of(cls, documents: Tensor, window: int | None = None) -> Reach:
        """Of tokens that see their own text, of (B, T) the same number, and of it at most the last `window`.

        >>> Reach.of(torch.tensor([[0, 0, 0, 1, 1]]), window=2)
        Reach(first=tensor([[0, 0, 1, 3, 3]], dtype=torch.int32), last=tensor([[1, 2, 2, 4, 4]], dtype=torch.int32))
        """
        length = documents.shape[1]
        columns = torch.arange(length, device=documents.device, dtype=torch.int32).expand_as(documents)
        differs = documents[:, 1:] != documents[:, :-1]
        edge = torch.ones_like(documents[:, :1], dtype=torch.bool)
        begins, ends = torch.cat([edge, differs], 1), torch.cat([differs, edge], 1)  # (B, T)
        first = torch.where(begins, columns, 0).cummax(1).values
        last = torch.where(ends, columns, length - 1).flip(1).cummin(1).values.flip(1)
        if window is not None:
            first, last = torch.maximum(first, columns - window + 1), torch.minimum(last, columns + window - 1)
        return cls(first.contiguous(), last.contiguous())


def window_attention(qkv: Tensor, heads: int, window: int | None, reach: Reach | None = None) -> Tensor:
    """The context (B, T, H, K) of queries, keys and values (B, T, H + 2 · kv heads, K).

    Each token sees itself and those before it: the last `window`, or with `reach` what that says.
    """
    first, last = (None, None) if reach is None else reach
    length = qkv.shape[1]
    found = torch.ops.legato.window_attention(qkv, heads, length if window is None else window, first, last)
    context: Tensor = found[0]
    return context


# --- whether it is there ------------------------------------------------------------------------------


def window_takes(x: Tensor, dtype: torch.dtype, head_width: int) -> bool:
    """Whether it can be used where `x` lies, for heads of this width."""
    fits = dtype in (torch.bfloat16, torch.float16) and head_width in WIDTHS
    return fits and x.is_cuda and _works(x.device.index or 0, head_width)


_known: dict[tuple[int, int], bool] = {}  # by the number of the GPU and the width of heads


def _works(number: int, width: int) -> bool:
    """Whether it does what it should on a GPU: tried once. Where it does not, that is said once."""
    if (number, width) not in _known:
        try:
            problem = _problem(torch.device("cuda", number), width)
        except Exception as error:  # Triton has errors of its own
            problem = str(error).partition("\n")[0]
        _known[number, width] = problem is None
        if problem:
            warn(f"windows go through flash attention, since our kernel cannot be used: {problem}")
    return _known[number, width]


# A compiler shall ask, and not trace it. So says `torch.compiler.assume_constant_result`, which imports the compiler.
_works._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _problem(device: torch.device, width: int) -> str | None:
    """What is wrong with it on a small example, "" where it is not there at all; None: nothing."""
    if not has_kernels() or torch.version.hip is not None or torch.cuda.get_device_capability(device) < (8, 0):
        return ""

    def attend(query: Tensor, key: Tensor, value: Tensor, documents: Tensor | None, window: int | None) -> Tensor:
        reach = None if documents is None else Reach.of(documents, window)
        return window_attention(torch.cat([query, key, value], 2), query.shape[2], window, reach)

    return problem_with(attend, device, width)


# --- the operator -------------------------------------------------------------------------------------


def _launch(qkv: Tensor, heads: int, window: int, first: Tensor | None, last: Tensor | None) -> Any:
    from legato.nn.kernels.cuda.window_attention import Launch

    return Launch(qkv, heads, window, first, last)


@torch.library.custom_op(
    "legato::window_attention",
    mutates_args=(),
    schema="(Tensor qkv, int heads, int window, Tensor? first, Tensor? last) -> (Tensor, Tensor)",
)
def _forward(
    qkv: Tensor, heads: int, window: int, first: Tensor | None, last: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The context, and the logarithms of the softmax's sums."""
    found: tuple[Tensor, Tensor] = _launch(qkv, heads, window, first, last).forward()
    return found


@_forward.register_fake
def _(qkv: Tensor, heads: int, *_: Any) -> tuple[Tensor, Tensor]:
    rows, length, _every, width = qkv.shape
    return qkv.new_empty(rows, length, heads, width), qkv.new_empty(rows, heads, length, dtype=torch.float32)


@torch.library.custom_op(
    "legato::window_attention_backward",
    mutates_args=(),
    schema="(Tensor slope, Tensor qkv, Tensor context, Tensor sums, int heads, int window, Tensor? first,"
    " Tensor? last) -> Tensor",
)
def _backward(
    slope: Tensor,
    qkv: Tensor,
    context: Tensor,
    sums: Tensor,
    heads: int,
    window: int,
    first: Tensor | None,
    last: Tensor | None,
) -> Tensor:
    found: Tensor = _launch(qkv, heads, window, first, last).backward(slope, context, sums)
    return found


@_backward.register_fake
def _(slope: Tensor, qkv: Tensor, *_: Any) -> Tensor:
    return qkv.new_empty(qkv.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    qkv, ctx.heads, ctx.window, first, last = inputs
    ctx.save_for_backward(qkv, *output, first, last)


def _gradients(ctx: Any, slope: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    qkv, context, sums, first, last = ctx.saved_tensors
    whole = torch.ops.legato.window_attention_backward(slope, qkv, context, sums, ctx.heads, ctx.window, first, last)
    return whole, None, None, None, None


_forward.register_autograd(_gradients, setup_context=_setup)
