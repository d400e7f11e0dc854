"""Sequence to sequence: a recurrent encoder reads the source, a recurrent decoder writes the target.

    m_1 … m_S = encoder's states                    the memory (Sutskever et al. 2014, Cho et al. 2014)
    h_0 = tanh(B [→m_S; ←m_1])                      the bridge, for each layer; an LSTM's cell without the tanh
    h_t = RNN(E y_{t-1}, h_{t-1})                   with input feeding RNN([E y_{t-1}; ã_{t-1}], h_{t-1})
    α_t = softmax_s(score(h_t, m_s))                attention (Bahdanau et al. 2015; scores in nn/attention.py)
    c_t = Σ_s α_ts m_s                              the context
    ã_t = tanh(W [c_t; h_t])                        the attentional state (Luong et al. 2015, equation 5)
    P(y_t | y_1 … y_{t-1}, source) = softmax(E ã_t + b)     tied: the readout is the embedding again

Notable here:

- without attention ã_t = tanh(W h_t), and h_0 is all that the decoder learns of the source: the bottleneck
  that attention was invented for;
- in training the decoder runs over all time steps at once and so does the attention. With input feeding
  (Luong et al. 2015, section 3.3) a step needs the last one's attention, so it goes step by step;
- a beam's hypotheses share their sentence's memory: see `SharedMemory`;
- with `encoder=vit`, or another model of pictures, the memory is the picture's grid and the bridge begins from its
  mean, h_0 = tanh(B mean_s m_s): "Show, Attend and Tell" (Xu et al. 2015), without attention "Show and Tell"
  (Vinyals et al. 2015). Two parts of the former may be added, to text as well: a gate on the context,
  β_t c_t with β_t = σ(w h_t + b) (their section 4.2.1), and a penalty λ Σ_s (1 − Σ_t α_ts)² for each sequence, so
  that every place is looked at some time (their equation 14).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn

from legato.data.batching.batch import Batch, Inputs
from legato.errors import LegatoError
from legato.models.base import DEEPEST, CellsConfig, SequenceModel, Sizes
from legato.models.recurrent import RecurrentState
from legato.models.source_encoder import MEANING, SourceEncoder, SourceSetting, processors_with
from legato.nn.attention import SCORES, Score, weigh
from legato.nn.capture import capture, scope
from legato.nn.dropout import embed, variational_dropout
from legato.nn.pooling import pool
from legato.nn.recurrent import CELLS, CellState, Recurrent
from legato.nn.slots.slots import Slots
from legato.nn.slots.tensor_slots import TensorSlots, flat
from legato.nn.state import Memory, Output, SharedMemory


class Seq2SeqConfig(CellsConfig):
    """Settings of the recurrent encoder–decoder."""

    name: Literal["seq2seq"] = "seq2seq"
    cell: Literal["elman", "gru", "lstm"] = Field(
        "lstm", description="cell of encoder and decoder: elman, gru or lstm"
    )
    layers: int = Field(2, ge=1, le=DEEPEST, description="stacked layers of the encoder, and of the decoder")
    bidirectional: bool = Field(True, description="the encoder reads both ways; each direction gets half the width")
    attention: Literal["none", "dot", "bilinear", "mlp"] = Field(
        "bilinear", description="score of the attention: dot, bilinear, mlp, or none for no attention"
    )
    input_feeding: bool = Field(False, description="the decoder also reads its last attentional state; slower")
    tied: bool = Field(True, description="read out with the target embedding's weights")
    shared: bool = Field(True, description="one embedding for source and target, where they share their tokens")
    dropout: float = Field(
        0.2, ge=0, lt=1, description="variational dropout on inputs, between layers, on the output"
    )
    dropout_embedding: float = Field(0.0, ge=0, lt=1, description="whole words dropped")
    dropout_recurrent: float = Field(0.0, ge=0, lt=1, description="DropConnect on recurrent weights")
    context_gate: bool = Field(False, description="a gate says how much what was attended to counts, word by word")
    attention_penalty: float = Field(
        0.0, ge=0, description="λ of what it costs to look at a place of the source more or less than once"
    )
    encoder: SourceSetting = Field(None, description=MEANING)

    @field_validator("attention", mode="before")
    @classmethod
    def _none_is_a_name(cls, value: Any) -> Any:
        return "none" if value is None else value  # on a command line, none is nothing

    @property
    def width_multiple(self) -> int:
        return 2 if self.bidirectional and self.encoder is None else 1

    @model_validator(mode="after")
    def _goes_together(self) -> Seq2SeqConfig:
        if self.width % self.width_multiple:
            raise ValueError(f"an encoder that reads both ways needs an even width, not {self.width}")
        if self.input_feeding and self.attention == "none":
            raise ValueError("input_feeding feeds what the attention found; it needs attention dot, bilinear or mlp")
        if (self.context_gate or self.attention_penalty) and self.attention == "none":
            name = "context_gate" if self.context_gate else "attention_penalty"
            raise ValueError(f"{name} needs attention dot, bilinear or mlp")
        return self

    @property
    def attentional(self) -> int:
        """The size of what the readout reads."""
        return self.inputs if self.tied else self.width


@dataclass
class Seq2SeqMemory(Memory):
    """The encoder's states, and the decoder's first ones."""

    initial: list[CellState] = field(default_factory=list)  # one for each layer, each part (B, D)


class Seq2SeqState(RecurrentState):
    """The decoder's state while it writes: each layer's, then ã_t where that is fed, and where it looks."""

    def __init__(self, layers: list[CellState], source: SharedMemory | None, keep: int = 0) -> None:
        super().__init__(layers, keep)
        self.source = source
        self.source_length = 0 if source is None else source.length

    def reorder(self, rows: Tensor) -> None:
        super().reorder(rows)
        if self.source is not None:
            self.source.reorder(rows.tolist())

    def join(self, other: Self) -> None:
        super().join(other)
        if self.source is not None and other.source is not None:
            self.source.join(other.source)


class Bridge(nn.Module):
    """The decoder's first states from the encoder's last, layer by layer, both directions joined."""

    def __init__(self, layers: int, parts: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList(nn.Linear(width, width) for _ in range(parts)) for _ in range(layers)
        )

    def forward(self, last: list[CellState]) -> list[CellState]:
        directions = len(last) // len(self.layers)
        initial: list[CellState] = []
        for depth, maps in enumerate(self.layers):
            both = last[depth * directions : (depth + 1) * directions]
            joined = [torch.cat(part, dim=-1) for part in zip(*both, strict=True)]  # each (B, D)
            hidden, *cell = (linear(part) for linear, part in zip(maps, joined, strict=True))  # type: ignore[call-overload]
            initial.append((torch.tanh(hidden), *cell))
        return initial


class Seq2SeqModel(SequenceModel):
    """A recurrent encoder and a recurrent decoder, with attention between them."""

    Config = Seq2SeqConfig
    summary = "recurrent encoder–decoder, with dot, bilinear or MLP attention or none, input feeding"
    is_encoder_decoder = True
    part_names = ("encoder",)
    config: Seq2SeqConfig

    def __init__(self, config: Seq2SeqConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        width, inputs = config.width, config.inputs
        self.embedding = nn.Embedding(sizes.vocabulary, inputs)
        self.source_embedding: nn.Embedding | None = None
        self.encoder: Recurrent | SourceEncoder
        if config.encoder is not None:
            self.encoder = SourceEncoder(config.encoder, width, config.dropout, sizes.vocabulary)
        else:
            shared = config.shared and sizes.source is None
            source = sizes.source or sizes.vocabulary
            self.source_embedding = self.embedding if shared else nn.Embedding(source, inputs)
            self.encoder = self._stack(inputs, config.bidirectional)
        self.bridge = Bridge(config.layers, CELLS[config.cell].parts, width)
        fed = config.attentional if config.input_feeding else 0
        self.decoder = self._stack(inputs + fed, bidirectional=False)
        self.score: Score | None = None
        if config.attention != "none":
            self.score = SCORES[config.attention](width, width, width)
        self.gate = nn.Linear(width, 1) if config.context_gate else None  # w, b
        self.combine = nn.Linear(width if self.score is None else 2 * width, config.attentional, bias=False)  # W
        self.output = nn.Linear(config.attentional, sizes.vocabulary)
        for table in (self.embedding, self.source_embedding):
            if table is not None:
                nn.init.normal_(table.weight, std=3 / math.sqrt(inputs))
        nn.init.zeros_(self.output.bias)
        if config.tied:
            self.output.weight = self.embedding.weight
        else:
            nn.init.uniform_(self.output.weight, -0.1, 0.1)

    def _stack(self, inputs: int, bidirectional: bool) -> Recurrent:
        config = self.config
        return Recurrent(
            config.cell,
            inputs,
            [config.width] * config.layers,
            bidirectional=bidirectional,
            hidden_dropout=config.dropout,
            recurrent_dropout=config.dropout_recurrent,
            forget_bias=config.forget_bias,
        )

    @classmethod
    def processors_of(cls, config: Seq2SeqConfig) -> tuple[str, ...]:
        return processors_with(config.encoder)

    @property
    def source_encoder(self) -> SequenceModel | None:
        return self.encoder.model if isinstance(self.encoder, SourceEncoder) else None

    # --- reading and writing, in training -------------------------------------------------------------

    def forward(self, batch: Batch, state: Any = None) -> Output:
        """The attentional states of the target `batch.inputs.ids` (B, T), each fed the true words before it."""
        memory = self.encode(batch)
        attentional, weights, _ = self._write(batch.inputs.token_ids, self._begin(memory))
        penalty, auxiliary = self.config.attention_penalty, {}
        if penalty and self.training and weights is not None:
            auxiliary["attention"] = penalty * _uneven(weights, batch.inputs.lengths, memory.mask)
        return Output(attentional, auxiliary=auxiliary, logits=self.ctc_logits(memory))

    def encode(self, batch: Batch) -> Seq2SeqMemory:
        if isinstance(self.encoder, SourceEncoder):
            states = self.encoder(batch.source)  # (B, S, D)
            with scope("encoder"):
                capture("memory", states, "row position unit")
            lengths = self.encoder.lengths(batch.source)
            mean = pool(states, lengths, "mean")
            begun: CellState = (mean,) * CELLS[self.config.cell].parts
            return Seq2SeqMemory(states, lengths, self.bridge([begun] * self.config.layers))
        if batch.source is None or self.source_embedding is None:
            raise ValueError("this model reads a source; the batch has none")
        with scope("encoder"):
            x = self._embedded(batch.source.token_ids, self.source_embedding)  # (S, B, D)
            states, last = self.encoder(x, None, batch.source.lengths)
            states = states.transpose(0, 1)  # (B, S, D)
            capture("memory", states, "row position unit")
        return Seq2SeqMemory(states, batch.source.lengths, self.bridge(last))

    def ctc_logits(self, memory: Memory) -> Tensor | None:
        return self.encoder.ctc_logits(memory.states) if isinstance(self.encoder, SourceEncoder) else None

    @torch.no_grad()
    def align(self, batch: Batch) -> Tensor:
        """α (B, T, S): how much each source token counts when the word after `batch.inputs.ids[:, t]` is written."""
        if self.score is None:
            raise LegatoError("this model has no attention, so there is nothing to align")
        _, weights, _ = self._write(batch.inputs.token_ids, self._begin(self.encode(batch)))
        assert weights is not None
        return weights

    def _embedded(self, tokens: Tensor, table: nn.Embedding) -> Tensor:
        """(B, T) to (T, B, D)."""
        x = embed(tokens.t(), table, self.config.dropout_embedding, self.training)
        return variational_dropout(x, self.config.dropout, self.training)

    def _begin(self, memory: Seq2SeqMemory, keep: int = 0) -> Seq2SeqState:
        """The decoder's state before its first word; with input feeding the last of its layers is ã_0 = 0."""
        layers, source = memory.initial, None
        if self.config.input_feeding:
            layers = [*layers, (memory.states.new_zeros(len(memory.states), self.config.attentional),)]
        if self.score is not None:
            source = SharedMemory([memory.states, self.score.keys(memory.states)], memory.mask)
        return Seq2SeqState(layers, source, keep)

    def _write(
        self, tokens: Tensor, state: Seq2SeqState, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, list[CellState]]:
        """Read the words (B, T) so far: ã (B, T, D), α (B, T, S), and the states after each row's last word.

        Padding on the right changes nothing that comes before it, so only the states need `lengths`.
        """
        x = self._embedded(tokens, self.embedding)  # (T, B, D)
        with scope("decoder"):
            if self.config.input_feeding:
                return self._write_step_by_step(x, state.layers, state.source, lengths)
            hidden, layers = self.decoder(x, state.layers, lengths)
            attentional, weights = self._attend(hidden.transpose(0, 1), state.source)
            self._show(attentional, weights)
            dropped = variational_dropout(attentional.transpose(0, 1), self.config.dropout, self.training)
            return dropped.transpose(0, 1), weights, layers

    def _write_step_by_step(
        self, x: Tensor, layers: list[CellState], source: SharedMemory | None, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor | None, list[CellState]]:
        drawn = self.decoder.draw(x.shape[1]) if self.training else None
        ones = x.new_ones(1, x.shape[1], self.config.attentional)
        mask = variational_dropout(ones, self.config.dropout, self.training).transpose(0, 1)  # (B, 1, D)
        outputs, looks = [], []
        for t in range(len(x)):
            *below, (fed,) = layers
            hidden, above = self.decoder.step(torch.cat([x[t], fed], dim=-1), below, drawn)
            attentional, weights = self._attend(hidden.unsqueeze(1), source)  # (B, 1, D)
            assert weights is not None
            after = [*above, ((attentional * mask)[:, 0],)]
            if lengths is not None:  # a row that has ended keeps its states
                going = (t < lengths).unsqueeze(-1)
                after = [
                    tuple(torch.where(going, new, old) for new, old in zip(*pair, strict=True))
                    for pair in zip(after, layers, strict=True)
                ]
            layers = after
            outputs.append(attentional)
            looks.append(weights)
        attentional, weights = torch.cat(outputs, dim=1), torch.cat(looks, dim=1)
        self._show(attentional, weights)
        return attentional * mask, weights, layers

    def _attend(self, hidden: Tensor, source: SharedMemory | None) -> tuple[Tensor, Tensor | None]:
        """ã (B, T, D) and α (B, T, S) for the decoder's states (B, T, D)."""
        if self.score is None or source is None:
            return torch.tanh(self.combine(hidden)), None
        rows, steps, _ = hidden.shape
        states, keys = source.tensors  # (G, S, D), and what the score makes of them
        query = hidden.reshape(source.sources, source.beams * steps, -1)  # (G, W·T, D)
        mask = None if source.inside is None else source.inside.unsqueeze(1)  # (G, 1, S)
        weights = weigh(self.score(query, keys), mask)  # (G, W·T, S)
        context = (weights @ states).view(rows, steps, -1)
        if self.gate is not None:
            context = torch.sigmoid(self.gate(hidden)) * context
        attentional = torch.tanh(self.combine(torch.cat([context, hidden], dim=-1)))
        return attentional, weights.view(rows, steps, -1)

    def _show(self, attentional: Tensor, weights: Tensor | None) -> None:
        if weights is not None:
            capture("attention.weights", weights, "row position source")
        capture("attentional", attentional, "row position unit")

    # --- generation ------------------------------------------------------------------------------------

    def start(self, rows: int, capacity: int, memory: Any = None, keep: int = 0) -> Seq2SeqState:
        """The state before the first word; `keep` steps can be undone. It does not grow, whatever the `capacity`."""
        if not isinstance(memory, Seq2SeqMemory):
            raise ValueError("this model reads a source; start needs the memory that encode makes of it")
        if rows != len(memory.states):
            raise ValueError(f"start needs a row of memory for each row: there are {len(memory.states)} for {rows}")
        return self._begin(memory, keep)

    def prefill(self, inputs: Inputs, state: Seq2SeqState) -> Tensor:
        attentional, _, layers = self._write(inputs.token_ids, state, inputs.lengths)
        state.advance(layers, inputs.token_ids.shape[1], inputs.lengths)
        return self.readout(pool(attentional, inputs.lengths, "last"))  # (B, V)

    def slots(self, groups: int, width: int, capacity: int, like: Seq2SeqState, source_length: int) -> Slots | None:
        sizes = [len(layer) for layer in like.layers]

        def shared_of(state: Seq2SeqState) -> list[Tensor]:
            source = state.source
            if source is None:
                return []
            inside = source.inside
            everywhere = torch.ones(source.sources, source.length, dtype=torch.bool, device=self.device)
            return [*source.tensors, everywhere if inside is None else inside]

        def step(tokens: Tensor, parts: list[Tensor], shared: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            source = None
            if shared:
                source = SharedMemory(shared[:-1], shared[-1])
                source.beams = width
            rest = iter(parts)
            state = Seq2SeqState([tuple(next(rest) for _ in range(size)) for size in sizes], source)
            return self.step(tokens, state), flat(state.layers)

        return TensorSlots(
            groups, width, capacity, lambda state: flat(state.layers), shared_of, step, like, source_length
        )

    def step(self, tokens: Tensor, state: Seq2SeqState) -> Tensor:
        x = self.embedding(tokens)  # (B, D)
        layers = state.layers
        if self.config.input_feeding:
            *layers, (fed,) = layers
            x = torch.cat([x, fed], dim=-1)
        with scope("decoder"):
            hidden, layers = self.decoder.step(x, layers)
            attentional, weights = self._attend(hidden.unsqueeze(1), state.source)
            self._show(attentional, weights)
        if self.config.input_feeding:
            layers = [*layers, (attentional[:, 0],)]
        state.advance(layers, 1)
        return self.readout(attentional[:, 0])  # (B, V)


def _uneven(weights: Tensor, lengths: Tensor | None, inside: Tensor | None) -> Tensor:
    """Σ_s (1 − Σ_t α_ts)² of weights (B, T, S), summed over the rows, for each word that is written.

    So that with the loss of as many words it is the sum over sequences that the paper has.
    """
    rows, steps, _ = weights.shape
    words: Tensor | int = rows * steps
    if lengths is not None:
        there = torch.arange(steps, device=weights.device) < lengths.unsqueeze(1)  # (B, T)
        weights, words = weights * there.unsqueeze(-1), lengths.sum()
    uneven = (1 - weights.sum(1)).square()  # (B, S)
    return (uneven if inside is None else uneven * inside).sum() / words
