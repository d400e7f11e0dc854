"""The protocol of states of fixed shapes."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


class Slots(Protocol):
    """What a model remembers of G groups of W rows, each in its place.

    A place that nobody writes in goes through each step like the others, and nobody looks at it.
    """

    groups: int
    width: int
    capacity: int  # tokens that a row may have; where a state does not grow, whatever was asked for

    def put(self, places: Tensor, state: Any) -> None:
        """Groups (N,) begin with what a state of the model has: of its N · W rows, or of N, each W times."""

    def step(self, tokens: Tensor, parents: Tensor | None) -> Tensor:
        """Row i goes on as what row `parents[i]` of its group was, and takes in a token: logits (G · W, V).

        No shape depends on a number that lies on the device, and nothing is asked of it.
        """

    @property
    def changing(self) -> list[Tensor]:
        """What a step changes, but for what it writes where nobody has written."""

    def adopt(self, other: Any) -> None:
        """Rows are what they are in smaller slots of the same model, each in its place."""

    def reset(self) -> None:
        """Forget all rows."""


def spread(there: int, wanted: int, device: torch.device) -> Tensor:
    """Which of `there` things each of `wanted` has, where they come in equal groups, or are repeated: (wanted,)."""
    return torch.arange(wanted, device=device) * there // wanted
