"""Questions about pictures: a picture and a question become one vector, from which a head reads the answer.

    q = the last state of RNN(E w_1 … E w_T)        the question's vector
    m_1 … m_S = encoder(picture)                    its grid (`source_encoder.py`), of which v_s = tanh(V m_s + b)

    none        u = tanh(W mean_s m_s + c) ∘ tanh(U q + d)
                one vector of the picture, one of the question, and their product: Antol et al. 2015, "VQA: Visual
                Question Answering", section 4 (CNN + LSTM). A head has a layer with tanh before its last one.

    stacked     u_0 = q, and for each hop k = 1 … K
                p_k = softmax_s(w_k · tanh(A_k v_s + B_k u_{k-1} + b_k))
                u_k = Σ_s p_ks v_s + u_{k-1}
                the question looks at the grid, and with what it saw it looks again: Yang et al. 2016, "Stacked
                Attention Networks for Image Question Answering", section 3.3. The score is the MLP's of nn/attention.

    blind       u = tanh(U q + d), or q: the same without the picture. What it answers right, the words of the
                question give away; it is what the others have to beat.

What is seen of it (nn/capture.py): `question.lstm.0.hidden`, `hop.1.attention.weights` (B, S), over the grid row by
row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn

from legato.data.batching.batch import Batch
from legato.data.positions import IMAGE, INPUT, QUERY, SOURCE, Positions
from legato.data.processors import TEXT
from legato.models.base import DEEPEST, CellsConfig, ModelConfig, SequenceModel, Sizes
from legato.models.source_encoder import EncoderSetting, SourceEncoder, processors_with
from legato.nn.attention import MLP, weigh
from legato.nn.capture import capture, scope
from legato.nn.dropout import dropout, embed, variational_dropout
from legato.nn.linear import Linear, xavier
from legato.nn.pooling import pool
from legato.nn.recurrent import Recurrent


class VQAConfig(CellsConfig):
    """Settings of the model that answers questions about pictures."""

    name: Literal["vqa"] = "vqa"
    cell: Literal["elman", "gru", "lstm"] = Field("lstm", description="that reads the question: elman, gru or lstm")
    layers: int = Field(1, ge=1, le=DEEPEST, description="stacked layers that read the question")
    width: int = Field(256, ge=1, description="of the vectors of picture and question, which become one")
    attention: Literal["none", "stacked"] = Field(
        "stacked", description="stacked: the question looks at the picture's grid; none: at the mean of it"
    )
    hops: int = Field(2, ge=1, le=64, description="how often it looks, one look behind the other")
    dropout: float = Field(0.3, ge=0, lt=1, description="on words, between layers, on both vectors")
    blind: bool = Field(False, description="read the question alone: what a model with the picture has to beat")
    encoder: EncoderSetting = Field(None, description="the model that reads the picture, such as resnet or vit")

    @field_validator("attention", mode="before")
    @classmethod
    def _none_is_a_name(cls, value: Any) -> Any:
        return "none" if value is None else value  # on a command line, none is nothing

    @model_validator(mode="after")
    def _reads_a_picture_or_is_blind(self) -> VQAConfig:
        if self.blind and self.encoder is not None:
            raise ValueError("blind=true reads no picture; leave out encoder")
        if not self.blind and self.encoder is None:
            raise ValueError("pictures need an encoder, such as encoder=resnet; blind=true reads the question alone")
        return self


class VQAModel(SequenceModel):
    """Questions (B, T) and a picture for each in; one state for both out, (B, 1, D)."""

    Config: ClassVar[type[ModelConfig]] = VQAConfig
    summary: ClassVar[str] = "questions about pictures: an image encoder and an LSTM, joined by attention or product"
    processors = (TEXT, "image")
    part_names = ("encoder",)
    has_readout = False
    one_state = True
    config: VQAConfig

    def __init__(self, config: VQAConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        width = config.width
        self.embedding = nn.Embedding(sizes.vocabulary, config.inputs)
        nn.init.normal_(self.embedding.weight, std=3 / math.sqrt(config.inputs))
        self.question = Recurrent(
            config.cell,
            config.inputs,
            [width] * config.layers,
            hidden_dropout=config.dropout,
            forget_bias=config.forget_bias,
        )
        self.encoder = None if config.encoder is None else SourceEncoder(config.encoder, width)
        self.of_picture = None if self.encoder is None else Linear(width, width)  # V and b, or W and c
        self.of_question = Linear(width, width) if config.attention == "none" else None  # U, d
        seen = config.attention == "stacked" and self.encoder is not None
        self.hops = nn.ModuleList(MLP(width, width, width) for _ in range(config.hops if seen else 0))
        for layer in (self.of_picture, self.of_question):
            if layer is not None:
                xavier(layer)

    @classmethod
    def processors_of(cls, config: VQAConfig) -> tuple[str, ...]:
        return processors_with(config.encoder)

    @property
    def source_encoder(self) -> SequenceModel | None:
        return None if self.encoder is None else self.encoder.model

    @property
    def streams(self) -> Mapping[str, str]:
        return {"question": INPUT, "encoder": IMAGE, "": QUERY}

    def stream_positions(self, read: Mapping[str, Positions]) -> dict[str, Positions]:
        """What looks is the question, as one vector; at the grid, where there is a picture."""
        seen = {SOURCE: read[IMAGE].only_patches()} if IMAGE in read else {}
        return {**read, **seen, QUERY: Positions("query", ("question",))}

    def default_head(self, plain: bool) -> dict[str, Any]:
        return {"pool": "first", "inner": "tanh" if plain and self.config.attention == "none" else "none"}

    def smallest_batch(self) -> Batch:
        batch = super().smallest_batch()
        if self.encoder is not None:
            batch.images = self.encoder.model.smallest_batch().inputs
            batch.image_rows = torch.zeros(1, dtype=torch.long, device=self.device)
        return batch

    def read(self, batch: Batch, every: list[Tensor] | None = None) -> Tensor:
        """The question's vector, what each look makes of it, and so the state for both: (B, 1, D)."""
        states = [self._dropped(self.vector(batch))]  # q
        if self.of_question is not None:
            states.append(torch.tanh(self.of_question(states[0])))
        if self.encoder is not None and self.of_picture is not None:
            grid = self.grid(batch)  # (B, S, D)
            if self.of_question is not None:
                states[-1] = self._dropped(torch.tanh(self.of_picture(grid.mean(1)))) * states[-1]
            else:
                states += self._looks(torch.tanh(self.of_picture(grid)), states[0])
        if every is not None:
            every += [state.unsqueeze(1) for state in states]
        return states[-1].unsqueeze(1)

    def vector(self, batch: Batch) -> Tensor:
        """q (B, D) of the questions (B, T)."""
        x = embed(batch.inputs.token_ids.t(), self.embedding, 0.0, self.training)  # (T, B, D)
        x = variational_dropout(x, self.config.dropout, self.training)
        with scope("question"):
            states, _ = self.question(x, None, batch.inputs.lengths)
        return pool(states.transpose(0, 1), batch.inputs.lengths, "last")

    def grid(self, batch: Batch) -> Tensor:
        """m (B, S, D): what the encoder says of each place; what it says of the whole is left out."""
        assert self.encoder is not None
        memory: Tensor = self.encoder(batch.images)
        return memory[:, self.encoder.model.before_grid :]

    def _looks(self, places: Tensor, asked: Tensor) -> list[Tensor]:
        """u_1 … u_K, (B, D) each, of the places v (B, S, D) and the question (B, D)."""
        places = self._dropped(places)
        states = []
        for number, score in enumerate(self.hops, start=1):
            weights = weigh(score(asked.unsqueeze(1), score.keys(places)))  # type: ignore[operator]  # (B, 1, S)
            with scope(f"hop.{number}"):
                capture("attention.weights", weights[:, 0], "row source")
            asked = (weights @ places)[:, 0] + asked
            states.append(asked)
        return states

    def _dropped(self, x: Tensor) -> Tensor:
        return dropout(x, self.config.dropout, self.training)
