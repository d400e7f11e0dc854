"""Prompts are taken in: whole, or some tokens at a time, so that those who write do not wait for a long one.

Of prompts that are the same one is read, what all prompts begin with is read once, and what a prompt has in common
with the beginning of an earlier one is not read again, where that was kept (`prefix_cache.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from legato.data.batching.batch import Inputs
from legato.decoding.lanes.prefix_cache import PrefixCache
from legato.decoding.requests import Call, Setting
from legato.decoding.sliding import Sliding
from legato.nn.adapters.lora_by_row import BASE, AdapterRows, adapter_rows
from legato.nn.capture import capturing
from legato.nn.kv_cache import KeyValueCache

WORTH: Final = 16  # tokens that prompts must begin with in common for reading them once to be worth it
WORTH_OF_A_PASS: Final = 4096  # tokens that are to be saved on CUDA, where a pass over few costs as much as over many


class Prefill:
    """The prompts of calls that wait together, as far as a state has taken them in."""

    def __init__(
        self, setting: Setting, calls: Sequence[Call], capacity: int, prefixes: PrefixCache | None = None
    ) -> None:
        """Several calls: none has a memory, and they have one adapter."""
        first = calls[0]
        self.calls, self._model, self._prefixes, self._capacity = list(calls), setting.model, prefixes, capacity
        prompts = [prompt for call in calls for prompt in call.prompts]
        self._count = len(prompts)
        # What stands beside a prompt, a source or a picture, may differ where tokens are the same.
        alone = first.memory is None and all(prompt == prompts[0] for prompt in prompts)
        self._prompts = prompts[:1] if alone else prompts
        self.parts = alone  # whether it can be read in parts
        self._memory, self._adapter_number, self._read = first.memory, first.adapter, 0
        self._adapter = None if first.adapter == BASE else AdapterRows.all_of(first.adapter)
        self.state: Any = None  # made when it is first read: until then it holds nothing, and others may be kept

    def _begin(self) -> None:
        # Whoever looks inside is to see each prompt whole, and a context that slides is read as it stands.
        whole = self._memory is not None or capturing() or isinstance(self._model, Sliding)
        self._read = 0 if whole else _shared(self._prompts, self._model.device.type)
        self.state = self._model.start(1 if self._read else len(self._prompts), self._capacity, self._memory)
        if self._read:
            device = self._model.device
            with adapter_rows(self._adapter):
                self._model.prefill(Inputs.of([self._prompts[0][: self._read]], device), self.state)
            self.state.reorder(torch.zeros(len(self._prompts), dtype=torch.long, device=device))
        if self.parts and self._prefixes is not None:
            self._read = self._prefixes.restore(self._prompts[0], self.state, self._adapter_number)

    @property
    def rows(self) -> int:
        """Prompts that are read side by side."""
        return len(self._prompts)

    @property
    def left(self) -> int:
        """Tokens of a prompt that are still to be read, of the longest."""
        return max(map(len, self._prompts)) - self._read

    def advance(self, tokens: int | None = None) -> Tensor | None:
        """Read so many more tokens, or all; logits (B, V) behind the prompts once they are read."""
        if self.state is None:
            self._begin()
        end = None if tokens is None or not self.parts or tokens >= self.left else self._read + tokens
        inputs = Inputs.of([prompt[self._read : end] for prompt in self._prompts], self._model.device)
        with adapter_rows(self._adapter):
            logits: Tensor = self._model.prefill(inputs, self.state)
        if isinstance(self.state, KeyValueCache):
            self.state.close_holes()  # behind what all begin with
        if end is not None:
            self._read = end
            return None
        if self.parts and self._prefixes is not None:
            self._prefixes.keep(self._prompts[0], self.state, 0, self._adapter_number)
        missing = self._count // len(logits)
        return logits if missing == 1 else logits.repeat(missing, 1)

    def keep(self, least: int) -> None:
        """Keep what was computed of prompts of so many tokens that were read together."""
        if self._prefixes is not None and not self.parts and self._memory is None:
            for row, prompt in enumerate(self._prompts):
                if len(prompt) >= least:
                    self._prefixes.keep(prompt, self.state, row, self._adapter_number)

    def spread(self, each: int) -> None:
        """A row of the state for each hypothesis: `each` for a prompt."""
        rows = torch.arange(self._count).repeat_interleave(each)
        if len(self._prompts) < self._count:
            rows.zero_()
        if len(rows) > len(self._prompts):
            self.state.reorder(rows.to(self._model.device))


def _shared(prompts: list[list[int]], device: str) -> int:
    """How many tokens all begin with, where that is worth it; each is left its last token to read."""
    first, last = min(prompts), max(prompts)  # of these two, all between begin with what they have in common
    most = min(map(len, prompts)) - 1
    count = min(next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), most), most)
    saved = count * (len(prompts) - 1)
    return count if saved and count >= WORTH and (device == "cpu" or saved >= WORTH_OF_A_PASS) else 0
