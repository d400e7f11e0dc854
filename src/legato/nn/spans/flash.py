"""Flash attention with borders and windows: PyTorch's kernel for narrow numbers on a GPU (Dao 2023).

It computes what is seen and nothing else: a window costs its own width, and several texts in a row cost each its own
length, without a mask. PyTorch has it, but its `scaled_dot_product_attention` asks for neither; here it is an
operator of ours, whose gradient and shapes autograd, compilers and CUDA graphs know. It asks the device for nothing.

Its plain twin is `written_out_attention` with a mask. On every GPU both are compared once before it is used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from legato.errors import warn
from legato.nn.spans.check import problem_with


def text_borders(documents: Tensor, most: int) -> Tensor:
    """Where texts begin among B · T tokens, given each one's text (B, T), and where the last ends: (`most` + 1,).

    There are at most so many. Fewer are filled up with empty ones, so that the shape tells nothing of the batch.

    >>> text_borders(torch.tensor([[0, 0, 1, 1], [0, 0, 0, 1]]), most=5)
    tensor([0, 2, 4, 7, 8, 8], dtype=torch.int32)
    """
    begins = torch.ones_like(documents, dtype=torch.bool)  # (B, T): a row begins with a text
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    numbers = begins.flatten().cumsum(0)  # (B · T,), from 1
    wanted = torch.arange(1, most + 2, device=documents.device)
    borders = torch.searchsorted(numbers, wanted, out_int32=True)
    borders[-1:] = documents.numel()
    return borders


def flash_attention(
    query: Tensor,  # (B, T, H, K)
    key: Tensor,  # (B, T, H, K), or fewer heads, each of which serves a group of queries' heads
    value: Tensor,  # as key
    borders: Tensor | None = None,  # as `text_borders` gives them; None: each row is one text
    *,
    causal: bool,
    window: int | None = None,  # only those less than so far away are seen
    dropout: float = 0.0,
) -> Tensor:
    """(B, T, H, K)"""
    left = -1 if window is None else window - 1
    right = 0 if causal else left
    given = (query, key, value)
    if borders is not None:
        given = (query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1))  # (B · T, H, K)
    found = torch.ops.legato.flash_attention(*given, borders, query.shape[1], dropout, left, right)
    context: Tensor = found[0]
    return context.view(query.shape)


# --- whether it is there ------------------------------------------------------------------------------


def flash_takes(x: Tensor, dtype: torch.dtype, head_width: int) -> bool:
    """Whether it can be used where `x` lies, for heads of this width."""
    fits = dtype in (torch.bfloat16, torch.float16) and head_width % 8 == 0 and head_width <= 256
    return fits and x.is_cuda and _works(x.device.index or 0)


_known: dict[int, bool] = {}  # by the number of the GPU


def _works(number: int) -> bool:
    """Whether it does what it should on a GPU: tried once. Where it does not, that is said once."""
    if number not in _known:
        try:
            problem = _problem(torch.device("cuda", number))
        except (RuntimeError, TypeError, ValueError) as error:  # not in this PyTorch, or not for this GPU
            problem = str(error).partition("\n")[0]
        _known[number] = problem is None
        if problem is not None:
            warn(f"attention is made with masks, since flash attention cannot be: {problem}")
    return _known[number]


# A compiler shall ask, and not trace it. So says `torch.compiler.assume_constant_result`, which imports the compiler.
_works._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _problem(device: torch.device) -> str | None:
    """What is wrong with it on a small example, forward and backward; None: nothing."""
    if torch.version.hip is not None or torch.cuda.get_device_capability(device) < (8, 0):
        return "it needs an NVIDIA GPU from Ampere on"

    def attend(query: Tensor, key: Tensor, value: Tensor, documents: Tensor | None, window: int | None) -> Tensor:
        borders = None if documents is None else text_borders(documents, 5)
        return flash_attention(query, key, value, borders, causal=True, window=window)

    return problem_with(attend, device)


# --- the operator -------------------------------------------------------------------------------------

_aten: Any = torch.ops.aten


@torch.library.custom_op(
    "legato::flash_attention",
    mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor value, Tensor? borders, int length, float dropout, int left, int right)"
    " -> (Tensor, Tensor, Tensor)",
)
def _flash_forward(
    query: Tensor, key: Tensor, value: Tensor, borders: Tensor | None, length: int, dropout: float, *sides: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The context, the logarithms of the softmax's sums, and where the generator stood."""
    settings, window = _settings(borders, length, dropout, *sides)
    context, sums, state, _, _ = _aten._flash_attention_forward(query, key, value, *settings, False, **window)
    return context, sums, state if dropout else _no_state(query)


def _settings(
    borders: Tensor | None, length: int, dropout: float, left: int, right: int
) -> tuple[tuple[Any, ...], dict[str, int]]:
    """What PyTorch's operators, forward and backward, take of queries and of keys, and how far each sees."""
    causal = left < 0 and right == 0
    given = (borders, borders, length, length, dropout, causal)
    return given, {"window_size_left": left, "window_size_right": right}


def _no_state(query: Tensor) -> Tensor:
    return torch.empty(2, dtype=torch.uint64, device=query.device)


@_flash_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, borders: Tensor | None, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    heads = query.shape[-2]
    shape = (query.shape[0], heads, query.shape[1]) if borders is None else (heads, query.shape[0])
    sums = torch.empty(shape, dtype=torch.float32, device=query.device)
    return torch.empty_like(query), sums, _no_state(query)


@torch.library.custom_op(
    "legato::flash_attention_backward",
    mutates_args=(),
    schema="(Tensor slope, Tensor query, Tensor key, Tensor value, Tensor context, Tensor sums, Tensor state,"
    " Tensor? borders, int length, float dropout, int left, int right) -> (Tensor, Tensor, Tensor)",
)
def _flash_backward(
    slope: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context: Tensor,
    sums: Tensor,
    state: Tensor,
    *given: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    settings, window = _settings(*given)
    found: tuple[Tensor, Tensor, Tensor] = _aten._flash_attention_backward(
        slope, query, key, value, context, sums, *settings, state, state.new_empty(()), **window
    )
    return found


@_flash_backward.register_fake
def _(slope: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _flash_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, value, borders, *ctx.settings = inputs
    ctx.save_for_backward(query, key, value, *output, borders)


def _flash_gradients(ctx: Any, slope: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    found = torch.ops.legato.flash_attention_backward(slope, *ctx.saved_tensors, *ctx.settings)
    return (*found, None, None, None, None, None)


_flash_forward.register_autograd(_flash_gradients, setup_context=_flash_setup)
