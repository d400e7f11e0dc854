"""`legato predict` of a model that detects boxes: a line for each, and pictures with them drawn in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import legato
from tiny_boxes import boxed, settings
from tiny_pictures import TINY, class_folders


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pictures, and a detector that has hardly learned, `run`."""
    folder = tmp_path_factory.mktemp("boxes")
    legato.train("detection", settings(boxed(folder), **{"train.steps": 2}), out=folder / "run", quiet=True)
    return folder


def test_boxes_are_printed_surest_first(command: Any, detector: Path) -> None:
    found = command("predict", detector / "run", detector / "0.png", "--threshold", 0, "--nbest", 3)
    assert found.code == 0, found.err
    rows = [line.split("\t") for line in found.out.splitlines()]
    assert len(rows) == 3
    assert all(label in ("red", "blue") and len(box.split()) == 4 for label, _, box in rows)
    assert [float(score) for _, score, _ in rows] == sorted((float(score) for _, score, _ in rows), reverse=True)
    assert command("predict", detector / "run", detector / "0.png", "--threshold", 1).out == "\n"  # nothing
    told = command("predict", detector / "run", detector / "0.png", detector / "1.png", "--threshold", 0, "--json")
    first, second = map(json.loads, told.out.splitlines())
    assert (first["input"], second["input"]) == (str(detector / "0.png"), str(detector / "1.png"))
    assert first["answers"][0].keys() == {"text", "score", "box"}


def test_boxes_are_drawn(command: Any, detector: Path, tmp_path: Path) -> None:
    words = (
        "predict",
        detector / "run",
        "--file",
        detector,
        "--threshold",
        0,
        "--nbest",
        2,
        "--draw",
        tmp_path / "d",
    )
    found = command(*words)
    assert found.code == 0, found.err
    assert f"the boxes are drawn in {tmp_path / 'd'}: 10 pictures" in found.err
    with Image.open(tmp_path / "d" / "0.png") as drawn:
        assert drawn.size == (480, 320)  # ten times as large, so that words can be read
        colours = {colour for _, colour in drawn.getcolors(1 << 20)}
    with Image.open(detector / "0.png") as plain:
        assert len(colours) > len(plain.getcolors())


def test_a_threshold_is_a_share(command: Any, detector: Path) -> None:
    found = command("predict", detector / "run", detector / "0.png", "--threshold", 2)
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert "threshold" in found.err


def test_a_model_without_boxes_draws_none(command: Any, tmp_path: Path) -> None:
    photos = str(class_folders(tmp_path / "train", 2))
    given = {**TINY, "data.train": photos, "data.valid": photos, "train.steps": 1, "train.samples": 0}
    legato.train("image-classification", given, out=tmp_path / "run", quiet=True)
    found = command("predict", tmp_path / "run", tmp_path / "train" / "red" / "0.png", "--draw", tmp_path / "d")
    assert found.code == 2
    assert "which finds no boxes; leave out --draw" in found.err
    assert not (tmp_path / "d").exists()
