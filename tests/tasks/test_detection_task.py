"""Detection: boxes follow other views of a picture, a model learns them, and they are scored, shown and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import legato
from legato.data.batching.batch import IGNORE
from legato.data.batching.examples import collate_examples, fill_rows
from legato.data.batching.picture_batches import with_pictures
from legato.data.formats.boxes import read_boxes
from legato.data.image.augmentation import Augmentation, AugmentConfig
from legato.data.image.image_processor import ImageProcessor
from legato.errors import ConfigError, DataError, FolderError
from legato.registry import TASKS
from legato.runs.config import check, settings_for
from legato.runs.train import plan_of
from legato.tasks.detection.detector import box_rows, in_view
from tiny_boxes import HEIGHT, SMALL, WIDTH, boxed, painted, settings
from tiny_pictures import count_decoded, write_jsonl
from tiny_runs import read_metrics, weights_digest

LEARNED = {
    "train.steps": 70,
    "train.lr": 0.008,
    "train.batch_rows": 10,
    "train.validate_every": 70,
    "train.samples": 0,
}


def job_of(given: dict[str, Any]) -> tuple[Any, list[str]]:
    said: list[str] = []
    plan = plan_of(check(settings_for("detection", given)), torch.device("cpu"))
    return TASKS.get("detection").prepare(plan, said.append), said


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector that knows red from blue, `run`, and its table."""
    folder = tmp_path_factory.mktemp("boxes")
    legato.train("detection", settings(boxed(folder), **LEARNED), out=folder / "run", quiet=True)
    return folder


