"""Benchmarks: that they run, and end without noise when nobody reads on; never how fast anything is."""

from __future__ import annotations

import importlib.util
import multiprocessing
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def translate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_translate", BENCHMARKS / "translate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_side_ends_quietly_when_nobody_asks_any_longer(
    translate: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(translate.SIDES, "echo", lambda: lambda request: [[1]])
    ours, theirs = multiprocessing.Pipe()
    ours.send(("a request",))
    ours.close()
    translate.serve(theirs, "echo")
