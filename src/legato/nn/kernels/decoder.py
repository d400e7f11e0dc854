"""One token a row through a decoder on a CPU, in one call of the C++ library (`cpu/stack.h`).

It is what `Stack.extend` and the readout do, its plain twin: for layers that are plain or quantised products
(no adapter, no hook), norms and activations that it knows, float32. Float matrices lie in panels for it, made when a
model first writes and again when its weights have changed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from legato.memory import available
from legato.nn.kernels import library as c
from legato.nn.linear import Linear, PartlyBiased
from legato.nn.positions import Rotation
from legato.nn.quantized import GROUP, OUTPUTS, QuantizedLinear
from legato.nn.readout import Readout

Stack = Any  # nn/transformer.py's, which asks for its step here
CacheColumn = Any  # nn/kv_cache.py's
NUMBERS: Final = {"relu": 1, "gelu": 2, "gelu-tanh": 3, "quick-gelu": 4, "silu": 5, "swiglu": 5}


class DecoderStep:
    """A stack and its readout, laid out for the kernels. It is of the weights as they were when it was made."""

    def __init__(self, kernels: c.Library, stack: Stack, readout: Linear) -> None:
        self._kernels = kernels
        self._kept: list[Any] = []  # what pointers point to
        shape = stack.shape
        blocks = (c.Block * len(stack.layers))()
        for block, module, window in zip(blocks, stack.layers, stack.windows, strict=True):
            self._fill(block, module)
            block.window = window or 0
        self._stack = c.Stack(
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
            readout=self._matrix(readout),
        )
        self._kept.append(blocks)
        self.vocabulary = readout.vocabulary if isinstance(readout, Readout) else readout.out_features
        self.of = _versions(stack, readout)

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
        if isinstance(layer, QuantizedLinear):
            matrix = layer.as_matrix()
            self._kept.append(matrix)
            return matrix
        weight, bias = layer.weight.detach(), layer.added_bias
        missing = -len(weight) % OUTPUTS
        if missing:
            weight = F.pad(weight, (0, 0, 0, missing))
            bias = None if bias is None else F.pad(bias.detach(), (0, missing))
        panels = weight.unflatten(0, (-1, OUTPUTS)).transpose(1, 2).contiguous()  # (N/16, K, 16)
        return c.Matrix(
            kind=1,
            rows=weight.shape[0],
            columns=weight.shape[1],
            data=self._pointer(panels),
            bias=None if bias is None else self._pointer(bias),
            factor=1.0,
        )

    def _pointer(self, tensor: Tensor) -> int:
        tensor = tensor.detach().contiguous()
        self._kept.append(tensor)
        return tensor.data_ptr()

    def __call__(self, x: Tensor, place: CacheColumn, rotation: Rotation | None) -> Tensor:
        """Logits (B, V) after new tokens (B, 1, D), for which a cache has a column."""
        rows, threads = len(x), torch.get_num_threads()
        x = x.contiguous()
        logits = x.new_empty(rows, self._stack.readout.rows)
        step = c.Step(
            rows=rows,
            column=place.column,
            first=None if place.firsts is None else place.firsts.data_ptr(),
            cache=_columns(place.keys_values),
            embedded=x.data_ptr(),
            logits=logits.data_ptr(),
        )
        if rotation is not None:
            cos, sin = (part.expand(rows, 1, 1, -1).contiguous() for part in rotation)
            step.cos, step.sin = cos.data_ptr(), sin.data_ptr()
        if place.sources is not None and place.source_lengths is not None:
            step.sources = _columns(place.sources)
            step.rows_of_source = rows // len(place.source_lengths)
            step.source_lengths = place.source_lengths.data_ptr()
        self._kernels.step(self._stack, step, threads)
        return logits[:, : self.vocabulary]


def _columns(store: Tensor) -> c.Columns:
    """(L, 2, B, H, S, K), of which all but the last two dimensions may lie apart."""
    layer, two, row, head, *_ = store.stride()
    keys = store.data_ptr()
    return c.Columns(keys=keys, values=keys + two * store.element_size(), layer=layer, row=row, head=head)


_STEPS: WeakKeyDictionary[nn.Module, DecoderStep] = WeakKeyDictionary()


def decoder_step(stack: Stack, readout: nn.Module) -> DecoderStep | None:
    """The step of a stack and its readout on this machine; None where the plain modules do it."""
    if not _suits(stack, readout):
        return None
    assert isinstance(readout, Linear)
    made = _STEPS.get(stack)
    if made is None or made.of != _versions(stack, readout):
        forget(stack)
        kernels = c.library()
        if kernels is None or not _fits(stack, readout):
            return None
        made = _STEPS[stack] = DecoderStep(kernels, stack, readout)
    return made


def forget(stack: nn.Module) -> None:
    """The weights of a stack are about to change, in ways that do not count."""
    _STEPS.pop(stack, None)


def _fits(stack: Stack, readout: nn.Module) -> bool:
    """Whether there is memory for the float matrices once more."""
    free = available()
    wide: list[Any] = [layer for layer in (*_products(stack), readout) if not isinstance(layer, QuantizedLinear)]
    return free is None or 4 * sum(layer.weight.numel() for layer in wide) < free / 2


def _suits(stack: Stack, readout: nn.Module) -> bool:
    shape = stack.shape
    if stack.training or shape.activation not in NUMBERS:
        return False
    weight: Any = stack.layers[0].attention_norm.weight
    if not (weight.is_cpu and weight.dtype == torch.float32):
        return False
    # A readout may have rows that fill its last block; nothing is behind it that would read them.
    return _plain(readout) and all(_plain(layer) and _whole(layer) for layer in _products(stack))


def _products(stack: Stack) -> Iterator[nn.Module]:
    yield from (layer for layer in stack.modules() if isinstance(layer, nn.Linear))


def _plain(layer: nn.Module) -> bool:
    """Whether the kernels have this product: no adapter, no hook, inputs in whole blocks."""
    if type(layer) not in (Linear, PartlyBiased, Readout) and not isinstance(layer, QuantizedLinear):
        return False
    assert isinstance(layer, Linear)
    if layer.low_rank is not None or layer._forward_hooks or layer._forward_pre_hooks:
        return False
    return not isinstance(layer, QuantizedLinear) or layer.in_features % GROUP == 0


def _whole(layer: nn.Module) -> bool:
    return isinstance(layer, Linear) and layer.out_features % OUTPUTS == 0


def _versions(stack: Stack, readout: nn.Module) -> tuple[tuple[int, int], ...]:
    """Which weights these are. A fused optimiser changes them uncounted, but no model writes between its steps."""
    tensors = (*stack.parameters(), *stack.buffers(), *readout.parameters(), *readout.buffers())
    return tuple((tensor.data_ptr(), tensor._version) for tensor in tensors)
