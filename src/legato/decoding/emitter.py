"""Text that is passed on as it is written, up to a stop string."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from legato.decoding.frontier import cut_at_stop
from legato.errors import LegatoError


class Cancelled(LegatoError):
    """Writing stopped because whoever asked for it has gone."""


@dataclass
class Generated:
    """One text that a model wrote."""

    text: str  # without the prompt
    tokens: list[int] = field(repr=False)
    score: float  # what the search ranked by: log-probability, normalised by length
    logprob: float
    finished: bool  # by an EOS token or stop string, not by the limit


class Emitter:
    """Passes text on, but never the part of a stop string that has begun."""

    def __init__(self, stops: Sequence[str], emit: Any) -> None:
        self.stops, self.emit = stops, emit
        self.held, self.done = "", False

    def push(self, text: str) -> None:
        if self.done:
            return
        self.held, self.done = cut_at_stop(self.held + text, self.stops)
        # How much of the held text might be the start of a stop string.
        begun = (n for stop in self.stops for n in range(1, len(stop)) if self.held.endswith(stop[:n]))
        safe = len(self.held) if self.done else len(self.held) - max(begun, default=0)
        if safe:
            self.emit(self.held[:safe])
            self.held = self.held[safe:]

    def finish(self) -> None:
        if self.held and not self.done:
            self.emit(self.held)


def pieces_of(write: Callable[[Callable[[str], None], Callable[[], bool]], Any]) -> Iterator[str]:
    """What `write(emit, cancelled)` emits, piece by piece; it is cancelled when the iterator is closed or dropped."""
    pieces: queue.Queue[str | BaseException | None] = queue.Queue()
    closed = threading.Event()

    def work() -> None:
        try:
            write(pieces.put, closed.is_set)
            pieces.put(None)
        except BaseException as problem:
            pieces.put(problem)

    threading.Thread(target=work, daemon=True).start()
    try:
        while (piece := pieces.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            yield piece
    finally:  # whoever reads no further waits for no more tokens
        closed.set()
