"""A body with a task's head: any model that reads a text, and what is said of the text.

    classes     y = W f(pool(h_1 … h_T)) + b         one answer a text
    tags        y_t = W h_t + b                      one a word, at its first token; a CRF may join them
    spans       (s_t, e_t) = W h_t + b               where an answer begins and ends
    ctc         y_t = W h_t + b                      a token or none, the blank, at each state (decoding/speech/)

Notable: what the head reads may be any of the body's layers or a learned mix of them (nn/pooling.py), with a
bidirectional LSTM in between; so frozen layers serve as features, as ELMo's and BERT's do. The shapes that Hugging
Face's library has are saved under its names (models/published/heads.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, cast

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from legato.config import Section
from legato.data.batching.batch import Batch, Inputs
from legato.data.positions import Positions
from legato.errors import ConfigError
from legato.models.base import SequenceModel
from legato.nn.dropout import dropout
from legato.nn.linear import Linear
from legato.nn.losses.crf import CRF
from legato.nn.pooling import AttentionPool, ScalarMix, at_positions, combine_layers, inside, pool
from legato.nn.quantized.deferred import shapes_only
from legato.nn.recurrent import Recurrent
from legato.nn.state import Output

BODY: Final = "body."  # how the names of the body's tensors begin
MOST_OUTPUTS: Final = 1_000_000  # each has a name
Layers = Literal["last", "first", "second-to-last", "sum-last-4", "concat-last-4", "sum-all", "mix"]
Pool = Literal["auto", "model", "pooler", "first", "last", "mean", "max", "attention"]


class HeadConfig(Section):
    """What lies between a body and the answer."""

    most: ClassVar[int] = 1 << 17

    layers: Layers = Field(
        "last", description="what is read: last, first, second-to-last, sum-last-4, concat-last-4, sum-all or mix"
    )
    pool: Pool = Field(
        "auto",
        description="classes: pooler, first, last, mean, max or attention; model: what suits its architecture; "
        "auto: what its folder says of sentences, or else model",
    )
    dropout: float = Field(0.1, ge=0, lt=1, description="before the last layer")
    lstm: int = Field(0, ge=0, le=16, description="layers of a bidirectional LSTM over what is read; 0: none")
    width: int = Field(256, ge=2, multiple_of=2, description="of that LSTM")
    crf: bool = Field(False, description="tags: score neighbouring tags together")


class HeadSpec(HeadConfig):
    """A head, whole: its settings and what the data and the body fix of it."""

    kind: Literal["classes", "tags", "spans", "ctc"]
    outputs: int = Field(ge=1, le=MOST_OUTPUTS)
    inner: Literal["none", "tanh", "relu"] = "none"  # a dense layer before the last, and its activation
    bias: bool = True  # of the last layer
    allowed: list[list[bool]] | None = None  # (outputs + 2)²: which tag may follow which, start and end last

    @model_validator(mode="after")
    def _rules_for_every_tag(self) -> HeadSpec:
        size = self.outputs + 2
        if self.allowed is not None and (len(self.allowed), {len(row) for row in self.allowed}) != (size, {size}):
            raise ValueError(f"allowed should say of each of {size} tags, start and end included, which may follow")
        return self


class ModelWithHead(SequenceModel):
    """A body, and the head that reads it. Its config and sizes are the body's."""

    crf: CRF | None
    has_readout = False

    def __init__(self, body: SequenceModel, shape: HeadSpec) -> None:
        super().__init__(body.config, body.sizes)
        body.drop_readout()
        self.body = body
        self.shape = shape = resolved(body, shape)
        if shape.pool != "pooler" and body.has_pooler:
            body.drop_pooler()
        self.config = body.config
        states = probe(body)
        width = _width_read(body, states, shape.layers)
        self.mix = ScalarMix(len(states)) if shape.layers == "mix" else None
        self.lstm = None
        if shape.lstm:
            sizes = [shape.width] * shape.lstm
            self.lstm = Recurrent("lstm", width, sizes, bidirectional=True, hidden_dropout=shape.dropout)
            width = shape.width
        self.pooling = AttentionPool(width) if shape.kind == "classes" and shape.pool == "attention" else None
        self.inner = Linear(width, width) if shape.inner != "none" else None
        self.head = Linear(width, shape.outputs, shape.bias)
        nn.init.normal_(self.head.weight, std=0.02)
        if shape.bias:
            nn.init.zeros_(self.head.bias)
        self.crf = None
        if shape.crf:
            self.crf = CRF(shape.outputs, None if shape.allowed is None else torch.tensor(shape.allowed))

    @property
    def token_table(self) -> nn.Module | None:
        return self.body.token_table

    @property
    def parts(self) -> dict[str, SequenceModel]:
        return self.body.parts

    @property
    def streams(self) -> Mapping[str, str]:
        return self.body.streams

    def stream_positions(self, read: Mapping[str, Positions]) -> dict[str, Positions]:
        return self.body.stream_positions(read)

    @property
    def tag_crf(self) -> CRF | None:
        return self.crf

    def reuse_head(self, head: ModelWithHead, labels: list[str] | None, wanted: list[str] | None) -> bool:
        """Take over another model's head if it gave the answers that are wanted now, in whatever order."""
        alike = head.shape.model_copy(update={"dropout": self.shape.dropout}) == self.shape
        same = labels == wanted if self.crf is not None else sorted(labels or []) == sorted(wanted or [])
        if not (alike and same):
            return False
        tensors = {name: tensor for name, tensor in head.state_dict().items() if not name.startswith(BODY)}
        if labels and wanted and labels != wanted:
            order = torch.tensor([labels.index(label) for label in wanted], device=head.head.weight.device)
            tensors |= {name: tensor[order] for name, tensor in tensors.items() if name.startswith("head.")}
        self.load_state_dict(tensors, strict=False)
        return True

    def states(self, batch: Batch) -> list[Tensor]:
        return self.body.states(batch)

    def forward(self, batch: Batch, state: Any = None) -> Output:
        """(B, T) tokens to what the head reads (B, T, D) and its logits."""
        auxiliary: dict[str, Tensor] = {}
        if self.shape.layers == "last":
            output = self.body(batch)
            hidden, auxiliary = output.hidden, output.auxiliary
        elif self.mix is not None:
            hidden = self.mix(self.body.states(batch))
        else:
            hidden = combine_layers(self.body.states(batch), self.shape.layers)
        if self.lstm is not None:
            hidden = dropout(hidden, self.shape.dropout, self.training)
            hidden = self.lstm(hidden.transpose(0, 1), None, self.state_lengths(batch.inputs))[0].transpose(0, 1)
        return Output(hidden, None, auxiliary, self._logits(hidden, batch))

    def state_lengths(self, inputs: Inputs) -> Tensor | None:
        return self.body.state_lengths(inputs)

    def _logits(self, hidden: Tensor, batch: Batch) -> Tensor:
        kind, lengths = self.shape.kind, self.state_lengths(batch.inputs)
        if kind == "tags":
            return self._last(at_positions(hidden, batch.positions))  # (B, N, C)
        if kind == "ctc":
            return self._last(hidden)  # (B, T, V + 1)
        if kind == "spans":
            logits = self._last(hidden)  # (B, T, 2)
            return logits.masked_fill(~inside(hidden, lengths), torch.finfo(logits.dtype).min)
        if self.shape.pool == "pooler":
            return self._last(cast(Any, self.body).pooled(hidden))
        if self.pooling is not None:
            return self._last(self.pooling(hidden, lengths))
        return self._last(pool(hidden, lengths, self.shape.pool))

    def _last(self, x: Tensor) -> Tensor:
        """… and the last layers, (…, D) to (…, outputs)."""
        if self.inner is not None:
            x = dropout(x, self.shape.dropout, self.training) if self.shape.inner == "tanh" else x
            x = self.inner(x)
            x = torch.tanh(x) if self.shape.inner == "tanh" else F.relu(x)
        logits: Tensor = self.head(dropout(x, self.shape.dropout, self.training))
        return logits


