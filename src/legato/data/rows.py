"""Rows with something to learn about each: a label, a tag for every word, or a span; batched by like length.

Like every batcher, `RowBatches` answers `at(step)` by the data, the seed and the step alone (see `batches.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from legato.data.batch import IGNORE, Batch
from legato.data.batches import Array, mix_seed
from legato.errors import DataError


@dataclass
class Row:
    """One text, or a pair, as a model reads it, and what there is to learn of it."""

    ids: list[int]
    segments: list[int] | None = None  # 0 for a first text and 1 for a second
    label: Any = None  # a class's number, a number to guess, or one 0 or 1 for each of several labels
    words: list[int] | None = None  # where each word's first token stands
    targets: list[int] | None = None  # a tag's number for each word
    span: tuple[int, int] | None = None  # the answer's first and last token
    characters: Array | None = None  # (T, C), the bytes of each token's word


class RowBatches:
    """Rows of like length together, in a new order each epoch.

    Sorted by length with ties in a new order each epoch, cut into batches of at most `batch_tokens` padded tokens
    or, where that is given, of `batch_rows` rows, and the batches shuffled: how many there are is the same in every
    epoch. Widths are multiples of `pad_to`, but no more than the longest row's, since a model may read no more. With
    `alike` batches come in few shapes: rows of nothing fill them up.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        *,
        batch_tokens: int,
        batch_rows: int | None = None,
        seed: int,
        name: str = "the data",
        pad: int = 0,
        pad_to: int = 1,
        alike: bool = False,
    ) -> None:
        if not rows:
            raise DataError(f"{name} holds no rows")
        self.rows, self.seed, self.pad, self.pad_to, self.alike = rows, seed, pad, pad_to, alike
        lengths = np.array([max(len(row.ids), 1) for row in rows])
        self.widest = int(lengths.max())
        self._lengths = np.minimum(_rounded(lengths, pad_to), self.widest)
        ordered = np.sort(self._lengths)
        if batch_rows is None and ordered[-1] > batch_tokens:
            row = int(self._lengths.argmax())
            raise DataError(
                f"{name}, row {row + 1:,}: {len(rows[row].ids):,} tokens, more than "
                f"train.batch_tokens={batch_tokens}; raise that"
            )
        self.limit, self.most = batch_tokens, batch_rows
        self._cuts = [0]
        for place, length in enumerate(ordered):  # ascending, so the newest row is the widest
            count = place + 1 - self._cuts[-1]
            if count > (batch_tokens // length if batch_rows is None else batch_rows):
                self._cuts.append(place)
        self._cuts.append(len(ordered))
        self.steps_per_epoch = len(self._cuts) - 1
        self.tokens_per_step = batch_tokens if batch_rows is None else int(batch_rows * self._lengths.mean())
        self._planned = -1

    def at(self, step: int) -> Batch:
        epoch, index = divmod(step, self.steps_per_epoch)
        if epoch != self._planned:
            draw = np.random.default_rng(mix_seed(self.seed, "labelled rows", epoch))
            self._order = np.lexsort((draw.permutation(len(self._lengths)), self._lengths))
            self._turn = draw.permutation(self.steps_per_epoch)
            self._planned = epoch
        turn = int(self._turn[index])
        chosen = [self.rows[i] for i in self._order[self._cuts[turn] : self._cuts[turn + 1]]]
        batch = collate_rows(chosen, pad=self.pad, pad_to=self.pad_to, widest=self.widest)
        if not self.alike:
            return batch
        width = batch.ids.shape[1]
        return _filled(batch, self.most or max(self.limit // width, batch.rows), self.pad)


def collate_rows(rows: Sequence[Row], *, pad: int = 0, pad_to: int = 1, widest: int | None = None) -> Batch:
    """Rows padded on the right into one batch, as wide as a multiple of `pad_to` or, where that is less, `widest`."""
    lengths = np.array([len(row.ids) for row in rows])
    width = int(_rounded(max(int(lengths.max()), 1), pad_to))
    width = width if widest is None else min(width, widest)
    full = bool(lengths.min() == width)
    first = rows[0]
    targets = words = None
    if first.words is not None:
        columns = int(_rounded(max(max(len(row.words or ()) for row in rows), 1), pad_to))
        words = _padded([row.words or [] for row in rows], columns, 0)
        if first.targets is not None:
            targets = _padded([row.targets or [] for row in rows], columns, IGNORE)
    labels = None
    if first.label is not None:
        labels = torch.tensor(np.array([row.label for row in rows]))
        labels = labels.float() if labels.is_floating_point() or labels.dim() > 1 else labels.long()
    counted = len(rows) if targets is None else int((targets != IGNORE).sum())
    return Batch(
        _padded([row.ids for row in rows], width, pad),
        targets,
        lengths=None if full else torch.from_numpy(np.maximum(lengths, 1)),
        segments=None if first.segments is None else _padded([row.segments or [] for row in rows], width, 0),
        words=words,
        labels=labels,
        spans=None if first.span is None else torch.tensor([row.span for row in rows]),
        characters=None if first.characters is None else _characters(rows, width, 16 if pad_to > 1 else 1),
        tokens=counted,
        read=int(lengths.sum()),
    )


def scoring_batches(
    rows: Sequence[Row], *, batch_tokens: int = 16384, pad: int = 0
) -> Iterator[tuple[list[int], Batch]]:
    """Every row once, those of like length together: the rows' numbers, and their batch."""
    order = sorted(range(len(rows)), key=lambda number: len(rows[number].ids))
    start = 0
    while start < len(order):
        end = start + 1
        while end < len(order) and (end + 1 - start) * len(rows[order[end]].ids) <= batch_tokens:
            end += 1
        chosen = order[start:end]
        yield chosen, collate_rows([rows[number] for number in chosen], pad=pad)
        start = end


def _rounded(width: Any, multiple: int) -> Any:
    return -(-width // multiple) * multiple


def _padded(rows: Sequence[Sequence[int]], width: int, value: int) -> Tensor:
    filled = np.full((len(rows), width), value, dtype=np.int64)
    for number, row in enumerate(rows):
        filled[number, : len(row)] = row
    return torch.from_numpy(filled)


def _characters(rows: Sequence[Row], width: int, multiple: int) -> Tensor:
    most = int(_rounded(max(row.characters.shape[1] for row in rows if row.characters is not None), multiple))
    filled = np.zeros((len(rows), width, most), dtype=np.int64)
    for number, row in enumerate(rows):
        if row.characters is not None:
            filled[number, : len(row.characters), : row.characters.shape[1]] = row.characters
    return torch.from_numpy(filled)


def _filled(batch: Batch, rows: int, pad: int) -> Batch:
    """The batch with as many rows as that, the last ones of one token of padding from which nothing is learned."""
    more, width = rows - batch.rows, batch.ids.shape[1]
    lengths = torch.full((batch.rows,), width) if batch.lengths is None else batch.lengths
    values = {"ids": pad, "targets": IGNORE, "spans": IGNORE, "lengths": 1}
    given = {**vars(batch), "lengths": lengths}
    padded: dict[str, Any] = {}
    for name, tensor in given.items():
        if isinstance(tensor, Tensor):
            value: float = values.get(name, 0)
            if name == "labels":
                value = torch.nan if tensor.is_floating_point() else IGNORE
            padded[name] = F.pad(tensor, (*[0, 0] * (tensor.dim() - 1), 0, more), value=value)
    return replace(batch, alike=True, **padded)
