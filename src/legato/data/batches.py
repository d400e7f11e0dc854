"""From token ids to batches: streams, windows, and rows in length buckets.

Every batcher answers `at(step)`, and its answer depends on the data, the seed and the step alone. So
a run that resumes needs a number, not a saved iterator, and any worker can make any batch.

- `Streams`: the text as a ring, cut into `rows` long strips that are read side by side, one window a
  step; the state is carried from window to window and gradients are cut there (truncated
  backpropagation through time). Where the ring is opened is drawn anew each epoch, so the cuts fall
  elsewhere; all batches have one shape. Now and then a row forgets its state (`forget`): a model
  that never starts from nothing in training cannot do so when somebody prompts it.
- `Windows`: the same text in independent windows, shuffled each epoch.
- `Rows`: separate sequences of different lengths, batched with others of like length.
- `PairBatches`: sources and targets, likewise; filled without a loop over rows, since a GPU asks for a
  batch every few milliseconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from legato.data.batch import IGNORE, Batch
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


class Ring:
    """A text on a device, its end joined to its beginning, from which windows are cut."""

    def __init__(self, ids: Array, rows: int, window: int, device: torch.device | str, name: str) -> None:
        self.size = len(ids)
        if self.size // rows // window == 0:
            raise DataError(
                f"{name} holds {self.size:,} tokens, fewer than one batch of {rows} × {window}; "
                "give a longer text or lower train.batch_tokens"
            )
        # Text is small beside a model's activations: on a GPU it lives there, and a batch is one gather.
        self.ids = _on(ids, device)
        self._within = torch.arange(window + 1, device=device)

    def cut(self, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Windows that begin at `starts` (B,), and the same moved on by one token: inputs and targets (B, T)."""
        chunk = self.ids[(starts.unsqueeze(1) + self._within) % self.size].long()  # (B, T + 1)
        return chunk[:, :-1], chunk[:, 1:]


class Streams:
    """Contiguous streams for truncated backpropagation through time."""

    def __init__(
        self,
        ids: Array,
        *,
        rows: int,
        window: int,
        seed: int,
        forget: float = 0.0,
        device: torch.device | str = "cpu",
        name: str = "the text",
    ) -> None:
        self.ring = Ring(ids, rows, window, device, name)
        self.rows, self.window, self.seed, self.forget = rows, window, seed, forget
        self.steps_per_epoch = self.ring.size // rows // window
        self.tokens_per_step = rows * window
        self._starts = torch.arange(rows, device=device) * (self.steps_per_epoch * window)  # (B,)

    def at(self, step: int) -> Batch:
        epoch, index = divmod(step, self.steps_per_epoch)
        opened = mix_seed(self.seed, "streams", epoch) % self.ring.size
        inputs, targets = self.ring.cut(self._starts + (opened + index * self.window))
        size = self.tokens_per_step
        return Batch(inputs, targets, fresh=index == 0, keep=self._keep(step), tokens=size, read=size)

    def _keep(self, step: int) -> Tensor | None:
        if self.forget == 0.0:
            return None
        drawn = np.random.default_rng(mix_seed(self.seed, "forget", step)).random(self.rows) >= self.forget
        return None if drawn.all() else torch.from_numpy(drawn).to(self._starts.device)


