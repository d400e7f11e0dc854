"""Products of a decoder's step with its matrices, read where they lie, and how its kernels are launched."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from triton import next_power_of_2

from legato.nn.kernels.cuda import product_kernels
from legato.nn.linear import Linear
from legato.nn.quantized import GROUP, OUTPUTS, STEPS, QuantizedLinear

ACTIVATIONS: Final[dict[int, Callable[[Tensor], Tensor]]] = {
    1: F.relu,
    2: F.gelu,
    3: lambda x: F.gelu(x, approximate="tanh"),
    4: lambda x: x * torch.sigmoid(1.702 * x),
    5: F.silu,
}
PROGRAMS: Final = 264  # that keep such a card busy
FEW: Final = 8  # rows up to which narrow matrices are read as they are


@cache
def chained(device: torch.device) -> dict[str, bool]:
    """How kernels are launched that may begin before the last one has ended."""
    if device.type != "cuda" or torch.version.hip is not None or torch.cuda.get_device_capability(device) < (9, 0):
        return {"PDL": False}
    return {"PDL": True, "launch_pdl": True}


class Int16Rows(NamedTuple):
    """Rows (R, K) in numbers of 16 bits, 32 of them with one scale: for narrow matrices (`store_int16`)."""

    numbers: Tensor  # (R, ⌈K / 256⌉ · 256) int16
    scales: Tensor  # (R, K / 32, 2)

    @classmethod
    def empty(cls, rows: int, inputs: int, device: torch.device) -> Int16Rows:
        numbers = torch.empty(rows, -(-inputs // 256) * 256, dtype=torch.int16, device=device)
        return cls(numbers, torch.empty(rows, inputs // GROUP, 2, dtype=torch.float32, device=device))

    @classmethod
    def of(cls, x: Tensor, order: int) -> Int16Rows:
        rows, inputs = x.shape
        made, groups = cls.empty(rows, inputs, x.device), inputs // GROUP
        count = min(next_power_of_2(groups), 8)
        product_kernels.to_int16[(rows, -(-groups // count))](
            x, *made, groups, ORDER=order, COUNT=count, num_warps=max(count // 2, 1), **chained(x.device)
        )
        return made


class Product:
    """f(W x + b), where `gated` f(gate) · up of a matrix with gates before."""

    def __init__(self, layer: Linear, activation: int = 0, gated: bool = False) -> None:
        self.layer, self.activation, self.gated = layer, activation, gated
        self.outputs = layer.out_features // (2 if gated else 1)
        self.narrow = layer.quantized if isinstance(layer, QuantizedLinear) else None
        self.table: Tensor | None = None
        if self.narrow is not None and self.narrow.table is not None and tuple(self.narrow.table.tolist()) != STEPS:
            self.table = self.narrow.table.contiguous().view(torch.int32)[:, None].repeat(1, 32)  # (4, 32)
        bias = layer.added_bias
        self.bias = None if bias is None else bias.detach().contiguous()

    @property
    def order(self) -> int:
        """In which a narrow matrix wants its inputs (`store_int16`)."""
        return 1 if self.table is None else 2

    def wants_int16(self, rows: int) -> bool:
        return self.narrow is not None and rows <= FEW

    def __call__(self, x: Tensor | Int16Rows, dtype: torch.dtype | None = None) -> Tensor:
        """(R, K) to (R, N), of numbers of 16 bits in `dtype`."""
        if isinstance(x, Int16Rows):
            assert dtype is not None
            return self._narrow(x, dtype)
        if self.wants_int16(len(x)):
            return self._narrow(Int16Rows.of(x, self.order), x.dtype)
        if len(x) == 1:
            return self._one(x)
        return self._ended(F.linear(x, self._dense(x.dtype), self.bias))

    def _ended(self, y: Tensor) -> Tensor:
        if self.gated:
            out = y.new_empty(len(y), self.outputs)
            block = min(next_power_of_2(self.outputs), 1024)
            product_kernels.gate[(len(y), -(-self.outputs // block))](
                y, out, self.outputs, ACTIVATION=self.activation, BLOCK=block, num_warps=4, **chained(y.device)
            )
            return out
        return ACTIVATIONS[self.activation](y) if self.activation else y

    def _dense(self, dtype: torch.dtype) -> Tensor:
        if isinstance(self.layer, QuantizedLinear):
            return self.layer.quantized.dequantize(dtype)
        return self.layer.weight

    @property
    def _ending(self) -> dict[str, Any]:
        return {"ACTIVATION": self.activation, "GATED": self.gated, "BIAS": self.bias is not None}

    def _narrow(self, x: Int16Rows, dtype: torch.dtype) -> Tensor:
        matrix = self.narrow
        assert matrix is not None
        rows, groups = x.scales.shape[:2]
        fused = not self.gated or self.outputs % OUTPUTS == 0
        outputs = self.outputs if fused else 2 * self.outputs
        out = torch.empty(rows, outputs, dtype=dtype, device=x.scales.device)
        together, warps = narrow_tile(outputs, groups, matrix.bits)
        ending = self._ending if fused else {**self._ending, "ACTIVATION": 0, "GATED": False}
        product_kernels.narrow_product[(-(-outputs // OUTPUTS) * rows,)](
            x.numbers.view(torch.int32), x.scales, matrix.blocks.view(torch.int32), matrix.blocks.view(torch.float16),
            self.table, self.bias, out, outputs, groups, rows, 2.0**matrix.exponent, **ending, BITS=matrix.bits,
            TABLE=self.table is not None, MINIMUMS=matrix.minimums, GROUPS=together, ASM=out.is_cuda, num_warps=warps,
            **chained(out.device),
        )  # fmt: skip
        return out if fused else self._ended(out)

    def _one(self, x: Tensor) -> Tensor:
        out, inputs = x.new_empty(1, self.outputs), x.shape[1]
        block_n, block_k, warps = tile(self.outputs, inputs)
        product_kernels.product[(-(-self.outputs // block_n),)](
            x, self.layer.weight, self.bias, out, self.outputs, inputs, **self._ending, BLOCK_N=block_n,
            BLOCK_K=block_k, num_warps=warps, **chained(x.device),
        )  # fmt: skip
        return out


def room(x: Tensor, width: int, reader: Product | None) -> tuple[Any, int]:
    """Where a kernel writes rows of `width` for its reader, and in which order: 0 for numbers as those of `x`."""
    if reader is not None and reader.wants_int16(len(x)):
        return Int16Rows.empty(len(x), width, x.device), reader.order
    return (x.new_empty(len(x), width), None), 0


def narrow_tile(outputs: int, groups: int, bits: int) -> tuple[int, int]:
    """Groups of a narrow matrix that a program reads together, and its warps: many where there are few programs."""
    together, warps = (64, 4) if bits == 4 and outputs > OUTPUTS * PROGRAMS else (128, 8)
    return min(together, next_power_of_2(groups)), warps


def tile(outputs: int, inputs: int) -> tuple[int, int, int]:
    """Rows and columns of a matrix that a program reads together, and its warps."""
    if inputs >= 1024:
        return 1, 1024, 4
    return (4, 256, 2) if outputs >= 32 * PROGRAMS else (2, 256, 2)
