"""Ctrl-C and its like, to a real process: however often, one line or none, the right exit code, no traceback."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from legato import interrupts
from legato.interrupts import CtrlC
from thinned import some
from tiny_runs import finish, read_metrics, small, start, wait_for, words

LONG = {"train__steps": 10**6, "train__checkpoint_every": 10**6, "train__validate_every": 10**6}
GO_ON = "go on from the last checkpoint with: legato train resume="
STEPS = 3  # after which a run is known to be under way


def default_signals() -> None:
    """As a shell gives them; tests may run in the background, where interrupts are ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def hang_in(what: str, hanging: Path) -> None:
    """Have the process wait in some place until it is interrupted; `hanging` is there once it does."""
    default_signals()
    import legato.training.loop as loop
    from legato.runs.run_folder import RunFolder

    def forever(*_: Any, **__: Any) -> None:
        hanging.touch()
        for _ in range(6000):
            time.sleep(0.01)

    if what == "a step":
        loop.Trainer._update = forever  # type: ignore[method-assign]
    elif what == "a step and the end":
        loop.Trainer._update = forever  # type: ignore[method-assign]
        RunFolder.close = forever  # type: ignore[method-assign]
    elif what == "the first look at the data":
        from legato.tasks.lm.task import LanguageModelling

        LanguageModelling.prepare = forever  # type: ignore[method-assign]


def press(process: Any, signum: int = signal.SIGINT) -> None:
    assert process.pid is not None
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(process.pid, signum)


def lines_after(log: Path, before: str = "") -> list[str]:
    return log.read_text().removeprefix(before).splitlines()


# ── training ──────────────────────────────────────────────────────────────────────────────────────


def training(folder: Path, prepare: Callable[..., None] = default_signals, *more: Any) -> tuple[Any, Path, Path]:
    run, log = folder / "run", folder / "log"
    process = start(["train", "lm", "-q", *words(small(folder, **LONG)), f"out={run}"], log, prepare, *more)
    return process, run, log


@pytest.mark.parametrize(
    ("signum", "code"),
    [
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
    ],
)
def test_a_signal_loses_no_step(signum: int, code: int, tmp_path: Path) -> None:
    process, run, _ = training(tmp_path)
    wait_for(lambda: len(read_metrics(run)) > STEPS, process)
    press(process, signum)
    assert finish(process) == code
    made = read_metrics(run)[-1]["step"]
    assert (run / "checkpoints" / f"step-{made}").is_dir()


def ignore_hangup() -> None:
    default_signals()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does


def test_a_hangup_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    process, run, _ = training(tmp_path, ignore_hangup)
    wait_for(lambda: len(read_metrics(run)) > STEPS, process)
    press(process, signal.SIGHUP)
    seen = len(read_metrics(run))
    wait_for(lambda: len(read_metrics(run)) > seen + 5, process)
    assert process.is_alive()
    press(process, signal.SIGTERM)
    assert finish(process) == 143


def test_a_second_ctrl_c_ends_a_run_with_one_line(tmp_path: Path) -> None:
    hanging = tmp_path / "hanging"
    process, run, log = training(tmp_path, hang_in, "a step", hanging)
    wait_for(hanging.exists, process)
    press(process)
    time.sleep(0.05)
    press(process)
    assert finish(process) == 130
    assert log.read_text() == f"legato: interrupted; {GO_ON}{run}\n"


def test_a_third_ctrl_c_ends_even_what_a_second_one_left(tmp_path: Path) -> None:
    hanging = tmp_path / "hanging"
    process, run, log = training(tmp_path, hang_in, "a step and the end", hanging)
    wait_for(hanging.exists, process)
    press(process)
    time.sleep(0.05)
    hanging.unlink()
    press(process)
    wait_for(hanging.exists, process)  # while things are put in order
    press(process)
    assert finish(process) == 130
    assert log.read_text() == f"legato: interrupted; {GO_ON}{run}\n"


@pytest.mark.parametrize("pause", some([0, 0.001, 0.01], [0.001]))
def test_any_number_of_ctrl_c_shows_no_traceback(pause: float, tmp_path: Path) -> None:
    process, run, log = training(tmp_path)
    wait_for(lambda: len(read_metrics(run)) > STEPS, process)
    while process.is_alive():
        press(process)
        time.sleep(pause)
    assert finish(process) == 130
    assert log.read_text() in ("", f"legato: interrupted; {GO_ON}{run}\n")


