"""Narrow matrices made wide in one pass, for products of many rows."""

from __future__ import annotations

import torch
from torch import Tensor

from legato.nn.kernels.cuda import product_kernels as kernels


def widened(
    blocks: Tensor, shape: tuple[int, int], bits: int, table: Tensor | None, factor: float, minimums: bool,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """The matrix (N, K) of blocks (N / 16, K / 32, bytes); what `QuantizedWeight.dequantize` does."""
    high, wide, size = blocks.shape
    out = torch.empty(shape, dtype=dtype, device=blocks.device)
    kernels.widen[(high, -(-wide // 8))](
        blocks.view(torch.int32), blocks.view(torch.float16), None if table is None else table.view(torch.int32), out,
        *shape, wide, size // 4, factor, BITS=bits, TABLE=table is not None, MINIMUMS=minimums, GROUPS=8, num_warps=4,
    )  # fmt: skip
    return out
