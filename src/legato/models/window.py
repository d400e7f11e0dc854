"""The fixed-window network: the feed-forward language model that recurrence replaced.

    x_t = [E w_{t-n+1}; …; E w_t]               the last n words, side by side
    h_t = tanh(W x_t + b)                       (Bengio et al. 2003)
    P(w_{t+1} | w_{t-n+1} … w_t) = softmax(O h_t + c)

Notable: its limits are the point. Nothing further back than `context` words can matter, and every
position in the window has weights of its own. The state it carries is just the last n - 1 words, so
it trains and generates through the same protocol as the recurrent models. With `around` the window
lies on both sides of a word, n before and n behind it, and the network guesses words that are hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from legato.data.batching.batch import Batch, Inputs
from legato.models.base import DEEPEST, ModelConfig, SequenceModel, Sizes
from legato.nn.dropout import dropout
from legato.nn.slots.slots import Slots
from legato.nn.slots.tensor_slots import TensorSlots
from legato.nn.state import Output

NOTHING = -1  # stands before the first word; its embedding is zero


class WindowConfig(ModelConfig):
    """Settings of the fixed-window network."""

    network: ClassVar[Any] = "window"
    both_ways: ClassVar[Mapping[str, Any]] = {"around": True}

    name: Literal["window"] = "window"
    context: int = Field(8, ge=1, description="words in the window; with around, those on each side")
    around: bool = Field(False, description="see the words on both sides, to guess a hidden one; mlm sets it")
    layers: int = Field(1, ge=1, le=DEEPEST, description="hidden layers")
    width: int = Field(256, ge=1, description="hidden size")
    embedding: int = Field(64, ge=1, description="embedding size")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout on the hidden layers")

    @property
    def reads_both_ways(self) -> bool:
        return self.around


class WindowState:
    """The last n - 1 words of each row; the whole text is kept, so going back is free."""

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids  # (B, n - 1 + length), NOTHING where a row has no word
        self.length = 0
        self.source_length = 0

    def extend(self, ids: Tensor, tokens: int) -> None:
        self.ids = ids
        self.length += tokens

    @property
    def lengths(self) -> Tensor:
        return (self.ids != NOTHING).sum(1)

    def reorder(self, rows: Tensor) -> None:
        self.ids = self.ids[rows]

    def join(self, other: WindowState) -> None:
        self.length = max(self.length, other.length)
        width = max(self.ids.shape[1], other.ids.shape[1])
        self.ids = torch.cat([F.pad(ids, (width - ids.shape[1], 0), value=NOTHING) for ids in (self.ids, other.ids)])

    def kept(self, row: int, tokens: int) -> Tensor | None:
        return None

    def rewind(self, length: int) -> None:
        self.ids = self.ids[:, : self.ids.shape[1] - (self.length - length)]
        self.length = length


class WindowModel(SequenceModel):
    """A feed-forward network over the last `context` words."""

    Config = WindowConfig
    summary = "fixed-window feed-forward network: sees the nearest `context` words and nothing else"
    config: WindowConfig

    def __init__(self, config: WindowConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        vocabulary = sizes.vocabulary
        self.embedding = nn.Embedding(vocabulary, config.embedding)
        self.seen = 2 * config.context + 1 if config.around else config.context  # words in the window
        widths = [self.seen * config.embedding] + [config.width] * config.layers
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.output = nn.Linear(config.width, vocabulary)

    @property
    def can_generate(self) -> bool:
        return not self.config.around

    def forward(self, batch: Batch, state: Tensor | None = None) -> Output:
        """Read (B, T) tokens; `state` is the (B, n - 1) words before them."""
        if self.config.around:
            return Output(self._over(self._surrounded(batch)))
        before = self._nothing(batch.rows) if state is None else state
        ids = torch.cat([before, batch.inputs.token_ids], dim=1)  # (B, n - 1 + T)
        last = _at_the_end(ids, batch.inputs)
        return Output(self._over(ids), last[:, last.shape[1] - before.shape[1] :])

    def states(self, batch: Batch) -> list[Tensor]:
        return [self(batch).hidden]

    def reset_state(self, state: Tensor, keep: Tensor) -> Tensor:
        return state.masked_fill(~keep.unsqueeze(1), NOTHING)

    def start(self, rows: int, capacity: int, memory: Any = None) -> WindowState:
        return WindowState(self._nothing(rows))

    def prefill(self, inputs: Inputs, state: WindowState) -> Tensor:
        joined = torch.cat([state.ids, inputs.token_ids], dim=1)
        state.extend(_at_the_end(joined, inputs), inputs.token_ids.shape[1])
        return self._last(state)

    def slots(self, groups: int, width: int, capacity: int, like: WindowState, source_length: int) -> Slots | None:
        before = self.config.context - 1

        def ids_of(state: WindowState) -> list[Tensor]:
            return [state.ids[:, state.ids.shape[1] - before :]]

        def step(tokens: Tensor, parts: list[Tensor], shared: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            state = WindowState(parts[0])
            return self.step(tokens, state), ids_of(state)

        return TensorSlots(groups, width, capacity, ids_of, lambda state: [], step, like)

    def step(self, tokens: Tensor, state: WindowState) -> Tensor:
        state.extend(torch.cat([state.ids, tokens.unsqueeze(1)], dim=1), 1)
        return self._last(state)

    def _last(self, state: WindowState) -> Tensor:
        return self.readout(self._over(state.ids[:, -self.config.context :])[:, -1])

    def _surrounded(self, batch: Batch) -> Tensor:
        """The ids with n times NOTHING on both sides, and in the place of padding: (B, n + T + n)."""
        ids, context = batch.inputs.token_ids, self.config.context
        if batch.inputs.lengths is not None:
            padding = torch.arange(ids.shape[1], device=ids.device) >= batch.inputs.lengths.unsqueeze(1)  # (B, T)
            ids = ids.masked_fill(padding, NOTHING)
        return F.pad(ids, (context, context), value=NOTHING)

    def _nothing(self, rows: int) -> Tensor:
        return torch.full((rows, self.config.context - 1), NOTHING, device=self.device)

    def _over(self, ids: Tensor) -> Tensor:
        """Hidden states of every full window, of n words, in (B, n - 1 + T) ids: (B, T, D)."""
        known = (ids != NOTHING).unsqueeze(-1)
        x = self.embedding(ids.clamp(min=0)) * known  # (B, n - 1 + T, E)
        x = x.unfold(1, self.seen, 1).transpose(2, 3).flatten(2)  # (B, T, n·E)
        for layer in self.hidden:
            x = dropout(torch.tanh(layer(x)), self.config.dropout, self.training)
        return x


def _at_the_end(ids: Tensor, inputs: Inputs) -> Tensor:
    """Rows that end in `inputs` moved right over their padding, so that each one's window is its last words."""
    if inputs.lengths is None:
        return ids
    padding = inputs.token_ids.shape[1] - inputs.lengths  # (B,)
    places = torch.arange(ids.shape[1], device=ids.device) - padding.unsqueeze(1)  # (B, T)
    return ids.gather(1, places.clamp(min=0)).masked_fill(places < 0, NOTHING)
