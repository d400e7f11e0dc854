"""Dynamic batching: what many clients ask of a classifier, a tagger or an encoder is computed side by side.

A thread gathers what comes within some milliseconds, or came while it was busy, and computes inputs of one kind (one
task, with equal options) together, of like length, so that little is padded. A batch is bounded by its work and not
by its rows alone. Between two batches others have a turn: now the oldest request, now the one with the least left to
do, so that a request of many texts holds nobody up. Each request gets its own answers, in order. A batch that raises
is run again, each request alone, so that a bad input fails nobody else's.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from legato.errors import brief
from legato.serving.app import Refusal
from legato.serving.scheduler import PATIENCE, QUEUE, DeadlineExceeded, QueueFull, as_exception, has_stopped
from legato.serving.transport.departures import Gone, settled
from legato.serving.transport.log import writer

ROWS: Final = 64  # inputs of a batch
GATHER: Final = 0.004  # seconds that the first request waits for others

Run = Callable[[list[Any]], Sequence[Any]]


@dataclass(eq=False)
class Request:
    """Some inputs of one client, and what it waits on."""

    inputs: list[Any]
    costs: Sequence[float]  # what each input takes to be computed
    kind: Hashable  # requests of one kind share batches
    run: Run  # an answer for each of some inputs
    deadline: float
    begun: float = field(default_factory=time.monotonic)
    future: Future[list[Any]] = field(default_factory=Future)
    answers: dict[int, Any] = field(default_factory=dict)  # by the input's place
    left: set[int] = field(init=False)  # places that are in no batch yet

    def __post_init__(self) -> None:
        self.left = set(range(len(self.inputs)))

    def fail(self, problem: Exception) -> None:
        with suppress(InvalidStateError):  # cancelled
            self.future.set_exception(problem)


Place = tuple[Request, int]
"""An input of a request."""


class Batcher:
    """A thread, and who waits for it."""

    def __init__(
        self,
        name: str,
        *,
        rows: int = ROWS,
        work: float = math.inf,
        queue: int = QUEUE,
        patience: float = PATIENCE,
        gather: float = GATHER,
        idle: Callable[[], None] | None = None,
    ) -> None:
        """Of a batch `rows` × the cost of its dearest input is `work` at most, unless it is one input alone. Once
        nobody waits any longer `idle` is called.
        """
        self.name, self.rows, self.work = name, rows, work
        self.queue, self.patience, self.gather, self.idle = queue, patience, gather, idle
        self._changed = threading.Condition()
        self._waiting: deque[Request] = deque()
        self._running: list[Place] = []
        self._closing = False
        self._broken = False
        self._oldest = False  # whose turn it was
        self._rate = 10.0  # inputs of a second, of late
        self._thread = threading.Thread(target=self._work, name=f"legato-batches-{name}", daemon=True)
        self._thread.start()

    # ── what any thread may call ──────────────────────────────────────────────────────────────────

    def submit(self, inputs: Sequence[Any], kind: Hashable, run: Run, costs: Sequence[float] = ()) -> Request:
        """Let answers be computed; refused where too many wait. A request that is alone may be of any size."""
        given = list(inputs)
        costs = costs or [len(each) if isinstance(each, str | bytes) else 1 for each in given]
        request = Request(given, costs, kind, run, time.monotonic() + self.patience)
        with self._changed:
            if self._broken:
                raise has_stopped()
            if self._closing:
                raise Refusal(503, "the server is stopping")
            waiting = sum(len(other.inputs) for other in self._waiting if len(other.left) == len(other.inputs))
            if waiting and waiting + len(given) > self.queue:
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

    async def outcome(self, request: Request, gone: Gone) -> list[Any]:
        """The answers of a request; a client that has gone, or time that is over, cancels it."""
        waiting = asyncio.wrap_future(request.future)
        try:
            await settled(waiting, gone, max(0.0, request.deadline - time.monotonic()))
            if not waiting.done():
                raise self._deadline_exceeded()
            if waiting.cancelled():  # by the server's end
                raise Refusal(503, "the server is stopping")
            return waiting.result()
        finally:
            self.cancel(request)

    def load(self) -> tuple[int, int]:
        """Inputs that are being computed, and that wait."""
        with self._changed:
            return len(self._running), sum(len(request.left) for request in self._waiting)

    @property
    def broken(self) -> bool:
        """Whether the thread has ended by a fault, and nothing is computed any longer."""
        return self._broken

    def close(self, *, drain: bool = True, seconds: float = 30.0) -> bool:
        """Take in nothing more; with `drain` what was asked for is computed first, for so long at most. Whether the
        thread has ended by then.
        """
        with self._changed:
            self._closing = True
            if not drain:
                for request in (*self._waiting, *(request for request, _ in self._running)):
                    request.future.cancel()
            self._changed.notify()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    # ── the thread ────────────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        try:
            while batch := self._next_batch():
                begun = time.monotonic()
                self._compute(batch)
                seconds, count = max(time.monotonic() - begun, 1e-3), len(batch)
                del batch  # while the thread waits nothing of it is kept
                with self._changed:
                    self._running = []
                    self._rate = 0.7 * self._rate + 0.3 * count / seconds
                    idle = None if self._waiting else self.idle
                if idle is not None:
                    idle()
        except BaseException as problem:  # else whoever waits would wait for ever
            writer().say(f"legato: the batches of '{self.name}' have stopped: {brief(repr(problem), 300)}")
            with self._changed:
                self._broken = True
                for request in (*self._waiting, *(request for request, _ in self._running)):
                    request.fail(has_stopped())
                self._waiting.clear()
                self._running = []

    def _next_batch(self) -> list[Place]:
        """Wait for requests, and take some inputs of one kind; none once there will be no more."""
        with self._changed:
            while not self._enough():
                if self._closing and not self._waiting:
                    return []
                self._changed.wait(self.gather if self._waiting else None)
            self._oldest = not self._oldest
            lead = self._waiting[0] if self._oldest else min(self._waiting, key=self._work_left)
            self._running = self._beside(lead)
            for request, place in self._running:
                request.left.remove(place)
                if not request.left:
                    self._waiting.remove(request)
            return self._running

    def _enough(self) -> bool:
        """Whether to begin: a batch is full, the oldest has waited for others, or there will be none."""
        for request in [each for each in self._waiting if not self._alive(each)]:
            self._waiting.remove(request)
        if not self._waiting:
            return False
        full = sum(len(request.left) for request in self._waiting) >= self.rows
        return full or self._closing or time.monotonic() >= self._waiting[0].begun + self.gather

    def _work_left(self, request: Request) -> float:
        return sum(request.costs[place] for place in request.left)

    def _beside(self, lead: Request) -> list[Place]:
        """A batch with the shortest input of a request, and others of like length."""
        places = [(each, place) for each in self._waiting if each.kind == lead.kind for place in sorted(each.left)]
        places.sort(key=_cost)
        first = last = next(number for number, (request, _) in enumerate(places) if request is lead)
        while last + 1 < len(places) and self._fits(last + 2 - first, places[last + 1]):
            last += 1
        while first and self._fits(last + 2 - first, places[last]):  # a shorter one, as wide as the longest
            first -= 1
        return places[first : last + 1]

    def _fits(self, rows: int, dearest: Place) -> bool:
        return rows <= self.rows and rows * _cost(dearest) <= self.work

    def _compute(self, batch: Sequence[Place]) -> None:
        """Answer inputs of one kind."""
        alive = [each for each in batch if self._alive(each[0])]
        members = list(dict.fromkeys(request for request, _ in alive))
        if not members or self._answered(alive) or len(members) == 1:
            return
        for member in members:  # one of them is bad, and nobody can say which
            self._answered([(request, place) for request, place in alive if request is member])

    def _answered(self, places: Sequence[Place]) -> bool:
        """Compute a batch, and tell whose answers are complete; whether it went well. Who is alone hears why not."""
        first = places[0][0]
        try:
            answers = first.run([request.inputs[place] for request, place in places])
        except BaseException as problem:  # a library's panic is no Exception
            if all(request is first for request, _ in places):
                first.fail(as_exception(problem))
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


def _cost(place: Place) -> float:
    request, number = place
    return request.costs[number]
