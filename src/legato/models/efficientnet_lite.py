"""EfficientNet-Lite (Tan & Le 2019, in the variants for small devices): inverted bottlenecks, scaled as a family.

    MBConv      1×1 to six times the width, k×k depthwise, 1×1 to the block's width    (Sandler et al. 2018)
    y = x + MBConv(x)                                   where neither the grid nor the width changes
    widths      rounded(coefficient · width)            to a multiple of 8, and never by a tenth less
    depths      ⌈coefficient · depth⌉

Batch norms after all, and ReLU6 after all but a block's last convolution. What makes it Lite: there is no
squeeze-and-excitation, ReLU6 stands for swish, and the stem, the top and the depths of the first and the last stage
stay as they are however the rest is scaled. The last convolution, 1×1 to 1280, gives the states that are read.

The last grid may be finer than a place for 32 × 32 pixels, with the same weights (`output_stride`): strides beyond it
are left out, and what follows looks at places as far apart as before by dilation (Chen et al. 2017, "Rethinking
Atrous Convolution", section 3.1). With 16, each second place of each second row is then a place of the grid of 32.

The published weights were trained with TensorFlow, whose padding they need (`nn/convolution.py`). Their names are in
`published/efficientnet_lite.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import torch.nn.functional as F
from pydantic import Field, field_validator
from torch import Tensor, nn

from legato.data.image.image_processor import ImageProcessor
from legato.models.base import ModelConfig, Sizes
from legato.models.image_encoder import ConvolutionalConfig, ConvolutionalEncoder
from legato.nn.convolution import Convolution

BICUBIC: Final = 3  # as Pillow numbers it
STEM: Final = 32
TOP: Final = 1280


@dataclass(frozen=True)
class StageShape:
    """A stage's blocks before they are scaled; the first of them has the stride."""

    depth: int
    kernel: int
    stride: int
    expansion: int
    width: int


STAGES: Final = (  # Tan & Le 2019, table 1
    StageShape(1, 3, 1, 1, 16),
    StageShape(2, 3, 2, 6, 24),
    StageShape(2, 5, 2, 6, 40),
    StageShape(3, 3, 2, 6, 80),
    StageShape(3, 5, 1, 6, 112),
    StageShape(4, 5, 2, 6, 192),
    StageShape(1, 3, 1, 6, 320),
)


class EfficientNetLiteConfig(ConvolutionalConfig):
    """Settings of EfficientNet-Lite; those of its variant 0 where nothing is said."""

    name: Literal["efficientnet-lite"] = "efficientnet-lite"
    width_coefficient: float = Field(1.0, gt=0, le=16, description="what the stages' channels are multiplied with")
    depth_coefficient: float = Field(1.0, gt=0, le=16, description="what the stages' blocks are multiplied with")
    output_stride: Literal[8, 16, 32] = Field(
        32, description="pixels from one place of the last grid to the next; less than 32: a finer grid, by dilation"
    )

    free: ClassVar[tuple[str, ...]] = ("output_stride",)

    @field_validator("output_stride", mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        return int(value) if str(value).isdecimal() else value  # on a command line it is text

    def image_processor(self) -> ImageProcessor:
        """As the published weights were trained with: (x - 127) / 128 of 0 to 255."""
        side = (self.image, self.image)
        return ImageProcessor(side, resample=BICUBIC, mean=(127 / 255,) * 3, std=(128 / 255,) * 3)

    @property
    def width(self) -> int:
        """Of what the last convolution gives."""
        return TOP

    @property
    def widths(self) -> list[int]:
        """Channels of each stage."""
        return [rounded(self.width_coefficient * stage.width) for stage in STAGES]

    @property
    def depths(self) -> list[int]:
        """Blocks of each stage."""
        inner = [math.ceil(self.depth_coefficient * stage.depth) for stage in STAGES[1:-1]]
        return [STAGES[0].depth, *inner, STAGES[-1].depth]


def rounded(width: float) -> int:
    """The multiple of 8 nearest to a width, the next one where that is more than a tenth below.

    >>> rounded(26.4), rounded(44.0), rounded(10.0)
    (24, 48, 16)
    """
    nearest = max(8, int(width + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * width else nearest


class InvertedBottleneck(nn.Module):
    """MBConv: wide inside, where each channel is convolved by itself, and narrow outside."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int, dilation: int = 1
    ) -> None:
        super().__init__()
        inner = expansion * inputs
        self.expand = None if expansion == 1 else convolution(inputs, inner, 1, activated=True)
        self.depthwise = convolution(inner, inner, kernel, stride, activated=True, depthwise=True, dilation=dilation)
        self.project = convolution(inner, outputs, 1)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        inner = x if self.expand is None else self.expand(x)
        y: Tensor = self.project(self.depthwise(inner))
        return x + y if self.residual else y


def convolution(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    *,
    activated: bool = False,
    depthwise: bool = False,
    dilation: int = 1,
) -> Convolution:
    """A convolution as all are here."""
    return Convolution(
        inputs,
        outputs,
        kernel,
        stride,
        activation=F.relu6 if activated else None,
        depthwise=depthwise,
        dilation=dilation,
        padding="same",
        eps=1e-3,
        momentum=0.01,
    )


class EfficientNetLiteModel(ConvolutionalEncoder):
    """Pictures (B, 3, H, W) in; the places of the last grid out, row by row."""

    Config: ClassVar[type[ModelConfig]] = EfficientNetLiteConfig
    summary: ClassVar[str] = "the convolutional network for small devices, whose ImageNet weights are read"
    config: EfficientNetLiteConfig

    def __init__(self, config: EfficientNetLiteConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        widths = config.widths
        self.stem = convolution(3, STEM, 3, 2, activated=True)
        self.stages = nn.ModuleList()
        reached, dilation = 2, 1  # pixels from place to place so far; how far apart what is read has to be
        for shape, before, after, depth in zip(STAGES, [STEM, *widths], widths, config.depths, strict=False):
            kept = shape.stride if reached * shape.stride <= config.output_stride else 1
            first = InvertedBottleneck(before, after, shape.kernel, kept, shape.expansion, dilation)
            first.residual &= kept == shape.stride  # as with the stride
            reached, dilation = reached * kept, dilation * shape.stride // kept
            others = (
                InvertedBottleneck(after, after, shape.kernel, 1, shape.expansion, dilation) for _ in range(depth - 1)
            )
            self.stages.append(nn.Sequential(first, *others))
        self.top = convolution(widths[-1], TOP, 1, activated=True)

    @property
    def stride(self) -> int:
        return self.config.output_stride

    def grids(self, pixels: Tensor) -> Iterator[Tensor]:
        grid: Tensor = self.stem(pixels)
        yield grid
        for stage in self.stages:
            grid = stage(grid)
            yield grid
        yield self.top(grid)