class Windows:
    """Independent windows in a new order each epoch."""

    def __init__(
        self,
        ids: Array,
        *,
        rows: int,
        window: int,
        seed: int,
        device: torch.device | str = "cpu",
        name: str = "the text",
    ) -> None:
        self.ring = Ring(ids, rows, window, device, name)
        self.rows, self.window, self.seed, self.device = rows, window, seed, device
        self.steps_per_epoch = self.ring.size // window // rows
        self.tokens_per_step = rows * window
        self._planned = -1

    def at(self, step: int) -> Batch:
        epoch, index = divmod(step, self.steps_per_epoch)
        if epoch != self._planned:
            draw = np.random.default_rng(mix_seed(self.seed, "windows", epoch))
            opened = int(draw.integers(self.ring.size))
            order = torch.from_numpy(draw.permutation(self.ring.size // self.window)).to(self.device)
            self._starts = order * self.window + opened
            self._planned = epoch
        inputs, targets = self.ring.cut(self._starts[index * self.rows : (index + 1) * self.rows])
        return Batch(inputs, targets, tokens=self.tokens_per_step, read=self.tokens_per_step)


class Rows:
    """Sequences of different lengths, each a prompt whose loss is not counted and a continuation whose is.

    Sorted by length with ties in a new order each epoch, cut into batches of at most `batch_tokens`
    padded tokens, and the batches shuffled: how many there are is the same in every epoch.
    """

    def __init__(
        self, sequences: list[tuple[list[int], int]], *, batch_tokens: int, seed: int, name: str = "the data"
    ) -> None:
        """`sequences`: (ids, how many of them are prompt)."""
        if not sequences:
            raise DataError(f"{name} holds no rows")
        self.sequences, self.seed = sequences, seed
        self.tokens_per_step = batch_tokens
        self._lengths = np.array([len(ids) - 1 for ids, _ in sequences])
        if self._lengths.min() < 1:
            row = int(self._lengths.argmin())
            raise DataError(f"{name}, row {row + 1}: a sequence needs at least two tokens")
        ordered = np.sort(self._lengths)
        if ordered[-1] > batch_tokens:
            raise DataError(
                f"{name} has a row of {ordered[-1]:,} tokens, more than train.batch_tokens={batch_tokens}; raise that"
            )
        self._cuts = [0]
        for i, length in enumerate(ordered):  # ascending, so the newest row is the widest
            if (i + 1 - self._cuts[-1]) * length > batch_tokens:
                self._cuts.append(i)
        self._cuts.append(len(ordered))
        self.steps_per_epoch = len(self._cuts) - 1
        self._planned = -1

    def at(self, step: int) -> Batch:
        epoch, index = divmod(step, self.steps_per_epoch)
        if epoch != self._planned:
            draw = np.random.default_rng(mix_seed(self.seed, "rows", epoch))
            self._order = np.lexsort((draw.permutation(len(self._lengths)), self._lengths))
            self._turn = draw.permutation(self.steps_per_epoch)
            self._planned = epoch
        turn = int(self._turn[index])
        return collate([self.sequences[i] for i in self._order[self._cuts[turn] : self._cuts[turn + 1]]])


def collate(sequences: list[tuple[list[int], int]]) -> Batch:
    """Pad (ids, prompt length) pairs on the right into one batch; targets are the ids moved by one."""
    lengths = [len(ids) - 1 for ids, _ in sequences]
    width = max(lengths)
    inputs = np.zeros((len(sequences), width), dtype=np.int64)
    targets = np.full((len(sequences), width), IGNORE, dtype=np.int64)
    for row, (ids, prompt) in enumerate(sequences):
        inputs[row, : lengths[row]] = ids[:-1]
        first = max(prompt - 1, 0)
        targets[row, first : lengths[row]] = ids[first + 1 :]
    full = min(lengths) == width
    return Batch(
        torch.from_numpy(inputs),
        torch.from_numpy(targets),
        lengths=None if full else torch.tensor(lengths),
        tokens=int((targets != IGNORE).sum()),
        read=sum(lengths),
    )


Side = Literal["source", "target"]
AT_ONCE = 1 << 12  # pairs that are drawn together to learn their lengths


class Draw(Protocol):
    """Fresh ids for some pairs, as BPE-dropout makes them: all rows end to end, and the length of each.

    None leaves a side as it is stored.
    """

    def __call__(self, pairs: Array, epoch: int, side: Side) -> tuple[Array, Array] | None: ...


class PairBatches:
    """Sources and targets, batched with pairs of like lengths.

    Sorted by the longer side, then by how much longer it is; ties come in a new order each epoch. Cut
    into batches whose rows, times the wider side with its padding, are at most `batch_tokens`; and the
    batches shuffled. How many there are is the same in every epoch.

    A source row is complete: its tag and end are in it. Of a target `t` the decoder reads `start, *t`
    and predicts `*t, eos`. Widths are multiples of `pad_to`.

    `draw` gives other ids than the stored ones, of other lengths each epoch. How many rows each batch has
    is planned by the first epoch's draw; which rows, by each epoch's own, so that they stay of like
    lengths, and a later epoch's batches exceed `batch_tokens` by little. What is drawn longer than
    `longest`, the most that a model can take in, stays as it is stored.

    With `alike` batches come in few shapes, one or two for each width: both sides are as wide as the wider,
    and rows of nothing fill a batch up.
    """

    def __init__(
        self,
        sources: Sequence[Any],
        targets: Sequence[Any],
        *,
        batch_tokens: int,
        seed: int,
        start: int,
        eos: int,
        name: str = "the data",
        pad_to: int = 1,
        draw: Draw | None = None,
        longest: int | None = None,
        alike: bool = False,
    ) -> None:
        if not len(sources):
            raise DataError(f"{name} holds no pairs")
        self.alike = alike
        self.sources, self.targets = _Sequences(sources), _Sequences(targets)
        self.seed, self.start, self.eos, self.pad_to = seed, start, eos, pad_to
        self.draw, self.longest = draw, longest
        self.tokens_per_step = batch_tokens
        if self.sources.lengths.min() == 0:
            pair = int(self.sources.lengths.argmin())
            raise DataError(f"{name}, pair {pair + 1:,}: the source has no tokens")
        width = _rounded(np.maximum(self.sources.lengths, self.targets.lengths + 1), pad_to)
        if width.max() > batch_tokens:
            pair = int(width.argmax())
            raise DataError(
                f"{name}, pair {pair + 1:,}: {width[pair]:,} tokens on one side, more than "
                f"train.batch_tokens={batch_tokens}; raise that, or leave out long pairs with data.max_length"
            )
        self._rank, widths = self._sorted(0)
        self._cuts = _cut(widths, batch_tokens)
        self.steps_per_epoch = len(self._cuts) - 1
        self._planned = -1

    def at(self, step: int) -> Batch:
        epoch, index = divmod(step, self.steps_per_epoch)
        if epoch != self._planned:
            rank = self._sorted(epoch)[0] if self.draw else self._rank
            draw = np.random.default_rng(mix_seed(self.seed, "pairs", epoch))
            mixed = draw.permutation(len(rank))
            # A stable sort of two-byte numbers takes linear time: millions of pairs in a moment.
            self._order = mixed[np.argsort(rank[mixed], kind="stable")]
            self._turn = draw.permutation(self.steps_per_epoch)
            self._planned = epoch
        turn = int(self._turn[index])
        pairs = self._order[self._cuts[turn] : self._cuts[turn + 1]]
        source = self._rows(pairs, epoch, "source", self.sources)
        target = self._rows(pairs, epoch, "target", self.targets)
        batch = _pair_batch(source, target, self.start, self.eos, self.pad_to)
        return _filled(batch, self.tokens_per_step, self.pad_to) if self.alike else batch

    def _sorted(self, epoch: int) -> tuple[Array, Array]:
        """Each pair's rank among all, the same for pairs of one shape; and the widths in ascending order."""
        # As wide as they will be padded: what is padded alike may as well be shuffled alike.
        source = _rounded(self._lengths(epoch, "source", self.sources), self.pad_to)
        target = _rounded(self._lengths(epoch, "target", self.targets) + 1, self.pad_to)
        width = np.maximum(source, target)
        # By target and then source, as is usual, Multi30k takes 8% more batches of 4,096 and 19% of 12,000.
        # There and back: where one width ends and the next begins, the two sides differ alike.
        lean = np.where(width // self.pad_to % 2 == 0, source - target, target - source)
        order = np.lexsort((lean, width))
        new = (np.diff(width[order]) != 0) | (np.diff(lean[order]) != 0)
        rank = np.empty(len(order), dtype=np.uint16 if new.sum() < 1 << 16 else np.int32)
        rank[order] = np.concatenate([[0], np.cumsum(new)])
        return rank, width[order]

    def _lengths(self, epoch: int, side: Side, stored: _Sequences) -> Array:
        if self.draw is None:
            return stored.lengths
        every = np.arange(len(stored.lengths))
        parts = [every[start : start + AT_ONCE] for start in range(0, len(every), AT_ONCE)]
        return np.concatenate([self._rows(part, epoch, side, stored)[2] for part in parts])

    def _rows(self, pairs: Array, epoch: int, side: Side, stored: _Sequences) -> _Lying:
        drawn = self.draw(pairs, epoch, side) if self.draw else None
        if drawn is None:
            return stored.rows(pairs)
        flat, lengths = drawn
        starts = np.cumsum(lengths) - lengths
        if self.longest is not None:
            over = np.flatnonzero(lengths + (side == "target") > self.longest)  # the start is a token, too
            if len(over):
                kept = [stored.row(pair) for pair in pairs[over]]
                lengths = lengths.copy()
                lengths[over] = [len(ids) for ids in kept]
                starts[over] = len(flat) + np.cumsum(lengths[over]) - lengths[over]
                flat = np.concatenate([flat, *kept])
        return flat, starts, lengths


def collate_pairs(sources: Sequence[Any], targets: Sequence[Any], start: int, eos: int, *, pad_to: int = 1) -> Batch:
    """Pairs of ids in one batch, as `PairBatches` makes them: sources complete, targets bare."""
    every = np.arange(len(sources))
    return _pair_batch(_Sequences(sources).rows(every), _Sequences(targets).rows(every), start, eos, pad_to)


def collate_sources(sources: Sequence[Any], *, pad_to: int = 1) -> tuple[Tensor, Tensor | None]:
    """Rows of ids padded on the right (B, S), and their lengths (B,): None when every row is full."""
    return _padded_sources(_Sequences(sources).rows(np.arange(len(sources))), pad_to)


# Rows as they lie in a flat array of ids: the array, where each begins, how long each is.
_Lying = tuple[Array, Array, Array]


class _Sequences:
    """Many short sequences in one array."""

    def __init__(self, sequences: Sequence[Any]) -> None:
        self.lengths = np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
        flat = np.concatenate([np.asarray(ids, dtype=np.int32) for ids in sequences])
        self.flat: Array = flat.astype(np.uint16) if len(flat) and flat.min() >= 0 and flat.max() < 1 << 16 else flat
        self.starts = np.cumsum(self.lengths) - self.lengths

    def rows(self, which: Array) -> _Lying:
        return self.flat, self.starts[which], self.lengths[which]

    def row(self, which: int) -> Array:
        return self.flat[self.starts[which] : self.starts[which] + self.lengths[which]]


def _rounded(width: Any, multiple: int) -> Any:
    return -(-width // multiple) * multiple


def _cut(widths: Array, limit: int) -> list[int]:
    """Where batches of at most `limit` padded tokens end, for rows in ascending order of width."""
    cuts = [0]
    while cuts[-1] < len(widths):
        first = cuts[-1]
        here = widths[first : first + limit // int(widths[first])]
        # At least one row, however wide it was drawn.
        cuts.append(first + max(1, int(np.count_nonzero(np.arange(1, len(here) + 1) * here <= limit))))
    return cuts


def _gather(lying: _Lying, width: int) -> tuple[Array, Array]:
    """The rows (B, width), with anything behind their ends, and a mask (B, width) of what is theirs."""
    flat, starts, lengths = lying
    within = np.arange(width)
    if not len(flat):  # every row is empty, and there is nothing to read even behind their ends
        flat = np.zeros(1, dtype=np.int64)
    ids = flat.take(starts[:, None] + within, mode="clip").astype(np.int64)
    return ids, within < lengths[:, None]


def _padded_sources(lying: _Lying, pad_to: int) -> tuple[Tensor, Tensor | None]:
    lengths = lying[2]
    width = _rounded(int(lengths.max()), pad_to)
    ids, own = _gather(lying, width)
    ids[~own] = 0
    return torch.from_numpy(ids), None if lengths.min() == width else torch.from_numpy(lengths)


def _pair_batch(source: _Lying, target: _Lying, start: int, eos: int, pad_to: int) -> Batch:
    sources, source_lengths = _padded_sources(source, pad_to)
    lengths = target[2] + 1
    width = _rounded(int(lengths.max()), pad_to)
    targets, own = _gather(target, width)
    ids = np.zeros_like(targets)
    ids[:, 0] = start
    ids[:, 1:] = np.where(own, targets, 0)[:, :-1]
    targets[~own] = IGNORE
    targets[np.arange(len(lengths)), lengths - 1] = eos
    tokens = int(lengths.sum())
    return Batch(
        torch.from_numpy(ids),
        torch.from_numpy(targets),
        lengths=None if lengths.min() == width else torch.from_numpy(lengths),
        source=sources,
        source_lengths=source_lengths,
        tokens=tokens,
        read=tokens + int(source[2].sum()),
    )


def _filled(batch: Batch, limit: int, pad_to: int) -> Batch:
    """The batch with both sides as wide as the wider, and as many rows as its width allows, the last ones empty.

    Where it has more rows than that, because they were drawn wider than planned, as many as a smaller width allows.
    """
    assert batch.source is not None
    assert batch.targets is not None
    width = planned = max(batch.ids.shape[1], batch.source.shape[1])
    while limit // planned < batch.rows and planned > pad_to:
        planned -= pad_to
    rows = max(limit // planned, batch.rows)

    def filled(ids: Tensor, value: int) -> Tensor:
        return torch.nn.functional.pad(ids, (0, width - ids.shape[1], 0, rows - len(ids)), value=value)

    def lengths(given: Tensor | None, full: int) -> Tensor:
        given = torch.full((batch.rows,), full) if given is None else given
        # A row of nothing has one token to look at: a softmax over none would not be finite.
        return torch.nn.functional.pad(given, (0, rows - batch.rows), value=1)

    return replace(
        batch,
        lengths=lengths(batch.lengths, batch.ids.shape[1]),
        source_lengths=lengths(batch.source_lengths, batch.source.shape[1]),
        ids=filled(batch.ids, 0),
        targets=filled(batch.targets, IGNORE),
        source=filled(batch.source, 0),
        alike=True,
    )


def _on(ids: Array, device: torch.device | str) -> Tensor:
    if torch.device(device).type == "cpu":
        # A memory map is read-only, which PyTorch warns of; nobody writes to it here.
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return torch.from_numpy(ids)
    return torch.from_numpy(ids.astype(np.int32)).to(device)
