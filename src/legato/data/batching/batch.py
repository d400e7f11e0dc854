"""The batch: what passes from the data to a model.

`Inputs` is what a model reads: B rows of T positions, whatever they were made of. `Batch` is that, what an encoder
reads beside it, and what a task adds row by row. Moving a batch, splitting it and recording it follow from its
structure: every tensor in it has the rows in front, but for images, of which a row may have any number.

Shapes, here and everywhere: `B` batch, `T` target/time, `S` source, `D` model width, `H` heads,
`K` per-head width, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

IGNORE = -100  # a target that carries no loss; PyTorch's own convention

Record = TypeVar("Record")


@dataclass
class Inputs:
    """A stream of B rows and T positions, padded on the right."""

    ids: Tensor | None = None  # (B, T), tokens
    values: Tensor | None = None  # what has no ids, in its own shape: (B, C, H, W) pixels, (B, T, F) frames
    lengths: Tensor | None = None  # (B,), None when every row is full
    segments: Tensor | None = None  # (B, T), 0 for a first sentence and 1 for a second; None: all are first
    document_ids: Tensor | None = None  # (B, T), which text a token is of, where several share a row; they rise
    most_documents: int | None = None  # of those in the batch, at most; None: nobody has counted
    characters: Tensor | None = None  # (B, T, C), the bytes of each word, for models that read those
    draws: Tensor | None = (
        None  # (B, K), numbers from 0 to 1 from which other views of the values are made in training
    )

    @property
    def token_ids(self) -> Tensor:
        """The ids, (B, T), for a model that reads nothing else."""
        if self.ids is None:
            raise TypeError("these inputs have no token ids")
        return self.ids

    @property
    def content(self) -> Tensor:
        """What there is to read: the ids, or else the values."""
        found = self.values if self.ids is None else self.ids
        if found is None:
            raise TypeError("these inputs are empty")
        return found

    @property
    def rows(self) -> int:
        return self.content.shape[0]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], device: torch.device | str = "cpu", padding: int = 0) -> Inputs:
        """Rows of ids, padded on the right."""
        lengths = [len(row) for row in rows]
        width = max(lengths)
        ids = torch.tensor([[*row, *[padding] * (width - len(row))] for row in rows], device=device)
        return cls(ids, lengths=None if min(lengths) == width else torch.tensor(lengths, device=device))


@dataclass
class Batch:
    """What a model reads, with the targets that belong to it."""

    inputs: Inputs  # what the decoder, or the only stack, reads
    targets: Tensor | None = None  # (B, T), or (B, N) at `positions`; IGNORE where no loss is due
    source: Inputs | None = None  # what an encoder reads
    images: Inputs | None = None  # what takes the place of image tokens among `inputs`, as many as there are …
    image_rows: Tensor | None = None  # … and the row that each belongs to
    positions: Tensor | None = None  # (B, N), where in each row the targets are, as many for all; None: everywhere
    labels: Tensor | None = None  # (B,), each row's class, or its number (float); (B, C) floats for several at once
    #                                 IGNORE, or nan, where a row only fills the batch up
    spans: Tensor | None = None  # (B, 2), the first and the last token of the answer
    boxes: Tensor | None = None  # (B, N, 4), corners in shares of a picture's sides; `targets` has their classes
    negatives: Tensor | None = None  # (B, N), words drawn at random, which others are told from
    task: str | None = None  # which of several it is of, where a model has several
    reset_all: bool = True  # False when the rows go on where the last batch ended
    keep_state: Tensor | None = None  # (B,), False where a row's state is reset before this batch
    fixed_shape: bool = False  # whether batches come in few shapes, so that a step of each may be recorded
    tokens: int = 0  # targets that count, known without asking the device
    read: int = 0  # positions taken in, padding left out: what speed and budgets are measured in

    @property
    def rows(self) -> int:
        return self.inputs.rows

    def to(self, device: torch.device) -> Batch:
        return map_tensors(self, lambda name, tensor: tensor.to(device, non_blocking=True))

    def split(self, parts: int) -> list[Batch]:
        """The same rows in `parts` smaller batches, for accumulation."""
        if parts == 1:
            return [self]
        size = -(-self.rows // parts)
        return [self._part(start, min(start + size, self.rows)) for start in range(0, self.rows, size)]

    def _part(self, start: int, stop: int) -> Batch:
        images, image_rows = self.images, self.image_rows
        if images is not None:
            assert image_rows is not None, "images need the rows that they belong to"
            chosen = (image_rows >= start) & (image_rows < stop)
            images, image_rows = map_tensors(images, lambda name, tensor: tensor[chosen]), image_rows[chosen] - start
        rows = replace(self, images=None, image_rows=None)
        part = map_tensors(rows, lambda name, tensor: tensor[start:stop])
        part = replace(part, images=images, image_rows=image_rows)
        if part.targets is None or self.targets is None:
            part.tokens = part.rows if self.tokens == self.rows else part.inputs.content.numel()
        elif self.tokens == self.targets.numel():  # every target counts; the device need not be asked
            part.tokens = part.targets.numel()
        else:
            part.tokens = int((part.targets != IGNORE).sum())
        return part


def map_tensors(record: Record, change: Callable[[str, Tensor], Tensor], prefix: str = "") -> Record:
    """A copy of a dataclass in which each tensor, also of dataclasses in it, is what `change(name, tensor)` gives."""
    changed: dict[str, Any] = {}
    for name, value in vars(record).items():
        if isinstance(value, Tensor):
            changed[name] = change(prefix + name, value)
        elif is_dataclass(value):
            changed[name] = map_tensors(value, change, f"{prefix}{name}.")
    return replace(record, **changed)  # type: ignore[type-var]


def named_tensors(record: Any) -> dict[str, Tensor]:
    """Every tensor of a batch by its name: `inputs.ids`, `targets`, `source.lengths`."""
    found: dict[str, Tensor] = {}

    def note(name: str, tensor: Tensor) -> Tensor:
        found[name] = tensor
        return tensor

    map_tensors(record, note)
    return found
