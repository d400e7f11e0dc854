"""The numbers in a GGUF file: how each type packs them, and what they are.

Types with a Q keep weights in groups of G neighbours of a row, each a small whole number, its code:

    w[n, k] = scale[n, k // G] · code[n, k] + minimum[n, k // G]

The older ones have blocks of 32 weights, with a scale (Q4_0, Q5_0, Q8_0), or a scale and a minimum (Q4_1, Q5_1), in
float16. Those with a K have blocks of 256, in groups of 16 or 32 whose scales and minimums are whole numbers, too,
times two float16 numbers of the block. A function for each type makes of its blocks' bytes (blocks, bytes) the codes
(blocks, groups, G), the scales (blocks, groups) and the minimums, or None; a code in the middle of its range stands
for 0 where there are none.

(https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-common.h)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, Final

import numpy as np

from legato.errors import FolderError, brief
from legato.folders.gguf.header import Bytes, Header, TensorInfo

Floats = np.ndarray[Any, np.dtype[np.float32]]
Codes = np.ndarray[Any, np.dtype[np.int8]]
Packed = tuple[Codes, Floats, Floats | None]
FOUR: Final = np.uint8(4)  # bits of half a byte
ALL: Final = slice(None)  # rows of a matrix


@dataclass(frozen=True)
class Blocks:
    """A matrix (N, K) as codes with a scale, and mostly a minimum, for each group of a row."""

    codes: Codes  # (N, K)
    scales: Floats  # (N, K // G)
    minimums: Floats | None  # (N, K // G); None: 0

    @property
    def group(self) -> int:
        """G, the weights that have a scale in common."""
        return int(self.codes.shape[1] // self.scales.shape[1])

    def dequantized(self) -> Floats:
        """The weights themselves (N, K)."""
        rows, columns = self.codes.shape
        weights = self.codes.reshape(rows, -1, self.group).astype(np.float32)
        weights *= self.scales[..., None]
        if self.minimums is not None:
            weights += self.minimums[..., None]
        return weights.reshape(rows, columns)


# --- blocks of 32 -------------------------------------------------------------------------------------


def _q8_0(raw: Bytes) -> Packed:
    """scale, then a byte each: 34 bytes."""
    return raw[:, None, 2:].view(np.int8), _halves(raw, 0), None


def _q4_0(raw: Bytes) -> Packed:
    """scale, then half a byte each: 18 bytes."""
    return _signed(_nibbles(raw[:, 2:]), 8)[:, None], _halves(raw, 0), None


def _q4_1(raw: Bytes) -> Packed:
    """scale and minimum, then half a byte each: 20 bytes."""
    return _signed(_nibbles(raw[:, 4:]))[:, None], _halves(raw, 0), _halves(raw, 2)


def _q5_0(raw: Bytes) -> Packed:
    """scale, the fifth bits, the four others: 22 bytes."""
    codes = _nibbles(raw[:, 6:]) | _bits(raw[:, 2:6]) << FOUR
    return _signed(codes, 16)[:, None], _halves(raw, 0), None


def _q5_1(raw: Bytes) -> Packed:
    """scale and minimum, the fifth bits, the four others: 24 bytes."""
    codes = _nibbles(raw[:, 8:]) | _bits(raw[:, 4:8]) << FOUR
    return _signed(codes)[:, None], _halves(raw, 0), _halves(raw, 2)


# --- blocks of 256 ------------------------------------------------------------------------------------


def _q4_k(raw: Bytes) -> Packed:
    """Two factors, 8 scales and 8 minimums of 6 bits, then half a byte each: 144 bytes; groups of 32."""
    scales, minimums = _scales_and_minimums(raw)
    # Of 32 bytes the lower halves are a group, the upper halves the next one.
    return _signed(_nibbles(raw[:, 16:].reshape(-1, 4, 32))).reshape(-1, 8, 32), scales, minimums


def _q5_k(raw: Bytes) -> Packed:
    """As Q4_K, with the fifth bits before the four others: 176 bytes; groups of 32."""
    scales, minimums = _scales_and_minimums(raw)
    codes = _nibbles(raw[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    fifth = raw[:, 16:48, None] >> np.arange(8, dtype=np.uint8) & np.uint8(1)  # of a byte, one bit for each group
    return _signed(codes | fifth.transpose(0, 2, 1) << FOUR), scales, minimums


def _q6_k(raw: Bytes) -> Packed:
    """Lower halves, upper two bits, 16 scales of a byte, a factor: 210 bytes; groups of 16."""
    codes = _nibbles(raw[:, :128].reshape(-1, 2, 64))  # (blocks, 2, 128)
    upper = raw[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & np.uint8(3)
    scales = raw[:, 192:208].view(np.int8).astype(np.float32) * _halves(raw, 208)
    return _signed(codes | upper.reshape(codes.shape) << FOUR, 32).reshape(-1, 16, 16), scales, None


def _scales_and_minimums(raw: Bytes) -> tuple[Floats, Floats]:
    """Of 12 bytes behind the two factors: 6 bits each, the upper two of the last four beside the first four."""
    first, second, third = (raw[:, start : start + 4] for start in (4, 8, 12))
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    minimums = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return scales.astype(np.float32) * _halves(raw, 0), minimums.astype(np.float32) * -_halves(raw, 2)


# --- bits ---------------------------------------------------------------------------------------------


def _halves(raw: Bytes, start: int) -> Floats:
    """The float16 number of every block that begins at a byte, (blocks, 1)."""
    return np.ascontiguousarray(raw[:, start : start + 2]).view("<f2").astype(np.float32)


def _nibbles(raw: Bytes) -> Bytes:
    """The lower halves of bytes (…, n), and behind them the upper ones, (…, 2 n)."""
    return np.concatenate([raw & 15, raw >> 4], axis=-1)


def _bits(raw: Bytes) -> Bytes:
    """Every bit of bytes (…, n), lowest first, (…, 8 n)."""
    return np.unpackbits(raw, axis=-1, bitorder="little")


def _signed(codes: Bytes, middle: int = 0) -> Codes:
    return codes.view(np.int8) - np.int8(middle)


# --- all types ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Packing:
    """A type of numbers: as many weights as a block has, in so many bytes."""

    name: str
    weights: int
    bytes: int
    unpack: Callable[[Bytes], Packed] | None = None  # None: plain numbers


PACKINGS: Final = {
    0: Packing("F32", 1, 4),
    1: Packing("F16", 1, 2),
    30: Packing("BF16", 1, 2),
    2: Packing("Q4_0", 32, 18, _q4_0),
    3: Packing("Q4_1", 32, 20, _q4_1),
    6: Packing("Q5_0", 32, 22, _q5_0),
    7: Packing("Q5_1", 32, 24, _q5_1),
    8: Packing("Q8_0", 32, 34, _q8_0),
    12: Packing("Q4_K", 256, 144, _q4_k),
    13: Packing("Q5_K", 256, 176, _q5_k),
    14: Packing("Q6_K", 256, 210, _q6_k),
}
# What there is besides, for messages.
UNREAD: Final = dict(
    [
        *((9, "Q8_1"), (10, "Q2_K"), (11, "Q3_K"), (15, "Q8_K"), (16, "IQ2_XXS"), (17, "IQ2_XS"), (18, "IQ3_XXS")),
        *((19, "IQ1_S"), (20, "IQ4_NL"), (21, "IQ3_S"), (22, "IQ2_S"), (23, "IQ4_XS"), (24, "I8"), (25, "I16")),
        *((26, "I32"), (27, "I64"), (28, "F64"), (29, "IQ1_M"), (34, "TQ1_0"), (35, "TQ2_0"), (39, "MXFP4")),
    ]
)


def check_tensors(header: Header) -> None:
    """Refuse tensors of types that are not read, and those that lie where the file has no room for them."""
    taken: list[tuple[int, int, str]] = []
    for tensor in header.tensors.values():
        where = f"{header.path}: '{brief(tensor.name)}'"
        packing = PACKINGS.get(tensor.kind)
        if packing is None:
            kind = UNREAD.get(tensor.kind, f"of a type {tensor.kind:,} that is unknown")
            known = ", ".join(packing.name for packing in PACKINGS.values())
            raise FolderError(f"{where} is {kind}, which Legato does not read; take a file of {known}")
        if not prod(tensor.shape) or tensor.shape[-1] % packing.weights:
            raise FolderError(
                f"{where} has shape {brief(tensor.shape)}, which no blocks of {packing.weights} {packing.name} fill"
            )
        end = tensor.offset + size_of(tensor)
        if header.start + end > header.size:
            raise FolderError(
                f"{where} should end at byte {brief(header.start + end)}, and the file has {header.size:,}; fetch or "
                "copy it again"
            )
        if tensor.offset % header.alignment:
            raise FolderError(f"{where} begins at byte {tensor.offset:,}, between two of {header.alignment}")
        taken.append((tensor.offset, end, tensor.name))
    taken.sort()
    for (_, end, name), (start, _, other) in pairwise(taken):
        if start < end:
            raise FolderError(f"{header.path}: '{brief(name)}' and '{brief(other)}' lie in the same place")


def size_of(tensor: TensorInfo) -> int:
    """Bytes of a tensor."""
    packing = PACKINGS[tensor.kind]
    return prod(tensor.shape) // packing.weights * packing.bytes


def read_blocks(header: Header, name: str, rows: slice = ALL) -> Blocks | None:
    """A matrix, or rows of it, as it lies in the file; None where it has plain numbers."""
    tensor = header.tensors[name]
    packing = PACKINGS[tensor.kind]
    if packing.unpack is None:
        return None
    raw, count = _raw_rows(header, tensor, rows)
    codes, scales, minimums = packing.unpack(raw.reshape(-1, packing.bytes))
    fitted = None if minimums is None else minimums.reshape(count, -1)
    return Blocks(codes.reshape(count, -1), scales.reshape(count, -1), fitted)


def read_tensor(header: Header, name: str) -> Floats:
    """A tensor's weights, in its own shape."""
    return read_rows(header, name).reshape(header.tensors[name].shape)


def read_rows(header: Header, name: str, rows: slice = ALL) -> Floats:
    """The weights of a matrix, or of rows of it (n, K)."""
    tensor = header.tensors[name]
    blocks = read_blocks(header, name, rows)
    if blocks is not None:
        return blocks.dequantized()
    raw, count = _raw_rows(header, tensor, rows)
    kind = PACKINGS[tensor.kind].name
    if kind == "BF16":  # float32 without the lower half
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(count, -1)
    return raw.view("<f4" if kind == "F32" else "<f2").astype(np.float32, copy=False).reshape(count, -1)


def _raw_rows(header: Header, tensor: TensorInfo, rows: slice) -> tuple[Bytes, int]:
    """The bytes of rows, each of which is whole blocks, and how many rows they are."""
    each, all_rows = size_of(tensor), prod(tensor.shape[:-1])
    start, stop, _ = rows.indices(all_rows)
    each //= all_rows
    return header.raw(tensor, each * (stop - start), each * start), stop - start
