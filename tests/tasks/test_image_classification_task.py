"""Image classification: it learns from folders, tables and scenes, resumes to the same bits, refuses in a line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import legato
from legato.data.batching.batch import IGNORE, Batch, Inputs
from legato.data.image.augmentation import DRAWS
from legato.errors import ConfigError, FolderError, LegatoError
from legato.nn.state import Output
from legato.registry import TASKS
from legato.runs.config import check, dump, settings_for, with_defaults
from legato.runs.train import plan_of
from tiny_pictures import SIDE, TINY, class_folders, encoded, pixels, write_jsonl, write_picture
from tiny_runs import read_metrics, weights_digest


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    """Of a run that takes a second; `train__lr` is train.lr."""
    data = {"data.train": str(folder / "train"), "data.valid": str(folder / "valid")}
    return {**TINY, **data, **{key.replace("__", "."): value for key, value in changes.items()}}


def trained(folder: Path, **changes: Any) -> legato.Model:
    if not (folder / "train").exists():
        class_folders(folder / "train")
        class_folders(folder / "valid", 2)
    legato.train("image-classification", settings(folder, **changes), out=folder / "run", quiet=True)
    return legato.load(folder / "run")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that knows red from blue."""
    folder = tmp_path_factory.mktemp("colours")
    trained(folder, train__steps=30, train__lr=0.01)
    return folder


def test_it_learns_classes_from_folders(home: Path) -> None:
    held = legato.load(home / "run")
    assert held.about["labels"] == ["blue", "red"]
    assert held.predict([pixels("red", 77), pixels("blue", 78)]) == ["red", "blue"]
    assert [line["accuracy"] for line in read_metrics(home / "run") if line["kind"] == "valid"][-1] == 1.0
    assert held.evaluate(test=str(home / "valid"))["accuracy"] == 1.0


@pytest.mark.slow
def test_a_convolutional_network_learns_them_as_well(home: Path, tmp_path: Path) -> None:
    given = {key: value for key, value in settings(home).items() if not key.startswith("model.")}
    given |= {"model": "resnet", "model.image": SIDE, "model.stem": "3x3", "model.embedding": 4}
    given |= {"model.widths": [4, 8], "model.depths": [1, 1], "train.steps": 20, "train.lr": 0.01}
    legato.train("image-classification", given, out=tmp_path / "run", quiet=True)
    assert legato.load(tmp_path / "run").predict([pixels("red", 77), pixels("blue", 78)]) == ["red", "blue"]


@pytest.mark.parametrize(("side", "image", "patch"), [(8, 32, 4), (33, 64, 8), (90, 96, 12), (300, 128, 16)])
def test_from_scratch_pictures_are_read_about_as_large_as_they_are(
    side: int, image: int, patch: int, tmp_path: Path
) -> None:
    for name in ("red", "blue"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (2 * side, side)).save(tmp_path / name / "1.png")
    given = {"data.train": str(tmp_path), "model": "vit"}
    config = check(settings_for("image-classification", given))
    assert dict(config.model).items() >= {"image": image, "patch": patch}.items()
    assert (config.train.batch_rows, config.train.min_steps) == (16, 300)  # of few pictures
    hand = {"model.image": 48, "train.batch_rows": 5, "train.steps": 7}
    config_by_hand = check(settings_for("image-classification", {**given, **hand}))
    assert dict(config_by_hand.model).items() >= {"image": 48, "patch": 16}.items()
    assert (config_by_hand.train.batch_rows, config_by_hand.train.min_steps) == (5, 0)
    shutil.rmtree(tmp_path / "red")  # what a run has saved stays, whatever becomes of the pictures
    assert check(dump(config)) == config


@pytest.mark.parametrize("train", ["nothing", "hub:org/name", "toy:scenes", ["a.csv", 3], None])
def test_pictures_that_cannot_be_measured_leave_the_models_own_size(train: Any) -> None:
    settings = with_defaults(TASKS.get("image-classification"), {"data": {"train": train}})
    assert settings["model"].get("image", 224) == (64 if train == "toy:scenes" else 224)


def test_a_picture_may_be_given_in_many_ways(home: Path, tmp_path: Path) -> None:
    held, red = legato.load(home / "run"), pixels("red", 5)
    file = write_picture(tmp_path / "a.png", "red", 5)
    for given in (str(file), file, red, Image.fromarray(red), encoded("red", 5)):
        assert held.predict(given) == "red"
        assert held.predict([given, pixels("blue")]) == ["red", "blue"]
    assert held.predict(Image.fromarray(np.full((9, 7), 120, np.uint8))) in ("red", "blue")
    assert held.predict(file, nbest=2) == ["red", "blue"]
    found = held.predictions([str(file), red])
    assert [prediction.input for prediction in found] == [str(file), "a picture"]
    assert sum(found[0].answers[0].more["probabilities"].values()) == pytest.approx(1, abs=1e-5)


