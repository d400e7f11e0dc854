"""The command line inside the test's own process: what it printed, and how it ended."""

from __future__ import annotations

import sys

import pytest

from answers import Answer, Command
from legato.cli import main


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`command("train", "lm", …)` is `legato train lm …`."""

    def run(*words: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["legato", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        code = ended.value.code
        return Answer(code if isinstance(code, int) else 0, out, err)

    return run
