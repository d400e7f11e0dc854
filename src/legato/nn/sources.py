"""What a decoder looks at of its encoder's states, for all layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from legato.nn.attention import additive
from legato.nn.multihead import Source, SourceStates
from legato.nn.state import SharedMemory


class Sources:
    """Keys and values of each source in every layer, or the states that they would be made of, once for all."""

    def __init__(self, layers: Sequence[Source] | Sequence[SourceStates]) -> None:
        self.count, mask = len(layers), layers[0].mask
        inside = None if mask is None else mask[:, 0, 0] == 0
        self.layers: list[Any] = list(layers)
        if isinstance(layers[0], SourceStates):
            self._memory = SharedMemory([layers[0].states], inside)
        else:
            first = layers[0].key
            store = first.new_empty(len(layers), 2, *first.shape)  # (L, 2, G, H, S, K)
            for kept, layer in zip(store, self.layers, strict=True):
                kept[0].copy_(layer.key)
                kept[1].copy_(layer.value)
            self._memory = SharedMemory([store], inside, dim=2)
        self._list()

    @property
    def store(self) -> Tensor:
        return self._memory.tensors[0]

    @property
    def length(self) -> int:
        return self._memory.length

    @property
    def token_counts(self) -> Tensor:
        """The tokens of each source, (G,)."""
        inside = self._memory.inside
        count, device = self._memory.sources, self.store.device
        return torch.full((count,), self.length, device=device) if inside is None else inside.sum(1)

    def _list(self) -> None:
        (store,), inside = self._memory.tensors, self._memory.inside
        self.lengths: Tensor | None = None  # (G,) int32, where keys and values are kept on a CPU
        if store.is_cpu and not isinstance(self.layers[0], SourceStates):
            self.lengths = torch.full((store.shape[2],), store.shape[4], dtype=torch.int32)
            if inside is not None:
                self.lengths = inside.sum(1, dtype=torch.int32)  # tokens come before padding
        mask = None if inside is None else additive(inside[:, None, None], store.dtype)
        if isinstance(self.layers[0], SourceStates):
            self.layers = [SourceStates(store, mask)] * self.count
        else:
            self.layers = [Source(layer[0], layer[1], mask) for layer in store.unbind(0)]

    def reorder(self, rows: list[int]) -> None:
        if self._memory.reorder(rows):
            self._list()

    def join(self, other: Sources) -> None:
        self._memory.join(other._memory)
        self._list()