def test_what_cannot_be_read_is_said_of_that_picture_alone(home: Path, tmp_path: Path) -> None:
    held, file = legato.load(home / "run"), write_picture(tmp_path / "a.png", "red")
    (tmp_path / "b.jpg").write_text("no picture")
    found = held.predictions([str(tmp_path / "b.jpg"), str(file), str(tmp_path / "c.jpg")])
    assert found[0].problem == f"{tmp_path}/b.jpg is no picture of JPEG, PNG, WEBP, GIF"
    assert found[1].answers[0].text == "red"
    assert "there is no picture" in str(found[2].problem)
    with pytest.raises(LegatoError, match=r"^picture 2: .*b\.jpg is no picture"):
        held.predict([file, tmp_path / "b.jpg"])
    with pytest.raises(LegatoError, match="is no file, and this model reads pictures, not text"):
        held.predict("A dog runs.")
    with pytest.raises(LegatoError, match="give a picture or a list of pictures, not 7"):
        held.predict(7)


@pytest.mark.rare  # tests/slow/test_kills.py does this with every task
def test_a_run_that_is_interrupted_ends_with_the_same_weights(home: Path, tmp_path: Path) -> None:
    augment = {"flip": "true", "crop": 0.5, "mixup": 0.3, "operations": 1, "colour": 0.2}
    given = settings(home, **{f"data__augment__{key}": value for key, value in augment.items()})
    given |= {"train.schedule": "constant", "train.warmup": 0}  # which do not depend on the number of steps
    legato.train("image-classification", given, out=tmp_path / "whole", quiet=True)
    legato.train("image-classification", {**given, "train.steps": 3}, out=tmp_path / "part", quiet=True)
    legato.train(None, {"train.steps": 6}, resume=tmp_path / "part", quiet=True)
    assert weights_digest(tmp_path / "whole") == weights_digest(tmp_path / "part")
    other = legato.train("image-classification", {**given, "seed": 1}, out=tmp_path / "other", quiet=True)
    assert other is not None
    assert weights_digest(tmp_path / "whole") != weights_digest(tmp_path / "other")


