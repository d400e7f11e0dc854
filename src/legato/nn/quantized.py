"""Weights of 8 or 4 bits: a matrix in blocks of 16 outputs × 32 inputs, each output with its scale.

    w[n, k] = s[n, k // 32] · code[n, k]               int8: codes from -127 to 127
                                                       int4: codes are 16 numbers of a table
    w[n, k] = s[n, k // 32] · code[n, k] + m[n, k // 32]   where a file has minimums (GGUF's Q4_1 and others)

Scales are half-precision, as in GGUF's Q8_0 and Q4_0, whose groups of 32 these are. The blocks lie in memory and in
files as the CPU kernels read them (`kernels/cpu/products.h`): nothing is laid out anew, or kept twice. Activations
are brought to 8 bits, with a scale for each 32 of a row, where those kernels multiply them; elsewhere the weights are
dequantised for each product, which is the plain twin.

A `QuantizedLinear` stands wherever a `Linear` can. Its `weight` is made when somebody asks for it, so that whoever
computes with that gets the right numbers, slowly; gradients go through it to LoRA's matrices, not into it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from legato.nn.kernels.library import Matrix, library
from legato.nn.linear import Linear
from legato.nn.readout import Readout, TokenEmbedding

OUTPUTS: Final = 16  # of a block
GROUP: Final = 32  # inputs that share a scale
EVEN: Final = tuple(range(-8, 8))  # what 4 bits stand for in GGUF's Q4_0
# Closer together where most weights of a trained matrix are: the sixteen numbers that leave the smallest squared
# error of normally distributed ones in groups of 32 (Lloyd's iteration over 40,000 groups: 0.073 of their size).
NORMAL: Final = (-127, -94, -73, -57, -43, -30, -19, -7, 4, 16, 28, 41, 55, 71, 90, 113)
STEPS: Final = tuple(range(16))  # what they stand for above a minimum
SHARES: Final = (0.85, 0.92, 1.0, 1.08)  # of the scale at which a group's largest number is the table's last
SOME: Final = 1 << 22  # numbers that are quantised at once


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
        assert bits == 8 or minimums is None or table is None or tuple(table.tolist()) == STEPS
        rows, columns = codes.shape
        high, wide = -(-rows // OUTPUTS), -(-columns // GROUP)
        fill = 0 if bits == 8 or table is None else int((table == 0).int().argmax())
        codes = F.pad(codes, (0, wide * GROUP - columns, 0, high * OUTPUTS - rows), value=fill)
        codes = codes.view(high, OUTPUTS, wide, GROUP)
        if bits == 8:
            each = codes.view(high, OUTPUTS, wide, 8, 4).permute(0, 2, 3, 1, 4)  # (N/16, K/32, 8, 16, 4)
        else:
            pairs = codes.view(torch.uint8).view(high, OUTPUTS, wide, 4, 2, 4)
            each = (pairs[..., 0, :] | (pairs[..., 1, :] << 4)).permute(0, 2, 3, 1, 4)  # (N/16, K/32, 4, 16, 4)
        parts = [each.reshape(high, wide, -1).view(torch.uint8)]
        for part in (scales, *(() if minimums is None else (minimums,))):
            padded = F.pad(part, (0, 0, 0, high * OUTPUTS - rows)).view(high, OUTPUTS, wide)
            parts.append(padded.transpose(1, 2).contiguous().view(torch.uint8))  # (N/16, K/32, 32)
        blocks = torch.cat(parts, dim=-1)
        return cls(blocks, (rows, columns), bits, table, exponent, minimums is not None)

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
            both = blocks.reshape(high, wide, 4, OUTPUTS, 4)
            each = torch.stack([both & 15, both >> 4], dim=3).permute(0, 4, 1, 2, 3, 5)  # (h, 16, w, 4, 2, 4)
            assert self.table is not None
            each = self.table[each.long()]
        return each.reshape(high * OUTPUTS, wide * GROUP)

    def _halves(self, offset: int, first: int = 0, last: int | None = None) -> Tensor:
        start = self.code_bytes + offset * 2 * OUTPUTS
        part = self.blocks[first:last, :, start : start + 2 * OUTPUTS].contiguous().view(torch.float16)
        return part.transpose(1, 2).reshape(-1, part.shape[1])  # (N padded, K/32)

    def dequantize(self, dtype: torch.dtype = torch.float32, first: int = 0, last: int | None = None) -> Tensor:
        """(N, K), or the rows of the blocks from `first` to `last`."""
        codes = self.codes(first, last).to(torch.float32).unflatten(1, (-1, GROUP))
        dense = codes * (self._halves(0, first, last).float() * 2.0**self.exponent).unsqueeze(-1)
        if self.minimums:
            dense = dense + (self._halves(1, first, last).float() * 2.0**self.exponent).unsqueeze(-1)
        return dense.flatten(1)[: self.shape[0] - first * OUTPUTS, : self.shape[1]].to(dtype)

    def rows(self, places: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Some rows (…,) as vectors (…, K): what an embedding looks up."""
        flat = places.flatten()
        picked = QuantizedWeight(
            self.blocks[flat // OUTPUTS], (len(flat) * OUTPUTS, self.shape[1]), self.bits, self.table, self.exponent,
            self.minimums,
        )  # fmt: skip
        dense = picked.dequantize(dtype).view(len(flat), OUTPUTS, -1)
        return dense[torch.arange(len(flat), device=flat.device), flat % OUTPUTS].view(*places.shape, -1)


def quantize(weight: Tensor, bits: int) -> QuantizedWeight:
    """The matrix (N, K) in so many bits."""
    rows, columns = weight.shape
    most = float(weight.detach().abs().amax())
    # Half-precision scales lose bits where they are tiny: the largest of them is about 1.
    exponent = math.frexp(most / (127 if bits == 8 else 8))[1]
    table = None if bits == 8 else torch.tensor(NORMAL, dtype=torch.int8, device=weight.device)
    minimums = bits == 4 and _suits_minimums(weight.detach()[:OUTPUTS].float() * 2.0**-exponent, table)
    table = torch.tensor(STEPS, dtype=torch.int8, device=weight.device) if minimums else table
    step = max(1, SOME // max(columns, 1)) // OUTPUTS * OUTPUTS or OUTPUTS
    parts = []
    for start in range(0, rows, step):
        groups = _groups(weight.detach()[start : start + step].float() * 2.0**-exponent)
        least = None
        if minimums:
            codes, scales, least = _four_from_minimums(groups)
        else:
            codes, scales = _eight(groups) if table is None else _four(groups, table)
        parts.append(QuantizedWeight.of(codes.flatten(1), scales, bits, minimums=least, table=table).blocks)
    return QuantizedWeight(torch.cat(parts), (rows, columns), bits, table, exponent, minimums)


def _groups(some: Tensor) -> Tensor:
    """(n, K) to (n, ⌈K/32⌉, 32)."""
    return F.pad(some, (0, -some.shape[1] % GROUP)).unflatten(1, (-1, GROUP))


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
    scales = (groups.abs().amax(-1) / 127).half()
    codes = (groups / scales.float().clamp(min=1e-30).unsqueeze(-1)).round().clamp(-127, 127)
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


class _Holds(nn.Module):
    """A module whose matrix is a `QuantizedWeight`: its blocks are a buffer, so that they are saved and moved."""

    blocks: Tensor
    table: Tensor | None
    exponent: Tensor
    minimums: Tensor | None
    wide: Tensor

    def hold(self, weight: QuantizedWeight, dtype: torch.dtype) -> None:
        self.bits, self.matrix_shape = weight.bits, weight.shape
        self.register_buffer("blocks", weight.blocks)
        self.register_buffer("table", weight.table)
        # Whole numbers: a model that is brought to another dtype leaves them as they are.
        self.register_buffer("exponent", torch.tensor(weight.exponent))
        self.register_buffer("minimums", torch.ones(1, dtype=torch.uint8) if weight.minimums else None)
        self._exponent = weight.exponent
        self.register_buffer("wide", torch.empty(0, dtype=dtype), persistent=False)  # of the width around it

    @property
    def quantized(self) -> QuantizedWeight:
        return QuantizedWeight(
            self.blocks, self.matrix_shape, self.bits, self.table, self._exponent, self.minimums is not None
        )

    @property
    def weight(self) -> Tensor:
        return self.quantized.dequantize(self.number_dtype)

    @property
    def number_dtype(self) -> torch.dtype:
        """Of what the layer gives back."""
        return self.wide.dtype


class QuantizedLinear(_Holds, Linear):  # type: ignore[override]
    """y = x Wᵀ + b with a narrow W."""

    def __init__(self, layer: Linear, weight: QuantizedWeight) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.bias = layer.bias
        self.low_rank = layer.low_rank
        self.packs, self._packed, self._of = False, None, None
        self._matrix: Matrix | None = None
        self._matrix_of: tuple[int, ...] = ()
        self.hold(weight, layer.weight.dtype)

    def gelu(self, x: Tensor) -> Tensor:
        return F.gelu(self(x))

    def _product(self, x: Tensor) -> Tensor:
        kernels = library() if x.is_cpu and x.dtype == torch.float32 and not torch.is_grad_enabled() else None
        if kernels is None:
            return F.linear(x, self.quantized.dequantize(x.dtype), self.added_bias)
        matrix = self.as_matrix()
        rows = x.numel() // x.shape[-1]
        given = F.pad(x, (0, matrix.columns - x.shape[-1])).contiguous()
        made = x.new_empty(*x.shape[:-1], matrix.rows)
        kernels.linear(matrix, given.data_ptr(), rows, made.data_ptr(), 0, torch.get_num_threads())
        return made if matrix.rows == self.out_features else made[..., : self.out_features]

    def as_matrix(self) -> Matrix:
        """What the CPU kernels read."""
        bias = self.added_bias
        now = (self.blocks.data_ptr(), 0 if bias is None else bias.data_ptr(), 0 if bias is None else bias._version)
        if self._matrix is None or now != self._matrix_of:
            self._matrix_of = now
            self._matrix = matrix_of(self.quantized, bias)
        return self._matrix

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_matrix": None, "_matrix_of": ()}


class QuantizedReadout(QuantizedLinear, Readout):  # type: ignore[override]
    """A logit for each token, of a narrow table."""

    def __init__(self, layer: Readout, weight: QuantizedWeight) -> None:
        super().__init__(layer, weight)
        self.vocabulary = layer.vocabulary

    def forward(self, x: Tensor) -> Tensor:
        return QuantizedLinear.forward(self, x)[..., : self.vocabulary]


class QuantizedEmbedding(_Holds, TokenEmbedding):  # type: ignore[override]
    """A vector for each token, of a narrow table."""

    def __init__(self, table: TokenEmbedding, weight: QuantizedWeight) -> None:
        nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim = table.num_embeddings, table.embedding_dim
        self.padding_idx, self.vocabulary = table.padding_idx, table.vocabulary
        self.hold(weight, table.weight.dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.quantized.rows(tokens, self.number_dtype)


BITS: Final = {"int8": 8, "int4": 4}
EMBEDDED: Final = 8  # bits of what tokens are looked up in, and read out of: a row speaks for a whole token
HELD: Final = ("blocks", "table", "exponent", "minimums")  # what a file has of a narrow matrix


@torch.no_grad()
def quantize_layers(module: nn.Module, width: str) -> int:
    """Make all matrices of a model narrow, in place; how many there are. What is tied stays so."""
    bits, tables, count = BITS[width], dict[int, QuantizedWeight](), 0
    for parent, name, layer, kind in _narrowed(module):
        number = id(layer.weight)
        if number not in tables:
            in_vocabulary = isinstance(layer, TokenEmbedding | Readout)
            tables[number] = quantize(layer.weight, max(bits, EMBEDDED) if in_vocabulary else bits)
        setattr(parent, name, kind(layer, tables[number]))
        count += 1
    return count


def hold_layers(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give a model the narrow matrices among a file's tensors. What does not fit is a ValueError."""
    found = {}
    for name, layer in module.named_modules():
        if f"{name}.blocks" in tensors and isinstance(layer, Linear | TokenEmbedding):
            parts = {part: tensors.get(f"{name}.{part}") for part in HELD}
            found[name] = _checked(f"{name}.", layer.weight.shape, parts)
    hold_weights(module, found)


def hold_weights(module: nn.Module, weights: Mapping[str, QuantizedWeight]) -> list[str]:
    """Give layers of these names narrow matrices, and those that are tied to them the same: which took one."""
    names = {id(layer): name for name, layer in module.named_modules()}
    layers = _narrowed(module)
    tables, taken = dict[int, QuantizedWeight](), []
    for _, _, layer, _ in layers:
        name = names[id(layer)]
        if name in weights:
            tables[id(layer.weight)] = weights[name]
            taken.append(name)
    for parent, name, layer, kind in layers:
        if id(layer.weight) in tables:
            setattr(parent, name, kind(layer, tables[id(layer.weight)]))
    return taken


def _checked(name: str, shape: torch.Size, parts: Mapping[str, Tensor | None]) -> QuantizedWeight:
    blocks, table, exponent = parts["blocks"], parts["table"], parts["exponent"]
    rows, columns = shape
    bits, minimums = (8 if table is None else 4), parts["minimums"] is not None
    size = OUTPUTS * GROUP * bits // 8 + 2 * OUTPUTS * (2 if minimums else 1)
    wanted = (-(-rows // OUTPUTS), -(-columns // GROUP), size)
    if blocks is None or blocks.dtype != torch.uint8 or tuple(blocks.shape) != wanted:
        found = "nothing" if blocks is None else f"{tuple(blocks.shape)} {str(blocks.dtype).removeprefix('torch.')}"
        raise ValueError(f"'{name}blocks' is {found}, but of a matrix {rows} × {columns} it is {wanted} uint8")
    if exponent is None or exponent.dtype != torch.int64 or exponent.numel() != 1 or abs(int(exponent)) > 200:
        raise ValueError(f"'{name}exponent' should be one whole number, from -200 to 200")
    if table is not None and (table.dtype != torch.int8 or tuple(table.shape) != (16,)):
        raise ValueError(f"'{name}table' should be 16 numbers of 8 bits")
    return QuantizedWeight(blocks, (rows, columns), bits, table, int(exponent), minimums)


def is_quantized(module: nn.Module) -> bool:
    return any(isinstance(part, _Holds) for part in module.modules())


def _narrowed(module: nn.Module) -> list[tuple[nn.Module, str, Any, Any]]:
    """The layers that become narrow: their parents, names, themselves, and what they become."""
    found = []
    for parent in module.modules():
        for name, layer in parent.named_children():
            if isinstance(layer, _Holds) or not isinstance(layer, Linear | TokenEmbedding):
                continue
            rows, columns = layer.weight.shape
            if rows < OUTPUTS or columns < GROUP:
                continue
            kind: Any = QuantizedReadout if isinstance(layer, Readout) else QuantizedLinear
            found.append((parent, name, layer, QuantizedEmbedding if isinstance(layer, TokenEmbedding) else kind))
    return found
