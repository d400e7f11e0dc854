"""The batch: what passes from the data to a model.

Shapes, here and everywhere: `B` batch, `T` target/time, `S` source, `D` model width, `H` heads,
`K` per-head width, `V` vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

IGNORE = -100  # a target that carries no loss; PyTorch's own convention


@dataclass
class Batch:
    """Token ids, padded on the right, with the targets that belong to them."""

    ids: Tensor  # (B, T)
    targets: Tensor | None = None  # (B, T), IGNORE where no loss is due
    lengths: Tensor | None = None  # (B,), None when every row is full
    fresh: bool = True  # False when the rows go on where the last batch ended
    keep: Tensor | None = None  # (B,), False where a row forgets its state before this batch
    segments: Tensor | None = None  # (B, T), 0 for a first sentence and 1 for a second; None: all are first
    documents: Tensor | None = None  # (B, T), which text a token is of, where several share a row; they rise
    places: Tensor | None = None  # (B, N), where in each row the targets are, as many for all; None: anywhere
    labels: Tensor | None = None  # (B,), each row's class, or its number (float); (B, C) floats for several at once
    #                                 IGNORE, or nan, where a row only fills the batch up
    words: Tensor | None = None  # (B, W), where each word's first token stands; then targets are (B, W), one a word
    spans: Tensor | None = None  # (B, 2), the first and the last token of the answer
    characters: Tensor | None = None  # (B, T, C), the bytes of each word, for models that read those
    negatives: Tensor | None = None  # (B, N), words drawn at random, which others are told from
    source: Tensor | None = None  # (B, S), what an encoder reads
    source_lengths: Tensor | None = None  # (B,), None when every source is full
    alike: bool = False  # whether batches come in few shapes, so that a step of each may be recorded
    tokens: int = 0  # targets that count, known without asking the device
    read: int = 0  # tokens taken in, padding left out: what speed and budgets are measured in

    @property
    def rows(self) -> int:
        return self.ids.shape[0]

    def to(self, device: torch.device) -> Batch:
        moved: dict[str, Any] = {
            f.name: v.to(device, non_blocking=True)
            for f in fields(self)
            if isinstance(v := getattr(self, f.name), Tensor)
        }
        return replace(self, **moved)

    def split(self, parts: int) -> list[Batch]:
        """The same rows in `parts` smaller batches, for accumulation."""
        if parts == 1:
            return [self]
        size = -(-self.rows // parts)
        pieces = []
        for start in range(0, self.rows, size):
            rows = slice(start, start + size)
            cut: dict[str, Any] = {
                f.name: v[rows] for f in fields(self) if isinstance(v := getattr(self, f.name), Tensor)
            }
            piece = replace(self, **cut)
            if self.tokens == self.ids.numel():  # every place counts; the device need not be asked
                piece.tokens = piece.ids.numel()
            elif piece.targets is None and self.tokens == self.rows:  # every row counts
                piece.tokens = piece.rows
            else:
                piece.tokens = piece.ids.numel() if piece.targets is None else int((piece.targets != IGNORE).sum())
            pieces.append(piece)
        return pieces
