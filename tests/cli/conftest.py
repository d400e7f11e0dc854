"""The command line inside the test's own process: what it printed, and how it ended; and a run to ask."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

import legato
from answers import Answer, Command
from legato.cli import main
from tiny_runs import small


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`command("train", "lm", …)` is `legato train lm …`, with nothing on standard input."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))

    def run(*words: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["legato", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        code = ended.value.code
        return Answer(code if isinstance(code, int) else 0, out, err)

    return run


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts and a run, `home/run`."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEGATO_CACHE", str(home / "cache"))
        legato.train("lm", small(home, train__steps=30, train__lr=0.02), out=home / "run", quiet=True)
    return home
