"""The Transformer's blocks, and stacks of them: what its many models are assembled from.

    post-norm (Vaswani et al. 2017)     x ← norm(x + sublayer(x))
    pre-norm (Xiong et al. 2020)        x ← x + sublayer(norm(x)),  and one more norm after the last block

A block's sublayers are self-attention, in a decoder that reads a source also cross-attention, and the
feed-forward layer. An encoder (BERT's, a translation model's) is a stack where every token sees every
other; a decoder (GPT's, LLaMA's, a translation model's) is one where it sees those up to itself.

Captured inside `record()`: `encoder.3.attention.weights`, `decoder.3.cross.weights` (B, H, T, S),
`encoder.3.feedforward.units` (B, T, inner), `encoder.3.hidden` (B, T, D), and what the first block reads,
`encoder.embedded`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from legato.nn.attention import additive, visible
from legato.nn.capture import capture, capturing, scope
from legato.nn.dropout import dropout
from legato.nn.feedforward import BlockShape, FeedForward, make_norm
from legato.nn.kernels import decoder, encoder, residual
from legato.nn.kernels import training as kernels
from legato.nn.kernels.cuda import load_training_kernels, training_kernels
from legato.nn.kernels.description import describe, register
from legato.nn.kv_cache import CacheSlice, KeyValueCache
from legato.nn.linear import product_dtype
from legato.nn.multihead import (
    AttentionView,
    CrossAttention,
    MultiHead,
    Packing,
    Past,
    SelfAttention,
    Source,
    SourceStates,
)
from legato.nn.positions import Rotary
from legato.nn.readout import Readout, TokenEmbedding, clear_padding
from legato.nn.spans.spanned import spans_of
from legato.nn.state import Memory


class Residual(NamedTuple):
    """The residual stream, and what a sublayer adds to it, until a norm takes both: then one kernel does."""

    stream: Tensor  # (B, T, D)
    added: Tensor | None = None  # (B, T, D)
    dropout: float = 0.0  # of what is added, where the kernel drops

    def normed(self, norm: nn.Module, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """The sum, and its norm, which may come in the dtype of those who read it."""
        if self.stream.is_cpu:
            return residual.residual_norm(*self[:2], norm, dtype or self.stream.dtype, self.dropout)  # type: ignore[arg-type]
        if self.added is None:
            return self.stream, norm(self.stream)
        from legato.nn.kernels.cuda.residual_norm import residual_norm

        return residual_norm(self.stream, self.added, norm, dtype or self.stream.dtype)  # type: ignore[arg-type]


@register("block")
class Block(nn.Module):
    """Self-attention, with `cross` cross-attention, and a feed-forward layer, each with a norm and a way around."""

    def __init__(self, shape: BlockShape, *, cross: bool = False) -> None:
        super().__init__()
        self.norm_first = shape.norm_first
        self.dropout = shape.dropout
        self.attention = SelfAttention(shape)
        self.attention_norm = make_norm(shape)
        self.cross = CrossAttention(shape) if cross else None
        self.cross_norm = make_norm(shape) if cross else None
        self.feedforward = FeedForward(shape)
        self.feedforward_norm = make_norm(shape)

    def forward(
        self,
        x: Tensor | Residual,
        look: AttentionView,
        past: Past | None = None,
        source: Source | SourceStates | None = None,
    ) -> Any:
        """(B, T, D) to (B, T, D); a `Residual` stays one."""
        x = self._around("attention", self.attention, self.attention_norm, x, look, past)
        if self.cross is not None and self.cross_norm is not None:
            x = self._around("cross", self.cross, self.cross_norm, x, source)
        return self._around("feedforward", self.feedforward, self.feedforward_norm, x)

    def _around(self, name: str, sublayer: nn.Module, norm: nn.Module, x: Any, *others: Any) -> Any:
        joined = x.normed(norm, product_dtype(x.stream)) if isinstance(x, Residual) else None
        with scope(name):
            y = sublayer(joined[1] if joined is not None else norm(x) if self.norm_first else x, *others)
        if joined is not None and y.is_cpu:
            return Residual(joined[0], y, self.dropout)
        if self.training and not self.norm_first and residual.takes(x, y, norm):
            return residual.residual_norm(x, y, norm, x.dtype, self.dropout)[1]  # type: ignore[arg-type]
        if self.training:
            y = dropout(y, self.dropout)
        if joined is not None:
            return Residual(joined[0], y)
        return x + y if self.norm_first else norm(x + y)


@register("stack")
class Stack(nn.Module):
    """Blocks one after the other: an encoder or, with `causal`, a decoder.

    `name` is what its captured tensors are called after. With `window` a token sees only those less than
    so far away; a list has one for each layer. In a text of a few windows that costs what is seen (`nn/spans/`).
    Hooks at the stack are called for whole texts and for new tokens.

    With `recompute` a block's inner results are forgotten in training and computed again for its gradients, which
    takes a third more time and far less memory. Without `final_norm` a pre-norm stack leaves what its last block
    does. With `looks_at_states` a CPU keeps no keys and values of a memory while tokens are written, but the memory
    itself: worth it where that is long, heads are few, and texts are short. `most_documents` is how many texts a
    batch in training has at most, where several share a row and somebody knows: then some kernels need no mask
    (`expect_documents`).
    """

    def __init__(
        self,
        name: str,
        layers: int,
        shape: BlockShape,
        *,
        causal: bool,
        cross: bool = False,
        window: int | Sequence[int | None] | None = None,
        rotary: Rotary | None = None,
        final_norm: bool = True,
    ) -> None:
        super().__init__()
        self.name = name
        self.recompute = False
        self.looks_at_states = False
        self.most_documents: int | None = None
        self.shape = shape
        self.causal = causal
        self.windows = [window] * layers if window is None or isinstance(window, int) else list(window)
        self.rotary = rotary
        self.layers = nn.ModuleList(Block(shape, cross=cross) for _ in range(layers))
        self.norm = make_norm(shape) if shape.norm_first and final_norm else None
        self.start_small()

    @torch.no_grad()
    def start_small(self) -> None:
        """Let all that the sublayers add start out no larger than what one would (as GPT-2 does).

        Post-norm blocks need it most: with Xavier's start alone their decoder may never learn to look at the source.
        """
        ends = [module.output for module in self.modules() if isinstance(module, MultiHead)]
        ends += [module.outer for module in self.modules() if isinstance(module, FeedForward)]
        for end in ends:
            end.weight.mul_(len(ends) ** -0.5)

    def train(self, mode: bool = True) -> Stack:
        if mode:
            load_training_kernels()
        decoder.forget(self)
        encoder.forget(self)
        return super().train(mode)

    def forward(
        self,
        x: Tensor,
        lengths: Tensor | None = None,
        memory: Memory | None = None,
        *,
        documents: Tensor | None = None,
        every: list[Tensor] | None = None,
        opening: CacheSlice | None = None,
    ) -> Tensor:
        """Whole sequences (B, T, D), padded on the right; padding changes nothing before it. Or what `extend` has.

        A causal stack needs no `lengths`: what follows a token cannot change it. Where several texts share a row,
        `documents` (B, T) says which token is of which; each is read as if it stood alone. What each block leaves is
        added to `every`, where that is given; the last one with the norm that follows it.
        """
        if opening is not None:
            rotation = None if self.rotary is None else self.rotary(opening.at)
            looks = [view._replace(rotation=rotation) for view in opening.views]
            return self._run(x, looks, opening.pasts, opening.sources)
        if memory is None and documents is None and every is None:
            whole = encoder.encoder_pass(self, x)
            if whole is not None:
                return whole(x, lengths)
        packing = None if self.causal else self._packing(x, lengths)
        at = slice(0, x.shape[1]) if documents is None else places_in(documents)
        rotation = None if self.rotary is None else self.rotary(at)
        views = {window: self._view(x, lengths, documents, window) for window in set(self.windows)}
        looks = [views[window]._replace(rotation=rotation, packing=packing) for window in self.windows]
        sources = None if memory is None else self.sources(memory)
        if packing is None:
            return self._run(x, looks, sources=sources, every=every)
        last = self._run(packing.pack(x), looks, sources=sources, every=every)
        if every is not None:
            every[-len(looks) :] = [packing.unpack(state) for state in every[-len(looks) :]]
        return packing.unpack(last)

    def _view(self, x: Tensor, lengths: Tensor | None, documents: Tensor | None, window: int | None) -> AttentionView:
        """What tokens see: a mask where one is needed, and whether PyTorch's causal one will do."""
        if window is not None and window >= x.shape[1]:
            window = None  # it reaches everything
        lengths = None if self.causal else lengths
        if (window is not None or documents is not None) and self._unmasked:
            most = self.most_documents if self.training else None
            dropout = self.shape.dropout_attention if self.training else 0.0
            spans = spans_of(
                x, self.shape.head_size, self.causal, window, documents, most, dropout=dropout, lengths=lengths
            )
            if spans is not None:
                return AttentionView(spans=spans)
        places = torch.arange(x.shape[1], device=x.device)
        limits = []
        if lengths is not None:
            limits.append((places < lengths[:, None])[:, None, None])  # (B, 1, 1, T)
        if documents is not None:
            limits.append((documents[:, :, None] == documents[:, None, :]).unsqueeze(1))  # (B, 1, T, T)
        if window is not None or (self.causal and limits):
            limits.append(visible(places, places, causal=self.causal, window=window)[None, None])  # (1, 1, T, T)
        if not limits:
            return AttentionView(causal=self.causal)
        return AttentionView(additive(reduce(torch.logical_and, limits), product_dtype(x)))

    def _packing(self, x: Tensor, lengths: Tensor | None) -> Packing | None:
        """How to skip the padding of (B, T, D) where that is worth it: in evaluation on a CPU.

        A GPU would have to tell the host how much there is; captured tensors have their padding; and what is not ours
        may not expect to read several texts as one.
        """
        if lengths is None or not x.is_cpu or torch.is_grad_enabled() or capturing() or describe(self) is None:
            return None
        rows, length, _ = x.shape
        return Packing.of(lengths, length) if int(lengths.sum()) < PADDED * rows * length else None

    @property
    def _unmasked(self) -> bool:
        """Whether attention may go without a mask: it is ours, nobody looks inside, it is not to be written out."""
        return not capturing() and (spec := describe(self)) is not None and spec.fused

    def sources(self, memory: Memory) -> list[Source]:
        """Every layer's keys and values of a memory."""
        states, mask = memory.states, memory.mask
        if mask is not None:
            mask = additive(mask[:, None, None], product_dtype(states))  # (B, 1, 1, S)
        packing = self._packing(states, memory.lengths)
        if packing is not None:
            states = packing.pack(states)
        return [block.cross.source(states, mask, packing) for block in self.layers]  # type: ignore[union-attr, operator]

    def _looked_at(self, memory: Memory) -> Sequence[Source] | Sequence[SourceStates]:
        """What is kept of a memory while tokens are written."""
        adapted = any(block.cross.key_value.low_rank is not None for block in self.layers)  # type: ignore[union-attr]
        if not self.looks_at_states or adapted or not memory.states.is_cpu or describe(self) is None:
            return self.sources(memory)
        mask = memory.mask
        if mask is not None:
            mask = additive(mask[:, None, None], memory.states.dtype)
        return [SourceStates(memory.states, mask)] * len(self.layers)

    def start(
        self, rows: int, capacity: int, *, limit: int | None = None, memory: Memory | None = None
    ) -> KeyValueCache:
        """An empty cache, for `extend`."""
        weight = next(self.parameters())
        return KeyValueCache(
            len(self.layers),
            rows,
            self.shape.kv_heads or self.shape.heads,
            capacity,
            self.shape.head_size,
            like=weight.new_empty(0, dtype=product_dtype(weight)),
            limit=limit,
            windows=self.windows,
            sources=None if memory is None else self._looked_at(memory),
        )

    def extend(self, x: Tensor, opening: CacheSlice) -> Tensor:
        """New tokens (B, T, D) after those in a cache, which has been opened for them: by `forward`."""
        made: Tensor = self(x, opening=opening)
        return made

    def _run(
        self,
        x: Tensor,
        looks: Sequence[AttentionView],
        pasts: Sequence[Past] | None = None,
        sources: Sequence[Source] | Sequence[SourceStates] | None = None,
        every: list[Tensor] | None = None,
    ) -> Tensor:
        with scope(self.name):
            capture("embedded", x, "row position unit")
        if every is None and self._joins(x):
            return self._run_joined(x, looks, sources)
        for index, block in enumerate(self.layers):
            past = None if pasts is None else pasts[index]
            source = None if sources is None else sources[index]
            with scope(f"{self.name}.{index}"):
                if self.recompute and self.training and torch.is_grad_enabled():
                    x = checkpoint(block, x, looks[index], past, source, use_reentrant=False)
                else:
                    x = block(x, looks[index], past, source)
                capture("hidden", x, "row position unit")
            if every is not None:
                every.append(x)
        last: Tensor = x if self.norm is None else self.norm(x)
        if every is not None:
            every[-1] = last
        return last

    def _joins(self, x: Tensor) -> bool:
        """Whether sums and the norms behind them are one kernel: in training, where there is one and nobody looks."""
        on_gpu = training_kernels(x)
        fit = on_gpu or (kernels.takes(x) and product_dtype(x) in kernels.DTYPES)
        if not (self.training and fit) or self.norm is None or self.recompute or capturing():
            return False
        if on_gpu:
            from legato.nn.kernels.cuda.residual_norm import can_join
        else:
            from legato.nn.kernels.residual import can_join

        spec = describe(self)
        return spec is not None and all(can_join(norm) for norm in spec.norms)

    def _run_joined(
        self,
        x: Tensor,
        looks: Sequence[AttentionView],
        sources: Sequence[Source] | Sequence[SourceStates] | None = None,
    ) -> Tensor:
        stream = Residual(x)
        for index, block in enumerate(self.layers):
            stream = block(stream, looks[index], None, None if sources is None else sources[index])
        assert self.norm is not None
        return stream.normed(self.norm)[1]


