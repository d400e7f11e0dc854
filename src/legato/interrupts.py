"""Ctrl-C at the command line: one line and exit code 130, however often it is pressed, and never a traceback.

The first one raises KeyboardInterrupt, so that whatever runs can put things in order; a run in training saves its
work instead (training/stopping.py). Any further one ends the process at once: what is half-written by then has a
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