def test_what_a_validation_scores_is_decoded_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = count_decoded(monkeypatch)
    job, _ = job_of(settings(str(home / "boxes.jsonl"), **{"data.scored": 3}))
    count = len(job.parts["valid"])
    assert len(decoded) == len(job.parts["train"]) + count
    assert len(job.valid) == len(job.valid_pixels) == 3
    for (row,), found in job.valid_pixels.scored(1):
        assert torch.equal(found, job.pixels["valid"].take(np.array([count * row // 3])))


# --- other views -----------------------------------------------------------------------------------


def bright(picture: torch.Tensor) -> list[float]:
    """The box about what is bright in (3, H, W), in shares of the sides."""
    rows, columns = (picture.amax(0) > 0.5).nonzero().T
    height, width = picture.shape[1:]
    return [
        columns.min().item() / width,
        rows.min().item() / height,
        (columns.max().item() + 1) / width,
        (rows.max().item() + 1) / height,
    ]


@pytest.mark.parametrize(
    ("augment", "within"),
    [({"flip": True, "shift": 0.2}, 1e-5), ({"flip": True, "shift": 0.1, "crop": 0.5}, 1.01 / HEIGHT)],
    ids=["by whole pixels", "stretched"],
)
def test_boxes_follow_every_view_of_a_picture(augment: dict[str, Any], within: float) -> None:
    pixels = torch.zeros(40, HEIGHT, WIDTH, 3, dtype=torch.uint8)
    pixels[:, 6:10, 10:15] = 255
    processor = ImageProcessor((HEIGHT, WIDTH), mean=None)
    views = Augmentation(AugmentConfig(**augment), processor, 0, mirrored=False)
    draws = views.draws(3, 40)
    truth = torch.tensor([10 / WIDTH, 6 / HEIGHT, 15 / WIDTH, 10 / HEIGHT]).expand(40, 1, 4)
    boxes = views.boxes(truth, draws, HEIGHT, WIDTH)
    values, _ = views(pixels, draws)
    whole = 0
    for picture, box in zip(values, boxes[:, 0], strict=True):
        if box.min() >= 0 and box.max() <= 1:
            whole += 1
            assert bright(picture) == pytest.approx(box.tolist(), abs=within)
    assert whole > 15
    assert len({round(box[0, 0].item(), 4) for box in boxes}) > 5


def test_a_box_of_which_little_is_left_is_learned_no_more() -> None:
    boxes = torch.tensor([[-0.2, 0.0, 0.1, 1.0], [-0.3, 0.0, 0.1, 1.0], [1.2, 0.0, 1.4, 1.0], [0.2, 0.2, 0.4, 0.4]])
    inside, labels = in_view(boxes, torch.tensor([1, 2, 3, IGNORE]))
    assert labels.tolist() == [1, IGNORE, IGNORE, IGNORE]  # a third, a quarter and nothing of them are seen
    assert inside[0].tolist() == pytest.approx([0.0, 0.0, 0.1, 1.0])


def test_the_loss_is_that_of_the_boxes_in_view(home: Path) -> None:
    table = str(home / "boxes.jsonl")
    job, _ = job_of(settings(table, **{"data.augment.flip": "true", "data.augment.crop": 0.7}))
    batch = next(batch for batch in map(job.batches.at, range(3)) if batch.rows == 4)
    assert batch.boxes.shape == (4, 2, 4)
    assert batch.tokens == int((batch.targets != IGNORE).sum())
    held = legato.load(home / "run").loaded.module.train()
    seen = []
    held.forward, plain = (lambda given: seen.append(given) or plain(given)), held.forward
    loss = job.loss(held, batch, None)
    assert loss.total > loss.reported > 0
    assert seen[0].inputs.values.shape == (4, 3, HEIGHT, WIDTH)


def test_what_fills_a_batch_up_is_not_taught_to_be_empty(home: Path) -> None:
    job, _ = job_of(settings(str(home / "boxes.jsonl")))
    rows = box_rows(job.parts["train"], job.labels, job.reader.processor)[:3]
    plain = collate_examples(rows, pad_to=8)
    assert plain.boxes.shape == (3, 8, 4)
    assert plain.tokens == 6
    filled = fill_rows(plain, 5, 0)
    pixels = job.pixels["train"].take(np.array([0, 1, 2, 0, 1]))
    model = legato.load(home / "run").loaded.module  # in evaluation: what stands beside a picture changes nothing
    wanted = job.loss(model, with_pictures(plain, pixels[:3], "inputs"), None)
    again = job.loss(model, with_pictures(filled, pixels, "inputs"), None)
    torch.testing.assert_close(again.total, wanted.total)


# --- learning --------------------------------------------------------------------------------------


def test_it_learns_boxes_in_pixels_of_the_picture(home: Path) -> None:
    held = legato.load(home / "run")
    scores = held.evaluate(test=str(home / "boxes.jsonl"))
    assert scores["map_50"] > 0.8
    assert (scores["pictures"], scores["boxes"]) == (10, 19)
    assert scores["details"][0][0] == "scores per class, worst first"
    pixels, objects = painted(2)
    found = held.predictions([pixels], threshold=0.0)[0].answers
    assert [answer.score for answer in found] == sorted((answer.score for answer in found), reverse=True)
    said = {answer.text: answer.more["box"] for answer in reversed(found)}  # the surest of each class
    for truth in objects:
        assert said[truth["label"]] == pytest.approx(truth["box"], abs=5)
    assert held.predict(pixels, threshold=1.0) == []  # there may be nothing
    assert held.about["labels"] == ["blue", "red"]


def test_what_is_said_of_the_data(home: Path) -> None:
    job, said = job_of(settings(str(home / "boxes.jsonl"), **{"model.queries": 1}))
    assert any(
        "10 train (19 boxes), 10 valid (19 boxes) pictures of 16 × 24 pixels; 2 classes" in line for line in said
    )
    assert any("a picture has 2 boxes, and the model says 1" in line for line in said)
    assert said[-1] == "the model will see: 0.png → red 0 4 8 16; blue 40 16 48 28"
    assert job.sizes.vocabulary == 2
    rows = box_rows(job.parts["train"], job.labels, job.reader.processor)
    assert rows[0].boxes[0].tolist() == pytest.approx([0, 4 / 32, 8 / 48, 16 / 32])
    assert rows[0].targets == [1, 0]


@pytest.mark.rare  # tests/slow/test_kills.py does this with every task
def test_a_run_that_is_interrupted_ends_with_the_same_weights(home: Path, tmp_path: Path) -> None:
    changes = {"data.augment.flip": "true", "data.augment.shift": 0.1, "train.schedule": "constant"}
    given = settings(str(home / "boxes.jsonl"), **changes)
    legato.train("detection", given, out=tmp_path / "whole", quiet=True)
    legato.train("detection", {**given, "train.steps": 2}, out=tmp_path / "part", quiet=True)
    legato.train(None, {"train.steps": 4}, resume=tmp_path / "part", quiet=True)
    assert weights_digest(tmp_path / "whole") == weights_digest(tmp_path / "part")
    assert all(line["loss"] == line["loss"] for line in read_metrics(tmp_path / "whole") if line["kind"] == "valid")


def test_scenes_need_no_file_and_an_encoder_may_be_left_out(tmp_path: Path) -> None:
    scenes = {"data.train": "toy:scenes", "data.scenes.count": 6, "data.scenes.valid_count": 3}
    given = {key: value for key, value in SMALL.items() if not key.startswith(("model.encoder", "model.size"))}
    given |= {**scenes, "data.scenes.size": 32, "train.steps": 1, "train.validate_every": 1}
    legato.train("detection", given, out=tmp_path / "run", quiet=True)
    held = legato.load(tmp_path / "run")
    assert held.loaded.module.source_encoder.config.name == "resnet"
    assert held.evaluate(test="toy:scenes", scenes={"test_count": 3})["pictures"] == 3


@pytest.mark.slow
def test_a_detector_goes_on_with_its_own_classes(home: Path, tmp_path: Path) -> None:
    pixels, objects = painted(1)
    Image.fromarray(pixels).save(tmp_path / "1.png")
    few = [{"image": "1.png", "objects": objects[1:]}]
    start = {key: value for key, value in SMALL.items() if not key.startswith("model")} | {"train.steps": 1}
    table = write_jsonl(tmp_path / "few.jsonl", few)
    given = {**start, "data.train": table, "data.valid": table, "from": str(home / "run")}
    legato.train("detection", given, out=tmp_path / "run", quiet=True)
    assert legato.load(tmp_path / "run").about["labels"] == ["blue", "red"]
    few[0]["objects"][0]["label"] = "green"
    write_jsonl(tmp_path / "few.jsonl", few)
    with pytest.raises(ConfigError, match=r"boxes of 'green', which .* does not know; it knows"):
        legato.train("detection", given, out=tmp_path / "other", quiet=True)


# --- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("augment", ["operations", "mixup", "cutmix"])
def test_views_that_boxes_cannot_follow_are_refused(home: Path, augment: str) -> None:
    with pytest.raises(ConfigError, match=r"boxes follow data\.augment\.flip, shift and crop"):
        job_of(settings(str(home / "boxes.jsonl"), **{f"data.augment.{augment}": 1}))


def test_data_without_any_box_is_refused(home: Path, tmp_path: Path) -> None:
    Image.fromarray(painted(0)[0]).save(tmp_path / "0.png")
    table = write_jsonl(tmp_path / "empty.jsonl", [{"image": "0.png", "objects": []}])
    with pytest.raises(DataError, match=r"data\.train=.* has no box in any picture"):
        job_of(settings(table))
    assert read_boxes(table).count == 0


def test_another_model_detects_no_boxes(home: Path) -> None:
    with pytest.raises(ConfigError, match="model=resnet detects no boxes; use model=detr"):
        job_of({"model": "resnet", "data.train": str(home / "boxes.jsonl"), "device": "cpu"})


def test_a_folder_whose_labels_are_another_model_s_is_refused(home: Path, tmp_path: Path) -> None:
    held = legato.load(home / "run")
    held.loaded.about["labels"] = ["red"]
    with pytest.raises(FolderError, match="holds no detector"):
        held.predict(painted(0)[0])