@torch.no_grad()
def start_normal(model: nn.Module, std: float) -> None:
    """Start as GPT-2 does: every matrix and table normal with this spread, what ends a sublayer smaller."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        if isinstance(module, TokenEmbedding | Readout):
            clear_padding(module)
    for module in model.modules():
        if isinstance(module, Stack):
            module.start_small()


def expect_documents(model: nn.Module, most: int | None) -> None:
    """Tell the stacks inside how many texts the next batches have at most, where several share a row."""
    for module in model.modules():
        if isinstance(module, Stack):
            module.most_documents = most


def encodes_fast(model: nn.Module, dtype: torch.dtype) -> bool:
    """Whether all stacks inside are encoders that the CPU's kernels have in that dtype, on this machine."""
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    return bool(stacks) and all(encoder.has_pass(stack, dtype) for stack in stacks)


PADDED = 0.95  # share of tokens in a batch up to which skipping the padding costs less than it saves


def places_in(documents: Tensor) -> Tensor:
    """Each token's place in its own text (B, T), from 0, where several share a row.

    >>> places_in(torch.tensor([[3, 3, 4, 4, 4, 7]]))
    tensor([[0, 1, 0, 1, 2, 0]])
    """
    columns = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return columns - torch.where(begins, columns, 0).cummax(1).values
