"""Groups of texts that belong together, two or three a row, as vectors of texts learn from them.

They go to the model side by side, so a batch has one more dimension than others: `ids` (B, K, T) and `lengths` (B, K)
for the K texts of each row. Rows are drawn at random, not by length: the texts of a batch are each other's negatives,
and among texts of one length those would not be what they are later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from legato.data.batching.batch import Batch, Inputs, map_tensors
from legato.data.batching.batches import mix_seed
from legato.data.batching.buckets import BatchShape
from legato.data.batching.examples import Example, collate_examples
from legato.errors import DataError


class GroupBatches:
    """Groups of texts (two or three a row) drawn at random, as many rows in each batch; a new order each epoch.

    What is left over at an epoch's end is left out, other rows each time.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Example]],
        shape: BatchShape,
        scores: Sequence[float] | None = None,
        *,
        pad: int = 0,
    ) -> None:
        if len(groups) < 2:
            raise DataError(
                f"{shape.name} holds {len(groups)} pairs; give two at least, so that one is not like the other"
            )
        self.groups, self.shape, self.scores, self.pad = groups, shape, scores, pad
        lengths = [sum(len(row.ids) for row in group) for group in groups]
        self.rows = min(shape.batch_rows or max(2, shape.batch_tokens * len(groups) // sum(lengths)), len(groups))
        self.steps_per_epoch = len(groups) // self.rows
        self.tokens_per_step = int(self.rows * np.mean(lengths))
        self._planned = -1

    def at(self, step: int) -> Batch:
        epoch, index = divmod(step, self.steps_per_epoch)
        if epoch != self._planned:
            draw = np.random.default_rng(mix_seed(self.shape.seed, "pairs", epoch))
            self._order = draw.permutation(len(self.groups))
            self._planned = epoch
        chosen = self._order[index * self.rows : (index + 1) * self.rows]
        scores = None if self.scores is None else [self.scores[i] for i in chosen]
        batch = collate_groups([self.groups[i] for i in chosen], scores, pad=self.pad, pad_to=self.shape.pad_to)
        return replace(batch, fixed_shape=self.shape.fixed_shape)


def collate_groups(
    groups: Sequence[Sequence[Example]], scores: Sequence[float] | None = None, *, pad: int = 0, pad_to: int = 1
) -> Batch:
    """Rows of K texts each as one batch: ids (B, K, T), lengths (B, K), labels (B,) where there are scores."""
    size = len(groups[0])
    flat = collate_examples([row for group in groups for row in group], pad=pad, pad_to=pad_to)
    shape = (len(groups), size)
    inputs = flat.inputs
    if inputs.lengths is None:
        inputs = replace(inputs, lengths=torch.full((flat.rows,), inputs.token_ids.shape[1]))
    return Batch(
        map_tensors(inputs, lambda name, tensor: tensor.view(*shape, *tensor.shape[1:])),
        labels=None if scores is None else torch.tensor(scores, dtype=torch.float32),
        tokens=len(groups),
        read=flat.read,
    )


def flattened(inputs: Inputs) -> Inputs:
    """The texts of groups, one a row: (B · K, T)."""
    return map_tensors(inputs, lambda name, tensor: tensor.flatten(0, 1))
