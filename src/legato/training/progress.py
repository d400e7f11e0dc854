"""What a run remembers besides tensors, and what a checkpoint's progress.json holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from legato.schema import OPEN, TypedDict, with_config


@dataclass
class Progress:
    """What a run remembers besides tensors; it goes into the checkpoint as it is."""

    seconds: float = 0.0
    training: float = 0.0  # of those seconds, the ones spent on steps
    tokens: int = 0  # taken in
    reported: int = 0  # of those tokens, the ones in a report already
    best: float | None = None
    best_step: int = 0
    best_loss: float | None = None  # of the best one, which decides between equals
    scores: list[float | None] = field(default_factory=list)  # of every validation; None: it was not finite
    bad: int = 0  # validations since the last gain
    finished: str = ""  # why, once it is
    metrics: dict[str, Any] = field(default_factory=dict)  # of the last validation


class ScheduleEntries(TypedDict):
    cut: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    bad: Annotated[int, Field(ge=0)]


@with_config(OPEN)
class KeptProgress(TypedDict):
    """What the loop puts into a checkpoint's progress.json."""

    progress: dict[str, Any]
    schedule: ScheduleEntries
    average_updates: Annotated[int, Field(ge=0)] | None
