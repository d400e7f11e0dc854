"""Where tests of Triton's kernels run: on a GPU, or in Triton's interpreter in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
GPU = torch.cuda.is_available() and not INTERPRETED
DEVICE = torch.device("cuda" if GPU else "cpu")
HAS_TRITON = find_spec("triton") is not None

needs_kernels = pytest.mark.skipif(not HAS_TRITON or not (GPU or INTERPRETED), reason="needs Triton")
needs_interpreter = pytest.mark.skipif(not HAS_TRITON or GPU or INTERPRETED, reason="needs Triton, and no GPU")


def run_interpreted(file: str) -> None:
    """Run the tests of a file in Triton's interpreter: they pass, and some are there."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", file]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout
