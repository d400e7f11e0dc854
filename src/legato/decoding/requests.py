"""What the engine is asked: requests, how they are searched, and what all of them have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from legato.data.batching.batches import mix_seed
from legato.decoding.candidates import Candidates
from legato.decoding.frontier import Constraint, Frontier, LogitsProcessor
from legato.decoding.options import NEUTRAL, SearchOptions
from legato.nn.adapters.lora_by_row import BASE

TextOf = Callable[[Sequence[int]], str]


class SearchObserver(Protocol):
    """Sees every step of a search, and changes nothing (inspect/decoding_tree.py)."""

    def scored(self, logits: Tensor, forbidden: Tensor, frontier: Frontier) -> None:
        """Before candidates are chosen: logits (G · W, V), not to be kept, and the tokens that nobody may write."""

    def advanced(self, candidates: Candidates, frontier: Frontier) -> None:
        """After what ended has closed and the rest has become the next frontier."""


@dataclass
class Setting:
    """What holds for all requests of an engine."""

    model: Any  # `Generates`
    ends: list[int]
    suppress: list[int]
    suppress_first: list[int]
    normalised: bool
    rows: int | None  # the most that write side by side in a lane
    capacity: int | None  # tokens that a row has room for
    chunk: int | None  # tokens of prompts that are read between two steps; None: whole prompts
    recorded: bool = False  # whether steps are recorded, where the device can


@dataclass(frozen=True)
class Manner:
    """How a lane searches: what its requests have in common."""

    options: SearchOptions  # but for the seed and the most tokens, which each request has
    constraint: Constraint | None = None
    processor: LogitsProcessor | None = None
    text_of: TextOf | None = None
    observer: SearchObserver | None = None
    ends: tuple[int, ...] | None = None  # tokens that end a hypothesis, in place of the setting's

    @classmethod
    def of(cls, options: SearchOptions, **more: Any) -> Manner:
        usual = {name: SearchOptions.model_fields[name].default for name in ("seed", "max_tokens")}
        return cls(options.model_copy(update=usual), **more)

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells two of them apart."""
        functions = (self.constraint, self.processor, self.text_of, self.observer)
        return self.options.model_dump_json(), self.ends, *map(id, functions)  # they live as long as their lane

    @property
    def on_device(self) -> Manner:
        """What a lane on the device has in common: where a search has one row, how it chooses is its own."""
        if self.options.width > 1:
            return self
        neutral = {**NEUTRAL, "search": "sample", "beams": None, "repetition_penalty": 1.0, "stop": ()}
        return Manner(self.options.model_copy(update=neutral), ends=self.ends)

    @property
    def host_looks(self) -> bool:
        """Whether the host has to see each step's candidates before the next one."""
        several = self.options.width > 1 and bool(self.options.stop)
        return several or any(
            part is not None for part in (self.constraint, self.processor, self.observer, self.ends)
        )


@dataclass
class Call:
    """Prompts that came together, and are taken in together."""

    first: int  # the number of the first of them
    prompts: list[list[int]]
    manner: Manner
    limits: list[int]
    seeds: list[tuple[int, int]]  # of each group, where tokens are drawn
    memory: Any = None
    adapter: int = BASE  # whose texts these are, of the model's adapters by row (lora_by_row.py)
    on_token: Callable[[int, int], None] | None = None  # row and token; rows count from this call's first
    cancelled: set[int] = field(default_factory=set)

    @property
    def capacity(self) -> int:
        """Columns that it needs."""
        return max(map(len, self.prompts)) + max(self.limits)


def seeds_for(
    prompts: Sequence[Sequence[int]],
    sources: Sequence[Sequence[int]] | None,
    options: SearchOptions,
    walks: Sequence[int] | None = None,
) -> list[tuple[int, int]]:
    """For each group what its draws are made from: seed and prompt, and the walk; the first ones, or `walks`."""
    found = []
    for number, prompt in enumerate(prompts):
        read = () if sources is None else sources[number]
        seed = mix_seed("drawn", options.seed, [int(token) for token in read], [int(token) for token in prompt])
        first = 0 if walks is None else walks[number]
        found += [(seed, first + walk) for walk in range(options.samples)]
    return found
