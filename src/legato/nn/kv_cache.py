"""The key/value cache: what a Transformer remembers while it generates.

Notable here:

- all layers' keys and values lie in one tensor, allocated once for `capacity` columns;
- as a rule every row has a token in each column, and nothing needs a mask. Prompts of different lengths
  are aligned at their ends, in the columns that the longest of them takes; from then on the cache knows
  each column's position in its row (NOTHING: no token there), and the mask and the positions come from that;
- a beginning that was read once for all rows ends where the longest of them goes on, so that before the tokens of a
  shorter one a hole is left, until somebody has it closed who will not go back;
- rows that `join` end in the same column as those that are there, whichever are longer. They are copied to where rows
  have left, where there is room; else all are, to a place with some to spare, on a CPU;
- on a CPU `reorder` copies only rows that change, and of those only the columns in which they differ from what
  they are to be: beams of one prompt mostly differ in the last few;
- what an encoder left is kept once for each source, see `SharedMemory`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from legato.errors import LegatoError
from legato.nn.attention import additive, visible
from legato.nn.multihead import AttentionView, Past, Source, SourceStates
from legato.nn.positions import At
from legato.nn.sources import Sources

NOTHING = -1  # the position of a column without a token


class CacheSlice(NamedTuple):
    """Columns made ready for new tokens: where those stand, what they may see, where their keys go."""

    at: At
    views: list[AttentionView]  # one a layer
    pasts: list[Past]  # one a layer
    sources: Sequence[Source] | Sequence[SourceStates] | None


class CacheColumns(NamedTuple):
    """Columns made ready for new tokens, as the CPU kernels see them (kernels/decoder.py)."""

    at: At  # where the tokens stand in their rows
    column: int  # the first
    firsts: Tensor | None  # (B,) int32, the first column of each row that has a token; None: 0
    keys_values: Tensor  # (L, 2, B, H, capacity, K)
    sources: Tensor | None  # (L, 2, G, H, S, K)
    source_lengths: Tensor | None  # (G,) int32


class KeyValueCache:
    """A `State` (nn/state.py) for `rows` sequences of at most `limit` tokens, in `capacity` columns."""

    def __init__(
        self,
        layers: int,
        rows: int,
        heads: int,
        capacity: int,
        head_width: int,
        *,
        like: Tensor,
        limit: int | None = None,
        windows: Sequence[int | None] | None = None,
        sources: Sequence[Source] | Sequence[SourceStates] | None = None,
    ) -> None:
        """`like` says which device and dtype, `windows` how far each layer sees."""
        self.length = 0
        self.capacity = capacity
        self._end = capacity  # the columns that the rows which are there need at most
        self.limit = limit
        self.windows = [None] * layers if windows is None else list(windows)
        self.sources = None if sources is None else Sources(sources)
        self.kernel: Any = None  # what takes a step on a CPU (kernels/decoder.py)
        self.waiting: Any = None  # what a model is to take in beside the tokens of the prompts: pictures
        self._room = like.new_empty(layers, 2, rows, heads, capacity, head_width)  # with rows that have left
        self._store = self._room
        self._longest = 0  # tokens in the longest row; where ragged, at least that
        # A number for what each row has in each column, (B, capacity): as far as two rows have the same numbers, from
        # the first column on, they have the same keys and values. Only on a CPU, see `reorder`.
        self._numbers = np.zeros((rows, capacity), dtype=np.int64) if like.is_cpu else None
        self._next_number = 0
        # Only where rows are of different lengths:
        self._positions: Tensor | None = None  # (B, capacity)
        self._counts = torch.empty(0)  # (B,), tokens in each row
        self._padding = torch.empty(0)  # (B, capacity), what a mask adds at each column
        self._firsts: Tensor | None = None  # (B,) int32, see `CacheColumn`; made when it is wanted
        self._holes = False  # whether there may be columns without a token behind a row's first

    @property
    def rows(self) -> int:
        return self._store.shape[2]

    @property
    def store(self) -> Tensor:
        """All keys and values, (L, 2, B, H, capacity, K)."""
        return self._store

    @property
    def source_length(self) -> int:
        """The tokens of the longest source; 0 where there is none."""
        return 0 if self.sources is None else self.sources.length

    @property
    def lengths(self) -> Tensor:
        if self._positions is None:
            return torch.full((self.rows,), self.length, device=self._store.device)
        return self._counts

    def open(self, columns: int, lengths: Tensor | None = None) -> CacheSlice:
        """Take `columns` more. Where `lengths` (B,) are given, each row has so many tokens, at the end of them."""
        start, stop = self.length, self.length + columns
        self._longest = self.check_room(columns, lengths)
        if lengths is not None and self._positions is None:
            self._become_ragged(self._columns())
        self._holes |= lengths is not None and start > 0
        at: At = slice(start, stop)
        if self._positions is not None:
            numbers = self._place(start, stop, lengths)
            at = numbers.clamp(min=0)
            views = {window: self._ragged_view(numbers, start, stop, window) for window in set(self.windows)}
        else:
            views = {window: self._even_view(start, stop, window) for window in set(self.windows)}
        self.length = stop
        self._number(start, stop)
        if lengths is not None:
            self._firsts = None
        taken = self._store[:, :, :, :, :stop]
        layers = [views[window] for window in self.windows]
        pasts = []
        for window, view, stored in zip(self.windows, layers, taken.unbind(0), strict=True):
            # Without a mask a token sees all that it is given: of a window, the last columns.
            first = 0 if window is None or view.causal or view.mask is not None else max(0, stop - window)
            key, value = stored.unbind(0) if first == 0 else stored[:, :, :, first:].unbind(0)
            pasts.append(Past(stored[:, :, :, start:], key, value))
        return CacheSlice(at, layers, pasts, None if self.sources is None else self.sources.layers)

    def open_columns(self, count: int = 1) -> CacheColumns | None:
        """Take more, for the CPU kernels; None where these cannot read what is there, and nothing is taken."""
        if self.sources is not None and self.sources.lengths is None:
            return None
        firsts = None
        if self._positions is not None:
            if count > 1:
                return None
            if self._firsts is None:
                self._firsts = (self._positions[:, : self.length] != NOTHING).int().argmax(1).int()
                if bool((self._firsts + self._counts != self.length).any()):
                    self._firsts = None  # there are holes
            if self._firsts is None:
                return None
            firsts = self._firsts
        start, stop = self.length, self.length + count
        self._longest = self.check_room(count)
        at: At = slice(start, stop)
        if self._positions is not None:
            at = self._place(start, stop, None)
        self.length = stop
        self._number(start, stop)
        sources = None if self.sources is None else self.sources.store
        return CacheColumns(
            at, start, firsts, self._store, sources, None if self.sources is None else self.sources.lengths
        )

    def _number(self, start: int, stop: int) -> None:
        if self._numbers is not None:
            fresh = np.arange(self._next_number, self._next_number + self.rows)
            self._numbers[:, start:stop] = fresh[:, None]
            self._next_number += self.rows

    def _even_view(self, start: int, stop: int, window: int | None) -> AttentionView:
        """What new columns see where every row has a token in each column."""
        if stop - start == 1:
            return AttentionView()
        if start == 0 and (window is None or stop <= window):
            return AttentionView(causal=True)
        columns = torch.arange(stop, device=self._store.device)
        seen = visible(columns[start:], columns, causal=True, window=window)  # (T, S)
        return AttentionView(additive(seen[None, None], self._store.dtype))

    def reorder(self, rows: Tensor) -> None:
        """Row i goes on as what row `rows[i]` was. Where there are sources, the host looks at `rows`."""
        device, now, wanted = self._store.device, self.rows, len(rows)
        listed = rows.tolist() if self.sources is not None or device.type == "cpu" else None
        if listed is not None and listed == list(range(now)):
            return
        if self.sources is not None and listed is not None:
            self.sources.reorder(listed)
        rows = rows.to(device)
        taken = self._store[:, :, :, :, : self.length]
        if listed is not None and self._numbers is not None and wanted <= now:
            _move(list(taken.unbind(2)), listed, _first_differing(self._numbers[:, : self.length], listed))
        else:
            picked = taken.index_select(2, rows)
            if wanted > self._room.shape[2]:
                layers, two, _, *rest = self._store.shape
                self._room = self._store.new_empty(layers, two, wanted, *rest)
            self._room[:, :, :wanted, :, : self.length] = picked
        if self._numbers is not None:
            self._numbers = self._numbers[listed]
        self._store = self._room[:, :, :wanted]
        self._firsts = None
        if self._positions is not None:
            self._positions, self._counts, self._padding = (
                part[rows] for part in (self._positions, self._counts, self._padding)
            )

    def close_holes(self) -> None:
        """Move what a row has so that its tokens stand side by side, and end in the last column.

        As after `join`, `rewind` does not go further back than to here.
        """
        if not self._holes or self._positions is None:
            return
        self._holes = False
        self._firsts = None
        # A row's columns without a token come first, those with one as they were.
        order = (self._positions[:, : self.length] != NOTHING).byte().argsort(dim=1, stable=True)  # (B, S)
        for part in (self._positions, self._padding):
            part[:, : self.length] = part[:, : self.length].gather(1, order)
        places = order[None, :, None, :, None]  # of (2, B, H, S, K)
        for layer in self._store[:, :, :, :, : self.length]:
            layer.copy_(layer.gather(3, places.expand_as(layer)))
        if self._numbers is not None:
            taken = self._numbers[:, : self.length]
            taken[:] = np.take_along_axis(taken, order.numpy(), axis=1)

    def join(self, other: KeyValueCache) -> None:
        """Rows of another cache go on behind ours, all from the first column with a token in any of their rows."""
        self._holes |= other._holes
        self.kernel = other.kernel  # chosen later, of the modules as they are now: none where one has a hook since
        even = self._positions is None and other._positions is None and self.length == other.length
        taken = other.length - other._first_column()
        needed = other._end - other.length
        rows = self.rows + other.rows
        if rows <= self._room.shape[2] and taken <= self.length and needed <= self.capacity - self.length:
            self._end = max(self._end, self.length + needed)
            self._join_in_place(other, taken, even)
        else:
            self._join_elsewhere(other, rows, even)

    def _join_in_place(self, other: KeyValueCache, taken: int, even: bool) -> None:
        """… where rows have left."""
        rows, start = self.rows + other.rows, self.length - taken
        positions = [self._columns()] if not even else []
        new = self._room[:, :, self.rows : rows]
        new[:, :, :, :, :start] = 0  # nobody looks there, but what lies in memory may be NaN
        new[:, :, :, :, start : self.length] = other._store[:, :, :, :, other.length - taken : other.length]
        around = (start, self.capacity - self.length)
        columns = slice(other.length - taken, other.length)
        if not even:
            positions.append(F.pad(other._columns()[:, columns], around, value=NOTHING))
        if self._numbers is not None and other._numbers is not None:
            known = other._numbers[:, columns]
            shifted = np.where(known < 0, known, known + self._next_number)
            self._numbers = np.concatenate([self._numbers, np.pad(shifted, ((0, 0), around), constant_values=-1)])
        if self.sources is not None and other.sources is not None:
            self.sources.join(other.sources)
        self._store = self._room[:, :, :rows]
        self._longest = max(self._longest, other._longest)
        self._next_number += other._next_number
        self._firsts = None
        if not even:
            self._become_ragged(torch.cat(positions))

    def _join_elsewhere(self, other: KeyValueCache, count: int, even: bool) -> None:
        """… and all are copied."""
        caches = (self, other)
        firsts = [cache._first_column() for cache in caches]
        length = max(cache.length - first for cache, first in zip(caches, firsts, strict=True))
        self._end = length + max(cache._end - cache.length for cache in caches)
        layers, two, _, heads, _, width = self._store.shape
        room, capacity = count, self._end
        if self._store.is_cpu:  # where memory that nobody writes to is none
            room, capacity = count + count // 2, capacity + capacity // 2
        self._room = self._store.new_empty(layers, two, room, heads, capacity, width)
        store = self._room[:, :, :count]
        positions, numbers = [], []
        for cache, first, rows in zip(caches, firsts, store.split([self.rows, other.rows], 2), strict=True):
            start, taken = length - (cache.length - first), slice(first, cache.length)
            rows[:, :, :, :, :start] = 0  # nobody looks there, but what lies in memory may be NaN
            rows[:, :, :, :, start:length] = cache._store[:, :, :, :, taken]
            around = (start, capacity - length)
            positions.append(F.pad(cache._columns()[:, taken], around, value=NOTHING))
            if cache._numbers is not None:
                known = cache._numbers[:, taken]
                shifted = np.where(known < 0, known, known + (self._next_number if cache is other else 0))
                numbers.append(np.pad(shifted, ((0, 0), around), constant_values=-1))  # columns of zeros are alike
        if self.sources is not None and other.sources is not None:
            self.sources.join(other.sources)
        self._store, self.length, self.capacity = store, length, capacity
        self._longest = max(self._longest, other._longest)
        self._next_number += other._next_number
        if numbers:
            self._numbers = np.concatenate(numbers)
        if not even:
            self._become_ragged(torch.cat(positions))

    def kept(self, row: int, tokens: int) -> Tensor | None:
        """Keys and values (L, 2, H, T, K) of the first tokens that a row has; None where they lie apart."""
        first = 0
        if self._positions is not None:
            places = (self._positions[row, : self.length] != NOTHING).nonzero()[:, 0]
            first = int(places[0])
            if len(places) != self.length - first:
                return None
        return self._store[:, :, row, :, first : first + tokens].clone()

    def restore(self, values: Tensor) -> None:
        """Begin with what `kept` gave of a row, in every row of a cache that has taken in nothing."""
        assert self.length == 0, "a cache begins with what was kept"
        columns = values.shape[-2]
        self.open(columns)
        self._store[:, :, :, :, :columns] = values.unsqueeze(2)

    def rewind(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ValueError(f"this cache holds {self.length} columns; it cannot go to {length}")
        self.length = length
        self._firsts = None
        self._longest = min(self._longest, length)
        if self._positions is not None:
            self._counts = (self._positions[:, :length] != NOTHING).sum(1)
            self._padding[:, length:] = 0

    def check_room(self, columns: int, lengths: Tensor | None = None) -> int:
        """The tokens of the longest row once `columns` more are taken; an error where there is no room for them."""
        stop = self.length + columns
        if stop > self.capacity:
            raise ValueError(f"this cache has {self.capacity} columns; {stop} were asked for")
        if lengths is None:
            longest = self._longest + columns
        elif self._positions is None:
            longest = self._longest + int(lengths.max())
        else:
            longest = int((self._counts + lengths).max())
        if self.limit is not None and longest > self.limit:
            if self._positions is not None and lengths is None:
                # The longest row may have left, or gone back; only now is it worth asking the device.
                longest = int(self._counts.max()) + columns
            if longest > self.limit:
                raise LegatoError(f"a sequence of {longest} tokens is too long: this model goes up to {self.limit}")
        return longest

    def _columns(self) -> Tensor:
        """The position of each column in its row, (B, capacity)."""
        if self._positions is not None:
            return self._positions
        return torch.arange(self.capacity, device=self._store.device).repeat(self.rows, 1)

    def _first_column(self) -> int:
        """The first in which a row has a token; before it rows have left."""
        if self._positions is None or self.length == 0:
            return 0
        return int((self._positions[:, : self.length] != NOTHING).any(0).int().argmax())

    def _become_ragged(self, positions: Tensor) -> None:
        empty = positions[:, : self.length] == NOTHING  # (B, S)
        self._positions = positions
        self._firsts = None
        self._counts = self.length - empty.sum(1)
        self._padding = self._store.new_zeros(self.rows, -(-self.capacity // 8) * 8)  # see `additive` for the 8
        self._padding[:, : self.length].masked_fill_(empty, torch.finfo(self._padding.dtype).min)

    def _place(self, start: int, stop: int, lengths: Tensor | None) -> Tensor:
        """Positions (B, T) of the new columns, where rows are of different lengths; NOTHING: no token there."""
        assert self._positions is not None
        columns = torch.arange(stop - start, device=self._store.device)
        if lengths is None:
            numbers = self._counts[:, None] + columns  # (B, T)
            self._counts = self._counts + len(columns)
        else:
            places = columns - (len(columns) - lengths[:, None])  # (B, T), among the row's new tokens
            numbers = (self._counts[:, None] + places).masked_fill_(places < 0, NOTHING)
            self._counts = self._counts + lengths
            self._padding[:, start:stop].masked_fill_(places < 0, torch.finfo(self._padding.dtype).min)
        self._positions[:, start:stop] = numbers
        return numbers

    def _ragged_view(self, numbers: Tensor, start: int, stop: int, window: int | None) -> AttentionView:
        """What tokens at positions `numbers` (B, T) see, in the columns from `start` to `stop`."""
        assert self._positions is not None
        if stop - start == 1 and window is None:
            return AttentionView(self._padding[:, None, None, :stop])  # (B, 1, 1, S), kept up to date; no work
        before = self._positions[:, :stop]  # (B, S)
        seen = visible(numbers, before, causal=True, window=window) & (before != NOTHING).unsqueeze(1)
        # What stands at no position sees itself, so that its softmax, which nobody reads, is one.
        columns = torch.arange(stop, device=seen.device)
        seen |= columns == columns[start:, None]  # (B, T, S)
        return AttentionView(additive(seen.unsqueeze(1), self._store.dtype))


def right_aligned(tokens: Tensor, lengths: Tensor) -> Tensor:
    """Rows (B, T) or (B, T, D) padded on the right as rows padded on the left; what pads is any token of the row."""
    places = torch.arange(tokens.shape[1], device=tokens.device) - (tokens.shape[1] - lengths[:, None])  # (B, T)
    places = places.clamp(min=0)
    return tokens.gather(1, places if tokens.dim() == 2 else places.unsqueeze(-1).expand_as(tokens))


def _first_differing(numbers: NDArray[np.int64], sources: list[int]) -> list[int]:
    """The column (of S) from which row i of `numbers` (B, S) differs from row `sources[i]`; S where it never does."""
    same = numbers[: len(sources)] == numbers[sources]  # (B, S)
    return np.logical_and.accumulate(same, axis=1).sum(1).tolist()


def _move(rows: list[Tensor], sources: list[int], starts: list[int]) -> None:
    """Row i (…, S, K) becomes what row `sources[i]` was, in place: straight copies, in an order that loses nothing.

    Before column `starts[i]` it already is.
    """

    def copy(row: int, content: Tensor) -> None:
        rows[row][..., starts[row] :, :].copy_(content[..., starts[row] :, :])

    last = rows[0].shape[-2]
    waiting = {row: source for row, source in enumerate(sources) if source != row and starts[row] < last}
    readers = Counter(waiting.values())
    free = [row for row in waiting if not readers[row]]
    while free:
        row = free.pop()
        source = waiting.pop(row)
        copy(row, rows[source])
        readers[source] -= 1
        if not readers[source] and source in waiting:
            free.append(source)
    while waiting:  # rings: each row has one reader, so one spare opens the ring
        first = row = next(iter(waiting))
        spare = rows[first].clone()
        while (source := waiting.pop(row)) != first:
            copy(row, rows[source])
            row = source
        copy(row, spare)
