"""How well boxes are detected: COCO's mean average precision, by pycocotools.

    map       the mean of AP over classes, and over IoU of at least .50, .55, …, .95
    map_50    that of IoU ≥ .50, which PASCAL VOC asked for
    map_75    that of IoU ≥ .75, strict of place

A class's boxes, surest first, each take the free true box of their picture that they overlap most, if that is enough;
AP is the mean, at 101 recalls from 0 to 1, of the best precision at that recall or beyond (Lin et al. 2014). All are
shares, from 0 to 1. The surest hundred boxes of a class in a picture count. A class without true boxes has no AP, and
what is taken for it costs nothing, as in COCO's tables.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib.metadata import version
from typing import Any, Final, NamedTuple

import numpy as np

from legato.errors import LegatoError
from legato.evaluation.metrics import DetailTable, metrics
from legato.registry import require_extra

Array = np.ndarray[Any, np.dtype[Any]]

METRICS: Final = (
    *metrics("loss", better="down", headline=True),
    *metrics("map", "map_50", "map_75", unit="fraction", better="up", headline=True),
    *metrics("ap", "ap_50", unit="fraction", better="up", eval_only=True),
)
MOST: Final = 100  # boxes of a class in a picture that count
STRICT: Final = 5  # the place of .75 among the ten IoUs; that of .50 is 0


class Box(NamedTuple):
    """A box by its corners, x to the right and y downwards, with what is in it and how sure that is."""

    x0: float
    y0: float
    x1: float
    y1: float
    label: str
    score: float = 1.0  # of a true box, nothing depends on it


def average_precisions(predicted: Sequence[Sequence[Box]], truth: Sequence[Sequence[Box]]) -> dict[str, Array]:
    """AP of each class that has true boxes, at each of the ten IoUs (10,); both are lists of boxes per picture."""
    if len(predicted) != len(truth):
        raise LegatoError(
            f"there are boxes for {len(predicted)} pictures and true boxes of {len(truth)}; give both of each"
        )
    labels = sorted({box.label for boxes in truth for box in boxes})
    if not labels:
        raise LegatoError("there are no true boxes to score against; give at least one picture that has some")
    coco, scorer = require_extra("vision", "pycocotools.coco"), require_extra("vision", "pycocotools.cocoeval")
    with redirect_stdout(io.StringIO()):  # it tells its progress, whoever asks
        both = (_dataset(coco.COCO(), boxes, labels) for boxes in (truth, predicted))
        evaluation = scorer.COCOeval(*both, "bbox")
        params = evaluation.params
        params.maxDets, params.areaRng, params.areaRngLbl = [MOST], params.areaRng[:1], params.areaRngLbl[:1]
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval["precision"][..., 0, 0]  # (IoU, recall, class)
    return {label: precision[:, :, place].mean(axis=1) for place, label in enumerate(labels)}


def detection_scores(precisions: Mapping[str, Array]) -> dict[str, float | str]:
    """`map`, `map_50` and `map_75` of what `average_precisions` gives, with a signature.

    >>> scores = detection_scores({"cat": np.linspace(1, 0, 10), "dog": np.zeros(10)})
    >>> scores["map"], scores["map_50"]
    (0.25, 0.5)
    """
    mean = np.mean([*precisions.values()], axis=0)  # (10,)
    return {
        "map": float(mean.mean()),
        "map_50": float(mean[0]),
        "map_75": float(mean[STRICT]),
        "map_signature": f"coco|iou:.50:.05:.95|area:all|most:{MOST}|classes:{len(precisions)}|"
        f"pycocotools:{version('pycocotools')}",
    }


def detection_details(
    precisions: Mapping[str, Array], predicted: Sequence[Sequence[Box]], truth: Sequence[Sequence[Box]]
) -> list[DetailTable]:
    """AP of each class, worst first, and how many boxes there are and were predicted."""
    there = Counter(box.label for boxes in truth for box in boxes)
    guesses = Counter(box.label for boxes in predicted for box in boxes)
    rows: list[list[Any]] = [
        [label, float(each[0]), float(each.mean()), there[label], guesses[label]]
        for label, each in precisions.items()
    ]
    return [
        (
            "scores per class, worst first",
            ["class", "ap_50", "ap", "true boxes", "predicted"],
            sorted(rows, key=lambda row: (row[1], row[2], row[0])),
        )
    ]


def _dataset(coco: Any, pictures: Sequence[Sequence[Box]], labels: Sequence[str]) -> Any:
    """Boxes of known labels as COCO's tables; its boxes are (x, y, width, height), and its ids begin at 1."""
    place = {label: number for number, label in enumerate(labels, start=1)}
    annotations: list[dict[str, Any]] = []
    for picture, boxes in enumerate(pictures, start=1):
        for box in boxes:
            if box.label in place:
                width, height = box.x1 - box.x0, box.y1 - box.y0
                annotations.append(
                    {
                        "id": len(annotations) + 1,  # 0 stands for no box in the scorer's table of matches
                        "image_id": picture,
                        "category_id": place[box.label],
                        "bbox": [box.x0, box.y0, width, height],
                        "area": width * height,
                        "iscrowd": 0,
                        "score": box.score,
                    }
                )
    coco.dataset = {
        "images": [{"id": picture} for picture in range(1, len(pictures) + 1)],
        "categories": [{"id": number, "name": label} for label, number in place.items()],
        "annotations": annotations,
    }
    coco.createIndex()
    return coco
