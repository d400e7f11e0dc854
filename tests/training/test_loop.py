"""The loop: what it computes, when it stops and what it leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import legato
from legato.errors import ConfigError
from legato.folders.weights import load_tensors
from legato.interrupts import Stopped
from legato.tasks.lm.job import LanguageJob
from legato.training.checkpoint_files import list_checkpoints
from legato.training.checkpoints import load_checkpoint
from legato.training.loop import Progress, Trainer
from tiny_runs import finish, read_metrics, small, start, wait_for, weights_digest, words

Scores = Callable[..., None]


def train(folder: Path, name: str = "run", **changes: Any) -> Path:
    """A small run in `folder`/`name`."""
    return legato.train("lm", small(folder, **changes), out=folder / name, quiet=True).run


def model_weights(run: Path, which: str = "last") -> dict[str, Tensor]:
    return load_tensors(run / which / "model.safetensors")


def checkpoint_steps(run: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in list_checkpoints(run / "checkpoints")]


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> Scores:
    """Lets a test say what each validation finds."""

    def script(*losses: float) -> None:
        left = iter(losses)
        monkeypatch.setattr(LanguageJob, "validate", lambda self, model: {"loss": next(left)})

    return script


# ── gradients ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.thinned(3)
@pytest.mark.parametrize("parts", [2, 3, 8])
@pytest.mark.parametrize("batching", ["streams", "windows", "rows"])
def test_accumulating_small_batches_equals_one_large_batch(parts: int, batching: str, tmp_path: Path) -> None:
    same = {
        "model__dropout": 0,
        "train__optimizer": "sgd",
        "train__steps": 6,
        "data__batching": batching,
        "data__forget": 0.2,
    }
    large = model_weights(train(tmp_path, "large", **same))
    accumulated = model_weights(train(tmp_path, "small", train__accumulate=parts, **same))
    torch.testing.assert_close(accumulated, large, rtol=1e-5, atol=1e-6)


def test_a_large_gradient_is_clipped_to_the_given_norm(tmp_path: Path) -> None:
    one_step = {"train__optimizer": "sgd", "train__lr": 1, "train__schedule": "constant", "train__keep": 9}
    run = train(tmp_path, train__steps=1, train__clip=0.01, **one_step)
    before, after = (load_checkpoint(place).weights for place in list_checkpoints(run / "checkpoints"))
    moved = torch.cat([(after[name] - before[name]).flatten() for name in before])
    assert float(moved.norm()) == pytest.approx(0.01, rel=1e-3)


def test_the_norm_that_is_reported_is_the_one_before_clipping(tmp_path: Path) -> None:
    norms = [
        read_metrics(train(tmp_path, str(clip), train__steps=1, train__clip=clip))[0]["norm"] for clip in (0, 1e-3)
    ]
    assert norms[0] == norms[1] > 1e-3


def test_a_zero_clip_clips_nothing(tmp_path: Path) -> None:
    runs = [
        train(tmp_path, str(clip), train__optimizer="sgd", train__steps=3, train__clip=clip) for clip in (0, 1000000)
    ]
    assert weights_digest(runs[0]) == weights_digest(runs[1])


# ── length ────────────────────────────────────────────────────────────────────────────────────────


def test_epochs_count_passes_over_the_text(tmp_path: Path) -> None:
    result = legato.train(
        "lm",
        {**small(tmp_path), "train.steps": None, "train.epochs": 2, "train.validate_every": None},
        out=tmp_path / "run",
        quiet=True,
    )
    assert result.steps % 2 == 0
    length = len((tmp_path / "train.txt").read_text())
    assert result.steps // 2 == length // 128
    assert result.tokens == result.steps * 128


def test_a_run_validates_at_least_four_times_by_itself(tmp_path: Path) -> None:
    run = train(tmp_path, train__steps=10, train__validate_every=None)
    assert [line["step"] for line in read_metrics(run) if line["kind"] == "valid"] == [3, 6, 9, 10]


def test_early_stopping_waits_for_its_patience(tmp_path: Path, scores: Scores) -> None:
    scores(5.0, 4.0, 4.5, 4.0, 3.0, 3.5, 3.1, 2.0)
    run = train(tmp_path, train__steps=40, train__patience=2)
    assert checkpoint_steps(run)[-1] == 16
    assert json.loads((run / "result.json").read_text())["steps"] == 16


def test_a_run_that_stopped_early_goes_on_with_more_patience(tmp_path: Path, scores: Scores) -> None:
    scores(5.0, 6.0, 4.0)
    run = train(tmp_path, train__patience=1)
    assert legato.train(resume=run, settings={"train.patience": 2}, quiet=True).steps == 12


def test_no_patience_never_stops(tmp_path: Path, scores: Scores) -> None:
    scores(1.0, 2.0, 3.0)
    assert checkpoint_steps(train(tmp_path))[-1] == 12


def test_a_finished_run_can_be_lengthened(tmp_path: Path) -> None:
    run = train(tmp_path)
    assert legato.train(resume=run, settings={"train.steps": 16}, quiet=True).steps == 16
    assert [line["step"] for line in read_metrics(run) if line["kind"] == "train"] == list(range(1, 17))


# ── validation ────────────────────────────────────────────────────────────────────────────────────


def test_best_is_the_model_of_the_best_validation_and_last_the_last(tmp_path: Path, scores: Scores) -> None:
    scores(5.0, 3.0, 4.0)
    run = train(tmp_path, train__keep=9)
    for which, step in (("best", 8), ("last", 12)):
        kept = load_checkpoint(run / "checkpoints" / f"step-{step}").weights
        assert all(torch.equal(kept[name], tensor) for name, tensor in model_weights(run, which).items())


def test_of_two_validations_that_score_alike_the_one_with_the_lower_loss_is_better() -> None:
    class Started:
        progress = Progress(best=0.0, best_loss=5.0)

        class job:
            lower_is_better = False

    assert Trainer._better(Started(), 0.0, 4.0)  # type: ignore[arg-type]
    assert not Trainer._better(Started(), 0.0, 6.0)  # type: ignore[arg-type]
    assert Trainer._better(Started(), 0.1, 6.0)  # type: ignore[arg-type]


def test_a_score_that_is_not_finite_is_never_the_best(tmp_path: Path, scores: Scores) -> None:
    scores(float("nan"), 3.0, float("-inf"))
    run = train(tmp_path, train__keep=9)
    progress = json.loads((run / "checkpoints" / "step-12" / "progress.json").read_text())["progress"]
    assert progress["best_step"] == 8


def test_plateau_cuts_the_rate_when_validation_stops_falling(tmp_path: Path, scores: Scores) -> None:
    scores(5.0, 6.0, 4.0)
    run = train(tmp_path, train__schedule="plateau", train__lr=0.01, train__plateau_factor=0.1)
    rates = {line["step"]: line["lr"] for line in read_metrics(run) if line["kind"] == "train"}
    assert [rates[step] for step in (1, 8, 9, 12)] == pytest.approx([0.01, 0.01, 0.001, 0.001])


@pytest.mark.parametrize(
    ("losses", "patience", "begins"),
    [
        ((5.0, 4.0, 4.5, 3.0, 3.5, 2.0), 1, None),  # always below the best of all but the last one
        ((5.0, 4.0, 4.5, 4.2, 3.0, 2.0), 1, 16),  # 4.2 > min(5, 4)
        ((5.0, 4.0, 4.5, 4.2, 3.0, 2.0), 2, None),  # 4.2 < min(5), 3 < min(5, 4)
        ((1.0, 2.0, 3.0, 4.0, 5.0, 6.0), 3, 20),  # before that there is none more than three validations back
    ],
)
def test_averaging_begins_as_in_algorithm_1_of_awd_lstm(
    losses: tuple[float, ...], patience: int, begins: int | None, tmp_path: Path, scores: Scores
) -> None:
    scores(*losses)
    run = train(tmp_path, train__optimizer="asgd", train__average_patience=patience, train__steps=24)
    made = json.loads((run / "checkpoints" / "step-24" / "progress.json").read_text())["average_updates"]
    assert made == (None if begins is None else 24 - begins)


def test_triggered_averaging_is_the_mean_of_the_weights_since_then(tmp_path: Path, scores: Scores) -> None:
    scores(1.0, 2.0, 3.0)
    settings = {
        "train__optimizer": "asgd",
        "train__average_patience": 1,
        "train__steps": 3,
        "train__validate_every": 1,
    }
    run = train(tmp_path, train__checkpoint_every=1, train__keep=9, **settings)
    assert load_checkpoint(run / "checkpoints" / "step-3").progress["average_updates"] == 0
    scores(4.0, 5.0)
    legato.train(resume=run, settings={"train.steps": 5}, quiet=True)
    fourth, fifth = (load_checkpoint(run / "checkpoints" / f"step-{step}").weights for step in (4, 5))
    mean = {name: (fourth[name] + fifth[name]) / 2 for name in fourth}
    torch.testing.assert_close(model_weights(run, "last"), {name: mean[name] for name in model_weights(run)})


def test_validation_and_best_use_the_averaged_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []

    def validate(self: LanguageJob, model: Any) -> dict[str, float]:
        seen.append(model.embedding.weight.detach().clone())
        return {"loss": 1.0}

    monkeypatch.setattr(LanguageJob, "validate", validate)
    run = train(tmp_path, train__ema=0.9, train__steps=4)
    kept = load_checkpoint(run / "checkpoints" / "step-4")
    assert torch.equal(seen[0], kept.average["embedding.weight"])
    assert not torch.equal(seen[0], kept.weights["embedding.weight"])
    assert torch.equal(model_weights(run, "best")["embedding.weight"], seen[0])


def test_samples_are_shown_at_each_validation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    legato.train("lm", small(tmp_path, train__samples=2), out=tmp_path / "run")
    lines = capsys.readouterr().err.splitlines()
    places = [number for number, line in enumerate(lines) if line.startswith("valid at step")]
    assert len(places) == 3
    assert all(lines[place + 1].startswith("  | ") for place in places)
    assert all(any(line.startswith("  | ") for line in lines[place + 2 :]) for place in places)


# ── what is left behind ───────────────────────────────────────────────────────────────────────────


def test_metrics_hold_one_line_for_each_report(tmp_path: Path) -> None:
    run = train(tmp_path, train__steps=8, train__log_every=2)
    lines = read_metrics(run)
    assert [(line["step"], line["kind"]) for line in lines] == [
        (2, "train"),
        (4, "train"),
        (4, "valid"),
        (6, "train"),
        (8, "train"),
        (8, "valid"),
    ]
    assert {"loss", "lr", "norm", "tokens_per_second", "tokens"} <= lines[0].keys()
    assert {"loss", "perplexity", "word_perplexity", "bits_per_byte"} <= lines[2].keys()
    assert lines[-2]["tokens"] == 8 * 128


def read_events(run: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


@pytest.mark.parametrize(("kind", "tag"), [("train", "train/loss"), ("valid", "valid/perplexity")])
def test_tensorboard_gets_the_same_figures(kind: str, tag: str, tmp_path: Path) -> None:
    run = train(tmp_path, train__tensorboard=True)
    name = tag.split("/")[1]
    logged = [(line["step"], line[name]) for line in read_metrics(run) if line["kind"] == kind]
    assert read_events(run, tag) == [(step, pytest.approx(value, rel=1e-6)) for step, value in logged]


def test_tensorboard_forgets_the_steps_that_a_resumed_run_makes_again(tmp_path: Path) -> None:
    run = train(tmp_path, train__tensorboard=True, train__keep=9)
    shutil.rmtree(run / "checkpoints" / "step-12")
    (run / "result.json").unlink()
    legato.train(resume=run, quiet=True)
    assert [step for step, _ in read_events(run, "train/loss")] == list(range(1, 13))


def test_only_the_last_few_checkpoints_are_kept(tmp_path: Path) -> None:
    assert checkpoint_steps(train(tmp_path, train__checkpoint_every=2, train__keep=3)) == [8, 10, 12]


def test_provenance_says_what_was_trained_on_what(tmp_path: Path) -> None:
    about = json.loads((train(tmp_path, seed=3) / "provenance.json").read_text())
    assert about["legato"] == legato.__version__
    assert about["seed"] == 3
    assert about["data"].keys() == {"train", "valid"}


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_seed_gives_the_same_bits(seed: int, tmp_path: Path) -> None:
    runs = [train(tmp_path, name, seed=seed) for name in ("one", "two")]
    assert weights_digest(runs[0]) == weights_digest(runs[1])


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    runs = [train(tmp_path, str(seed), seed=seed) for seed in (0, 1)]
    assert weights_digest(runs[0]) != weights_digest(runs[1])


# ── stopping ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def signal_at_step_6(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sends this process a signal during the sixth step."""

    def arm(signum: int) -> None:
        update = Trainer._update

        def interrupted(self: Trainer) -> None:
            if self.step == 5:
                os.kill(os.getpid(), signum)
            update(self)

        monkeypatch.setattr(Trainer, "_update", interrupted)

    return arm


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_stops_after_the_step(
    signum: int, tmp_path: Path, signal_at_step_6: Callable[[int], None]
) -> None:
    signal_at_step_6(signum)
    with pytest.raises(Stopped) as stopped:
        train(tmp_path)
    assert stopped.value.signum == signum
    run = tmp_path / "run"
    assert checkpoint_steps(run)[-1] == 6
    kept = load_checkpoint(run / "checkpoints" / "step-6").weights
    assert all(torch.equal(kept[name], tensor) for name, tensor in model_weights(run, "last").items())


