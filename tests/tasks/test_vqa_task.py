"""Questions about pictures: learned from scenes and from tables, answered, scored, refused without a picture."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import legato
from legato.data.formats.visual_questions import questioned_scenes, read_visual_questions, stated_scenes
from legato.data.image.scenes import ScenesConfig
from legato.data.splits import hold_out_named
from legato.errors import ConfigError, DataError, LegatoError
from legato.registry import TASKS
from legato.runs.config import check, settings_for
from legato.runs.train import plan_of
from legato.tasks.vqa.answerer import answer_name
from tiny_runs import read_metrics
from tiny_visual_questions import COLOURS, SMALL, picture, settings, train_to_see, write_questions


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_to_see(tmp_path_factory.mktemp("seeing"))


def prepared(given: dict[str, Any], say: Callable[[str], None] = lambda text: None) -> Any:
    """The job that settings make."""
    return TASKS.get("vqa").prepare(plan_of(check(settings_for("vqa", given)), torch.device("cpu")), say)


# --- learning ----------------------------------------------------------------------------------------


def test_it_learns_what_colour_a_picture_has(seeing: Path) -> None:
    held = legato.load(seeing / "run")
    photo = seeing / "images" / "101.png"
    assert held.predict((str(photo), "what colour is it?")) == "green"
    assert held.predict([(photo, "What colour is it?"), (seeing / "images" / "102.png", "what colour is it?")]) == [
        "green",
        "blue",
    ]
    assert held.predict((picture("white", 7), "what colour is it?")) == "white"
    assert held.predict(f"{photo}\tis it red?") == "no"
    scores = held.evaluate(test=str(seeing / "test.csv"))
    assert scores["accuracy"] > 0.8
    assert (scores["questions"], scores["pictures"]) == (16, 8)
    result = json.loads((seeing / "run" / "result.json").read_text())["metrics"]
    assert result["test.accuracy"] == scores["accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["none", "stacked"])
def test_scenes_are_learned_a_little(attention: str, tmp_path: Path) -> None:
    given = {
        **SMALL,
        "data.train": "toy:scenes",
        "data.scenes": {"count": 40, "valid_count": 8, "size": 32, "most_shapes": 1},
        "model.attention": attention,
        "model.encoder": {**SMALL["model.encoder"], "image": 32},
        "train.steps": 60,
        "train.validate_every": 15,
    }
    legato.train("vqa", given, out=tmp_path / "run", quiet=True)
    losses = [line["loss"] for line in read_metrics(tmp_path / "run") if line["kind"] == "valid"]
    assert losses[-1] < losses[0] - 0.3
    held = legato.load(tmp_path / "run")
    scores = held.evaluate(test="toy:scenes", scenes={"test_count": 5})
    assert 0 <= scores["accuracy"] <= 1
    assert held.about["toy"]["settings"]["size"] == 32
    # One of four is easier than one of all.
    chosen = held.evaluate(test="toy:scenes", scenes={"test_count": 5}, choices=True)
    assert chosen["accuracy"] >= scores["accuracy"]


def test_a_small_encoder_reads_scenes_where_nothing_is_said() -> None:
    config = check(settings_for("vqa", {"data.train": "toy:scenes"}))
    encoder: Any = config.model.model_dump()["encoder"]
    assert (config.model.name, encoder["name"], encoder["image"]) == ("vqa", "resnet", 64)
    named: Any = check(settings_for("vqa", {"data.train": "toy:scenes", "model.encoder": "vit"})).model
    assert (named.encoder.name, named.encoder.image, named.encoder.patch) == ("vit", 64, 8)
    assert check(settings_for("vqa", {"data.train": "toy:scenes", "model.blind": "true"})).model.name == "vqa"


def test_a_blind_model_ignores_the_picture(tmp_path: Path) -> None:
    write_questions(tmp_path)
    given = {key: value for key, value in settings(tmp_path).items() if key != "model.encoder"}
    legato.train("vqa", {**given, "model.blind": True, "train.epochs": 2}, out=tmp_path / "run", quiet=True)
    held = legato.load(tmp_path / "run")
    assert not held.loaded.processors.others
    asked = [(tmp_path / "images" / f"{number}.png", "what colour is it?") for number in range(4)]
    found = [prediction.answers[0].score for prediction in held.predictions([*asked, ("gone.png", asked[0][1])])]
    assert len(set(found)) == 1
    assert not (tmp_path / "run" / "best" / "preprocessor_config.json").exists()


def test_training_goes_on_from_a_trained_model(seeing: Path, tmp_path: Path) -> None:
    given = {"data.train": str(seeing / "train.csv"), "from": str(seeing / "run"), "train.epochs": 1, "device": "cpu"}
    legato.train("vqa", given, out=tmp_path / "run", quiet=True)
    held = legato.load(tmp_path / "run")
    assert held.predict((seeing / "images" / "100.png", "what colour is it?")) == "red"


@pytest.mark.slow
def test_an_encoder_that_is_trained_already_is_taken_and_stays(seeing: Path, tmp_path: Path) -> None:
    (tmp_path / "classes").mkdir()
    for number, colour in enumerate(COLOURS):
        for copy in range(3):
            (tmp_path / "classes" / colour).mkdir(exist_ok=True)
            picture(colour, 9 * number + copy).save(tmp_path / "classes" / colour / f"{copy}.png")
    small = {f"model.{key}": value for key, value in SMALL["model.encoder"].items() if key != "name"}
    classes = {"data.train": str(tmp_path / "classes"), "model": "vit", "train.epochs": 1, "device": "cpu", **small}
    legato.train("image-classification", classes, out=tmp_path / "eye", quiet=True)
    given = {key: value for key, value in settings(seeing).items() if key != "model.encoder"}
    given |= {"from.encoder": str(tmp_path / "eye"), "train.encoder_lr": 0, "train.epochs": 1}
    legato.train("vqa", given, out=tmp_path / "run", quiet=True)
    eye, held = legato.load(tmp_path / "eye").module.body, legato.load(tmp_path / "run").module.parts["encoder"]
    assert isinstance(eye, torch.nn.Module)
    for name, tensor in eye.state_dict().items():
        assert torch.equal(tensor, held.state_dict()[name]), name


def test_batches_are_no_less_than_the_rows_and_their_pictures(seeing: Path) -> None:
    """Every row of a batch stands beside its own picture, and both models read the rows in one order."""
    given = settings(seeing)
    job = prepared(given)
    blind = {key: value for key, value in given.items() if key != "model.encoder"} | {"model.blind": True}
    other = TASKS.get("vqa").prepare(
        plan_of(check(settings_for("vqa", blind)), torch.device("cpu")), lambda text: None
    )
    data = job.data["train"]
    for step in range(3):
        batch, words = job.batches.at(step), other.batches.at(step)
        assert torch.equal(batch.inputs.ids, words.inputs.ids)
        assert words.images is None
        for row, (ids, label) in enumerate(zip(batch.inputs.ids, batch.labels, strict=True)):
            length = len(ids) if batch.inputs.lengths is None else int(batch.inputs.lengths[row])
            question = [job.tokenizer.token(int(index)) for index in ids[:length]]
            if question[:2] == ["what", "colour"]:
                mean = batch.images.values[row].float().mean((0, 1))
                colour = min(COLOURS, key=lambda name: float((mean - torch.tensor(COLOURS[name])).abs().sum()))
                assert job.meaning.names[int(label)] == colour
    assert len(job.album["train"]) == len(set(data.names)) < len(data)


# --- what is scored ----------------------------------------------------------------------------------


def test_no_picture_is_held_out_and_trained_on() -> None:
    data = questioned_scenes(ScenesConfig(count=40), "train", seed=0)
    parts = hold_out_named(data, 0.2, "picture")
    assert set(parts["train"].names).isdisjoint(parts["valid"].names)
    assert len(parts["train"]) + len(parts["valid"]) == len(data)
    assert 2 < len(set(parts["valid"].names)) < 20


def test_validation_is_of_other_pictures(seeing: Path) -> None:
    job = prepared(settings(seeing))
    assert set(job.data["train"].names).isdisjoint(job.data["valid"].names)
    assert len(job.data["valid"])


def test_several_things_are_one_answer_in_any_order(tmp_path: Path) -> None:
    assert answer_name("the Tape_dispenser, a book") == answer_name("book, tape dispenser") == "book, tape dispenser"
    write_questions(tmp_path, count=4)
    table = tmp_path / "train.csv"
    table.write_text(table.read_text() + '0.png,what is there?,"cup, the plate"\n1.png,what is there?,"plate, cup"\n')
    job = prepared(settings(tmp_path, data__valid=str(table)))
    assert "cup, plate" in job.labels
    assert job.data["train"].labels.count("cup, plate") == 2


def test_the_most_frequent_answers_are_learned_and_others_are_wrong(seeing: Path) -> None:
    told: list[str] = []
    job = prepared(settings(seeing, data__answers=2, data__valid=str(seeing / "test.csv")), told.append)
    assert len(job.labels) == 2
    assert "no" in job.labels
    assert any("2 most frequent answers" in line for line in told)
    assert -1 in job.wanted["valid"]
    assert -1 not in job.wanted["train"]


def test_a_choice_is_one_of_those_given(seeing: Path, tmp_path: Path) -> None:
    held = legato.load(seeing / "run")
    photo = seeing / "images" / "100.png"
    assert held.predict((photo, "what colour is it?")) == "red"
    assert held.predict((photo, "what colour is it?", ["Blue", "the yes"])) in ("blue", "yes")
    with pytest.raises(LegatoError, match="none of the choices pink"):
        held.predict((photo, "what colour is it?", ["pink"]))
    rows = [
        {"image": str(photo), "question": "what colour is it?", "answer": "blue", "choices": ["blue", "no"]},
        {"image": str(photo), "question": "what colour is it?", "answer": "red", "choices": None},
        {"image": str(photo), "question": "what colour is it?", "answer": "pink", "choices": ["pink", "grey"]},
    ]
    (tmp_path / "mc.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    with pytest.warns(UserWarning, match="'pink'"):
        scores = held.evaluate(test=str(tmp_path / "mc.jsonl"))
    with pytest.warns(UserWarning, match="'pink'"):
        opened = held.evaluate(test=str(tmp_path / "mc.jsonl"), choices=False)
    assert (scores["accuracy"], opened["accuracy"]) == (pytest.approx(2 / 3), pytest.approx(1 / 3))


def test_padding_never_changes_an_answer(seeing: Path) -> None:
    held = legato.load(seeing / "run")
    photos = [seeing / "images" / f"{number}.png" for number in (100, 101, 102)]
    asked = [(photos[0], "what colour is it?"), (photos[1], "is it?"), (photos[2], "is it is it is it is it red?")]
    together = held.predictions(asked)
    for pair, found in zip(asked, together, strict=True):
        (alone,) = held.predictions([pair])
        shares = [prediction.answers[0].more["probabilities"] for prediction in (alone, found)]
        assert shares[0] == pytest.approx(shares[1], abs=1e-5)


def test_evaluation_shows_confusions_and_the_surest_errors(seeing: Path, tmp_path: Path) -> None:
    photo = seeing / "images" / "100.png"
    (tmp_path / "t.csv").write_text(
        f"image,question,answer\n{photo},what colour is it?,blue\n{photo},is it red?,yes\n"
    )
    details = legato.load(seeing / "run").evaluate(test=str(tmp_path / "t.csv"))["details"]
    (confusions, _, pairs), (worst, columns, errors) = details
    assert confusions.startswith("most frequent confusions")
    assert ["blue", "red", 1] in pairs
    assert worst.startswith("worst errors")
    assert columns == ["true", "answered", "probability", "question", "picture", "where"]
    assert errors[0][:2] == ["blue", "red"]
    assert errors[0][3:] == ["what colour is it?", str(photo), "line 2"]


# --- tables ------------------------------------------------------------------------------------------


def test_bytes_in_a_table_are_one_picture_where_they_are_equal(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    held = io.BytesIO()
    picture("red", 1).save(held, "PNG")
    other = io.BytesIO()
    picture("blue", 1).save(other, "PNG")
    images = [{"bytes": raw.getvalue(), "path": None} for raw in (held, other, held)]
    table = pa.table({"image": images, "question": ["a?", "b?", "c?"], "answer": ["x", "y", "z"]})
    pq.write_table(table, tmp_path / "t.parquet")
    data = read_visual_questions(str(tmp_path / "t.parquet"))
    album, numbers = data.album()
    assert (len(album), numbers) == (2, [0, 1, 0])
    assert np.asarray(album[1].load()).mean((0, 1)).argmax() == 2


def test_what_most_people_said_is_the_answer(tmp_path: Path) -> None:
    picture("red", 1).save(tmp_path / "1.png")
    rows = [
        {"image": "1.png", "question": "a?", "answers": ["two", "three", "three"]},
        {"image": "1.png", "question": "b?", "answers": [{"answer": "cup"}, {"answer": "mug"}, {"answer": "mug"}]},
        {"image": "1.png", "question": "c?", "answers": 3},
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    assert read_visual_questions(str(tmp_path / "t.jsonl")).labels == ["three", "mug", "3"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("gone.png,what?,red", "line 4: there is no picture"),
        ("0.png,,red", "line 4: the question is empty"),
        ("0.png,what?,", "line 4: the answer is empty"),
        (",what?,red", "line 4: there is no picture"),
    ],
)
def test_a_bad_row_is_named(line: str, told: str, tmp_path: Path) -> None:
    write_questions(tmp_path, count=1)
    table = tmp_path / "train.csv"
    table.write_text(table.read_text() + line + "\n")
    with pytest.raises(DataError, match=told):
        read_visual_questions(str(table))


def test_one_picture_alone_cannot_be_held_out(tmp_path: Path) -> None:
    table = write_questions(tmp_path, count=1)
    with pytest.raises(DataError, match="one picture, too few to hold any out"):
        hold_out_named(read_visual_questions(str(table)), 0.1, "picture")


def test_a_table_without_choices_has_none_to_choose_from(tmp_path: Path) -> None:
    table = write_questions(tmp_path, count=1)
    with pytest.raises(DataError, match="no column of choices"):
        read_visual_questions(str(table), choices=True)


# --- asking ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("a.png",), "has no question"),
        ("what is it?", "has no picture"),
        ((None, "what is it?"), "has no picture"),
        (("a.png", 3), "give a picture and a question"),
        (("a.png", "what?", "red"), "choices are a list"),
    ],
)
def test_what_is_missing_is_named_from_python(given: Any, told: str, seeing: Path) -> None:
    with pytest.raises(LegatoError, match=told):
        legato.load(seeing / "run").predict(given)


# --- settings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model": "lstm"}, "reads no pictures beside a question"),
        ({"model": "vit"}, "reads no questions beside a picture"),
        ({"model.blind": True}, "leave out encoder"),
        ({"data.augment.mixup": 0.2}, "no question is about both"),
    ],
)
def test_settings_that_do_not_go_together(changes: dict[str, Any], told: str, seeing: Path) -> None:
    given = settings(seeing) | changes
    if "model" in changes:
        given = {key: value for key, value in given.items() if not key.startswith("model.")}
    with pytest.raises(ConfigError, match=told):
        prepared(given)


@pytest.mark.parametrize("task", ["classification", "tagging", "mlm", "image-classification"])
@pytest.mark.parametrize("more", [{"model.blind": "true"}, {"model.encoder": "vit"}])
def test_other_tasks_have_no_use_for_it(task: str, more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="reads with"):
        check(settings_for(task, {"model": "vqa", "data.train": "x", **more}))


def test_statements_about_scenes_are_true_or_false(tmp_path: Path) -> None:
    given = {
        **SMALL,
        "data.train": "toy:scenes",
        "data.scenes": {"count": 6, "valid_count": 3, "size": 32},
        "data.statements": True,
        "model.encoder": {**SMALL["model.encoder"], "image": 32},
        "train.steps": 1,
    }
    legato.train("vqa", given, out=tmp_path / "run", quiet=True)
    held = legato.load(tmp_path / "run")
    assert held.about["labels"] == ["false", "true"]
    scores = held.evaluate(test="toy:scenes", scenes={"test_count": 5})
    expected = stated_scenes(ScenesConfig(size=32, test_count=5), "test", 0)
    assert scores["questions"] == len(expected) > 5
    assert set(expected.labels) == {"true", "false"}
    asked = questioned_scenes(ScenesConfig(size=32, test_count=5), "test", 0)
    assert expected.sha256 != asked.sha256
    assert not set(expected.texts) & set(asked.texts)
