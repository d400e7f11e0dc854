"""Stopping a run from outside: a signal becomes a flag, so that a step is never cut in half."""

from __future__ import annotations

import signal
import threading
from typing import Any


class Stopped(Exception):
    """Somebody asked the run to stop; everything is saved."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by signal {signum}")
        self.signum = signum


class Interrupt:
    """Turns SIGTERM and Ctrl-C into a flag, so that a step is never cut in half; a second Ctrl-C does."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGTERM, signal.SIGINT):
                self._before[signum] = signal.signal(signum, self._note)
        return self

    def _note(self, signum: int, frame: Any) -> None:
        if self.signal is not None and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signum

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
