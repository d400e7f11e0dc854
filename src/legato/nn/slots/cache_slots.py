"""A key/value cache of fixed shapes: every row begins in the first column, and has a length that the device knows.

Notable here:

- a step writes a row's keys and values in the column of its own length, and looks at those before;
- beams copy nothing: a table says in which row of the batch each column of a hypothesis was written. All rows of a
  group are equally long, so a place that one of them wrote is never written again while the group lives;
- what lies in a column behind a row's length is nobody's, whatever it is.

On CUDA the step is a handful of kernels a layer (`nn/kernels/cuda`); here is its plain twin, of the stack's modules.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from legato.nn.attention import additive
from legato.nn.kv_cache import CacheSlice, KeyValueCache
from legato.nn.multihead import AttentionView, Source
from legato.nn.slots.slots import spread


class SlotPast:
    """A layer's share of the cache, as self-attention sees it (`multihead.Past`)."""

    def __init__(self, store: Tensor, slots: CacheSlots) -> None:
        self.store, self.slots = store, slots  # (2, R, H, capacity, K)

    def write(self, new: Tensor) -> tuple[Tensor, Tensor]:
        """Take in keys and values (2, R, H, 1, K) of one token a row; all there are, (R, H, capacity, K) each."""
        slots = self.slots
        self.store[:, slots.rows, :, slots.lengths] = new[:, :, :, 0].transpose(0, 1).to(self.store.dtype)
        if slots.ancestors is None:
            key, value = self.store.unbind()
            return key, value
        key, value = self.store[:, slots.ancestors, :, slots.columns].unbind(2)  # (R, S, H, K) each
        return key.transpose(1, 2), value.transpose(1, 2)


class CacheSlots:
    """`Slots` of a model whose stack `writer` keeps keys and values."""

    def __init__(
        self, model: Any, groups: int, width: int, capacity: int, like: KeyValueCache, source: int = 0
    ) -> None:
        """`like` is a cache of the same model; its sources, if it has any, become `source` tokens long."""
        self.model, self.stack = model, model.writer
        self.groups, self.width, self.capacity = groups, width, capacity
        store = like.store
        rows, device = groups * width, store.device
        layers, two, _, heads, _, head_width = store.shape
        self.store = store.new_zeros(layers, two, rows, heads, capacity, head_width)
        self.lengths = torch.zeros(rows, dtype=torch.long, device=device)
        self._last = min(capacity, model.max_length or capacity) - 1
        self.rows = torch.arange(rows, device=device)
        self.columns = torch.arange(capacity, device=device)
        self.ancestors = self.rows[:, None].repeat(1, capacity) if width > 1 else None  # (R, capacity)
        self.sources: Tensor | None = None  # (L, 2, G, H, S, K)
        self.source_lengths: Tensor | None = None  # (G,)
        if like.sources is not None:
            kept = like.sources.store
            self.sources = kept.new_zeros(layers, two, groups, kept.shape[3], source, kept.shape[5])
            self.source_lengths = torch.ones(groups, dtype=torch.long, device=device)
        self.kernel: Any = None  # what takes a step on CUDA (kernels/cuda/step.py)

    def put(self, places: Tensor, state: KeyValueCache) -> None:
        state.close_holes()
        length, given = state.length, len(state.lengths)
        rows = (places[:, None] * self.width + torch.arange(self.width, device=places.device)).flatten()
        # A row's tokens end in the last column: they begin here in the first.
        starts = length - state.lengths  # (B,)
        source = spread(given, len(rows), places.device)
        starts = starts[source]
        columns = (starts[:, None] + self.columns[:length]).clamp(max=length - 1)  # (N, T)
        picked = state.store[:, :, source[:, None], :, columns]  # (N, T, L, 2, H, K)
        self.store[:, :, rows, :, :length] = picked.permute(2, 3, 0, 4, 1, 5)
        self.lengths[rows] = length - starts
        if self.ancestors is not None:
            self.ancestors[rows] = rows[:, None]
        if self.sources is not None and self.source_lengths is not None and state.sources is not None:
            kept, lengths = state.sources.store, state.sources.token_counts
            each = spread(kept.shape[2], len(places), places.device)
            kept, lengths = kept[:, :, each], lengths[each]
            self.sources[:, :, places, :, : kept.shape[4]] = kept
            self.source_lengths[places] = lengths

    def step(self, tokens: Tensor, parents: Tensor | None) -> Tensor:
        if self.ancestors is not None and parents is not None:
            self.ancestors.copy_(self.ancestors.index_select(0, parents))
        if self.ancestors is not None:
            self.ancestors.scatter_(1, self.lengths[:, None], self.rows[:, None])
        logits = self._plain(tokens) if self.kernel is None else self.kernel(tokens, self)
        # A place that nobody uses stays within the cache, and within the positions that the model has.
        self.lengths.add_(1).clamp_(max=self._last)
        return logits

    def _plain(self, tokens: Tensor) -> Tensor:
        at = self.lengths[:, None]  # (R, 1)
        x = self.model.embed_tokens(tokens[:, None], at)
        behind = self.columns - at  # (R, capacity), 0 is the new token's
        views = {}
        for window in set(self.stack.windows):
            seen = behind <= 0 if window is None else (behind <= 0) & (behind > -window)
            views[window] = AttentionView(additive(seen[:, None, None], self.store.dtype))
        sources = None
        if self.sources is not None and self.source_lengths is not None:
            inside = torch.arange(self.sources.shape[4], device=tokens.device) < self.source_lengths[:, None]
            mask = additive(inside[:, None, None], self.sources.dtype)
            sources = [Source(layer[0], layer[1], mask) for layer in self.sources]
        pasts: Any = [SlotPast(layer, self) for layer in self.store]
        opening = CacheSlice(at, [views[window] for window in self.stack.windows], pasts, sources)
        logits: Tensor = self.model.readout(self.stack.extend(x, opening)[:, -1])
        return logits

    @property
    def changing(self) -> list[Tensor]:
        return [self.lengths] if self.ancestors is None else [self.lengths, self.ancestors]

    def adopt(self, other: CacheSlots) -> None:
        self.store[..., : other.capacity, :] = other.store
        self.lengths.copy_(other.lengths)
        if self.ancestors is not None and other.ancestors is not None:
            self.ancestors[:, : other.capacity] = other.ancestors
        if self.sources is not None and other.sources is not None:
            self.sources[..., : other.sources.shape[4], :] = other.sources
        if self.source_lengths is not None and other.source_lengths is not None:
            self.source_lengths.copy_(other.source_lengths)

    def reset(self) -> None:
        self.lengths.zero_()
        self.store.zero_()  # what lies in memory may be NaN, which no mask hides
        if self.ancestors is not None:
            self.ancestors.copy_(self.rows[:, None].expand_as(self.ancestors))
