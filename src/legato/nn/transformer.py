"""The Transformer's blocks, and stacks of them: what its many models are assembled from.

    post-norm (Vaswani et al. 2017)     x ← norm(x + sublayer(x))
    pre-norm (Xiong et al. 2020)        x ← x + sublayer(norm(x)),  and one more norm after the last block

A block's sublayers are self-attention, in a decoder that reads a source also cross-attention, and the
feed-forward layer. An encoder (BERT's, a translation model's) is a stack where every token sees every
other; a decoder (GPT's, LLaMA's, a translation model's) is one where it sees those up to itself.

Captured inside `record()`: `encoder.3.attention.weights`, `decoder.3.cross.weights` (B, H, T, S),
`encoder.3.feedforward.units` (B, T, inner) and `encoder.3.hidden` (B, T, D).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from legato.nn.attention import additive, visible
from legato.nn.cache import KeyValueCache, Opening
from legato.nn.capture import capture, capturing, scope
from legato.nn.feedforward import FeedForward, make_norm
from legato.nn.multihead import CrossAttention, Look, MultiHead, Packing, Past, SelfAttention, Source
from legato.nn.positions import Rotary
from legato.nn.state import Memory


@dataclass(frozen=True)
class BlockShape:
    """What all blocks of a stack have in common."""

    width: int
    heads: int
    inner: int  # units of the feed-forward layer
    activation: str = "relu"  # of nn/feedforward.py's ACTIVATIONS
    kv_heads: int | None = None  # heads of keys and values; left out: as many
    norm: str = "layer"  # or "rms"
    eps: float = 1e-5
    norm_first: bool = False  # pre-norm
    bias: bool = True
    dropout: float = 0.0  # on what a sublayer adds
    dropout_attention: float = 0.0  # on the attention weights
    dropout_activation: float = 0.0  # on the feed-forward layer's units


class Block(nn.Module):
    """Self-attention, with `cross` cross-attention, and a feed-forward layer, each with a norm and a way around."""

    def __init__(self, shape: BlockShape, *, cross: bool = False) -> None:
        super().__init__()
        width, heads = shape.width, shape.heads
        self.norm_first = shape.norm_first
        self.dropout = shape.dropout
        self.attention = SelfAttention(
            width, heads, kv_heads=shape.kv_heads, bias=shape.bias, dropout=shape.dropout_attention
        )
        self.attention_norm = make_norm(shape.norm, width, shape.eps)
        self.cross = CrossAttention(width, heads, bias=shape.bias, dropout=shape.dropout_attention) if cross else None
        self.cross_norm = make_norm(shape.norm, width, shape.eps) if cross else None
        self.feedforward = FeedForward(
            width, shape.inner, shape.activation, bias=shape.bias, dropout=shape.dropout_activation
        )
        self.feedforward_norm = make_norm(shape.norm, width, shape.eps)

    def forward(self, x: Tensor, look: Look, past: Past | None = None, source: Source | None = None) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        first = self.norm_first
        with named("attention"):
            y = self.attention(self.attention_norm(x) if first else x, look, past)
        x = self._add(x, y, self.attention_norm)
        if self.cross is not None and self.cross_norm is not None:
            with named("cross"):
                y = self.cross(self.cross_norm(x) if first else x, source)
            x = self._add(x, y, self.cross_norm)
        with named("feedforward"):
            y = self.feedforward(self.feedforward_norm(x) if first else x)
        return self._add(x, y, self.feedforward_norm)

    def _add(self, x: Tensor, y: Tensor, norm: nn.Module) -> Tensor:
        if self.training:
            y = F.dropout(y, self.dropout)
        return x + y if self.norm_first else norm(x + y)


class Stack(nn.Module):
    """Blocks one after the other: an encoder or, with `causal`, a decoder.

    `name` is what its captured tensors are called after. With `window` a token sees only those less than
    so far away.
    """

    def __init__(
        self,
        name: str,
        layers: int,
        shape: BlockShape,
        *,
        causal: bool,
        cross: bool = False,
        window: int | None = None,
        rotary: Rotary | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.shape = shape
        self.causal = causal
        self.window = window
        self.rotary = rotary
        self.layers = nn.ModuleList(Block(shape, cross=cross) for _ in range(layers))
        self._start_small(layers * (3 if cross else 2))
        self.norm = make_norm(shape.norm, shape.width, shape.eps) if shape.norm_first else None

    @torch.no_grad()
    def _start_small(self, sublayers: int) -> None:
        """Let all that the sublayers add start out no larger than what one would (as GPT-2 does).

        Post-norm blocks need it most: with Xavier's start alone their decoder may never learn to look at the source.
        """
        for module in self.modules():
            if isinstance(module, MultiHead):
                module.output.weight.mul_(sublayers**-0.5)
            elif isinstance(module, FeedForward):
                module.outer.weight.mul_(sublayers**-0.5)

    def fuse(self, fused: bool) -> None:
        """Choose PyTorch's attention kernel (True) or the written-out equation (False)."""
        for module in self.modules():
            if isinstance(module, MultiHead):
                module.fused = fused

    def forward(self, x: Tensor, lengths: Tensor | None = None, memory: Memory | None = None) -> Tensor:
        """Whole sequences (B, T, D), padded on the right; padding changes nothing before it.

        A causal stack needs no `lengths`: what follows a token cannot change it.
        """
        length = x.shape[1]
        packing = None if self.causal else _packing(x, lengths)
        places = torch.arange(length, device=x.device)
        seen: Tensor | None = None
        if lengths is not None and not self.causal:
            seen = (places < lengths[:, None])[:, None, None]  # (B, 1, 1, T)
        if self.window is not None:
            near = visible(places, places, causal=self.causal, window=self.window)  # (T, T)
            seen = near[None, None] if seen is None else near & seen
        mask = None if seen is None else additive(seen, _dtype_inside(x))
        rotation = None if self.rotary is None else self.rotary(slice(0, length))
        sources = None if memory is None else self.sources(memory)
        look = Look(mask, self.causal and mask is None, rotation, packing)
        if packing is None:
            return self._run(x, look, sources=sources)
        return packing.unpack(self._run(packing.pack(x), look, sources=sources))

    def sources(self, memory: Memory) -> list[Source]:
        """Every layer's keys and values of a memory."""
        states, mask = memory.states, memory.mask
        if mask is not None:
            mask = additive(mask[:, None, None], _dtype_inside(states))  # (B, 1, 1, S)
        packing = _packing(states, memory.lengths)
        if packing is not None:
            states = packing.pack(states)
        return [block.cross.source(states, mask, packing) for block in self.layers]  # type: ignore[union-attr, operator]

    def start(
        self, rows: int, capacity: int, *, limit: int | None = None, memory: Memory | None = None
    ) -> KeyValueCache:
        """An empty cache, for `extend`."""
        weight = next(self.parameters())
        heads = self.shape.kv_heads or self.shape.heads
        return KeyValueCache(
            len(self.layers),
            rows,
            heads,
            capacity,
            self.shape.width // self.shape.heads,
            like=weight.new_empty(0, dtype=_dtype_inside(weight)),
            limit=limit,
            window=self.window,
            sources=None if memory is None else self.sources(memory),
        )

    def extend(self, x: Tensor, opening: Opening) -> Tensor:
        """New tokens (B, T, D) after those in a cache, which has been opened for them."""
        rotation = None if self.rotary is None else self.rotary(opening.at)
        return self._run(x, Look(opening.mask, opening.causal, rotation), opening.pasts, opening.sources)

    def _run(
        self, x: Tensor, look: Look, pasts: Sequence[Past] | None = None, sources: Sequence[Source] | None = None
    ) -> Tensor:
        for index, block in enumerate(self.layers):
            past = None if pasts is None else pasts[index]
            source = None if sources is None else sources[index]
            with named(f"{self.name}.{index}"):
                x = block(x, look, past, source)
                capture("hidden", x)
        return x if self.norm is None else self.norm(x)


_UNNAMED = nullcontext()
PADDED = 0.95  # share of tokens in a batch up to which skipping the padding costs less than it saves


def named(name: str) -> AbstractContextManager[None]:
    """A capture scope where somebody looks; nothing, quickly, where nobody does."""
    return scope(name) if capturing() else _UNNAMED


def _packing(x: Tensor, lengths: Tensor | None) -> Packing | None:
    """How to skip the padding of (B, T, D) where that is worth it: in evaluation on a CPU.

    A GPU would have to tell the host how much there is; and captured tensors have their padding.
    """
    if lengths is None or not x.is_cpu or torch.is_grad_enabled() or capturing():
        return None
    rows, length, _ = x.shape
    return Packing.of(lengths, length) if int(lengths.sum()) < PADDED * rows * length else None


def _dtype_inside(x: Tensor) -> torch.dtype:
    """What attention computes in: autocast may have its own opinion."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
