"""What a model gives back: an output in training, a state while it generates.

Shapes, here and everywhere: `B` batch, `T` target/time, `S` source, `D` model width, `H` heads,
`K` per-head width, `V` vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from legato.data.batching.batch import Inputs


@dataclass
class Output:
    """What a training pass returns."""

    hidden: Tensor  # (B, T, D), what the readout reads
    state: Any = None  # for the next stream segment, gradients not yet cut
    auxiliary: dict[str, Tensor] = field(default_factory=dict)  # penalties, each a scalar mean
    logits: Tensor | None = None  # of a task's head, where the model has one
    boxes: Tensor | None = None  # (B, N, 4), corners in shares of the picture's sides, each with its `logits`
    stages: list[Output] = field(default_factory=list)  # what earlier layers would say, where they are taught, too


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


class SharedMemory:
    """What rows look at while they write, once for each source: tensors with sources along `dim`, tokens along -2.

    Rows know their source by their place: they come in groups of one size, one group a source, which is how beams
    come. So W hypotheses of a sentence are W queries of one row, and nothing is copied for a beam, nor when they
    change places within it. Where rows are not in equal groups, sources are copied until they are, down to one for
    each row.
    """

    def __init__(self, tensors: Sequence[Tensor], inside: Tensor | None, dim: int = 0) -> None:
        self.tensors = list(tensors)
        self.inside = inside  # (G, S), where there is a token; None: everywhere
        self.dim = dim
        self.beams = 1  # rows that look at one source

    @property
    def sources(self) -> int:
        return self.tensors[0].shape[self.dim]

    @property
    def length(self) -> int:
        return self.tensors[0].shape[-2]

    def reorder(self, rows: list[int]) -> bool:
        """Rows are now what these were; whether that changed the tensors."""
        owners = [row // self.beams for row in rows]
        self.beams = math.gcd(*(len(list(run)) for _, run in groupby(owners))) or 1
        kept = owners[:: self.beams]
        if kept == list(range(self.sources)):
            return False
        index = torch.tensor(kept, dtype=torch.long, device=self.tensors[0].device)
        self.tensors = [tensor.index_select(self.dim, index) for tensor in self.tensors]
        self.inside = None if self.inside is None else self.inside[index]
        return True

    def join(self, other: SharedMemory) -> None:
        """What other rows look at, behind what ours do; sources of fewer tokens are padded."""
        length, beams = max(self.length, other.length), math.gcd(self.beams, other.beams)
        everywhere = self.inside is None and other.inside is None and self.length == other.length
        parts = [memory._spread(length, memory.beams // beams) for memory in (self, other)]
        *tensors, inside = zip(*parts, strict=True)
        self.tensors = [torch.cat(both, self.dim) for both in tensors]
        self.inside, self.beams = None if everywhere else torch.cat(inside), beams

    def _spread(self, length: int, copies: int) -> list[Tensor]:
        """The tensors and `inside`, each source so many times, padded to so many tokens."""
        padding = length - self.length
        tensors = [F.pad(tensor.repeat_interleave(copies, self.dim), (0, 0, 0, padding)) for tensor in self.tensors]
        inside = self.inside
        if inside is None:
            inside = torch.ones(self.sources, self.length, dtype=torch.bool, device=tensors[0].device)
        return [*tensors, F.pad(inside.repeat_interleave(copies, 0), (0, padding))]


class State(Protocol):
    """What a model remembers while it generates: a recurrent state, or a key/value cache.

    Rows are of different lengths, and may come and go: `join` adds some, `reorder` lets some leave.
    """

    length: int  # columns taken in so far: those of padded prompts, and one a step

    @property
    def lengths(self) -> Tensor:
        """The tokens that each row has taken in, (B,)."""

    def reorder(self, rows: Tensor) -> None:
        """Row i goes on as what row `rows[i]` was; rows may repeat, vanish or multiply (what a beam needs)."""

    def join(self, other: Self) -> None:
        """Rows of another state of the same model go on behind ours; there is room for what both had room for.

        `length` may be another then: columns that no row has a token in are left out. The other state is of no use
        any more.
        """

    def kept(self, row: int, tokens: int) -> Tensor | None:
        """What a row has of its first tokens, for `restore` to begin with; None where it has them no more."""

    def rewind(self, length: int) -> None:
        """Go back to where `length` was this, since rows last joined (what speculation and editing need)."""


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
