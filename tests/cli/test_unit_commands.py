"""A model of many tasks on the command line: one of them is asked by its name, and all are scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import legato
from legato.inspect.pictures import attention_maps
from legato.runs.config import settings_for
from tiny_tasks import tiny


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of colours, boxes and films that has learned next to nothing."""
    folder = tmp_path_factory.mktemp("many")
    given = tiny("unit", folder, train__steps=1, train__validate_every=1)
    legato.train("unit", given, out=folder / "run", quiet=True)
    return folder


def test_one_of_the_tasks_is_asked_by_its_name(many: Path, command: Any) -> None:
    run, picture = many / "run", many / "0.png"
    said, share = command("predict", run, "a merry film", "--task", "films").out.split("\t")
    assert said in ("good", "bad")
    assert float(share) >= 0.5
    answer = command("predict", run, picture, "what colour is it?", "--task", "colours")
    assert answer.out.split("\t")[0] in ("red", "blue")
    found = command(
        "predict", run, picture, "--task", "boxes", "--threshold", "0", "--draw", many / "drawn", "--json"
    )
    answers = json.loads(found.out)["answers"]
    assert [answer["text"] for answer in answers] == ["all"] * 2
    assert all(len(answer["box"]) == 4 for answer in answers)
    assert [file.name for file in (many / "drawn").iterdir()] == ["0.png"]


def test_where_a_question_looked_is_saved(many: Path, command: Any) -> None:
    words = ("what colour is it?", "--task", "colours", "--attention", many / "looks")
    assert "1 sheet" in command("predict", many / "run", many / "0.png", *words).err
    maps = attention_maps(legato.load(many / "run").for_task("colours"), (many / "0.png", "what colour is it?"))
    assert (maps.words, maps.weights.shape) == (["look 1"], (1, 2, 2))  # one block, patches of 4 pixels
    assert 0 < float(maps.weights.sum()) < 1  # some of it goes to words


def test_who_names_no_task_is_told_which_there_are(many: Path, command: Any) -> None:
    answer = command("predict", many / "run", "a film")
    assert (answer.code, answer.err) == (
        2,
        f"legato: {many / 'run' / 'best'}: say which task; it has colours, boxes, films\n",
    )
    answer = command("predict", many / "run", "a film", "--task", "sounds")
    assert answer.err.endswith("there is no task 'sounds'; it has colours, boxes, films\n")


def test_every_task_is_scored(many: Path, command: Any) -> None:
    tests = [
        f"data.tasks.{name}.test={file}" for name, file in (("films", "films/valid.tsv"), ("boxes", "boxes.jsonl"))
    ]
    scored = json.loads(command("eval", many / "run", *tests, f"data.root={many}", "--json").out)
    assert {"films/accuracy", "films/texts", "boxes/map_50", "boxes/pictures"} <= scored.keys()
    assert "films/accuracy" in command("eval", many / "run", *tests, f"data.root={many}").out


def test_questions_are_learned_and_answered_without_pictures(tmp_path: Path, command: Any) -> None:
    """A model that has no encoder of pictures reads the question alone: what the others have to beat."""
    given = settings_for("unit", tiny("unit", tmp_path, train__steps=1, train__validate_every=1))
    given["data"]["tasks"] = {"colours": given["data"]["tasks"]["colours"]}
    given["model"]["encoder"] = None
    given["from"] = {"encoder": None}  # as from.encoder=none says it, where a recipe begins with one
    (tmp_path / "blind.yaml").write_text(json.dumps(given))
    answer = command("train", tmp_path / "blind.yaml", f"out={tmp_path / 'run'}")
    assert answer.code == 0, answer.err
    assert "the model will see: no picture and" in answer.err
    answer = command("predict", tmp_path / "run", "unseen.png", "what colour is it?", "--task", "colours")
    assert answer.out.split("\t")[0] in ("red", "blue")
    (again := tmp_path / "again").mkdir()
    given = settings_for("unit", tiny("unit", again))
    given["model"]["encoder"] = None
    (tmp_path / "boxes.yaml").write_text(json.dumps(given))
    answer = command("train", tmp_path / "boxes.yaml", "data.only=boxes", f"out={tmp_path / 'boxes'}")
    assert answer.err.endswith("data.tasks.boxes has pictures to read; name what reads it: model.encoder=resnet\n")


@pytest.mark.slow
def test_models_of_as_many_parameters_are_compared_task_by_task(tmp_path: Path, command: Any) -> None:
    given = settings_for("unit", tiny("unit", tmp_path, train__steps=1, train__validate_every=1))
    given["model"].pop("width")
    given["model"]["text"] |= {"width": 8, "heads": 2}
    (tmp_path / "many.yaml").write_text(json.dumps(given))
    words = ("compare", tmp_path / "many.yaml", "match=20000", "--json")
    answer = command(*words, "model.layers=[1,4]", f"out={tmp_path / 'c'}")
    entries = json.loads(answer.out)["entries"]
    assert [entry["label"] for entry in entries] == ["model.layers=1", "model.layers=4"]
    assert all(15000 < entry["parameters"]["mean"] < 25000 for entry in entries)
    assert {"valid.score", "valid.films/accuracy", "valid.boxes/map"} <= entries[0].keys()
    answer = command(*words, "data.only=[null,films]", f"out={tmp_path / 'one'}")
    assert {"valid.films/accuracy"} < {*json.loads(answer.out)["entries"][1]} & {*entries[0]}
    (tmp_path / "other.yaml").write_text(json.dumps(given).replace("films/train.tsv", "films/valid.tsv"))
    answer = command("compare", tmp_path / "many.yaml", tmp_path / "other.yaml", f"out={tmp_path / 'two'}")
    assert (answer.code, "'other' has data.tasks.films.train=" in answer.err) == (2, True)
