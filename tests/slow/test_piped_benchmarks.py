"""Benchmarks, run whole and small."""

from __future__ import annotations

import json
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
    script = f'"{sys.executable}" "{BENCHMARKS}/translate.py" {tiny} | head -2'
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


@pytest.mark.parametrize("work", [[], ["--infer"]])
def test_vit_is_measured(work: list[str]) -> None:
    pytest.importorskip("transformers")
    tiny = "--device cpu --layers 1 --width 64 --image 32 --batch 2 --steps 1 --rounds 1 --warm 1 --threads 1"
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "vit.py"), *tiny.split(), "--sides", "legato", *work],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["pictures_per_second"]["legato"] > 0
    assert 6 < figures["first_loss"]["legato"] < 8  # ln 1000 = 6.9