def test_ctrl_c_before_the_first_step_is_one_line(tmp_path: Path) -> None:
    hanging = tmp_path / "hanging"
    process, _, log = training(tmp_path, hang_in, "the first look at the data", hanging)
    wait_for(hanging.exists, process)
    press(process)
    assert finish(process) == 130
    assert log.read_text() == "legato: interrupted\n"


@pytest.mark.slow
def test_a_run_whose_terminal_has_gone_saves_its_work(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = words(small(tmp_path, **LONG, train__log_every=1))
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "legato", "train", "lm", *settings, f"out={run}"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    os.close(theirs)
    end = time.monotonic() + 60
    while len(read_metrics(run)) <= STEPS:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)
    os.close(ours)  # from now on nothing can be written there
    seen = len(read_metrics(run))
    while len(read_metrics(run)) <= seen + 5:
        assert process.poll() is None, "it should go on until it is told"
        time.sleep(0.01)
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 129
    made = read_metrics(run)[-1]["step"]
    assert (run / "checkpoints" / f"step-{made}").is_dir()


# ── the other verbs ───────────────────────────────────────────────────────────────────────────────


def interrupt_in(home: str, name: str) -> None:
    """Have a function be where Ctrl-C comes."""
    default_signals()
    import importlib

    def pressed(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)

    setattr(importlib.import_module(home), name, pressed)


@pytest.mark.parametrize(
    ("arguments", "home", "name"),
    [
        (["predict", "x", "text"], "legato.loading", "read_model"),
        (["generate", "x", "text"], "legato.loading", "read_model"),
        (["eval", "x", "data.test=y"], "legato.loading", "read_model"),
        (["embed", "x", "text"], "legato.loading", "read_model"),
        (["export", "x", "--to", "hf"], "legato.folders.exports", "find_model"),
        (["compare", "lm", "model=[elman,lstm]", "data.train=x"], "legato.runs.compare", "_all_prepared"),
        (["doctor"], "legato.runs.doctor", "diagnose"),
    ],
)
def test_ctrl_c_in_any_verb_is_one_line(arguments: list[str], home: str, name: str, tmp_path: Path) -> None:
    process = start(arguments, tmp_path / "log", interrupt_in, home, name)
    assert finish(process) == 130
    assert (tmp_path / "log").read_text() == "legato: interrupted\n"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_comparison_that_is_stopped_says_how_to_go_on(signum: int, tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    settings = {**small(tmp_path, **LONG), "model": "[elman,lstm]"}
    process = start(["compare", "lm", *words(settings), f"out={out}"], log, default_signals)
    wait_for(lambda: len(read_metrics(out / "elman")) > STEPS, process)
    press(process, signum)
    assert finish(process) == 128 + signum
    assert lines_after(log)[-1].endswith(f"legato train resume={out}/elman")


def test_ctrl_c_while_the_command_is_imported_is_one_line() -> None:
    code = (
        "import sys, os, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Pressed:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Pressed())\n"
        "from legato.__main__ import main\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "legato: interrupted\n")


def test_ctrl_c_while_the_process_ends_is_one_line() -> None:
    code = (
        "import os, signal, threading\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def press():\n"
        "    threading.main_thread().join(0.2)\n"
        "    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)\n"
        "    import time; time.sleep(1)\n"
        "import sys; sys.argv = ['legato', '--version']\n"
        "from legato.__main__ import main\n"
        "threading.Thread(target=press).start()\n"  # which Python waits for at its end
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (130, "legato: interrupted\n")


def test_ctrl_c_where_python_could_only_print_it_is_one_line() -> None:
    code = (
        "import os, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from legato.interrupts import CTRL_C\n"
        "CTRL_C.install()\n"
        "class Held:\n"
        "    def __del__(self): os.kill(os.getpid(), signal.SIGINT)\n"
        "Held()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (130, "legato: interrupted\n")


def test_interrupts_that_are_ignored_stay_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[Any] = []
    monkeypatch.setattr(interrupts.signal, "getsignal", lambda _: signal.SIG_IGN)
    monkeypatch.setattr(interrupts.signal, "signal", lambda *given: installed.append(given))
    CtrlC().install()
    assert installed == []
