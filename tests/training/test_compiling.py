"""When a model is compiled: at once, never, or where the run earns it back; and what happens where it cannot be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from legato.errors import LegatoError
from legato.models.base import Sizes
from legato.nn.losses import vocabulary
from legato.registry import MODELS
from legato.training import compiling
from legato.training.compiling import MARGIN, MEASURED, SAVED, Compilation, missing_compiler
from legato.training.config import TrainConfig
from legato.training.display import Display

CUDA = torch.device("cuda", 0)


class Heard(Display):
    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.lines: list[str] = []
        self.warned: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def warn(self, text: str) -> None:
        self.warned.append(text)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock that moves when it is told, a GPU that is always ready, and compilers."""

    class Clock:
        now = 0.0

    monkeypatch.setattr(compiling.time, "monotonic", lambda: Clock.now)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(compiling, "missing_compiler", lambda device: None)
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: setattr(self, "_compiled_call_impl", self.forward))
    monkeypatch.setattr(compiling, "compile_loss", lambda on=True: None)
    return Clock


def model_of(name: str) -> Any:
    return MODELS.get(name)(MODELS.get(name).Config(name=name, width=16, layers=2), Sizes(20))


def updates(
    made: Compilation, clock: Any, seconds: float, left: int, count: int, one_shape: bool = True
) -> list[int]:
    """The updates after which the model is compiled; each takes so many seconds, and as long lies between two."""
    found = []
    for number in range(count):
        made.enter()
        clock.now += seconds if number in MEASURED else 100.0
        if made.leave(left - number - 1, lambda: one_shape):
            found.append(number)
        clock.now += 1000.0
    return found


def needed(made: Compilation, seconds: float) -> float:
    return MARGIN * made.seconds / SAVED / seconds


def test_auto_compiles_where_what_is_left_earns_it_back_and_says_so(clock: Any) -> None:
    display = Heard()
    made = Compilation("auto", model_of("gpt2"), CUDA, display)
    assert not made.on
    steps = MEASURED.stop + int(needed(made, 0.5)) + 1
    assert updates(made, clock, 0.5, steps, 10) == [MEASURED.stop - 1]
    assert made.on
    assert made.model._compiled_call_impl is not None
    assert len(display.lines) == 2
    assert display.lines[0].startswith("compiling the model takes about 0:26 and should save 0:39 of the 3:15 left")
    assert display.lines[1] == "compiled: the step took 1100 seconds"


@pytest.mark.parametrize("case", ["short", "shapes", "recurrent", "cpu", "false"])
def test_auto_does_nothing_where_it_does_not_pay(case: str, clock: Any) -> None:
    display = Heard()
    model = model_of("lstm" if case == "recurrent" else "gpt2")
    device = torch.device("cpu") if case == "cpu" else CUDA
    made = Compilation(False if case == "false" else "auto", model, device, display)
    left = MEASURED.stop + int(needed(made, 0.5)) - 1 if case == "short" else 10**6
    assert updates(made, clock, 0.5, left, 12, one_shape=case != "shapes") == []
    assert not display.lines
    assert model._compiled_call_impl is None


def test_without_a_compiler_that_is_said_once(clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "missing_compiler", lambda device: "Triton is not installed")
    display = Heard()
    made = Compilation("auto", model_of("gpt2"), CUDA, display)
    assert updates(made, clock, 1.0, 10**6, 12) == []
    [line] = display.lines
    assert line.startswith("the model is not compiled, which could save")
    assert line.endswith("Triton is not installed")


def test_what_compilers_lack_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling.shutil, "which", lambda name: None)
    assert missing_compiler(torch.device("cpu")) == "there is no C compiler"
    monkeypatch.setattr(compiling.importlib.util, "find_spec", lambda name: None)
    assert missing_compiler(CUDA) == "Triton is not installed"


def test_true_compiles_at_once_and_a_failure_is_no_end(clock: Any) -> None:
    display = Heard()
    made = Compilation(True, model_of("gpt2"), torch.device("cpu"), display)
    assert made.on
    made.enter()
    assert display.lines == ["compiling the model, for which a step waits …"]
    assert not made.refuse(LegatoError("a batch is wrong"))
    assert not made.refuse(torch.OutOfMemoryError("full"))
    assert made.refuse(RuntimeError("cannot find a C++ compiler\nin many lines"))
    assert made.model._compiled_call_impl is None
    assert display.warned == ["the model is not compiled, for that failed: cannot find a C++ compiler in many lines"]
    assert not made.refuse(RuntimeError("again"))
    made.leave(5, lambda: True)
    assert len(display.lines) == 1


def test_what_is_scored_is_not_compiled(clock: Any) -> None:
    made = Compilation(True, model_of("gpt2"), torch.device("cpu"), Heard())
    compiled = made.model._compiled_call_impl
    with made.paused():
        assert made.model._compiled_call_impl is None
    assert made.model._compiled_call_impl is compiled


def test_the_loss_is_compiled_and_not_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda made, dynamic: "compiled")
    plain = vocabulary._kernel
    vocabulary.compile_loss()
    assert vocabulary._kernel == "compiled"  # type: ignore[comparison-overlap]
    vocabulary.compile_loss(False)
    assert vocabulary._kernel is plain


@pytest.mark.parametrize(
    ("given", "kept"), [("true", True), ("false", False), ("auto", "auto"), (True, True), (0, False)]
)
def test_the_setting_has_three_values(given: Any, kept: Any) -> None:
    assert TrainConfig.model_validate({"compile": given}).compile is kept
