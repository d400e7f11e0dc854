"""What follows the gradients on a CPU, of all tensors in one call: their norm, and AdamW's step (cpu/update.h).

The plain twins are PyTorch's `clip_grad_norm_` and `AdamW`, from which these differ by rounding; the number of
threads changes no bit. Gradients are not changed: what clipping leaves of them goes into the step.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from legato.nn.kernels.library import Update, Weights, training_library
from legato.nn.kernels.training import supports


class Moved(NamedTuple):
    """A parameter, and what AdamW keeps of it."""

    weight: Tensor
    gradient: Tensor
    mean: Tensor  # of gradients
    square: Tensor  # of their squares
    steps: float  # with this one
    rate: float
    decay: float


def takes(weight: Tensor, gradient: Tensor) -> bool:
    """Whether these are for a parameter."""
    return all(x.dtype == torch.float32 and _dense(x) and supports(x) for x in (weight, gradient))


def _dense(x: Tensor) -> bool:
    return x.layout == torch.strided and x.is_contiguous()


def gradient_norm(gradients: Sequence[Tensor]) -> float:
    """Of all together, as one vector."""
    made = training_library()
    assert made is not None
    weights = (Weights * len(gradients))()
    for one, gradient in zip(weights, gradients, strict=True):
        one.gradient, one.count = gradient.data_ptr(), gradient.numel()
    return math.sqrt(made.squares(weights, len(gradients), torch.get_num_threads()))


def adamw(tensors: Sequence[Moved], *, beta1: float, beta2: float, eps: float, clip: float) -> None:
    """AdamW's step with `clip` times the gradients, in place."""
    made = training_library()
    assert made is not None
    weights = (Weights * len(tensors))()
    for one, moved in zip(weights, tensors, strict=True):
        one.weight, one.gradient, one.mean, one.square = (x.data_ptr() for x in moved[:4])
        one.count, one.keep = moved.weight.numel(), 1 - moved.rate * moved.decay
        one.rate, one.root = moved.rate / (1 - beta1**moved.steps), 1 / math.sqrt(1 - beta2**moved.steps)
    task = Update(weights, len(tensors), beta1, beta2, eps, clip)
    made.adamw(ctypes.byref(task), torch.get_num_threads())
