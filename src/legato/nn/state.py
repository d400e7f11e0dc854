"""What a model gives back: an output in training, a state while it generates.

Shapes, here and everywhere: `B` batch, `T` target/time, `S` source, `D` model width, `H` heads,
`K` per-head width, `V` vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from legato.data.batching.batch import Inputs


@dataclass
class Output:
    """What a training pass returns."""

    hidden: Tensor  # (B, T, D), what the readout reads
    state: Any = None  # for the next stream segment, gradients not yet cut
    auxiliary: dict[str, Tensor] = field(default_factory=dict)  # penalties, each a scalar mean
    logits: Tensor | None = None  # of a task's head, where the model has one


@dataclass
class Memory:
    """What an encoder leaves for the decoder: a state for each source token."""

    states: Tensor  # (B, S, D)
    lengths: Tensor | None = None  # (B,), None when every row is full

    @property
    def mask(self) -> Tensor | None:
        """True where there is a source token, (B, S); None when there is one everywhere."""
        if self.lengths is None:
            return None
        return torch.arange(self.states.shape[1], device=self.states.device) < self.lengths.unsqueeze(1)


@runtime_checkable
class State(Protocol):
    """What a model remembers while it generates: a recurrent state, or a key/value cache."""

    length: int  # columns taken in so far: those of padded prompts, and one a step

    def reorder(self, rows: Tensor) -> None:
        """Row i goes on as what row `rows[i]` was; rows may repeat, vanish or multiply (what a beam needs)."""

    def rewind(self, length: int) -> None:
        """Go back to where `length` was this (what speculation and editing need)."""


class Generates(Protocol):
    """The protocol that the search in `decoding/` knows. A model that generates has these.

    Logits belong to the caller, who may write into them.
    """

    @property
    def vocabulary(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def start(self, rows: int, capacity: int, memory: Any = None) -> State:
        """A state for `rows` sequences of at most `capacity` tokens, on the model's device and dtype.

        `memory` is what `encode` made of as many sources, for a model that reads one.
        """

    def prefill(self, inputs: Inputs, state: State) -> Tensor:
        """Take in whole prompts of different lengths; logits (B, V) after each row's last."""

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """Take in one token a row (B,); logits (B, V) for the next. The state advances in place."""
