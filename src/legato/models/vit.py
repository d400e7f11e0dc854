"""The Vision Transformer (Dosovitskiy et al. 2021): a picture read as a sequence of patches.

    x_i = W patch_i + b                         a patch of P × P pixels, as a convolution with stride P
    z = [c, x_1 … x_N] + position               c is a vector that stands for the whole picture
    h = blocks(z)                               pre-norm; every patch sees every other

Positions are learned for a grid of patches. A picture of another size has another grid: the table is stretched to it,
as a picture would be. Its names in Hugging Face's folders are in `published/vit.py`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from legato.data.batching.batch import Batch, Inputs
from legato.data.image.image_processor import MAX_SIDE
from legato.errors import LegatoError
from legato.models.base import BlocksConfig, ModelConfig, Sizes
from legato.models.image_encoder import ImageConfig, ImageEncoder
from legato.nn.dropout import dropout
from legato.nn.feedforward import BlockShape
from legato.nn.linear import Linear, as_wide_as
from legato.nn.positions import share_sinusoids
from legato.nn.transformer import Stack, start_normal


class PatchesConfig(BlocksConfig, ImageConfig):
    """Settings that Transformers of patches begin with."""

    patch: int = Field(16, ge=1, le=MAX_SIDE, description="pixels of a patch's side; it divides the picture's")
    dropout_attention: float = Field(0.0, ge=0, lt=1, description="on attention weights")

    @model_validator(mode="after")
    def _patches_fill_the_picture(self) -> Self:
        if self.image % self.patch:
            raise ValueError(f"patch={self.patch} does not divide image={self.image}")
        return self


class ViTConfig(PatchesConfig):
    """Settings of the Vision Transformer."""

    pretraining_heads: ClassVar[tuple[str, ...]] = ("pooler",)

    name: Literal["vit"] = "vit"
    activation: Literal["gelu", "gelu-tanh", "relu", "silu"] = Field("gelu", description="of the feed-forward layers")
    dropout: float = Field(0.0, ge=0, lt=1, description="on the embedded patches and on what each sublayer adds")
    eps: float = Field(1e-12, gt=0, description="in the norms' denominators")
    bias_qkv: bool = Field(True, description="whether queries, keys and values have biases")
    pooler: bool = Field(False, description="whether the first state is made one vector for the picture")


class PatchEmbedding(nn.Module):
    """Pictures (B, 3, H, W) to a vector for the whole and one for each patch, with their positions."""

    def __init__(self, width: int, image: int, patch: int, *, bias: bool = True) -> None:
        super().__init__()
        self.patch, self.side = patch, image // patch
        self.projection = nn.Conv2d(3, width, patch, patch, bias=bias)
        self.whole = nn.Parameter(torch.zeros(width))
        self.positions = nn.Parameter(torch.empty(1 + self.side**2, width))

    @torch.no_grad()
    def start_positions(self) -> None:
        """As waves along rows and columns (Beyer et al. 2022): which are neighbours need not be learned first."""
        if self.positions.is_meta:  # a sketch has no numbers, and making them would import a compiler
            return
        places = (torch.arange(self.side) + 0.5) / self.side
        grid = torch.cartesian_prod(places, places)  # (N, 2)
        nn.init.normal_(self.positions, std=0.02)
        self.positions[1:].copy_(share_sinusoids(grid, self.positions.shape[1]))

    def forward(self, pixels: Tensor) -> Tensor:
        """The whole's vector and one for each patch, row by row of the grid: (B, 1 + N, D)."""
        self.grid(*pixels.shape[2:])
        grid = self.projection(as_wide_as(self.projection.weight, pixels))  # (B, D, H / P, W / P)
        x = torch.cat([self.whole.expand(len(grid), 1, -1), grid.flatten(2).transpose(1, 2)], 1)
        return x + self.positions_of(*grid.shape[2:])

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the patches of a picture, which they have to fill."""
        if height % self.patch or width % self.patch:
            raise LegatoError(f"a picture of {height} × {width} pixels is no patches of {self.patch} pixels")
        return height // self.patch, width // self.patch

    def learned(self) -> Tensor:
        """The positions of the patches as they were learned, without that of the whole: (rows, columns, D)."""
        return self.positions[1:].unflatten(0, (self.side, self.side))

    def positions_of(self, rows: int, columns: int) -> Tensor:
        """The positions of a grid, and of the whole before them: (1 + rows · columns, D)."""
        if (rows, columns) == (self.side, self.side):
            return self.positions
        learned = self.learned().permute(2, 0, 1).unsqueeze(0)  # (1, D, rows, columns)
        stretched = F.interpolate(learned, size=(rows, columns), mode="bicubic", align_corners=False)
        return torch.cat([self.positions[:1], stretched.flatten(2)[0].t()])


class ViTModel(ImageEncoder):
    """Pictures (B, 3, H, W) in; a state for the whole and one for each patch out."""

    Config: ClassVar[type[ModelConfig]] = ViTConfig
    summary: ClassVar[str] = "the Vision Transformer: a picture as a sequence of patches"
    published: ClassVar[str | None] = "vit"
    before_grid = 1
    config: ViTConfig

    def __init__(self, config: ViTConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        width = config.width
        shape = BlockShape(
            width,
            config.heads,
            config.feedforward or 4 * width,
            config.activation,
            eps=config.eps,
            norm_first=True,
            bias_qkv=config.bias_qkv,
            dropout=config.dropout,
            dropout_attention=config.dropout_attention,
        )
        self.patches = PatchEmbedding(width, config.image, config.patch)
        self.stack = Stack("encoder", config.layers, shape, causal=False)
        self.pooler = Linear(width, width) if config.pooler else None
        start_normal(self, 0.02)
        self.patches.start_positions()
        nn.init.normal_(self.patches.projection.weight, std=(3 * config.patch**2) ** -0.5)

    @property
    def has_pooler(self) -> bool:
        return self.pooler is not None

    def default_head(self, plain: bool) -> dict[str, Any]:
        return {"pool": "first"}

    @property
    def stride(self) -> int:
        return self.config.patch

    def grid(self, height: int, width: int) -> tuple[int, int]:
        return self.patches.grid(height, width)

    def embed(self, inputs: Inputs) -> Tensor:
        """The whole's vector and one for each patch, row by row of the grid: (B, 1 + N, D)."""
        return dropout(self.patches(self.pixels_of(inputs)), self.config.dropout, self.training)

    def learned_positions(self) -> Tensor:
        return self.patches.learned()

    def read(self, batch: Batch, every: list[Tensor] | None = None) -> Tensor:
        x = self.embed(batch.inputs)
        if every is not None:
            every.append(x)
        return self.stack(x, every=every)

    def pooled(self, hidden: Tensor) -> Tensor:
        """One vector for each picture, (B, T, D) to (B, D)."""
        if self.pooler is None:
            raise LegatoError("this vit has no pooler")
        return torch.tanh(self.pooler(hidden[:, 0]))

    def drop_pooler(self) -> None:
        self.pooler = None
        self.config = self.config.model_copy(update={"pooler": False})
