"""Clips: a picture's encoder reads each frame, and a recurrent network or a Transformer reads the frames.

    g_n1 … g_nS = encoder(frame_n)                  a state for each place of a frame's grid
    x_n = P [Q g_n1; …; Q g_nS]                     few features of each place, all places side by side: where
                                                    something is, a mean over them would not say
    h_1 … h_N = RNN(x_1 … x_N)                      over=lstm, gru or elman: many to one, the last state has seen all
                                                    (LRCN; Donahue et al. 2015, section 3)
    h_1 … h_N = blocks(x_1 + p_1 … x_N + p_N)       over=transformer: every frame sees every other; p are sinusoids

A clip is a sequence of pictures, as a text is one of words: a head reads the last state, or the mean. One frame says
nothing of what moves; whoever tells left from right has compared two.

What is seen of it (nn/capture.py): `encoder.encoder.0.attention.weights`, with an axis of frames, and then what reads
those: `lstm.0.hidden`, or `frames.0.attention.weights`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from legato.data.batching.batch import Batch, Inputs
from legato.data.positions import IMAGE, INPUT
from legato.errors import LegatoError
from legato.models.base import DEEPEST, ModelConfig, SequenceModel, Sizes
from legato.models.image_encoder import ImageEncoder
from legato.models.source_encoder import EncoderSetting, encode_pictures
from legato.nn.capture import frames, scope
from legato.nn.dropout import variational_dropout
from legato.nn.feedforward import BlockShape
from legato.nn.linear import Linear, xavier
from legato.nn.positions import Sinusoidal
from legato.nn.recurrent import Recurrent
from legato.nn.transformer import Stack
from legato.registry import MODELS


class FramesConfig(ModelConfig):
    """Settings of the model that reads clips."""

    network: ClassVar[Any] = "recurrent"

    name: Literal["frames"] = "frames"
    encoder: EncoderSetting = Field(None, description="the model that reads each frame, such as resnet or vit")
    over: Literal["lstm", "gru", "elman", "transformer"] = Field(
        "lstm", description="what reads the frames: lstm, gru or elman one by one, transformer all at once"
    )
    features: int = Field(32, ge=1, description="kept of each place of a frame's grid")
    layers: int = Field(1, ge=1, le=DEEPEST, description="of what reads the frames")
    width: int = Field(256, ge=1, description="hidden size")
    heads: int = Field(4, ge=1, description="attention heads of a transformer; they divide the width")
    dropout: float = Field(0.1, ge=0, lt=1, description="on the frames' vectors, and on what layers add")
    length: int = Field(256, ge=1, description="frames of the longest clip, for a transformer")

    @model_validator(mode="after")
    def _fits(self) -> FramesConfig:
        if self.encoder is None:
            raise ValueError("frames need an encoder, such as encoder=resnet")
        if self.over == "transformer" and self.width % self.heads:
            raise ValueError(f"heads={self.heads} does not divide width={self.width}")
        return self

    @property
    def max_length(self) -> int | None:
        return self.length if self.over == "transformer" else None


class FramesModel(SequenceModel):
    """Clips (B, N, 3, H, W) in; a state for each frame out, (B, N, D)."""

    Config: ClassVar[type[ModelConfig]] = FramesConfig
    summary: ClassVar[str] = "clips: an image encoder for each frame, and an LSTM or a Transformer over the frames"
    processors: ClassVar[tuple[str, ...]] = ("image",)
    part_names = ("encoder",)
    usual_task: ClassVar[str | None] = "image-classification"
    has_readout = False
    config: FramesConfig

    def __init__(self, config: FramesConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        assert config.encoder is not None, "the settings refuse that"
        width = config.width
        self.encoder: ImageEncoder = MODELS.get(config.encoder.name)(config.encoder, Sizes(0))
        side, before = config.encoder.image, self.encoder.before_grid
        self.places = before + math.prod(self.encoder.grid(side, side))  # S
        self.reduction = Linear(self.encoder.out_width, config.features)  # Q
        self.projection = Linear(self.places * config.features, width)  # P
        for layer in (self.reduction, self.projection):
            xavier(layer)
        self.recurrent = self.stack = self.positions = None
        if config.over == "transformer":
            shape = BlockShape(width, config.heads, 4 * width, "gelu", norm_first=True, dropout=config.dropout)
            self.stack = Stack("frames", config.layers, shape, causal=False)
            self.positions = Sinusoidal(config.length, width)
        else:
            self.recurrent = Recurrent(
                config.over, width, [width] * config.layers, hidden_dropout=config.dropout, forget_bias=1.0
            )

    @property
    def streams(self) -> Mapping[str, str]:
        return {"encoder": IMAGE, "": INPUT}

    @property
    def source_encoder(self) -> SequenceModel | None:
        return self.encoder

    def default_head(self, plain: bool) -> dict[str, Any]:
        return {"pool": "mean" if self.recurrent is None else "last"}

    def smallest_batch(self) -> Batch:
        side = self.encoder.config.image
        return Batch(Inputs(values=torch.zeros(1, 1, 3, side, side, device=self.device)))

    def read(self, batch: Batch, every: list[Tensor] | None = None) -> Tensor:
        clips = batch.inputs.content  # (B, N, 3, H, W)
        if clips.dim() != 5:
            raise LegatoError(
                f"frames reads clips of shape (frames, 3, height, width), not {tuple(clips.shape[1:])}; "
                "set data.frames"
            )
        if self.max_length is not None and clips.shape[1] > self.max_length:
            raise LegatoError(
                f"a clip of {clips.shape[1]} frames is too long: this model goes up to {self.max_length}"
            )
        with scope("encoder"), frames(clips.shape[1]):
            places = encode_pictures(self.encoder, Inputs(values=clips.flatten(0, 1)))  # (B · N, S, D')
        if places.shape[1] != self.places:
            raise LegatoError(
                f"frames of {clips.shape[3]} × {clips.shape[4]} pixels have {places.shape[1]} places, and this model "
                f"reads {self.places}; make the frames as large as model.encoder.image says"
            )
        x = self.projection(self.reduction(places).flatten(1)).unflatten(0, clips.shape[:2])  # (B, N, D)
        x = variational_dropout(x.transpose(0, 1), self.config.dropout, self.training)  # (N, B, D)
        if every is not None:
            every.append(x.transpose(0, 1))
        if self.recurrent is not None:
            layers: list[Tensor] | None = None if every is None else []
            hidden, _ = self.recurrent(x, None, None, layers)
            if every is not None:
                every += [state.transpose(0, 1) for state in layers or ()]
            return hidden.transpose(0, 1)
        assert self.stack is not None
        assert self.positions is not None
        placed = x.transpose(0, 1) + self.positions(slice(0, len(x)))
        return self.stack(placed, every=every)

    recurrent: Recurrent | None
    stack: Stack | None
    positions: nn.Module | None
