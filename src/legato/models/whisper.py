"""Whisper (Radford et al. 2022): speech as log-mel frames in, what is said out.

    x = gelu(C₂ gelu(C₁ f))                         convolutions over three frames; the second takes every other
    memory = encoder(x_1 + PE(1) … x_S + PE(S))     pre-norm; every state sees every other; PE are sinusoids
    y_t = E v_t + P_t                               P is learned
    h_t = decoder(y_1 … y_t, memory)                looks back, and at the memory
    P(v_{t+1} | v_1 … v_t, f) = softmax(E h_t)      tied: the readout is the embedding again

Keys have no bias: q · (k + b) adds one number q · b to all scores of a query, which a softmax does not see.

A sound is at most `2 · source_length` frames long. The published models always read as many, which is 30 seconds,
with silence after the sound that is as visible as the sound itself: for them leave `lengths` out. Where `lengths`
are given, what lies beyond is no part of the sound, and changes nothing.

Its names in Hugging Face's folders are in `published/whisper.py`; what is written begins with a prompt of its own
(`decoding/speech/speech_prompt.py`).
"""

from __future__ import annotations

import math
from typing import ClassVar, Final, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from legato.data.audio.feature_extractor import FeatureExtractor
from legato.data.batching.batch import Batch, Inputs
from legato.data.processors import TEXT
from legato.errors import ConfigError, LegatoError
from legato.models.base import DEEPEST, BlocksConfig, ModelConfig, Sizes
from legato.models.decoder import CachedModel, cross_attention_of
from legato.models.sound_encoder import HearingConfig
from legato.nn.dropout import dropout
from legato.nn.feedforward import BlockShape
from legato.nn.kv_cache import KeyValueCache
from legato.nn.linear import as_wide_as, pack
from legato.nn.pooling import inside
from legato.nn.positions import At, Learned, timescale_sinusoids
from legato.nn.readout import Readout, TokenEmbedding
from legato.nn.state import Memory, Output
from legato.nn.transformer import Stack, start_normal

STATES_PER_SECOND: Final = 50
# From so many states on, and up to so many heads, the decoder looks at the states themselves (`nn/transformer.py`).
LONG: Final = 512
FEW_HEADS: Final = 8


class WhisperConfig(BlocksConfig, HearingConfig):
    """Settings of Whisper."""

    name: Literal["whisper"] = "whisper"
    layers: int = Field(4, ge=1, le=DEEPEST, description="blocks of the encoder, and of the decoder")
    decoder_layers: int | None = Field(None, ge=1, le=DEEPEST, description="blocks of the decoder; left out: layers")
    source_length: int = Field(
        1500, ge=1, le=180_000, description="states that a sound becomes, silence behind it included; 50 a second"
    )
    length: int = Field(448, ge=1, description="tokens of the longest text")
    activation: Literal["gelu", "gelu-tanh", "relu", "silu"] = Field("gelu", description="of the feed-forward layers")
    dropout: float = Field(0.0, ge=0, lt=1, description="on embeddings and on what each sublayer adds")
    dropout_attention: float = Field(0.0, ge=0, lt=1, description="on attention weights")
    dropout_activation: float = Field(0.0, ge=0, lt=1, description="on the feed-forward layers' units")
    tied: bool = Field(True, description="read out with the embedding's weights")

    @property
    def width_multiple(self) -> int:
        return math.lcm(self.heads, 2)

    @property
    def subsampling(self) -> int:
        return 2

    @property
    def ctc(self) -> float:
        return 0.0

    @property
    def max_frames(self) -> int:
        return 2 * self.source_length

    def feature_extractor(self) -> FeatureExtractor:
        seconds, more = divmod(self.source_length, STATES_PER_SECOND)
        if more:
            raise ConfigError(
                f"model.source_length={self.source_length}: sounds become {STATES_PER_SECOND} states a second, and "
                f"whole seconds are read; use a multiple of {STATES_PER_SECOND}"
            )
        return FeatureExtractor(bins=self.features, seconds=seconds)

    def states_of(self, frames: int) -> int:
        return (frames + 1) // 2

    @model_validator(mode="after")
    def _as_many_cosines_as_sines(self) -> Self:
        if self.width % 2:
            raise ValueError(f"the positions of a sound need an even width, not {self.width}")
        return self


