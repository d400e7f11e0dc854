"""ELMo: two language models over words that are read letter by letter, one from the left and one from the right.

    x_t = characters of word t (nn/characters.py)
    →h_{t,0} = ←h_{t,0} = x_t
    →h_{t,j} = P LSTM(→h_{·,j-1})_t + →h_{t,j-1}        from the left; no sum in the first layer
    ←h_{t,j} = the same from the right, with weights of its own
    P(w_{t+1} | w_1 … w_t) = softmax(S →h_{t,L}),   P(w_{t-1} | w_t … w_T) = softmax(S ←h_{t,L})
    h_{t,j} = [→h_{t,j}; ←h_{t,j}]                      what a task mixes (nn/pooling.py)

Peters et al. 2018, "Deep contextualized word representations".

Notable: the two share the words' vectors and S, and nothing else, so neither sees what it has to guess. A stacked
bidirectional LSTM, each of whose layers reads both directions of the one below, could not be trained so. P is there
where `embedding` is not the `width`, and stands behind the recurrence, not in it. `one_way` gives either direction as
a language model of its own.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from legato.data.batching.batch import Batch
from legato.models.base import DEEPEST, CellsConfig, SequenceModel, Sizes
from legato.nn.capture import scope
from legato.nn.characters import CharacterWords
from legato.nn.dropout import variational_dropout
from legato.nn.linear import Linear
from legato.nn.recurrent import CellState, Layer, LSTMCell, flip
from legato.nn.state import Output


class ElmoConfig(CellsConfig):
    """Settings of ELMo. The published one has width 4096, embedding 512, filters 32 … 1024 and two highways."""

    network: ClassVar[Any] = "characters"

    name: Literal["elmo"] = "elmo"
    layers: int = Field(2, ge=1, le=DEEPEST, description="stacked layers of each direction")
    width: int = Field(256, ge=1, description="hidden size of each direction's LSTMs")
    embedding: int | None = Field(
        None, ge=1, description="size of a word's vector and of each direction's states; the width when left out"
    )
    filters: int = Field(32, ge=1, description="character filters of width w: this many times w")
    reach: int = Field(6, ge=1, le=32, description="the widest filters, in bytes")
    highways: int = Field(1, ge=0, le=DEEPEST, description="highway layers over the filters")
    dropout: float = Field(0.1, ge=0, lt=1, description="variational dropout before, between and behind the layers")

    @property
    def reads_both_ways(self) -> bool:
        return True

    @property
    def reads_characters(self) -> bool:
        return True


class Direction(nn.Module):
    """The stacked LSTMs of one direction, with a sum around each but the first. It reads from the left."""

    def __init__(self, config: ElmoConfig, name: str) -> None:
        super().__init__()
        width, inputs = config.width, config.inputs
        self.name = name
        self.dropout = config.dropout
        self.layers = nn.ModuleList(Layer(LSTMCell(inputs, width, config.forget_bias)) for _ in range(config.layers))
        self.projections = nn.ModuleList(
            Linear(width, inputs, bias=False) for _ in range(config.layers if inputs != width else 0)
        )

    def forward(
        self, x: Tensor, states: list[CellState] | None = None, lengths: Tensor | None = None
    ) -> tuple[list[Tensor], list[CellState]]:
        """(T, B, E) to what each layer leaves, (T, B, E) each, and the layers' last states."""
        left: list[Tensor] = []
        last: list[CellState] = []
        for depth, layer in enumerate(self.layers):
            dropped = variational_dropout(x, self.dropout, self.training)
            with scope(f"{self.name}.{depth}"):
                y, after = layer(dropped, None if states is None else states[depth], lengths)
            if len(self.projections):
                y = self.projections[depth](y)
            x = y + x if depth else y
            left.append(x)
            last.append(after)
        return left, last


class ElmoModel(SequenceModel):
    """Two language models over characters. As a body its states are both directions', side by side."""

    Config = ElmoConfig
    summary = "ELMo: a forward and a backward LSTM language model over characters; tasks mix their layers"
    two_ways = True  # it is two language models: the lm task trains both
    config: ElmoConfig

    def __init__(self, config: ElmoConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        filters = [config.filters * width for width in range(1, config.reach + 1)]
        self.words = CharacterWords(config.inputs, filters, highways=config.highways)
        self.forwards = Direction(config, "forward")
        self.backwards = Direction(config, "backward")
        self.output = nn.Linear(config.inputs, sizes.vocabulary)
        nn.init.uniform_(self.output.weight, -0.1, 0.1)
        nn.init.zeros_(self.output.bias)

    def embed(self, batch: Batch) -> Tensor:
        """The words' vectors, (T, B, E); a batch without characters is spelt by the vocabulary."""
        characters = None if batch.inputs.characters is None else batch.inputs.characters.transpose(0, 1)
        return cast(Tensor, self.words(characters, batch.inputs.token_ids.t()))

    def states(self, batch: Batch) -> list[Tensor]:
        """The words' vectors, twice side by side, and both directions' states of each layer: (B, T, 2 · E) each."""
        x, lengths = self.embed(batch), batch.inputs.lengths
        lengths = None if lengths is None else lengths.to(x.device)
        before = self.forwards(x, None, lengths)[0]
        behind = self.backwards(flip(x, lengths), None, lengths)[0]
        every = [torch.cat([x, x], dim=-1)]
        every += [torch.cat([f, flip(b, lengths)], dim=-1) for f, b in zip(before, behind, strict=True)]
        every[-1] = variational_dropout(every[-1], self.config.dropout, self.training)
        return [state.transpose(0, 1) for state in every]

    def forward(self, batch: Batch, state: Any = None) -> Output:
        """Read (B, T) words both ways, each row by itself: the last layer of `states`."""
        return Output(self.states(batch)[-1])

    def halves(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states (…, 2 · E) as those of the forward and of the backward model."""
        before, behind = hidden.split(self.config.inputs, dim=-1)
        return before, behind

    def transform(self, hidden: Tensor) -> Tensor:
        """The readout guesses the next word, from the states of the forward model."""
        return hidden[..., : self.config.inputs]

    def one_way(self, reverse: bool) -> OneWay:
        """The forward model, or the backward one; the weights are the same tensors."""
        return OneWay(self, reverse)


class OneWay(SequenceModel):
    """One of ELMo's two language models, reading a stream from its left with the state carried.

    The backward one expects its text turned round: it guesses the word before from those behind.
    """

    def __init__(self, both: ElmoModel, reverse: bool) -> None:
        super().__init__(both.config, both.sizes)
        self.both = both
        self.direction = both.backwards if reverse else both.forwards
        self.output = both.output
        self.training = both.training

    def forward(self, batch: Batch, state: list[CellState] | None = None) -> Output:
        left, last = self.direction(self.both.embed(batch), state, batch.inputs.lengths)
        hidden = variational_dropout(left[-1], self.config.dropout, self.training)
        return Output(hidden.transpose(0, 1), last)
