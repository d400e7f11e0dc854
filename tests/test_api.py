"""What `import legato` offers to somebody who explores it."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import legato
from legato.errors import ConfigError, DataError
from legato.runs import train as runs
from legato.runs.config import RunConfig
from tiny_runs import small


def test_dir_names_everything_public_and_each_name_can_be_used() -> None:
    assert {"train", "load", "compare", "index", "ask", "Model", "TrainedRun", "inspect"} <= set(dir(legato))
    for name in dir(legato):
        assert getattr(legato, name) is not None


def test_train_has_a_signature_with_the_usual_settings_and_examples() -> None:
    names = inspect.signature(legato.train).parameters
    assert {"task", "train", "valid", "model", "from_", "lr", "epochs", "out"} <= set(names)
    assert ">>> legato.train(" in (legato.train.__doc__ or "")


def test_a_trained_run_brings_its_model(tmp_path: Path) -> None:
    settings = small(tmp_path)
    files = {name: settings.pop(f"data.{name}") for name in ("train", "valid")}
    run = legato.train("lm", settings, **files, lr=0.01, steps=2, quiet=True, out=tmp_path / "run")
    assert repr(run).startswith(f"TrainedRun('{tmp_path}/run', 2 steps, ")
    assert run.model is run.model
    assert isinstance(run.model.generate("a", max_tokens=2), str)


def test_what_is_no_file_is_refused_with_what_to_do() -> None:
    with pytest.raises(
        DataError, match=r"train= takes names of files or a table in memory, not int: a list of texts"
    ):
        legato.train("lm", train=5)
    with pytest.raises(DataError, match=r"'stepps' is 3, and a dict of columns has a list for each"):
        legato.train("lm", train={"stepps": 3})


def test_arguments_stand_over_settings_and_keep_what_lies_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[RunConfig] = []

    def refuse(config: RunConfig, display: object, tables: object) -> None:
        seen.append(config)
        raise ConfigError("enough")

    monkeypatch.setattr(runs, "start_run", refuse)
    with pytest.raises(ConfigError, match="enough"):
        legato.train("lm", {"model": {"width": 16}, "train.steps": 3, "lr": 0.1}, model="gru", train="a.txt", lr=0.5)
    with pytest.raises(ConfigError, match="enough"):
        legato.train(what="lm", data={"train": "a.txt"}, train={"steps": 3, "lr": 0.5}, model="gru", width=16)
    first, second = seen
    assert first == second
    assert (first.model.width, first.train.lr, first.train.steps) == (16, 0.5, 3)  # type: ignore[attr-defined]
