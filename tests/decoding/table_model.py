"""A model that reads its next-token probabilities from a table, to know what a search should find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from legato.data.batching.batch import Inputs

History = tuple[int, ...]


class TableState:
    """Remembers every row's tokens, and what it was asked to do."""

    def __init__(self, rows: int, capacity: int) -> None:
        self.rows: list[History] = [()] * rows
        self.capacity = capacity
        self.reorders: list[list[int]] = []

    @property
    def length(self) -> int:
        return max(map(len, self.rows))

    def reorder(self, rows: Tensor) -> None:
        self.reorders.append(rows.tolist())
        self.rows = [self.rows[row] for row in rows.tolist()]

    def rewind(self, length: int) -> None:
        self.rows = [row[:length] for row in self.rows]


class TableModel:
    """Next-token probabilities as a function of the whole history, prompt included."""

    device = torch.device("cpu")
    folder = None

    def __init__(self, vocabulary: int, probabilities: Callable[[History], Sequence[float]]) -> None:
        self.vocabulary = vocabulary
        self.probabilities = probabilities
        self.batches: list[int] = []  # rows at each step

    def start(self, rows: int, capacity: int, memory: object = None) -> TableState:
        self.state = TableState(rows, capacity)
        return self.state

    def prefill(self, inputs: Inputs, state: TableState) -> Tensor:
        tokens = inputs.token_ids
        lengths = [tokens.shape[1]] * len(tokens) if inputs.lengths is None else inputs.lengths.tolist()
        state.rows = [tuple(row[:length]) for row, length in zip(tokens.tolist(), lengths, strict=True)]
        return self.logits(state)

    def step(self, tokens: Tensor, state: TableState) -> Tensor:
        assert len(tokens) == len(state.rows)
        self.batches.append(len(tokens))
        state.rows = [(*row, token) for row, token in zip(state.rows, tokens.tolist(), strict=True)]
        assert state.length <= state.capacity
        return self.logits(state)

    def logits(self, state: TableState) -> Tensor:
        return torch.tensor([list(self.probabilities(row)) for row in state.rows]).log()  # (B, V)


def from_table(vocabulary: int, table: dict[History, Sequence[float]], otherwise: Sequence[float]) -> TableModel:
    """Probabilities by what was generated after a prompt of one token."""
    return TableModel(vocabulary, lambda history: table.get(history[1:], otherwise))


def from_seed(seed: int, vocabulary: int = 5, order: int = 3, sharpness: float = 1.0) -> TableModel:
    """Random probabilities that depend on the last `order` tokens."""

    @cache
    def row(recent: History) -> list[float]:
        generator = np.random.default_rng([seed, len(recent), *recent])
        weights = np.exp(2 * sharpness * generator.standard_normal(vocabulary))
        return list(weights / weights.sum())

    return TableModel(vocabulary, lambda history: row(history[-order:]))


def logprobs_of(model: TableModel, prompt: Sequence[int], tokens: Sequence[int]) -> list[float]:
    """The log-probability of each token in turn, worked out without any search."""
    history, logprobs = tuple(prompt), []
    for token in tokens:
        logprobs.append(float(np.log(model.probabilities(history)[token])))
        history = (*history, token)
    return logprobs
