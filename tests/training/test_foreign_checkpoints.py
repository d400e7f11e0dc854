"""Run folders that are whole by their checksums, and say what no run of ours says: one line, or what is before it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import legato
from legato.errors import CheckpointError, FolderError, LegatoError
from legato.folders.weights import load_tensors, save_tensors
from legato.runs.compare import compare
from legato.runs.run_folder import RunFolder
from legato.training.checkpoint_files import FILES
from legato.training.checkpoints import _digest, load_checkpoint
from tiny_runs import small

Edit = Callable[[Any], Any]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of eight steps with checkpoints at four and eight, and the texts that it read."""
    home = tmp_path_factory.mktemp("home")
    settings = small(home, train__steps=8, train__validate_every=4, train__keep=2, train__ema=0.9)
    legato.train("lm", settings, out=home / "run", quiet=True)
    return home


@pytest.fixture
def run(home: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(home / "run", tmp_path / "run"))


def go_on(run: Path) -> Any:
    return legato.train(None, {"train.steps": 10}, resume=run, quiet=True)


def resigned(place: Path) -> None:
    """Make the checksums those of what is there."""
    (place / "manifest.json").write_text(json.dumps({name: _digest(place / name) for name in FILES}))


def change(run: Path, edit: Edit, step: int = 8) -> None:
    """Edit a checkpoint's progress.json, and sign it."""
    place = run / "checkpoints" / f"step-{step}"
    progress = json.loads((place / "progress.json").read_text())
    (place / "progress.json").write_text(json.dumps(edit(progress)))
    resigned(place)


def retensor(run: Path, name: str, edit: Edit) -> None:
    place = run / "checkpoints" / "step-8"
    save_tensors(edit(load_tensors(place / name)), place / name)
    resigned(place)


def refused(run: Path) -> str:
    with pytest.raises(LegatoError) as problem:
        go_on(run)
    assert "\n" not in str(problem.value)
    return str(problem.value)


def inside(key: str, value: Any) -> Edit:
    return lambda progress: {**progress, "progress": {**progress["progress"], key: value}}


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (inside("seconds", "x"), "in 'progress': 'seconds' should be a valid number, not 'x'"),
        (inside("scores", ["x"]), "in 'progress': 'scores.0' should be a valid number"),
        (inside("mood", 1), "in 'progress': 'mood'"),
        (lambda p: {**p, "progress": [1]}, "'progress' should hold a JSON object, not [1]"),
        (lambda p: {**p, "schedule": {"cut": [], "bad": 0}}, "'schedule.cut' should be a valid number, not []"),
        (lambda p: {**p, "schedule": {"cut": 1.0}}, "lacks 'schedule.bad'"),
        (lambda p: {**p, "average_updates": -1}, "'average_updates' should be greater than or equal to 0, not -1"),
        (lambda p: {**p, "stream": None}, "carries no state for each of 1 parts of a step"),
        (lambda p: {**p, "stream": {"list": []}}, "carries no state for each of 1 parts of a step"),
        (lambda p: {**p, "stream": {"list": [{"list": []}]}}, "the model cannot go on from its state"),
        (lambda p: {**p, "stream": {"list": [{"tuple": [0, 0, 0]}]}}, "the model cannot go on from its state"),
    ],
)
def test_progress_of_another_kind_is_named(run: Path, edit: Edit, said: str) -> None:
    change(run, edit)
    found = refused(run)
    assert said in found
    assert "the checkpoint at step 8" in found


@pytest.mark.parametrize(
    "edit",
    [
        lambda p: [p],
        lambda p: {**p, "step": "8"},
        lambda p: {**p, "step": 9},
        lambda p: {**p, "stream": 99},
        lambda p: {**p, "stream": {"list": 3}},
        lambda p: {**p, "stream": {"set": [0]}},
        lambda p: {key: value for key, value in p.items() if key != "step"},
    ],
)
def test_what_is_no_progress_is_damage_and_the_one_before_is_used(run: Path, edit: Edit) -> None:
    change(run, edit)
    with pytest.raises(CheckpointError, match=r"step-8 is damaged"):
        load_checkpoint(run / "checkpoints" / "step-8")
    assert go_on(run).steps == 10


