"""Prompts are taken in: whole, or some tokens at a time, so that those who write do not wait for a long one.

Of prompts that are the same one is read, what all prompts of a call begin with is read once, and what a prompt has in
common with the beginning of an earlier one is not read again, where that was kept (`prefix_cache.py`).
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from legato.data.batching.batch import Inputs
from legato.decoding.lanes.prefix_cache import PrefixCache
from legato.decoding.requests import Call, Setting
from legato.decoding.sliding import Sliding
from legato.nn.adapters.lora_by_row import BASE, AdapterRows, adapter_rows
from legato.nn.capture import capturing

WORTH: Final = 16  # tokens that prompts must begin with in common for reading them once to be worth it


class Prefill:
    """The prompts of a call, as far as a state has taken them in."""

    def __init__(self, setting: Setting, call: Call, capacity: int, prefixes: PrefixCache | None = None) -> None:
        self.call, self._model, self._prefixes = call, setting.model, prefixes
        # What stands beside a prompt, a source or a picture, may differ where tokens are the same.
        alone = call.memory is None and all(prompt == call.prompts[0] for prompt in call.prompts)
        self._prompts = call.prompts[:1] if alone else call.prompts
        self._parts = alone  # whether it can be read in parts
        # Whoever looks inside is to see each prompt whole, and a context that slides is read as it stands.
        whole = call.memory is not None or capturing() or isinstance(self._model, Sliding)
        self._read = 0 if whole else _shared(self._prompts)
        self.state: Any = setting.model.start(1 if self._read else len(self._prompts), capacity, call.memory)
        self._adapter = None if call.adapter == BASE else AdapterRows.all_of(call.adapter)
        if self._read:
            device = self._model.device
            with adapter_rows(self._adapter):
                self._model.prefill(Inputs.of([self._prompts[0][: self._read]], device), self.state)
            self.state.reorder(torch.zeros(len(self._prompts), dtype=torch.long, device=device))
        if alone and prefixes is not None:
            self._read = prefixes.restore(self._prompts[0], self.state, call.adapter)

    @property
    def left(self) -> int:
        """Tokens that are still to be read."""
        return max(map(len, self._prompts)) - self._read

    def advance(self, tokens: int | None = None) -> Tensor | None:
        """Read so many more tokens, or all; logits (B, V) behind the prompts once they are read."""
        end = None if tokens is None or not self._parts or tokens >= self.left else self._read + tokens
        inputs = Inputs.of([prompt[self._read : end] for prompt in self._prompts], self._model.device)
        with adapter_rows(self._adapter):
            logits: Tensor = self._model.prefill(inputs, self.state)
        if end is not None:
            self._read = end
            return None
        if self._parts and self._prefixes is not None:
            self._prefixes.keep(self._prompts[0], self.state, 0, self.call.adapter)
        missing = len(self.call.prompts) // len(logits)
        return logits if missing == 1 else logits.repeat(missing, 1)

    def spread(self, each: int) -> None:
        """A row of the state for each hypothesis: `each` for a prompt."""
        rows = torch.arange(len(self.call.prompts)).repeat_interleave(each)
        if len(self._prompts) < len(self.call.prompts):
            rows.zero_()
        if len(rows) > len(self._prompts):
            self.state.reorder(rows.to(self._model.device))


def _shared(prompts: list[list[int]]) -> int:
    """How many tokens all begin with, where that is worth it; each is left its last token to read."""
    first, last = min(prompts), max(prompts)  # of these two, all between begin with what they have in common
    most = min(map(len, prompts)) - 1
    count = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), most)
    return min(count, most) if len(prompts) > 1 and min(count, most) >= WORTH else 0
