"""Small models and stacks, in evaluation, that the kernels of a CPU know."""

from __future__ import annotations

from typing import Any

import torch

from legato.nn.feedforward import BlockShape
from legato.nn.positions import Rotary
from legato.nn.transformer import Stack
from random_models import made

LENGTHS = (9, 3, 6)


def model_of(name: str) -> Any:
    model = made(name, width=32, feedforward=64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def lstm() -> Any:
    return made("lstm")


def stack_of(*, rotary: bool = False, norm_first: bool = True, **options: Any) -> Stack:
    torch.manual_seed(0)
    shape = BlockShape(32, 2, 64, "gelu", norm_first=norm_first)
    return Stack("stack", 2, shape, **options, rotary=Rotary(64, 16) if rotary else None)
