"""Dynamic batching: what many clients ask of a classifier, a tagger or an encoder is computed side by side.

A thread of a model's own gathers what comes within some milliseconds, or came while it was busy, and runs requests of
one kind (one task, with equal options) together: their inputs are sorted by length and cut into batches, so that
little is padded. Each request gets its own answers, in order. A batch that raises is run again, each request alone,
so that a bad input fails nobody else's.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from legato.errors import LegatoError, is_panic, reason_of
from legato.serving.app import Refusal
from legato.serving.scheduler import PATIENCE, QUEUE, DeadlineExceeded, QueueFull

ROWS: Final = 64  # inputs of a batch
BATCHES: Final = 8  # that are made of what waits, at most, before others have their turn
GATHER: Final = 0.004  # seconds that the first request waits for others
POLL: Final = 0.5  # seconds after which a waiting request looks whether its client is still there

Run = Callable[[list[Any]], Sequence[Any]]


@dataclass(eq=False)
class Request:
    """Some inputs of one client, and what it waits on."""

    inputs: list[Any]
    kind: Hashable  # requests of one kind share batches
    run: Run  # an answer for each of some inputs
    deadline: float
    begun: float = field(default_factory=time.monotonic)
    future: Future[list[Any]] = field(default_factory=Future)
    answers: dict[int, Any] = field(default_factory=dict)  # by the input's place

    def fail(self, problem: Exception) -> None:
        with suppress(InvalidStateError):  # cancelled
            self.future.set_exception(problem)


class Batcher:
    """One model's thread, and who waits for it."""

    def __init__(
        self,
        name: str,
        *,
        rows: int = ROWS,
        queue: int = QUEUE,
        patience: float = PATIENCE,
        gather: float = GATHER,
    ) -> None:
        self.rows, self.queue, self.patience, self.gather = rows, queue, patience, gather
        self._changed = threading.Condition()
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._closing = False
        self._rate = 10.0  # inputs of a second, of late
        self._thread = threading.Thread(target=self._work, name=f"legato-batches-{name}", daemon=True)
        self._thread.start()

    # ── what any thread may call ──────────────────────────────────────────────────────────────────

    def submit(self, inputs: Sequence[Any], kind: Hashable, run: Run) -> Request:
        """Let answers be computed; refused where too many wait. A request that is alone may be of any size."""
        request = Request(list(inputs), kind, run, time.monotonic() + self.patience)
        with self._changed:
            if self._closing:
                raise Refusal(503, "the server is stopping")
            waiting = sum(len(other.inputs) for other in self._waiting)
            if waiting and waiting + len(request.inputs) > self.queue:
                raise QueueFull(waiting, waiting / max(self._rate, 0.1))
            self._waiting.append(request)
            self._changed.notify()
        return request

    def cancel(self, request: Request) -> None:
        """Nobody waits for it any longer; nothing happens where it is done."""
        with self._changed:
            request.future.cancel()
            if request in self._waiting:
                self._waiting.remove(request)

    async def outcome(self, request: Request, gone: Callable[[], Awaitable[bool]]) -> list[Any]:
        """The answers of a request; a client that has gone, or time that is over, cancels it."""
        waiting = asyncio.wrap_future(request.future)
        try:
            while not waiting.done():
                left = max(0.0, request.deadline - time.monotonic())
                await asyncio.wait([waiting], timeout=min(POLL, left + 0.01))
                if waiting.done():
                    break
                if time.monotonic() > request.deadline:
                    raise self._deadline_exceeded()
                if await gone():
                    raise Refusal(499, "the client has gone")
            if waiting.cancelled():  # by the server's end
                raise Refusal(503, "the server is stopping")
            return waiting.result()
        finally:
            self.cancel(request)

    def load(self) -> tuple[int, int]:
        """Inputs that are being computed, and that wait."""
        with self._changed:
            running, waiting = (
                sum(len(request.inputs) for request in requests) for requests in (self._running, self._waiting)
            )
            return running, waiting

    def close(self, *, drain: bool = True, seconds: float = 30.0) -> None:
        """Take in nothing more; with `drain` what was asked for is computed first, for so long at most."""
        with self._changed:
            self._closing = True
            if not drain:
                for request in (*self._waiting, *self._running):
                    request.future.cancel()
            self._changed.notify()
        self._thread.join(seconds)

    # ── the thread ────────────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        while requests := self._gathered():
            begun = time.monotonic()
            self._compute(requests)
            count, seconds = sum(len(request.inputs) for request in requests), time.monotonic() - begun
            with self._changed:
                self._running = []
                self._rate = 0.7 * self._rate + 0.3 * count / max(seconds, 1e-3)

    def _gathered(self) -> list[Request]:
        """Wait for requests, and take those of the oldest one's kind; none once there will be no more."""
        with self._changed:
            while not self._enough():
                if self._closing and not self._waiting:
                    return []
                self._changed.wait(self.gather if self._waiting else None)
            kind, count, requests = self._waiting[0].kind, 0, list[Request]()
            for request in list(self._waiting):
                if request.kind == kind and (not requests or count + len(request.inputs) <= self.rows * BATCHES):
                    requests.append(request)
                    count += len(request.inputs)
                    self._waiting.remove(request)
            self._running = requests
            return requests

    def _enough(self) -> bool:
        """Whether to begin: a batch is full, the oldest has waited for others, or there will be none."""
        if not self._waiting:
            return False
        full = sum(len(request.inputs) for request in self._waiting) >= self.rows
        return full or self._closing or time.monotonic() >= self._waiting[0].begun + self.gather

    def _compute(self, requests: list[Request]) -> None:
        """Answer requests of one kind."""
        places = [(request, place) for request in requests for place in range(len(request.inputs))]
        places.sort(key=lambda each: _length(each[0].inputs[each[1]]))
        for start in range(0, len(places), self.rows):
            alive = [each for each in places[start : start + self.rows] if self._alive(each[0])]
            members = list(dict.fromkeys(request for request, _ in alive))
            if not members or self._answered(alive) or len(members) == 1:
                continue
            for member in members:  # one of them is bad, and nobody can say which
                self._answered([(request, place) for request, place in alive if request is member])

    def _answered(self, places: list[tuple[Request, int]]) -> bool:
        """Compute a batch, and tell whose answers are complete; whether it went well. Who is alone hears why not."""
        first = places[0][0]
        try:
            answers = first.run([request.inputs[place] for request, place in places])
        except BaseException as problem:  # a library's panic is no Exception
            if all(request is first for request, _ in places):
                first.fail(_as_exception(problem))
            return False
        for (request, place), answer in zip(places, answers, strict=True):
            request.answers[place] = answer
            if len(request.answers) == len(request.inputs):
                with suppress(InvalidStateError):  # cancelled
                    request.future.set_result([request.answers[number] for number in range(len(request.inputs))])
        return True

    def _alive(self, request: Request) -> bool:
        """Whether somebody still waits for it."""
        if time.monotonic() > request.deadline:
            request.fail(self._deadline_exceeded())
        return not request.future.done()

    def _deadline_exceeded(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"this took longer than {self.patience:g} s")


def _length(value: Any) -> int:
    """By which inputs are sorted: characters, or bytes; of several things, all of theirs."""
    if isinstance(value, tuple | list):
        return sum(map(_length, value))
    return len(value) if isinstance(value, str | bytes) else 1


def _as_exception(problem: BaseException) -> Exception:
    if isinstance(problem, Exception):
        return problem
    return LegatoError((reason_of(problem) if is_panic(problem) else None) or "the server is stopping")
