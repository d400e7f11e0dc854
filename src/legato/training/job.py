"""What the loop needs of a task, and what a task gives it for a batch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from legato.data.batch import Batch
from legato.data.batches import Batches
from legato.models.base import SequenceModel


@dataclass
class Loss:
    """What a task makes of one batch."""

    total: Tensor  # summed over the batch's tokens, penalties included: what is minimised
    reported: Tensor  # the same without penalties: what people call the loss
    state: Any = None  # for the next segment of the same streams


class Job(Protocol):
    """What the loop needs of a task: batches, a loss, a score, a model folder.

    One whose loss is not that of tokens, so that no perplexity is shown, has `likelihood = False`.
    """

    batches: Batches
    metric: str  # the validation figure that decides what is best
    lower_is_better: bool

    def loss(self, model: SequenceModel, batch: Batch, state: Any) -> Loss: ...

    def validate(self, model: SequenceModel) -> dict[str, float]: ...

    def samples(self, model: SequenceModel, count: int) -> list[str]: ...

    def write(self, model: SequenceModel, folder: Path, metrics: dict[str, float]) -> None: ...
