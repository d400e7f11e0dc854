"""The key/value cache: what a Transformer remembers while it generates.

Notable here:

- all layers' keys and values lie in one tensor, allocated once for `capacity` columns;
- as a rule every row has a token in each column, and nothing needs a mask. Prompts of different lengths
  are aligned at their ends, in the columns that the longest of them takes; from then on the cache knows
  each column's position in its row (NOTHING: no token there), and the mask and the positions come from that;
- on a CPU `reorder` copies only rows that change, and of those only the columns in which they differ from what
  they are to be: beams of one prompt mostly differ in the last few;
- what an encoder left is kept once for each source. Rows know theirs by their place: they come in
  groups of one size, one group a source, which is how beams come. When they do not, the sources are
  copied until they do, down to one for each row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from legato.errors import LegatoError
from legato.nn.attention import additive, visible
from legato.nn.multihead import Past, Source
from legato.nn.positions import At

NOTHING = -1  # the position of a column without a token


class View(NamedTuple):
    """What new tokens may see in a layer."""

    mask: Tensor | None
    causal: bool
    first: int  # column from which on there is anything to see


class CacheSlice(NamedTuple):
    """Columns made ready for new tokens: where those stand, what they may see, where their keys go."""

    at: At
    views: list[View]  # one a layer
    pasts: list[Past]  # one a layer
    sources: list[Source] | None


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
        sources: list[Source] | None = None,
    ) -> None:
        """`like` says which device and dtype, `windows` how far each layer sees."""
        self.length = 0
        self.capacity = capacity
        self.limit = limit
        self.windows = [None] * layers if windows is None else list(windows)
        self.sources = None if sources is None else Sources(sources)
        self._store = like.new_empty(layers, 2, rows, heads, capacity, head_width)
        self._longest = 0  # tokens in the longest row; where ragged, at least that
        # A number for what each row has in each column, (B, capacity): where two rows have the same number they have
        # the same keys and values. Only on a CPU, see `reorder`.
        self._numbers = np.zeros((rows, capacity), dtype=np.int64) if like.is_cpu else None
        self._next_number = 0
        # Only where rows are of different lengths:
        self._positions: Tensor | None = None  # (B, capacity)
        self._counts = torch.empty(0)  # (B,), tokens in each row
        self._padding = torch.empty(0)  # (B, capacity), what a mask adds at each column

    @property
    def rows(self) -> int:
        return self._store.shape[2]

    def open(self, columns: int, lengths: Tensor | None = None) -> CacheSlice:
        """Take `columns` more. Where `lengths` (B,) are given, each row has so many tokens, at the end of them."""
        start, stop = self.length, self.length + columns
        if stop > self.capacity:
            raise ValueError(f"this cache has {self.capacity} columns; {stop} were asked for")
        self._stay_below_limit(columns, lengths)
        if lengths is not None and self._positions is None:
            self._become_ragged()
        at: At = slice(start, stop)
        if self._positions is not None:
            numbers = self._place(start, stop, lengths)
            at = numbers.clamp(min=0)
            views = {window: self._ragged_view(numbers, start, stop, window) for window in set(self.windows)}
        else:
            views = {window: self._even_view(start, stop, window) for window in set(self.windows)}
        self.length = stop
        if self._numbers is not None:
            fresh = np.arange(self._next_number, self._next_number + self.rows)
            self._numbers[:, start:stop] = fresh[:, None]
            self._next_number += self.rows
        taken = self._store[:, :, :, :, :stop]
        pasts, layers = [], [views[window] for window in self.windows]
        for view, stored in zip(layers, taken.unbind(0), strict=True):
            key, value = stored.unbind(0) if view.first == 0 else stored[:, :, :, view.first :].unbind(0)
            pasts.append(Past(stored[:, :, :, start:], key, value))
        return CacheSlice(at, layers, pasts, None if self.sources is None else self.sources.layers)

    def _even_view(self, start: int, stop: int, window: int | None) -> View:
        """What new columns see where every row has a token in each column."""
        if stop - start == 1:
            return View(None, False, 0 if window is None else max(0, stop - window))
        if start == 0 and (window is None or stop <= window):
            return View(None, True, 0)
        columns = torch.arange(stop, device=self._store.device)
        seen = visible(columns[start:], columns, causal=True, window=window)  # (T, S)
        return View(additive(seen[None, None], self._store.dtype), False, 0)

    def reorder(self, rows: Tensor) -> None:
        """Row i goes on as what row `rows[i]` was. Where there are sources, the host looks at `rows`."""
        device, now, wanted = self._store.device, self.rows, len(rows)
        listed = rows.tolist() if self.sources is not None or device.type == "cpu" else None
        if listed is not None and listed == list(range(now)):
            return
        if self.sources is not None and listed is not None:
            self.sources.reorder(listed, now)
        rows = rows.to(device)
        taken = self._store[:, :, :, :, : self.length]
        if listed is not None and self._numbers is not None and wanted <= now:
            _move(list(taken.unbind(2)), listed, _first_differing(self._numbers[:, : self.length], listed))
        else:
            picked = taken.index_select(2, rows)
            if wanted > now:
                layers, two, _, *rest = self._store.shape
                self._store = self._store.new_empty(layers, two, wanted, *rest)
            self._store[:, :, :wanted, :, : self.length] = picked
        if self._numbers is not None:
            self._numbers = self._numbers[listed]
        self._store = self._store[:, :, :wanted]
        if self._positions is not None:
            self._positions, self._counts, self._padding = (
                part[rows] for part in (self._positions, self._counts, self._padding)
            )

    def rewind(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ValueError(f"this cache holds {self.length} columns; it cannot go to {length}")
        self.length = length
        self._longest = min(self._longest, length)
        if self._positions is not None:
            self._counts = (self._positions[:, :length] != NOTHING).sum(1)
            self._padding[:, length:] = 0

    def _stay_below_limit(self, columns: int, lengths: Tensor | None) -> None:
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
        self._longest = longest

    def _become_ragged(self) -> None:
        device, rows = self._store.device, self.rows
        self._positions = torch.arange(self.capacity, device=device).repeat(rows, 1)
        self._counts = torch.full((rows,), self.length, device=device)
        self._padding = self._store.new_zeros(rows, -(-self.capacity // 8) * 8)  # see `additive` for the 8

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

    def _ragged_view(self, numbers: Tensor, start: int, stop: int, window: int | None) -> View:
        """What tokens at positions `numbers` (B, T) see, in the columns from `start` to `stop`."""
        assert self._positions is not None
        if stop - start == 1 and window is None:
            return View(self._padding[:, None, None, :stop], False, 0)  # (B, 1, 1, S), kept up to date; no work
        before = self._positions[:, :stop]  # (B, S)
        seen = visible(numbers, before, causal=True, window=window) & (before != NOTHING).unsqueeze(1)
        # What stands at no position sees itself, so that its softmax, which nobody reads, is one.
        columns = torch.arange(stop, device=seen.device)
        seen |= columns == columns[start:, None]  # (B, T, S)
        return View(additive(seen.unsqueeze(1), self._store.dtype), False, 0)


class Sources:
    """Keys and values of each source in every layer, and whose they are."""

    def __init__(self, layers: list[Source]) -> None:
        first = layers[0].key
        self._store = first.new_empty(len(layers), 2, *first.shape)  # (L, 2, G, H, S, K)
        for kept, layer in zip(self._store, layers, strict=True):
            kept[0].copy_(layer.key)
            kept[1].copy_(layer.value)
        self._mask = layers[0].mask
        self._list()

    def _list(self) -> None:
        self.layers = [Source(layer[0], layer[1], self._mask) for layer in self._store.unbind(0)]

    def reorder(self, rows: list[int], before: int) -> None:
        """Rows are now what these of `before` rows were; keep what they look at."""
        now = self._store.shape[2]
        owners = [row // (before // now) for row in rows]
        size = math.gcd(*(len(list(run)) for _, run in groupby(owners)))
        kept = owners[::size]
        if kept != list(range(now)):
            index = torch.tensor(kept, device=self._store.device)
            self._store = self._store.index_select(2, index)
            self._mask = None if self._mask is None else self._mask[index]
            self._list()


def right_aligned(tokens: Tensor, lengths: Tensor) -> Tensor:
    """Rows (B, T) padded on the right as rows padded on the left; what pads is any token of the row."""
    places = torch.arange(tokens.shape[1], device=tokens.device) - (tokens.shape[1] - lengths[:, None])  # (B, T)
    return tokens.gather(1, places.clamp(min=0))


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
