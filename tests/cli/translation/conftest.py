"""What the tests of translation share: runs that have learned, standard input, and `legato train translation`."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tiny_pairs import (
    QUICK,
    SEQ2SEQ,
    in_words,
    many_languages,
    small_translation,
    train_translation,
)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts in three languages and two runs, `t` and `recurrent`."""
    home = tmp_path_factory.mktemp("home")
    train_translation(home, "t", small_translation(home))
    train_translation(home, "recurrent", small_translation(home, **SEQ2SEQ))
    return home


@pytest.fixture(scope="session")
def many(home: Path) -> Path:
    """The same folder with a third run, `many`, between languages."""
    many = {**SEQ2SEQ, "train__steps": 200}
    tested = {"data__test": f"{home}/test.{{}}", "data__test_directions": ["en-de", "de-fr"]}
    train_translation(home, "many", many_languages(home, **many, **tested))
    return home


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Lets these bytes come from standard input."""

    def give(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))

    return give


@pytest.fixture
def train(command: Any, home: Path, tmp_path: Path) -> Callable[..., Any]:
    """`legato train translation` for one step, with these settings, into `tmp_path/run`."""

    def run(*over: str, **changes: Any) -> Any:
        settings = small_translation(home, **{**QUICK, **changes})
        return command("train", "translation", *in_words(settings), f"out={tmp_path}/run", *over)

    return run
