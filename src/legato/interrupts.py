"""Ctrl-C at the command line: one line and exit code 130, however often it is pressed, and never a traceback.

The first one raises KeyboardInterrupt, so that whatever runs can put things in order; a run in training saves its
work instead (`Interrupt`). Any further one ends the process at once: what is half-written by then has a
temporary name, and the next process puts it right.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

CODE = 128 + signal.SIGINT
LINE = "legato: interrupted"


class Stopped(Exception):
    """Somebody asked the run to stop; everything is saved."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by signal {signum}")
        self.signum = signum


class Interrupt:
    """Turns SIGTERM, SIGHUP (the terminal has gone) and Ctrl-C into a flag; a second Ctrl-C is what it was before.

    So a step is never cut in half.
    """

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


class CtrlC:
    """The handler of SIGINT while a command runs, and until the process has ended."""

    def __init__(self) -> None:
        self.pressed = self.told = False
        self.advice = ""  # how to go on with what is interrupted

    def install(self) -> None:
        """From now on; where interrupts are ignored, as in the background of a shell, they stay so."""
        ours = threading.current_thread() is threading.main_thread()
        if ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self)
            before = sys.unraisablehook

            def hook(unraisable: Any) -> None:
                # Raised where Python can only print it, as while an object is deleted.
                self.end() if unraisable.exc_type is KeyboardInterrupt else before(unraisable)

            sys.unraisablehook = hook

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self.pressed or _is_over(frame):
            self.end()
        self.pressed = True
        raise KeyboardInterrupt

    def tell(self) -> None:
        """Say the one line, once."""
        if not self.told:
            self.told = True
            with suppress(OSError):  # nobody is there to read it
                print(f"{LINE}{self.advice}", file=sys.stderr, flush=True)

    def end(self) -> NoReturn:
        """End the process at once; the line goes around the stream, which whoever was interrupted may hold."""
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        if not self.told:
            with suppress(OSError, ValueError, AttributeError):
                os.write(sys.stderr.fileno(), f"{LINE}{self.advice}\n".encode("utf-8", "backslashreplace"))
        os._exit(CODE)


CTRL_C = CtrlC()


def _is_over(frame: FrameType | None) -> bool:
    """Whether the program's own code has ended, and only Python's is left, which waits for threads and cleans up."""
    while frame is not None and frame.f_globals.get("__name__") != "__main__":
        frame = frame.f_back
    return frame is None
