"""What a model held of each token that it wrote, and of those that it might have written."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

from legato.decoding.candidates import Candidates
from legato.decoding.frontier import Frontier
from legato.decoding.scores import best


class TokenLogprob(NamedTuple):
    """A token, its log-probability under the model, before any penalty or filter, and the likeliest in its place."""

    token: int
    logprob: float
    top: list[tuple[int, float]]


class LogprobObserver:
    """Sees one call's search of width 1, and tells of the token that a group has just written."""

    def __init__(self, top: int) -> None:
        self.top = top
        self._first: int | None = None
        self._rows: dict[int, int] = {}  # by group
        self._logprobs: Tensor | None = None  # (G, V)
        self._best: tuple[list[list[int]], list[list[float]]] = ([], [])

    def scored(self, logits: Tensor, forbidden: Tensor, frontier: Frontier) -> None:
        self._first = int(frontier.groups[0]) if self._first is None else self._first
        self._rows = {int(group) - self._first: row for row, group in enumerate(np.asarray(frontier.groups))}
        self._logprobs = logits.float().log_softmax(-1)
        if self.top:
            values, tokens = best(self._logprobs, self.top)
            self._best = tokens.tolist(), values.tolist()

    def advanced(self, candidates: Candidates, frontier: Frontier) -> None:
        """Whoever asks has asked by now."""

    def of(self, group: int, token: int) -> TokenLogprob:
        """A token that a group, counted from the first, has just written."""
        assert self._logprobs is not None
        row = self._rows[group]
        top = list(zip(self._best[0][row], self._best[1][row], strict=True)) if self.top else []
        return TokenLogprob(token, float(self._logprobs[row, token]), top)
