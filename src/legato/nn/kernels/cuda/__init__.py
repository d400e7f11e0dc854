"""Kernels for CUDA, in Triton, which comes with PyTorch; each has its plain twin."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Final

import torch
from torch import Tensor


def has_kernels() -> bool:
    """Whether Triton is there, and nobody has turned our kernels off."""
    return os.environ.get("LEGATO_KERNELS") != "off" and find_spec("triton") is not None


_LOADED: Final[list[bool]] = []


def load_training_kernels() -> None:
    """Bring in those that training uses, where there is a GPU: a compiler cannot, once it is at work."""
    if not _LOADED and torch.cuda.is_available() and has_kernels():
        from legato.nn.kernels.cuda import biased_gelu, residual_norm  # noqa: F401

        _LOADED.append(True)


def training_kernels(x: Tensor) -> bool:
    """Whether what is made of `x` is made by them: gradients will be asked for, on a GPU."""
    return bool(_LOADED) and x.is_cuda and torch.is_grad_enabled()
