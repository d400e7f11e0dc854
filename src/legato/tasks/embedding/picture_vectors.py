"""Pictures as vectors: what a model that reads pictures makes of each.

A model of pictures and texts (CLIP) makes vectors of both in one space. Of any other that reads pictures it is the
vector that a head for classes reads where nothing is said: the mean of the grid, or the state of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from legato.data.batching.batch import Inputs
from legato.data.batching.picture_batches import Pixels
from legato.data.image.image_processor import ImageProcessor
from legato.data.image.picture_files import as_picture
from legato.errors import ConfigError, FolderError
from legato.evaluation.embedding import unit
from legato.folders.finite_scores import check_finite
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.models.clip import CLIPModel
from legato.models.model_with_head import body_of
from legato.models.source_encoder import encode_pictures
from legato.tasks.embedding.text_vectors import VectorArray
from legato.tasks.picture_data import image_processor, picture_encoder


class PictureVectors:
    """Makes vectors of pictures with one model."""

    def __init__(self, module: SequenceModel, processor: ImageProcessor, *, normalise: bool = False) -> None:
        encoder = picture_encoder(module)
        if encoder is None:
            raise FolderError(f"{module.config.name} reads no pictures")
        self.module, self.encoder, self.processor, self.normalise = module, encoder, processor, normalise
        body = body_of(module)
        self.joint = body if isinstance(body, CLIPModel) else None

    @classmethod
    def of(cls, loaded: Loaded, *, normalise: bool = False) -> PictureVectors:
        return cls(loaded.module, image_processor(loaded), normalise=normalise)

    def of_pixels(self, pixels: Tensor) -> Tensor:
        """A vector for each of some pictures as they are decoded: (B, H, W, 3) to (B, D)."""
        inputs = Inputs(values=self.processor.scaled(pixels.to(self.module.device, non_blocking=True)))
        if self.joint is not None:
            return self.joint.image_vectors(inputs).float()
        return self.encoder.vectors(encode_pictures(self.encoder, inputs)).float()

    def embed(
        self, pictures: Sequence[Any], batch_size: int = 32, done: Callable[[int], None] | None = None
    ) -> VectorArray:
        """A vector for each picture, (N, D): a file's name, its bytes, pixels or Pillow's `Image`."""
        if not pictures:
            return np.zeros((0, self.width), dtype=np.float32)
        pixels = Pixels([as_picture(picture) for picture in pictures], self.processor, self.module.device)
        return self.embed_pixels(pixels, batch_size, done)

    @torch.no_grad()
    def embed_pixels(
        self, pixels: Pixels, batch_size: int = 256, done: Callable[[int], None] | None = None
    ) -> VectorArray:
        """The same of pictures that are decoded, or are about to be."""
        if batch_size < 1:
            raise ConfigError(f"a batch needs at least one picture, not {batch_size}")
        found = []
        for numbers, part in pixels.scored(batch_size):
            found.append(self.of_pixels(part).cpu().numpy())
            if done is not None:
                done(len(numbers))
        vectors: VectorArray = np.concatenate(found)
        check_finite(vectors, self.module)
        return unit(vectors) if self.normalise else vectors

    @property
    def width(self) -> int:
        """How many numbers a vector has."""
        return self.joint.config.projection if self.joint is not None else self.encoder.out_width


def embed_given(loaded: Loaded, texts: Any, image: Any, batch_size: int, *, normalise: bool) -> VectorArray:
    """A vector for each picture of a list, (N, D), or (D,) for one that is given alone."""
    if (texts is None) == (image is None):
        raise ConfigError("give texts, or image=…" + (", not both" if texts is not None else ""))
    several = isinstance(image, list | tuple)
    found = PictureVectors.of(loaded, normalise=normalise).embed(list(image) if several else [image], batch_size)
    return found if several else found[0]
