"""The next tokens of rows through a decoder on a CPU, with a cache in blocks (`nn/block_cache.py`).

It is what `DecoderModel.read_rows` does with the modules of a stack, its plain twin, in a call of the C++ library
for each `AT_ONCE` tokens (`cpu/walk.h`): those of all rows stand one behind the other, so nothing is padded.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from legato.nn.adapters.lora_by_row import AdapterRows, bound_rows
from legato.nn.block_cache import KVCache, Reading
from legato.nn.kernels import library as c
from legato.nn.kernels.decoder import DecoderStep, columns_of, decoder_step
from legato.nn.kernels.description import StackSpec

AT_ONCE: Final = 1024  # tokens that the kernels read together, which they have room for


class PagedStep:
    """A decoder's stack and its readout, of the weights as they were when it was made."""

    def __init__(self, model: Any, step: DecoderStep) -> None:
        self.model, self.step = model, step

    def knows(self, adapters: AdapterRows | None) -> bool:
        """Whether the adapters of some rows lay beside the weights when they were laid out."""
        return self.step.knows(adapters)

    def __call__(self, tokens: Tensor, reading: Reading, cache: KVCache) -> Tensor:
        """Logits (M, V) after the last new token of each row."""
        rows, threads, adapters = len(reading.tables), torch.get_num_threads(), bound_rows()
        starts, tables = reading.starts.contiguous(), reading.tables.contiguous()
        positions, slots = reading.positions.contiguous(), reading.slots.contiguous()
        room = torch.empty(rows, self.step.stack.readout.rows)
        whose = None if adapters is None else adapters.numbers(rows, 1).repeat_interleave(starts.diff())
        ended = 0
        for first in range(0, len(tokens), AT_ONCE):
            part = positions[first : first + AT_ONCE]
            x = self.model.embed_tokens(tokens[None, first : first + AT_ONCE], part[None]).contiguous()
            step = c.Step(
                rows=len(part),
                cache=columns_of(cache.store),
                embedded=x.data_ptr(),
                logits=room.data_ptr() + ended * room.stride(0) * room.element_size(),
                starts=starts.data_ptr(),
                positions=positions.data_ptr(),
                slots=slots.data_ptr(),
                tables=tables.data_ptr(),
                readers=rows,
                capacity=tables.shape[1],
                from_token=first,
            )
            rotary = self.model.writer.rotary
            if rotary is not None:
                cos, sin = (angles.contiguous() for angles in rotary(part))
                step.cos, step.sin = cos.data_ptr(), sin.data_ptr()
            if whose is not None:
                step.adapters = whose[first:].data_ptr()
            self.step.kernels.step(self.step.stack, step, threads)
            if len(tokens) > AT_ONCE:
                ended = int((starts[1:] <= first + AT_ONCE).sum())
        return room[:, : self.step.vocabulary]


def paged_step(model: Any, cache: KVCache, spec: StackSpec | None) -> PagedStep | None:
    """What reads rows of a cache in blocks on a CPU, with such a stack; None where the plain modules do it."""
    readout = model.direct_readout
    if spec is None or readout is None or not cache.store.is_cpu or cache.store.dtype != torch.float32:
        return None
    step = decoder_step(model.writer, readout, spec)
    return None if step is None else PagedStep(model, step)
