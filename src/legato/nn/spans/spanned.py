"""Attention to the last few tokens, or to those of one's own text, that costs what is seen: no (T, T) mask is made.

Narrow numbers on a GPU go through kernels of ours (`window.py`), or where those do not serve, through PyTorch's flash
attention (`flash.py`); training on a CPU through kernels, too (`nn/kernels/training.py`); others block by block:

    queries   b b b | c c c | d d d          a window of at most a block's length
    keys      - a b | b c   | c d            so each block of queries sees its own keys and those of the block before

The plain twin of all is a mask (`visible` in `nn/attention.py`), and tests hold them equal.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from legato.nn.attention import additive, fused_attention, visible
from legato.nn.kernels import training as kernels
from legato.nn.linear import product_dtype
from legato.nn.spans.flash import flash_attention, flash_takes, text_borders
from legato.nn.spans.window import Reach, window_attention, window_takes

BLOCK: Final = 64  # queries side by side at least, where attention goes block by block
MANY: Final = 4  # blocks from which that is faster than a mask


class Spans(NamedTuple):
    """What each token of (B, T) sees."""

    causal: bool
    window: int | None = None  # only those less than so far away
    way: Literal["window", "flash", "blocks"] = "flash"
    borders: Tensor | None = None  # between texts, for flash attention, as `text_borders` gives them
    reach: Reach | None = None  # the same and the window, for our kernels


def spans_of(
    x: Tensor,
    head_width: int,
    causal: bool,
    window: int | None,
    documents: Tensor | None = None,
    most: int | None = None,
    *,
    dropout: float = 0.0,
) -> Spans | None:
    """How tokens (B, T, D) see the last few, or those of their text, (B, T); None: only a mask will do.

    There are at most `most` texts in the batch, if that is known. `dropout` is that of the weights.
    """
    if window is None and documents is None:
        return None
    if causal and not dropout and window_takes(x, product_dtype(x), head_width):
        return Spans(True, window, "window", reach=None if documents is None else Reach.of(documents, window))
    if causal and kernels.takes(x) and product_dtype(x) in kernels.DTYPES:
        texts = torch.zeros(x.shape[:2], dtype=torch.int32) if documents is None else documents
        return Spans(True, window, "window", reach=Reach.of(texts, window))
    if (documents is None or most is not None) and flash_takes(x, product_dtype(x), head_width):
        return Spans(
            causal, window, "flash", None if documents is None or most is None else text_borders(documents, most)
        )
    if documents is None and causal and window is not None and x.shape[1] >= MANY * max(window, BLOCK):
        return Spans(causal, window, "blocks")
    return None


def spanned_attention(qkv: Tensor, heads: int, spans: Spans, dropout: float = 0.0) -> Tensor:
    """Attention of tokens to one another, (B, T, H, K), from queries, keys and values (B, T, H + 2 · kv heads, K)."""
    if spans.way != "blocks":
        qkv = qkv.to(product_dtype(qkv))  # which autocast knows of PyTorch's operators, and not of ours
    if spans.way == "window" and qkv.is_cuda:
        assert not dropout
        return window_attention(qkv, heads, spans.window, spans.reach)
    if spans.way == "window":
        assert spans.reach is not None
        return kernels.self_attention(qkv, heads, causal=True, dropout=dropout, first=spans.reach.first)
    shared = (qkv.shape[2] - heads) // 2
    query, key, value = qkv.split((heads, shared, shared), dim=2)  # at once, so that one pass joins their gradients
    if spans.way == "flash":
        return flash_attention(
            query, key, value, spans.borders, causal=spans.causal, window=spans.window, dropout=dropout
        )
    assert spans.window is not None
    query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)  # (B, H, T, K)
    return blocked_attention(query, key, value, spans.window, dropout=dropout).transpose(1, 2)


def blocked_attention(
    query: Tensor,  # (B, H, T, K)
    key: Tensor,  # as query, or with fewer heads
    value: Tensor,
    window: int,
    *,
    dropout: float = 0.0,
) -> Tensor:
    """Causal attention to the last `window` tokens, (B, H, T, K): 2 blocks of scores for each query, not T."""
    rows, _, length, _ = query.shape
    size = max(window, BLOCK)
    blocks = -(-length // size)
    query, key, value = (F.pad(x, (0, 0, 0, blocks * size - length)) for x in (query, key, value))
    places = torch.arange(2 * size, device=query.device)
    seen = visible(places[size:], places, causal=True, window=window)[None, None]
    before, own = (additive(mask, product_dtype(query)) for mask in (seen, seen[..., size:]))  # (1, 1, b, 2b), (…, b)
    first = fused_attention(query[:, :, :size], key[:, :, :size], value[:, :, :size], own, dropout=dropout)
    if blocks == 1:
        return first[:, :, :length]

    def blocks_of(x: Tensor, start: int, stop: int) -> Tensor:
        """Some blocks, each a row: (B · n, H, b, K)."""
        return x[:, :, start * size : stop * size].unflatten(2, (stop - start, size)).transpose(1, 2).flatten(0, 1)

    keys, values = (
        torch.cat([blocks_of(x, 0, blocks - 1), blocks_of(x, 1, blocks)], dim=2) for x in (key, value)
    )  # (B · n, H, 2b, K)
    others = fused_attention(blocks_of(query, 1, blocks), keys, values, before, dropout=dropout)
    others = others.unflatten(0, (rows, blocks - 1)).transpose(1, 2).flatten(2, 3)  # (B, H, n · b, K)
    return torch.cat([first, others], dim=2)[:, :, :length]
