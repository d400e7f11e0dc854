"""`legato train` from end to end, on texts small enough for a test: what it says, writes and repeats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import legato
from legato.errors import FolderError
from legato.runs.run_folder import RunFolder
from shells import in_a_shell, piped
from tiny_runs import read_metrics, small, weights_digest, words


@pytest.mark.slow
def test_training_from_a_shell_leaves_a_run_that_can_be_evaluated(home: Path, tmp_path: Path) -> None:
    trained = in_a_shell(
        *("train", "lm", f"data.train={home}/train.txt", f"data.valid={home}/valid.txt", "model=lstm"),
        *("tokenizer=char", "out=runs/x", "train.steps=3", "train.batch_tokens=256", "model.width=16"),
        folder=tmp_path,
    )
    assert trained.returncode == 0, trained.stderr
    assert trained.stdout == ""
    assert "the best model is in runs/x/best" in trained.stderr
    assert {path.name for path in (tmp_path / "runs" / "x").iterdir()} >= {
        "config.yaml",
        "metrics.jsonl",
        "provenance.json",
        "result.json",
        "checkpoints",
        "best",
        "last",
    }
    evaluated = in_a_shell("eval", "runs/x", f"data.test={home}/valid.txt", folder=tmp_path)
    assert evaluated.returncode == 0, evaluated.stderr
    assert "bits per byte" in evaluated.stdout


@pytest.mark.slow
def test_training_goes_on_to_its_end_when_nobody_reads_what_it_says(home: Path, tmp_path: Path) -> None:
    settings = " ".join(words(small(home, train__steps=3)))
    trained = piped(f"train lm {settings} out={tmp_path}/run --json 2>&1 | true")
    assert (trained.returncode, trained.stderr) == (0, "")
    assert (tmp_path / "run" / "result.json").is_file()


def test_training_says_what_it_sees_and_what_it_reached(command: Any, tmp_path: Path) -> None:
    answer = command("train", "lm", *words(small(tmp_path)), f"out={tmp_path}/run")
    assert answer.code == 0
    for part in ("training and", "the model will see:", "parameters, on cpu", "step 12/12", "valid perplexity:"):
        assert part in answer.err


def test_slow_steps_are_shown_between_the_reports_that_are_logged(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legato.training.display.FIRST_GAP_S", -1.0)  # every step is a slow one
    answer = command("train", "lm", *words(small(tmp_path)), "train.log_every=6", f"out={tmp_path}/run")
    shown = [line.split("/")[0] for line in answer.err.splitlines() if line.startswith("step ")]
    assert shown == [f"step {step:>2}" for step in range(1, 13)]
    logged = [line["step"] for line in read_metrics(tmp_path / "run") if line["kind"] == "train"]
    assert logged == [6, 12]


def test_training_quietly_says_nothing(command: Any, tmp_path: Path) -> None:
    answer = command("train", "lm", *words(small(tmp_path)), f"out={tmp_path}/run", "--quiet")
    assert (answer.code, answer.out, answer.err) == (0, "", "")


def test_training_with_json_ends_in_one_line_of_figures(command: Any, tmp_path: Path) -> None:
    answer = command("train", "lm", *words(small(tmp_path)), f"out={tmp_path}/run", "--json")
    figures = json.loads(answer.out)
    assert figures["run"] == f"{tmp_path}/run"
    assert figures["steps"] == 12
    assert figures["valid.perplexity"] > 1


def test_a_run_without_a_name_gets_the_next_free_one(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        command("train", "lm", *words(small(tmp_path, train__steps=1)))
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["lm-lstm-1", "lm-lstm-2"]


def test_without_a_validation_text_the_last_share_is_held_out(command: Any, home: Path, tmp_path: Path) -> None:
    answer = command("train", "lm", *words(small(home)), "data.valid=none", f"out={tmp_path}/run")
    assert answer.code == 0
    assert (tmp_path / "run" / "best" / "model.safetensors").exists()


def test_a_test_text_is_scored_at_the_end(command: Any, home: Path, tmp_path: Path) -> None:
    answer = command("train", "lm", *words(small(home)), f"data.test={home}/valid.txt", f"out={tmp_path}/run")
    assert "test perplexity:" in answer.err
    result = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]
    assert result["test.loss"] == result["valid.loss"]


def test_the_saved_settings_of_a_run_repeat_it_to_the_same_bits(command: Any, home: Path, tmp_path: Path) -> None:
    assert command("train", home / "run" / "config.yaml", f"out={tmp_path}/again").code == 0
    assert weights_digest(tmp_path / "again") == weights_digest(home / "run")


def test_a_settings_file_is_overlaid_by_words(command: Any, home: Path, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"task": "lm", **small(home)}))
    assert command("train", tmp_path / "a.yaml", "train.steps=2", f"out={tmp_path}/run").code == 0
    kept = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (kept["train"]["steps"], kept["model"]["width"]) == (2, 16)


@pytest.mark.parametrize(("bound", "verdict"), [(1e9, "reached"), (1.0, "NOT reached")])
def test_a_recipe_says_whether_its_promise_was_kept(
    bound: float, verdict: str, command: Any, home: Path, tmp_path: Path
) -> None:
    recipe = {"task": "lm", **small(home, train__steps=1), "expect": {"valid.perplexity": {"at_most": bound}}}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(recipe))
    answer = command("train", tmp_path / "a.yaml", f"out={tmp_path}/run")
    lines = [line for line in answer.err.splitlines() if line.startswith("expected valid.perplexity ≤")]
    assert [line.endswith(f", {verdict}") for line in lines] == [True]


def test_an_expectation_that_was_not_measured_was_not_reached(home: Path, tmp_path: Path) -> None:
    settings = {**small(home, train__steps=2), "expect": {"test.perplexity": {"at_most": 10}}}
    assert legato.train("lm", settings, out=tmp_path / "run", quiet=True).reached == {"test.perplexity": False}


def test_several_processes_are_told_that_they_are_not_supported(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    answer = command("train", "lm", f"data.train={tmp_path}/none.txt")
    assert answer.code == 2
    assert "several GPUs is not supported yet: start legato train without torchrun" in answer.err
    assert answer.err.count("\n") == 1


def test_a_run_is_trained_by_one_process_at_a_time(home: Path, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", {"task": "lm"})
    with pytest.raises(FolderError, match="being trained by another process"):
        legato.train(resume=tmp_path / "run", quiet=True)
    run.release()


def test_hidden_words_are_told_beside_bits_per_byte(home: Path, tmp_path: Path) -> None:
    settings = {
        **small(home, train__steps=2),
        "tokenizer": "word",
        "tokenizer.min_count": 1000,
        "train.batch_tokens": 32,
        "data.window": 8,
    }
    assert legato.train("lm", settings, out=tmp_path / "run", quiet=True).metrics["valid.unknown_share"] > 0


def test_a_run_that_is_made_longer_says_how_its_rate_jumps(command: Any, home: Path, tmp_path: Path) -> None:
    settings = small(home, train__steps=4, train__lr=0.02, train__schedule="linear")
    assert command("train", "lm", *words(settings), f"out={tmp_path}/run", "--quiet").code == 0
    longer = command("train", f"resume={tmp_path}/run", "train.steps=8")
    assert longer.code == 0
    said = (
        "note: the learning rate goes from 0.005 to 0.01 here, for train.schedule=linear now ends at step 8, not at 4"
    )
    assert said in longer.err


def test_compiling_gives_a_sign_of_life(
    command: Any, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.nn.Module.compile", lambda self: None)
    monkeypatch.setattr("legato.training.compiling.compile_loss", lambda: None)
    settings = words(small(home, train__steps=2))
    lines = command("train", "lm", *settings, "train.compile=true", f"out={tmp_path}/c").err.splitlines()
    begun, done = (next(n for n, line in enumerate(lines) if said in line) for said in ("compiling the", "compiled:"))
    assert begun < done < next(n for n, line in enumerate(lines) if line.startswith("step "))
    assert "compiling the" not in command("train", "lm", *settings, f"out={tmp_path}/plain").err
