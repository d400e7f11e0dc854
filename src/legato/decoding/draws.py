"""Random numbers that are functions of where they are drawn: of a group's seed, of its step, and of a place.

A counter is mixed until nothing of it is left to see (SplitMix64: Steele et al. 2014). Nothing is remembered between
draws, so a prompt gets what it would get alone, wherever it stands in a batch and whatever stands beside it, on every
device, and a recorded graph draws anew at each replay.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

APART = 0x9E3779B97F4A7C15  # between two counters: 2^64 over the golden ratio
FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def _signed(number: int) -> int:
    """The 64-bit integer that has these bits, as PyTorch keeps it."""
    number &= 2**64 - 1
    return number - 2**64 if number >= 2**63 else number


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Moved right, zeros from the left."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mixed(x: Tensor) -> Tensor:
    """Integers of 64 bits to others, one to one: each bit depends on all."""
    x = (x ^ _shifted(x, 30)) * _signed(FACTORS[0])
    x = (x ^ _shifted(x, 27)) * _signed(FACTORS[1])
    return x ^ _shifted(x, 31)


def seeds_of(pairs: Sequence[tuple[int, int]], device: torch.device | str = "cpu") -> Tensor:
    """One seed for each (seed, walk), (G,)."""
    both = torch.tensor([[_signed(seed), _signed(walk)] for seed, walk in pairs], dtype=torch.int64).view(-1, 2)
    return mixed(mixed(both[:, 0] + _signed(APART)) + both[:, 1] * _signed(APART)).to(device)


def _words(seeds: Tensor, steps: Tensor) -> Tensor:
    return mixed(seeds + (steps + 1) * _signed(APART))


def uniform(seeds: Tensor, steps: Tensor) -> Tensor:
    """A number in [0, 1) for each group (G,) at its step (G,)."""
    return _shifted(_words(seeds, steps), 40).float() * 2.0**-24


def gumbel(seeds: Tensor, steps: Tensor, size: int) -> Tensor:
    """−log(−log u), `size` of them for each group (G,) at its step (G,): (G, size)."""
    places = torch.arange(1, size + 1, device=seeds.device) * _signed(APART)
    words = mixed(_words(seeds, steps).unsqueeze(-1) + places)
    # 23 bits and a half: neither 0 nor, rounded, 1.
    return _shifted(words, 41).float().add_(0.5).mul_(2.0**-23).log_().neg_().log_().neg_()
