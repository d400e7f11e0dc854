"""One token a row through a decoder on CUDA, in a few kernels a layer (`*_kernels.py`).

It is what `CacheSlots` does with the modules of a stack, its plain twin: for layers that are plain or quantised
products (no adapter, no hook), norms and activations that it knows. Matrices are read where they lie; narrow ones are
laid out anew once, as a GPU reads them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from legato.nn.kernels.cuda import attention_kernels, product_kernels
from legato.nn.linear import Linear
from legato.nn.positions import Rotation
from legato.nn.quantized import GROUP, STEPS, QuantizedLinear, QuantizedWeight

Slots = Any  # nn/slots/cache_slots.py's, which asks for its step here
NUMBERS: Final = {"relu": 1, "gelu": 2, "gelu-tanh": 3, "quick-gelu": 4, "silu": 5, "swiglu": 5}
ACTIVATIONS: Final[dict[int, Callable[[Tensor], Tensor]]] = {
    1: F.relu,
    2: F.gelu,
    3: lambda x: F.gelu(x, approximate="tanh"),
    4: lambda x: x * torch.sigmoid(1.702 * x),
    5: F.silu,
}
COLUMNS: Final = 64  # of a cache that a program looks at together
LONG: Final = 1024  # columns from which several programs share a head
MOST_PARTS: Final = 16
PROGRAMS: Final = 264  # that keep such a card busy
FEW: Final = 8  # rows up to which narrow matrices are read as they are


class NarrowMatrix(NamedTuple):
    """A narrow matrix as the kernels read it, in words of 32 bits (`product_kernels._narrow_rows`)."""

    codes: Tensor  # (N, K / 32, 8 or 4) int32
    scales: Tensor  # (N, K / 32) float16
    minimums: Tensor | None
    table: Tensor | None  # (4,) int32: 16 numbers of 8 bits
    factor: float
    bits: int

    @classmethod
    def of(cls, weight: QuantizedWeight) -> NarrowMatrix:
        codes, scales, minimums = weight.parts()  # (N, K / 32, 32)
        even = weight.table is not None and tuple(weight.table.tolist()) == STEPS
        if weight.bits == 4:
            eight = codes.unflatten(-1, (4, 8))  # (N, K / 32, 4 words, 8)
            low, high = (eight[..., :4], eight[..., 4:]) if even else (eight[..., ::2], eight[..., 1::2])
            codes = (low | (high << 4)).flatten(-2)  # (N, K / 32, 16)
        table = None if even or weight.table is None else weight.table.contiguous().view(torch.int32)
        return cls(codes.contiguous().view(torch.int32), scales, minimums, table, 2.0**weight.exponent, weight.bits)


class TwoPlanes(NamedTuple):
    """Activations in two planes of 8 bits, for narrow matrices."""

    planes: Tensor  # (R, 2, K / 4) int32
    scales: Tensor  # (R, K / 32, 2)
    rows: int

    @classmethod
    def of(cls, x: Tensor) -> TwoPlanes:
        rows, inputs = x.shape
        groups = inputs // GROUP
        planes = torch.empty(rows, 2, inputs // 4, dtype=torch.int32, device=x.device)
        scales = torch.empty(rows, groups, 2, dtype=torch.float32, device=x.device)
        block = min(_power(groups), 16)
        product_kernels.two_planes[(rows, -(-groups // block))](x, planes, scales, inputs, BLOCK=block, num_warps=2)
        return cls(planes, scales, rows)


class Product:
    """f(W x + b), where `gated` f(gate) · up of a matrix with gates before."""

    def __init__(self, layer: Linear, activation: int = 0, gated: bool = False) -> None:
        self.layer, self.activation, self.gated = layer, activation, gated
        self.outputs = layer.out_features // (2 if gated else 1)
        self.narrow = NarrowMatrix.of(layer.quantized) if isinstance(layer, QuantizedLinear) else None
        bias = layer.added_bias
        self.bias = None if bias is None else bias.detach().contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        """(R, K) to (R, N)."""
        if self.narrow is not None and len(x) <= FEW:
            return self._narrow(x, self.narrow)
        if len(x) == 1:
            return self._one(x)
        y = F.linear(x, self._dense(x.dtype), self.bias)
        if self.gated:
            gate, up = y.chunk(2, dim=-1)
            return ACTIVATIONS[self.activation](gate) * up
        return ACTIVATIONS[self.activation](y) if self.activation else y

    def _dense(self, dtype: torch.dtype) -> Tensor:
        if isinstance(self.layer, QuantizedLinear):
            return self.layer.quantized.dequantize(dtype)
        return self.layer.weight

    @property
    def _ending(self) -> dict[str, Any]:
        return {"ACTIVATION": self.activation, "GATED": self.gated, "BIAS": self.bias is not None}

    def _narrow(self, x: Tensor, matrix: NarrowMatrix) -> Tensor:
        out, groups = x.new_empty(len(x), self.outputs), x.shape[1] // GROUP
        given = TwoPlanes.of(x)
        block, together, warps = narrow_tile(self.outputs, groups, matrix.bits)
        product_kernels.narrow_product[(-(-self.outputs // block), len(x))](
            given.planes, given.scales, matrix.codes, matrix.scales, matrix.minimums, matrix.table, self.bias, out,
            self.outputs, groups, matrix.factor, **self._ending, BITS=matrix.bits, TABLE=matrix.table is not None,
            MINIMUMS=matrix.minimums is not None, BLOCK_N=block, GROUPS=together, ASM=x.is_cuda, num_warps=warps,
        )  # fmt: skip
        return out

    def _one(self, x: Tensor) -> Tensor:
        out, inputs = x.new_empty(1, self.outputs), x.shape[1]
        block_n, block_k, warps = tile(self.outputs, inputs)
        product_kernels.product[(-(-self.outputs // block_n),)](
            x, self.layer.weight, self.bias, out, self.outputs, inputs, **self._ending, BLOCK_N=block_n,
            BLOCK_K=block_k, num_warps=warps,
        )  # fmt: skip
        return out


def narrow_tile(outputs: int, groups: int, bits: int) -> tuple[int, int, int]:
    """Rows and groups of a narrow matrix that a program reads together, and its warps."""
    if bits == 8:
        return 1, min(32, _power(groups)), 2
    return 4 if outputs >= 4 * PROGRAMS else 2, min(64, _power(groups)), 2


def tile(outputs: int, inputs: int) -> tuple[int, int, int]:
    """Rows and columns of a matrix that a program reads together, and its warps."""
    if inputs >= 1024:
        return 1, 1024, 4
    return (4, 256, 2) if outputs >= 32 * PROGRAMS else (2, 256, 2)


class Norm:
    """x + added, and what its norm is."""

    def __init__(self, norm: Any) -> None:
        self.norm = norm
        self.rms = isinstance(norm, nn.RMSNorm)
        self.eps = torch.finfo(norm.weight.dtype).eps if norm.eps is None else norm.eps
        self.bias = None if self.rms else norm.bias

    def __call__(self, x: Tensor, added: Tensor | None = None, *, keep: bool = True) -> tuple[Tensor, Tensor]:
        """The sum, where it is to be kept, and the norm, (R, D) each."""
        rows, width = x.shape
        out = torch.empty_like(x)
        total = torch.empty_like(x) if keep and added is not None else x
        attention_kernels.add_norm[(rows,)](
            x, added, total, out, self.norm.weight, self.bias, width, self.eps, RMS=self.rms, ADD=added is not None,
            BIAS=self.bias is not None, KEEP=keep and added is not None, BLOCK=_power(width),
            num_warps=min(max(_power(width) // 256, 1), 16),
        )  # fmt: skip
        return total, out


class Attention:
    """What each head of each row looks at: the row's tokens, or a source's."""

    def __init__(self, attention: Any, window: int | None, source: bool) -> None:
        self.heads, self.width = attention.heads, attention.head_width
        self.kv_heads = self.heads if source else attention.kv_heads
        self.window, self.source = window or 0, source
        self.query_norm = None if source else attention.query_norm
        self.key_norm = None if source else attention.key_norm

    def __call__(self, qkv: Tensor, store: Tensor, slots: Slots, rotation: Rotation | None) -> Tensor:
        """Queries (and keys, values) of new tokens to (R, H · K); `store` is (2, rows, kv heads, capacity, K)."""
        rows, heads, width = len(qkv), self.heads, self.width
        keys, values = store.unbind()
        capacity = store.shape[3]
        out = qkv.new_empty(rows, heads * width)
        parts = self._parts(rows, capacity)
        partial, weights = out, None
        if parts > 1:
            partial = qkv.new_empty(parts, rows, heads, width, dtype=torch.float32)
            weights = qkv.new_empty(parts, rows, heads, 2, dtype=torch.float32)
        norm, norm_key = self.query_norm, self.key_norm
        eps = 0.0 if norm is None else (torch.finfo(norm.weight.dtype).eps if norm.eps is None else norm.eps)
        beams = slots.ancestors if slots.ancestors is not None and not self.source else None
        attention_kernels.attend[(rows, heads, parts)](
            qkv, keys, values, keys.stride(0), keys.stride(1),
            slots.source_lengths if self.source else slots.lengths,
            beams, capacity,
            None if rotation is None else rotation.cos, None if rotation is None else rotation.sin,
            None if norm is None else norm.weight, None if norm_key is None else norm_key.weight, eps,
            partial, weights, 1 / math.sqrt(width),
            HEADS=heads, GROUP=heads // self.kv_heads, WIDTH=width, PADDED=_power(width), BLOCK=COLUMNS,
            ROTARY=rotation is not None and not self.source, NORM=norm is not None, BEAMS=beams is not None,
            WINDOW=0 if self.source else self.window, SOURCE=slots.width if self.source else 0, PARTS=parts,
            num_warps=4,
        )  # fmt: skip
        if parts > 1:
            attention_kernels.merge[(rows * heads,)](
                partial, weights, out, rows * heads, WIDTH=width, PADDED=_power(width), PARTS=parts, num_warps=2
            )
        return out

    def _parts(self, rows: int, capacity: int) -> int:
        longest = min(capacity, self.window) if self.window else capacity
        if longest <= LONG or rows * self.heads >= PROGRAMS:
            return 1
        return min(_power(PROGRAMS // (rows * self.heads) + 1), MOST_PARTS, _power(longest // (4 * COLUMNS)))


class Block:
    """The kernels of one block."""

    def __init__(self, block: Any, window: int | None, activation: str) -> None:
        number, gated = NUMBERS[activation], activation == "swiglu"
        self.attention_norm, self.feedforward_norm = Norm(block.attention_norm), Norm(block.feedforward_norm)
        self.qkv, self.output = Product(block.attention.qkv), Product(block.attention.output)
        self.attention = Attention(block.attention, window, source=False)
        self.inner, self.outer = Product(block.feedforward.inner, number, gated), Product(block.feedforward.outer)
        self.cross: Attention | None = None
        if block.cross is not None:
            self.cross_norm = Norm(block.cross_norm)
            self.query, self.cross_output = Product(block.cross.query), Product(block.cross.output)
            self.cross = Attention(block.cross, None, source=True)


class CudaStep:
    """A stack and its readout."""

    def __init__(self, model: Any, slots: Slots) -> None:
        stack = model.writer
        self.model, self.stack = model, stack
        pairs = zip(stack.layers, stack.windows, strict=True)
        self.blocks = [Block(block, window, stack.shape.activation) for block, window in pairs]
        self.norm = None if stack.norm is None else Norm(stack.norm)
        self.readout = Product(model.output)
        self.norm_first = stack.shape.norm_first
        self.rotation: Rotation | None = None
        if stack.rotary is not None:
            self.rotation = Rotation(stack.rotary.cos.float().contiguous(), stack.rotary.sin.float().contiguous())

    def __call__(self, tokens: Tensor, slots: Slots) -> Tensor:
        """Logits (R, V) after new tokens (R,), whose keys and values are written behind each row's."""
        x = self.model.embed_tokens(tokens[:, None], slots.lengths[:, None])[:, 0].contiguous()
        run = self._pre_norm if self.norm_first else self._post_norm
        logits = self.readout(run(x, slots))
        return logits[:, : self.model.vocabulary]

    def _pre_norm(self, x: Tensor, slots: Slots) -> Tensor:
        added: Tensor | None = None
        for number, block in enumerate(self.blocks):
            x, y = block.attention_norm(x, added)
            added = block.output(block.attention(block.qkv(y), slots.store[number], slots, self.rotation))
            if block.cross is not None:
                x, y = block.cross_norm(x, added)
                added = block.cross_output(block.cross(block.query(y), slots.sources[number], slots, None))
            x, y = block.feedforward_norm(x, added)
            added = block.outer(block.inner(y))
        if self.norm is None:
            assert added is not None
            return x + added
        return self.norm(x, added, keep=False)[1]

    def _post_norm(self, x: Tensor, slots: Slots) -> Tensor:
        for number, block in enumerate(self.blocks):
            added = block.output(block.attention(block.qkv(x), slots.store[number], slots, self.rotation))
            x = block.attention_norm(x, added, keep=False)[1]
            if block.cross is not None:
                added = block.cross_output(block.cross(block.query(x), slots.sources[number], slots, None))
                x = block.cross_norm(x, added, keep=False)[1]
            x = block.feedforward_norm(x, block.outer(block.inner(x)), keep=False)[1]
        return x if self.norm is None else self.norm(x, None)[1]


def suits(model: Any, slots: Slots) -> bool:
    """Whether the kernels know all that a step of the model does."""
    stack = model.writer
    if stack.training or stack.shape.activation not in NUMBERS:
        return False
    if slots.store.dtype not in (torch.float32, torch.bfloat16, torch.float16) or torch.is_autocast_enabled("cuda"):
        return False
    layers = [layer for layer in (*stack.modules(), model.output) if isinstance(layer, nn.Linear)]
    return all(_plain(layer, slots.store.dtype) for layer in layers)


def _plain(layer: nn.Module, dtype: torch.dtype) -> bool:
    """No adapter, no hook, inputs in whole groups."""
    if not isinstance(layer, Linear) or layer.low_rank is not None:
        return False
    if layer._forward_hooks or layer._forward_pre_hooks:
        return False
    if isinstance(layer, QuantizedLinear):
        return layer.in_features % GROUP == 0
    return layer.weight.dtype == dtype


def _power(size: int) -> int:
    """The next power of two."""
    return 1 << (max(size, 1) - 1).bit_length()
