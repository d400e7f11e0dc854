"""What a run shows: a live line in a terminal, plain lines anywhere else."""

from __future__ import annotations

import io
import math
import sys
from typing import Any

import pytest
import torch
from rich.console import Console

from legato.training.config import TrainConfig
from legato.training.display import Display, Report, clock, memory_used

REPORT = Report(
    step=20, steps=300, loss=math.log(50), lr=1.5e-3, norm=0.25, speed=12345.6, memory=3 * 2**29, left=125
)


def test_a_line_shows_every_figure() -> None:
    assert REPORT.line() == (
        "step  20/300  loss 3.9120  ppl 50.00  lr 1.50e-03  norm 0.25  12,346 tok/s  1.50 GiB  2:05 left"
    )


@pytest.mark.parametrize(
    ("settings", "plan", "said"),
    [
        ({"steps": 30}, (30, 12, 10), "plan: 30 steps, 2.5 epochs, validating every 10"),
        ({}, (1, 1, 1), "plan: 1 step, 1 epoch, validating at the end"),
        ({"patience": 3}, (5000, 1000, 1000), "plan: at most 5,000 steps, 5 epochs, validating every 1,000"),
        (
            {"steps": 3, "epochs": 2},
            (3, 60, 1),
            "plan: 3 steps, 0.05 epochs, validating every 1; train.epochs=2 is ignored, for train.steps is given",
        ),
    ],
)
def test_the_plan_says_how_long_a_run_will_be(
    settings: dict[str, Any], plan: tuple[int, int, int], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Display().plan(TrainConfig(**settings), *plan)
    assert capsys.readouterr().err == f"{said}\n"


def test_where_there_is_no_terminal_reports_are_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display()
    display.start(300, 0)
    display.report(REPORT)
    display.stop()
    out, err = capsys.readouterr()
    assert (out, err) == ("", REPORT.line() + "\n")


def test_plain_lines_come_every_two_seconds_and_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("legato.training.display.time.monotonic", lambda: now)
    display = Display()
    for step, now in ((1, 100.0), (2, 101.0), (3, 103.0), (4, 103.1)):  # noqa: B007
        display.report(Report(step, 4, 1.0, 0.1, 0.1, 1.0, 1, 0.0))
    shown = [line.split("/")[0] for line in capsys.readouterr().err.splitlines()]
    assert shown == ["step 1", "step 3", "step 4"]


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


def test_quiet_shows_warnings_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(quiet=True)
    display.start(300, 0)
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
