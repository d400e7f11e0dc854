"""Where a token stands: attention itself does not know, so it is told.

    sinusoidal   PE(p, i) = sin(p / 10000^(2i/D)),  PE(p, i + D/2) = cos(p / 10000^(2i/D))
    learned      PE(p) = a row of a table that is trained
    rotary       query and key are turned by an angle that grows with p, so that their product
                 depends on the distance alone

The first two are added to the embeddings; the third acts inside each attention. All three are asked
with `at`: a slice, where every row of the batch has the same positions, or the numbers themselves.

Rotary positions can be slowed (`Slowed`), so that a model reads longer texts than those it first learned from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

At = slice | Tensor  # positions: one stretch for all rows, or (B, T) numbers


def sinusoids(length: int, width: int) -> Tensor:
    """The table of Vaswani et al. 2017, section 3.5, (length, width), with all sines before all cosines.

    That order is Marian's. It differs from the paper's by a permutation, which the first layer learns.
    """
    table = torch.empty(length, width)  # first: whoever watches over memory sees how large it is
    if table.is_meta:
        return table
    rates = 10000 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)  # (⌈D/2⌉,)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rates  # (length, ⌈D/2⌉)
    return table.copy_(torch.cat([angles.sin(), angles.cos()[:, : width // 2]], dim=1))


class Sinusoidal(nn.Module):
    """A fixed table. It is not saved: it can always be made again."""

    table: Tensor

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.register_buffer("table", sinusoids(length, width), persistent=False)

    def forward(self, at: At) -> Tensor:
        return self.table[at]  # (T, D) or (B, T, D)


class Learned(nn.Embedding):
    """A table that is trained; positions beyond it do not exist."""

    def forward(self, at: At) -> Tensor:
        return self.weight[at]  # (T, D) or (B, T, D)


class Rotation(NamedTuple):
    """The angles of some positions, ready to be laid on (B, T, H, K)."""

    cos: Tensor  # (T, 1, K) or (B, T, 1, K)
    sin: Tensor


@dataclass(frozen=True)
class Slowed:
    """Rotary positions that turn `factor` times slower.

    linear   all of them do (Chen et al. 2023)
    llama3   only those do that turn less than `low` times in `length` tokens, the longest text of the first training;
             those that turn more than `high` times stay, for they tell neighbours apart; between the two it is
             blended (Llama 3.1's model card)
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low: float = 1.0
    high: float = 4.0
    length: int = 8192

    def __call__(self, rates: Tensor) -> Tensor:
        """Angles per token (K/2,) to such."""
        if self.kind == "linear":
            return rates / self.factor
        turns = self.length * rates / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return kept * rates + (1 - kept) * rates / self.factor


class Rotary(nn.Module):
    """Rotary positions (Su et al. 2021): coordinates i and i + K/2 turn together by p / θ^(2i/K).

    Pairing halves rather than neighbours is Llama's convention.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, length: int, width: int, theta: float = 10000.0, slowed: Slowed | None = None) -> None:
        super().__init__()
        cos, sin = _turns(length, width, theta, slowed)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, at: At) -> Rotation:
        return Rotation(self.cos[at].unsqueeze(-2), self.sin[at].unsqueeze(-2))


def _turns(length: int, width: int, theta: float, slowed: Slowed | None) -> tuple[Tensor, Tensor]:
    """Cosines and sines of all angles, (length, K), in float32, as the published models were trained."""
    cos, sin = torch.empty(length, width), torch.empty(length, width)
    if cos.is_meta:
        return cos, sin
    rates = 1 / theta ** (torch.arange(0, width, 2).float() / width)  # (K/2,)
    rates = rates if slowed is None else slowed(rates)
    angles = torch.arange(length).float()[:, None] * rates  # (length, K/2)
    angles = torch.cat([angles, angles], dim=1)
    return torch.cos(angles, out=cos), torch.sin(angles, out=sin)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Queries or keys (B, T, H, K) turned to where they stand."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (x * rotation.cos + turned * rotation.sin).to(x.dtype)
