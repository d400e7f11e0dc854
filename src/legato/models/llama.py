"""LLaMA (Touvron et al. 2023), and its relatives Mistral, Qwen 2 and Qwen 3: the decoder as most now build it.

    x_t = E w_t                                             no positions here: attention turns queries and keys
    h = blocks(x_1 … x_t), a norm after the last            pre-norm, RMSNorm, SwiGLU, no biases
    P(w_{t+1} | w_1 … w_t) = softmax(W h_t)                 W is a matrix of its own, or with `tied` E again

What the families add, and `family` therefore decides:

    llama     biases of attention and of the feed-forward layers where asked for
    mistral   a window: tokens see only those less than so far away
    qwen2     biases of queries, keys and values; a window in some layers
    qwen3     norms of queries and keys; biases of attention where asked for; a window in some layers

In Hugging Face's folders (published/llama.py) query, key and value matrices are three, gate and up two; here they
are one each.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor

from legato.config import Section
from legato.models.base import BlocksConfig, Sizes
from legato.models.decoder import DecoderModel
from legato.nn.feedforward import BlockShape
from legato.nn.positions import Rotary

Family = Literal["llama", "mistral", "qwen2", "qwen3"]


class Scaling(Section):
    """Rotary positions slowed, so that a model reads longer texts than those it first learned from."""

    most: ClassVar[int] = 1 << 24

    type: Literal["none", "linear", "llama3"] = Field("none", description="none, linear or llama3")
    factor: float = Field(1.0, ge=1, description="how many times slower")
    low: float = Field(1.0, gt=0, description="llama3: what turns less often than this is slowed")
    high: float = Field(4.0, gt=0, description="llama3: what turns more often than this is not")
    length: int = Field(8192, ge=1, description="llama3: tokens of the longest text of the first training")

    @model_validator(mode="after")
    def _low_is_low(self) -> Scaling:
        if self.low >= self.high:
            raise ValueError(f"low={self.low:g} should be less than high={self.high:g}")
        return self

    def slowed(self, rates: Tensor) -> Tensor:
        """Angles per token (K/2,) to slower ones.

        linear   all turn `factor` times slower (Chen et al. 2023)
        llama3   only those do that turn less than `low` times in `length` tokens; those that turn more than `high`
                 times stay, for they tell neighbours apart; between the two it is blended (Llama 3.1's model card)
        """
        if self.type == "none":
            return rates
        if self.type == "linear":
            return rates / self.factor
        turns = self.length * rates / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return kept * rates + (1 - kept) * rates / self.factor


class LlamaConfig(BlocksConfig):
    """Settings of LLaMA and its relatives."""

    name: Literal["llama"] = "llama"
    family: Family = Field("llama", description="llama, mistral, qwen2 or qwen3: what it is saved as")
    heads: int = Field(4, ge=1, description="attention heads; they divide the width, or have a head_width")
    feedforward: int | None = Field(None, ge=1, description="units of the feed-forward layers; left out: 8/3 × width")
    kv_heads: int | None = Field(None, ge=1, description="heads of keys and values; left out: as many")
    head_width: int | None = Field(None, ge=2, description="left out: width / heads")
    length: int = Field(2048, ge=1, description="tokens of the longest text")
    theta: float = Field(10000.0, gt=0, description="base of the rotary positions")
    scaling: Scaling = Field(default_factory=Scaling, description="of the rotary positions")
    window: int | None = Field(None, ge=1, description="tokens see only those less than so far away; left out: all")
    window_layers: tuple[int, ...] | None = Field(None, description="those with the window, from 0; left out: all")
    bias: bool = Field(False, description="biases in attention (llama and qwen3)")
    bias_feedforward: bool = Field(False, description="biases in the feed-forward layers (llama)")
    dropout: float = Field(0.0, ge=0, lt=1, description="on embeddings and on what each sublayer adds")
    dropout_attention: float = Field(0.0, ge=0, lt=1, description="on attention weights")
    eps: float = Field(1e-6, gt=0, description="in the norms' denominators")
    tied: bool = Field(False, description="read out with the embedding's weights")

    @property
    def width_multiple(self) -> int:
        return self.heads * (2 if self.head_width is None else 1)  # rotary positions turn pairs

    @property
    def is_gated(self) -> bool:
        return True

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.width % self.heads and (self.head_width is None or self.family == "llama"):
            raise ValueError(f"heads={self.heads} does not divide width={self.width}")
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(f"kv_heads={self.kv_heads} does not divide heads={self.heads}")
        if self.head_size % 2:
            raise ValueError(f"rotary positions need heads of an even width, not {self.head_size}")
        return self

    @model_validator(mode="after")
    def _fits_family(self) -> LlamaConfig:
        family = self.family
        if self.window is not None and family == "llama":
            raise ValueError("family=llama has no window; family=mistral has")
        if self.window_layers is not None:
            if self.window is None or family == "mistral":
                raise ValueError("window_layers needs a window, and family=qwen2 or qwen3")
            if not set(self.window_layers) <= set(range(self.layers)):
                raise ValueError(
                    f"window_layers={list(self.window_layers)}, but there are layers 0 to {self.layers - 1}"
                )
        if self.bias and family not in ("llama", "qwen3"):
            raise ValueError(f"family={family} has no choice of bias; llama and qwen3 have")
        if self.bias_feedforward and family != "llama":
            raise ValueError(f"family={family} has no bias_feedforward; llama has")
        return self

    @property
    def head_size(self) -> int:
        return self.head_width or self.width // self.heads

    @property
    def windows(self) -> list[int | None]:
        """Each layer's."""
        chosen = range(self.layers) if self.window_layers is None else self.window_layers
        return [self.window if layer in chosen else None for layer in range(self.layers)]


class LlamaModel(DecoderModel):
    """A pre-norm decoder with rotary positions, RMSNorm and SwiGLU."""

    Config = LlamaConfig
    summary = "LLaMA, Mistral, Qwen 2 and 3: a decoder with rotary positions, RMSNorm and SwiGLU"
    config: LlamaConfig

    def __init__(self, config: LlamaConfig, sizes: Sizes) -> None:
        shape = BlockShape(
            config.width,
            config.heads,
            config.inner,
            "swiglu",
            kv_heads=config.kv_heads,
            head_width=config.head_width,
            norm="rms",
            eps=config.eps,
            norm_first=True,
            norm_heads=config.family == "qwen3",
            bias=config.bias_feedforward,
            bias_qkv=config.bias or config.family == "qwen2",
            bias_attention=config.bias,
            dropout=config.dropout,
            dropout_attention=config.dropout_attention,
        )
        rotary = Rotary(config.length, config.head_size, config.theta, config.scaling.slowed)
        super().__init__(config, sizes, shape, dropout_embedding=config.dropout, rotary=rotary, window=config.windows)

    @property
    def published(self) -> str:  # type: ignore[override]  # one class here, several there
        return self.config.family
