"""What a shell offers: the words are those that commands take, however the shell parts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from legato.cli import completion


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """What bash is offered behind a line; it makes three words of `model=lstm`."""

    def complete(line: str) -> list[str]:
        from legato.cli import app

        words = line.replace("=", " = ").split(" ")
        words = [word for number, word in enumerate(words) if word or (number == len(words) - 1 and "=" not in words)]
        monkeypatch.setenv("_LEGATO_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", "\n".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        with pytest.raises(SystemExit):
            app(prog_name="legato")
        return capsys.readouterr().out.splitlines()

    return complete


def test_tasks_settings_and_values_are_offered(offered: Any) -> None:
    assert "classification" in offered("legato train cl")
    assert "lm/ptb-lstm" in offered("legato train lm/")
    assert {"model=", "model.width="} <= {*offered("legato train lm mo")}
    assert offered("legato train lm model=ls") == ["lstm"]
    assert "cosine" in offered("legato train lm data.train=A.txt train.schedule=")
    assert offered("legato train lm train.sched")[0].startswith("train.schedule=")
    assert {"epochs=", "eps="} == {*offered("legato train lm ep")}
    assert "model.heads=" in offered("legato train lm model=gpt2 model.h")


def test_names_that_a_shell_would_evaluate_are_not_offered(
    offered: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("plain.csv", "x$(touch y).csv", "two words.csv"):
        (tmp_path / name).write_text("x")
    assert offered("legato train lm data.train=") == ["plain.csv"]


def test_settings_are_listed_once_until_the_package_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LEGATO_CACHE", str(tmp_path))
    rows = completion._stored_rows("lm", "lstm")
    monkeypatch.setattr("legato.runs.config.describe_settings", lambda settings: [])
    assert completion._stored_rows("lm", "lstm") == rows
    monkeypatch.setattr(completion, "_stamp", lambda: 0)
    assert completion._stored_rows("lm", "lstm") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell: str, command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_LEGATO_COMPLETE", f"source_{shell}")
    assert f"_LEGATO_COMPLETE=complete_{shell}" in command().out
