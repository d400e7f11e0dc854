"""How each row's next token is chosen, as numbers on the device, so that one recorded step serves all of them.

A step does no more than its most demanding row needs (`Level`): to take the best token asks for one pass over the
logits, to draw among the most probable ones for a sort.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import numpy as np
import torch
from torch import Tensor

from legato.decoding.options import NEUTRAL, SearchOptions

ALL: Final = 1 << 31  # more than any vocabulary
SMALLEST: Final = torch.finfo(torch.float32).tiny


class Level(IntEnum):
    """What a row's choice needs; each can do what those before it do."""

    TAKEN = 0  # the best of all
    DRAWN = 1  # at random, of all
    FILTERED = 2  # of those that top-k, top-p and min-p leave
    PENALISED = 3  # and what was seen is less probable


def level_of(options: SearchOptions) -> Level:
    """
    >>> level_of(SearchOptions(search="sample", top_p=0.9)).name
    'FILTERED'
    """
    if options.repetition_penalty != 1:
        return Level.PENALISED
    if not options.drawn:
        return Level.TAKEN
    whole = all(getattr(options, name) == value for name, value in NEUTRAL.items() if name != "temperature")
    return Level.DRAWN if whole else Level.FILTERED


class RowSettings:
    """The settings of G searches of one row each."""

    def __init__(self, options: Sequence[SearchOptions], device: torch.device | str = "cpu") -> None:
        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)

        self.levels = np.array([level_of(each) for each in options])  # (G,)
        # 0 takes the best. Nothing is 0 because float32 cannot hold it.
        self.temperature = column([max(each.temperature, 1e-30) if each.drawn else 0.0 for each in options])
        self.top_k = torch.tensor([min(each.top_k, ALL) for each in options], dtype=torch.long, device=device)
        self.top_p = column([max(each.top_p, SMALLEST) for each in options])  # 0 would leave nothing
        self.min_p = column([each.min_p for each in options])
        self.penalty = column([each.repetition_penalty for each in options])

    @property
    def level(self) -> Level:
        """What the most demanding row needs."""
        return Level(int(self.levels.max(initial=0)))

    @property
    def _columns(self) -> tuple[Tensor, ...]:
        return self.temperature, self.top_k, self.top_p, self.min_p, self.penalty

    def place(self, places: Tensor, other: RowSettings) -> None:
        """Rows (N,) have the settings of another's, in its order."""
        for mine, its in zip(self._columns, other._columns, strict=True):
            mine[places] = its
        self.levels[places.cpu().numpy()] = other.levels

    def adopt(self, other: RowSettings) -> None:
        """Have the settings of another one of as many rows."""
        for mine, its in zip(self._columns, other._columns, strict=True):
            mine.copy_(its)
        self.levels = other.levels.copy()

    def filtered(self, logits: Tensor) -> Tensor:
        """Logits (G, V) at each row's temperature, −∞ for what its filters leave out (`scores.filter_scores`)."""
        divisor = self.temperature.masked_fill(self.temperature == 0, 1.0)
        scaled = (logits - logits.amax(-1, keepdim=True)) / divisor.unsqueeze(-1)
        return filtered_by_row(scaled, self.top_k, self.top_p, self.min_p)


def filtered_by_row(scaled: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Scaled logits (G, V), −∞ for what each row's filters (G,) leave out; the largest of a row is 0."""
    values, tokens = scaled.sort(stable=True, dim=-1, descending=True)
    places = torch.arange(values.shape[-1], device=values.device)
    most = torch.where(top_k > 0, top_k, values.shape[-1]).unsqueeze(-1)
    values = values.masked_fill(places >= most, -torch.inf)
    before = values.softmax(-1).cumsum(-1).roll(1, -1)  # (G, V), the mass of all that are more probable
    before[:, 0] = 0
    mass = top_p.unsqueeze(-1)
    left = ((before < mass) | (mass >= 1)) & (values >= values[:, :1] + min_p.log().unsqueeze(-1))
    return torch.empty_like(values).scatter_(-1, tokens, values.masked_fill(~left, -torch.inf))
