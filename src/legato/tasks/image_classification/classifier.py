"""A model that says what is on a picture, or in a clip: those in, what the head says of them, what a person reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from legato.data.batching.batch import Batch, Inputs
from legato.data.batching.examples import Example
from legato.data.batching.picture_batches import Pixels
from legato.data.formats.labels import Labels
from legato.data.formats.picture_rows import LabelledPictures
from legato.data.image.picture_files import Picture
from legato.evaluation.classification import classification_details
from legato.evaluation.metrics import DetailTable
from legato.folders.finite_scores import check_finite
from legato.folders.loaded import Loaded
from legato.tasks.classification.classifier import Classifier, answers_of, labels_of
from legato.tasks.picture_data import image_processor, readable
from legato.tasks.predictions import Prediction

ROWS = 256  # pictures that are read side by side


@dataclass
class PictureClassifier(Classifier):
    """A model with its head, the processor of its pictures, and what its outputs mean."""

    reader: Any  # the image processor
    labels: Labels
    pixels: Pixels | None = None  # of the pictures whose numbers the rows have
    frames: int | None = None  # of a clip; None: they are pictures

    @classmethod
    def of(cls, loaded: Loaded) -> PictureClassifier:
        return cls(loaded.module, image_processor(loaded), labels_of(loaded), frames=loaded.about.get("frames"))

    @torch.no_grad()
    def outputs(self, rows: Sequence[Example]) -> Tensor:
        assert self.pixels is not None, "rows have numbers of pictures, which are not there"
        made = []
        every = [row.picture for row in rows]
        whole = every == list(range(len(self.pixels)))
        parts = self.pixels.scored(ROWS) if whole else ((every, self.pixels.take(np.array(every))),)
        for _, pixels in parts:
            values = self.reader.scaled(pixels.to(self.model.device, non_blocking=True))
            made.append(self.model(Batch(Inputs(values=values))).logits.float().cpu())
        logits = torch.cat(made)
        check_finite(logits, self.model)
        return logits

    def on(self, pictures: Sequence[Picture]) -> PictureClassifier:
        """The same for these pictures; rows have their numbers."""
        pixels = Pixels(pictures, self.reader, self.model.device, frames=self.frames)
        return PictureClassifier(self.model, self.reader, self.labels, pixels=pixels, frames=self.frames)

    def score(self, data: Any, unseen: str = "wrong") -> tuple[dict[str, Any], list[DetailTable]]:
        assert isinstance(data, LabelledPictures)
        wanted = self.labels.encode(data, unseen=unseen)
        scores, found = self.on(data.pictures).scores(picture_rows(len(data)), wanted)
        places = [data.place(row) for row in range(len(data))]
        unit = "picture" if self.frames is None else "clip"
        return scores, classification_details(self.labels, found, wanted, data.texts, places, unit)

    def predict(self, texts: Sequence[Any], nbest: int = 1) -> list[Prediction]:
        """What is on each picture: a file's name, or a picture that is open already."""
        made, read = readable(list(texts), self.reader, self.frames)
        if read:
            found = self.on(list(read.values())).found(picture_rows(len(read)))
            for number, row in zip(read, found, strict=True):
                made[number].answers = answers_of(self.labels, row, nbest)
        return made


def picture_rows(count: int, wanted: Sequence[Any] | None = None) -> list[Example]:
    """So many pictures in their order, with what there is to learn of each."""
    labels = [None] * count if wanted is None else wanted
    return [Example([], label=label, picture=number) for number, label in enumerate(labels)]