@pytest.mark.slow
def test_pixels_decoded_by_workers_train_the_same(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = settings(home, data__augment__flip="true")
    legato.train("image-classification", given, out=tmp_path / "kept", quiet=True)
    monkeypatch.setattr("legato.data.batching.picture_batches.KEPT", 0)
    legato.train("image-classification", {**given, "data.workers": 1}, out=tmp_path / "ahead", quiet=True)
    assert weights_digest(tmp_path / "kept") == weights_digest(tmp_path / "ahead")


def job_of(folder: Path, **changes: Any) -> Any:
    plan = plan_of(check(settings_for("image-classification", settings(folder, **changes))), torch.device("cpu"))
    return TASKS.get("image-classification").prepare(plan, lambda _: None)


def test_a_mixed_picture_has_the_loss_of_both_its_classes(home: Path) -> None:
    job = job_of(home, data__augment__mixup=0.5)
    logits = torch.randn(4, 2)
    labels = torch.tensor([0, 1, 1, 0])
    values = torch.from_numpy(np.stack([pixels("red", seed) for seed in range(4)]))
    draws = torch.rand(4, DRAWS)
    own = job.reader.augmentation(values, draws)[1]
    batch = Batch(Inputs(values=values, draws=draws), labels=labels)
    loss = job.loss(lambda _: Output(logits, logits=logits), batch, 0)
    nll = -torch.log_softmax(logits, -1)
    rows = range(4)
    expected = sum(own[row] * nll[row, labels[row]] + (1 - own[row]) * nll[row, labels[row - 1]] for row in rows)
    torch.testing.assert_close(loss.reported, expected)


def test_rows_that_fill_a_batch_have_no_loss(home: Path) -> None:
    job = job_of(home)
    logits, labels = torch.randn(4, 2), torch.tensor([0, 1, IGNORE, IGNORE])
    values = torch.from_numpy(np.stack([pixels("red", seed % 2) for seed in range(4)]))
    loss = job.loss(lambda _: Output(logits, logits=logits), Batch(Inputs(values=values), labels=labels), 0)
    nll = -torch.log_softmax(logits, -1)
    torch.testing.assert_close(loss.reported, nll[0, 0] + nll[1, 1])


@pytest.mark.slow
def test_labels_may_be_several_or_numbers(tmp_path: Path) -> None:
    several, numbers = [], []
    for number in range(8):
        write_picture(tmp_path / f"{number}.png", ("red", "blue")[number % 2], number)
        several.append({"image": f"{number}.png", "labels": ["red", "warm"] if number % 2 == 0 else ["blue"]})
        numbers.append({"image": f"{number}.png", "score": number / 8})
    for name, rows, kind in (("several", several, "multilabel"), ("numbers", numbers, "regression")):
        table = write_jsonl(tmp_path / f"{name}.jsonl", rows)
        changes: dict[str, Any] = {"data.train": table, "data.valid": table, "data.kind": kind, "train.steps": 2}
        if kind == "regression":
            changes["data.columns"] = ["image", "score"]
        legato.train("image-classification", {**TINY, **changes}, out=tmp_path / name, quiet=True)
        assert legato.load(tmp_path / name).predictions([tmp_path / "0.png"])[0].answers
        mixing = {**TINY, **changes, "data.augment.cutmix": 1.0}
        if kind == "regression":
            mixing["data.kind"] = "auto"  # what the labels are, the data say
        with pytest.raises(ConfigError, match=f"mix two classes, and these labels are {kind}; leave them out"):
            legato.train("image-classification", mixing, out=tmp_path / "no", quiet=True)


def test_it_learns_the_shapes_of_scenes(tmp_path: Path) -> None:
    scenes = {"data.train": "toy:scenes", "data.scenes.count": 24, "data.scenes.valid_count": 4, "model.image": 32}
    scenes |= {"data.scenes.size": 32, "model.patch": 8, "train.steps": 2}
    legato.train("image-classification", {**TINY, **scenes}, out=tmp_path / "run", quiet=True)
    held = legato.load(tmp_path / "run")
    scores = held.evaluate(test="toy:scenes", scenes={"test_count": 6})
    assert scores["pictures"] == 6
    _, (_, per_class, _), (_, worst, _) = scores["details"]
    assert per_class[-1] == "pictures"
    assert worst[-2:] == ["picture", "where"]


def with_size(home: Path, folder: Path, height: int, width: int) -> Path:
    """The model as somebody else publishes it, with a processor for pictures of this size."""
    shutil.copytree(home / "run" / "best", folder)
    for name, change in (
        ("preprocessor_config.json", {"size": {"height": height, "width": width}}),
        ("config.json", {"legato": {"task": "image-classification"}}),
    ):
        entries = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**entries, **change}))
    return folder


def test_a_processor_that_does_not_fit_its_model_is_one_line(home: Path, tmp_path: Path) -> None:
    model = with_size(home, tmp_path / "model", 30, 30)
    said = r"model: preprocessor_config\.json does not fit its model: a picture of 30 × 30 pixels is no patches of 4"
    with pytest.raises(FolderError, match=said):
        legato.load(model).predict(pixels())
    given = {key: value for key, value in settings(home).items() if not key.startswith("model")}
    given |= {"from": str(model)}
    with pytest.raises(FolderError, match=said):
        legato.train("image-classification", given, out=tmp_path / "no", quiet=True)


def test_a_processor_of_another_size_that_fits_is_read(home: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"makes pictures of .* its positions are stretched to them"):
        assert legato.load(with_size(home, tmp_path / "model", 2 * SIDE, SIDE)).predict(pixels("red", 3)) == "red"


@pytest.mark.slow
def test_a_model_goes_on_with_its_own_processor(home: Path, tmp_path: Path) -> None:
    given = {key: value for key, value in settings(home).items() if not key.startswith("model")}
    given |= {"from": str(home / "run"), "adapt": "head", "train.steps": 1}
    legato.train("image-classification", given, out=tmp_path / "run", quiet=True)
    one, other = (legato.load(run).loaded.processors.fingerprints() for run in (home / "run", tmp_path / "run"))
    assert one == other


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "lstm"}, "reads with tokenizer"),
        ({"tokenizer": "word"}, "image-classification reads no text, so it has no tokenizer"),
        ({"model.patch": 3}, "patch=3 does not divide image=8"),
        ({"data.augment.blur": 1}, "unknown key 'data.augment.blur'"),
    ],
)
def test_settings_that_will_not_do_are_one_line(home: Path, change: dict[str, Any], said: str) -> None:
    given = {**settings(home), **change}
    if change.get("model") == "lstm":
        given = {key: value for key, value in given.items() if not key.startswith("model.")}
    with pytest.raises(ConfigError, match=said):
        check(settings_for("image-classification", given))
