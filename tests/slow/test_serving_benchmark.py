"""`benchmarks/serve.py` with a tiny model: that it runs and counts, never how fast anything is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_published import CHATML, gpt2_folder

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "serve.py"


@pytest.mark.parametrize(
    "words", ["--sides legato --clients 1,3 --seconds 2 --rounds 1", "--overload 4 --rows 2 --queue 2"]
)
def test_a_server_is_measured(tmp_path: Path, words: str) -> None:
    folder = gpt2_folder(tmp_path / "m", length=4096, template=CHATML)
    ended = subprocess.run(
        [sys.executable, str(BENCHMARK), str(folder), "--threads", "1", *words.split()],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout.splitlines()[-1])["figures"]
    if "--overload" in words:
        assert figures["sent"] == figures["complete"] + figures["refused"]
        assert figures["lost"] == 0
        assert figures["with_retry_after"] == figures["refused"]
    else:
        for clients in ("1", "3"):
            assert figures[clients]["legato"]["answered"] > 0
            assert figures[clients]["legato"]["errors"] == 0
            assert figures[clients]["legato"]["tokens_per_second"] > 0
