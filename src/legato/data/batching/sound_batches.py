"""Sounds as batches of samples, by seconds: decoded once and kept, or ahead of the step by threads.

Samples are floats (B, N), and what a model reads is made of them on the device (`FeatureExtractor.extract`). As many
as fit are decoded once, and kept on the GPU where there is one. Of more, threads decode those of the next steps.
Which sounds a step has is known beforehand, so both give the same batches, and a run that resumes needs nothing but
its number.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from legato import memory
from legato.data.audio.sound_files import Sound
from legato.data.audio.spec_augment import SpecAugment
from legato.data.batching.batch import IGNORE, Batch, Inputs
from legato.data.batching.batches import Array, BatchShape, Buckets, SpeedUnit, rounded, scoring_order
from legato.errors import DataError

KEPT: Final = 1 << 33  # bytes of samples that are kept, where memory has four times as many
AHEAD: Final = 8  # steps whose sounds are being decoded
FRAME: Final = 0.01  # seconds that count as one position: those from a frame to the next
PAD_TO: Final = 100  # positions; widths are multiples of it: few, so that the memory of one step serves the next


class Waves:
    """The samples of some sounds, by their numbers, at one rate."""

    def __init__(
        self,
        sounds: Sequence[Sound],
        rate: int,
        device: torch.device | str = "cpu",
        *,
        workers: int | None = None,
        keep: bool | None = None,
    ) -> None:
        """`keep` them all, decoded; left out: where they fit."""
        self.sounds, self.rate, self.device = sounds, rate, torch.device(device)
        self.threads = min(16, os.cpu_count() or 1) if workers is None else max(1, workers)
        self.kept: Tensor | None = None  # (all samples,) one sound behind the other, from `starts` on
        self.starts: Array = np.zeros(0, np.int64)
        self.lengths: Array = np.zeros(0, np.int64)
        if keep is not False:
            self._keep(bool(keep))
        if self.kept is None:
            with ThreadPoolExecutor(self.threads) as pool:
                seconds = list(pool.map(Sound.seconds, sounds))
            self.lengths = np.array([max(1, round(each * rate)) for each in seconds], np.int64)

    def select(self, numbers: Sequence[int]) -> Waves:
        """Those of some of the sounds; what is kept is not decoded again."""
        part = copy.copy(self)
        part.sounds, part.lengths = [self.sounds[number] for number in numbers], self.lengths[list(numbers)]
        if self.kept is not None:
            part.starts = self.starts[list(numbers)]
        return part

    def _keep(self, surely: bool) -> None:
        """Decode them all, unless they turn out to be too many."""
        free = memory.available()
        most = KEPT if free is None else min(KEPT, free // 4)
        decoded, taken = [], 0
        with ThreadPoolExecutor(self.threads) as pool:
            for first in range(0, len(self.sounds), 256):
                part = list(pool.map(self._load, self.sounds[first : first + 256]))
                decoded += part
                taken += sum(each.nbytes for each in part)
                if taken > most and not surely:
                    return
        self.lengths = np.array([len(each) for each in decoded], np.int64)
        self.starts = np.cumsum(self.lengths) - self.lengths
        whole = np.concatenate(decoded) if decoded else np.zeros(0, np.float32)
        self.kept = torch.from_numpy(whole).to(self.device)

    def _load(self, sound: Sound) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        samples: np.ndarray[tuple[int], np.dtype[np.float32]] = sound.load(self.rate)
        return samples

    def __len__(self) -> int:
        return len(self.sounds)

    @property
    def seconds(self) -> float:
        """Of all together."""
        return float(self.lengths.sum()) / self.rate

    def take(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Some sounds side by side, (B, N), and the samples of each, (B,)."""
        if self.kept is None:
            return self._padded([torch.from_numpy(self._load(self.sounds[number])) for number in numbers])
        return self._padded([self.kept[self.starts[n] : self.starts[n] + self.lengths[n]] for n in map(int, numbers)])

    def _padded(self, found: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        lengths = torch.tensor([len(each) for each in found], device=found[0].device)
        return torch.nn.utils.rnn.pad_sequence(list(found), batch_first=True), lengths

    def ahead(self, numbers_at: Callable[[int], Array]) -> Callable[[int], tuple[Tensor, Tensor]]:
        """The samples of a step; where they are not kept, threads decode those of the steps behind it meanwhile."""
        if self.kept is not None:
            return lambda step: self.take(numbers_at(step).tolist())
        return _Ahead(self, numbers_at)

    def scored(self, seconds: float = 240.0) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """All of them once, those of like length side by side: their numbers, samples (B, N) and lengths (B,)."""
        lengths = self.lengths.tolist()
        for numbers in scoring_order(lengths, lengths, int(seconds * self.rate)):
            yield numbers, *self.take(numbers)


class _Ahead:
    """Steps in their order, each decoded by threads before it is asked for; begun anew where the order breaks."""

    def __init__(self, waves: Waves, numbers_at: Callable[[int], Array]) -> None:
        self.waves, self.numbers_at = waves, numbers_at
        self.pool: ThreadPoolExecutor | None = None
        self.begun: dict[int, Future[tuple[Tensor, Tensor]]] = {}

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        if self.pool is None:
            self.pool = ThreadPoolExecutor(self.waves.threads)
        self.begun = {number: found for number, found in self.begun.items() if number >= step}
        for number in range(step, step + AHEAD):
            if number not in self.begun:
                self.begun[number] = self.pool.submit(self.waves.take, self.numbers_at(number).tolist())
        return self.begun.pop(step).result()


class SoundBatches:
    """Sounds of like length side by side, in a new order each epoch."""

    def __init__(
        self,
        waves: Waves,
        make: Callable[[Inputs, Sequence[int]], Batch],
        shape: BatchShape,
        *,
        augmentation: SpecAugment | None = None,
        window: float | None = None,
        tokens: Sequence[int] | None = None,
    ) -> None:
        """`make` gives sounds, and the numbers of their rows, what there is to learn of them.

        A batch has at most `shape.batch_tokens` positions, of 10 ms each, or `shape.batch_rows` sounds; of a model
        that reads windows of so many seconds, each sound counts as one. With a `fixed_shape`, and how many `tokens`
        each sound has to learn, there is one shape for each width: empty rows fill it up.
        """
        if not len(waves):
            raise DataError(f"{shape.name} holds no rows")
        self.waves, self.make, self.augmentation = waves, make, augmentation
        self.hop = max(1, round(FRAME * waves.rate))
        widths = np.maximum(1, -(-waves.lengths // self.hop))
        if window is not None:
            widths = np.full_like(widths, round(window / FRAME))
        if shape.batch_rows is None and widths.max() > shape.batch_tokens:
            row = int(widths.argmax())
            raise DataError(
                f"{shape.name}, row {row + 1:,}: {widths[row] * FRAME:,.1f} seconds, more than a batch of "
                f"{shape.batch_tokens * FRAME:,.1f}; raise data.batch_seconds"
            )
        self._widths = widths
        self._rows: dict[int, tuple[int, int]] = {}  # of each width: rows, and tokens of the longest target
        if shape.fixed_shape and tokens is not None and shape.batch_rows is None:
            widths, counts = rounded(widths, PAD_TO), np.asarray(tokens)
            self._rows = {
                int(width): (max(1, shape.batch_tokens // int(width)), max(1, int(counts[widths <= width].max())))
                for width in np.unique(widths)
            }
        self._buckets = Buckets(widths, shape, salt="sounds")
        self.steps_per_epoch = self._buckets.steps_per_epoch
        self.tokens_per_step = (
            shape.batch_tokens if shape.batch_rows is None else int(shape.batch_rows * widths.mean())
        )
        self.speed_unit = SpeedUnit("seconds of sound", 1 / FRAME)
        self._samples = waves.ahead(lambda step: self._buckets.at(step)[1])

    def at(self, step: int) -> Batch:
        rows = self._buckets.at(step)[1]
        samples, lengths = self._samples(step)
        if self._rows:  # the widths were known before; what is decoded may have a sample more
            width = int(rounded(self._widths[rows].max(), PAD_TO)) * self.hop
            samples, lengths = samples[:, :width], lengths.clamp(max=width)
        else:
            width = int(rounded(samples.shape[1], PAD_TO * self.hop))
        samples = F.pad(samples, (0, width - samples.shape[1]))
        draws = None if self.augmentation is None else self.augmentation.draws(step, len(rows))
        inputs = Inputs(values=samples, lengths=lengths, draws=draws)
        batch = replace(self.make(inputs, rows.tolist()), read=int(self._widths[rows].sum()))
        return _filled(batch, *self._rows[width // self.hop]) if self._rows else batch


def _filled(batch: Batch, rows: int, tokens: int) -> Batch:
    """A batch with so many rows, the last of them without a sound, and targets of so many tokens."""
    inputs, targets = batch.inputs, batch.targets
    assert inputs.lengths is not None
    assert targets is not None
    more = rows - len(inputs.content)
    draws = None if inputs.draws is None else F.pad(inputs.draws, (0, 0, 0, more))
    values, lengths = F.pad(inputs.content, (0, 0, 0, more)), F.pad(inputs.lengths, (0, more))
    targets = F.pad(targets, (0, tokens - targets.shape[1], 0, more), value=IGNORE)
    filled = replace(inputs, values=values, lengths=lengths, draws=draws)
    return replace(batch, inputs=filled, targets=targets, fixed_shape=True)


def written_batch(sounds: Inputs, targets: Sequence[Sequence[int]], prompt: Sequence[int], eos: int) -> Batch:
    """Sounds that an encoder reads, and what a decoder writes of each behind a prompt: the tokens, and what stands
    before each."""
    ids = Inputs.of([[*prompt, *row] for row in targets], padding=eos)
    width, before = ids.token_ids.shape[1], [IGNORE] * (len(prompt) - 1)
    made = [[*before, *row, eos] for row in targets]
    wanted = torch.tensor([[*row, *[IGNORE] * (width - len(row))] for row in made])
    return Batch(ids, wanted, source=sounds, tokens=sum(map(len, targets)) + len(targets))


def sound_batch(inputs: Inputs, targets: Sequence[Sequence[int]]) -> Batch:
    """Sounds with the tokens of each, padded with IGNORE."""
    width = max(1, max(map(len, targets)))
    padded = torch.tensor([[*row, *[IGNORE] * (width - len(row))] for row in targets])
    return Batch(inputs, padded, tokens=max(1, sum(map(len, targets))))
