"""Whole texts through an encoder on a CPU, in one call of the C++ library (`cpu/encoder.h`).

It is what `Stack.forward` does, its plain twin, where every token sees every other and nobody asks for gradients or
looks inside. No padding is read. Float matrices are laid out (`stack_layout.py`) once a stack has read enough for
that to come back; until then, and without a compiler, the modules do it. In float16 matrices and what they are
multiplied with have half precision, and all between products is float32; PyTorch's own products of float16 take ten
to a hundred times as long on a CPU, so nothing is waited for.
"""

from __future__ import annotations

import itertools
from typing import Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from legato.nn.adapters.lora_by_row import bound_rows
from legato.nn.capture import capturing
from legato.nn.kernels import library as c
from legato.nn.kernels.description import StackSpec, describe
from legato.nn.kernels.stack_layout import KINDS, Stack, StackLayout, fits, float_numbers, suits, versions
from legato.nn.quantized import OUTPUTS

WORTH: Final = 1024  # tokens after which float matrices have been worth laying out: they then take a fifth less time


class EncoderPass:
    """A stack, laid out for the kernels. It is of the weights as they were when it was made."""

    def __init__(self, kernels: c.Library, stack: Stack, spec: StackSpec) -> None:
        self._kernels = kernels
        self._layout = StackLayout(stack, spec, kernels=kernels)
        self.of = self._layout.of

    def __call__(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """(B, T, D) to (B, T, D), padded on the right; padding becomes zeros."""
        rows, length, width = x.shape
        counts = [length] * rows if lengths is None else lengths.tolist()
        starts = torch.tensor([0, *itertools.accumulate(counts)])
        padded = sum(counts) < rows * length
        dtype, x = x.dtype, x.detach().float()
        packed = torch.cat([row[:count] for row, count in zip(x, counts, strict=True)]) if padded else x.contiguous()
        hidden = torch.empty_like(packed)
        texts = c.Texts(
            count=rows,
            tokens=sum(counts),
            starts=starts.data_ptr(),
            embedded=packed.data_ptr(),
            hidden=hidden.data_ptr(),
        )
        if texts.tokens:
            self._kernels.encode(self._layout.structure, texts, torch.get_num_threads())
        if not padded:
            return hidden.to(dtype)
        made = x.new_zeros(rows, length, width, dtype=dtype)
        for row, some, count in zip(made, hidden.split(counts), counts, strict=True):
            row[:count] = some
        return made


_PASSES: WeakKeyDictionary[nn.Module, EncoderPass] = WeakKeyDictionary()
_READ: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()  # tokens, by a stack that is not laid out


def encoder_pass(stack: Stack, x: Tensor) -> EncoderPass | None:
    """The pass of a stack over `x` on this machine; None where the plain modules do it."""
    if not (x.is_cpu and x.dim() == 3) or torch.is_grad_enabled() or capturing() or bound_rows() is not None:
        return None
    if torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
        return None
    spec = _spec_of(stack, x.dtype)
    if spec is None:
        return None
    made = _PASSES.get(stack)
    if made is None or made.of != versions(spec):
        forget(stack)
        if not suits(spec, dtype=x.dtype):
            return None
        _READ[stack] = _READ.get(stack, 0) + x.shape[0] * x.shape[1]
        if _READ[stack] < WORTH and x.dtype == torch.float32 and float_numbers(spec):
            return None
        kernels = c.library()
        if kernels is None or not fits(spec):
            return None
        made = _PASSES[stack] = EncoderPass(kernels, stack, spec)
    return made


def has_pass(stack: Stack, dtype: torch.dtype) -> bool:
    """Whether there is a pass of this stack, with weights of that dtype."""
    spec = _spec_of(stack, dtype)
    return spec is not None and suits(spec, dtype=dtype)


def _spec_of(stack: Stack, dtype: torch.dtype) -> StackSpec | None:
    """What a stack is made of that has a pass."""
    if stack.training or stack.causal or dtype not in KINDS or stack.rotary is not None or any(stack.windows):
        return None
    spec = describe(stack)
    if spec is None or spec.adapted or not spec.fused or stack.shape.head_size % OUTPUTS:
        return None
    if spec.of_sources or spec.head_norms:
        return None
    halves = dtype == torch.float32 or ((kernels := c.library()) is not None and kernels.multiplies_halves)
    return spec if halves else None


def forget(stack: nn.Module) -> None:
    """The weights of a stack are about to change, in ways that do not count."""
    _PASSES.pop(stack, None)