class FrameEncoder(nn.Module):
    """Frames (B, T, F) to states (B, ⌈T / 2⌉, D)."""

    positions: Tensor

    def __init__(self, config: WhisperConfig, shape: BlockShape) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.first = nn.Conv1d(config.features, config.width, 3, padding=1)  # C₁
        self.second = nn.Conv1d(config.width, config.width, 3, stride=2, padding=1)  # C₂
        # Saved, though it could be made again: published folders have it in their own precision.
        self.register_buffer("positions", timescale_sinusoids(config.source_length, config.width))
        self.stack = Stack("encoder", config.layers, shape, causal=False)

    def forward(self, frames: Tensor, lengths: Tensor | None) -> Memory:
        # What a convolution finds outside of a sound is zero, whether the frames end there or the sound does.
        frames = as_wide_as(self.first.weight, frames)
        x = F.gelu(self.first(_only(frames, lengths).transpose(1, 2))).transpose(1, 2)  # (B, T, D)
        x = F.gelu(self.second(_only(x, lengths).transpose(1, 2))).transpose(1, 2)  # (B, S, D)
        x = dropout(x + self.positions[: x.shape[1]], self.dropout, self.training)
        halves = None if lengths is None else (lengths + 1) // 2
        return Memory(self.stack(x, halves), halves)


def _only(frames: Tensor, lengths: Tensor | None) -> Tensor:
    """Frames (B, T, F) with zeros for padding."""
    return frames if lengths is None else frames.masked_fill(~inside(frames, lengths), 0)


class WhisperModel(CachedModel):
    """An encoder that hears, and a decoder that writes what is said."""

    Config: ClassVar[type[ModelConfig]] = WhisperConfig
    summary: ClassVar[str] = "Whisper: an encoder of log-mel frames, and a decoder that writes what is said"
    is_encoder_decoder = True
    processors: ClassVar[tuple[str, ...]] = (TEXT, "audio")
    usual_task: ClassVar[str | None] = "speech"
    published: ClassVar[str | None] = "whisper"
    config: WhisperConfig
    output: Readout

    def __init__(self, config: WhisperConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        shape = BlockShape(
            config.width,
            config.heads,
            config.inner,
            config.activation,
            norm_first=True,
            bias_key=False,
            dropout=config.dropout,
            dropout_attention=config.dropout_attention,
            dropout_activation=config.dropout_activation,
        )
        self.encoder = FrameEncoder(config, shape)
        self.embedding = TokenEmbedding(sizes.vocabulary, config.width)
        self.positions = Learned(config.length, config.width)
        self.decoder = Stack("decoder", config.decoder_layers or config.layers, shape, causal=True, cross=True)
        self.decoder.looks_at_states = config.source_length >= LONG and config.heads <= FEW_HEADS
        self.output = Readout(config.width, sizes.vocabulary)
        start_normal(self, 0.02)
        if config.tied:
            self.output.weight = self.embedding.weight

    @property
    def writer(self) -> Stack:
        return self.decoder

    @property
    def max_frames(self) -> int:
        """The most frames that a sound may have."""
        return self.config.max_frames

    def smallest_batch(self) -> Batch:
        ids = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        return Batch(Inputs(ids), source=Inputs(values=torch.zeros(1, 1, self.config.features, device=self.device)))

    def forward(self, batch: Batch, state: None = None) -> Output:
        """Teacher-forced: (B, T) target tokens beside the frames (B, T, F) of their sounds."""
        tokens = batch.inputs.token_ids
        self.refuse_longer(tokens.shape[1])
        x = self.embed_tokens(tokens, slice(0, tokens.shape[1]))
        return Output(self.decoder(x, memory=self.encode(batch)))

    def encode(self, batch: Batch) -> Memory:
        frames = self._frames(batch.source)
        pack(self.encoder, below=math.inf)  # all sounds have as many frames
        lengths = None if batch.source is None else batch.source.lengths
        memory: Memory = self.encoder(frames, lengths)
        return memory

    def align(self, batch: Batch) -> Tensor:
        return cross_attention_of(self, batch)

    def start(self, rows: int, capacity: int, memory: Memory | None = None) -> KeyValueCache:
        assert memory is not None, "this model reads a source; give start what encode made of it"
        return super().start(rows, capacity, memory)

    def embed_tokens(self, tokens: Tensor, at: At) -> Tensor:
        return dropout(self.embedding(tokens) + self.positions(at), self.config.dropout, self.training)

    def _frames(self, source: Inputs | None) -> Tensor:
        """The frames (B, T, F) of sounds that the model can hear."""
        frames = None if source is None else source.values
        if frames is None:
            raise LegatoError("whisper reads sound, as frames; the batch has none")
        if frames.dim() != 3 or frames.shape[2] != self.config.features:
            shape = tuple(frames.shape[1:])
            raise LegatoError(f"whisper reads frames of shape (frames, {self.config.features}), not {shape}")
        if not 0 < frames.shape[1] <= self.max_frames:
            raise LegatoError(f"a sound of {frames.shape[1]} frames: this model reads 1 to {self.max_frames}")
        return frames
