"""What a task is: rows in, examples, loss, prediction, score.

A task is a class that names its data section and builds a `Job` for the training loop. Adding one
touches one file; other packages add theirs through the entry point group `legato.tasks`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch

from legato.config import Section
from legato.data.tokenizers import Tokenizer, TokenizerConfig
from legato.models.base import ModelConfig, SequenceModel
from legato.training.config import TrainConfig
from legato.training.loop import Job

Say = Callable[[str], None]


@dataclass
class Plan:
    """The checked settings that a task prepares itself from."""

    data: Any  # the task's own section
    tokenizer: TokenizerConfig
    model: ModelConfig
    train: TrainConfig
    seed: int
    device: torch.device


class TaskJob(Job, Protocol):
    """A job that also knows its tokenizer, its data's hashes and its final scores."""

    tokenizer: Tokenizer
    hashes: dict[str, str]

    def final(self, model: SequenceModel) -> dict[str, float]:
        """The scores to publish: `valid.perplexity`, `test.perplexity` and so on."""


class Task(Protocol):
    """A job to train models for."""

    name: ClassVar[str]
    summary: ClassVar[str]
    Data: ClassVar[type[Section]]

    @classmethod
    def adjust(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Fill in what the task knows better than the defaults, before the settings are checked."""

    @classmethod
    def prepare(cls, plan: Plan, say: Say) -> TaskJob:
        """Read the data and make batches of it."""

    @classmethod
    def evaluate(cls, model: SequenceModel, tokenizer: Tokenizer, data: Any, about: dict[str, Any]) -> dict[str, Any]:
        """The task's scores on `data.test`."""


def model_card(
    task: str, name: str, parameters: int, hashes: dict[str, str], metrics: dict[str, float], use: str
) -> str:
    """The README of a model folder: what it is, on what it was trained, how well it does, how to use it."""
    shown = {key: f"{value:,}" if isinstance(value, int) else f"{value:.4f}" for key, value in metrics.items()}
    scores = "\n".join(f"| {key.replace('_', ' ')} | {value} |" for key, value in shown.items())
    data = "\n".join(f"- {split}: sha256 `{digest}`" for split, digest in hashes.items())
    return (
        f"---\nlibrary_name: legato\ntags:\n- legato\n- {task}\n---\n\n# {name} for {task}\n\n"
        f"A model of {parameters:,} parameters, trained with Legato.\n\n"
        f"## Use\n\n```\n{use}\n```\n\n## Scores on the validation text\n\n| | |\n|---|---|\n{scores}\n\n"
        f"## Data\n\n{data}\n"
    )