STOPPED: dict[str, dict[str, Any]] = {
    "dropout": {"model__dropout": 0.2},
    "ema and plateau": {"train__ema": 0.9, "train__schedule": "plateau", "train__plateau_patience": 2},
    "asgd": {"train__optimizer": "asgd", "train__average_patience": 1, "data__forget": 0.2},
    "momentum": {"train__optimizer": "sgd", "train__momentum": 0.9, "train__accumulate": 2},
    "windows": {"model": "window", "data__batching": "windows"},
}


@pytest.mark.parametrize("kind", STOPPED)
def test_a_stopped_run_goes_on_to_the_same_bits(
    kind: str, tmp_path: Path, scores: Scores, signal_at_step_6: Callable[[int], None]
) -> None:
    losses = (5.0, 6.0, 6.0, 6.0, 7.0, 7.0, 7.0, 7.0, 4.0, 8.0, 8.0, 8.0)  # an average and two cuts begin
    scores(*losses, *losses)
    settings = {"train__validate_every": 1, **STOPPED[kind]}
    whole = train(tmp_path, "whole", **settings)
    with pytest.MonkeyPatch.context():
        signal_at_step_6(signal.SIGTERM)
    with pytest.raises(Stopped):
        train(tmp_path, **settings)
    legato.train(resume=tmp_path / "run", quiet=True)
    assert weights_digest(tmp_path / "run") == weights_digest(whole)


