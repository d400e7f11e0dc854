"""`legato serve` as a process of its own, for tests of `make slow`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def serving(*words: object, code: str | None = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and its address; `code` runs in place of the command."""
    command = [sys.executable, *(["-m", "legato"] if code is None else ["-c", code])]
    command += ["serve", *map(str, words), "--port", "0", "--device", "cpu"]

    def default_signals() -> None:  # tests may run in the background, where interrupts are ignored
        signal.signal(signal.SIGINT, signal.default_int_handler)

    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=default_signals,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stderr is not None
        said, address = "", None
        while address is None:
            line = process.stderr.readline()
            said += line
            assert line, said
            address = re.search(r" at (http://\S+)/v1", line)
        yield process, address[1]
    finally:
        process.kill()
        process.wait()
