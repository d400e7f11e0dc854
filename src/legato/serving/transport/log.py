"""Lines on standard error that nobody waits for.

A disk that is full, a pipe that is closed or that nobody reads: each would stop whoever writes to it. So a thread of
its own writes, and what cannot be written is counted and left out.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from contextlib import suppress
from typing import Any, Final

LINES: Final = 10_000  # that wait to be written


class LogWriter:
    """Entries as lines of JSON, in their order.

    >>> log = LogWriter()                                                             # doctest: +SKIP
    >>> log({"id": "1f", "status": 200})                                              # doctest: +SKIP
    {"time": 1763452800.123, "id": "1f", "status": 200}
    """

    def __init__(self, lines: int = LINES) -> None:
        self.lost = 0  # lines that were not written
        self._lines: queue.Queue[str | None] = queue.Queue(lines)
        self._thread = threading.Thread(target=self._write, name="legato-log", daemon=True)
        self._thread.start()

    def __call__(self, entry: dict[str, Any]) -> None:
        self.say(json.dumps({"time": round(time.time(), 3), **entry}))

    def say(self, line: str) -> None:
        """A line as it is; never waits, and never raises."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self.lost += 1

    def close(self, seconds: float = 1.0) -> None:
        """Write what waits, for so long at most."""
        with suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(seconds)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                _write_line(line)
            except (OSError, ValueError, AttributeError):  # full, or closed
                self.lost += 1


def _write_line(line: str) -> None:
    try:
        number = sys.stderr.fileno()
    except (OSError, ValueError):  # no file
        print(line, file=sys.stderr, flush=True)
        return
    raw = f"{line}\n".encode("utf-8", "replace")
    # Not by Python's own file: whoever waits in that holds a lock that the end of the process wants.
    while raw:
        raw = raw[os.write(number, raw) :]


_writer: LogWriter | None = None
_lock = threading.Lock()


def writer() -> LogWriter:
    """The process's own."""
    global _writer
    with _lock:
        if _writer is None or not _writer._thread.is_alive():
            _writer = LogWriter()
        return _writer
