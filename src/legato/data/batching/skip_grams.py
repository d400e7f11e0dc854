"""Words and the words near them, as word2vec learns from them (Mikolov et al. 2013).

- A frequent word is left out with the chance 1 - (√(f / t) + 1) · t / f, where f is its share of the text and t is
  `subsample`; what is left closes ranks, so that windows reach further.
- How far a window reaches is drawn for each word, from 1 to `window`: near words count more.
- Negatives are drawn in proportion to count^0.75.
- Words that are not in the vocabulary are left out; no window crosses the end of a line or document.

Like every batcher, `SkipGrams` answers `at(step)` by the data, the seed and the step alone (see `batches.py`).
Every batch has one shape, and is made without a loop over words.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from legato.data.batching.batch import IGNORE, Batch, Inputs
from legato.data.batching.batches import Array, mix_seed
from legato.errors import DataError

POWER = 0.75  # of the counts that negatives are drawn by
MULTIPLE = 64  # of words in a batch, where there are so many: that many share negatives


class SkipGrams:
    """Batches of `rows` words, each with the words near it, and negatives for all."""

    def __init__(
        self,
        ids: Array,
        counts: Array,
        *,
        end: int,
        left_out: Iterable[int] = (),
        rows: int,
        window: int,
        subsample: float,
        seed: int,
        means: bool = False,
        name: str = "the text",
    ) -> None:
        """`counts` (V,) are those of the training text; `end` parts lines. With `means` (CBOW) a row counts once."""
        self.ids = ids
        self.window, self.seed, self.means = window, seed, means
        chance = chances(counts, subsample)
        chance[[end, *left_out]] = 0
        self._chance = chance
        self._line = np.cumsum(ids == end, dtype=np.int32)
        self._noise = noise(counts, [end, *left_out])
        expected = int(chance[ids].sum(dtype=np.float64))
        if expected < 2:
            raise DataError(f"{name} holds no two known words to learn from; give more text, or lower min_count")
        self.rows = min(rows, expected)
        if self.rows > MULTIPLE:
            self.rows -= self.rows % MULTIPLE
        self.steps_per_epoch = expected // self.rows
        self.tokens_per_step = self.rows
        self._offsets = np.array([offset for offset in range(-window, window + 1) if offset])
        self._planned = -1

    def at(self, step: int) -> Batch:
        epoch, index = divmod(step, self.steps_per_epoch)
        if epoch != self._planned:
            self._plan(epoch)
        turn = np.arange(index * self.rows, (index + 1) * self.rows) % len(self._order)
        centres = self._order[turn]  # (B,)
        draw = np.random.default_rng(mix_seed(self.seed, "windows", step))
        reach = draw.integers(1, self.window + 1, self.rows)
        places = centres[:, None] + self._offsets  # (B, 2 × window)
        near = (np.abs(self._offsets) <= reach[:, None]) & (places >= 0) & (places < len(self._kept))
        places = np.clip(places, 0, len(self._kept) - 1)
        near &= self._lines[places] == self._lines[centres][:, None]
        targets = np.where(near, self._kept[places].astype(np.int64), IGNORE)
        drawn = np.searchsorted(self._noise, draw.random(self.rows), side="right")
        return Batch(
            Inputs(torch.from_numpy(self._kept[centres].astype(np.int64)[:, None])),
            torch.from_numpy(targets),
            negatives=torch.from_numpy(drawn.astype(np.int64)[:, None]),
            tokens=int(near.any(1).sum() if self.means else near.sum()),
            read=self.rows,
        )

    def _plan(self, epoch: int) -> None:
        """Which words are left in this epoch, and in which order they come."""
        draw = np.random.default_rng(mix_seed(self.seed, "subsample", epoch))
        left = np.flatnonzero(draw.random(len(self.ids), dtype=np.float32) < self._chance[self.ids])
        if len(left) < 2:
            left = np.flatnonzero(self._chance[self.ids] > 0)
        self._kept, self._lines = self.ids[left], self._line[left]
        self._order = draw.permutation(len(left))
        self._planned = epoch


def chances(counts: Array, subsample: float) -> Array:
    """How likely each word (V,) is to stay; 0 for `subsample` keeps all."""
    if not subsample:
        return np.ones(len(counts), dtype=np.float32)
    share = np.maximum(counts, 1) / max(counts.sum(), 1)
    stays: Array = np.minimum((np.sqrt(share / subsample) + 1) * subsample / share, 1).astype(np.float32)
    return stays


def noise(counts: Array, left_out: Iterable[int]) -> Array:
    """The running sum of the probabilities (V,) that negatives are drawn by."""
    weights = counts.astype(np.float64) ** POWER
    weights[list(left_out)] = 0
    if not weights.any():
        raise DataError("the text has no word but unknown ones; give more text, or lower tokenizer.min_count")
    sums: Array = np.cumsum(weights / weights.sum())
    sums[np.flatnonzero(weights)[-1] :] = 1.0  # rounding must leave no gap at the end
    return sums
