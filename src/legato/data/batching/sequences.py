"""Separate sequences of different lengths, each a prompt whose loss is not counted and a continuation whose is."""

from __future__ import annotations

import numpy as np
import torch

from legato.data.batching.batch import IGNORE, Batch, Inputs
from legato.data.batching.buckets import Buckets
from legato.errors import DataError

Prompted = tuple[list[int], int]
"""The ids of a sequence, and how many of them are prompt."""


class SequenceBatches:
    """Sequences of like length together."""

    def __init__(self, sequences: list[Prompted], *, batch_tokens: int, seed: int, name: str = "the data") -> None:
        if not sequences:
            raise DataError(f"{name} holds no rows")
        self.sequences = sequences
        self.tokens_per_step = batch_tokens
        lengths = np.array([len(ids) - 1 for ids, _ in sequences])
        if lengths.min() < 1:
            raise DataError(f"{name}, row {int(lengths.argmin()) + 1}: a sequence needs at least two tokens")
        if lengths.max() > batch_tokens:
            raise DataError(
                f"{name} has a row of {lengths.max():,} tokens, "
                f"more than train.batch_tokens={batch_tokens}; raise that"
            )
        self._buckets = Buckets(lengths, batch_tokens=batch_tokens, seed=seed, salt="rows")
        self.steps_per_epoch = self._buckets.steps_per_epoch

    def at(self, step: int) -> Batch:
        return collate([self.sequences[row] for row in self._buckets.at(step)[1]])


def collate(sequences: list[Prompted]) -> Batch:
    """Sequences padded on the right into one batch; targets are the ids moved by one."""
    lengths = [len(ids) - 1 for ids, _ in sequences]
    width = max(lengths)
    inputs = np.zeros((len(sequences), width), dtype=np.int64)
    targets = np.full((len(sequences), width), IGNORE, dtype=np.int64)
    for row, (ids, prompt) in enumerate(sequences):
        inputs[row, : lengths[row]] = ids[:-1]
        first = max(prompt - 1, 0)
        targets[row, first : lengths[row]] = ids[first + 1 :]
    full = min(lengths) == width
    return Batch(
        Inputs(torch.from_numpy(inputs), lengths=None if full else torch.tensor(lengths)),
        torch.from_numpy(targets),
        tokens=int((targets != IGNORE).sum()),
        read=sum(lengths),
    )
