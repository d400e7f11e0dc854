"""Attention to the last few tokens, or to those of one's own text, that costs what is seen: no (T, T) mask is made.

Narrow numbers on a GPU go through kernels of ours (`window.py`), or where those do not serve, through PyTorch's flash
attention (`flash.py`); training on a CPU through kernels, too (`nn/kernels/training.py`); others block by block:

    queries       b b b | c c c | d d d          a window of at most a block's length
    keys        a b b b | …     | …              so each block of queries sees its own keys and the last of the block
    both ways   a b b b c | …   | …              before, and where tokens see both ways, the first of the next one

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
NOWHERE: Final = -(1 << 40)  # the place of what fills up a block


class Spans(NamedTuple):
    """What each token of (B, T) sees."""

    causal: bool
    window: int | None = None  # only those less than so far away
    way: Literal["window", "flash", "blocks"] = "flash"
    borders: Tensor | None = None  # between texts, for flash attention, as `text_borders` gives them
    reach: Reach | None = None  # the same and the window, for our kernels
    mask: Tensor | None = None  # block by block, as `block_mask` gives it


def spans_of(
    x: Tensor,
    head_width: int,
    causal: bool,
    window: int | None,
    documents: Tensor | None = None,
    most: int | None = None,
    *,
    dropout: float = 0.0,
    lengths: Tensor | None = None,
) -> Spans | None:
    """How tokens (B, T, D) see the last few, or those of their text, (B, T); None: only a mask will do.

    There are at most `most` texts in the batch, if that is known. `dropout` is that of the weights. What stands after
    `lengths` (B,) is padding, where tokens see what is behind them.
    """
    if window is None and documents is None:
        return None
    if lengths is not None:
        return _by_blocks(x, causal, window, documents, lengths)
    if causal and not dropout and window_takes(x, product_dtype(x), head_width):
        return Spans(True, window, "window", reach=None if documents is None else Reach.of(documents, window))
    if causal and kernels.takes(x) and product_dtype(x) in kernels.DTYPES:
        texts = torch.zeros(x.shape[:2], dtype=torch.int32) if documents is None else documents
        return Spans(True, window, "window", reach=Reach.of(texts, window))
    if (documents is None or most is not None) and flash_takes(x, product_dtype(x), head_width):
        return Spans(
            causal, window, "flash", None if documents is None or most is None else text_borders(documents, most)
        )
    return _by_blocks(x, causal, window, documents, None)


def _by_blocks(
    x: Tensor, causal: bool, window: int | None, documents: Tensor | None, lengths: Tensor | None
) -> Spans | None:
    """Block by block, where there are enough of them; padding is a text of its own."""
    length = x.shape[1]
    if window is None or length < MANY * max(window, BLOCK):
        return None
    if lengths is not None:
        texts = torch.zeros_like(x[..., 0], dtype=torch.long) if documents is None else documents
        documents = texts.masked_fill(torch.arange(length, device=x.device) >= lengths[:, None], NOWHERE - 1)
    return Spans(causal, window, "blocks", mask=block_mask(x, window, causal, documents))


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
    assert spans.mask is not None
    query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)  # (B, H, T, K)
    made = blocked_attention(query, key, value, spans.mask, spans.window, causal=spans.causal, dropout=dropout)
    return made.transpose(1, 2)


class Cut(NamedTuple):
    """A text as blocks of queries, and how many keys before and behind its own each block sees."""

    size: int
    blocks: int
    before: int
    after: int
    missing: int  # places that fill up the last block

    @classmethod
    def of(cls, length: int, window: int, causal: bool) -> Cut:
        size = max(window, BLOCK)
        before, blocks = min(size, -(-(window - 1) // 8) * 8), -(-length // size)
        return cls(size, blocks, before, 0 if causal else before, blocks * size - length)

    def queries(self, x: Tensor, value: float = 0) -> Tensor:
        """(…, T, K) to (…, n, b, K)."""
        return F.pad(x, (0, 0, 0, self.missing), value=value).unflatten(-2, (self.blocks, self.size))

    def keys(self, x: Tensor, value: float = 0) -> Tensor:
        """(…, T, K) to (…, n, S, K)."""
        size, before, after = self.size, self.before, self.after
        if not torch.is_grad_enabled():  # no copy, but a gradient that is slow
            padded = F.pad(x, (0, 0, before, self.missing + after), value=value)
            return padded.unfold(-2, before + size + after, size).transpose(-1, -2)
        padded = F.pad(x, (0, 0, size, self.missing + size), value=value).unflatten(-2, (self.blocks + 2, size))
        halos = padded[..., :-2, size - before :, :], padded[..., 2:, :after, :]
        return torch.cat((halos[0], padded[..., 1:-1, :, :], halos[1]), dim=-2)


def block_mask(x: Tensor, window: int, causal: bool, texts: Tensor | None = None) -> Tensor:
    """What each block of tokens (B, T, …) sees, `additive`: (n, 1, b, S), or (B · n, 1, b, S) with `texts` (B, T).

    Tokens see those of the same number.
    """
    cut = Cut.of(x.shape[1], window, causal)
    places = torch.arange(x.shape[1], device=x.device)[:, None]
    of_queries, of_keys = cut.queries(places, x.shape[1])[..., 0], cut.keys(places, NOWHERE)[..., 0]
    seen = visible(of_queries, of_keys, causal=causal, window=window)  # (n, b, S)
    if texts is not None:
        own, others = cut.queries(texts[..., None]), cut.keys(texts[..., None])  # (B, n, b, 1), (B, n, S, 1)
        seen = (seen & (own == others.transpose(2, 3))).flatten(0, 1)
    return additive(seen.unsqueeze(1), product_dtype(x))


def blocked_attention(
    query: Tensor,  # (B, H, T, K)
    key: Tensor,  # as query, or with fewer heads
    value: Tensor,
    mask: Tensor,  # as `block_mask` makes it
    window: int,
    *,
    causal: bool = True,
    dropout: float = 0.0,
) -> Tensor:
    """Attention to the tokens less than `window` away, (B, H, T, K): S scores for each query, not T."""
    rows, heads, length, _ = query.shape
    cut = Cut.of(length, window, causal)
    parts = [cut.queries(query), cut.keys(key), cut.keys(value)]  # (B, H, n, …, K) each
    # A block is a row. Where one mask serves all texts, theirs are its heads.
    shared = len(mask) == cut.blocks
    query, key, value = (
        x.permute(2, 0, 1, 3, 4).flatten(1, 2) if shared else x.transpose(1, 2).flatten(0, 1) for x in parts
    )
    found = fused_attention(query, key, value, mask, dropout=dropout)
    if shared:
        found = found.unflatten(1, (rows, heads)).permute(1, 2, 0, 3, 4)
    else:
        found = found.unflatten(0, (rows, cut.blocks)).transpose(1, 2)
    return found.flatten(2, 3)[:, :, :length]
