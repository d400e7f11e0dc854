"""Weights of 8 or 4 bits: a matrix in blocks of 16 outputs × 32 inputs, each output with its scale.

    w[n, k] = s[n, k // 32] · code[n, k]               int8: codes from -127 to 127
                                                       int4: codes are 16 numbers of a table
    w[n, k] = s[n, k // 32] · code[n, k] + m[n, k // 32]   where a file has minimums (GGUF's Q4_1 and others)

Scales are half-precision, as in GGUF's Q8_0 and Q4_0, whose groups of 32 these are. The blocks lie in memory and in
files as the CPU kernels read them (`kernels/cpu/products.h`): nothing is laid out anew, or kept twice. Activations
are brought to 8 bits, with a scale for each 32 of a row, where those kernels multiply them; elsewhere the weights are
dequantised for each product, which is the plain twin.

Products with them are in layers.py and cells.py, and how a model gets them is in narrowing.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from legato.nn.kernels.cuda import has_kernels
from legato.nn.kernels.library import Matrix
from legato.nn.quantized.deferred import Deferred, numbers_of

OUTPUTS: Final = 16  # of a block
GROUP: Final = 32  # inputs that share a scale
EVEN: Final = tuple(range(-8, 8))  # what 4 bits stand for in GGUF's Q4_0
# Closer together where most weights of a trained matrix are: the sixteen numbers that leave the smallest squared
# error of normally distributed ones in groups of 32 (Lloyd's iteration over 40,000 groups: 0.073 of their size).
NORMAL: Final = (-127, -94, -73, -57, -43, -30, -19, -7, 4, 16, 28, 41, 55, 71, 90, 113)
STEPS: Final = tuple(range(16))  # what they stand for above a minimum
SHARES: Final = (0.85, 0.92, 1.0, 1.08)  # of the scale at which a group's largest number is the table's last
WIDE: Final = (torch.float32, torch.bfloat16, torch.float16)  # what a kernel makes of narrow numbers
SOME: Final = 1 << 18  # numbers that are quantised at once: a few times as many lie in memory meanwhile


@dataclass
class QuantizedWeight:
    """A matrix (N, K) in blocks, (⌈N/16⌉, ⌈K/32⌉, bytes of a block)."""

    blocks: Tensor  # uint8
    shape: tuple[int, int]
    bits: int
    table: Tensor | None = None  # (16,) int8, of 4 bits
    exponent: int = 0  # of 2, by which all scales and minimums are multiplied
    minimums: bool = False

    @classmethod
    def of(
        cls,
        codes: Tensor,
        scales: Tensor,
        bits: int,
        *,
        minimums: Tensor | None = None,
        table: Tensor | None = None,
        exponent: int = 0,
    ) -> Self:
        """From codes (N, K) int8 (of 4 bits: places in the table), scales and minimums (N, ⌈K/32⌉) float16."""
        rows, columns = codes.shape
        made = cls.empty((rows, columns), bits, minimums is not None, codes.device, table=table, exponent=exponent)
        made.put(codes, scales, minimums)
        return made

    @classmethod
    def empty(
        cls,
        shape: tuple[int, int],
        bits: int,
        minimums: bool,
        device: torch.device,
        *,
        table: Tensor | None,
        exponent: int,
    ) -> Self:
        """A matrix that nothing has been put into."""
        assert bits == 8 or not minimums or table is None or tuple(table.tolist()) == STEPS
        size = (-(-shape[0] // OUTPUTS), -(-shape[1] // GROUP), block_bytes(bits, minimums))
        return cls(torch.empty(size, dtype=torch.uint8, device=device), shape, bits, table, exponent, minimums)

    def put(self, codes: Tensor, scales: Tensor, minimums: Tensor | None, first: int = 0) -> None:
        """Lay out some rows of codes, scales and minimums, from those of the block `first` on."""
        rows, columns = codes.shape
        high, wide = -(-rows // OUTPUTS), self.blocks.shape[1]
        blocks, missing = self.blocks[first : first + high], high * OUTPUTS - rows
        fill = 0 if self.table is None else int((self.table == 0).int().argmax())
        codes = _padded(codes, (0, wide * GROUP - columns, 0, missing), fill).view(torch.uint8)
        if self.bits == 8:
            each = codes.view(high, OUTPUTS, wide, 8, 4)
        else:
            pairs = codes.view(high, OUTPUTS, wide, 4, 2, 4)
            each = pairs[..., 0, :] | (pairs[..., 1, :] << 4)
        laid_out = blocks[:, :, : self.code_bytes].unflatten(2, (-1, OUTPUTS, 4))
        laid_out.copy_(each.permute(0, 2, 3, 1, 4))  # (N/16, K/32, 8 or 4, 16, 4)
        for place, part in enumerate((scales,) if minimums is None else (scales, minimums)):
            halves = _padded(part, (0, 0, 0, missing)).reshape(high, OUTPUTS, wide).transpose(1, 2)
            start = self.code_bytes + place * 2 * OUTPUTS
            blocks[:, :, start : start + 2 * OUTPUTS] = halves.contiguous().view(torch.uint8)  # (N/16, K/32, 32)

    @property
    def code_bytes(self) -> int:
        return OUTPUTS * GROUP * self.bits // 8

    @property
    def nbytes(self) -> int:
        return self.blocks.numel()

    def codes(self, first: int = 0, last: int | None = None) -> Tensor:
        """(16 · blocks, K padded) int8, of the rows of some blocks."""
        blocks = self.blocks[first:last, :, : self.code_bytes]
        high, wide, _ = blocks.shape
        if self.bits == 8:
            each = blocks.reshape(high, wide, 8, OUTPUTS, 4).view(torch.int8).permute(0, 3, 1, 2, 4)
        else:
            each = self._places(blocks)
            assert self.table is not None
            each = self.table[each.long()]
        return each.reshape(high * OUTPUTS, wide * GROUP)

    @staticmethod
    def _places(blocks: Tensor) -> Tensor:
        """The places in the table that 4 bits are, (N/16, 16, K/32, 4, 2, 4)."""
        high, wide, _ = blocks.shape
        both = blocks.reshape(high, wide, 4, OUTPUTS, 4)
        return torch.stack([both & 15, both >> 4], dim=3).permute(0, 4, 1, 2, 3, 5)

    def parts(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Codes (N, K/32, 32), int8 or places in the table as uint8, scales and minimums (N, K/32) float16."""
        rows, blocks = self.shape[0], self.blocks[:, :, : self.code_bytes]
        codes = self.codes() if self.bits == 8 else self._places(blocks).reshape(blocks.shape[0] * OUTPUTS, -1)
        minimums = self._halves(1)[:rows].contiguous() if self.minimums else None
        return codes.unflatten(1, (-1, GROUP))[:rows].contiguous(), self._halves(0)[:rows].contiguous(), minimums

    def _halves(self, offset: int, first: int = 0, last: int | None = None) -> Tensor:
        start = self.code_bytes + offset * 2 * OUTPUTS
        part = self.blocks[first:last, :, start : start + 2 * OUTPUTS].contiguous().view(torch.float16)
        return part.transpose(1, 2).reshape(-1, part.shape[1])  # (N padded, K/32)

    def dequantize(self, dtype: torch.dtype = torch.float32, first: int = 0, last: int | None = None) -> Tensor:
        """(N, K), or the rows of the blocks from `first` to `last`."""
        if self.blocks.is_cuda and first == 0 and last is None and dtype in WIDE and has_kernels():
            from legato.nn.kernels.cuda.widening import widened

            factor = 2.0**self.exponent
            return widened(self.blocks, self.shape, self.bits, self.table, factor, self.minimums, dtype)
        codes = self.codes(first, last).to(torch.float32).unflatten(1, (-1, GROUP))
        dense = codes * (self._halves(0, first, last).float() * 2.0**self.exponent).unsqueeze(-1)
        if self.minimums:
            dense = dense + (self._halves(1, first, last).float() * 2.0**self.exponent).unsqueeze(-1)
        return dense.flatten(1)[: self.shape[0] - first * OUTPUTS, : self.shape[1]].to(dtype)

    def rows(self, places: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Some rows (…,) as vectors (…, K): what an embedding looks up."""
        flat = places.flatten()
        block, place = flat // OUTPUTS, flat % OUTPUTS
        codes = self.blocks[:, :, : self.code_bytes].unflatten(2, (-1, OUTPUTS, 4))[
            block, :, :, place
        ]  # (n, K/32, …, 4)
        if self.bits == 8:
            numbers = codes.view(torch.int8)
        else:
            assert self.table is not None
            numbers = self.table[torch.stack([codes & 15, codes >> 4], dim=3).long()]
        halves = self.blocks[:, :, self.code_bytes :].unflatten(2, (-1, OUTPUTS, 2))[block, :, :, place]
        scales = halves.view(torch.float16).squeeze(-1).float() * 2.0**self.exponent  # (n, K/32, 1 or 2)
        dense = numbers.flatten(2).float() * scales[:, :, :1]
        if self.minimums:
            dense = dense + scales[:, :, 1:]
        return dense.flatten(1)[:, : self.shape[1]].to(dtype).view(*places.shape, self.shape[1])


def quantize(weight: Tensor, bits: int) -> QuantizedWeight:
    """The matrix (N, K) in so many bits; one that is deferred is read some rows at a time."""
    rows, columns = weight.shape
    at_once = isinstance(weight, Deferred) and (bool(weight.changes) or weight.numel() <= SOME)
    source = numbers_of(weight) if at_once else weight
    step = max(1, SOME // max(columns, 1)) // OUTPUTS * OUTPUTS or OUTPUTS
    parts = [(start, min(start + step, rows)) for start in range(0, rows, step)]
    most = float(torch.stack([_some(source, *part).abs().amax() for part in parts]).amax())
    # Half-precision scales lose bits where they are tiny: the largest of them is about 1.
    exponent = math.frexp(most / (127 if bits == 8 else 8))[1]
    first = _scaled(source, 0, min(OUTPUTS, rows), exponent)
    table = None if bits == 8 else torch.tensor(NORMAL, dtype=torch.int8, device=first.device)
    minimums = bits == 4 and _suits_minimums(first, table)
    table = torch.tensor(STEPS, dtype=torch.int8, device=first.device) if minimums else table
    made = QuantizedWeight.empty((rows, columns), bits, minimums, first.device, table=table, exponent=exponent)
    for start, stop in parts:
        groups = _groups(_scaled(source, start, stop, exponent))
        least = None
        if minimums:
            codes, scales, least = _four_from_minimums(groups)
        else:
            codes, scales = _eight(groups) if table is None else _four(groups, table)
        made.put(codes.flatten(1), scales, least, start // OUTPUTS)
    return made


def block_bytes(bits: int, minimums: bool) -> int:
    """Codes, a scale for each output, and mostly no minimums."""
    return OUTPUTS * GROUP * bits // 8 + 2 * OUTPUTS * (2 if minimums else 1)


def _some(weight: Tensor, start: int, stop: int) -> Tensor:
    return weight.rows(start, stop) if isinstance(weight, Deferred) else weight.detach()[start:stop]


def _scaled(weight: Tensor, start: int, stop: int, exponent: int) -> Tensor:
    """Some rows by 2⁻ᵉ, in memory of their own."""
    some = _some(weight, start, stop).float()
    return some.mul_(2.0**-exponent) if isinstance(weight, Deferred) else some * 2.0**-exponent


def _groups(some: Tensor) -> Tensor:
    """(n, K) to (n, ⌈K/32⌉, 32)."""
    return _padded(some, (0, -some.shape[1] % GROUP)).unflatten(1, (-1, GROUP))


def _padded(some: Tensor, sizes: tuple[int, ...], value: int = 0) -> Tensor:
    return F.pad(some, sizes, value=value) if any(sizes) else some  # which would be copied


def _suits_minimums(some: Tensor, table: Tensor | None) -> bool:
    """Whether even steps from a minimum leave clearly less of an error than the table, which takes less memory.

    They do where the weights were so before, as those of some published models are.
    """
    assert table is not None
    groups = _groups(some)
    codes, scales = _four(groups, table)
    of_table = (table[codes.long()].float() * scales.float().unsqueeze(-1) - groups).square().sum()
    codes, scales, least = _four_from_minimums(groups)
    of_steps = (codes * scales.float().unsqueeze(-1) + least.float().unsqueeze(-1) - groups).square().sum()
    return bool(of_steps < 0.5 * of_table)


def _eight(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and scales; the groups are lost."""
    scales = (groups.abs().amax(-1) / 127).half()
    codes = groups.div_(scales.float().clamp(min=1e-30).unsqueeze(-1)).round_().clamp_(-127, 127)
    return codes.to(torch.int8), scales


def _four(groups: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """The scale of each group that leaves the smallest squared error, of a few; places in the table."""
    values = table.float()
    edges = (values[1:] + values[:-1]) / 2
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))  # (n, K/32, 1)
    best_error, best_scale = torch.full_like(largest, torch.inf), torch.zeros_like(largest)
    for end in (values[0], values[-1]):
        for share in SHARES:
            scale = (largest * share / end).half().float()  # (n, K/32, 1)
            found = values[torch.bucketize(groups / torch.where(scale == 0, 1, scale), edges)]
            # The best scale for these codes, by least squares.
            fitting = (found * groups).sum(-1, keepdim=True) / found.square().sum(-1, keepdim=True).clamp(min=1)
            scale = fitting.half().float()
            error = (found * scale - groups).square().sum(-1, keepdim=True)
            better = error < best_error
            best_error = torch.where(better, error, best_error)
            best_scale = torch.where(better, scale, best_scale)
    codes = torch.bucketize(groups / torch.where(best_scale == 0, 1, best_scale), edges)
    return codes.to(torch.int8), best_scale.squeeze(-1).half()


