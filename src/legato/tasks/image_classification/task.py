"""Image classification: what is on a picture? One class, several labels at once, or a number.

The data is a folder with a folder of pictures for each class, a table with a column of pictures and one of labels, a
dataset on the hub, or scenes that are drawn (`toy:scenes`). Any model that reads pictures can learn it, from scratch
or from a trained one (`from=MODEL`), all of it or a part (`adapt=…`).

    legato train image-classification data.train=photos/ model=resnet out=runs/i
    legato predict runs/i photo.jpg
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field

from legato.data.batching.batch import IGNORE, Batch
from legato.data.batching.picture_batches import PictureBatches
from legato.data.formats.picture_rows import LabelledPictures, read_labelled_pictures, scene_classes
from legato.data.image.scenes import SCENES, ScenesConfig
from legato.data.processors import Processors
from legato.errors import ConfigError
from legato.evaluation.classification import METRICS
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.tasks.base import Prediction, Say, as_trained
from legato.tasks.classification.classifier import losses
from legato.tasks.classification.labelled_job import LabelledData, LabelledJob
from legato.tasks.classification.task import ClassificationOptions
from legato.tasks.defaults import Defaults, Given, row_training
from legato.tasks.image_classification.classifier import PictureClassifier, picture_rows
from legato.tasks.picture_data import (
    PictureData,
    PictureReader,
    PictureTask,
    encoder_processor,
    positions_of,
    scene_settings,
    scenes_about,
)
from legato.training.job import Loss


class ImageClassificationData(LabelledData, PictureData):
    """Where the pictures and labels are, and what the labels are."""

    train: str | None = Field(
        None, description="a folder of class folders, a table with pictures, a hub name or toy:scenes"
    )


def read_split(data: Any, source: str, split: str, seed: int, scenes: ScenesConfig | None = None) -> LabelledPictures:
    """The pictures that `source` names."""
    if source == SCENES:
        return scene_classes(scenes or data.scenes, split, seed)
    return read_labelled_pictures(source, data.files(split), images=data.images, columns=data.columns)


class ImageClassificationJob(LabelledJob):
    """Training on pictures and their labels."""

    task = "image-classification"
    unit = "picture"
    use = "legato predict FOLDER photo.jpg"

    def read_split(self, source: str, split: str, train: Any) -> LabelledPictures:
        return read_split(self.plan.data, source, split, self.plan.seed)

    def make_rows(self) -> None:
        if self.plan.data.augment.mixes and self.meaning.kind != "classes":
            raise ConfigError(
                "data.augment.mixup and cutmix mix two classes, "
                f"and these labels are {self.meaning.kind}; leave them out"
            )
        plan, processor = self.plan, encoder_processor(self.plan)
        self.processors = Processors(others={"image": processor})
        self.reader = PictureReader(plan, processor)
        self.say(f"decoding {sum(map(len, self.data.values())):,} pictures …")
        self.pixels = {split: self.reader.pixels(rows.pictures) for split, rows in self.data.items()}
        self.rows = {split: picture_rows(len(rows), self.wanted[split]) for split, rows in self.data.items()}
        self.batches = PictureBatches(
            self.rows["train"],
            self.pixels["train"],
            plan.batch_shape(self.data["train"].source, multiple=1),
            positions=positions_of(plan.model, processor),
            augmentation=self.reader.changes,
        )

    def tell(self, say: Say) -> None:
        height, width = self.pixels["train"].shape[:2]
        say(f"{self.counts}; {height} × {width} pixels")
        first = self.data["train"]
        say(f"the model will see: {first.texts[0]} → {self.meaning.shown(self.wanted['train'][0])}")

    def loss(self, model: SequenceModel, batch: Batch, state: Any) -> Loss:
        inputs, own = self.reader.read(batch.inputs)
        output = model(replace(batch, inputs=inputs))
        if own is None:
            return self.loss_of(output, batch)
        assert output.logits is not None
        assert batch.labels is not None
        logits, labels, smoothing = output.logits.float(), batch.labels, self.plan.train.label_smoothing
        others = labels.roll(1).where(labels != IGNORE, labels)  # a share of each picture is the one's before it
        total = own * self.cross_entropy(logits, labels, smoothing)
        total += (1 - own) * self.cross_entropy(logits, others, smoothing)
        reported = own * losses("classes", logits, labels) + (1 - own) * losses("classes", logits, others)
        return Loss(total.sum(), reported.sum())

    def classifier(self, model: SequenceModel, split: str) -> PictureClassifier:
        return PictureClassifier(model, self.reader.processor, self.meaning, pixels=self.pixels[split])

    def about(self, metrics: dict[str, float]) -> dict[str, Any]:
        return {**super().about(metrics), **scenes_about(self.plan)}


class ImageClassification(PictureTask):
    """The `image-classification` task."""

    name = "image-classification"
    summary = "what is on a picture: classes, several labels, or a number"
    default_model = "resnet"
    Job = ImageClassificationJob
    Data = ImageClassificationData
    needs = "=FOLDER, with a folder of pictures for each class, or a table"
    metrics = METRICS
    Options = ClassificationOptions
    processors = ("image",)
    continues = True
    rows = True
    headed = True

    @classmethod
    def defaults(cls, given: Given) -> Defaults:
        train = row_training(given, recurrent=1e-3, attention=1e-3, full=1e-4, rows=64, epochs=20)
        # Of one shape, the class of a scene is plain to see.
        data = {"scenes": {"most_shapes": 1}} if given.toy else {}
        return Defaults(data=data, model=scene_settings(given, given.config), train=train)

    @classmethod
    def evaluate(cls, loaded: Loaded, data: Any) -> dict[str, Any]:
        cls.require(data, "test")
        classifier = PictureClassifier.of(loaded)
        scenes, seed = data.scenes.as_trained(loaded.about.get("toy", {}))
        test = read_split(data, data.test, "test", seed, scenes)
        scores, details = classifier.score(test, as_trained(data, "unseen_labels", loaded.about))
        if note := classifier.labels.unseen_note(test, "data.test"):
            warnings.warn(note, stacklevel=2)
        return {"data": test.source, "sha256": test.sha256, "pictures": len(test), **scores, "details": details}

    @classmethod
    def predict(cls, loaded: Loaded, inputs: Sequence[Any], options: Any) -> list[Prediction]:
        return PictureClassifier.of(loaded).predict(inputs, options.nbest)
