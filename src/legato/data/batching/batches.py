"""From token ids to batches: streams, windows, packed documents, and rows of like length.

Every batcher answers `at(step)`, and its answer depends on the data, the seed and the step alone. So
a run that resumes needs a number, not a saved iterator, and any worker can make any batch.

- `Streams`: the text as a ring, cut into `rows` long strips that are read side by side, one window a
  step; the state is carried from window to window and gradients are cut there (truncated
  backpropagation through time). Where the ring is opened is drawn anew each epoch, so the cuts fall
  elsewhere; all batches have one shape. Now and then a row forgets its state (`forget`): a model
  that never starts from nothing in training cannot do so when somebody prompts it.
- `Windows`: the same text in independent windows, shuffled each epoch.
- `Packed`: documents packed into rows of one length, for models that read windows and carry nothing along.

      documents   ⏎ a b c ⏎ d ⏎ e f g h ⏎          each read behind an EOS token, the last of it a target only
      rows of 4   ⏎ a b c | ⏎ d ⏎ e | f g h …       after the documents are shuffled
      documents   0 0 0 0 | 0 0 1 1 | 0 0 0 …       so that no token looks across a border

  The documents come in a new order each epoch, the row that they make is cut elsewhere, and its pieces are shuffled.
  What is cut off goes on in a row of its own, without its past. There is no padding, and all batches have one shape,
  so a step can be recorded as a CUDA graph. Where the text lies on a GPU batches are made there.

- `Buckets`: which rows of like length make a batch. Sorted by width with ties in a new order each epoch, cut into
  batches of at most `batch_tokens` padded tokens or, where that is given, of `batch_rows` rows, and the batches
  shuffled: how many there are is the same in every epoch. Every batcher of rows asks it: examples with labels and
  separate sequences (`examples.py`), pairs of sequences (`pair_batches.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from legato.data.batching.batch import Batch, Inputs
from legato.errors import DataError

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class SpeedUnit:
    """The things that a task's speed counts, and how many positions of a batch one of them takes on average."""

    name: str
    positions: float = 1.0


TOKENS = SpeedUnit("tokens")


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


class Packed:
    """Rows of `window` tokens filled with whole and cut documents."""

    def __init__(self, ids: Array, starts: Array, shape: WindowShape, *, start: int, eos: int) -> None:
        """`ids` as `cached_ids` gives them, `starts` as `document_starts` (cache.py) does.

        A document is read behind `start` and ends with `eos`; for most tokenizers these are one.
        """
        ended = int(ids[-1]) == eos and len(ids) - 1 > starts[-1]
        ids = np.asarray(ids) if ended else np.append(ids, ids.dtype.type(eos))
        self.size = len(ids) - 1  # inputs: the last special token is only a target
        self.shape, self.rows = shape, shape.rows
        self.steps_per_epoch, self.tokens_per_step = shape.steps(self.size), shape.tokens
        self.ids = place_ids(ids, shape.device)
        self._starts, self._start = starts, start
        self._lengths = np.diff(np.append(starts, self.size))
        self._within = torch.arange(shape.window, device=shape.device)
        self._planned = -1

    def at(self, step: int) -> Batch:
        epoch, index = divmod(step, self.steps_per_epoch)
        if epoch != self._planned:
            self._plan(epoch)
        places = self._cuts[index * self.rows : (index + 1) * self.rows].unsqueeze(1) + self._within  # (B, T)
        documents = torch.searchsorted(self._ends, places, right=True)
        inputs = places + self._moved[documents]
        first = inputs == self._firsts[documents]
        size = self.tokens_per_step
        return Batch(
            Inputs(
                self.ids[inputs].long().masked_fill(first, self._start),
                document_ids=documents - documents[:, :1],
                most_documents=self._most,
            ),
            self.ids[inputs + 1].long(),
            tokens=size,
            read=size,
        )

    def _plan(self, epoch: int) -> None:
        """Draw the order of the documents, where the row of them is cut, and the order of the pieces."""
        draw = np.random.default_rng(mix_seed(self.shape.seed, "packed", epoch))
        order = draw.permutation(len(self._starts))
        ends = np.cumsum(self._lengths[order])
        rest = self.size - self.steps_per_epoch * self.tokens_per_step
        cuts = draw.permutation(self.steps_per_epoch * self.rows) * self.shape.window + draw.integers(rest + 1)
        moved = self._starts[order] - (ends - self._lengths[order])  # from a place in the row to one in the text
        first, last = (np.searchsorted(ends, cuts + place, "right") for place in (0, self.shape.window - 1))
        most = int((last - first + 1).reshape(-1, self.rows).sum(1).max())
        # The same for a whole epoch and, since it is rounded up by a quarter at most, likely for the next one.
        self._most = rounded(most, 1 << max(most.bit_length() - 3, 0))
        self._ends, self._moved, self._cuts, self._firsts = (
            self._put(x) for x in (ends, moved, cuts, self._starts[order])
        )
        self._planned = epoch

    def _put(self, values: Any) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(self.shape.device)


# --- rows of like length ------------------------------------------------------------------------------


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
