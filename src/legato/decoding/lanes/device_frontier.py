"""The frontier on the model's device: what `Frontier.advance` makes of candidates, without asking the host.

It knows which hypotheses go on, and nothing of those that close or of groups that are done: the host finds that out
when it looks, from the same candidates, and drops what a group wrote past its end.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from legato.nn.kernels.cuda import has_kernels

MOST: Final = 16  # rows of a group whose candidates a kernel compares with one another


class DeviceFrontier:
    """`width` rows for each of G groups. All tensors stay where they are, so that a step may be recorded."""

    def __init__(self, groups: int, width: int, ends: Tensor) -> None:
        """`ends` (V,) is True for tokens that end a hypothesis; what is made lies on its device."""
        device = ends.device
        self.width, self.ends = width, ends
        self.tokens = torch.zeros(groups * width, dtype=torch.long, device=device)
        self.parents = torch.arange(groups * width, device=device)
        self.scores = torch.zeros(groups, width, device=device)
        self.written = torch.zeros(groups, dtype=torch.long, device=device)  # tokens of each group
        self._first_rows = torch.arange(0, groups * width, width, device=device).unsqueeze(-1)  # (G, 1)
        self._rows = torch.arange(groups * width, device=device).view(groups, width)

    def place(self, places: Tensor, tokens: Tensor, scores: Tensor, written: Tensor) -> None:
        """Groups (N,) begin with these tokens (N · W,), scores (N, W) and numbers of tokens written (N,)."""
        rows = self._rows[places].flatten()
        self.tokens[rows], self.parents[rows] = tokens, rows
        self.scores[places], self.written[places] = scores, written

    def adopt(self, other: DeviceFrontier) -> None:
        """Groups are what they are in another frontier of as many."""
        for mine, its in zip(self.changing, other.changing, strict=True):
            mine.copy_(its)

    @property
    def changing(self) -> list[Tensor]:
        """What a step changes."""
        return [self.tokens, self.parents, self.scores, self.written]

    def advance(self, candidates: Tensor) -> None:
        """Make of candidates (5, G, C) the next frontier; see `Frontier.advance`."""
        if 1 < self.width <= MOST and candidates.is_cuda and has_kernels():
            from legato.nn.kernels.cuda.choice import advance_beams

            advance_beams(candidates, self.ends, self.scores, self.tokens, self.parents, self.written)
            return
        if self.width == 1:
            self.tokens.copy_(candidates[0, :, 0])
        else:
            tokens, parents, gains = candidates[0].long(), candidates[1].long(), candidates[3]  # (G, C)
            scores = self.scores.gather(1, parents) + gains  # (G, C)
            ending = self.ends[tokens] & (scores > -torch.inf)  # (G, C)
            order = ending.byte().argsort(dim=-1, stable=True)[:, : self.width]  # (G, W), what goes on, then ends
            order = order.gather(1, self._seats(parents.gather(1, order)))
            scores = scores.masked_fill(ending, -torch.inf).gather(1, order)  # (G, W)
            came = parents.gather(1, order) + self._first_rows  # (G, W), rows of the batch
            self.scores.copy_(scores)
            self.tokens.copy_(tokens.gather(1, order).flatten())
            # What is no hypothesis continues what was in its place.
            self.parents.copy_(torch.where(scores > -torch.inf, came, self._rows).flatten())
        self.written.add_(1)

    def _seats(self, parents: Tensor) -> Tensor:
        """Which child sits in each row, (G, W); see `frontier._seats`."""
        width = self.width
        children = torch.arange(width, device=parents.device)
        same = parents[:, :, None] == parents[:, None, :]  # (G, W, W)
        stays = ~(same & (children[:, None] > children)).any(-1)  # (G, W), no better child has the same parent
        taken = torch.zeros_like(stays).scatter_(1, parents, True)  # (G, W)
        free = taken.byte().argsort(dim=-1, stable=True)  # rows, the free ones first
        moving = stays.byte().argsort(dim=-1, stable=True)  # children, those that move first
        # One more column takes what is to be put nowhere.
        seats = torch.zeros(len(parents), width + 1, dtype=torch.long, device=parents.device)
        seats.scatter_(1, free, moving)
        seats.scatter_(1, torch.where(stays, parents, width), children.expand_as(parents))
        return seats[:, :width]
