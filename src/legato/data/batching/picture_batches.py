"""Pictures as batches of pixels: decoded once and kept, or ahead of the step by worker processes.

Pixels are bytes (B, H, W, 3) until they are on the device; what a model reads is made of them there (`Augmentation`,
`ImageProcessor.scaled`). As many as fit are decoded once, and kept on the GPU where there is one: a batch is a gather
then. Of more, worker processes decode those of the next steps. Which pictures a step has is known beforehand, so
both give the same batches, and a run that resumes needs nothing but its number.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor

from legato import memory
from legato.data.batching.batch import Batch, Inputs
from legato.data.batching.batches import Array, BatchShape, Buckets, SpeedUnit
from legato.data.batching.examples import Example, ExampleBatches, collate_examples
from legato.data.image.augmentation import Augmentation
from legato.data.image.clips import as_clip
from legato.data.image.image_processor import ImageProcessor
from legato.data.image.picture_files import Picture
from legato.errors import ConfigError, DataError, LegatoError

KEPT: Final = 1 << 33  # bytes of pixels that are kept, where memory has four times as many
FEW: Final = 512  # pictures that are decoded without workers, which take a while to start
AT_ONCE: Final = 64  # pictures that a worker decodes for a message
AHEAD: Final = 4  # batches that each worker has begun
MOST_WORKERS: Final = 16

Place = Literal["inputs", "source", "images"]


def pixels_of(picture: Picture, processor: ImageProcessor, frames: int | None = None) -> Any:
    """A picture as pixels (H, W, 3); with `frames`, so many of a clip's (N, H, W, 3)."""
    if frames is None:
        return processor.pixels(picture.load())
    fixed_shape(processor)
    return np.stack([processor.pixels(frame) for frame in as_clip(picture).frames(frames)])


def fixed_shape(processor: ImageProcessor) -> tuple[int, int]:
    """Height and width of what comes out, which have to be the same for all."""
    if processor.shape is None:
        raise ConfigError(
            "the image processor leaves pictures of different sizes, which cannot stand side by side in a batch; "
            "give its preprocessor_config.json a size with height and width, or a crop_size"
        )
    return processor.shape


class Decoder(torch.utils.data.Dataset[Any]):
    """Pictures by their numbers as pixels (H, W, 3), or the line that says what is wrong with one."""

    def __init__(self, pictures: Sequence[Picture], processor: ImageProcessor, frames: int | None = None) -> None:
        self.pictures, self.processor, self.frames = pictures, processor, frames

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, number: int) -> Any:
        try:
            return pixels_of(self.pictures[number], self.processor, self.frames)
        except LegatoError as problem:  # an error of a worker would come with its whole traceback
            return str(problem)


def stacked(decoded: Sequence[Any]) -> Tensor | str:
    """What `Decoder` gave of some pictures, (B, H, W, 3), or the first line that says what is wrong."""
    problem = next((picture for picture in decoded if isinstance(picture, str)), None)
    return torch.from_numpy(np.stack(decoded)) if problem is None else problem


def _whole(found: Tensor | str) -> Tensor:
    if isinstance(found, str):
        raise DataError(found)
    return found


class Pixels:
    """The pixels of some pictures, by their numbers."""

    def __init__(
        self,
        pictures: Sequence[Picture],
        processor: ImageProcessor,
        device: torch.device | str = "cpu",
        *,
        workers: int | None = None,
        keep: bool | None = None,
        frames: int | None = None,
    ) -> None:
        """`keep` them all, decoded; left out: where they fit. With `frames` they are clips, of so many each."""
        self.decoder, self.device = Decoder(pictures, processor, frames), torch.device(device)
        self.shape = (*(() if frames is None else (frames,)), *fixed_shape(processor), 3)
        drawn = bool(pictures) and pictures[0].draw is not None  # faster than it could be sent
        self.workers = 0 if drawn else min(MOST_WORKERS, os.cpu_count() or 1) if workers is None else workers
        taken = len(pictures) * int(np.prod(self.shape))
        free = memory.available()
        fits = taken <= KEPT and (free is None or 4 * taken <= free)
        self.kept = self._decoded() if (fits if keep is None else keep) else None

    def __len__(self) -> int:
        return len(self.decoder)

    def select(self, numbers: Sequence[int]) -> Pixels:
        """Those of some of the pictures; what is kept is not decoded again."""
        pictures, how = [self.decoder.pictures[number] for number in numbers], self.decoder
        keep = None if self.kept is None else False
        part = Pixels(pictures, how.processor, self.device, workers=self.workers, keep=keep, frames=how.frames)
        if self.kept is not None:
            part.kept = self.take(np.asarray(numbers))
        return part

    def _decoded(self) -> Tensor:
        whole = torch.empty((len(self), *self.shape), dtype=torch.uint8)
        start = 0
        parts = [range(start, min(start + AT_ONCE, len(self))) for start in range(0, len(self), AT_ONCE)]
        for part in self._loader(parts, 0 if len(self) <= FEW else self.workers):
            found = _whole(part)
            whole[start : start + len(found)] = found
            start += len(found)
        return whole.to(self.device)

    def _loader(self, batches: Any, workers: int) -> Any:
        return torch.utils.data.DataLoader(
            self.decoder,
            batch_sampler=batches,
            num_workers=workers,
            collate_fn=stacked,
            prefetch_factor=AHEAD if workers else None,
        )

    def take(self, numbers: Array) -> Tensor:
        """Those of some pictures, (B, H, W, 3)."""
        if self.kept is not None:
            return self.kept[torch.from_numpy(numbers).to(self.kept.device)]
        return _whole(stacked([self.decoder[int(number)] for number in numbers]))

    def ahead(self, numbers_at: Callable[[int], Array]) -> Callable[[int], Tensor]:
        """The pixels of a step; where they are not kept, workers make those of the steps behind it meanwhile."""
        if self.kept is not None or self.workers == 0:
            return lambda step: self.take(numbers_at(step))
        return _Ahead(self, numbers_at)

    def scored(self, rows: int = 256) -> Iterator[tuple[range, Tensor]]:
        """All of them once, in order: their numbers and pixels."""
        parts = [range(start, min(start + rows, len(self))) for start in range(0, len(self), rows)]
        if self.kept is not None:
            yield from ((part, self.kept[part.start : part.stop]) for part in parts)
            return
        for part, found in zip(parts, self._loader(parts, self.workers), strict=True):
            yield part, _whole(found)


