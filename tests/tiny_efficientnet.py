"""EfficientNet-Lite0 as it is published: weights alone, under their names."""

from __future__ import annotations

import torch
from torch import Tensor

# Kernel, stride, width and number of each stage's blocks, as published; the first of them does not expand.
BLOCKS = [
    *[(3, 1, 16)],
    *[(3, 2, 24), (3, 1, 24)],
    *[(5, 2, 40), (5, 1, 40)],
    *[(3, 2, 80), (3, 1, 80), (3, 1, 80)],
    *[(5, 1, 112), (5, 1, 112), (5, 1, 112)],
    *[(5, 2, 192), (5, 1, 192), (5, 1, 192), (5, 1, 192)],
    *[(3, 1, 320)],
]


def published_weights(classes: int = 4) -> dict[str, Tensor]:
    """Tensors of the names and shapes that Lite0 is published with, and of numbers that keep a signal alive."""
    generator = torch.Generator().manual_seed(0)
    tensors: dict[str, Tensor] = {}

    def convolution(name: str, outputs: int, inputs: int, kernel: int, norm: str) -> None:
        scale = (2 / (inputs * kernel**2)) ** 0.5
        tensors[f"{name}.weight"] = scale * torch.randn(outputs, inputs, kernel, kernel, generator=generator)
        for part, middle, spread in (("weight", 1, 0.1), ("bias", 0.3, 0.1), ("running_mean", 0, 0.1)):
            tensors[f"{norm}.{part}"] = middle + spread * torch.randn(outputs, generator=generator)
        tensors[f"{norm}.running_var"] = 0.5 + torch.rand(outputs, generator=generator)
        tensors[f"{norm}.num_batches_tracked"] = torch.tensor(9)

    convolution("_conv_stem", 32, 3, 3, "_bn0")
    width = 32
    for number, (kernel, _, outputs) in enumerate(BLOCKS):
        block, inner = f"_blocks.{number}.", width if number == 0 else 6 * width
        if number:
            convolution(f"{block}_expand_conv", inner, width, 1, f"{block}_bn0")
        convolution(f"{block}_depthwise_conv", inner, 1, kernel, f"{block}_bn1")
        convolution(f"{block}_project_conv", outputs, inner, 1, f"{block}_bn2")
        width = outputs
    convolution("_conv_head", 1280, width, 1, "_bn1")
    tensors["_fc.weight"] = 0.1 * torch.randn(classes, 1280, generator=generator)
    tensors["_fc.bias"] = torch.randn(classes, generator=generator)
    return tensors