def body_of(model: SequenceModel) -> SequenceModel:
    """The model without its task's head, where it has one."""
    return model.body if isinstance(model, ModelWithHead) else model


def resolved(body: SequenceModel, shape: HeadSpec) -> HeadSpec:
    """The shape with `auto` or `model` made what suits the body: what Hugging Face's library has, if it has it."""
    if body.is_encoder_decoder:
        raise ConfigError(f"model={body.config.name} reads one text and writes another; use an encoder or a decoder")
    if shape.kind != "classes":
        return shape.model_copy(update={"pool": "first"})
    if shape.crf:
        raise ConfigError("head.crf=true is for tagging")
    if shape.pool == "pooler" and not body.has_pooler:
        raise ConfigError(f"this {body.config.name} has no pooler; use head.pool=mean")
    if shape.pool not in ("auto", "model"):
        return shape
    plain = shape.layers == "last" and not shape.lstm
    return shape.model_copy(update=body.default_head(plain))


def refuse_blind(body: SequenceModel, shape: HeadSpec) -> None:
    """Refuse to learn classes from a first token that knows nothing of the others: all texts would be alike."""
    if shape.kind == "classes" and shape.pool == "first" and body.can_generate and not shape.lstm:
        raise ConfigError(
            f"head.pool=first: the first token of {body.config.name} has read nothing else, since it reads from left "
            "to right; use head.pool=last or mean"
        )


def _width_read(body: SequenceModel, states: list[Tensor], layers: str) -> int:
    """How wide what the head reads is; layers that are not of one width, or of one grid, cannot be mixed."""
    try:
        return combine_layers(states, layers).shape[-1]
    except RuntimeError:
        needs = f"head.layers={layers} needs layers of one"
        if len({state.shape[1] for state in states}) > 1:
            raise ConfigError(f"{needs} grid; those of this {body.config.name} become smaller") from None
        widths = ", ".join(str(state.shape[-1]) for state in states)
        raise ConfigError(f"{needs} width; those of this {body.config.name} are {widths} wide") from None


def probe(body: SequenceModel) -> list[Tensor]:
    """The states of one token, which tell how many there are and how wide."""
    training = body.training
    body.eval()
    with torch.no_grad(), shapes_only(body):
        states = body.states(body.smallest_batch())
    body.train(training)
    return states
