"""Other views of sounds, drawn anew at every step, as tensor operations on the whole batch.

speed                   read faster or slower by up to this share, as a tape would be: pitches change with it
gain                    louder or softer by up to so many decibels
noise                   Gaussian noise added, as loud as up to this share of the sound's own root mean square
frequency_masks         bands of up to `frequency_width` filters are hidden (SpecAugment, Park et al. 2019) …
time_masks              … and stretches of up to `time_width` frames, and of up to `time_share` of the row's own

The first three change samples, the others the frames that are made of them. What is hidden becomes the mean of its
row. Nothing beyond a row's length is looked at or changed.

Every choice is a function of the numbers that the batch brings for each row (`Inputs.draws`), which follow from the
seed, the step and the row, each at a column of its own: a setting that changes moves no other one's draws. So a run
resumes to the same sounds, and a step can be recorded.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from legato.config import Section
from legato.data.batching.batches import mix_seed

MOST_MASKS: Final = 10  # of each kind
GAIN, LOUDNESS, KEYS = 0, 1, slice(2, 4)  # columns of the draws; then a width and a place for each mask
FREQUENCY: Final = 4
TIME: Final = FREQUENCY + 2 * MOST_MASKS
SPEED: Final = TIME + 2 * MOST_MASKS
DRAWS: Final = SPEED + 1  # numbers for each row
BITS: Final = 24  # of a draw, a float of 32 bits from 0 to 1


class SpecAugmentConfig(Section):
    """How sounds are changed in training."""

    speed: float = Field(0.0, ge=0, le=0.5, description="faster or slower, and higher or lower, by up to this share")
    gain: float = Field(0.0, ge=0, le=60, description="decibels, louder or softer by up to as many")
    noise: float = Field(0.0, ge=0, le=10, description="of up to this share of the sound's loudness (RMS)")
    frequency_masks: int = Field(0, ge=0, le=MOST_MASKS, description="bands of filters that are hidden")
    frequency_width: int = Field(27, ge=1, le=1024, description="filters that each has at most")
    time_masks: int = Field(0, ge=0, le=MOST_MASKS, description="stretches of frames that are hidden")
    time_width: int = Field(100, ge=1, le=10_000, description="frames that each has at most")
    time_share: float = Field(0.05, gt=0, le=1, description="of a row's frames that each has at most")


class SpecAugment:
    """Sounds (B, N) and their frames (B, T, F), changed as each row's draws say.

    >>> SpecAugment(SpecAugmentConfig(), seed=1).idle
    True
    """

    def __init__(self, config: SpecAugmentConfig, seed: int) -> None:
        self.config, self.seed = config, seed

    @property
    def idle(self) -> bool:
        """Whether it changes nothing."""
        config = self.config
        return not (config.speed or config.gain or config.noise or config.frequency_masks or config.time_masks)

    def draws(self, step: int, rows: int) -> Tensor:
        """The numbers of each row at a step, (B, DRAWS)."""
        draw = np.random.default_rng(mix_seed(self.seed, "spec_augment", step))
        return torch.from_numpy(draw.random((rows, DRAWS), dtype=np.float32))  # no row's depend on those behind it

    @torch.no_grad()
    def change_speed(self, sound: Tensor, lengths: Tensor | None, draws: Tensor) -> tuple[Tensor, Tensor | None]:
        """Samples (B, N) read faster or slower, and how many of them each row has then."""
        if not self.config.speed:
            return sound, lengths
        if lengths is None:
            lengths = torch.full((len(sound),), sound.shape[1], device=sound.device)
        factors = 1 + self.config.speed * (2 * draws[:, SPEED].double() - 1)  # (B,)
        return resampled_by(sound, lengths, factors, math.ceil(sound.shape[1] / (1 - self.config.speed)))

    @torch.no_grad()
    def change_sound(self, sound: Tensor, lengths: Tensor | None, draws: Tensor) -> Tensor:
        """Samples (B, N), louder or softer and with noise."""
        config = self.config
        if not (config.gain or config.noise):
            return sound
        inside = _inside(sound, lengths)  # (B, N)
        changed = sound
        if config.noise:
            many = inside.sum(1, keepdim=True).clamp(min=1)
            loudness = (sound.masked_fill(~inside, 0).square().sum(1, keepdim=True) / many).sqrt()  # (B, 1)
            share = config.noise * draws[:, LOUDNESS, None]
            changed = changed + share * loudness * gaussian_noise(draws[:, KEYS], sound.shape[1])
        if config.gain:
            decibels = config.gain * (2 * draws[:, GAIN, None] - 1)
            changed = changed * 10 ** (decibels / 20)
        return torch.where(inside, changed, sound)

    @torch.no_grad()
    def mask_frames(self, frames: Tensor, lengths: Tensor | None, draws: Tensor) -> Tensor:
        """Frames (B, T, F) with bands and stretches hidden."""
        config = self.config
        if not (config.frequency_masks or config.time_masks):
            return frames
        rows, total, bins = frames.shape
        if lengths is None:
            lengths = torch.full((rows,), total, device=frames.device)
        inside = _inside(frames[..., 0], lengths)  # (B, T)
        every = torch.full_like(lengths, bins)
        bands = _hidden(
            bins, every, every.clamp(max=config.frequency_width), _of(draws, FREQUENCY, config.frequency_masks)
        )
        most = (lengths * config.time_share).long().clamp(max=config.time_width)
        stretches = _hidden(total, lengths, most, _of(draws, TIME, config.time_masks))
        hidden = (bands[:, None] | stretches[:, :, None]) & inside[..., None]  # (B, T, F)
        mean = frames.masked_fill(~inside[..., None], 0).sum((1, 2)) / (lengths * bins).clamp(min=1)
        return torch.where(hidden, mean[:, None, None].to(frames.dtype), frames)


def resampled_by(sound: Tensor, lengths: Tensor, factors: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Sounds (B, N) read `factors` (B,) times as fast, (B, most), and their lengths: cubic between samples (Catmull
    and Rom), 0 beyond the end."""
    counts = (lengths / factors).long().clamp(min=1)  # (B,)
    places = torch.arange(most, device=sound.device) * factors[:, None]  # (B, most)
    whole = places.floor()
    t = (places - whole).to(sound.dtype)
    last = (lengths[:, None] - 1).clamp(min=0)

    def at(offset: int) -> Tensor:
        return sound.gather(1, torch.minimum((whole.long() + offset).clamp(min=0), last))

    a, b, c, d = (at(offset) for offset in (-1, 0, 1, 2))
    between = b + 0.5 * t * (c - a + t * (2 * a - 5 * b + 4 * c - d + t * (3 * (b - c) + d - a)))
    return between.masked_fill(torch.arange(most, device=sound.device) >= counts[:, None], 0), counts


