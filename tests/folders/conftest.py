"""What tests of folders share."""

from __future__ import annotations

from typing import Any

import pytest

from legato.cli import main


@pytest.fixture
def export(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """`export("MODEL", "--to", …)` is `legato export MODEL --to …`: its exit code and what it printed."""

    def run(*words: object) -> tuple[Any, str, str]:
        monkeypatch.setattr("sys.argv", ["legato", "export", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run
