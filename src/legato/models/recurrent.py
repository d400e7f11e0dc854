"""The recurrent language model: Elman, GRU or LSTM, stacked, with the regularisers of AWD-LSTM.

    x_t = E w_t                     embedding, whole words dropped; with `characters` [E w_t; letters of w_t]
    h_t = stack of cells (nn/recurrent.py)
    P(w_{t+1} | w_1 … w_t) = softmax(E h_t + b)     tied: the readout is the embedding again

Notable: `width` is the size of every layer but, when tied, the last, which is as wide as the
embedding (Merity et al. 2018; tying by Press & Wolf 2017). With `bidirectional` the model reads both
ways, so it cannot generate; masked and labelling tasks use it so. With `characters` it also reads how each word is
spelt (nn/characters.py), by which words that it never saw have something in common with others (Ma & Hovy 2016).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from legato.data.batching.batch import Batch, Inputs
from legato.models.base import CellsConfig, SequenceModel, Sizes
from legato.nn.characters import CharacterWords
from legato.nn.dropout import embed, variational_dropout
from legato.nn.pooling import pool
from legato.nn.recurrent import CELLS, CellState, Recurrent
from legato.nn.slots.slots import Slots
from legato.nn.slots.tensor_slots import TensorSlots, flat
from legato.nn.state import Output


class RecurrentConfig(CellsConfig):
    """Settings of the recurrent models. The dropouts left out take `dropout`, or none where said so."""

    both_ways: ClassVar[Mapping[str, Any]] = {"bidirectional": True}

    name: Literal["elman", "gru", "lstm"] = "lstm"
    scale: float | None = Field(None, gt=0, description="spread of the embedding at the start; left out: chosen")
    characters: int = Field(0, ge=0, description="features of each word's letters beside its embedding; 0: none")
    tied: bool = Field(True, description="read out with the embedding's weights")
    bidirectional: bool = Field(False, description="read both ways; each direction gets half the width")
    dropout: float = Field(0.1, ge=0, lt=1, description="variational dropout on the output")
    dropout_input: float | None = Field(None, ge=0, lt=1, description="on the embedded input; left out: dropout")
    dropout_hidden: float | None = Field(None, ge=0, lt=1, description="between layers; left out: dropout")
    dropout_embedding: float = Field(0.0, ge=0, lt=1, description="whole words dropped")
    dropout_recurrent: float = Field(0.0, ge=0, lt=1, description="DropConnect on recurrent weights")
    activation_penalty: float = Field(0.0, ge=0, description="AWD-LSTM's alpha: keeps outputs small")
    temporal_penalty: float = Field(0.0, ge=0, description="AWD-LSTM's beta: keeps outputs slow")
    memory: int | None = Field(None, ge=2, description="start out remembering up to this many steps (gru, lstm)")

    @model_validator(mode="after")
    def _even(self) -> RecurrentConfig:
        if self.bidirectional and any(width % 2 for width in self.widths):
            raise ValueError("a bidirectional model needs an even width (and embedding, when tied)")
        return self

    @property
    def reads_characters(self) -> bool:
        return self.characters > 0

    @property
    def reads_both_ways(self) -> bool:
        return self.bidirectional

    @property
    def width_multiple(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def embedding_std(self) -> float:
        """Inputs want to be large, logits near zero; an embedding that is both makes a compromise."""
        if self.scale is not None:
            return self.scale
        return 3 / math.sqrt(self.inputs) if self.tied else 0.6

    @property
    def widths(self) -> list[int]:
        last = self.inputs if self.tied else self.width
        return [self.width] * (self.layers - 1) + [last]


class RecurrentState:
    """Each layer's state while generating. Keeps the last `keep` of them, so that it can go back."""

    def __init__(self, layers: list[CellState], keep: int = 0) -> None:
        self.layers = layers
        self.length = 0
        self.behind: Tensor | None = None  # (B,), columns in which each row has no token; None: no row lacks any
        self.keep = keep
        self.source_length = 0
        self._past: list[tuple[int, Tensor | None, list[CellState]]] = []

    @property
    def lengths(self) -> Tensor:
        return self.length - self._lacking()

    def _lacking(self) -> Tensor:
        if self.behind is not None:
            return self.behind
        hidden = self.layers[0][0]
        return torch.zeros(len(hidden), dtype=torch.long, device=hidden.device)

    def advance(self, layers: list[CellState], columns: int, lengths: Tensor | None = None) -> None:
        """The states after `columns` more, of which each row has a token in `lengths` (B,); None: in all."""
        if self.keep:
            self._past = [*self._past, (self.length, self.behind, self.layers)][-self.keep :]
        if lengths is not None:
            self.behind = self._lacking() + columns - lengths
        self.layers = layers
        self.length += columns

    def reorder(self, rows: Tensor) -> None:
        self.layers, self.behind = _pick(self.layers, rows), None if self.behind is None else self.behind[rows]
        self._past = [
            (length, None if behind is None else behind[rows], _pick(layers, rows))
            for length, behind, layers in self._past
        ]

    def join(self, other: Self) -> None:
        """… from where nobody can go back."""
        lengths = torch.cat([self.lengths, other.lengths])
        self.length = max(self.length, other.length)
        self.behind = self.length - lengths
        self.layers = [
            tuple(torch.cat(parts) for parts in zip(*both, strict=True))
            for both in zip(self.layers, other.layers, strict=True)
        ]
        self._past = []

    def kept(self, row: int, tokens: int) -> Tensor | None:
        return None

    def rewind(self, length: int) -> None:
        if length == self.length:
            return
        for index, (there, behind, layers) in enumerate(self._past):
            if there == length:
                self.layers, self.length, self.behind = layers, length, behind
                self._past = self._past[:index]
                return
        raise ValueError(f"this state keeps {self.keep} steps; it cannot go back from {self.length} to {length}")


