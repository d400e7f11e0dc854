"""Writing beyond a model's context: when it is full, the model goes on from what it wrote last.

A model with learned or rotary positions takes `max_length` tokens and no more. `Sliding` stands before such a model
and passes everything on; when a row is full its last half goes on in a new state, which costs a prefill once every
`max_length` / 2 tokens for each length that rows have. What came before is forgotten. A row slides when it is full
itself, not when another one is: so what it becomes does not depend on what stands beside it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from legato.data.batching.batch import Inputs
from legato.nn.state import Generates, State


class Sliding:
    """A model whose context slides. It generates as any model does (`nn/state.py`)."""

    def __init__(self, model: Generates, max_length: int, device: torch.device) -> None:
        self.model, self.max_length, self.device = model, max_length, device
        self.kept = max(max_length // 2, 1)  # tokens that a full context goes on from

    @property
    def vocabulary(self) -> int:
        return self.model.vocabulary

    def start(self, rows: int, capacity: int, memory: Any = None) -> SlidingState:
        return SlidingState(self.model.start(rows, min(capacity, self.max_length), memory), capacity, memory)

    def prefill(self, inputs: Inputs, state: SlidingState) -> Tensor:
        """Of longer prompts the last tokens count."""
        tokens, lengths = inputs.token_ids.tolist(), inputs.lengths
        ends = [len(row) for row in tokens] if lengths is None else lengths.tolist()
        state.rows = [row[:end][-self.max_length :] for row, end in zip(tokens, ends, strict=True)]
        return self._take_in(state)

    def step(self, tokens: Tensor, state: SlidingState) -> Tensor:
        for row, token in zip(state.rows, tokens.tolist(), strict=True):
            row.append(token)
        if state.inner.length < self.max_length:
            return self.model.step(tokens, state.inner)
        # The columns are as many as the longest row has tokens, or had that has left the batch.
        state.rows = [row[-self.kept :] if len(row) > self.max_length else row for row in state.rows]
        state.inner = self.model.start(len(state.rows), min(state.capacity, self.max_length), state.memory)
        return self._take_in(state)

    def _take_in(self, state: SlidingState) -> Tensor:
        return self.model.prefill(Inputs.of(state.rows, self.device), state.inner)


class SlidingState:
    """The model's own state, and the tokens that it holds."""

    def __init__(self, inner: State, capacity: int, memory: Any) -> None:
        self.inner, self.capacity, self.memory = inner, capacity, memory
        self.rows: list[list[int]] = []

    @property
    def length(self) -> int:
        return self.inner.length

    @length.setter
    def length(self, length: int) -> None:
        self.inner.length = length

    @property
    def lengths(self) -> Tensor:
        """Those that the context still holds."""
        return self.inner.lengths

    def join(self, other: SlidingState) -> None:
        if self.memory is not None:
            raise ValueError("rows whose context slides join where no source is read")
        self.inner.join(other.inner)
        self.rows, self.capacity = self.rows + other.rows, max(self.capacity, other.capacity)

    def reorder(self, rows: Tensor) -> None:
        self.inner.reorder(rows)
        self.rows = [list(self.rows[row]) for row in rows.tolist()]

    def kept(self, row: int, tokens: int) -> Tensor | None:
        return None

    def rewind(self, length: int) -> None:
        gone = self.inner.length - length
        self.inner.rewind(length)
        self.rows = [row[: len(row) - gone] for row in self.rows]
