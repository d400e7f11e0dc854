"""Kernels for CUDA, in Triton, which comes with PyTorch; each has its plain twin."""

from __future__ import annotations

import os
from importlib.util import find_spec


def has_kernels() -> bool:
    """Whether Triton is there, and nobody has turned our kernels off."""
    return os.environ.get("LEGATO_KERNELS") != "off" and find_spec("triton") is not None
