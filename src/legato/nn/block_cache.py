"""The key/value cache: what a Transformer remembers of the rows that write, in blocks.

Notable here:

- a row begins at its first token and has a length; nothing is padded, moved or joined;
- keys and values lie in blocks of `BLOCK` slots, from one pool for all rows. A row takes a block when it needs one, so
  the memory in use grows with the tokens that are there (as in PagedAttention, Kwon et al. 2023);
- a table names the slot of each token of a row. Rows that begin alike name the same slots: a beginning is kept once, and
  its blocks go back to the pool when the last row that names them has left;
- block 0 is nobody's: rows that have ended write there until the host has seen it.

The table and the lengths lie on the model's device, where a recorded step reads them; who has which block, the host
knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BLOCK: Final = 16  # tokens of a block


class Reading(NamedTuple):
    """The tokens that some rows read in one step, one row's behind the other's: N tokens of M rows."""

    starts: Tensor  # (M + 1,) int32, where each row's tokens begin, and where the last one's end
    positions: Tensor  # (N,) int64, where each token stands in its row
    slots: Tensor  # (N,) int64, where its keys and values go
    tables: Tensor  # (M, capacity) int32, the slots of each row's tokens
    longest: int  # the most tokens that a row reads; 1: each row reads one
    deepest: int  # no row has more tokens than this after the step


def upload(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """An array on a device; the host does not wait for it."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.clone()


class KVCache:
    """Blocks for the keys and values of `rows` rows of up to `capacity` tokens."""

    def __init__(
        self, layers: int, heads: int, head_width: int, *, blocks: int, rows: int, capacity: int, like: Tensor
    ) -> None:
        """`blocks` that rows may have; `like` says which device and dtype."""
        device = like.device
        self.blocks, self.rows, self.capacity, self.device = blocks, rows, capacity, device
        self.store = like.new_empty(layers, 2, blocks + 1, heads, BLOCK, head_width)
        self.store[:, :, 0] = 0  # what lies in memory may be NaN
        self.table = torch.zeros(rows, capacity, dtype=torch.int32, device=device)
        self.lengths = torch.zeros(rows, dtype=torch.long, device=device)  # tokens that each row has
        self._free = list(range(blocks, 0, -1))
        self._users = np.zeros(blocks + 1, dtype=np.int32)  # rows and beginnings that name each block
        self._blocks: list[list[int]] = [[] for _ in range(rows)]  # that each row names
        self._slots = np.zeros((rows, capacity), dtype=np.int32)  # the table, as the host knows it
        self.reserved = np.zeros(rows, dtype=np.int64)  # tokens of each row that have a slot
        self._fresh: list[tuple[int, int, int]] = []  # rows and their columns that the device does not know yet
