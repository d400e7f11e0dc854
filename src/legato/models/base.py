"""What every model has: a config section, a vocabulary, a readout, and a way to be counted."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from legato.config import Section
from legato.data.batch import Batch
from legato.nn.state import Output


class ModelConfig(Section):
    """The settings of a model. Subclasses add theirs; `width` is the hidden size everywhere."""

    name: str


class SequenceModel(nn.Module):
    """The base of every architecture in `models/`.

    A subclass names its config class, builds itself from `(config, vocabulary)`, and has `forward`
    and `readout`. One that generates also has `start`, `prefill` and `step` (see `nn/state.py`).
    """

    Config: ClassVar[type[ModelConfig]]
    summary: ClassVar[str]  # one line for `legato models`

    def __init__(self, config: Any, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self._vocabulary = vocabulary

    @property
    def vocabulary(self) -> int:
        return self._vocabulary

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

    def readout(self, hidden: Tensor) -> Tensor:
        """Hidden states (…, D) to logits (…, V)."""
        raise NotImplementedError

    def start(self, rows: int, capacity: int, memory: Any = None) -> Any:
        raise NotImplementedError

    def prefill(self, tokens: Tensor, lengths: Tensor, state: Any) -> Tensor:
        raise NotImplementedError

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        raise NotImplementedError


def count_parameters(module: nn.Module) -> int:
    """Trainable parameters; a tied one counts once."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def measure(model: type[SequenceModel], config: ModelConfig, vocabulary: int) -> int:
    """How many parameters such a model would have, without making it."""
    with torch.device("meta"):
        return count_parameters(model(config, vocabulary))


def detach(state: Any) -> Any:
    """The same state with its history of gradients cut: what truncates backpropagation through time."""
    if isinstance(state, Tensor):
        return state.detach()
    if isinstance(state, list | tuple):
        return type(state)(detach(part) for part in state)
    return state
