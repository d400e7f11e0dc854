"""What passes between the process that holds the models and a front: tuples, pickled, over a socket of their own.

Both processes are of one server and of one user. Exceptions go as plain words, since not all of them can be pickled.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from typing import Any, Final

from legato.errors import LegatoError, brief, reason_of
from legato.serving.app import Refusal
from legato.serving.scheduler import DeadlineExceeded, Event, Failed, QueueFull

LENGTH: Final = struct.Struct("<Q")
Problem = tuple[str, str, Any]
"""Its kind, its message, and what else belongs to that kind."""


class Channel:
    """One end of the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, message: Any) -> None:
        """In the loop's thread; never waits. What goes to an end that has closed is lost."""
        self.send_raw(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def send_raw(self, raw: bytes) -> None:
        """A message that has been pickled."""
        if not self._writer.is_closing():
            self._writer.write(LENGTH.pack(len(raw)) + raw)

    async def receive(self) -> Any:
        """The next message; None once the other end has closed."""
        try:
            (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            return pickle.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError):
            return None

    def close(self) -> None:
        self._writer.close()


def packed_event(event: Event) -> Any:
    return packed(event.problem) if isinstance(event, Failed) else event


def unpacked_event(event: Any) -> Event:
    return event if hasattr(event, "_fields") else Failed(unpacked(event))


def packed(problem: BaseException) -> Problem:
    """What went wrong.

    >>> packed(Refusal(404, "there is no model 'x'", "model"))
    ('refusal', "there is no model 'x'", (404, 'model', None))
    """
    match problem:
        case QueueFull():
            return "queue", str(problem), problem.seconds
        case DeadlineExceeded():
            return "deadline", str(problem), None
        case Refusal():
            return "refusal", str(problem), (problem.status, problem.field, problem.code)
        case LegatoError():
            return "error", str(problem), None
    reason = reason_of(problem) if isinstance(problem, Exception) else None
    return ("fault", brief(problem, 300), type(problem).__name__) if reason is None else ("error", reason, None)


def unpacked(problem: Problem) -> Exception:
    """
    >>> str(unpacked(packed(ValueError("a shape"))))
    'a shape'
    """
    kind, line, more = problem
    if kind == "queue":
        full = QueueFull(0, more)
        full.args = (line,)
        return full
    if kind == "deadline":
        return DeadlineExceeded(line)
    if kind == "refusal":
        status, field, code = more
        return Refusal(status, line, field, code)
    if kind == "error":
        return LegatoError(line)
    fault: type[Exception] = type(more, (Exception,), {})  # whose name is said
    return fault(line)
