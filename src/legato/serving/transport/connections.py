"""Connections that end: a request has to come, and an answer has to be taken, in a time that has an end.

uvicorn waits for ever for the rest of a request, and for a client that takes nothing more of its answer. Here a
request that has begun must be there after `read` seconds, head and body, or it is answered with 408; and a client
that takes nothing for `stall` seconds loses its connection. What it asked for is cancelled by that.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from h11 import LocalProtocolError
from uvicorn.protocols.http.h11_impl import H11Protocol

READ: Final = 60.0  # seconds
STALL: Final = 60.0
LATE: Final = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s"
)
LINE: Final = b'{"error": {"message": "the request did not come in time", "type": "invalid_request_error"}}'


def connection_class(read: float = READ, stall: float = STALL) -> type[asyncio.Protocol]:
    """uvicorn's protocol with those two ends: on h11, whatever else is installed, so that there is one server."""

    base: Any = H11Protocol  # whose types say less than it takes

    class Connection(base):
        _reading: asyncio.TimerHandle | None = None
        _stalled: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def send_400_response(self, msg: str) -> None:
            try:
                super().send_400_response(msg)
            except LocalProtocolError:  # a request breaks off whose answer has begun
                self.transport.close()

        def _watch(self) -> None:
            """Begin to count where a request has begun, and stop where it is there."""
            cycle = self.cycle
            partial = cycle is None or cycle.response_complete or cycle.more_body
            if partial and self._reading is None and not self.transport.is_closing():
                self._reading = self.loop.call_later(read, self._too_late)
            elif not partial and self._reading is not None:
                self._reading.cancel()
                self._reading = None

        def _too_late(self) -> None:
            self._reading = None
            cycle = self.cycle
            if self.transport.is_closing():
                return
            if cycle is None or not cycle.response_started or (cycle.response_complete and not cycle.more_body):
                self.transport.write(LATE % (len(LINE), LINE))
            self.transport.close()
            if cycle is not None and not cycle.response_complete:  # else the application would wait for the rest
                cycle.disconnected = True
                cycle.message_event.set()

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._stalled is None:
                self._stalled = self.loop.call_later(stall, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._taken()

        def _taken(self) -> None:
            if self._stalled is not None:
                self._stalled.cancel()
                self._stalled = None

        def connection_lost(self, exc: Exception | None) -> None:
            if self._reading is not None:
                self._reading.cancel()
                self._reading = None
            self._taken()
            super().connection_lost(exc)

    return Connection