class _Ahead:
    """Steps in their order, each made by a worker before it is asked for; begun anew where the order breaks.

    The stream is let go before anything that it is made of: workers that nobody can tell to end are waited for.
    """

    def __init__(self, pixels: Pixels, numbers_at: Callable[[int], Array]) -> None:
        self.pixels, self.numbers_at = pixels, numbers_at
        self.next = -1
        self.stream: list[Iterator[Tensor | str]] = []  # one, once it has begun
        weakref.finalize(self, self.stream.clear)

    def __call__(self, step: int) -> Tensor:
        if step != self.next:
            self.next = step
            self.stream.clear()
            self.stream.append(iter(self.pixels._loader(_Steps(self.numbers_at, step), self.pixels.workers)))
        self.next += 1
        return _whole(next(self.stream[0]))


class _Steps:
    """The numbers of the pictures of each step, from one on without end."""

    def __init__(self, numbers_at: Callable[[int], Array], step: int) -> None:
        self.numbers_at, self.step = numbers_at, step

    def __iter__(self) -> Iterator[list[int]]:
        step = self.step
        while True:
            yield self.numbers_at(step).tolist()
            step += 1


class PictureBatches(ExampleBatches):
    """Examples with a picture each, which takes so many positions beside their tokens; a new order each epoch."""

    def __init__(
        self,
        rows: Sequence[Example],
        pixels: Pixels,
        shape: BatchShape,
        *,
        place: Place = "inputs",
        positions: int = 1,
        augmentation: Augmentation | None = None,
        pad: int = 0,
        mixed: bool = False,
    ) -> None:
        """`place` is what the model reads the pictures as: its `inputs`, its `source`, or images among its tokens.

        `mixed` as in `ExampleBatches`.
        """
        if shape.batch_rows is None:
            width = positions + max(len(row.ids) for row in rows)
            shape = replace(shape, batch_rows=max(1, shape.batch_tokens // width))
        if mixed:
            shape = replace(shape, batch_rows=min(shape.batch_rows or 1, len(rows)))
        super().__init__(rows, shape, pad=pad, salt="pictures", mixed=mixed)
        self.place, self.positions, self.augmentation = place, positions, augmentation
        self.tokens_per_step += self.positions * (shape.batch_rows or 1)
        things = "pictures" if pixels.decoder.frames is None else "clips"
        self.speed_unit = SpeedUnit(things, positions + sum(len(row.ids) for row in rows) / len(rows))
        numbers = np.array([row.picture for row in rows])
        filled = shape.batch_rows if shape.fixed_shape else None
        self._pixels = pixels.ahead(partial(_pictures_at, self._buckets, numbers, filled))

    def at(self, step: int) -> Batch:
        batch, pixels = super().at(step), self._pixels(step)
        draws = None if self.augmentation is None else self.augmentation.draws(step, len(pixels))
        batch = with_pictures(batch, pixels, self.place, draws)
        return replace(batch, read=batch.read + self.positions * len(self._buckets.at(step)[1]))


def _pictures_at(buckets: Buckets, numbers: Array, filled: int | None, step: int) -> Array:
    """The numbers of the pictures at a step; where rows of nothing fill a batch, its pictures come again.

    So a batch norm sees no pictures that there are not.
    """
    chosen: Array = numbers[buckets.at(step)[1]]
    return chosen if filled is None else np.resize(chosen, filled)


def with_pictures(batch: Batch, pixels: Tensor, place: Place, draws: Tensor | None = None) -> Batch:
    """The batch with a picture for each row."""
    pictures = Inputs(values=pixels, draws=draws)
    if place == "inputs":
        return replace(batch, inputs=pictures)
    if place == "source":
        return replace(batch, source=pictures)
    return replace(batch, images=pictures, image_rows=torch.arange(len(pixels), device=pixels.device))


def collate_with_pictures(rows: Sequence[Example], pixels: Tensor, place: Place, pad: int = 0) -> Batch:
    """Examples and their pixels as one batch, for scoring."""
    return with_pictures(collate_examples(rows, pad=pad), pixels, place)
