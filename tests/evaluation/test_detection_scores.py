"""COCO's mean average precision, against figures worked by hand and against pycocotools' own summary."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from legato.errors import LegatoError
from legato.evaluation.detection import Box, average_precisions, detection_details, detection_scores

CAT, FAR = Box(0, 0, 10, 10, "cat"), Box(50, 50, 60, 60, "cat")
DOG = Box(20, 20, 30, 40, "dog")


def scores_of(predicted: list[list[Box]], truth: list[list[Box]]) -> dict[str, float | str]:
    return detection_scores(average_precisions(predicted, truth))


def test_true_boxes_have_all():
    found = scores_of([[CAT, DOG], []], [[CAT, DOG], []])
    assert (found["map"], found["map_50"], found["map_75"]) == pytest.approx((1, 1, 1))


def test_a_box_counts_up_to_its_overlap():
    # 10 x 8 of 10 x 10: IoU .8, enough for .50 to .80, which are seven of the ten.
    found = scores_of([[Box(0, 0, 10, 8, "cat", 0.9)]], [[CAT]])
    assert (found["map"], found["map_50"], found["map_75"]) == pytest.approx((0.7, 1, 1))
    # 10 x 6: IoU .6, three of the ten.
    found = scores_of([[Box(0, 0, 10, 6, "cat", 0.9)]], [[CAT]])
    assert (found["map"], found["map_50"], found["map_75"]) == pytest.approx((0.3, 1, 0))


def test_precision_at_each_recall_worked_by_hand():
    # Surest first: right, wrong, right. Precision is 1 up to a recall of 1/2 (51 of 101 recalls), then 2/3.
    wrong = Box(80, 0, 90, 10, "cat", 0.8)
    found = scores_of([[CAT._replace(score=0.9), wrong, FAR._replace(score=0.7)]], [[CAT, FAR]])
    assert found["map"] == pytest.approx((51 + 50 * 2 / 3) / 101)
    # Wrong first: 1/2 up to the first half, then 2/3, which is the best at that recall or beyond everywhere.
    found = scores_of([[CAT._replace(score=0.9), wrong._replace(score=1), FAR._replace(score=0.7)]], [[CAT, FAR]])
    assert found["map"] == pytest.approx(2 / 3)


def test_a_true_box_is_taken_once():
    twice = [CAT._replace(score=0.9), CAT._replace(score=0.8), FAR._replace(score=0.7)]
    assert scores_of([twice], [[CAT, FAR]])["map"] == pytest.approx((51 + 50 * 2 / 3) / 101)


def test_a_box_of_another_class_or_picture_is_wrong():
    assert scores_of([[CAT._replace(label="dog")]], [[CAT]])["map_50"] == 0
    assert scores_of([[], [CAT]], [[CAT], []])["map_50"] == 0


def test_each_class_weighs_the_same():
    precisions = average_precisions([[CAT, FAR]], [[CAT, FAR, DOG]])
    assert {label: each[0] for label, each in precisions.items()} == pytest.approx({"cat": 1, "dog": 0})
    assert detection_scores(precisions)["map_50"] == pytest.approx(0.5)


def test_a_class_without_true_boxes_counts_for_nothing():
    found = scores_of([[CAT, DOG._replace(label="horse")]], [[CAT]])
    assert found["map"] == pytest.approx(1)
    assert "classes:1|" in str(found["map_signature"])


def test_nothing_predicted_is_nothing_right():
    assert scores_of([[], []], [[CAT], []])["map"] == 0


def test_boxes_in_a_picture_without_any_are_wrong():
    # The surest box is in the empty picture: precision 1/2 at every recall.
    assert scores_of([[CAT._replace(score=0.5)], [CAT]], [[CAT], []])["map"] == pytest.approx(0.5)


def test_only_the_surest_hundred_of_a_picture_count():
    many = [Box(200 + n, 0, 201 + n, 1, "cat", 0.9) for n in range(100)]
    assert scores_of([[*many, CAT._replace(score=0.1)]], [[CAT]])["map"] == 0
    assert scores_of([[*many[:99], CAT._replace(score=0.1)]], [[CAT]])["map"] == pytest.approx(0.01)


def test_no_true_boxes_at_all_are_an_error():
    with pytest.raises(LegatoError, match="there are no true boxes to score against"):
        average_precisions([[CAT]], [[]])
    with pytest.raises(LegatoError, match="there are boxes for 1 pictures and true boxes of 2"):
        average_precisions([[CAT]], [[CAT], []])


@pytest.mark.slow
def test_the_figures_are_those_of_a_file_in_cocos_form(tmp_path: Path):
    # The published way round: files, `loadRes` and `summarize` with everything as it is.
    draw = np.random.default_rng(0)

    def boxes(count: int) -> list[Box]:
        corners = draw.uniform(0, 80, (count, 2))
        size = draw.uniform(5, 120, (count, 2))
        labels, sure = draw.choice(["cat", "cow", "dog"], count), draw.uniform(size=count)
        return [
            Box(float(x), float(y), float(x + w), float(y + h), str(label), float(score))
            for (x, y), (w, h), label, score in zip(corners, size, labels, sure, strict=True)
        ]

    truth = [boxes(n % 5) for n in range(40)]
    shaken = [
        [box._replace(x0=box.x0 + 4 * box.score, y1=box.y1 - 2, score=1 - box.score) for box in one] for one in truth
    ]
    predicted = [[*one, *boxes(2)] for one in shaken]

    def rows(pictures: list[list[Box]]) -> list[dict[str, object]]:
        every = [(picture, box) for picture, several in enumerate(pictures) for box in several]
        return [
            {
                "id": number,
                "image_id": picture,
                "category_id": ["cat", "cow", "dog"].index(box.label),
                "bbox": [box.x0, box.y0, box.x1 - box.x0, box.y1 - box.y0],
                "area": (box.x1 - box.x0) * (box.y1 - box.y0),
                "iscrowd": 0,
                "score": box.score,
            }
            for number, (picture, box) in enumerate(every, start=1)
        ]

    names = [{"id": number, "name": name} for number, name in enumerate(["cat", "cow", "dog"])]
    file, guesses = tmp_path / "truth.json", tmp_path / "predicted.json"
    pictures = [{"id": number} for number in range(len(truth))]
    file.write_text(json.dumps({"info": {}, "images": pictures, "categories": names, "annotations": rows(truth)}))
    guesses.write_text(json.dumps(rows(predicted)))
    known = COCO(str(file))
    scorer = COCOeval(known, known.loadRes(str(guesses)), "bbox")
    scorer.evaluate()
    scorer.accumulate()
    scorer.summarize()

    found = scores_of(predicted, truth)
    assert (found["map"], found["map_50"], found["map_75"]) == pytest.approx(tuple(scorer.stats[:3]), abs=1e-9)
    assert 0.05 < scorer.stats[0] < scorer.stats[1] < 0.95


def test_it_is_silent(capsys: pytest.CaptureFixture[str]):
    average_precisions([[CAT]], [[CAT]])
    assert capsys.readouterr() == ("", "")


def test_the_table_has_a_row_for_each_class_the_worst_first():
    predicted, truth = [[CAT, Box(20, 20, 30, 32, "dog")]], [[CAT, FAR, DOG]]
    ((_, columns, rows),) = detection_details(average_precisions(predicted, truth), predicted, truth)
    assert columns == ["class", "ap_50", "ap", "true boxes", "predicted"]
    assert [(row[0], row[3], row[4]) for row in rows] == [("cat", 2, 1), ("dog", 1, 1)]
    assert rows[0][1:3] == pytest.approx([51 / 101, 51 / 101])
    assert rows[1][1:3] == pytest.approx([1.0, 0.3])  # 12 of 20: IoU .6


def test_a_missing_scorer_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    monkeypatch.delitem(sys.modules, "pycocotools.coco")
    with pytest.raises(
        LegatoError, match=r'pycocotools is not installed; it comes with: pip install "legato-nn\[vision\]"'
    ):
        average_precisions([[CAT]], [[CAT]])


def test_the_scorer_is_imported_only_when_it_scores():
    code = "import sys, legato.evaluation.detection; assert 'pycocotools' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
