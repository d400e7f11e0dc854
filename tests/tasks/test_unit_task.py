"""Many tasks in one model: trained in rounds, each scored and asked by itself, resumed to the same bits, refused."""

from __future__ import annotations

import json
import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import legato
from legato.config import merge
from legato.errors import ConfigError, DataError, FolderError, LegatoError
from legato.registry import TASKS
from legato.runs.config import check
from legato.runs.train import finished_result, plan_of
from legato.tasks.unit.rounds import Rounds
from legato.training.graph import shape_of
from tiny_boxes import HEIGHT, WIDTH, boxed, painted
from tiny_pictures import write_picture
from tiny_reviews import write_reviews
from tiny_runs import read_metrics, weights_digest

SMALL: dict[str, Any] = {
    "width": 16,
    "heads": 2,
    "layers": 1,
    "encoder_layers": 1,
    "dropout": 0.1,
    "queries": 6,
    "text": {"layers": 1},
    "encoder": {"name": "resnet", "stem": "3x3", "image": 8, "embedding": 6, "widths": [8, 12], "depths": [1, 1]},
}
TRAIN = {"steps": 4, "batch_rows": 4, "validate_every": 2, "log_every": 1, "samples": 1, "tensorboard": "false"}


def settings(folder: Path, **train: Any) -> dict[str, Any]:
    """Boxes, questions about the same pictures, and texts, on files in `folder`."""
    table = folder / "boxes.jsonl"
    if not table.exists():
        boxed(folder)
        colours = ["red" if number % 2 else "blue" for number in range(6)]
        for number, colour in enumerate(colours):
            write_picture(folder / f"plain{number}.png", colour, number)
        asked = [f"plain{number}.png\twhat colour is it?\t{colour}\n" for number, colour in enumerate(colours)]
        (folder / "asked.tsv").write_text("image\tquestion\tanswer\n" + "".join(asked))
        write_reviews(folder / "films.tsv", 24, 1)
    size = [HEIGHT, WIDTH]
    tasks = {
        "boxes": {"task": "detection", "train": "boxes.jsonl", "valid": "boxes.jsonl", "size": size, "rows": 3},
        "asked": {"task": "vqa", "train": "asked.tsv", "valid": "asked.tsv", "test": "asked.tsv", "weight": 2},
        "films": {"task": "classification", "train": "films.tsv", "valid": "films.tsv", "weight": 2},
    }
    whole: dict[str, Any] = {
        "data": {"tasks": tasks, "root": str(folder)},
        "model": SMALL,
        "train": {**TRAIN, **train},
    }
    return {"task": "unit", **whole, "device": "cpu"}


