"""Detection: what is on a picture, and where: boxes with a class each.

An image encoder and a Transformer whose queries each say a class and a box, or nothing (`models/detr.py`). The data
is a table of pictures and their objects (`data/formats/boxes.py`), or scenes that are drawn (`toy:scenes`).

    legato train detection data.train=train.jsonl model.encoder=resnet out=runs/b
    legato predict runs/b photo.jpg --draw drawn/
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Final, Literal

import torch
from pydantic import Field

from legato.config import Section
from legato.data.batching.batch import IGNORE, Batch
from legato.data.batching.batches import mix_seed
from legato.data.batching.picture_batches import PictureBatches, Pixels
from legato.data.formats.boxes import Boxes, BoxForm, boxed_scenes, read_boxes
from legato.data.image.image_processor import ImageProcessor
from legato.data.image.picture_files import as_picture
from legato.data.image.scenes import SCENES
from legato.data.positions import INPUT, Reading
from legato.data.processors import Processors
from legato.data.sources.patterns import Source
from legato.data.splits import completed, hold_out_named
from legato.errors import ConfigError, DataError, brief, listed
from legato.evaluation.detection import METRICS, Box
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel, Sizes
from legato.registry import MODELS
from legato.tasks.base import Plan, Say, TaskJob, as_trained
from legato.tasks.defaults import Defaults, Given, TrainDefaults
from legato.tasks.detection.detector import Detector, box_rows, details, in_view, losses
from legato.tasks.picture_data import (
    PictureReader,
    PictureSource,
    PictureTableData,
    PictureTask,
    encoder_model,
    encoder_processor,
    placed_picture,
    positions_of,
    readable,
    scenes_about,
)
from legato.tasks.predictions import Answer, Prediction
from legato.training.job import Loss

THRESHOLD: Final = 0.5  # how sure a box is that is shown


class DetectionData(PictureTableData):
    """Where the pictures and boxes are."""

    train: Source | None = Field(None, description="a table with pictures and objects, a hub name or toy:scenes")
    box: BoxForm = Field("corners", description="numbers of a box: corners, x0 y0 x1 y1; or xywh, as in COCO")
    metric: Literal["map", "map_50", "loss"] = Field("map", description="what decides which model is best")
    scored: int = Field(1000, ge=1, description="pictures that each validation scores")


class DetectionOptions(Section):
    """How to predict."""

    nbest: int = Field(100, ge=1, description="boxes of a picture, at most")
    threshold: float = Field(THRESHOLD, ge=0, le=1, description="how sure a box has to be")


def boxes(form: BoxForm) -> PictureSource[Boxes]:
    """What reads pictures and their boxes, whose numbers are of this form."""
    return PictureSource(partial(read_boxes, form=form), {SCENES: boxed_scenes})


class DetectionJob(TaskJob):
    """Training on pictures and their boxes."""

    task = "detection"
    use = "legato predict FOLDER photo.jpg --draw drawn/"
    likelihood = False  # the loss is none of tokens
    labels: list[str]

    def __init__(self, plan: Plan, say: Say) -> None:
        super().__init__(plan, say)
        data = plan.data
        self._check()
        self.metric = data.metric
        found = data.read(lambda source, split, train: self._read(source, split))
        self.parts = completed(found, lambda train: hold_out_named(train, data.valid_share, "picture"))
        self.hashes = {split: rows.sha256 for split, rows in self.parts.items()}
        for split, rows in self.parts.items():
            if not rows.count:
                raise DataError(f"data.{split}={rows.source} has no box in any picture; give some that do")
        self.labels = self._class_names()
        processor = self._processor()
        self.processors = Processors(others={"image": processor})
        self.reader = PictureReader(plan, processor, mirrored=False)
        say(f"decoding {sum(map(len, self.parts.values())):,} pictures …")
        self.pixels = {split: self.reader.pixels(rows.pictures) for split, rows in self.parts.items()}
        valid = self.parts["valid"]
        count = min(data.scored, len(valid))
        scored = [row * len(valid) // count for row in range(count)]
        self.valid, self.valid_pixels = valid.select(scored), self.pixels["valid"]
        if count < len(valid):
            self.valid_pixels = self.valid_pixels.select(scored)
        train = self.parts["train"]
        self.batches = PictureBatches(
            box_rows(train, self.labels, processor),
            self.pixels["train"],
            plan.batch_shape(train.source),
            positions=positions_of(plan.model, processor),
            augmentation=self.reader.changes,
        )
        self.speed_unit = self.batches.speed_unit
        self._tell(processor)

    def _check(self) -> None:
        model, augment = self.plan.model, self.plan.data.augment
        if not MODELS.get(model.name).detects:
            raise ConfigError(f"model={model.name} detects no boxes; use model=detr")
        if augment.mixes or augment.operations:
            raise ConfigError(
                "boxes follow data.augment.flip, shift and crop; leave out operations, which turn pictures, "
                "and mixup and cutmix, which mix them"
            )

    def _read(self, source: Source, split: str) -> Boxes:
        rows = boxes(self.plan.data.box).read(self.plan.data, source, split, self.plan.seed)
        if rows.note:
            self.say(f"data.{split}: {rows.note}")
        return rows

    def _class_names(self) -> list[str]:
        """The classes of the training boxes, or of the model that it goes on from."""
        there = sorted({label for labels in self.parts["train"].labels for label in labels})
        if self.plan.loaded is None:
            return there
        known = [str(label) for label in self.plan.loaded.about.get("labels") or []]
        stranger = next((label for label in there if label not in known), None)
        if stranger is not None:
            raise ConfigError(
                f"data.train has boxes of '{brief(stranger)}', which {self.plan.loaded.folder} does not know; "
                f"it knows {listed(known)}; leave out from=, or those boxes"
            )
        return known

    def _processor(self) -> ImageProcessor:
        plan, processor = self.plan, encoder_processor(self.plan)
        if plan.loaded is not None or plan.model.model_dump(include={"size"})["size"] is None:
            return processor
        return replace(processor, size=plan.model.model_dump(include={"size"})["size"], crop=None)

    def _tell(self, processor: ImageProcessor) -> None:
        counts = ", ".join(f"{len(rows):,} {split} ({rows.count:,} boxes)" for split, rows in self.parts.items())
        height, width = processor.shape or (0, 0)
        classes = f"{len(self.labels)} classes: {listed(self.labels)}"
        self.say(f"data: {counts} pictures of {height} × {width} pixels; {classes}")
        train = self.parts["train"]
        most = max(map(len, train.boxes))
        queries = self.plan.model.model_dump(include={"queries"})["queries"]
        if most > queries:
            self.say(f"note: a picture has {most} boxes, and the model says {queries}; raise model.queries")
        shown = [f"{label} {_shown(box)}" for label, box in zip(train.labels[0], train.boxes[0], strict=True)]
        self.say(f"the model will see: {train.names[0]} → {'; '.join(shown[:4])}{'; …' * (len(shown) > 4)}")

    @cached_property
    def sizes(self) -> Sizes:
        return Sizes(len(self.labels))

    def detector(self, model: SequenceModel) -> Detector:
        return Detector(model, self.reader.processor, self.labels)

    def recordable(self, batch: Batch) -> bool:
        return False  # boxes are given to queries on the CPU

    def loss(self, model: SequenceModel, batch: Batch, state: Any) -> Loss:
        assert batch.targets is not None
        assert batch.boxes is not None
        assert batch.labels is not None
        labels, truth, draws = batch.targets, batch.boxes, batch.inputs.draws
        with torch.autocast(truth.device.type, enabled=False):  # boxes and pictures are moved alike, to the pixel
            if draws is not None:
                height, width = batch.inputs.content.shape[1:3]
                truth, labels = in_view(self.reader.augmentation.boxes(truth, draws, height, width), labels)
            inputs, _ = self.reader.read(batch.inputs)
        output = model(replace(batch, inputs=inputs))
        stages = losses(output, labels, truth, batch.labels != IGNORE)  # labels are how many boxes there are
        total = stages[0]
        for stage in stages[1:]:
            total = total + stage
        return Loss(total, stages[-1])

    def validate(self, model: SequenceModel) -> dict[str, float]:
        scores, _, _ = self.detector(model).score(self.valid, self.valid_pixels)
        return {key: value for key, value in scores.items() if isinstance(value, int | float)}

    def score(self, model: SequenceModel, split: str) -> dict[str, Any]:
        return self.detector(model).score(self.parts[split], self.pixels[split])[0]

    def samples(self, model: SequenceModel, count: int) -> list[str]:
        """Validation pictures, the boxes that the model is sure of, and the true ones."""
        names = self.valid.names
        chosen = sorted(range(len(names)), key=lambda row: mix_seed("sample", names[row]))[:count]
        if not chosen:
            return []
        rows = self.valid.select(chosen)
        found = self.detector(model).detect(self.valid_pixels.select(chosen), rows.sizes, once=True)
        told = []
        for name, boxes, labels, corners in zip(rows.names, found, rows.labels, rows.boxes, strict=True):
            said = [f"{box.label} {_shown(box[:4])}" for box in boxes if box.score >= THRESHOLD]
            true = [f"{label} {_shown(box)}" for label, box in zip(labels, corners, strict=True)]
            told.append(f"{name}\n→ {'; '.join(said) or 'nothing'}\n= {'; '.join(true) or 'nothing'}")
        return told

    def about(self, metrics: dict[str, float]) -> dict[str, Any]:
        told = {"labels": self.labels, "columns": self.parts["train"].columns, "box": self.plan.data.box}
        return {**told, **scenes_about(self.plan)}


class Detection(PictureTask):
    """The `detection` task."""

    name = "detection"
    pipeline = "object-detection"
    summary = "what is on a picture and where: boxes with classes"
    default_model = "detr"
    Job = DetectionJob
    Data = DetectionData
    generated = (SCENES,)
    needs = "=FILE, a table with pictures and objects"
    metrics = METRICS
    Options = DetectionOptions
    lists_answers = True
    any_number = True
    processors = ("image",)
    continues = True
    rows = True

    @classmethod
    def defaults(cls, given: Given) -> Defaults:
        train = TrainDefaults(samples=2)
        if "batch_tokens" not in given.train:
            train["batch_rows"] = 32
        if given.train.get("steps") is None:
            train["epochs"] = 50
        if given.adamw:
            train |= TrainDefaults(lr=5e-4, beta2=0.999, weight_decay=1e-4, schedule="cosine")
        fixed = encoder_model(given, "resnet") if "encoder" in given.config.model_fields else {}
        return Defaults(fixed=fixed, train=train)

    @classmethod
    def evaluate(cls, loaded: Loaded, data: Any) -> dict[str, Any]:
        cls.require(data, "test")
        detector = Detector.of(loaded)
        test = boxes(as_trained(data, "box", loaded.about)).test(data, loaded)
        pixels = Pixels(test.pictures, detector.processor, loaded.module.device, workers=data.workers)
        scores, predicted, truth = detector.score(test, pixels)
        told = {"data": test.source, "sha256": test.sha256, "pictures": len(test), "boxes": test.count}
        return {**told, **scores, "details": details(test, predicted, truth, THRESHOLD)}

    @classmethod
    def predict(cls, loaded: Loaded, inputs: Sequence[Any], options: Any) -> list[Prediction]:
        detector = Detector.of(loaded)
        made, read = readable(list(inputs), detector.processor)
        if read:
            pixels = Pixels(list(read.values()), detector.processor, loaded.module.device)
            sizes = [as_picture(inputs[number]).extent() for number in read]
            for number, boxes in zip(read, detector.detect(pixels, sizes, once=True), strict=True):
                sure = [box for box in boxes if box.score >= options.threshold]
                made[number].answers = [_answer(box) for box in sure[: options.nbest]]
        return made

    @classmethod
    def reading(cls, loaded: Loaded, given: Any, written: str | None = None) -> Reading:
        inputs, places = placed_picture(loaded, given)
        return Reading(Batch(inputs), {INPUT: places})

    @classmethod
    def columns(cls, answer: Answer, scores: bool, alignments: bool) -> list[str]:
        """The class, how sure it is, and the box."""
        return [answer.text, f"{answer.score:.4f}", " ".join(f"{side:.1f}" for side in answer.more["box"])]


def _answer(box: Box) -> Answer:
    return Answer(box.label, box.score, {"box": [round(side, 2) for side in box[:4]]})


def _shown(box: Sequence[float]) -> str:
    return " ".join(f"{side:.0f}" for side in box)
