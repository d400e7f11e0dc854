"""From token ids to batches: streams and windows.

Every batcher answers `at(step)`, and its answer depends on the data, the seed and the step alone. So
a run that resumes needs a number, not a saved iterator, and any worker can make any batch.

- `Streams`: the text as a ring, cut into `rows` long strips that are read side by side, one window a
  step; the state is carried from window to window and gradients are cut there (truncated
  backpropagation through time). Where the ring is opened is drawn anew each epoch, so the cuts fall
  elsewhere; all batches have one shape. Now and then a row forgets its state (`forget`): a model
  that never starts from nothing in training cannot do so when somebody prompts it.
- `Windows`: the same text in independent windows, shuffled each epoch.

Documents that share rows are in `packing.py`; rows of like length go together by `buckets.py`: examples with labels
and separate sequences (`examples.py`), pairs of sequences (`pair_batches.py`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from legato.data.batching.batch import Batch, Inputs
from legato.errors import DataError

Array = np.ndarray[Any, np.dtype[Any]]


class Batches(Protocol):
    """Batches as a pure function of the step."""

    steps_per_epoch: int
    tokens_per_step: int  # nominal; a bucketed batch may hold fewer

    def at(self, step: int) -> Batch: ...


def mix_seed(*parts: object) -> int:
    """A 63-bit seed from anything printable; the same in every process and Python version."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


@dataclass(frozen=True)
class WindowShape:
    """So many windows of a text side by side."""

    rows: int
    window: int  # tokens of each
    seed: int
    device: torch.device | str = "cpu"
    name: str = "the text"  # in messages

    @property
    def tokens(self) -> int:
        """Of a batch."""
        return self.rows * self.window

    def steps(
        self, size: int, advice: str = "give a longer text or lower train.batch_tokens", special: int = 0
    ) -> int:
        """How many batches `size` tokens give, where so many of a window are special tokens; none is an error."""
        steps = size // (self.window - special) // self.rows
        if steps == 0:
            raise DataError(
                f"{self.name} holds {size:,} tokens, fewer than one batch of {self.rows} × {self.window}; {advice}"
            )
        return steps


class Ring:
    """A text on a device, its end joined to its beginning, from which windows are cut."""

    def __init__(self, ids: Array, shape: WindowShape) -> None:
        self.size = len(ids)
        # Text is small beside a model's activations: on a GPU it lives there, and a batch is one gather.
        self.ids = place_ids(ids, shape.device)
        self._within = torch.arange(shape.window + 1, device=shape.device)

    def cut(self, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Windows that begin at `starts` (B,), and the same moved on by one token: inputs and targets (B, T)."""
        chunk = self.ids[(starts.unsqueeze(1) + self._within) % self.size].long()  # (B, T + 1)
        return chunk[:, :-1], chunk[:, 1:]


class Streams:
    """Contiguous streams for truncated backpropagation through time."""

    def __init__(self, ids: Array, shape: WindowShape, *, forget: float = 0.0) -> None:
        self.shape, self.forget = shape, forget
        self.steps_per_epoch, self.tokens_per_step = shape.steps(len(ids)), shape.tokens
        self.ring = Ring(ids, shape)
        self._starts = torch.arange(shape.rows, device=shape.device) * (self.steps_per_epoch * shape.window)  # (B,)

    def at(self, step: int) -> Batch:
        epoch, index = divmod(step, self.steps_per_epoch)
        opened = mix_seed(self.shape.seed, "streams", epoch) % self.ring.size
        inputs, targets = self.ring.cut(self._starts + (opened + index * self.shape.window))
        size = self.tokens_per_step
        return Batch(
            Inputs(inputs), targets, reset_all=index == 0, keep_state=self._keep(step), tokens=size, read=size
        )

    def _keep(self, step: int) -> Tensor | None:
        if self.forget == 0.0:
            return None
        draw = np.random.default_rng(mix_seed(self.shape.seed, "forget", step))
        drawn = draw.random(self.shape.rows) >= self.forget
        return None if drawn.all() else torch.from_numpy(drawn).to(self._starts.device)


class Windows:
    """Independent windows in a new order each epoch."""

    def __init__(self, ids: Array, shape: WindowShape) -> None:
        self.shape = shape
        self.steps_per_epoch, self.tokens_per_step = shape.steps(len(ids)), shape.tokens
        self.ring = Ring(ids, shape)
        self._planned = -1

    def at(self, step: int) -> Batch:
        epoch, index = divmod(step, self.steps_per_epoch)
        rows, window = self.shape.rows, self.shape.window
        if epoch != self._planned:
            draw = np.random.default_rng(mix_seed(self.shape.seed, "windows", epoch))
            opened = int(draw.integers(self.ring.size))
            order = torch.from_numpy(draw.permutation(self.ring.size // window)).to(self.shape.device)
            self._starts = order * window + opened
            self._planned = epoch
        inputs, targets = self.ring.cut(self._starts[index * rows : (index + 1) * rows])
        return Batch(Inputs(inputs), targets, tokens=self.tokens_per_step, read=self.tokens_per_step)


def place_ids(ids: Array, device: torch.device | str) -> Tensor:
    """A whole text's ids where its batches are made."""
    if torch.device(device).type == "cpu":
        # A memory map is read-only, which PyTorch warns of; nobody writes to it here.
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return torch.from_numpy(ids)
    return torch.from_numpy(ids.astype(np.int32)).to(device)