def gaussian_noise(keys: Tensor, length: int) -> Tensor:
    """Numbers (B, length) of mean 0 and spread 1 that follow from each row's two `keys` (B, 2) from 0 to 1.

    Place n of a row has two hashes of its key and n, from which Box and Muller make one: √(-2 ln u) cos 2πv. Integers
    of 64 bits wrap around alike on every device.
    """
    whole = (keys.double() * 2**BITS).long()
    seeds = (whole[:, :1] << BITS) | whole[:, 1:]  # (B, 1)
    places = torch.arange(length, device=keys.device)
    hashed = _scattered(_scattered(seeds) + places)  # (B, length)
    u, v = ((hashed >> shift & (1 << BITS) - 1).float() for shift in (0, 32))
    return (-2 * ((u + 0.5) / 2**BITS).log()).sqrt() * (v * (2 * math.pi / 2**BITS)).cos()


def _scattered(numbers: Tensor) -> Tensor:
    """Each number's hash: multiplied by odd numbers, with its upper bits folded into the lower ones."""
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15), (31, 0x1CE4E5B9BF58476D)):
        numbers = (numbers ^ (numbers >> shift & (1 << 64 - shift) - 1)) * factor
    return numbers ^ (numbers >> 29 & (1 << 35) - 1)


def _of(draws: Tensor, start: int, masks: int) -> Tensor:
    """The draws of so many masks, (B, masks, 2)."""
    return (
        draws[:, start : start + 2 * masks].unflatten(1, (masks, 2)) if masks else draws.new_empty(len(draws), 0, 2)
    )


def _hidden(total: int, lengths: Tensor, most: Tensor, draws: Tensor) -> Tensor:
    """Which of `total` places lie in a mask, (B, total): `most` (B,) wide, within `lengths` (B,)."""
    most, lengths = most[:, None], lengths[:, None]
    widths = torch.minimum((draws[..., 0] * (most + 1)).long(), most)  # (B, masks); rounding may reach beyond
    starts = torch.minimum((draws[..., 1] * (lengths - widths + 1)).long(), lengths - widths)
    places = torch.arange(total, device=draws.device)
    return ((places >= starts[..., None]) & (places < (starts + widths)[..., None])).any(1)


def _inside(values: Tensor, lengths: Tensor | None) -> Tensor:
    """Which places of (B, N) are a row's own."""
    places = torch.arange(values.shape[1], device=values.device)
    return places.expand(len(values), -1) < (values.shape[1] if lengths is None else lengths[:, None])
