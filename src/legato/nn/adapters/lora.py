"""Low-rank adapters: a frozen matrix learns by what two thin ones add to it (LoRA; Hu et al. 2021).

    y = W x + b + s B A x            A (r, inputs), B (outputs, r), s = alpha / r, or alpha / √r (rsLoRA)

A starts out random and B zero, so at first nothing is added. Where W is several published matrices, one over the
other (query over key over value), each of them may have an adapter of its own, a `Part` of W's rows.

Notable: the A's of one layer are one matrix, so that they cost one product whatever their number; the B's are laid
out as one matrix with zeros where a part has no say, so that all parts are added in one more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from legato.nn.dropout import dropout


class Part(NamedTuple):
    """Rows of a matrix that have an adapter of their own."""

    name: str  # of the published module that they are
    start: int
    end: int


class LowRank(nn.Module):
    """What adapters of one rank add to one linear layer."""

    def __init__(
        self, inputs: int, outputs: int, parts: Sequence[Part], rank: int, scaling: float, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.outputs, self.rank, self.scaling, self.dropout = outputs, rank, scaling, dropout
        self.parts = tuple(parts)
        self.down = nn.Parameter(torch.empty(len(self.parts) * rank, inputs))  # the A's, one below the other
        self.up = nn.ParameterList(nn.Parameter(torch.zeros(part.end - part.start, rank)) for part in self.parts)
        for a in self.down.split(rank):
            nn.init.kaiming_uniform_(a, a=math.sqrt(5))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """y (…, outputs), which is W x + b, with what the parts add."""
        low = F.linear(dropout(x, self.dropout, self.training), self.down)  # (…, parts · r)
        added = torch.addmm(
            y.reshape(-1, self.outputs), low.reshape(-1, low.shape[-1]), self._wide_up().t(), alpha=self.scaling
        )
        return added.view(y.shape)

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """A and B of each part."""
        return list(zip(self.down.split(self.rank), self.up, strict=True))

    def _wide_up(self) -> Tensor:
        """The B's side by side, each in the rows of its part: (outputs, parts · r)."""
        if len(self.parts) == 1 and self.parts[0].end - self.parts[0].start == self.outputs:
            return self.up[0]
        placed = [
            F.pad(b, (0, 0, part.start, self.outputs - part.end)) for part, b in zip(self.parts, self.up, strict=True)
        ]
        return torch.cat(placed, dim=1)


@torch.no_grad()
def beside(inputs: int, outputs: int, parts: Sequence[Part], pairs: Sequence[tuple[Tensor, Tensor]]) -> LowRank:
    """Adapters that are trained already, A and s B of each part, for a matrix that they cannot be merged into."""
    rank = max(len(a) for a, _ in pairs)
    made = LowRank(inputs, outputs, parts, rank, 1.0).requires_grad_(False)
    made.down.zero_()
    for (down, up), (a, b) in zip(made.pairs(), pairs, strict=True):
        down[: len(a)] = a
        up[:, : len(a)] = b
    return made


@torch.no_grad()
def merge(weight: Tensor, a: Tensor, b: Tensor, scaling: float) -> None:
    """W ← W + s B A, summed in double precision, so that only the last rounding is left."""
    weight.copy_(weight.double() + scaling * (b.double() @ a.double()))
