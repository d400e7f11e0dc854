"""A model that detects boxes: pictures in, what its queries see, and the boxes that people read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from legato.data.batching.batch import IGNORE, Batch, Inputs
from legato.data.batching.examples import Example, collate_examples
from legato.data.batching.picture_batches import Pixels
from legato.data.formats.boxes import Boxes
from legato.data.image.image_processor import ImageProcessor
from legato.errors import FolderError
from legato.evaluation.detection import MOST, Box, average_precisions, detection_details, detection_scores
from legato.evaluation.metrics import DetailTable
from legato.folders.finite_scores import check_finite
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.nn.boxes import area
from legato.nn.losses.set_prediction import match, matching_costs, set_loss
from legato.nn.state import Output
from legato.tasks.picture_data import image_processor

ROWS: Final = {"cuda": 128}  # pictures that are read side by side
FEW_ROWS: Final = 16
WORST: Final = 10  # pictures that are shown
VISIBLE: Final = 0.3  # share of a box that a view has to show, so that it is learned there


def in_view(boxes: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Boxes (…, N, 4) as far as they lie in the picture, 0 to 1; no label (…, N) where too little of one does."""
    inside = boxes.clamp(0, 1)
    seen = area(inside) > VISIBLE * area(boxes)
    return inside, labels.where(seen, IGNORE)


def box_rows(data: Boxes, names: Sequence[str], processor: ImageProcessor) -> list[Example]:
    """The boxes of each picture as a model learns them, in shares of what it reads; without labels that it lacks.

    >>> from legato.data.formats.boxes import boxed_scenes
    >>> from legato.data.image.scenes import ScenesConfig
    >>> data = boxed_scenes(ScenesConfig(count=1), "train", 0)
    >>> len(box_rows(data, data.labels[0], ImageProcessor((32, 32)))[0].targets) == len(data.boxes[0])
    True
    """
    number = {name: place for place, name in enumerate(names)}
    made = []
    for picture, (size, labels, corners) in enumerate(zip(data.sizes, data.labels, data.boxes, strict=True)):
        x0, y0, x1, y1 = processor.frame(*size)
        boxes = torch.tensor(corners, dtype=torch.float64).view(-1, 4)
        boxes = (boxes - torch.tensor([x0, y0, x0, y0])) / torch.tensor([x1 - x0, y1 - y0] * 2)
        known = torch.tensor([number.get(label, IGNORE) for label in labels], dtype=torch.long)
        boxes, known = in_view(boxes, known)
        kept = known != IGNORE
        shares = boxes[kept].numpy().astype(np.float32)
        made.append(Example([], label=len(shares), targets=known[kept].tolist(), boxes=shares, picture=picture))
    return made


def losses(output: Output, labels: Tensor, truth: Tensor, counted: Tensor | None = None) -> list[Tensor]:
    """The summed loss of each stage, what is said last being last; `labels` (B, N) and `truth` (B, N, 4).

    `counted` (B,) is False for a row that only fills the batch up.
    """
    said = [(stage.logits, stage.boxes) for stage in (*output.stages, output)]
    stages = [(logits, boxes) for logits, boxes in said if logits is not None and boxes is not None]
    costs = [matching_costs(logits, boxes, labels, truth) for logits, boxes in stages]
    return [
        set_loss(logits, boxes, labels, truth, matched, counted)
        for (logits, boxes), matched in zip(stages, match(costs, labels), strict=True)
    ]


