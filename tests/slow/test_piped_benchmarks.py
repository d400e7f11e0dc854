"""Benchmarks whose output is piped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_translating_is_measured_and_stops_quietly_behind_head() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("ctranslate2")
    tiny = "--rounds 1 --threads 1 --layers 1 --width 64 --length 2 --most 2"
    script = f'"{sys.executable}" "{BENCHMARKS}/translate.py" {tiny} | head -1'
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", script],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr
    assert "Legato is" in done.stdout
