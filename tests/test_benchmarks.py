"""Benchmarks: that they run, and end without noise when nobody reads on; never how fast anything is."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from legato.data.batching.batch import Batch, Inputs
from legato.data.batching.picture_batches import _Ahead
from tiny_pictures import TINY_CAPTIONER, captioned
from tiny_sounds import SMALL as SMALL_SPEECH
from tiny_sounds import write_sounds

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def benchmark(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def translate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))  # what it shares with the others
    return benchmark("translate")


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = benchmark("sides")
    monkeypatch.setattr(module, "versions", dict)  # the peers need not be installed
    return module


def test_a_side_tells_its_seconds_and_what_it_wrote(translate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(translate.SIDES, "echo", lambda: lambda request: [[request]])
    seconds, written = translate.timed_side("echo")(7)
    assert seconds >= 0
    assert written == [[7]]


def test_8_bits_are_compared_with_8_bits(translate: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    seconds = {"legato": [2.0], "legato-int8": [1.0], "ctranslate2": [4.0], "ctranslate2-int8": [0.5]}
    written = {name: [[1, 2]] * translate.SENTENCES for name in seconds}
    work, limits = translate.Work(1, 64, 1, 10), translate.Limits(1e9, 1e9)
    figures = translate.tell("greedy", seconds, written, work, limits)
    assert figures["legato_over"] == {"ctranslate2": 2.0, "ctranslate2-int8": 0.5}
    assert figures["share"]["legato-int8"] == pytest.approx(2 * figures["share"]["legato"], rel=0.01)
    assert "2.00 ×" in capsys.readouterr().out


def test_the_limits_of_a_machine_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    module = benchmark("machine")
    monkeypatch.setattr(module, "_best", lambda work: 0.5)
    limits = module.limits_side(torch.get_num_threads())(None)
    assert limits.figures() == {"read_gb_per_s": 0.5, "float32_gflop_per_s": 17.2}


def test_a_peer_that_fails_ends_the_comparison() -> None:
    peer = benchmark("peers").PeerSide(sys.executable, "no such side", {})
    with pytest.raises(SystemExit, match="a side failed"):
        peer(1)


def test_a_process_of_a_side_ends_quietly_when_nobody_asks_any_longer(sides: ModuleType) -> None:
    ours, theirs = multiprocessing.Pipe()
    ours.send(2)
    ours.close()
    asked: list[int] = []
    sides.serve(theirs, lambda: asked.append)
    assert asked == [2]


def rounds_of(sides: ModuleType, seconds: list[float], loss: float) -> object:
    """A side whose first answer, the warm-up, does not count."""
    answers = iter([100.0, *seconds])
    return lambda steps: sides.Round(next(answers), 1.5, loss)


OPTIONS = Namespace(rounds=3, steps=4, warm=2)


def test_sides_are_compared_by_their_median_rounds(sides: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = rounds_of(sides, [1.0, 2.0, 9.0], 7.0), rounds_of(sides, [8.0, 4.0, 1.0], 7.01)
    sides.compare("some", "pictures", 10, {"legato": ours, "huggingface": theirs}, OPTIONS)
    printed = capsys.readouterr().out.splitlines()
    figures = json.loads(printed[-1])
    assert figures["pictures_per_second"] == {"legato": 20.0, "huggingface": 10.0}
    assert figures["over_huggingface"] == {"legato": 2.0}
    assert "legato is 2.00 × huggingface" in printed


def test_sides_with_other_losses_are_no_comparison(sides: ModuleType) -> None:
    ours, theirs = rounds_of(sides, [1.0] * 3, 7.0), rounds_of(sides, [1.0] * 3, 7.1)
    with pytest.raises(SystemExit, match="first losses differ"):
        sides.compare("some", "pictures", 10, {"legato": ours, "huggingface": theirs}, OPTIONS)


def test_a_side_that_there_is_not_is_refused(sides: ModuleType) -> None:
    with pytest.raises(SystemExit, match="no side 'keras'; there are legato, huggingface"):
        sides.choose_sides("legato,keras", ["legato", "huggingface"])


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return benchmark("picture_pipeline")


@pytest.fixture
def captioner(tmp_path: Path) -> dict[str, Any]:
    """The settings of a tiny captioner with a table of pictures."""
    table = captioned(tmp_path)
    given = {key: value for key, value in TINY_CAPTIONER.items() if key not in ("device", "train.steps")}
    return {**given, "data.train": table, "data.valid": table, "train.batch_rows": 3, "train.epochs": 3}


def test_pipelines_of_pictures_are_measured(
    pictures: ModuleType,
    captioner: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    counts = ["--workers=usual,0,1", "--steps=2", "--warm=1", "--rounds=1"]
    words = [f"--set={key}={value}" for key, value in captioner.items()]
    monkeypatch.setattr("sys.argv", ["picture_pipeline.py", "--recipe=captioning", "--device=cpu", *counts, *words])
    pictures.main()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["batch_rows"] == 3
    for name in ("usual", "0", "1"):
        step, own, idle = (figures[name][key] for key in ("step_ms", "own_ms", "idle_percent"))
        assert idle == pytest.approx(100 * (1 - own / step), abs=0.1)
        assert figures[name]["alone_pictures_per_second"] > 0


def test_a_pipeline_with_workers_keeps_no_pictures(pictures: ModuleType, captioner: dict[str, Any]) -> None:
    batches = pictures.pipeline("captioning", captioner, "1", torch.device("cpu"))
    assert isinstance(batches._pixels, _Ahead)
    assert batches._pixels.pixels.workers == 1


def test_only_steps_behind_the_warm_ones_are_timed(pictures: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    trainer = SimpleNamespace(job=SimpleNamespace(batches=None), step=7, device=torch.device("cpu"))
    trainer.config = SimpleNamespace(log_every=100)
    made: list[int] = []

    def update() -> None:
        made.append(trainer.step)
        clock[0] += 50.0 if trainer.step < 2 else 3.0
        trainer.step += 1

    trainer._update = update
    monkeypatch.setattr(pictures.time, "monotonic", lambda: clock[0])
    assert pictures.measure_training(trainer, None, Namespace(warm=2, steps=4)) == 3.0
    assert made == [0, 1, 2, 3, 4, 5]


def test_pipelines_that_give_other_pictures_are_no_comparison(pictures: ModuleType) -> None:
    black, white = (Batch(Inputs(values=torch.full((1, 2, 2, 3), value, dtype=torch.uint8))) for value in (0, 255))
    batches = SimpleNamespace(at=lambda step: white)
    with pytest.raises(SystemExit, match="different pictures"):
        pictures.measure_alone(batches, black, Namespace(warm=0, steps=1), torch.device("cpu"))
    assert pictures.measure_alone(batches, white, Namespace(warm=0, steps=1), torch.device("cpu")).speed > 0


def test_a_number_of_workers_is_a_number(pictures: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["picture_pipeline.py", "--workers", "usual,many"])
    with pytest.raises(SystemExit, match="'many' is neither a number nor 'usual'"):
        pictures.main()


def test_training_on_sounds_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    speech = benchmark("train_speech")
    given = {**write_sounds(tmp_path, 4), **SMALL_SPEECH}
    words = [f"--set={key}={value}" for key, value in given.items() if key != "data.batch_seconds"]
    counts = ["--seconds=3,5", "--steps=2", "--warm=1", "--rounds=1", "--device=cpu", "--recipe=speech"]
    monkeypatch.setattr("sys.argv", ["train_speech.py", *counts, *words])
    speech.main()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])["batches"]
    assert list(figures) == ["3", "5"]
    for one in figures.values():
        assert one["sound_per_second"] == pytest.approx(1000 * one["sound_per_step"] / one["kept_ms"], rel=0.01)
        assert one["idle_percent"] is None  # there is no GPU to be idle
    monkeypatch.setattr("sys.argv", ["train_speech.py", "--seconds", "many"])
    with pytest.raises(SystemExit, match="'many' are no numbers with commas between them"):
        speech.main()


def test_what_capture_costs_where_nobody_looks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--models", "lstm,gpt2", "--width", "8", "--layers", "1", "--rows", "1", "--length", "4", "--steps", "1"]
    monkeypatch.setattr("sys.argv", ["capture_off.py", *small])
    monkeypatch.setattr("timeit.repeat", lambda way, number, repeat: [1.0])
    benchmark("capture_off").main()
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [row["model"] for row in rows] == ["lstm", "gpt2"]
    assert all(row["calls"]["capturing"] > 0 for row in rows)


def test_the_start_of_commands_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start = benchmark("start")
    asked = {start.ALONE: ["-c", "pass"], start.FLOOR: ["-c", "pass"], "--version": ["-m", "legato", "--version"]}
    monkeypatch.setattr(start, "trained", lambda folder: {})
    monkeypatch.setattr(start, "commands", lambda runs: asked)
    monkeypatch.setattr("sys.argv", ["start.py", "--rounds", "1"])
    start.main()
    printed = capsys.readouterr().out.splitlines()
    figures = json.loads(printed[-1])["seconds"]
    assert list(figures) == list(asked)
    assert [line.partition("  ")[0] for line in printed[1:-1]] == list(asked)
    for one in figures.values():
        assert one["ours"] == pytest.approx(one["cpu"] - one["torch"], abs=0.002)


def test_the_start_of_a_command_that_fails_is_no_figure() -> None:
    with pytest.raises(SystemExit, match=r"-c import nothing_of_the_kind failed: Traceback"):
        benchmark("start").measure(["-c", "import nothing_of_the_kind"], {})
