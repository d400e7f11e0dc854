"""The residual network (He et al. 2016): each block of convolutions learns what to add to its input.

    x = stem(pixels)                                    a convolution, which shrinks the picture
    y = f(F(x) + s(x))                                  a block: F are its convolutions, s the shortcut
    basic        F = 3×3, 3×3
    bottleneck   F = 1×1 to a quarter of the width, 3×3, 1×1 back
    h = the last stage's grid                           a head takes its mean (global average pooling)

A stage is several blocks of one width; its first one halves the grid, in all stages but the first, and there the
shortcut is a 1×1 convolution with that stride. Every convolution is followed by a batch norm, and within a block by
ReLU.

The stem of 7 × 7 pixels with max pooling leaves a quarter of a picture's side, which is for photographs. Small
pictures, as CIFAR-10's of 32 pixels, take the stem of 3 × 3 pixels, which leaves them as large as they are (section
4.2). Its names in Hugging Face's folders are in `published/resnet.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from legato.models.base import DEEPEST, ModelConfig, Sizes
from legato.models.image_encoder import ConvolutionalConfig, ConvolutionalEncoder
from legato.nn.convolution import Convolution
from legato.nn.feedforward import ACTIVATIONS

REDUCTION = 4  # how much narrower a bottleneck is inside
Width = Annotated[int, Field(ge=1, le=ModelConfig.most)]
Depth = Annotated[int, Field(ge=1, le=DEEPEST)]


class ResNetConfig(ConvolutionalConfig):
    """Settings of the residual network; those of ResNet-18 where nothing is said."""

    name: Literal["resnet"] = "resnet"
    stem: Literal["7x7", "3x3"] = Field(
        "7x7",
        description="7x7: with stride 2 and max pooling, for photographs; 3x3: with neither, for small pictures",
    )
    embedding: int = Field(64, ge=1, description="channels of the stem")
    widths: tuple[Width, ...] = Field((64, 128, 256, 512), min_length=1, description="channels of each stage")
    depths: tuple[Depth, ...] = Field((2, 2, 2, 2), min_length=1, description="blocks of each stage")
    block: Literal["basic", "bottleneck"] = Field(
        "basic", description="two convolutions, or three of which one is wide"
    )
    activation: Literal["relu", "gelu", "gelu-tanh", "silu"] = Field(
        "relu", description="of the stem and of each block's sum; within blocks it is relu"
    )
    downsample_in_first_stage: bool = Field(False, description="whether the first stage halves the grid, too")
    downsample_in_bottleneck: bool = Field(
        False, description="whether a bottleneck halves the grid in its first convolution rather than in its second"
    )

    @property
    def width(self) -> int:
        """Of the last stage."""
        return self.widths[-1]

    @model_validator(mode="after")
    def _a_depth_for_each_width(self) -> ResNetConfig:
        if len(self.widths) != len(self.depths):
            raise ValueError(f"widths names {len(self.widths)} stages and depths {len(self.depths)}")
        narrow = next((width for width in self.widths if width < REDUCTION), None)
        if self.block == "bottleneck" and narrow is not None:
            raise ValueError(f"a bottleneck of width {narrow} has nothing inside: it is {REDUCTION} times narrower")
        return self


class ResidualBlock(nn.Module):
    """Convolutions, and a shortcut around them."""

    def __init__(self, config: ResNetConfig, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = Convolution(inputs, outputs, 1, stride)
        if config.block == "basic":
            convolutions = [
                Convolution(inputs, outputs, 3, stride, activation=F.relu),
                Convolution(outputs, outputs, 3),
            ]
        else:
            inner = outputs // REDUCTION
            first, second = (stride, 1) if config.downsample_in_bottleneck else (1, stride)
            convolutions = [
                Convolution(inputs, inner, 1, first, activation=F.relu),
                Convolution(inner, inner, 3, second, activation=F.relu),
                Convolution(inner, outputs, 1),
            ]
        self.convolutions = nn.Sequential(*convolutions)

    def forward(self, x: Tensor) -> Tensor:
        around = x if self.shortcut is None else self.shortcut(x)
        return self.activation(self.convolutions(x) + around)


class Stage(nn.Module):
    """Blocks of one width; the first may halve the grid."""

    def __init__(self, config: ResNetConfig, inputs: int, outputs: int, depth: int, stride: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            ResidualBlock(config, inputs, outputs, stride),
            *(ResidualBlock(config, outputs, outputs, 1) for _ in range(depth - 1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        grid: Tensor = self.blocks(x)
        return grid


class ResNetModel(ConvolutionalEncoder):
    """Pictures (B, 3, H, W) in; the places of the last grid out, row by row."""

    Config: ClassVar[type[ModelConfig]] = ResNetConfig
    summary: ClassVar[str] = "the residual network of convolutions; ResNet-18 to -152 by its settings"
    published: ClassVar[str | None] = "resnet"
    config: ResNetConfig

    def __init__(self, config: ResNetConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        kernel, stride = (7, 2) if config.stem == "7x7" else (3, 1)
        activation = ACTIVATIONS[config.activation]
        self.stem = Convolution(3, config.embedding, kernel, stride, activation=activation)
        inputs = (config.embedding, *config.widths)
        shapes = zip(inputs, config.widths, config.depths, strict=False)
        self.stages = nn.ModuleList(
            Stage(config, before, after, depth, 2 if number or config.downsample_in_first_stage else 1)
            for number, (before, after, depth) in enumerate(shapes)
        )

    @property
    def stride(self) -> int:
        halved = len(self.config.widths) - 1 + self.config.downsample_in_first_stage
        return 2 ** (halved + (2 if self.config.stem == "7x7" else 0))

    def grids(self, pixels: Tensor) -> Iterator[Tensor]:
        grid: Tensor = self.stem(pixels)
        if self.config.stem == "7x7":
            grid = F.max_pool2d(grid, 3, 2, 1)
        yield grid
        for stage in self.stages:
            grid = stage(grid)
            yield grid
