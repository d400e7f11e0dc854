"""What a scheduler's thread tells an event loop of texts: in batches, and never faster than the loop can send.

A loop is woken once for all that comes until it looks. After a batch it rests as long as the batch took to send,
20 ms at most: pieces of a text that come meanwhile travel together, and the threads that write have the processor.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary, ref

from legato.serving.scheduler import Event, Piece

MAX_REST_S: Final = 0.02


class Receiver(Protocol):
    """What takes events in the loop's thread."""

    def put(self, number: int, event: Event) -> None: ...


class Mailbox:
    """Events for a loop's queues, from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._events = ref(loop), deque[tuple[Receiver, int, Event]]()
        self._woken = False
        self._rested = 0.0  # when, by the loop's clock, the next batch may be delivered

    def post(self, receiver: Receiver, number: int, event: Event) -> None:
        """A post that comes late wakes the loop once too often, and none is forgotten."""
        self._events.append((receiver, number, event))
        loop = self._loop()
        if not self._woken and loop is not None:
            self._woken = True
            with suppress(RuntimeError):  # the server has stopped
                loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        loop = asyncio.get_running_loop()
        if self._rested > loop.time():
            loop.call_at(self._rested, self._deliver)
        else:
            self._deliver()

    def _deliver(self) -> None:
        loop = asyncio.get_running_loop()
        begun, self._woken = loop.time(), False
        while self._events:
            receiver, number, event = self._events.popleft()
            receiver.put(number, event)
        loop.call_soon(self._rest, begun)  # behind the tasks that were woken, which send

    def _rest(self, begun: float) -> None:
        now = asyncio.get_running_loop().time()
        self._rested = now + min(now - begun, MAX_REST_S)


_MAILBOXES: WeakKeyDictionary[asyncio.AbstractEventLoop, Mailbox] = WeakKeyDictionary()


def running_mailbox() -> Mailbox:
    """The one of the running loop."""
    loop = asyncio.get_running_loop()
    if loop not in _MAILBOXES:
        _MAILBOXES[loop] = Mailbox(loop)
    return _MAILBOXES[loop]


class EventQueue:
    """The events of several requests, in the order in which they come."""

    def __init__(self) -> None:
        self._mailbox = running_mailbox()
        self._events: list[tuple[int, Event]] = []
        self._waiter: asyncio.Future[None] | None = None

    def listener(self, number: int) -> Any:
        """Takes the events of request `number`, in any thread."""
        return partial(self._mailbox.post, self, number)

    def put(self, number: int, event: Event) -> None:
        """In the loop's thread."""
        self._events.append((number, event))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next_events(self) -> list[tuple[int, Event]]:
        """All that have come, one at least; of pieces of a text that came meanwhile one is made."""
        while not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        events, self._events = self._events, []
        return events if len(events) == 1 else joined(events)


def joined(events: list[tuple[int, Event]]) -> list[tuple[int, Event]]:
    """The same events, where pieces of a text that follow one another are one."""
    result: list[tuple[int, Event]] = []
    last: dict[tuple[int, int], Piece] = {}  # by text
    for number, event in events:
        if not isinstance(event, Piece):
            last.clear()
            result.append((number, event))
            continue
        before = last.get((number, event.choice))
        if before is None:
            logprobs = None if event.logprobs is None else [*event.logprobs]
            last[number, event.choice] = event = Piece(event.choice, [*event.tokens], logprobs)
            result.append((number, event))
            continue
        before.tokens.extend(event.tokens)
        if before.logprobs is not None:
            before.logprobs.extend(event.logprobs or ())
    return result
