"""The key/value cache: what a Transformer remembers of the rows that write, in blocks.

Notable here:

- a row begins at its first token and has a length; nothing is padded, moved or joined;
- keys and values lie in blocks of `BLOCK` slots, from one pool for all rows. A row takes a block when it needs one,
  so the memory in use grows with the tokens that are there (as in PagedAttention, Kwon et al. 2023);
- a table names the slot of each token of a row. Rows that begin alike name the same slots: a beginning is in memory
  once;
- a block that no row uses keeps its content until another row takes it, and rows that begin with that content find it
  by a digest of all tokens up to its end;
- block 0 is nobody's: rows that have ended write there until the host has seen it.

The table and the lengths lie on the model's device, where a recorded step reads them; which block is whose, the host
knows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BLOCK: Final = 16  # tokens of a block


class Reading(NamedTuple):
    """The tokens that some rows read in one step, one row's behind the other's: N tokens of M rows."""

    starts: Tensor  # (M + 1,) int32, where each row's tokens begin, and where the last one's end
    positions: Tensor  # (N,) int64, where each token stands in its row
    slots: Tensor  # (N,) int32, where its keys and values go
    tables: Tensor  # (M, capacity) int32, the slots of each row's tokens
    longest: int  # the most tokens that a row reads; 1: each row reads one
    deepest: int  # no row has more tokens than this after the step
    on_host: tuple[NDArray[Any], NDArray[Any]] | None = None  # `starts`, and the tokens that each row has before


class BlockPast:
    """A layer's keys and values, as the modules of self-attention see them (`multihead.Past`)."""

    def __init__(self, store: Tensor, slots: Tensor, tables: Tensor) -> None:
        """`store` (2, blocks, H, BLOCK, K); new tokens go to `slots` (M, T), and see `tables` (M, S)."""
        self.store, self.slots, self.tables = store, slots, tables

    def write(self, new: Tensor) -> tuple[Tensor, Tensor]:
        """Take in keys and values (2, M, H, T, K); all there are, (M, H, S, K) each."""
        self.store[:, self.slots // BLOCK, :, self.slots % BLOCK] = new.permute(1, 3, 0, 2, 4).to(self.store.dtype)
        seen = self.store[:, self.tables // BLOCK, :, self.tables % BLOCK]  # (M, S, 2, H, K)
        key, value = seen.unbind(2)
        return key.transpose(1, 2), value.transpose(1, 2)


class PaddedReading(NamedTuple):
    """A `Reading` for modules, which read rows side by side: padded on the right."""

    tokens: Tensor  # (M, T), where each token stands among the N
    positions: Tensor  # (M, T)
    slots: Tensor  # (M, T), what pads goes to nobody's
    tables: Tensor  # (M, S), nobody's slots behind a row's end
    last: Tensor  # (M,), of T

    @classmethod
    def of(cls, reading: Reading) -> PaddedReading:
        starts = reading.starts.long()
        counts = starts.diff()  # (M,)
        columns = torch.arange(reading.longest, device=starts.device)
        inside = columns < counts[:, None]  # (M, T)
        tokens = torch.where(inside, starts[:-1, None] + columns, starts[:-1, None])
        positions = reading.positions[tokens]
        seen = torch.arange(min(reading.deepest, reading.tables.shape[1]), device=starts.device)
        there = seen <= reading.positions[starts[1:] - 1][:, None]  # (M, S)
        tables = torch.where(there, reading.tables[:, : len(seen)], 0).long()
        return cls(tokens, positions, torch.where(inside, reading.slots[tokens], 0), tables, counts - 1)

    def visible(self, window: int | None) -> Tensor:
        """What each token sees, (M, 1, T, S)."""
        behind = torch.arange(self.tables.shape[1], device=self.tables.device) - self.positions.unsqueeze(-1)
        seen = behind <= 0 if window is None else (behind <= 0) & (behind > -window)
        return seen.unsqueeze(1)


class KVCache:
    """Blocks for the keys and values of `rows` rows of up to `capacity` tokens.

    >>> cache = KVCache(2, 1, 8, blocks=4, rows=3, capacity=64, like=torch.empty(0))
    >>> cache.begin(0, [5] * 40), cache.reserve(0, 40), cache.in_use
    (0, True, 3)
    >>> cache.name_blocks(0, [5] * 40)
    >>> cache.begin(1, [5] * 36), cache.in_use  # two blocks are those of row 0
    (32, 3)
    """

    def __init__(
        self, layers: int, heads: int, head_width: int, *, blocks: int, rows: int, capacity: int, like: Tensor
    ) -> None:
        """`blocks` that rows may have; `like` says which device and dtype."""
        device = like.device
        self.blocks, self.rows, self.capacity, self.device = blocks, rows, capacity, device
        self.store = like.new_empty(layers, 2, blocks + 1, heads, BLOCK, head_width)
        self.store[:, :, 0] = 0  # what lies in memory may be NaN
        self.table = torch.zeros(rows, capacity, dtype=torch.int32, device=device)
        self.lengths = torch.zeros(rows, dtype=torch.long, device=device)  # tokens that each row has; 0: nobody's row
        self.reserved = [0] * rows  # tokens of each row that have a slot
        self.kernel: Any = None  # what reads rows (kernels/paged_decoder.py, kernels/cuda/paged_step.py)
        self.most_idle = blocks  # blocks whose content is kept though no row uses them
        self._slots = np.zeros((rows, capacity), dtype=np.int32)  # the table, as the host knows it
        self._fresh: list[tuple[int, int, int]] = []  # a row and its columns that the device does not know yet
        self._free = list(range(blocks, 0, -1))
        self._users = [0] * (blocks + 1)  # rows that name each block
        self._blocks: list[list[int]] = [[] for _ in range(rows)]  # that each row names
        self._digests: list[list[bytes]] = [[] for _ in range(rows)]  # of the blocks of each row that have one
        self._named: dict[bytes, int] = {}  # blocks by the digest of what they hold
        self._names: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # blocks with a digest that no row uses; the oldest first

    @property
    def free(self) -> int:
        """Blocks that rows may take."""
        return len(self._free) + len(self._idle)

    @property
    def in_use(self) -> int:
        """Blocks that rows name."""
        return self.blocks - self.free

    def begin(self, row: int, tokens: Sequence[int], kind: int = 0) -> int:
        """A row begins; how many of its first tokens are in memory, since another row has read them.

        `kind` tells apart what reads the same tokens in other ways: adapters. The last token is left to be read:
        nobody keeps its logits.
        """
        digests = []
        for digest in digests_of(tokens, (len(tokens) - 1) // BLOCK, kind):
            if digest not in self._named:
                break
            digests.append(digest)
        self._digests[row] = digests
        blocks = [self._named[digest] for digest in digests]
        for block in blocks:
            self._users[block] += 1
            self._idle.pop(block, None)
        self._give(row, blocks)
        return len(blocks) * BLOCK

    def reserve(self, row: int, tokens: int) -> bool:
        """See that a row has slots for so many tokens; whether there were blocks for them."""
        first, last = self.reserved[row], min(tokens, self.capacity)
        if last <= first:
            return True
        needed = -(-(last - first) // BLOCK)
        if needed > self.free:
            return False
        self._give(row, [self._take() for _ in range(needed)])
        return True

    def forget(self) -> None:
        """All rows leave, and nobody can begin with what they have read: the weights may become others."""
        for row in range(self.rows):
            if self._blocks[row]:
                self.leave(row)
        self.store[:, :, 0] = 0  # where rows wrote that had ended, of weights that may not have been finite
        self._free += self._idle
        self._idle.clear()
        self._named.clear()
        self._names.clear()

    def leave(self, row: int) -> None:
        """A row has ended: its blocks go back to the pool."""
        for block in reversed(self._blocks[row]):  # of a beginning the end is taken first
            self._users[block] -= 1
            if self._users[block]:
                continue
            if block in self._names:
                self._idle[block] = None
            else:
                self._free.append(block)
        while len(self._idle) > self.most_idle:
            self._free.append(self._evicted())
        self._blocks[row], self._digests[row] = [], []
        self._clear(row)

    def move(self, row: int, to: int) -> None:
        """A row goes on in the place of one that has left; the caller moves its length."""
        self._blocks[to], self._blocks[row] = self._blocks[row], []
        self._digests[to], self._digests[row] = self._digests[row], []
        count = self.reserved[to] = self.reserved[row]
        self._slots[to, :count] = self._slots[row, :count]
        self._fresh.append((to, 0, count))
        self._clear(row)

    def name_blocks(self, row: int, tokens: Sequence[int], kind: int = 0) -> None:
        """Let others begin with what a row has read: these are its tokens."""
        digests, blocks = self._digests[row], self._blocks[row]
        for digest in digests_of(tokens, len(tokens) // BLOCK, kind, digests):
            block = blocks[len(digests)]
            digests.append(digest)
            if digest not in self._named and block not in self._names:
                self._named[digest], self._names[block] = block, digest

    def flush(self) -> None:
        """Let the device know of the slots that rows have got."""
        if not self._fresh:
            return
        fresh, self._fresh = self._fresh, []
        columns = np.concatenate([np.arange(row * self.capacity + a, row * self.capacity + b) for row, a, b in fresh])
        both = np.stack([columns, self._slots.reshape(-1)[columns]])
        columns_there, slots = upload(both, self.device)
        self.table.view(-1).index_copy_(0, columns_there, slots.to(torch.int32))

    def _give(self, row: int, blocks: list[int]) -> None:
        """Blocks are the next of a row."""
        if not blocks:
            return
        first = self.reserved[row]
        slots = np.array(blocks, dtype=np.int32)[:, None] * BLOCK + np.arange(BLOCK, dtype=np.int32)
        last = min(first + slots.size, self.capacity)
        self._slots[row, first:last] = slots.ravel()[: last - first]
        self._blocks[row] += blocks
        self.reserved[row] = last
        self._fresh.append((row, first, last))

    def _clear(self, row: int) -> None:
        """A row names nobody's slots: a row that has ended may write beyond those that it had."""
        count = self.reserved[row]
        self._slots[row, :count] = 0
        self.reserved[row] = 0
        self._fresh.append((row, 0, count))

    def _take(self) -> int:
        block = self._free.pop() if self._free else self._evicted()
        self._users[block] = 1
        return block

    def _evicted(self) -> int:
        """The block that nobody has used for longest, whose content goes."""
        block, _ = self._idle.popitem(last=False)
        del self._named[self._names.pop(block)]
        return block


def digests_of(tokens: Sequence[int], blocks: int, kind: int = 0, known: Sequence[bytes] = ()) -> Iterator[bytes]:
    """For each of the first whole blocks of a row: what stands for its tokens and all before them. Some are known."""
    digest = known[-1] if known else kind.to_bytes(8, "little")
    first = len(known)
    data = np.asarray(tokens[first * BLOCK : blocks * BLOCK], dtype=np.int64).tobytes()
    for at in range(0, len(data), 8 * BLOCK):
        digest = blake2b(digest + data[at : at + 8 * BLOCK], digest_size=16).digest()
        yield digest


def upload(array: NDArray[Any], device: torch.device) -> Tensor:
    """An array on a device; the host does not wait for it."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