def _four_from_minimums(groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sixteen even steps from the smallest of each group to its largest."""
    least = groups.amin(-1, keepdim=True).half().float()
    scale = ((groups.amax(-1, keepdim=True) - least) / 15).half().float()
    codes = ((groups - least) / torch.where(scale == 0, 1, scale)).round().clamp(0, 15)
    return codes.to(torch.int8), scale.squeeze(-1).half(), least.squeeze(-1).half()


def matrix_of(weight: QuantizedWeight, bias: Tensor | None) -> Matrix:
    """What the CPU kernels read; the tensors must stay where they are as long as it is used."""
    high, wide, _ = weight.blocks.shape
    padded = high * OUTPUTS
    if bias is not None and len(bias) < padded:
        bias = F.pad(bias.detach(), (0, padded - len(bias)))
    table = None
    if weight.table is not None and tuple(weight.table.tolist()) != STEPS:
        table = weight.table.data_ptr()
    matrix = Matrix(
        kind=2 if weight.bits == 8 else 3,
        rows=padded,
        columns=wide * GROUP,
        minimums=int(weight.minimums),
        data=weight.blocks.data_ptr(),
        bias=None if bias is None else bias.data_ptr(),
        table=table,
        factor=2.0**weight.exponent,
    )
    matrix.kept = (weight, bias)  # what it points to lives as long as it does
    return matrix
