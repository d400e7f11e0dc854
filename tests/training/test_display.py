"""What a run shows: a live line in a terminal, plain lines anywhere else."""

from __future__ import annotations

import io
import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from legato.data.batching.batches import SpeedUnit
from legato.training.config import TrainConfig
from legato.training.display import Display, Forecast, Report, clock, duration, memory_used

REPORT = Report(
    step=20, steps=300, loss=math.log(50), lr=1.5e-3, norm=0.25, speed=12345.6, memory=3 * 2**29, left=125
)


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock of one entry, which a test sets."""
    now = [100.0]
    monkeypatch.setattr("legato.training.display.time.monotonic", lambda: now[0])
    return now


def test_a_line_shows_every_figure() -> None:
    assert REPORT.line() == (
        "step  20/300 (6%)  loss 3.9120  ppl 50.00  lr 1.50e-03  norm 0.25  12,346 tokens/s  1.50 GiB  2:05 left"
    )


@pytest.mark.parametrize(
    ("unit", "speed"),
    [
        (SpeedUnit("pictures", 16), "772 pictures/s"),
        (SpeedUnit("seconds of sound", 100), "123 seconds of sound/s"),
        (SpeedUnit("clips", 5000), "2.5 clips/s"),
    ],
)
def test_speed_counts_what_the_task_reads(unit: SpeedUnit, speed: str) -> None:
    assert f"  {speed}  " in replace(REPORT, unit=unit).line()


@pytest.mark.parametrize(
    ("settings", "plan", "said"),
    [
        ({"steps": 30}, (30, 12, 10), "plan: 30 steps, 2.5 epochs, validating every 10 steps"),
        ({}, (1, 1, 1), "plan: 1 step, 1 epoch, validating at the end"),
        ({"patience": 3}, (5000, 1000, 1000), "plan: at most 5,000 steps, 5 epochs, validating every 1,000 steps"),
        (
            {"steps": 3, "epochs": 2},
            (3, 60, 1),
            "plan: 3 steps, 0.05 epochs, validating every step; train.epochs=2 is ignored, for train.steps is given",
        ),
    ],
)
def test_the_plan_says_how_long_a_run_will_be(
    settings: dict[str, Any], plan: tuple[int, int, int], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Display().plan(TrainConfig(**settings), *plan)
    assert capsys.readouterr().err == f"{said}\n"


def test_where_there_is_no_terminal_reports_are_plain_lines(
    capsys: pytest.CaptureFixture[str], clocked: list[float]
) -> None:
    display = Display()
    display.start(300, 0)
    clocked[0] += 3
    display.report(REPORT)
    display.stop()
    out, err = capsys.readouterr()
    assert (out, err) == ("", REPORT.line() + "\n")


def test_plain_lines_come_soon_then_rarely_and_at_the_end(
    capsys: pytest.CaptureFixture[str], clocked: list[float]
) -> None:
    display = Display()
    display.start(400, 0)
    for step in range(1, 401):
        clocked[0] += 1
        display.report(replace(REPORT, step=step, steps=400))
    shown = [int(line.split("/")[0].removeprefix("step")) for line in capsys.readouterr().err.splitlines()]
    assert shown[:5] == [3, 8, 17, 34, 65]
    assert set(np.diff(shown[4:-1])) == {31}
    assert shown[-1] == 400


def test_before_a_validation_a_line_comes_soon(capsys: pytest.CaptureFixture[str], clocked: list[float]) -> None:
    display = Display()
    for seconds, soon in ((3, False), (3, False), (0, True), (1, True)):
        clocked[0] += seconds
        display.report(replace(REPORT, step=int(clocked[0])), soon=soon)
    assert [line[:8] for line in capsys.readouterr().err.splitlines()] == ["step 103", "step 106"]


@pytest.mark.parametrize(
    ("config", "pace", "line"),
    [
        (
            TrainConfig(),
            1.5,
            "about 25 minutes on this CPU, without validations; shorter: epochs=1, adapt=head or a GPU",
        ),
        (
            TrainConfig(steps=1000, patience=3),
            8,
            "at most 2.2 hours on this CPU, without validations; shorter: steps=20, adapt=head or a GPU",
        ),
        (TrainConfig(), 0.1, None),
    ],
)
def test_a_long_run_is_told_once_its_first_steps_are_measured(
    config: TrainConfig, pace: float, line: str | None
) -> None:
    forecast = Forecast(config, 1000, 100, ["adapt=head"])
    lines = [forecast.line(step, 60 + pace * step) for step in range(1, 60)]  # a minute of preparing
    assert [text for text in lines if text] == ([line] if line else [])


@pytest.mark.parametrize(
    ("seconds", "shown"), [(90, "90 seconds"), (1500, "25 minutes"), (12600, "3.5 hours"), (181440, "2.1 days")]
)
def test_lengths_of_runs_are_round(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_a_terminal_gets_one_live_line() -> None:
    display = Display()
    screen = io.StringIO()
    display.console = Console(file=screen, force_terminal=True, width=140)
    display.start(300, 0)
    display.report(REPORT)
    display.stop()
    assert "loss 3.9120  ppl 50.00" in screen.getvalue()
    assert "\x1b[" in screen.getvalue()


def test_a_text_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    text = "[bold]not bold[/bold] :smile: [/] \\[x] " + "long " * 60
    Display().say(text)
    assert capsys.readouterr().err == text + "\n"


def test_quiet_shows_warnings_and_nothing_else(capsys: pytest.CaptureFixture[str], clocked: list[float]) -> None:
    display = Display(quiet=True)
    display.start(300, 0)
    clocked[0] += 60
    assert not display.is_due()
    display.report(REPORT)
    display.say("hello")
    display.warn("step-3 is damaged [x]")
    display.stop()
    assert capsys.readouterr().err == "warning: step-3 is damaged [x]\n"


class Left(io.StringIO):
    """A pipe whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_once_nobody_reads_it_falls_silent_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Left())
    display = Display()
    display.say("hello")
    display.warn("step-3 is damaged")
    display.report(REPORT)
    print("another library's word", file=sys.stderr)


@pytest.mark.parametrize(("seconds", "shown"), [(42.9, "0:42"), (725, "12:05"), (11220, "3:07:00")])
def test_time_left_reads_like_a_clock(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown


def test_memory_is_what_this_process_holds() -> None:
    assert memory_used(torch.device("cpu")) > 2**20
