"""What models that read pictures have in common: pixels in, a grid of states out.

A picture (3, H, W) becomes `rows × columns` states, read row by row, and before them a state for the whole where the
model has one. So a picture is a sequence like any other: a head pools it, a decoder looks at it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from legato.data.batching.batch import Batch, Inputs
from legato.data.image.image_processor import MAX_SIDE, ImageProcessor
from legato.errors import LegatoError
from legato.models.base import ModelConfig, SequenceModel
from legato.nn.capture import capture
from legato.nn.pooling import pool


class ImageConfig(ModelConfig):
    """Settings that models of pictures begin with."""

    image: int = Field(224, ge=1, le=MAX_SIDE, description="pixels of a picture's side")

    def image_processor(self) -> ImageProcessor:
        """What reads pictures for such a model where it is trained from nothing."""
        return ImageProcessor((self.image, self.image))


class ImageEncoder(SequenceModel):
    """The base of every model that reads pictures (B, 3, H, W) and nothing else."""

    processors: ClassVar[tuple[str, ...]] = ("image",)
    usual_task: ClassVar[str | None] = "image-classification"
    has_readout = False
    before_grid: ClassVar[int] = 0  # states before those of the grid: for the whole picture

    @property
    def stride(self) -> int:
        """Pixels of a picture's side that one place of the grid stands for."""
        raise NotImplementedError

    @property
    def out_width(self) -> int:
        """How wide the last states are."""
        width: int = self.config.width
        return width

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the states of a picture; what is left over at its edges is one more."""
        return -(-height // self.stride), -(-width // self.stride)

    def learned_positions(self) -> Tensor | None:
        """The learned positions of the grid, (rows, columns, D), of a model that has them."""
        return None

    def vectors(self, hidden: Tensor) -> Tensor:
        """One vector for each picture, (B, T, D) to (B, D): what a head for classes reads where nothing is said."""
        return pool(hidden, None, str(self.default_head(plain=True)["pool"]))

    def smallest_batch(self) -> Batch:
        return Batch(Inputs(values=torch.zeros(1, 3, self.stride, self.stride, device=self.device)))

    def pixels_of(self, inputs: Inputs) -> Tensor:
        """The pixels (B, 3, H, W)."""
        pixels = inputs.content
        if pixels.dim() != 4 or pixels.shape[1] != 3:
            raise LegatoError(
                f"{self.config.name} reads pictures of shape (3, height, width), not {tuple(pixels.shape[1:])}"
            )
        return pixels


class ConvolutionalConfig(ImageConfig):
    """Settings that convolutional networks begin with."""

    network: ClassVar[Any] = "convolutional"


class ConvolutionalEncoder(ImageEncoder):
    """The base of those whose layers leave grids, each in its own size and width; the last one is what is read."""

    def grids(self, pixels: Tensor) -> Iterator[Tensor]:
        """What the stem leaves of pictures (B, 3, H, W), and each stage after it: (B, D, rows, columns)."""
        raise NotImplementedError

    def _laid_out(self, inputs: Inputs) -> Tensor:
        """Pictures, on a GPU with their channels side by side, as tensor cores read them; and so lie all grids."""
        pixels = self.pixels_of(inputs)
        return pixels.contiguous(memory_format=torch.channels_last) if pixels.is_cuda else pixels

    def smallest_batch(self) -> Batch:
        """So large that the last grid is not a single place, which could be added to any other."""
        return Batch(Inputs(values=torch.zeros(1, 3, 2 * self.stride, 2 * self.stride, device=self.device)))

    def embed(self, inputs: Inputs) -> Tensor:
        return next(self.grids(self._laid_out(inputs)))

    def read(self, batch: Batch, every: list[Tensor] | None = None) -> Tensor:
        """The last grid row by row, (B, rows · columns, D); every grid so, where `every` is given."""
        for grid in self.grids(self._laid_out(batch.inputs)):
            last = grid.flatten(2).transpose(1, 2)
            if every is not None:
                every.append(last)
        capture("hidden", last, "row position unit")
        return last
