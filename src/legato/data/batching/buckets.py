"""Rows of like length together: which rows make a batch, for training and for scoring.

Sorted by width with ties in a new order each epoch, cut into batches of at most `batch_tokens` padded tokens or,
where that is given, of `batch_rows` rows, and the batches shuffled: how many there are is the same in every epoch.
Every batcher of rows asks `Buckets`, and so answers `at(step)` by the data, the seed and the step alone (see
`batches.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from legato.data.batching.batches import Array, mix_seed

Order = Callable[["np.random.Generator", int], Array]  # its name alone: numpy.random takes a while to import
"""From an epoch's generator and its number to the rows by their widths, ties in a random order."""


@dataclass(frozen=True)
class BatchShape:
    """How many rows go together, and how they are padded."""

    seed: int
    batch_tokens: int = 0  # of a batch at most, padding among them
    batch_rows: int | None = None  # of a batch, in place of that
    name: str = "the data"  # in messages
    pad_to: int = 1  # widths are multiples of it
    fixed_shape: bool = False  # whether batches come in few shapes: rows of nothing fill them up


class Buckets:
    """The numbers of the rows at each step."""

    def __init__(self, widths: Array, shape: BatchShape, *, salt: str, order: Order | None = None) -> None:
        """`widths` (N,) are padded lengths; no row is wider than a batch.

        `salt` tells one batcher's draws from others'. `order` sorts the rows for an epoch, where that is not by
        `widths`.
        """
        self.seed, self.salt = shape.seed, salt
        self._cuts = _cut(np.sort(widths), shape.batch_tokens, shape.batch_rows)
        self._sorted = order or (lambda draw, epoch: np.lexsort((draw.permutation(len(widths)), widths)))
        self.steps_per_epoch = len(self._cuts) - 1
        self._planned = -1

    def at(self, step: int) -> tuple[int, Array]:
        """The epoch of a step, and its rows."""
        epoch, index = divmod(step, self.steps_per_epoch)
        if epoch != self._planned:
            draw = np.random.default_rng(mix_seed(self.seed, self.salt, epoch))
            self._order = self._sorted(draw, epoch)
            self._turn = draw.permutation(self.steps_per_epoch)
            self._planned = epoch
        turn = int(self._turn[index])
        return epoch, self._order[self._cuts[turn] : self._cuts[turn + 1]]


def _cut(widths: Array, tokens: int, rows: int | None) -> list[int]:
    """Where batches end, for rows in ascending order of width: the newest one is the widest."""
    if rows is not None:
        return [*range(0, len(widths), rows), len(widths)]
    cuts = [0]
    while cuts[-1] < len(widths):
        first = cuts[-1]
        here = widths[first : first + tokens // int(widths[first])]
        # At least one row, however wide it was drawn.
        cuts.append(first + max(1, int(np.count_nonzero(np.arange(1, len(here) + 1) * here <= tokens))))
    return cuts


def scoring_order(lengths: Sequence[int], widths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Every row once, sorted by `lengths`, as many at a time as have about so many tokens when padded to `widths`."""
    order = [int(row) for row in np.argsort(lengths, kind="stable")]
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and (stop + 1 - start) * widths[order[stop]] <= tokens:
            stop += 1
        yield order[start:stop]
        start = stop


def rounded(width: Any, multiple: int) -> Any:
    """The next multiple, of a number or of each in an array."""
    return -(-width // multiple) * multiple
