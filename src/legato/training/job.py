"""What the loop needs of a task, and what a task gives it for a batch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from legato.data.batching.batch import Batch
from legato.data.batching.batches import TOKENS, Batches, SpeedUnit
from legato.evaluation.metrics import Metrics, metric_of


@dataclass
class Loss:
    """What a task makes of one batch."""

    total: Tensor  # summed over the batch's tokens, penalties included: what is minimised
    reported: Tensor  # the same without penalties: what people call the loss
    state: Any = None  # for the next segment of the same streams


class Run(Protocol):
    """What the loop needs of a run: places to write to (`runs/run_folder.py`)."""

    path: Path
    checkpoints: Path
    best: Path
    last: Path

    def started(self) -> None:
        """There is a checkpoint to go back to."""

    def log(self, step: int, kind: str, values: dict[str, Any]) -> None: ...

    def open_events(self, step: int) -> None:
        """Write TensorBoard events from this step on."""

    def rewind(self, step: int) -> None:
        """Forget what was logged after this step, which is made again."""

    def close(self) -> None: ...


class Job:
    """What the loop needs of a task: batches, a loss, a score, a model folder."""

    batches: Batches
    metric: str  # the validation figure that decides what is best
    metrics: Metrics = ()  # what the task says of its figures
    speed_unit: SpeedUnit = TOKENS  # what people count its data in
    search: str = ""  # how a validation searches for what `decoded` figures are of
    likelihood: bool = True  # whether the loss is one of tokens, so that a perplexity is shown

    @property
    def lower_is_better(self) -> bool:
        """As the task says; where it says nothing of the figure, a loss is better down and all else up."""
        better = metric_of(self.metrics, self.metric).better
        return better == "down" if better else self.metric == "loss"

    def recordable(self, batch: Batch) -> bool:
        """Whether a step on it asks the device for nothing, so that it may be a CUDA graph."""
        return True

    def loss(self, model: Any, batch: Batch, state: Any) -> Loss:
        raise NotImplementedError

    def validate(self, model: Any) -> dict[str, float]:
        raise NotImplementedError

    def samples(self, model: Any, count: int) -> list[str]:
        """Something of what the model says now, for a person to look at."""
        return []

    def write(self, model: Any, folder: Path, metrics: dict[str, float]) -> None:
        raise NotImplementedError
