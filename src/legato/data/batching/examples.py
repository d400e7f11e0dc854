"""Examples: a text or a pair as a model reads it, with what there is to learn of it: a label, tags, or a span.

Groups of texts that belong together, two or three a row, are what vectors of texts learn from. They go to the model
side by side, so a batch of them has one more dimension than others: `ids` (B, K, T) and `lengths` (B, K) for the K
texts of each row. Rows are drawn at random, not by length: the texts of a batch are each other's negatives, and among
texts of one length those would not be what they are later.

Rare words are sometimes hidden, so that a model learns what to make of words that it does not know. A vocabulary of
all training words has none that are unknown, and `<unk>` would stay as it was drawn. So words that the training text
has only once are each `<unk>` with some probability, anew every time (Lample et al. 2016).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from legato.data.batching.batch import IGNORE, Batch, Inputs, map_tensors
from legato.data.batching.batches import Array, Batches, BatchShape, Buckets, mix_seed, rounded, scoring_order
from legato.errors import DataError


@dataclass
class Example:
    """One text, or a pair, as a model reads it, and what there is to learn of it."""

    ids: list[int]
    segments: list[int] | None = None  # 0 for a first text and 1 for a second
    label: Any = None  # a class's number, a number to guess, or one 0 or 1 for each of several labels
    positions: list[int] | None = None  # where the targets are: at each word's first token, say
    targets: list[int] | None = None  # what is learned at each of them, or else at each token: a tag, the next token
    span: tuple[int, int] | None = None  # the answer's first and last token
    characters: Array | None = None  # (T, C), the bytes of each token's word
    picture: int = 0  # the number of its picture, where there are any
    boxes: Array | None = None  # (N, 4), of what is in its picture, whose classes are the targets
    choices: list[int] | None = None  # the classes that its answer is one of, where not all are possible


def next_tokens(sequences: Iterable[tuple[list[int], int]], name: str = "the data") -> list[Example]:
    """Sequences to go on with: ids, and how many of them are a prompt, whose loss is not counted."""
    found = []
    for row, (ids, prompt) in enumerate(sequences, start=1):
        if len(ids) < 2:
            raise DataError(f"{name}, row {row:,}: a sequence needs at least two tokens")
        first = max(prompt - 1, 0)  # the prompt's last token predicts the first of the answer
        found.append(Example(ids[:-1], targets=[IGNORE] * first + ids[first + 1 :]))
    return found


class ExampleBatches:
    """Examples of like length together, in a new order each epoch; `pad` is the token that fills them up.

    No batch is wider than the longest row, since a model may read no more.
    """

    def __init__(
        self,
        rows: Sequence[Example],
        shape: BatchShape,
        *,
        pad: int = 0,
        salt: str = "labelled rows",
        mixed: bool = False,
    ) -> None:
        """With `mixed`, rows of any length together, as many in each batch: what is left over at an epoch's end is
        left out, other rows each time. Rows that are each other's negatives should be what they are later."""
        if not rows:
            raise DataError(f"{shape.name} holds no rows")
        self.rows, self.shape, self.pad = rows, shape, pad
        lengths = np.array([max(len(row.ids), 1) for row in rows])
        self.widest = int(lengths.max())
        widths = np.minimum(rounded(lengths, shape.pad_to), self.widest)
        if shape.batch_rows is None and widths.max() > shape.batch_tokens:
            row = int(widths.argmax())
            raise DataError(
                f"{shape.name}, row {row + 1:,}: {len(rows[row].ids):,} tokens, more than "
                f"train.batch_tokens={shape.batch_tokens}; raise that"
            )
        count = shape.batch_rows
        if mixed and count is not None:
            whole = np.full(len(rows) // count * count, self.widest)
            self._buckets = Buckets(whole, shape, salt=salt, order=lambda draw, epoch: draw.permutation(len(rows)))
        else:
            self._buckets = Buckets(widths, shape, salt=salt)
        self.steps_per_epoch = self._buckets.steps_per_epoch
        self.tokens_per_step = shape.batch_tokens if count is None else int(count * widths.mean())

    def at(self, step: int) -> Batch:
        chosen = [self.rows[row] for row in self._buckets.at(step)[1]]
        batch = collate_examples(chosen, pad=self.pad, pad_to=self.shape.pad_to, widest=self.widest)
        if not self.shape.fixed_shape:
            return batch
        fitting = self.shape.batch_tokens // batch.inputs.token_ids.shape[1]
        return fill_rows(batch, self.shape.batch_rows or max(fitting, batch.rows), self.pad)


def collate_examples(rows: Sequence[Example], *, pad: int = 0, pad_to: int = 1, widest: int | None = None) -> Batch:
    """Rows padded on the right into one batch, as wide as a multiple of `pad_to` or, where that is less, `widest`."""
    lengths = np.array([len(row.ids) for row in rows])
    width = rounded(max(int(lengths.max()), 1), pad_to)
    width = width if widest is None else min(width, widest)
    full = bool(lengths.min() == width)
    first = rows[0]
    targets = positions = None
    columns = width  # where nothing else is said, something is learned at each token
    if first.positions is not None:
        columns = rounded(max(max(len(row.positions or ()) for row in rows), 1), pad_to)
        positions = _padded([row.positions or [] for row in rows], columns, 0)
    boxes = None
    if first.boxes is not None:
        columns = rounded(max(max(len(row.targets or ()) for row in rows), 1), pad_to)
        boxes = _boxes(rows, columns)
    if first.targets is not None:
        targets = _padded([row.targets or [] for row in rows], columns, IGNORE)
    labels = None
    if first.label is not None:
        labels = torch.tensor(np.array([row.label for row in rows]))
        labels = labels.float() if labels.is_floating_point() or labels.dim() > 1 else labels.long()
    inputs = Inputs(
        _padded([row.ids for row in rows], width, pad),
        lengths=None if full else torch.from_numpy(np.maximum(lengths, 1)),
        segments=None if first.segments is None else _padded([row.segments or [] for row in rows], width, 0),
        characters=None if first.characters is None else _characters(rows, width, 16 if pad_to > 1 else 1),
    )
    spans = None if first.span is None else torch.tensor([row.span for row in rows])
    counted, read = len(rows) if targets is None else int((targets != IGNORE).sum()), int(lengths.sum())
    return Batch(
        inputs,
        targets,
        positions=positions,
        labels=labels,
        spans=spans,
        boxes=boxes,
        tokens=counted,
        read=read,
    )


def scoring_batches(
    rows: Sequence[Example], *, batch_tokens: int = 16384, pad: int = 0
) -> Iterator[tuple[list[int], Batch]]:
    """Every row once, those of like length together: the rows' numbers, and their batch.

    How many tokens are scored side by side changes no result.
    """
    lengths = [len(row.ids) for row in rows]
    for chosen in scoring_order(lengths, lengths, batch_tokens):
        yield chosen, collate_examples([rows[number] for number in chosen], pad=pad)


def _padded(rows: Sequence[Sequence[int]], width: int, value: int) -> Tensor:
    filled = np.full((len(rows), width), value, dtype=np.int64)
    for number, row in enumerate(rows):
        filled[number, : len(row)] = row
    return torch.from_numpy(filled)


def _boxes(rows: Sequence[Example], width: int) -> Tensor:
    filled = np.zeros((len(rows), width, 4), dtype=np.float32)
    for number, row in enumerate(rows):
        if row.boxes is not None:
            filled[number, : len(row.boxes)] = row.boxes
    return torch.from_numpy(filled)


def _characters(rows: Sequence[Example], width: int, multiple: int) -> Tensor:
    most = rounded(max(row.characters.shape[1] for row in rows if row.characters is not None), multiple)
    filled = np.zeros((len(rows), width, most), dtype=np.int64)
    for number, row in enumerate(rows):
        if row.characters is not None:
            filled[number, : len(row.characters), : row.characters.shape[1]] = row.characters
    return torch.from_numpy(filled)


def fill_rows(batch: Batch, rows: int, pad: int) -> Batch:
    """The batch with as many rows as that, the last ones of one token of padding from which nothing is learned."""
    more, inputs = rows - batch.rows, batch.inputs
    if inputs.lengths is None:
        inputs = replace(inputs, lengths=torch.full((batch.rows,), inputs.token_ids.shape[1]))
    # A row of nothing has one token to look at: a softmax over none would not be finite.
    nothing = {"inputs.ids": pad, "inputs.lengths": 1, "source.lengths": 1, "targets": IGNORE, "spans": IGNORE}

    def filled(name: str, tensor: Tensor) -> Tensor:
        value: float = nothing.get(name, 0)
        if name == "labels":
            value = torch.nan if tensor.is_floating_point() else IGNORE
        return F.pad(tensor, (*[0, 0] * (tensor.dim() - 1), 0, more), value=value)

    return map_tensors(replace(batch, inputs=inputs, fixed_shape=True), filled)


# --- groups of texts ----------------------------------------------------------------------------------


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


# --- rare words ---------------------------------------------------------------------------------------


class RareWords:
    """Batches in which tokens that their rows have once alone are sometimes unknown; a function of the step alone."""

    def __init__(
        self, batches: Batches, rows: Sequence[Example], vocabulary: int, unknown: int, *, share: float, seed: int
    ) -> None:
        self.batches, self.unknown, self.share, self.seed = batches, unknown, share, seed
        self.steps_per_epoch, self.tokens_per_step = batches.steps_per_epoch, batches.tokens_per_step
        counts = Counter(index for row in rows for index in row.ids)
        self.rare = torch.zeros(vocabulary, dtype=torch.bool)
        self.rare[[index for index, count in counts.items() if count == 1 and index != unknown]] = True

    def at(self, step: int) -> Batch:
        batch = self.batches.at(step)
        draw = np.random.default_rng(mix_seed(self.seed, "rare words", step))
        ids = batch.inputs.token_ids
        drawn = torch.from_numpy(draw.random(tuple(ids.shape)) < self.share)
        return replace(batch, inputs=replace(batch.inputs, ids=ids.masked_fill(self.rare[ids] & drawn, self.unknown)))
