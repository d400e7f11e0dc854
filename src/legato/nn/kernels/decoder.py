"""New tokens through a decoder on a CPU, one a row or a prompt's, in one call of the C++ library (`cpu/stack.h`).

It is what `Stack.extend` and the readout do, its plain twin, for stacks that the kernels know (`description.py`,
`stack_layout.py`), which are laid out when a model first writes and again when its weights have changed.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from legato.nn.adapters.lora_by_row import AdapterRows
from legato.nn.kernels import library as c
from legato.nn.kernels.description import StackSpec, describe, is_stock
from legato.nn.kernels.stack_layout import Stack, StackLayout, fits, suits, versions
from legato.nn.linear import Linear
from legato.nn.positions import Rotation
from legato.nn.readout import Readout

CacheColumns = Any  # nn/kv_cache.py's


class DecoderStep:
    """A stack and its readout, laid out for the kernels. It is of the weights as they were when it was made."""

    def __init__(self, kernels: c.Library, stack: Stack, spec: StackSpec, readout: Linear) -> None:
        self.kernels = kernels
        # Translating is many rows: sentences, and beams of each. What goes on from a text alone is often one row.
        self._layout = StackLayout(stack, spec, readout, kernels if stack.layers[0].cross is not None else None)
        self.stack = self._layout.structure
        self.vocabulary = readout.vocabulary if isinstance(readout, Readout) else readout.out_features
        self.of = self._layout.of

    def knows(self, adapters: AdapterRows | None) -> bool:
        """Whether the adapters of some rows lay beside the weights when they were laid out."""
        return adapters is None or max(adapters.rows) < self._layout.adapters

    def __call__(
        self, x: Tensor, place: CacheColumns, rotation: Rotation | None, adapters: AdapterRows | None = None
    ) -> Tensor:
        """Logits (B, V) after new tokens (B, T, D), for which a cache has columns; `adapters` are the rows'."""
        (rows, tokens, _), threads = x.shape, torch.get_num_threads()
        x = x.contiguous()
        room = x.new_empty(rows, self.stack.readout.rows)
        logits = room[:, : self.vocabulary]  # before the step, which leaves nothing in a cache
        step = c.Step(
            rows=rows * tokens,
            tokens=tokens,
            column=place.column,
            first=None if place.firsts is None else place.firsts.data_ptr(),
            cache=columns_of(place.keys_values),
            embedded=x.data_ptr(),
            logits=room.data_ptr(),
        )
        if rotation is not None:
            cos, sin = (part.expand(rows, tokens, 1, -1).contiguous() for part in rotation)
            step.cos, step.sin = cos.data_ptr(), sin.data_ptr()
        if place.sources is not None and place.source_lengths is not None:
            step.sources = columns_of(place.sources)
            step.rows_of_source = rows * tokens // len(place.source_lengths)
            step.source_lengths = place.source_lengths.data_ptr()
        if adapters is not None:
            whose = adapters.numbers(rows, tokens)
            step.adapters = whose.data_ptr()
        self.kernels.step(self.stack, step, threads)
        return logits


def columns_of(store: Tensor) -> c.Columns:
    """(L, 2, B, H, S, K), of which all but the last two dimensions may lie apart."""
    layer, two, row, head, *_ = store.stride()
    keys = store.data_ptr()
    return c.Columns(keys=keys, values=keys + two * store.element_size(), layer=layer, row=row, head=head)


_STEPS: WeakKeyDictionary[nn.Module, DecoderStep] = WeakKeyDictionary()


def decoder_step(stack: Stack, readout: nn.Module, spec: StackSpec | None = None) -> DecoderStep | None:
    """The step of a stack, which may have been described, and its readout; None where the plain modules do it."""
    spec = spec or describe(stack)
    if spec is None or spec.adapted or stack.training or not spec.norms[-1].weight.is_cpu:
        return None
    if not (is_stock(readout) and isinstance(readout, Linear) and readout.low_rank is None):
        return None
    made = _STEPS.get(stack)
    if made is None or made.of != versions(spec, readout):
        forget(stack)
        kernels = c.library()
        if kernels is None or not suits(spec, readout) or not fits(spec, readout):
            return None
        made = _STEPS[stack] = DecoderStep(kernels, stack, spec, readout)
    return made


def forget(stack: nn.Module) -> None:
    """The weights of a stack are about to change, in ways that do not count."""
    _STEPS.pop(stack, None)