@dataclass
class Detector:
    """A model that detects boxes, the processor of its pictures, and the names of its classes."""

    model: SequenceModel
    processor: ImageProcessor
    labels: list[str]

    @classmethod
    def of(cls, loaded: Loaded) -> Detector:
        labels = [str(label) for label in loaded.about.get("labels") or []]
        if not loaded.module.detects or len(labels) != loaded.module.vocabulary:
            raise FolderError(f"{loaded.folder} holds no detector: its model has no queries that name classes")
        return cls(loaded.module, image_processor(loaded), labels)

    @torch.no_grad()
    def outputs(self, pixels: Pixels) -> Iterator[tuple[Sequence[int], Output]]:
        """What the model says of every picture, in their order, some at a time: their numbers, and that."""
        for numbers, part in pixels.scored(ROWS.get(self.model.device.type, FEW_ROWS)):
            values = self.processor.scaled(part.to(self.model.device, non_blocking=True))
            output = self.model(Batch(Inputs(values=values)))
            check_finite(output.logits, self.model)
            yield numbers, output

    def detect(self, pixels: Pixels, sizes: Sequence[tuple[int, int]], *, once: bool = False) -> list[list[Box]]:
        """The boxes of every picture, surest first, in pixels of the picture; `once`: each query's likeliest class.

        Otherwise a query may have any classes, as scores are counted.
        """
        return [
            boxes for numbers, output in self.outputs(pixels) for boxes in self._boxes(numbers, output, sizes, once)
        ]

    def score(self, data: Boxes, pixels: Pixels) -> tuple[dict[str, Any], list[list[Box]], list[list[Box]]]:
        """Loss and scores, the boxes that are predicted and the true ones."""
        rows = box_rows(data, self.labels, self.processor)
        total, predicted = 0.0, []
        for numbers, output in self.outputs(pixels):
            batch = collate_examples([rows[number] for number in numbers]).to(self.model.device)
            assert batch.targets is not None
            assert batch.boxes is not None
            total += float(losses(output, batch.targets, batch.boxes)[-1])
            predicted += self._boxes(numbers, output, data.sizes, once=False)
        truth = true_boxes(data)
        scores = detection_scores(average_precisions(predicted, truth))
        count = sum(len(row.targets or ()) for row in rows)
        return {"loss": total / max(count, 1), **scores}, predicted, truth

    def _boxes(
        self, numbers: Sequence[int], output: Output, sizes: Sequence[tuple[int, int]], once: bool
    ) -> list[list[Box]]:
        assert output.logits is not None
        assert output.boxes is not None
        scores = output.logits.float().sigmoid()  # (B, N, C)
        if once:
            scores = scores.where(scores == scores.amax(-1, keepdim=True), 0.0)
        best = scores.flatten(1).topk(min(scores.shape[1] if once else MOST, scores[0].numel()), dim=1)
        shares = output.boxes.float().gather(1, (best.indices // scores.shape[2]).unsqueeze(-1).expand(-1, -1, 4))
        sure, classes, shares = best.values.cpu(), (best.indices % scores.shape[2]).cpu(), shares.cpu()
        made = []
        for row, number in enumerate(numbers):
            width, height = sizes[number]
            x0, y0, x1, y1 = self.processor.frame(width, height)
            pixels = shares[row] * torch.tensor([x1 - x0, y1 - y0] * 2) + torch.tensor([x0, y0, x0, y0])
            pixels = torch.minimum(pixels.clamp(min=0), torch.tensor([width, height] * 2))
            found = zip(pixels.tolist(), classes[row].tolist(), sure[row].tolist(), strict=True)
            made.append([Box(x0, y0, x1, y1, self.labels[label], score) for (x0, y0, x1, y1), label, score in found])
        return made


def true_boxes(data: Boxes) -> list[list[Box]]:
    """The boxes of each picture, for scores."""
    rows = zip(data.labels, data.boxes, strict=True)
    return [[Box(*box, label) for label, box in zip(labels, boxes, strict=True)] for labels, boxes in rows]


def details(
    data: Boxes, predicted: Sequence[Sequence[Box]], truth: Sequence[Sequence[Box]], sure: float
) -> list[DetailTable]:
    """AP of each class, worst first; the pictures with the most boxes missed or made up, of those that are sure."""
    said = [[box for box in boxes if box.score >= sure] for boxes in predicted]
    rows: list[list[Any]] = []
    for row, (mine, true) in enumerate(zip(said, truth, strict=True)):
        missed, extra = _differences([box.label for box in mine], [box.label for box in true])
        if missed or extra:
            rows.append([data.names[row], data.place(row), len(true), len(missed), len(extra)])
    worst = sorted(rows, key=lambda row: -(row[3] + row[4]))[:WORST]
    columns = ["picture", "where", "true boxes", "missed", "made up"]
    return [
        *detection_details(average_precisions(predicted, truth), said, truth),
        ("pictures whose boxes are not as many of each class, worst first", columns, worst),
    ]


def _differences(mine: list[str], true: list[str]) -> tuple[list[str], list[str]]:
    """Labels that are missing among mine, and those that are too many."""
    left = list(mine)
    missed = []
    for label in true:
        if label in left:
            left.remove(label)
        else:
            missed.append(label)
    return missed, left
