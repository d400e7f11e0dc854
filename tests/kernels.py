"""Choosing between PyTorch's kernels and the equations written out, which tests hold equal."""

from __future__ import annotations

from torch import nn

from legato.nn.multihead import MultiHead
from legato.nn.recurrent import Layer


def fuse(module: nn.Module, fused: bool) -> None:
    """Choose PyTorch's kernels (True) or the written-out equations (False), wherever a module has both."""
    for part in module.modules():
        if isinstance(part, Layer | MultiHead):
            part.fused = fused
