"""Benchmarks: that they run, and end without noise when nobody reads on; never how fast anything is."""

from __future__ import annotations

import importlib.util
import json
import math
import multiprocessing
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import legato
from legato.data.batching.batch import Batch, Inputs
from legato.data.batching.picture_batches import _Ahead
from thinned import some
from tiny_pictures import TINY_CAPTIONER, captioned
from tiny_runs import small, write_text
from tiny_sounds import SMALL as SMALL_SPEECH
from tiny_sounds import write_sounds

pytestmark = pytest.mark.rare
BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def threads_stay() -> Iterator[None]:
    """Benchmarks set how many there are."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


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
    written = {name: [[1, 2]] * 16 for name in seconds}
    work, limits = translate.Work(1, 64, 1, 10), translate.Limits(1e9, 1e9)
    figures = translate.tell("greedy", seconds, written, work, limits)
    assert figures["legato_over"] == {"ctranslate2": 2.0, "ctranslate2-int8": 0.5}
    assert figures["share"]["legato-int8"] == pytest.approx(2 * figures["share"]["legato"], rel=0.01)
    assert "2.00 ×" in capsys.readouterr().out


@pytest.mark.slow
def test_the_limits_of_a_machine_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    module = benchmark("machine")
    monkeypatch.setattr(module, "_best", lambda work, device, calls: 0.5)
    monkeypatch.setattr("legato.training.devices.multiplies_bf16", lambda device: False)
    figures = module.limits_side(2)(None).figures()
    rates = {"read_gb_per_s": 0.5, "copy_gb_per_s": 1.1, "float32_gflop_per_s": 17.2}
    assert figures == {"device": "a CPU (2 threads)", **rates}


def test_a_step_takes_as_long_as_reading_or_multiplying(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = benchmark("machine").Limits(read=10.0, products=100.0, bf16=400.0)
    assert limits.least_seconds(20.0, 100.0, "float32") == 2.0
    assert limits.least_seconds(20.0, 800.0, "float32") == 8.0
    assert limits.least_seconds(20.0, 800.0, "bfloat16") == 2.0
    assert limits._replace(bf16=None).least_seconds(20.0, 800.0, "bfloat16") == 8.0


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


def test_only_what_compiles_for_one_shape_starts_anew(sides: ModuleType) -> None:
    log: list[str] = []

    def start(name: str) -> SimpleNamespace:
        log.append(f"start {name}")
        return SimpleNamespace(close=lambda: log.append(f"close {name}"))

    running: dict[str, Any] = {}
    for _ in range(2):
        sides.start_sides(running, ["legato", "huggingface-static"], start)
    static = "huggingface-static"
    assert log == ["start legato", f"start {static}", f"close {static}", f"start {static}"]


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


# ── those with sides, all in this process ─────────────────────────────────────────────────────────


class Here:
    """A side without a process of its own."""

    def __init__(self, make: Callable[..., Any], *given: Any) -> None:
        self.answer = make(*given)

    def __call__(self, request: Any) -> Any:
        return self.answer(request)

    def close(self) -> None:
        pass


def has_peer() -> bool:
    return importlib.util.find_spec("transformers") is not None


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Run a benchmark in this process, with limits that nobody measures: the figures that it prints last."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(multiprocessing, "set_start_method", lambda how: None)
    threads = torch.get_num_threads()

    def run(name: str, *words: str, **constants: Any) -> dict[str, Any]:
        module = benchmark(name)
        for constant, value in constants.items():
            monkeypatch.setattr(module, constant, value)
        limits = module.Limits(1e9, 1e9) if hasattr(module, "Limits") else None
        for what, instead in {
            "Side": Here,
            "run_apart": lambda work, *given: work(*given),
            "limits_side": lambda threads, device: lambda _: limits,
            "versions": lambda *names: {},
        }.items():
            if hasattr(module, what):
                monkeypatch.setattr(module, what, instead)
        monkeypatch.setattr("sys.argv", [f"{name}.py", *words])
        try:
            module.main()
        finally:
            torch.set_num_threads(threads)
        figures: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return figures

    return run


QUICK = ["--rounds=1", "--warm=1", "--threads=1"]


@pytest.mark.skipif(not has_peer(), reason="transformers is not installed")
def test_writing_of_gpt_is_compared(run_here: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpt_sides.VOCABULARY", 200)  # which the benchmark imports
    sides = "legato,legato-int8,huggingface,huggingface-static"
    size = ["--layers=1", "--width=64", "--tokens=4", "--batch=2"]
    figures = run_here("generate_gpt", f"--sides={sides}", *size, *QUICK)
    for title in ("batch 1", "batch 2"):
        assert list(figures[title]["share"]) == sides.split(",")
        assert list(figures[title]["legato_over"]["legato"]) == ["huggingface", "huggingface-static"]


@pytest.mark.skipif(not has_peer(), reason="transformers is not installed")
def test_writing_of_llama_is_compared(run_here: Callable[..., dict[str, Any]]) -> None:
    size = ["--layers=1", "--width=64", "--feedforward=96", "--heads=2", "--vocabulary=90", "--tokens=4", "--batch=2"]
    figures = run_here("generate_llama", *size, *QUICK, "--dtype=float32")
    speeds, shares = (figures["batch 1"][key] for key in ("tokens_per_second", "share"))
    assert list(speeds) == ["legato", "legato-int8", "legato-int4", "huggingface", "huggingface-static"]
    bytes_a_token = 4 * (4 * 64 * 64 + 3 * 64 * 96 + 90 * 64)
    assert shares["legato"] == pytest.approx(speeds["legato"] * bytes_a_token / 1e9, abs=6e-4)


def test_writing_of_an_lstm_is_compared(run_here: Callable[..., dict[str, Any]]) -> None:
    size = ["--layers=2", "--width=16", "--embedding=8", "--vocabulary=30", "--tokens=5", "--batch=3", "--check=4"]
    figures = run_here("generate_lstm", *size, *QUICK)
    assert list(figures["share"]) == ["legato", "loop", "legato-bfloat16", "loop-bfloat16"]
    assert figures["same"]["legato"] == 3
    assert list(figures["legato_over"]) == ["legato", "legato-bfloat16"]


@pytest.mark.skipif(not has_peer(), reason="transformers is not installed")
@pytest.mark.parametrize("dtype", some(["float32", "bfloat16"], ["float32"]))
def test_translating_is_compared(run_here: Callable[..., dict[str, Any]], dtype: str) -> None:
    size = ["--layers=1", "--width=128", "--length=3", "--sentences=2", "--measure=greedy fixed,beam fixed"]
    sides = ["legato", "huggingface", "huggingface-static"]
    figures = run_here("translate", *size, *QUICK, f"--dtype={dtype}", f"--sides={','.join(sides)}", VOCABULARY=200)
    assert list(figures["greedy fixed"]["share"]) == sides
    assert figures["beam 4 fixed"]["tokens"] == dict.fromkeys(sides, 6)


def test_what_is_not_measured_of_translating_is_refused(run_here: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(SystemExit, match="'sample fixed' is not measured; there are greedy ending, greedy fixed"):
        run_here("translate", "--measure=sample fixed")


@pytest.mark.slow
def test_precisions_of_training_are_compared(run_here: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    text = write_text(tmp_path / "train.txt", lines=400)
    size = [
        f"--text={text}",
        "--layers=1",
        "--width=16",
        "--steps=2",
        "--batch-tokens=256",
        "--seeds=0,1",
        "--tokenizer=char",
    ]
    figures = run_here("train_widths", *size, "--threads=1")
    assert list(figures["over"]) == ["bf16"]
    for wide, narrow, apart in zip(*figures["losses"].values(), figures["loss_difference"]["bf16"], strict=True):
        assert narrow - wide == pytest.approx(apart, abs=1e-5)
        assert abs(apart) < 0.1
    with pytest.raises(SystemExit, match="no precision 'int8'; there are float32, bf16"):
        run_here("train_widths", "--precision=int8")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lstm", "gpt2"])
def test_narrow_widths_are_scored_as_eval_scores(
    run_here: Callable[..., dict[str, Any]], tmp_path: Path, model: str
) -> None:
    run, text = tmp_path / "run", write_text(tmp_path / "test.txt", lines=20, seed=3)
    legato.train("lm", small(tmp_path, model=model, model__width=64), quiet=True, out=str(run))
    figures = run_here("narrow_quality", str(run), str(text), "--device=cpu")
    expected = legato.load(run, "cpu").evaluate(test=str(text))
    assert figures["scored_tokens"] == expected["tokens"]
    assert figures["by_width"]["float32"]["loss"] == pytest.approx(expected["loss"], abs=1e-5)
    wide = figures["by_width"]["float32"]["perplexity"]
    for width in ("int8", "int4"):
        one = figures["by_width"][width]
        assert one["ratio"] == pytest.approx(one["perplexity"] / wide, abs=1e-4)
        assert one["ratio"] == pytest.approx(1.0, abs=0.1)
    few = run_here("narrow_quality", str(run), str(text), "--device=cpu", "--widths=float32", "--tokens=40")
    assert few["scored_tokens"] == 40


def test_the_error_of_a_ratio_is_paired_by_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    quality = benchmark("narrow_quality")
    wide = quality.Windows([10.0, 90.0, 40.0], [10, 10, 10])
    alike = quality.compare(quality.Windows([11.0, 91.0, 41.0], [10, 10, 10]), wide)
    assert alike.value == pytest.approx(math.exp(0.1))
    assert alike.error == pytest.approx(0.0, abs=1e-12)  # however much the windows differ
    apart = quality.compare(quality.Windows([11.0, 90.0, 42.0], [10, 10, 10]), wide)
    assert apart.error == pytest.approx(math.exp(0.1) * math.sqrt(3 / 2 * 2) / 30)


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="Linux tells the most memory there was")
def test_the_memory_of_reading_a_model_is_measured(tmp_path: Path) -> None:
    measuring = benchmark("load_memory")
    text = str(write_text(tmp_path / "a.txt"))
    legato.train("lm", {"data.train": text, "data.valid": text, **measuring.TINY}, out=tmp_path / "run", quiet=True)
    wide, narrow = (
        measuring.read(str(tmp_path / "run"), str(tmp_path / "run"), width) for width in ("float32", "int8")
    )
    assert 0 < narrow["weights"] < wide["weights"]
    assert all(each["peak"] >= 0 for each in (wide, narrow))
