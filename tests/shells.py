"""Commands in a shell of their own, as a person runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def in_a_shell(*arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """`legato ARGUMENTS` as a person runs it."""
    return subprocess.run(
        [sys.executable, "-m", "legato", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def piped(line: str) -> subprocess.CompletedProcess[str]:
    """`legato LINE` in a shell that fails where any part of a pipe does."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    script = f'"{sys.executable}" -m legato {line}'
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", script], env=environment, capture_output=True, text=True, timeout=120
    )
