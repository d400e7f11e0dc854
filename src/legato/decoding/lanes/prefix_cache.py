"""What was computed of earlier prompts, for those that begin alike: a system prompt, a dialogue that goes on.

Kept are keys and values of a row by its tokens and its adapter, which computes others of the same tokens; the last
used last, and no more bytes than there is room for. What a state cannot give back in part (a recurrent one) is not
kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from torch import Tensor

from legato.nn.adapters.lora_by_row import BASE

LEAST: Final = 16  # tokens in common that are worth being copied


class PrefixCache:
    """Beginnings that were read before."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes, self.bytes = most_bytes, 0
        self.reused = 0  # tokens that were not read again
        # By adapter and tokens: those, and what they gave.
        self._kept: OrderedDict[tuple[int, bytes], tuple[Any, Tensor]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def restore(self, tokens: Sequence[int], state: Any, adapter: int = BASE) -> int:
        """Put what is known of a prompt's beginning into a state of one row; how many tokens that are.

        The last token is always left to be read: nobody has kept its logits.
        """
        best, shared = self._best(tokens, adapter)
        if best is None:
            return 0
        self._kept.move_to_end(best)
        state.restore(self._kept[best][1][..., :shared, :])
        self.reused += shared
        return shared

    def known(self, tokens: Sequence[int], adapter: int = BASE) -> int:
        """How many tokens of a prompt's beginning `restore` would put into a state."""
        best, shared = self._best(tokens, adapter)
        return 0 if best is None else shared

    def _best(self, tokens: Sequence[int], adapter: int) -> tuple[tuple[int, bytes] | None, int]:
        wanted = np.asarray(tokens[:-1], dtype=np.int32)
        best, shared = None, LEAST - 1
        for name, (known, _) in self._kept.items():
            if name[0] != adapter:
                continue
            most = min(len(known), len(wanted))
            differing = np.flatnonzero(known[:most] != wanted[:most])
            count = int(differing[0]) if len(differing) else most
            if count > shared:
                best, shared = name, count
        return best, shared

    def keep(self, tokens: Sequence[int], state: Any, row: int, adapter: int = BASE) -> None:
        """Keep what a state has of a row that took in these tokens, and not of what it took in before them."""
        known = np.asarray(tokens, dtype=np.int32)
        if len(known) < LEAST:
            return
        name = adapter, known.tobytes()
        for other in [each for each in self._kept if _one_begins_the_other(each, name)]:
            if len(other[1]) >= len(name[1]):
                self._kept.move_to_end(other)
                return
            self._drop(other)
        values = state.kept(row, len(known))
        if values is None or values.nbytes > self.most_bytes:
            return
        self._kept[name] = known, values
        self.bytes += values.nbytes
        while self.bytes > self.most_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, name: tuple[int, bytes]) -> None:
        self.bytes -= self._kept.pop(name)[1].nbytes


def _one_begins_the_other(one: tuple[int, bytes], other: tuple[int, bytes]) -> bool:
    return one[0] == other[0] and (one[1].startswith(other[1]) or other[1].startswith(one[1]))
