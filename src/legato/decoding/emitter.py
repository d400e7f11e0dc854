"""Text that is passed on as it is written, up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from legato.decoding.frontier import cut_at_stop


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
