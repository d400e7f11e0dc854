"""Where a token stands: attention itself does not know, so it is told.

    sinusoidal   PE(p, i) = sin(p / 10000^(2i/D)),  PE(p, i + D/2) = cos(p / 10000^(2i/D))
    learned      PE(p) = a row of a table that is trained
    rotary       query and key are turned by an angle that grows with p, so that their product
                 depends on the distance alone

The first two are added to the embeddings; the third acts inside each attention. All three are asked
with `at`: a slice, where every row of the batch has the same positions, or the numbers themselves.

Places in a picture are no numbers of tokens but shares of its sides (`share_sinusoids`).

Rotary positions can be slowed, so that a model reads longer texts than those it first learned from.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from legato.nn.kernels.description import register

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


def timescale_sinusoids(length: int, width: int) -> Tensor:
    """The same with the slowest wave at exactly 1/10000, (length, width): rates 10000^(-i/(D/2 - 1)).

    That is tensor2tensor's table, and Whisper's.
    """
    table = torch.empty(length, width)
    if table.is_meta:
        return table
    half = width // 2
    rates = 10000 ** (-torch.arange(half, dtype=torch.float64) / max(half - 1, 1))  # (D/2,)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rates  # (length, D/2)
    return table.copy_(torch.cat([angles.sin(), angles.cos()], dim=1))


FINEST: Final = 64.0  # waves of a side, of the finest


def share_sinusoids(shares: Tensor, width: int) -> Tensor:
    """Places from 0 to 1 as vectors: of shares (…, K) of a picture's sides, K of them of width/K each, (…, width).

    Sines, then cosines, of waves from half a one along the side to `FINEST`, each longer than the next by one factor:
    neighbours in a fine grid differ, and so do the two ends of the picture.
    """
    size = width // (2 * shares.shape[-1])
    steps = torch.arange(size, device=shares.device, dtype=torch.float32) / max(size - 1, 1)
    angles = shares.float().unsqueeze(-1) * (math.pi * (2 * FINEST) ** steps)  # (…, K, size)
    waves = torch.cat([angles.sin(), angles.cos()], dim=-1).flatten(-2)  # (…, K · 2 size)
    return nn.functional.pad(waves, (0, width - waves.shape[-1]))


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
        return self.weight[at] if isinstance(at, slice) else super().forward(at)  # (T, D) or (B, T, D)


class Rotation(NamedTuple):
    """The angles of some positions, ready to be laid on (B, T, H, K)."""

    cos: Tensor  # (T, 1, K) or (B, T, 1, K)
    sin: Tensor


@register("rotary")
class Rotary(nn.Module):
    """Rotary positions (Su et al. 2021): coordinates i and i + K/2 turn together by p / θ^(2i/K).

    Pairing halves rather than neighbours is Llama's convention.
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self, length: int, width: int, theta: float = 10000.0, slowed: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        """`slowed` makes angles per token (K/2,) others."""
        super().__init__()
        cos, sin = torch.empty(length, width), torch.empty(length, width)
        if not cos.is_meta:
            # All angles in float32, as the published models were trained.
            rates = 1 / theta ** (torch.arange(0, width, 2).float() / width)  # (K/2,)
            rates = rates if slowed is None else slowed(rates)
            angles = torch.arange(length).float()[:, None] * rates  # (length, K/2)
            angles = torch.cat([angles, angles], dim=1)
            cos, sin = torch.cos(angles, out=cos), torch.sin(angles, out=sin)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, at: At) -> Rotation:
        return Rotation(self.cos[at].unsqueeze(-2), self.sin[at].unsqueeze(-2))


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Queries or keys (B, T, H, K) turned to where they stand."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (x * rotation.cos + turned * rotation.sin).to(x.dtype)
