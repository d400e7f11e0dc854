"""Stopping a run from outside: a signal becomes a flag, so that a step is never cut in half."""

from __future__ import annotations

import signal
import threading
from typing import Any

from legato.interrupts import Stopped

__all__ = ["Interrupt", "Stopped"]


class Interrupt:
    """Turns SIGTERM, SIGHUP (the terminal has gone) and Ctrl-C into a flag; a second Ctrl-C is what it was before."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            hangup = getattr(signal, "SIGHUP", None)  # not on Windows
            if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:  # as nohup has it
                self._before[hangup] = signal.signal(hangup, self._note)
            for signum in (signal.SIGTERM, signal.SIGINT):
                self._before[signum] = signal.signal(signum, self._note)
        return self

    def _note(self, signum: int, frame: Any) -> None:
        if self.signal is not None and signum == signal.SIGINT:
            before = self._before[signum]
            if callable(before):
                before(signum, frame)
            raise KeyboardInterrupt
        self.signal = signum

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
