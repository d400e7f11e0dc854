"""One token a row through a decoder on CUDA, in a few kernels a layer (`*_kernels.py`).

It is what `CacheSlots` does with the modules of a stack, its plain twin, for stacks that `description.py` describes,
without adapters. Matrices are read where they lie.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor, nn
from triton import next_power_of_2

from legato.nn.kernels.cuda import attention_kernels
from legato.nn.kernels.cuda.product import PROGRAMS, Product, chained, room
from legato.nn.kernels.description import describe, is_stock
from legato.nn.linear import Linear
from legato.nn.positions import Rotation
from legato.nn.quantized import GROUP, QuantizedLinear

Slots = Any  # nn/slots/cache_slots.py's, which asks for its step here
NUMBERS: Final = {"relu": 1, "gelu": 2, "gelu-tanh": 3, "quick-gelu": 4, "silu": 5, "swiglu": 5}
COLUMNS: Final = 64  # of a cache that a program looks at together
LONG: Final = 1024  # columns from which several programs share a head
MOST_PARTS: Final = 16


class Norm:
    """x + added, and what its norm is."""

    def __init__(self, norm: Any) -> None:
        self.norm = norm
        self.rms = isinstance(norm, nn.RMSNorm)
        self.eps = torch.finfo(norm.weight.dtype).eps if norm.eps is None else norm.eps
        self.bias = None if self.rms else norm.bias

    def __call__(
        self, x: Tensor, added: Tensor | None = None, *, keep: bool = True, reader: Product | None = None
    ) -> tuple[Tensor, Any]:
        """The sum, where it is to be kept, and the norm, (R, D) each; the norm as its `reader` wants it."""
        rows, width = x.shape
        out, order = room(x, width, reader)
        total = torch.empty_like(x) if keep and added is not None else x
        attention_kernels.add_norm[(rows,)](
            x, added, total, *out, self.norm.weight, self.bias, width, self.eps, RMS=self.rms, ADD=added is not None,
            BIAS=self.bias is not None, KEEP=keep and added is not None, ORDER=order,
            BLOCK=max(next_power_of_2(width), GROUP), num_warps=min(max(next_power_of_2(width) // 256, 1), 16),
            **chained(x.device),
        )  # fmt: skip
        return total, out if order else out[0]


class Attention:
    """What each head of each row looks at: the row's tokens, or a source's."""

    def __init__(self, attention: Any, window: int | None, source: bool) -> None:
        self.heads, self.width = attention.heads, attention.head_width
        self.kv_heads = self.heads if source else attention.kv_heads
        self.window, self.source = window or 0, source
        self.query_norm = None if source else attention.query_norm
        self.key_norm = None if source else attention.key_norm

    def __call__(self, qkv: Tensor, store: Tensor, slots: Slots, rotation: Rotation | None, reader: Product) -> Any:
        """Queries (and keys, values) of new tokens to (R, H · K), as its `reader` wants it.

        `store` is (2, rows, kv heads, capacity, K).
        """
        rows, heads, width = len(qkv), self.heads, self.width
        keys, values = store.unbind()
        capacity = store.shape[3]
        whole = width % GROUP == 0 and width == next_power_of_2(width)
        out, order = room(qkv, heads * width, reader if whole else None)
        parts = self._parts(rows, capacity)
        partial, weights = out[0], None
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
            partial, out[1], weights, 1 / math.sqrt(width),
            HEADS=heads, GROUP=heads // self.kv_heads, WIDTH=width, PADDED=next_power_of_2(width), BLOCK=COLUMNS,
            ROTARY=rotation is not None and not self.source, NORM=norm is not None, BEAMS=beams is not None,
            WINDOW=0 if self.source else self.window, SOURCE=slots.width if self.source else 0, ORDER=order,
            PARTS=parts, num_warps=4, **chained(qkv.device),
        )  # fmt: skip
        if parts > 1:
            attention_kernels.merge[(rows * heads,)](
                partial, weights, *out, keys, rows * heads, HEADS=heads, WIDTH=width, PADDED=next_power_of_2(width),
                ORDER=order, PARTS=parts, num_warps=2, **chained(qkv.device),
            )  # fmt: skip
        return out if order else out[0]

    def _parts(self, rows: int, capacity: int) -> int:
        longest = min(capacity, self.window) if self.window else capacity
        if longest <= LONG or rows * self.heads >= PROGRAMS:
            return 1
        wanted, most = PROGRAMS // (rows * self.heads) + 1, max(longest // (4 * COLUMNS), 1)
        return min(next_power_of_2(wanted), MOST_PARTS, next_power_of_2(most))


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
        return run(x, slots)[:, : self.model.vocabulary]

    def _pre_norm(self, x: Tensor, slots: Slots) -> Tensor:
        added: Tensor | None = None
        kind = x.dtype
        for number, block in enumerate(self.blocks):
            x, y = block.attention_norm(x, added, reader=block.qkv)
            seen = block.attention(block.qkv(y, kind), slots.store[number], slots, self.rotation, block.output)
            added = block.output(seen, kind)
            if block.cross is not None:
                x, y = block.cross_norm(x, added, reader=block.query)
                seen = block.cross(block.query(y, kind), slots.sources[number], slots, None, block.cross_output)
                added = block.cross_output(seen, kind)
            x, y = block.feedforward_norm(x, added, reader=block.inner)
            added = block.outer(block.inner(y, kind))
        if self.norm is None:
            assert added is not None
            return self.readout(x + added)
        return self.readout(self.norm(x, added, keep=False, reader=self.readout)[1], kind)

    def _post_norm(self, x: Tensor, slots: Slots) -> Tensor:
        kind = x.dtype
        for number, block in enumerate(self.blocks):
            seen = block.attention(block.qkv(x), slots.store[number], slots, self.rotation, block.output)
            x = block.attention_norm(x, block.output(seen, kind), keep=False)[1]
            if block.cross is not None:
                seen = block.cross(block.query(x), slots.sources[number], slots, None, block.cross_output)
                x = block.cross_norm(x, block.cross_output(seen, kind), keep=False)[1]
            x = block.feedforward_norm(x, block.outer(block.inner(x)), keep=False)[1]
        return self.readout(x if self.norm is None else self.norm(x, None)[1])


def suits(model: Any, dtype: torch.dtype) -> bool:
    """Whether the kernels know all that a step of the model does, with keys and values in that dtype."""
    stack, readout = model.writer, model.direct_readout
    if stack.training or readout is None or not is_stock(readout) or stack.shape.activation not in NUMBERS:
        return False
    if dtype not in (torch.float32, torch.bfloat16, torch.float16) or torch.is_autocast_enabled("cuda"):
        return False
    spec = describe(stack)
    # The kernel has one ε for the norms of queries and of keys.
    if spec is None or any(a.eps != b.eps for a, b in zip(spec.head_norms[::2], spec.head_norms[1::2], strict=True)):
        return False
    return all(_plain(layer, dtype) for layer in (*spec.products, readout))


def _plain(layer: nn.Module, dtype: torch.dtype) -> bool:
    """No adapter, inputs in whole groups."""
    if not isinstance(layer, Linear) or layer.adapted:
        return False
    if isinstance(layer, QuantizedLinear):
        return layer.in_features % GROUP == 0
    return layer.weight.dtype == dtype
