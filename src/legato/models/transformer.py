"""The Transformer, encoder and decoder, of "Attention Is All You Need" (Vaswani et al. 2017).

    x_s = √D E w_s + PE(s)                                  each source token, and where it stands (E may be its own)
    memory = encoder(x)                                     every token looks at every other
    y_t = √D E v_t + PE(t)
    h_t = decoder(y_1 … y_t, memory)                        looks back, and at the memory
    P(v_{t+1} | v_1 … v_t, w) = softmax(E h_t + b)          tied: the readout is the embedding again

Notable: the layers are in `nn/transformer.py`; this file joins them. As it stands, with norms after each
sublayer, sinusoidal positions and one embedding for all three uses, it is Marian's architecture, and is
saved as such (`models/published/marian.py`). `norm=pre positions=rotary activation=swiglu` makes it a modern one.
With `encoder=vit`, or another model of pictures, the memory is a picture's (`source_encoder.py`), and the decoder may
be GPT-2's (`models/published/vision_encoder_decoder.py`).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from legato.data.batching.batch import Batch
from legato.models.base import DEEPEST, BlocksConfig, SequenceModel, Sizes
from legato.models.decoder import CachedModel, cross_attention_of
from legato.models.image_encoder import ImageConfig
from legato.models.source_encoder import MEANING, SourceEncoder, SourceSetting, processors_with
from legato.nn.dropout import dropout
from legato.nn.feedforward import BlockShape
from legato.nn.kv_cache import KeyValueCache
from legato.nn.linear import Linear
from legato.nn.positions import At, Learned, Rotary, Sinusoidal
from legato.nn.state import Memory, Output
from legato.nn.transformer import Stack


class TransformerConfig(BlocksConfig):
    """Settings of the encoder–decoder Transformer."""

    name: Literal["transformer"] = "transformer"
    layers: int = Field(4, ge=1, le=DEEPEST, description="blocks of the encoder of text, and of the decoder")
    decoder_layers: int | None = Field(None, ge=1, le=DEEPEST, description="blocks of the decoder; left out: layers")
    feedforward: int | None = Field(
        None, ge=1, description="units of the feed-forward layers; left out: 4 × width, for swiglu 8/3 × width"
    )
    activation: Literal["relu", "gelu", "gelu-tanh", "silu", "swiglu"] = Field(
        "relu", description="of the feed-forward layers"
    )
    norm: Literal["post", "pre"] = Field("post", description="norm after each sublayer, or before it")
    positions: Literal["sinusoidal", "learned", "rotary"] = Field(
        "sinusoidal", description="how a token's place is told"
    )
    length: int = Field(512, ge=1, description="tokens of the longest sequence, source or target")
    window: int | None = Field(None, ge=1, description="tokens see only those less than so far away; left out: all")
    dropout: float = Field(0.1, ge=0, lt=1, description="on embeddings and on what each sublayer adds")
    dropout_attention: float = Field(0.0, ge=0, lt=1, description="on attention weights")
    dropout_activation: float = Field(0.0, ge=0, lt=1, description="on the feed-forward layers' units")
    tied: bool = Field(True, description="read out with the target embedding's weights")
    shared: bool = Field(True, description="one embedding for source and target, where they have one vocabulary")
    scale: bool = Field(True, description="multiply embeddings by √width")
    eps: float = Field(1e-5, gt=0, description="in the norms' denominators")
    bias_readout: bool = Field(True, description="whether the readout has a bias")
    encoder: SourceSetting = Field(None, description=MEANING)

    @property
    def width_multiple(self) -> int:
        return self.heads * (2 if self.positions == "rotary" else 1)

    @property
    def is_gated(self) -> bool:
        return self.activation == "swiglu"

    @model_validator(mode="after")
    def _heads_are_even(self) -> TransformerConfig:
        if self.positions == "rotary" and self.width // self.heads % 2:
            raise ValueError(f"rotary positions need heads of an even width, not {self.width // self.heads}")
        return self


class TransformerModel(CachedModel):
    """An encoder that reads the source, and a decoder that writes the target while looking at it."""

    Config = TransformerConfig
    summary = "encoder–decoder Transformer: post- or pre-norm; sinusoidal, learned or rotary positions"
    is_encoder_decoder = True
    part_names = ("encoder",)
    published = "marian"
    config: TransformerConfig

    def __init__(self, config: TransformerConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        width, length = config.width, config.length
        shape = BlockShape(
            width,
            config.heads,
            config.inner,
            config.activation,
            norm_first=config.norm == "pre",
            eps=config.eps,
            dropout=config.dropout,
            dropout_attention=config.dropout_attention,
            dropout_activation=config.dropout_activation,
        )
        self.embedding = nn.Embedding(sizes.vocabulary, width)
        apart = config.encoder is None and (sizes.source is not None or not config.shared)
        self.source_embedding = nn.Embedding(sizes.source or sizes.vocabulary, width) if apart else None
        self.positions: Sinusoidal | Learned | None = None  # shared by both sides
        rotary = None
        if config.positions == "sinusoidal":
            self.positions = Sinusoidal(length, width)
        elif config.positions == "learned":
            self.positions = Learned(length, width)
        else:
            rotary = Rotary(length, width // config.heads)
        decoder_layers = config.decoder_layers or config.layers
        self.encoder: Stack | SourceEncoder
        if config.encoder is None:
            self.encoder = Stack("encoder", config.layers, shape, causal=False, window=config.window, rotary=rotary)
        else:
            self.encoder = SourceEncoder(config.encoder, width, config.dropout, sizes.vocabulary)
        self.decoder = Stack(
            "decoder", decoder_layers, shape, causal=True, cross=True, window=config.window, rotary=rotary
        )
        self.output = Linear(width, sizes.vocabulary, config.bias_readout)
        for table in (self.embedding, self.source_embedding, self.positions, self.output):
            if table is not None and not isinstance(table, Sinusoidal):
                nn.init.normal_(table.weight, std=width**-0.5)
        if config.bias_readout:
            nn.init.zeros_(self.output.bias)
        if config.tied:
            self.output.weight = self.embedding.weight

    @classmethod
    def processors_of(cls, config: TransformerConfig) -> tuple[str, ...]:
        return processors_with(config.encoder)

    @property
    def published_as(self) -> str | None:
        if self.config.encoder is None:
            return self.published
        return "vision-encoder-decoder" if isinstance(self.config.encoder, ImageConfig) else None

    @property
    def source_encoder(self) -> SequenceModel | None:
        return self.encoder.model if isinstance(self.encoder, SourceEncoder) else None

    def forward(self, batch: Batch, state: None = None) -> Output:
        """Teacher-forced: (B, T) target tokens beside their (B, S) sources."""
        x = self._embed(self.embedding, batch.inputs.token_ids)
        memory = self.encode(batch)
        return Output(self.decoder(x, memory=memory), logits=self.ctc_logits(memory))

    def encode(self, batch: Batch) -> Memory:
        if isinstance(self.encoder, SourceEncoder):
            return Memory(self.encoder(batch.source), self.encoder.lengths(batch.source))
        assert batch.source is not None, "this model reads a source; the batch has none"
        x = self._embed(self.source_embedding or self.embedding, batch.source.token_ids)
        return Memory(self.encoder(x, batch.source.lengths), batch.source.lengths)

    def ctc_logits(self, memory: Memory) -> Tensor | None:
        return self.encoder.ctc_logits(memory.states) if isinstance(self.encoder, SourceEncoder) else None

    def align(self, batch: Batch) -> Tensor:
        return cross_attention_of(self, batch)

    @property
    def writer(self) -> Stack:
        return self.decoder

    def start(self, rows: int, capacity: int, memory: Memory | None = None) -> KeyValueCache:
        assert memory is not None, "this model reads a source; give start what encode made of it"
        return super().start(rows, capacity, memory)

    def embed_tokens(self, tokens: Tensor, at: At) -> Tensor:
        return self._embed(self.embedding, tokens, at)

    def _embed(self, table: nn.Embedding, tokens: Tensor, at: At | None = None) -> Tensor:
        """(B, T) tokens to (B, T, D), with their positions, from the first where `at` does not say."""
        if at is None:
            self.refuse_longer(tokens.shape[1])
            at = slice(0, tokens.shape[1])
        x = table(tokens)
        scale = math.sqrt(self.config.width) if self.config.scale else 1.0
        x = x * scale if self.positions is None else torch.add(self.positions(at), x, alpha=scale)
        return dropout(x, self.config.dropout, self.training)