def test_signals_are_left_as_they_were_found(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    train(tmp_path, train__steps=1)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_command_ends_with_the_code_of_its_signal_and_says_how_to_go_on(
    signum: int, code: int, tmp_path: Path
) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    process = start(["train", "lm", *words(small(tmp_path, train__steps=100000)), f"out={run}"], log)
    wait_for(lambda: len(read_metrics(run)) > 3, process)
    assert process.pid is not None
    os.kill(process.pid, signum)
    assert finish(process) == code
    assert f"go on with: legato train resume={run}" in log.read_text()
    assert checkpoint_steps(run)[-1] > 3


# ── compiling ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_compiled_model_learns_as_the_plain_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Traced and differentiated as always, but not handed to a C++ compiler, which would take half a minute.
    compile_it = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compile_it(self, backend="aot_eager"))
    same = {"model": "window", "model__layers": 1, "model__dropout": 0, "train__steps": 3, "train__optimizer": "sgd"}
    plain = model_weights(train(tmp_path, "plain", **same))
    compiled = model_weights(train(tmp_path, "compiled", train__compile=True, **same))
    torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_model_that_cannot_be_compiled_is_trained_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("no compiler\nof any kind")

    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: setattr(self, "_compiled_call_impl", refuse))
    monkeypatch.setattr("legato.training.compiling.compile_loss", lambda on=True: None)
    same = {"model__dropout": 0.2, "train__accumulate": 2}
    plain = weights_digest(train(tmp_path, "plain", train__compile=False, **same))
    assert weights_digest(train(tmp_path, "auto", **same)) == plain
    assert "not compiled" not in capsys.readouterr().err
    assert weights_digest(train(tmp_path, "compiled", train__compile=True, **same)) == plain
    assert "the model is not compiled, for that failed: no compiler of any kind" in capsys.readouterr().err


def test_settings_alone_name_their_task(tmp_path: Path) -> None:
    result = legato.train({"task": "lm", **small(tmp_path)}, out=tmp_path / "run", quiet=True)
    assert result.run == tmp_path / "run"
    with pytest.raises(ConfigError, match="which task"):
        legato.train(small(tmp_path), quiet=True)
