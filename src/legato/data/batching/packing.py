"""Documents packed into rows of one length, for models that read windows and carry nothing along.

    documents   ⏎ a b c ⏎ d ⏎ e f g h ⏎          each read behind an EOS token, the last of it a target only
    rows of 4   ⏎ a b c | ⏎ d ⏎ e | f g h …       after the documents are shuffled
    documents   0 0 0 0 | 0 0 1 1 | 0 0 0 …       so that no token looks across a border

The documents come in a new order each epoch, the row that they make is cut elsewhere, and its pieces are shuffled.
What is cut off goes on in a row of its own, without its past. There is no padding, and all batches have one shape,
so a step can be recorded as a CUDA graph. A batch is a pure function of (data, seed, step), and where the text
lies on a GPU it is made there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from legato.data.batching.batch import Batch, Inputs
from legato.data.batching.batches import Array, WindowShape, mix_seed, place_ids
from legato.data.formats.text import Text
from legato.data.text.tokenizers import AnyTokenizer


def document_starts(ids: Array, text: Text, tokenizer: AnyTokenizer) -> Array:
    """Where in `cached_ids(text, tokenizer)` the EOS token stands that each document is read behind."""
    if tokenizer.ends_text:
        found = np.flatnonzero(np.asarray(ids) == tokenizer.eos_id)
        if len(found) == len(text.documents):
            return found
    # The token stands inside documents, too: it ends the lines of a text of words.
    starts, end = [], 0  # `end`: where the next document's EOS token stands
    for document in tokenizer.encode_many(text.documents):
        starts.append(end)
        ended = bool(len(document)) and int(document[-1]) == tokenizer.eos_id
        end += len(document) + (0 if ended else 1)
    return np.array(starts)


class Packed:
    """Rows of `window` tokens filled with whole and cut documents."""

    def __init__(self, ids: Array, starts: Array, shape: WindowShape, *, start: int, eos: int) -> None:
        """`ids` as `cached_ids` gives them, `starts` as `document_starts` does.

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
                self.ids[inputs].long().masked_fill(first, self._start), document_ids=documents - documents[:, :1]
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
        self._ends, self._moved, self._cuts, self._firsts = (
            self._put(x) for x in (ends, moved, cuts, self._starts[order])
        )
        self._planned = epoch

    def _put(self, values: Any) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(self.shape.device)
