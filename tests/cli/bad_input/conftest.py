"""What bad input is given to: texts, a finished run, a run that was stopped, and `legato train lm`."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import legato
from legato.interrupts import Stopped
from legato.training.loop import Trainer
from tiny_runs import small, words


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts, a finished run and a run that was stopped at step 10."""
    home = tmp_path_factory.mktemp("home")
    update = Trainer._update

    def interrupted(self: Trainer) -> None:
        if self.step == 9:
            os.kill(os.getpid(), signal.SIGTERM)
        update(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEGATO_CACHE", str(home / "cache"))
        legato.train("lm", small(home), out=home / "finished", quiet=True)
        patch.setattr(Trainer, "_update", interrupted)
        with pytest.raises(Stopped):
            legato.train("lm", small(home), out=home / "stopped", quiet=True)
    return home


@pytest.fixture
def finished(home: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(home / "finished", tmp_path / "finished"))


@pytest.fixture
def stopped(home: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(home / "stopped", tmp_path / "stopped"))


@pytest.fixture
def train(command: Any, home: Path, tmp_path: Path) -> Callable[..., Any]:
    """`legato train lm` with small settings and these over them, into a folder that must not be left behind."""

    def run(*over: str) -> Any:
        answer = command("train", "lm", *words(small(home)), f"out={tmp_path}/run", *over)
        assert not (tmp_path / "run").exists()
        return answer

    return run
