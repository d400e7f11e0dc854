"""A process of our own that can be ended: for what others' texts can make run for ever.

A chat template, a regular expression, a tokenizer's file or a PDF may ask for any time and any memory, and Python
cannot interrupt them. So they run in a helper (worker.py): one process, started when it is first needed and kept,
that has nothing of ours in memory. It may take so much computing and memory a call, and give back so much; beyond
that it is ended, the call is `OverBudget`, and the next call starts another.

What may come often and take long has a helper *apart*, so that nobody waits for it who asks for something else. That
of a server's strangers (`SMALL`) has less memory, and yields to whatever else wants the processor.

A process that forks starts helpers of its own; one that ends takes its helpers with it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from legato.errors import LegatoError

WORKER: Final = Path(__file__).with_name("worker.py")
SECONDS = 4.0  # of computing, a call; the worker's clock stands still while others have the processor
PATIENCE = 60.0  # seconds by the clock on the wall: to start, and a call; one that may compute longer has more
MEMORY = 1 << 30  # bytes
SMALL: Final = {"schemas": 1 << 28}  # bytes of the helpers, by what they are apart for, that have less and yield
OUTPUT = 1 << 26  # bytes of an answer
# Where the system finds Python's own libraries; the rest of the environment is not for the helper.
LOADING: Final = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FRAMEWORK_PATH", "DYLD_FALLBACK_LIBRARY_PATH")


class OverBudget(Exception):
    """The call took more than it may; the message says more than what."""


class Failed(Exception):
    """The call came to an end with an error."""

    def __init__(self, kind: str, message: str, stage: str = "") -> None:
        super().__init__(message)
        self.kind, self.message, self.stage = kind, message, stage


def call(name: str, /, *, apart: str = "", seconds: float | None = None, **arguments: Any) -> Any:
    """What the worker's function of that name gives; plain values in, plain values out.

    `apart` names a helper that others have no part in, `seconds` is how long it may compute: SECONDS, else.
    """
    with _locks.setdefault(apart, threading.Lock()):
        return _helper(apart).call(name, arguments, seconds)


class Helper:
    """The process, and the two pipes to it."""

    def __init__(self, apart: str = "") -> None:
        self.memory, self.seconds = SMALL.get(apart, MEMORY), SECONDS
        kept = {name: value for name, value in os.environ.items() if name in LOADING}
        try:
            self.process = subprocess.Popen(
                # -I: nothing of the user's environment or folder is looked at; -S: nor what runs at Python's start.
                [sys.executable, "-I", "-S", str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**kept, "MALLOC_ARENA_MAX": "1", "RAYON_NUM_THREADS": "1"},  # a thread takes a share of memory
                start_new_session=True,  # Ctrl-C is for us; it may still be needed while we save
            )
        except OSError as problem:
            raise _not_started(str(problem.strerror)) from None
        paths = [path for path in sys.path if path and Path(path).is_absolute()]
        try:
            self._send({"paths": paths, "memory": self.memory, "yields": apart in SMALL})
            self._receive()
        except OverBudget:  # nothing of anybody's has run yet
            code = self.process.poll()
            self.end()
            told = "does not answer" if code is None else f"ended with code {code}"
            raise _not_started(f"{sys.executable} {told}") from None
        except BaseException:
            self.end()
            raise

    def call(self, name: str, arguments: dict[str, Any], seconds: float | None = None) -> Any:
        self.seconds = SECONDS if seconds is None else seconds
        try:
            self._send({"call": name, "seconds": self.seconds, "output": OUTPUT, "arguments": arguments})
            answer = self._receive()
        except BaseException:  # it may be in the middle of something
            self.end()
            raise
        if "over" in answer:
            self.end()
            raise OverBudget(answer["over"])
        if "failed" in answer:
            raise Failed(answer["failed"], answer["message"], answer.get("stage", ""))
        return answer["result"]

    @property
    def patience(self) -> float:
        """How long an answer is waited for, in seconds by the clock on the wall."""
        return PATIENCE * max(1.0, self.seconds / SECONDS)

    def end(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        with contextlib.suppress(OSError):
            self.process.kill()
        self.process.wait()

    def _send(self, request: dict[str, Any]) -> None:
        data = json.dumps(request).encode()
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(struct.pack("<Q", len(data)) + data)
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def _receive(self) -> dict[str, Any]:
        until = time.monotonic() + self.patience
        (size,) = struct.unpack("<Q", self._read(8, until))
        if size > 8 * OUTPUT:  # a character may be written as six and more
            raise OverBudget(f"{OUTPUT >> 20} MB of output")
        answer: dict[str, Any] = json.loads(self._read(size, until))
        return answer

    def _read(self, size: int, until: float) -> bytes:
        assert self.process.stdout is not None
        pipe, parts, left = self.process.stdout.fileno(), [], size
        while left:
            ready, _, _ = select.select([pipe], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise OverBudget(f"{self.patience:g} s of time")
            part = os.read(pipe, min(left, 1 << 20))
            if not part:
                raise self._ended()
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def _ended(self) -> OverBudget:
        """Why it came to its end."""
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            code = 0
        if code in (-signal.SIGPROF, -signal.SIGXCPU):
            return OverBudget(f"{self.seconds:g} s of computing")
        return OverBudget(f"{self.memory >> 20} MB of memory" if code == -signal.SIGKILL else "a process can bear")


def _not_started(reason: str) -> LegatoError:
    return LegatoError(f"the helper process could not be started: {reason}; look whether this Python starts at all")


_locks = {"": threading.Lock()}  # by what a helper is apart for
_kept: dict[str, Helper] = {}


def _helper(apart: str = "") -> Helper:
    known = _kept.get(apart)
    if known is None or known.process.poll() is not None:
        if known is not None:
            known.end()
        known = _kept[apart] = Helper(apart)
    return known


def _forked() -> None:
    """What a forked process does: the helpers are its parent's, and whoever held a lock is not there."""
    global _kept, _locks
    _kept, _locks = {}, {"": threading.Lock()}


def _close() -> None:
    for each in _kept.values():
        if each.process.returncode is None:
            each.end()


os.register_at_fork(after_in_child=_forked)
atexit.register(_close)
