"""A stack of blocks as the C++ library reads it (`cpu/stack.h`): which stacks it can, and where their weights lie.

It has what `description.py` describes, without adapters that are part of a layer, with the activations of `NUMBERS`
and sizes in whole panels, in float32, or in float16 where the processor multiplies that. Float matrices lie in panels
for it, a copy of those that the modules have; so do quantised ones where many rows are multiplied at once, with one
scale for 128 inputs in the place of four. Whatever is no matrix is float32 there. The adapters of rows
(`nn/adapters/lora_by_row.py`) lie beside their matrices.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from legato.memory import available
from legato.nn.adapters.lora_by_row import Thin
from legato.nn.kernels import library as c
from legato.nn.kernels.description import StackSpec
from legato.nn.linear import Linear
from legato.nn.quantized import GROUP, OUTPUTS, QuantizedLinear

Stack = Any  # nn/transformer.py's, which asks for kernels
BROAD: Final = 128  # inputs that share a scale where many rows are multiplied
RANKS: Final = 8  # of an adapter, which are multiplied together (cpu/matrix.h)
KINDS: Final = {torch.float32: 1, torch.float16: 5}  # of float matrices (cpu/matrix.h)
NUMBERS: Final = {"relu": 1, "gelu": 2, "gelu-tanh": 3, "quick-gelu": 4, "silu": 5, "swiglu": 5}


class StackLayout:
    """A stack, and where it has one its readout, laid out for the kernels: of the weights as they are now."""

    def __init__(
        self, stack: Stack, spec: StackSpec, readout: Linear | None = None, kernels: c.Library | None = None
    ) -> None:
        """With `kernels` quantised matrices are laid out, too, as many rows at once read them faster."""
        self._kept: list[Any] = []  # what pointers point to
        layers = layers_of(spec, readout)
        self._broadens = kernels if kernels is not None and _can_be_broad(layers) else None
        self.adapters = 1 + max((number for layer in layers for number in _adapters_of(layer)), default=0)
        shape = stack.shape
        blocks = (c.Block * len(stack.layers))()
        for block, module, window in zip(blocks, stack.layers, stack.windows, strict=True):
            self._fill(block, module)
            block.window = window or 0
        self.structure = c.Stack(
            layers=len(stack.layers),
            width=shape.width,
            heads=shape.heads,
            kv_heads=shape.kv_heads or shape.heads,
            head_width=shape.head_size,
            units=shape.inner,
            activation=NUMBERS[shape.activation],
            gated=int(shape.activation == "swiglu"),
            norm_first=int(shape.norm_first),
            cross=int(stack.layers[0].cross is not None),
            norm=self._norm(stack.norm),
            blocks=ctypes.cast(blocks, ctypes.POINTER(c.Block)),
        )
        if readout is not None:
            self.structure.readout = self._matrix(readout)
        self._kept.append(blocks)
        self.of = versions(spec, readout)

    def _fill(self, block: c.Block, module: Any) -> None:
        norms = {name: getattr(module, name) for name in ("attention_norm", "cross_norm", "feedforward_norm")}
        norms |= {"query_norm": module.attention.query_norm, "key_norm": module.attention.key_norm}
        matrices = {
            "qkv": module.attention.qkv,
            "attention_output": module.attention.output,
            "inner": module.feedforward.inner,
            "outer": module.feedforward.outer,
        }
        if module.cross is not None:
            matrices |= {"query": module.cross.query, "cross_output": module.cross.output}
        for name, norm in norms.items():
            setattr(block, name, self._norm(norm))
        for name, layer in matrices.items():
            setattr(block, name, self._matrix(layer))

    def _norm(self, norm: nn.Module | None) -> c.Norm:
        if norm is None:
            return c.Norm(kind=0)
        bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
        return c.Norm(
            kind=1 if isinstance(norm, nn.LayerNorm) else 2,
            eps=torch.finfo(torch.float32).eps if norm.eps is None else norm.eps,
            weight=self._pointer(norm.weight),  # type: ignore[arg-type]
            bias=None if bias is None else self._pointer(bias),
        )

    def _matrix(self, layer: Linear) -> c.Matrix:
        matrix = self._without_adapters(layer)
        if _adapters_of(layer):
            self._kept.append(matrix)
            matrix = c.Matrix.from_buffer_copy(matrix)  # a narrow layer's is its own
            self._put_adapters(matrix, _adapters_of(layer))
        return matrix

    def _put_adapters(self, matrix: c.Matrix, adapters: Mapping[int, Thin]) -> None:
        """Of each adapter RANKS at a time, with the outputs that these have a say in, as whole panels."""
        table = (c.LowRank * self.adapters)()
        for number, (down, up, parts) in adapters.items():
            downs, ups, spans, at = list[Tensor](), list[Tensor](), list[int](), 0
            for rank, start, end in parts:
                first, last, missing = start // OUTPUTS * OUTPUTS, -(-end // OUTPUTS) * OUTPUTS, -rank % RANKS
                own = F.pad(up[at : at + rank, start:end], (start - first, last - end, 0, missing))
                downs.append(F.pad(down[at : at + rank], (0, 0, 0, missing)))
                ups.append(own.flatten())
                spans += [first, last] * (len(own) // RANKS)
                at += rank
            each = table[number]
            each.rank = sum(map(len, downs))
            each.down, each.up = self._pointer(torch.cat(downs)), self._pointer(torch.cat(ups))
            each.spans = self._pointer(torch.tensor(spans), torch.int32)
        self._kept.append(table)
        matrix.adapters = ctypes.cast(table, ctypes.POINTER(c.LowRank))
        matrix.ranks = max(each.rank for each in table)

    def _without_adapters(self, layer: Linear) -> c.Matrix:
        if isinstance(layer, QuantizedLinear):
            matrix = layer.as_matrix()
            self._kept.append(matrix)
            if self._broadens is None:
                return matrix
            matrix = as_broad(self._broadens, matrix)
            self._kept.append(matrix)
            return matrix
        weight, bias = layer.weight.detach(), layer.added_bias
        missing = -len(weight) % OUTPUTS
        if missing:
            weight = F.pad(weight, (0, 0, 0, missing))
            bias = None if bias is None else F.pad(bias.detach(), (0, missing))
        panels = weight.unflatten(0, (-1, OUTPUTS)).transpose(1, 2).contiguous()  # (N/16, K, 16)
        return c.Matrix(
            kind=KINDS[weight.dtype],
            rows=weight.shape[0],
            columns=weight.shape[1],
            data=self._pointer(panels, weight.dtype),
            bias=None if bias is None else self._pointer(bias),
            factor=1.0,
        )

    def _pointer(self, tensor: Tensor, dtype: torch.dtype = torch.float32) -> int:
        tensor = tensor.detach().to(dtype).contiguous()
        self._kept.append(tensor)
        return tensor.data_ptr()


def as_broad(kernels: c.Library, matrix: c.Matrix) -> c.Matrix:
    """A narrow matrix with one scale for each 128 inputs (cpu/products.h)."""
    blocks = torch.empty(matrix.rows // OUTPUTS, matrix.columns // BROAD, OUTPUTS * (BROAD + 4), dtype=torch.uint8)
    kernels.broaden(matrix, blocks.data_ptr())
    made = c.Matrix(
        kind=4, rows=matrix.rows, columns=matrix.columns, data=blocks.data_ptr(), bias=matrix.bias, factor=1.0
    )
    made.kept = (blocks, matrix)  # what it points to lives as long as it does
    return made


def _can_be_broad(layers: Sequence[Any]) -> bool:
    """Whether all matrices are narrow, and four scales of 32 inputs can be one."""
    narrow = [layer for layer in layers if isinstance(layer, QuantizedLinear) and not layer.quantized.minimums]
    return len(narrow) == len(layers) and all(layer.in_features % BROAD == 0 for layer in narrow)


def layers_of(spec: StackSpec, readout: nn.Module | None = None) -> tuple[Any, ...]:
    """All that the kernels multiply by."""
    return spec.products if readout is None else (*spec.products, readout)


def float_numbers(spec: StackSpec, readout: nn.Module | None = None) -> int:
    """How many numbers there are in the float matrices, which lie in memory once more."""
    layers = layers_of(spec, readout)
    return sum(layer.in_features * layer.out_features for layer in layers if not isinstance(layer, QuantizedLinear))


def fits(spec: StackSpec, readout: nn.Module | None = None) -> bool:
    """Whether there is memory for the float matrices once more."""
    free, size = available(), spec.norms[-1].weight.element_size()
    return free is None or size * float_numbers(spec, readout) < free / 2


def suits(spec: StackSpec, readout: nn.Module | None = None, dtype: torch.dtype = torch.float32) -> bool:
    """Whether the kernels have all that a stack without adapters of its own is made of, in that dtype."""
    if spec.settings[0].activation not in NUMBERS:
        return False
    if not all(norm.weight.is_cpu and norm.weight.dtype == dtype for norm in (*spec.norms, *spec.head_norms)):
        return False
    # A readout may have rows that fill its last block; nothing is behind it that would read them.
    if not all(_has_matrix(layer, dtype) for layer in layers_of(spec, readout)):
        return False
    return all(layer.out_features % OUTPUTS == 0 for layer in spec.products)


def _has_matrix(layer: Any, dtype: torch.dtype) -> bool:
    """Whether the kernels multiply by it: on a CPU, of that dtype, or quantised with inputs in whole blocks."""
    if isinstance(layer, QuantizedLinear):
        return dtype == torch.float32 and layer.blocks.is_cpu and layer.in_features % GROUP == 0
    return bool(layer.weight.is_cpu and layer.weight.dtype == dtype)


def _adapters_of(layer: nn.Module) -> Mapping[int, Thin]:
    """The adapters that rows may have beside a layer, by their numbers."""
    rows = layer.low_rank_rows if isinstance(layer, Linear) else None
    return {} if rows is None else rows.own


def versions(spec: StackSpec, readout: nn.Module | None = None) -> tuple[Any, ...]:
    """Which weights these are. A fused optimiser changes them uncounted, but no model writes between its steps."""
    layers = layers_of(spec, readout)
    tensors = [
        tensor
        for module in (*layers, *spec.norms, *spec.head_norms)
        for tensor in (*module._parameters.values(), *module._buffers.values())
        if tensor is not None
    ]
    rows = [layer.low_rank_rows for layer in layers if layer.low_rank_rows is not None]
    return (
        spec.settings,
        *[(tensor.data_ptr(), tensor._version) for tensor in tensors],
        *[(id(adapters), adapters.version) for adapters in rows],
    )
