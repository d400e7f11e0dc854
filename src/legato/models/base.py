"""What every model has: a config section, sizes, a readout, and a way to be counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

import torch
from torch import Tensor, nn

from legato.config import Section
from legato.data.batch import Batch
from legato.errors import LegatoError
from legato.nn.readout import padding_parameters, plain_product
from legato.nn.state import Output

DEEPEST: Final = 1000  # layers of a stack; the deepest that were published have as many


class ModelConfig(Section):
    """The settings of a model. Subclasses add theirs; `width` is the hidden size everywhere."""

    most: ClassVar[int] = 1 << 17  # of any size: widths, heads, filters
    most_of: ClassVar[Mapping[str, int]] = {
        "layers": 1 << 10,
        "highways": 1 << 10,
        "length": 1 << 24,
        "window": 1 << 24,
        "memory": 1 << 24,
    }

    name: str

    @classmethod
    def has_length(cls) -> bool:
        """Whether such models read at most `length` tokens: Transformers, which carry no state."""
        return "length" in cls.model_fields


@dataclass(frozen=True)
class Sizes:
    """What the data fixes of a model: how many different tokens there are."""

    vocabulary: int  # those that are written
    source: int | None = None  # those that an encoder reads, where they are numbered apart; None: the same


class SequenceModel(nn.Module):
    """The base of every architecture in `models/`.

    A subclass names its config class, builds itself from `(config, sizes)`, and has `forward` and
    `readout`. One that generates also has `start`, `prefill` and `step`, and `encode` where it reads
    a source first (see `nn/state.py`).
    """

    Config: ClassVar[type[ModelConfig]]
    summary: ClassVar[str]  # one line for `legato models`
    reads_source: ClassVar[bool] = False  # whether there is an encoder, which needs `batch.source`
    published: ClassVar[str | None] = None  # Hugging Face's `model_type` for what it is when so shaped
    folder: Path | None = None  # that it was read from, for messages

    def __init__(self, config: Any, sizes: Sizes) -> None:
        super().__init__()
        self.config = config
        self.sizes = sizes

    @property
    def vocabulary(self) -> int:
        return self.sizes.vocabulary

    @property
    def longest(self) -> int | None:
        """The most tokens that a sequence may have; None where any length will do."""
        return None

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def generates(self) -> bool:
        """Whether the model writes from left to right."""
        return type(self).step is not SequenceModel.step

    def forward(self, batch: Batch, state: Any = None) -> Output:
        raise NotImplementedError

    def forget(self, state: Any, keep: Tensor) -> Any:
        """The stream state with the rows where `keep` (B,) is False as they are at the start of a text."""
        raise NotImplementedError

    def states(self, batch: Batch) -> list[Tensor]:
        """What every layer leaves, (B, T, D) each: the embedded input first, what `forward` gives last."""
        raise LegatoError(f"{self.config.name} does not show the states of its layers")

    @property
    def reads_characters(self) -> bool:
        """Whether the model needs the bytes of each word, `batch.characters`."""
        return False

    def drop_readout(self) -> None:
        """Remove what only guesses words, where a task's head takes its place."""
        if hasattr(self, "output"):
            del self.output

    output: nn.Linear  # the last layer, whose rows may be the embedding's

    def transform(self, hidden: Tensor) -> Tensor:
        """Hidden states to what the last layer reads; for most models they are that already."""
        return hidden

    def readout(self, hidden: Tensor) -> Tensor:
        """Hidden states (…, D) to logits (…, V)."""
        states = self.transform(hidden)  # first: a model without a readout says so here
        if not hasattr(self, "output"):
            raise LegatoError(f"this {self.config.name} guesses no words: it was trained for another task")
        logits: Tensor = self.output(states)
        return logits

    @property
    def plain_output(self) -> nn.Linear | None:
        """The last layer, where logits are its product with what `transform` gives and nothing else.

        Then a loss may make them chunk by chunk. None where something else happens on the way.
        """
        output = getattr(self, "output", None)
        own = type(self).readout is not SequenceModel.readout
        return output if not own and plain_product(output) else None

    def encode(self, batch: Batch) -> Any:
        """The memory of `batch.source`, one row each, for `start`."""
        raise NotImplementedError

    def align(self, batch: Batch) -> Tensor:
        """How much each target token looks at each source token, (B, T, S); rows sum to one."""
        raise NotImplementedError

    def start(self, rows: int, capacity: int, memory: Any = None) -> Any:
        raise NotImplementedError

    def prefill(self, tokens: Tensor, lengths: Tensor, state: Any) -> Tensor:
        raise NotImplementedError

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        raise NotImplementedError


class Published(Protocol):
    """How an architecture is written in Hugging Face's folders: their config, their tensor names."""

    model_type: ClassVar[str]
    architecture: ClassVar[str]  # the class that loads it there
    Entries: ClassVar[Any]  # the schema of what is read of config.json (`models/entries.py`)

    @classmethod
    def refusal(cls, module: Any) -> str | None:
        """Why `module` cannot be written so; None when it can."""

    @classmethod
    def names(cls, module: Any) -> Any:
        """What each of our tensors is made of there (`models/names.py`)."""

    @classmethod
    def save(cls, module: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The entries of config.json, and the tensors under their published names."""

    @classmethod
    def load(cls, config: dict[str, Any], tensors: dict[str, Tensor], where: str) -> SequenceModel:
        """The module that a folder holds; `where` names it in an error."""


def count_parameters(module: nn.Module, *, trainable: bool = False) -> int:
    """Parameters, or only those that are trained; a tied one counts once, what pads a vocabulary not at all."""
    whole = sum(p.numel() for p in module.parameters() if p.requires_grad or not trainable)
    return whole - padding_parameters(module, trainable=trainable)


def measure(model: type[SequenceModel], config: ModelConfig, sizes: Sizes) -> int:
    """How many parameters such a model would have, without making it."""
    with torch.device("meta"):
        return count_parameters(model(config, sizes))


def detach(state: Any) -> Any:
    """The same state with its history of gradients cut: what truncates backpropagation through time."""
    if isinstance(state, Tensor):
        return state.detach()
    if isinstance(state, list | tuple):
        return type(state)(detach(part) for part in state)
    return state
