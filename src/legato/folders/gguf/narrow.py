"""Matrices that stay as narrow as a GGUF file has them.

Groups of 32 are what our own narrow matrices have (nn/quantized/), so Q4_0, Q4_1 and Q4_K stay in 4 bits, Q8_0,
Q5_0, Q5_1 and Q5_K are in 8, and the numbers that they stand for are the file's, but for the last bits of a K type's
scales. Where one of ours is stacked of several of theirs, all are of the widest. Q6_K has groups of 16, and is
quantised anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from legato.folders.gguf.blocks import Blocks, read_blocks
from legato.folders.gguf.header import Header
from legato.nn.quantized import EVEN, GROUP, STEPS, QuantizedWeight, quantize


def narrow_matrix(
    header: Header, names: Sequence[str], rows: int, ordered: Callable[[str, Tensor], Tensor]
) -> QuantizedWeight | None:
    """The matrix of so many rows that these of a file, stacked, are; None where one of them has plain numbers.

    `ordered` puts the rows of one of them into our order.
    """
    if any(len(header.tensors[name].shape) != 2 for name in names):
        return None
    read = {name: read_blocks(header, name) for name in names}
    parts = [blocks for blocks in read.values() if blocks is not None]
    if len(parts) < len(names):
        return None
    if any(blocks.group != GROUP for blocks in parts):
        dense = [
            ordered(name, torch.from_numpy(blocks.dequantized())) for name, blocks in zip(names, parts, strict=True)
        ]
        whole = torch.cat(dense)
        return quantize(F.pad(whole, (0, 0, 0, rows - len(whole))), 8)
    least = min(int(blocks.codes.min(initial=0)) for blocks in parts)
    span = max(int(blocks.codes.max(initial=0)) for blocks in parts) - least
    has_minimums = any(blocks.minimums is not None for blocks in parts)
    four = span < 16 and (least >= 0 if has_minimums else least >= -8 and least + span < 8)
    table: tuple[int, ...] | None = None
    shift = 0
    if four:
        table, shift = (STEPS, 0) if has_minimums else (EVEN, 8)
    pieces = [_ordered(name, blocks, ordered) for name, blocks in zip(names, parts, strict=True)]
    codes, scales, minimums = (torch.cat(each) for each in zip(*pieces, strict=True))
    missing = rows - len(codes)
    codes, scales, minimums = (F.pad(each, (0, 0, 0, missing)) for each in (codes, scales, minimums))
    largest = max(float(scales.abs().max()), float(minimums.abs().max()) if has_minimums else 0.0)
    exponent = math.frexp(largest)[1]
    return QuantizedWeight.of(
        codes + shift,
        (scales * 2.0**-exponent).half(),
        4 if four else 8,
        minimums=(minimums * 2.0**-exponent).half() if has_minimums else None,
        table=None if table is None else torch.tensor(table, dtype=torch.int8),
        exponent=exponent,
    )


def _ordered(name: str, blocks: Blocks, ordered: Callable[[str, Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    scales = torch.from_numpy(blocks.scales)
    minimums = torch.zeros_like(scales) if blocks.minimums is None else torch.from_numpy(blocks.minimums)
    codes = torch.from_numpy(blocks.codes)
    return ordered(name, codes), ordered(name, scales), ordered(name, minimums)
