"""Rare words that are sometimes hidden, so that a model learns what to make of words that it does not know.

A vocabulary of all training words has none that are unknown, and `<unk>` would stay as it was drawn. So words that
the training text has only once are each `<unk>` with some probability, anew every time (Lample et al. 2016).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from legato.data.batching.batch import Batch
from legato.data.batching.batches import Batches, mix_seed
from legato.data.batching.examples import Example


@dataclass
class RareWords:
    """Batches in which rare tokens are sometimes unknown; still a function of the step alone."""

    batches: Batches
    rare: Tensor  # (V,), True for those tokens
    unknown: int
    share: float
    seed: int

    def __post_init__(self) -> None:
        self.steps_per_epoch = self.batches.steps_per_epoch
        self.tokens_per_step = self.batches.tokens_per_step

    def at(self, step: int) -> Batch:
        batch = self.batches.at(step)
        draw = np.random.default_rng(mix_seed(self.seed, "rare words", step))
        ids = batch.inputs.token_ids
        drawn = torch.from_numpy(draw.random(tuple(ids.shape)) < self.share)
        return replace(batch, inputs=replace(batch.inputs, ids=ids.masked_fill(self.rare[ids] & drawn, self.unknown)))


def hide_rare(
    batches: Batches,
    rows: Sequence[Example],
    vocabulary: int,
    unknown: int,
    *,
    share: float,
    seed: int,
    most: int = 1,
) -> RareWords:
    """`batches` of `rows` with tokens that these have at most `most` times hidden now and then."""
    counts = Counter(index for row in rows for index in row.ids)
    rare = torch.zeros(vocabulary, dtype=torch.bool)
    rare[[index for index, count in counts.items() if count <= most and index != unknown]] = True
    return RareWords(batches, rare, unknown, share, seed)
