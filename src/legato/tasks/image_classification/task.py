"""Image classification: what is on a picture, or in a clip? One class, several labels at once, or a number.

The data is a folder with a folder of pictures for each class, a table with a column of pictures and one of labels, a
dataset on the hub, or scenes that are drawn (`toy:scenes`). Any model that reads pictures can learn it, from scratch
or from a trained one (`from=MODEL`), all of it or a part (`adapt=…`).

    legato train image-classification data.train=photos/ model=resnet out=runs/i
    legato predict runs/i photo.jpg

A clip is an animated GIF or WebP, or a folder of frames; in a table also a list of pictures. Of each so many frames
are read, evenly from the whole (`data.frames`), by a model that reads clips (`model=frames`).

    legato train image-classification data.train=toy:clips model=frames model.over=lstm out=runs/m
    legato predict runs/m clip.gif
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pydantic import Field

from legato.data.batching.batch import IGNORE, Batch
from legato.data.batching.picture_batches import PictureBatches
from legato.data.formats.picture_rows import (
    LabelledPictures,
    clip_directions,
    read_labelled_pictures,
    scene_classes,
)
from legato.data.image.scene_clips import CLIPS
from legato.data.image.scenes import SCENES
from legato.data.positions import IMAGE, INPUT, Reading, numbered
from legato.data.processors import Processors
from legato.data.sources.patterns import Source
from legato.errors import ConfigError, warn
from legato.evaluation.classification import METRICS
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.models.frames import FramesConfig
from legato.tasks.base import Say, as_trained
from legato.tasks.classification.classifier import losses
from legato.tasks.classification.labelled_job import LabelledData, LabelledJob
from legato.tasks.classification.task import ClassificationOptions
from legato.tasks.defaults import TUNED_CONVOLUTIONS, TUNED_PICTURES, Defaults, Given, row_training
from legato.tasks.image_classification.classifier import PictureClassifier, picture_rows
from legato.tasks.picture_data import (
    PictureData,
    PictureReader,
    PictureSource,
    PictureTask,
    encoder_model,
    encoder_processor,
    fitting_settings,
    measure_pictures,
    placed_picture,
    positions_of,
    scene_settings,
    scenes_about,
)
from legato.tasks.predictions import Prediction
from legato.training.job import Loss

FRAMES: Final = 8  # of a clip, where nobody says how many
SMALL_SET: Final = 2000  # pictures; fewer are read in smaller batches …
SMALL_SET_STEPS: Final = 300  # … and for so many steps at least


class ImageClassificationData(LabelledData, PictureData):
    """Where the pictures and labels are, and what the labels are."""

    train: Source | None = Field(
        None, description="a folder of class folders, a table with pictures, a hub name, toy:scenes or toy:clips"
    )
    frames: int | None = Field(
        None, ge=1, le=1024, description="of a clip that are read, evenly from the whole; left out: pictures are read"
    )


PICTURES: Final = PictureSource(read_labelled_pictures, {SCENES: scene_classes})
MOVING: Final = PictureSource(partial(read_labelled_pictures, clips=True), {CLIPS: clip_directions})


def source_of(frames: int | None) -> PictureSource[LabelledPictures]:
    """What reads pictures or, of so many frames, clips."""
    return PICTURES if frames is None else MOVING


def _check_source(source: Source, frames: int | None) -> None:
    if source == SCENES and frames is not None:
        raise ConfigError(f"{SCENES} are single pictures, and this model reads clips; those are {CLIPS}")
    if source == CLIPS and frames is None:
        raise ConfigError(f"{CLIPS} are clips, and this model reads single pictures; set model=frames")


class ImageClassificationJob(LabelledJob):
    """Training on pictures and their labels."""

    task = "image-classification"
    unit = "picture"
    use = "legato predict FOLDER photo.jpg"

    def check(self) -> None:
        data, model = self.plan.data, self.plan.model
        clips = isinstance(model, FramesConfig)
        if clips and data.frames is None:
            raise ConfigError("model=frames reads clips; say of how many frames: data.frames=8")
        if not clips and data.frames is not None:
            raise ConfigError(f"model={model.name} reads single pictures; data.frames is for model=frames")
        if clips and model.max_length is not None and data.frames > model.max_length:
            most = model.max_length
            raise ConfigError(f"data.frames={data.frames}, but the model reads at most {most}; raise model.length")
        if clips and data.augment.mixes:
            raise ConfigError("data.augment.mixup and cutmix are for single pictures; leave them out")
        self.unit = "clip" if clips else "picture"

    def read_split(self, source: Source, split: str, train: Any) -> LabelledPictures:
        data = self.plan.data
        _check_source(source, data.frames)
        return source_of(data.frames).read(data, source, split, self.plan.seed)

    def make_rows(self) -> None:
        if self.plan.data.augment.mixes and self.meaning.kind != "classes":
            raise ConfigError(
                "data.augment.mixup and cutmix mix two classes, "
                f"and these labels are {self.meaning.kind}; leave them out"
            )
        plan, processor, frames = self.plan, encoder_processor(self.plan), self.plan.data.frames
        self.processors = Processors(others={"image": processor})
        self.reader = PictureReader(plan, processor, frames=frames)
        self.say(f"decoding {sum(map(len, self.data.values())):,} {self.unit}s …")
        self.pixels = {split: self.reader.pixels(rows.pictures) for split, rows in self.data.items()}
        self.rows = {split: picture_rows(len(rows), self.wanted[split]) for split, rows in self.data.items()}
        self.batches = PictureBatches(
            self.rows["train"],
            self.pixels["train"],
            plan.batch_shape(self.data["train"].source, multiple=1),
            positions=positions_of(plan.model, processor) * (frames or 1),
            augmentation=self.reader.changes,
        )
        self.speed_unit = self.batches.speed_unit

    def tell(self, say: Say) -> None:
        *frames, height, width, _ = self.pixels["train"].shape
        size = f"{''.join(f'{count} frames of ' for count in frames)}{height} × {width} pixels"
        set_by = "" if frames or self.plan.loaded is not None else ", set by model.image"
        say(f"{self.counts}; {size}{set_by}")
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
        frames = self.plan.data.frames
        return PictureClassifier(model, self.reader.processor, self.meaning, pixels=self.pixels[split], frames=frames)

    def about(self, metrics: dict[str, float]) -> dict[str, Any]:
        frames = self.plan.data.frames
        told = {} if frames is None else {"frames": frames}
        return {**super().about(metrics), **told, **scenes_about(self.plan)}


class ImageClassification(PictureTask):
    """The `image-classification` task."""

    name = "image-classification"
    pipeline = "image-classification"
    summary = "what is on a picture, or in a clip: classes, several labels, or a number"
    default_model = "resnet"
    Job = ImageClassificationJob
    Data = ImageClassificationData
    generated = (SCENES, CLIPS)
    needs = "=FOLDER, with a folder of pictures for each class, or a table"
    tuples = ("image label",)
    metrics = METRICS
    Options = ClassificationOptions
    processors = ("image",)
    continues = True
    rows = True
    headed = True

    @classmethod
    def defaults(cls, given: Given) -> Defaults:
        tuning = TUNED_CONVOLUTIONS if given.convolutional else TUNED_PICTURES
        rates = partial(row_training, given, recurrent=1e-3, attention=1e-3, tuning=tuning, epochs=20)
        if issubclass(given.config, FramesConfig):
            few = {"scenes": {"count": 2000}} if given.toy else {}  # a clip is as much as eight pictures
            small = {"width": 128} if given.toy and not given.trained else {}
            fixed = encoder_model(given, "resnet")
            return Defaults(data={"frames": FRAMES, **few}, model=small, fixed=fixed, train=rates(rows=64))
        # Of one shape, the class of a scene is plain to see.
        data = {"scenes": {"most_shapes": 1}} if given.toy else {}
        model, count = scene_settings(given, given.config), measure_pictures(given, PICTURES, cls.Data)
        if count is None:
            return Defaults(data=data, model=model, train=rates(rows=64))
        small_set = count.pictures < SMALL_SET
        train = rates(rows=16, min_steps=SMALL_SET_STEPS) if small_set else rates(rows=64)
        return Defaults(model=fitting_settings(given, count.side), train=train)

    @classmethod
    def evaluate(cls, loaded: Loaded, data: Any) -> dict[str, Any]:
        cls.require(data, "test")
        classifier = PictureClassifier.of(loaded)
        frames = as_trained(data, "frames", loaded.about)
        if (frames is None) != (classifier.frames is None):
            reads = "single pictures" if classifier.frames is None else "clips"
            raise ConfigError(f"{loaded.folder} reads {reads}; leave out data.frames")
        _check_source(data.test, frames)
        classifier.frames = frames
        test = source_of(frames).test(data, loaded)
        scores, details = classifier.score(test, as_trained(data, "unseen_labels", loaded.about))
        if note := classifier.labels.unseen_note(test, "data.test"):
            warn(note)
        told = {"data": test.source, "sha256": test.sha256, f"{'picture' if frames is None else 'clip'}s": len(test)}
        return {**told, **scores, "details": details}

    @classmethod
    def predict(cls, loaded: Loaded, inputs: Sequence[Any], options: Any) -> list[Prediction]:
        return PictureClassifier.of(loaded).predict(inputs, options.nbest)

    @classmethod
    def reading(cls, loaded: Loaded, given: Any, written: str | None = None) -> Reading:
        frames = loaded.about.get("frames")
        inputs, places = placed_picture(loaded, given, frames)
        if frames is None:
            return Reading(Batch(inputs), {INPUT: places})
        return Reading(Batch(inputs), {IMAGE: places, INPUT: numbered("frame", frames)})
