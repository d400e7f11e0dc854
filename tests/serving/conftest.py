"""Models whose studio is served, and the command line as the tests of it have it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

import legato
from cli.conftest import command as command
from legato.serving.studio import Studio
from serving.served import QUICK, SCRIPT, client_of


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    (folder / "text.txt").write_text(f"the dog runs {SCRIPT} and sleeps\n" * 40, encoding="utf-8")
    text = {"data.train": str(folder / "text.txt"), "data.valid_share": 0.3, "tokenizer": "char"}
    text |= {"train.batch_tokens": 64, "data.window": 16, "model": "lstm"}
    legato.train("lm", {**QUICK, **text}, out=folder / "lstm", quiet=True)
    legato.train("lm", {**QUICK, **text, "model": "gpt2", "model.heads": 2}, out=folder / "gpt2", quiet=True)
    pairs = {"data.train": "toy:language", "data.toy.count": 50, "data.toy.valid_count": 5}
    pairs |= {"model": "seq2seq", "model.layers": 1}
    legato.train("translation", {**QUICK, **pairs}, out=folder / "pairs", quiet=True)
    return folder


@pytest.fixture
def client(runs: Path) -> Iterator[TestClient]:
    """Of a language model, a run's."""
    with client_of(Studio(runs / "lstm", "cpu")) as found:
        yield found


@pytest.fixture
def translator(runs: Path) -> TestClient:
    return client_of(Studio(runs / "pairs" / "best", "cpu"))
