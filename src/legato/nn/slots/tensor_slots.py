"""States that do not grow: those of recurrent networks, and the words of a window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from legato.nn.slots.slots import spread

Parts = list[Tensor]  # rows come first


class TensorSlots:
    """Tensors with a row for each hypothesis, and others with one for each group, which look at the same source."""

    def __init__(
        self,
        groups: int,
        width: int,
        capacity: int,
        parts_of: Callable[[Any], Parts],
        shared_of: Callable[[Any], Parts],
        step: Callable[[Tensor, Parts, Parts], tuple[Tensor, Parts]],
        like: Any,
        source_length: int = 0,
    ) -> None:
        """`parts_of` and `shared_of` give the tensors of a state, such as `like`; of what is shared, the second
        dimension is as long as a source is, and becomes `source_length`. `step` makes logits and the next parts."""
        self.groups, self.width, self.capacity = groups, width, capacity
        self._parts_of, self._shared_of, self._step = parts_of, shared_of, step
        rows = groups * width
        self.parts = [part.new_zeros(rows, *part.shape[1:]) for part in parts_of(like)]
        self.shared = [part.new_zeros(groups, source_length, *part.shape[2:]) for part in shared_of(like)]

    def put(self, places: Tensor, state: Any) -> None:
        device = places.device
        rows = (places[:, None] * self.width + torch.arange(self.width, device=device)).flatten()
        for part, given in zip(self.parts, self._parts_of(state), strict=True):
            part[rows] = given[spread(len(given), len(rows), device)]
        for part, given in zip(self.shared, self._shared_of(state), strict=True):
            part[places] = 0
            part[places, : given.shape[1]] = given[spread(len(given), len(places), device)]

    def step(self, tokens: Tensor, parents: Tensor | None) -> Tensor:
        parts = self.parts if parents is None else [part.index_select(0, parents) for part in self.parts]
        logits, after = self._step(tokens, parts, self.shared)
        for part, new in zip(self.parts, after, strict=True):
            part.copy_(new)
        return logits

    @property
    def changing(self) -> Parts:
        return self.parts

    def adopt(self, other: TensorSlots) -> None:
        for part, kept in zip(self.parts, other.parts, strict=True):
            part.copy_(kept)
        for part, kept in zip(self.shared, other.shared, strict=True):
            part[:, : kept.shape[1]] = kept

    def reset(self) -> None:
        for part in (*self.parts, *self.shared):
            part.zero_()


def flat(layers: Sequence[Sequence[Tensor]]) -> Parts:
    """The tensors of all layers' states, one after the other."""
    return [part for layer in layers for part in layer]
