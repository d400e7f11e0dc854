"""Help, and how a command ends: without PyTorch where none is needed, quietly where nobody reads, in one line."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from legato.cli.printing import notes
from shells import piped
from thinned import some


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["generate", "-h"], [], ["--version"]])
def test_help_imports_no_pytorch(words: list[str]) -> None:
    script = (
        "import sys\n"
        "from legato.cli import main\n"
        f"sys.argv = ['legato', *{words!r}]\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert not ended.code, ended.code\n"
        "print([name for name in ('torch', 'numpy', 'datasets', 'matplotlib') if name in sys.modules])\n"
    )
    asked = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.splitlines()[-1] == "[]"


def test_every_verb_is_in_the_help(command: Any) -> None:
    shown = command("--help").out
    assert all(verb in shown for verb in ("train", "eval", "generate", "compare", "models", "recipes", "doctor"))


@pytest.mark.parametrize("line", some(["generate {home}/run the --json", "models"], ["models"]))
def test_a_reader_that_leaves_early_ends_the_other_verbs_quietly(line: str, home: Path) -> None:
    ended = piped(line.format(home=home) + " | true")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from legato.cli import main
    from legato.errors import ConfigError

    monkeypatch.setattr(sys, "argv", ["legato", "train", "--debug", "nothing"])
    with pytest.raises(ConfigError):
        main()


def test_a_fault_of_ours_is_called_one(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("it broke\nin two lines")

    monkeypatch.setattr("legato.runs.doctor.diagnose", fail)
    answer = command("doctor")
    assert answer.code == 1
    assert (
        answer.err == "legato: this is a fault of ours: RuntimeError: it broke in two lines (--debug shows where)\n"
    )


VERBS = ("train", "eval", "generate", "predict", "embed", "export", "compare", "models", "recipes", "doctor")


@pytest.mark.parametrize("verb", VERBS)
def test_lists_in_help_are_whole_and_quoted_for_the_shell(
    verb: str, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "dumb")
    shown = command(verb, "--help").out
    assert "dim]" not in shown
    assert [word for word in re.findall(r"(\S*=\[\S*)", shown) if not re.fullmatch(r'"\S+=\[\S+\]"', word)] == []
    lists = {"train": "data.train=[a.en,a.de]", "eval": "data.test=[test.en,test.de]", "compare": "seed=[1,2,3]"}
    assert lists.get(verb, "") in shown


def test_what_a_library_has_silenced_is_no_note(capsys: pytest.CaptureFixture[str]) -> None:
    # As nn/recurrent.py does when it is imported; pytest takes such filters back before each test.
    warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
    with notes():
        warnings.warn(
            "RNN module weights are not part of single contiguous chunk of memory. This means they need to be "
            "compacted at every call, possibly greatly increasing memory usage.",
            stacklevel=1,
        )
        warnings.warn("a thing to know", stacklevel=1)
    assert capsys.readouterr().err == "legato: note: a thing to know\n"