def _pick(layers: list[CellState], rows: Tensor) -> list[CellState]:
    return [tuple(part[rows] for part in layer) for layer in layers]


def _mean_square(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Over (T, B, D), padding left out."""
    squares = x.float().pow(2)
    if lengths is None:
        return squares.mean()
    inside = torch.arange(len(x), device=x.device).unsqueeze(1) < lengths  # (T, B)
    return (squares * inside.unsqueeze(-1)).sum() / (inside.sum().clamp(min=1) * x.shape[-1])


class RecurrentModel(SequenceModel):
    """A stacked recurrent network over tokens."""

    Config = RecurrentConfig
    summary = "recurrent network: Elman, GRU or LSTM cells; stacked, tied, regularised as AWD-LSTM"
    config: RecurrentConfig

    def __init__(self, config: RecurrentConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        vocabulary = sizes.vocabulary
        self.embedding = nn.Embedding(vocabulary, config.inputs)
        self.stack = Recurrent(
            config.name,
            config.inputs + config.characters,
            config.widths,
            bidirectional=config.bidirectional,
            hidden_dropout=config.dropout if config.dropout_hidden is None else config.dropout_hidden,
            recurrent_dropout=config.dropout_recurrent,
            forget_bias=config.forget_bias,
            memory=config.memory,
        )
        self.output = nn.Linear(config.widths[-1], vocabulary)
        nn.init.normal_(self.embedding.weight, std=config.embedding_std)
        nn.init.zeros_(self.output.bias)
        if config.tied:
            self.output.weight = self.embedding.weight
        else:
            nn.init.uniform_(self.output.weight, -0.1, 0.1)
        self.words: CharacterWords | None = None
        if config.characters:
            third = config.characters // 3  # filters two and three bytes wide; the rest are four
            self.words = CharacterWords(config.characters, [0, third, third, config.characters - 2 * third])

    def default_head(self, plain: bool) -> dict[str, Any]:
        return {"pool": "max" if self.config.bidirectional else "last"}

    @property
    def can_generate(self) -> bool:
        return not self.config.bidirectional

    def forward(self, batch: Batch, state: list[CellState] | None = None) -> Output:
        """Read (B, T) tokens; `state` is what the previous segment of the same streams left."""
        config = self.config
        raw, after = self.stack(self._embed(batch), state, batch.inputs.lengths)
        hidden = variational_dropout(raw, config.dropout, self.training)
        auxiliary: dict[str, Tensor] = {}
        if self.training and config.activation_penalty:
            auxiliary["activation"] = config.activation_penalty * _mean_square(hidden, batch.inputs.lengths)
        if self.training and config.temporal_penalty and len(raw) > 1:
            pairs = None if batch.inputs.lengths is None else batch.inputs.lengths - 1
            auxiliary["temporal"] = config.temporal_penalty * _mean_square(raw[1:] - raw[:-1], pairs)
        return Output(hidden.transpose(0, 1), after, auxiliary)

    def _embed(self, batch: Batch) -> Tensor:
        """(B, T) tokens to (T, B, D)."""
        config = self.config
        x = embed(batch.inputs.token_ids.t(), self.embedding, config.dropout_embedding, self.training)
        if self.words is not None:
            spelt = None if batch.inputs.characters is None else batch.inputs.characters.transpose(0, 1)  # (T, B, C)
            x = torch.cat([x, self.words(spelt, batch.inputs.token_ids.t()).to(x.dtype)], dim=-1)
        before = config.dropout if config.dropout_input is None else config.dropout_input
        return variational_dropout(x, before, self.training)

    def states(self, batch: Batch) -> list[Tensor]:
        x = self._embed(batch)
        every = [x]
        self.stack(x, None, batch.inputs.lengths, every)
        every[-1] = variational_dropout(every[-1], self.config.dropout, self.training)
        return [state.transpose(0, 1) for state in every]

    def reset_state(self, state: list[CellState], keep: Tensor) -> list[CellState]:
        return [tuple(part * keep.unsqueeze(1) for part in layer) for layer in state]

    def start(self, rows: int, capacity: int, memory: Any = None, keep: int = 0) -> RecurrentState:
        """A zero state. It does not grow, so `capacity` is not needed; `keep` steps can be undone."""
        return RecurrentState(self.stack.start(rows), keep)

    def prefill(self, inputs: Inputs, state: RecurrentState) -> Tensor:
        output = self(Batch(inputs), state.layers)
        state.advance(output.state, inputs.token_ids.shape[1], inputs.lengths)
        return self.readout(pool(output.hidden, inputs.lengths, "last"))  # (B, V)

    def slots(self, groups: int, width: int, capacity: int, like: RecurrentState, source_length: int) -> Slots | None:
        parts = CELLS[self.config.name].parts

        def step(tokens: Tensor, states: list[Tensor], shared: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            state = RecurrentState([tuple(states[n : n + parts]) for n in range(0, len(states), parts)])
            return self.step(tokens, state), flat(state.layers)

        return TensorSlots(groups, width, capacity, lambda state: flat(state.layers), lambda state: [], step, like)

    def step(self, tokens: Tensor, state: RecurrentState) -> Tensor:
        x = self.embedding(tokens)
        if self.words is not None:
            x = torch.cat([x, self.words(None, tokens)], dim=-1)
        x, layers = self.stack.step(x, state.layers)
        state.advance(layers, 1)
        return self.readout(x)