def job_of(given: dict[str, Any]) -> tuple[Any, list[str]]:
    said: list[str] = []
    plan = plan_of(check(given), torch.device("cpu"))
    return TASKS.get("unit").prepare(plan, said.append), said


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of three tasks, `run`, and their files."""
    folder = tmp_path_factory.mktemp("unit")
    given = settings(folder, steps=160, lr=0.003, validate_every=160)
    legato.train(merge(given, {"model": {"dropout": 0}}), out=folder / "run", quiet=True)
    return folder


# --- rounds ----------------------------------------------------------------------------------------


class Numbered:
    """Batches that are their own numbers."""

    steps_per_epoch, tokens_per_step = 7, 10

    def at(self, step: int) -> Any:
        return legato.data.batching.batch.Batch(legato.data.batching.batch.Inputs(torch.tensor([[step]])))


def test_a_round_has_the_steps_of_each_tasks_weight_and_follows_from_the_step_alone() -> None:
    weights = {"a": 3, "b": 1, "c": 2}
    rounds = Rounds(dict.fromkeys(weights, Numbered()), weights, seed=5)
    steps = [rounds.task_at(step) for step in range(24)]
    assert rounds.steps_per_epoch == 6
    assert all(Counter(name for name, _ in steps[start : start + 6]) == weights for start in range(0, 24, 6))
    assert len({tuple(name for name, _ in steps[start : start + 6]) for start in range(0, 24, 6)}) > 1
    for name, weight in weights.items():  # each task's own batches, one after the other
        assert [index for other, index in steps if other == name] == list(range(4 * weight))
    later = Rounds(dict.fromkeys(weights, Numbered()), weights, seed=5)
    assert [later.task_at(step) for step in (23, 2, 11)] == [steps[step] for step in (23, 2, 11)]
    batch = rounds.at(8)
    assert (batch.task, int(batch.inputs.token_ids)) == steps[8]


def test_batches_of_two_tasks_never_go_through_one_recording() -> None:
    rounds = Rounds(dict.fromkeys("ab", Numbered()), {"a": 1, "b": 1}, seed=0)
    assert shape_of(rounds.at(0)) != shape_of(rounds.at(1))
    assert shape_of(rounds.at(0)) in (shape_of(rounds.at(2)), shape_of(rounds.at(3)))


def test_one_task_alone_has_the_same_model_tokenizer_and_batches(home: Path) -> None:
    whole, said = job_of(settings(home))
    alone, _ = job_of(merge(settings(home), {"data": {"only": "films"}}))
    assert said[-1] == "a round, or epoch, has 5 steps: 1 of boxes, 2 of asked, 2 of films"
    assert (whole.batches.steps_per_epoch, alone.batches.steps_per_epoch) == (5, 2)
    assert whole.tokenizer.fingerprint() == alone.tokenizer.fingerprint()
    both = {name: job.model_config for name, job in (("whole", whole), ("alone", alone))}
    assert both["alone"].tasks == {"films": both["whole"].tasks["films"]}
    assert both["alone"].model_copy(update={"tasks": {}}) == both["whole"].model_copy(update={"tasks": {}})
    of_films = [step for step in range(10) if whole.batches.task_at(step)[0] == "films"]
    for step, own in zip(of_films, range(4), strict=True):
        assert torch.equal(whole.batches.at(step).inputs.ids, alone.batches.at(own).inputs.ids)
    assert {whole.batches.at(step).rows for step in range(5) if whole.batches.task_at(step)[0] == "boxes"} == {3}


# --- learning --------------------------------------------------------------------------------------


def test_it_learns_all_of_its_tasks(home: Path) -> None:
    held = legato.load(home / "run")
    found = held.evaluate(root=str(home), tasks={name: {"test": f"{name}.tsv"} for name in ("asked", "films")})
    assert found["films/accuracy"] > 0.9
    assert found["asked/accuracy"] > 0.9
    assert found["data"].count(str(home)) == 2
    assert any(title.startswith("films: ") for title, _, _ in found["details"])
    boxes = held.evaluate(root=str(home), tasks={"boxes": {"test": "boxes.jsonl"}})
    assert boxes["boxes/map_50"] > 0.2
    assert boxes["boxes/boxes"] == 19
    reached = json.loads((home / "run" / "result.json").read_text())["metrics"]
    each = [reached[f"valid.{name}"] for name in ("boxes/map", "asked/accuracy", "films/accuracy")]
    assert reached["valid.score"] == pytest.approx(sum(each) / 3)
    assert reached["test.asked/accuracy"] == found["asked/accuracy"]
    assert "test.score" not in reached  # of two tasks there is no test


def test_each_validation_shows_the_score_of_each_task(home: Path) -> None:
    last = [line for line in read_metrics(home / "run") if line["kind"] == "valid"][-1]
    assert {"score", "loss", "boxes/map_50", "asked/accuracy", "films/accuracy"} <= last.keys()
    assert last["loss"] == pytest.approx(sum(last[f"{name}/loss"] for name in ("boxes", "asked", "films")) / 3)


@pytest.mark.rare  # tests/slow/test_kills.py does this with every task
def test_a_run_that_is_interrupted_ends_with_the_same_weights(home: Path, tmp_path: Path) -> None:
    given = merge(
        settings(home, schedule="constant", steps=6, ema=0.9, validate_every=6, checkpoint_every=3),
        {"data": {"tasks": {"boxes": {}}}},
    )
    given["data"]["tasks"]["boxes"]["augment"] = {"flip": True}
    legato.train(given, out=tmp_path / "whole", quiet=True)
    legato.train(merge(given, {"train": {"steps": 3}}), out=tmp_path / "part", quiet=True)
    legato.train(None, {"train.steps": 6}, resume=tmp_path / "part", quiet=True)
    assert weights_digest(tmp_path / "whole") == weights_digest(tmp_path / "part")


@pytest.mark.slow
def test_the_parts_of_a_model_begin_with_trained_ones(home: Path, tmp_path: Path) -> None:
    """… whose tokenizer is then that of all tasks."""
    from tiny_adapted import published_folder

    text = published_folder(tmp_path / "bert", "bert", layers=1)
    given = merge(settings(home, steps=1, validate_every=1), {"from": {"text": str(text)}})
    given["model"] = {key: value for key, value in SMALL.items() if key != "text"}
    given["data"]["only"] = ["films"]
    legato.train(given, out=tmp_path / "run", quiet=True)
    held = legato.load(tmp_path / "run")
    assert held.tokenizer.fingerprint() == legato.load(text).tokenizer.fingerprint()
    assert not any("pooler" in name for name in held.module.state_dict())
    own = legato.load(text).module.state_dict()["embedding.weight"]
    assert (held.module.text.embedding.weight - own).abs().max() < 0.01
    legato.train(None, {"train.steps": 2}, resume=tmp_path / "run", quiet=True)
    assert finished_result(tmp_path / "run").steps == 2


def test_scenes_need_no_file_and_nothing_of_the_model_need_be_said(tmp_path: Path) -> None:
    scenes = {"train": "toy:scenes", "scenes": {"size": 32, "count": 6, "valid_count": 3}}
    tasks = {
        "true": {"task": "vqa", "statements": True, **scenes},
        "kinds": {"task": "image-classification", **scenes},
    }
    job, said = job_of({"task": "unit", "data": {"tasks": tasks}, "device": "cpu"})
    assert job.jobs["true"].labels == ["false", "true"]
    assert any(line.startswith("true: the model will see: scenes/train/0/0 and [CLS] ") for line in said)
    assert (job.plan.model.encoder.name, job.plan.model.text.name) == ("resnet", "bert")
    boxes = {"boxes": {"task": "detection", **scenes}}
    assert job_of({"task": "unit", "data": {"tasks": boxes}, "device": "cpu"})[0].plan.model.text is None


def test_tasks_of_texts_alone_have_nothing_that_reads_pictures(home: Path, tmp_path: Path) -> None:
    given = settings(home, steps=1, validate_every=1)
    given["data"]["tasks"] = {"films": given["data"]["tasks"]["films"]}
    given["model"] = {key: value for key, value in SMALL.items() if key != "encoder"}
    legato.train(given, out=tmp_path / "run", quiet=True)
    held = legato.load(tmp_path / "run")
    assert not held.loaded.processors.others
    assert held.for_task().predict("a fine film") in ("good", "bad")  # the only one there is


@pytest.mark.slow
def test_each_task_stands_beside_its_model_alone(home: Path, tmp_path: Path, capsys: Any) -> None:
    given = settings(home, validate_every=10)
    given["train"] = {key: value for key, value in given["train"].items() if key != "steps"} | {"epochs": 1}
    (tmp_path / "two.yaml").write_text(json.dumps({**given, "data": {**given["data"], "only": ["asked", "films"]}}))
    main = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "beside_alone.py"))["main"]
    main([str(tmp_path / "two.yaml"), str(tmp_path / "runs"), "tasks=films"])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| films")]
    assert rows[0][:2] == ["| films", "valid.accuracy"]
    assert [finished_result(tmp_path / "runs" / name).steps for name in ("all", "films")] == [4, 2]
    main([str(tmp_path / "two.yaml"), str(tmp_path / "runs"), "tasks=films"])  # nothing is trained again
    assert capsys.readouterr().out.count("| films") == 1


# --- asking ----------------------------------------------------------------------------------------


def test_from_python_too(home: Path) -> None:
    held = legato.load(home / "run")
    rows = [line.split("\t") for line in (home / "films.tsv").read_text().splitlines()[1:]]
    assert held.for_task("films").predict([text for text, _ in rows]) == [label for _, label in rows]
    assert isinstance(held.for_task("boxes").predict(painted(0)[0]), list)
    with pytest.raises(ConfigError, match=r"has the tasks boxes, asked, films; ask one of them"):
        held.predict("a film")
    with pytest.raises(ConfigError, match="there is no task 'films'; it is a model for classification"):
        held.for_task("films").for_task("films")


def test_a_folder_whose_tasks_are_not_its_models_is_refused(home: Path, tmp_path: Path) -> None:
    import shutil

    folder = Path(shutil.copytree(home / "run" / "best", tmp_path / "other"))
    held = json.loads((folder / "config.json").read_text())
    del held["legato"]["tasks"]["films"]
    (folder / "config.json").write_text(json.dumps(held))
    with pytest.raises(FolderError, match="does not say of each task"):
        legato.load(folder).for_task("asked")


# --- refusals --------------------------------------------------------------------------------------

FILMS = {"task": "classification", "train": "films.tsv"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, r"'data\.tasks' is needed, with a task at least"),
        ({"tasks": {"x": {"task": "sounds"}}}, r"data\.tasks\.x: 'sounds' is no task; there is"),
        ({"tasks": {"x": {"task": "lm"}}}, r"data\.tasks\.x.*'lm' is no task of a model of many"),
        ({"tasks": {"x": {"train": "films.tsv"}}}, r"data\.tasks\.x.*it needs a task beside its settings"),
        ({"tasks": {"a b": FILMS}}, r"'a b', which is no name of a task"),
        ({"tasks": {"x": {**FILMS, "weight": 0}}}, r"data\.tasks\.x\.weight=0 should be greater than or equal to 1"),
        ({"tasks": {"x": {**FILMS, "colums": 1}}}, r"unknown key 'data\.tasks\.x\.colums'; did you mean 'columns'"),
        ({"tasks": {"x": FILMS}, "only": "y"}, r"only names 'y', which is none of the tasks"),
        (
            {"tasks": {"x": {"task": "classification"}}},
            r"'data\.tasks\.x\.train' is needed; set data\.tasks\.x\.train=",
        ),
        ({"tasks": {"x": {**FILMS, "train": "lost.tsv"}}}, r"lost\.tsv; .* set data\.tasks\.x\.root"),
        ({"tasks": {"x": {**FILMS, "vectors": "v.txt"}}}, r"data\.tasks\.x\.vectors: the embedding is that of all"),
        ({"tasks": {"x": {**FILMS, "metric": "loss"}}}, r"data\.tasks\.x\.metric=loss: what decides is the mean"),
        ({"tasks": {"x": {**FILMS, "columns": ["sentence", "tag"]}}}, r"data\.tasks.*tag"),
        (
            {"tasks": {"y": FILMS, "x": {"task": "detection", "train": "boxes.jsonl", "augment": {"mixup": 1}}}},
            r"boxes follow data\.tasks\.x\.augment\.flip",
        ),
    ],
    ids=lambda value: None if isinstance(value, dict) else "",
)
def test_what_does_not_fit_is_said_in_a_line(home: Path, data: dict[str, Any], message: str) -> None:
    given = {**settings(home), "data": {"root": str(home), **data}}
    with pytest.raises((ConfigError, DataError), match=message) as refused:
        job_of(given)
    assert "\n" not in str(refused.value)


def test_a_task_that_the_model_cannot_read_is_refused(home: Path) -> None:
    given = settings(home)
    with pytest.raises(
        ConfigError, match=r"data\.tasks\.asked has text to read; name what reads it: model\.text=bert"
    ):
        job_of(merge(given, {"model": {"text": {"name": None}}}))
    boxes = {"boxes": given["data"]["tasks"]["boxes"]}
    with pytest.raises(ConfigError, match=r"none of data\.tasks reads text; leave out what does: model\.text=none"):
        job_of({**given, "data": {"root": str(home), "tasks": boxes}})
    with pytest.raises(ConfigError, match=r"model=bert has no heads for several tasks; use model=unit"):
        job_of({**given, "model": {"name": "bert"}})


def test_an_evaluation_says_which_tasks_there_are(home: Path) -> None:
    held = legato.load(home / "run")
    with pytest.raises(ConfigError, match=r"set data\.tasks\.boxes\.test=FILE; tasks: boxes, asked, films"):
        held.evaluate()
    with pytest.raises(ConfigError, match="has no task 'film'; did you mean 'films'"):
        held.evaluate(tasks={"film": {"test": "x.tsv"}})
    with pytest.raises(LegatoError, match=r"'data\.tasks\.films\.test' is needed"):
        held.evaluate(tasks={"films": {}})
