"""Batches of several tasks in turn.

A round has as many steps of each task as its weight says, in an order that is drawn for the round. So which task a
step is of, and which of the task's own batches it has, follows from the step alone:

    weights 2, 1      a b a | b a a | a a b | …
    batches of a      0   1     2 3   4 5

A task that is trained alone has the same batches, as many of them in a round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from legato.data.batching.batch import Batch
from legato.data.batching.batches import Batches, mix_seed


class Rounds:
    """The batches of tasks, mixed by their weights."""

    def __init__(self, batches: Mapping[str, Batches], weights: Mapping[str, int], seed: int) -> None:
        self.batches, self.weights, self.seed = dict(batches), dict(weights), seed
        self.names = list(batches)
        self.steps_per_epoch = sum(weights[name] for name in self.names)
        tokens = sum(weights[name] * held.tokens_per_step for name, held in self.batches.items())
        self.tokens_per_step = round(tokens / self.steps_per_epoch)
        self._slots = np.repeat(np.arange(len(self.names)), [weights[name] for name in self.names])
        self._planned = -1

    def task_at(self, step: int) -> tuple[str, int]:
        """The task of a step, and how many steps it had before."""
        number, place = divmod(step, self.steps_per_epoch)
        if number != self._planned:
            draw = np.random.default_rng(mix_seed(self.seed, "rounds", number))
            self._order = draw.permutation(self._slots)
            self._planned = number
        turn = int(self._order[place])
        name = self.names[turn]
        return name, number * self.weights[name] + int(np.count_nonzero(self._order[:place] == turn))

    def at(self, step: int) -> Batch:
        name, index = self.task_at(step)
        return replace(self.batches[name].at(index), task=name)