@pytest.mark.parametrize(
    ("name", "edit", "said"),
    [
        ("optimizer.safetensors", lambda t: {**t, "x/step": torch.zeros(())}, "keeps nothing called 'x/step'"),
        ("optimizer.safetensors", lambda t: {**t, "x": torch.zeros(())}, "keeps nothing called 'x'"),
        ("optimizer.safetensors", lambda t: {k: v[:1] if v.dim() else v for k, v in t.items()}, "of shape (1,"),
        ("optimizer.safetensors", lambda t: {k: v.long() for k, v in t.items()}, "int64 of shape"),
        ("optimizer.safetensors", lambda t: {k: v for k, v in t.items() if "sq" not in k}, "lacks '"),
        ("average.safetensors", lambda t: {}, "lacks the average of"),
        ("average.safetensors", lambda t: {k: v[:1] for k, v in t.items()}, "of shape (1,"),
        ("random.safetensors", lambda t: {}, "lacks the state of the random numbers"),
        ("random.safetensors", lambda t: {"cpu": t["cpu"][:7]}, "holds no state of random numbers"),
        ("random.safetensors", lambda t: {"cpu": t["cpu"].float()}, "holds no state of random numbers"),
        ("stream.safetensors", lambda t: {k: v[..., :3] for k, v in t.items()}, "cannot go on from its state"),
        ("weights.safetensors", lambda t: {k: v[:1] for k, v in t.items()}, "but the model's is"),
        ("weights.safetensors", lambda t: {}, "the checkpoint at step 8 lacks the tensor"),
    ],
)
def test_tensors_of_another_run_are_named(run: Path, name: str, edit: Edit, said: str) -> None:
    retensor(run, name, edit)
    assert said in refused(run)


@pytest.mark.parametrize("content", ["[]", '{"progress.json": 3}', "{", "null", "[" * 10**5, '"\\ud800"'])
def test_a_manifest_that_is_none_is_damage(run: Path, content: str) -> None:
    (run / "checkpoints" / "step-8" / "manifest.json").write_text(content)
    assert go_on(run).steps == 10


@pytest.mark.parametrize(
    "line",
    ["[1]", "3", "null", "{}", '{"step": "x", "kind": "valid"}', '{"step": 1}', "{", '{"step": -1, "kind": ""}', "["],
)
def test_a_line_of_metrics_that_is_no_report_is_left_out(run: Path, line: str) -> None:
    before = RunFolder(run).metrics()
    with (run / "metrics.jsonl").open("a") as file:
        file.write(line + "\n")
    assert RunFolder(run).metrics() == before
    assert go_on(run).steps == 10


def test_figures_that_are_no_numbers_are_kept_as_they_were_written(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 8, "kind": "valid", "spearman": float("nan")}) + "\n")
    assert str(RunFolder(run).metrics()[-1]["spearman"]) == "nan"
    change(run, inside("scores", [float("nan"), float("inf")]))
    assert go_on(run).steps == 10


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[1]", "should hold a JSON object, not [1]"),
        ('{"data": [1]}', "'data' should hold a JSON object, not [1]"),
        ('{"data": {"train": 3}}', "'data.train' should be a valid string, not 3"),
        ('{"data": {}, "device": 1}', "'device' should be a valid string, not 1"),
        ("{", "is not valid JSON"),
    ],
)
def test_a_provenance_that_is_none_is_named(run: Path, content: str, said: str) -> None:
    (run / "provenance.json").write_text(content)
    found = refused(run)
    assert found.startswith(str(run / "provenance.json"))
    assert said in found


COMPARED = {"train.steps": 2, "train.validate_every": 2, "model": ["lstm", "gru"]}


@pytest.fixture(scope="module")
def compared(home: Path) -> Path:
    compare("lm", {**small(home), **COMPARED}, out=home / "compared", quiet=True)
    for name in ("compare.json", "compare.png"):
        (home / "compared" / name).unlink()
    return home / "compared"


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda r: [r], "should hold a JSON object"),
        (lambda r: {**r, "steps": "8"}, "'steps' should be a valid integer, not '8'"),
        (lambda r: {**r, "metrics": {**r["metrics"], "valid.perplexity": "x"}}, "'metrics.valid.perplexity' should"),
        (lambda r: {k: v for k, v in r.items() if k != "metrics"}, "lacks 'metrics'"),
    ],
)
def test_a_result_that_is_none_is_named_where_runs_are_compared(
    compared: Path, home: Path, tmp_path: Path, edit: Edit, said: str
) -> None:
    out = Path(shutil.copytree(compared, tmp_path / "c"))
    file = out / "lstm" / "result.json"
    file.write_text(json.dumps(edit(json.loads(file.read_text()))))
    with pytest.raises(FolderError) as problem:
        compare("lm", {**small(home), **COMPARED}, out=out, quiet=True)
    assert said in str(problem.value)
    assert str(file) in str(problem.value)
