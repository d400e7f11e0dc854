"""Continuous batching: requests of many clients join and leave one engine between its steps.

A thread of its own owns the engine. Requests come in by `submit`, which refuses them where too many wait; a listener
hears their events: the tokens that a step wrote, the end, or what went wrong. What is made of tokens (text, stops,
calls of tools) is made where it is sent (`texts/text_stream.py`), so that the engine waits for none of it. A client
that goes away cancels its request, and the place is free at the next step.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from legato.decoding import SearchOptions
from legato.decoding.constraints import check_followed, constraint_of
from legato.decoding.engine import Engine
from legato.decoding.frontier import Allowed, Constraint, Hypothesis
from legato.decoding.lanes.prefix_cache import PrefixCache
from legato.decoding.logprobs import LogprobObserver, TokenLogprob
from legato.errors import LegatoError, brief, is_panic, reason_of
from legato.model import Model
from legato.serving.app import Refusal
from legato.serving.transport.log import writer

ROWS: Final = {"cpu": 64, "cuda": 256}  # texts that are written side by side, by device
SPARE: Final = 4  # a group of requests leaves one of so many rows to others
QUEUE: Final = 256  # texts that wait
PATIENCE: Final = 600.0  # seconds from the moment that somebody asks
CHUNK: Final = {"cpu": 128, "cuda": 4096}  # tokens of prompts that are read between two steps, by device
ENDED: Final = 64  # requests whose ends say how fast others will
LATEST: Final = 60.0  # seconds after which to come again, at most
PREFIXES: Final = 512 << 20  # bytes of what was computed of prompts


class QueueFull(LegatoError):
    """Too many wait already; `seconds` is when to come again."""

    def __init__(self, waiting: int, seconds: float) -> None:
        super().__init__(f"{waiting:,} texts wait already; come again in {max(1, round(seconds))} s")
        self.seconds = max(1, round(seconds))


class DeadlineExceeded(LegatoError):
    """A request took longer than anybody waits."""


def has_stopped() -> Refusal:
    """What whoever asks a thread that has ended by a fault is told."""
    return Refusal(503, "this model has stopped by a fault of ours; the server has to be started anew")


def as_exception(problem: BaseException) -> Exception:
    """What one request is told of whatever it raised: a library's panic is no `Exception`."""
    if isinstance(problem, Exception):
        return problem
    return LegatoError((reason_of(problem) if is_panic(problem) else None) or "the server is stopping")


class Piece(NamedTuple):
    """Tokens of a request's text number `choice`, and what the model held of them, where the client asks for that."""

    choice: int
    tokens: list[int]
    logprobs: list[TokenLogprob] | None = None


class Done(NamedTuple):
    """All texts of a request, in their order; of each what the model held of its tokens, where the client asks."""

    texts: list[Hypothesis]
    logprobs: list[list[TokenLogprob]] | None = None


class Failed(NamedTuple):
    problem: BaseException


Event = Piece | Done | Failed
Listener = Callable[[Event], None]


@dataclass(eq=False)
class TextRequest:
    """A prompt, and how many texts are to be written of it."""

    model: Model  # the scheduler's, or an adapter of it
    prompt: list[int]
    options: SearchOptions  # for each of them
    count: int
    listener: Listener  # called by the scheduler's thread; must not wait
    deadline: float
    constraint: Constraint | None = None
    observer: LogprobObserver | None = None
    streamed: bool = True
    group: object = None  # prompts of one body have the same
    begun: float = field(default_factory=time.monotonic)
    numbers: list[int] = field(default_factory=list)  # the engine's
    texts: dict[int, Hypothesis] = field(default_factory=dict)  # by choice
    logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)  # the same
    pending: dict[int, list[int]] = field(default_factory=dict)  # by choice, tokens of this step
    problem: Exception | None = None  # what something of its own raised: it alone fails

    def tell(self, event: Event) -> None:
        """Let the listener know; whoever raises hears no more."""
        try:
            self.listener(event)
        except Exception as problem:
            self.problem = self.problem or problem


class Scheduler:
    """One model's engine, and who waits for it."""

    def __init__(
        self,
        model: Model,
        *,
        rows: int | None = None,
        queue: int = QUEUE,
        patience: float = PATIENCE,
        prefix_bytes: int = PREFIXES,
    ) -> None:
        model.check_generates()
        self.model, self.queue, self.patience = model, queue, patience
        self.rows = rows or ROWS.get(model.device.type, ROWS["cpu"])
        self.prefixes = PrefixCache(prefix_bytes) if prefix_bytes else None
        self._engine = self._new_engine()
        self._changed = threading.Condition()
        self._waiting: deque[TextRequest] = deque()
        self._left: set[TextRequest] = set()  # whose clients have gone
        self._running: dict[int, tuple[TextRequest, int]] = {}  # by the engine's number: the request and which text
        self._written: list[tuple[TextRequest, int]] = []  # whose texts this step went on with
        # By model, one function for all its requests: those that may choose their tokens together do.
        self._decodes: dict[int, Callable[[Sequence[int]], str]] = {}
        self._closing = False
        self._oldest = False  # whose turn it is
        self._stopped = False  # by a fault
        self._busy = 0.0  # seconds of steps so far
        self._ended: deque[tuple[float, int]] = deque(maxlen=ENDED)  # when, in those seconds, and how many texts
        self._broken: list[TextRequest] = []  # that have failed by themselves
        self._thread = threading.Thread(target=self._run, name=f"legato-{model.folder.name}", daemon=True)
        self._thread.start()

    # ── what any thread may call ──────────────────────────────────────────────────────────────────

    def submit(
        self,
        prompt: Sequence[int],
        options: SearchOptions,
        listener: Listener,
        *,
        count: int = 1,
        top_logprobs: int | None = None,
        model: Model | None = None,
        streamed: bool = True,
        group: object = None,
    ) -> TextRequest:
        """Let texts be written; refuses what does not fit, and where too many wait.

        Where they are not `streamed` there are no pieces before the end, which is less work. With `top_logprobs` each
        token comes with its log-probability, and with those of as many others. `model` may be an adapter that shares
        the scheduler's model. Requests of one `group`, which are a body's prompts, share the rows fairly with others.
        """
        model = self.model if model is None else model
        ids = model.begin(list(prompt), options)
        if not ids:
            raise LegatoError("the prompt is empty; write something to go on from")
        if count > self.rows:
            raise LegatoError(f"{count:,} texts were asked for at once, and there is room for {self.rows:,}")
        limits = [model.limit_of(ids, options)] * count
        constraint = constraint_of(model.loaded, options, limits)
        observer = None if top_logprobs is None else LogprobObserver(top_logprobs)
        deadline = time.monotonic() + self.patience
        request = TextRequest(
            model, ids, options, count, listener, deadline, constraint, observer, streamed, group or object()
        )
        with self._changed:
            if self._stopped:
                raise has_stopped()
            if self._closing:
                raise LegatoError("the server is stopping")
            waiting = sum(other.count for other in self._waiting)
            if len(self._running) + waiting + count > self.rows + self.queue:
                raise QueueFull(waiting, self._seconds_for(waiting))
            self._waiting.append(request)
            self._changed.notify()
        return request

    def cancel(self, request: TextRequest) -> None:
        """Nobody waits for it any longer."""
        with self._changed:
            self._left.add(request)
            self._changed.notify()

    def load(self) -> tuple[int, int]:
        """Texts that are being written, and that wait."""
        with self._changed:
            return len(self._running), sum(request.count for request in self._waiting)

    @property
    def broken(self) -> bool:
        """Whether the thread has ended by a fault, and nothing is written any longer."""
        return self._stopped

    def close(self, *, drain: bool = True, seconds: float = 30.0) -> bool:
        """Take in nothing more; with `drain` what was asked for is written first, for so long at most. Whether the
        thread has ended by then.
        """
        with self._changed:
            self._closing = True
            if not drain:
                self._left |= {*self._waiting, *(request for request, _ in self._running.values())}
            self._changed.notify()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    # ── the thread ────────────────────────────────────────────────────────────────────────────────

    def _new_engine(self) -> Engine:
        loaded = self.model.loaded
        chunk = CHUNK.get(self.model.device.type, CHUNK["cuda"])
        return Engine(loaded.module, ends=loaded.ends, rows=self.rows, chunk=chunk, prefixes=self.prefixes)

    def _run(self) -> None:
        try:
            self._engine.prepare()
            while self._admitted():
                begun = time.monotonic()
                try:
                    self._engine.step()
                    self._send_pieces()
                    self._collect()
                except Exception as problem:  # of one request or another: nobody can say whose
                    self._fail(problem)
                self._busy += time.monotonic() - begun
                self._drop_broken()
        except BaseException as problem:  # a library's panic, say; else whoever waits would wait for ever
            writer().say(f"legato: {self._thread.name} has stopped: {brief(repr(problem), 300)}")
            with self._changed:
                self._stopped = True
                for request in {*self._waiting, *(request for request, _ in self._running.values())}:
                    request.tell(Failed(has_stopped()))
                self._waiting.clear()
                self._running.clear()

    def _admitted(self) -> bool:
        """Wait until there is something to write, and take in what there is room for; whether to go on."""
        with self._changed:
            while not (self._waiting or self._running or self._left or self._closing):
                self._changed.wait()
            for request in self._left:
                self._drop(request, LegatoError("nobody waits for this text any longer"))
            self._left.clear()
            now = time.monotonic()
            for request in [*self._waiting, *{id(each): each for each, _ in self._running.values()}.values()]:
                if now > request.deadline:
                    self._drop(request, DeadlineExceeded(f"this took longer than {self.patience:g} s"))
            while (turn := self._next()) is not None:
                self._waiting.remove(turn)
                self._admit(turn)
            return bool(self._waiting or self._running) or not self._closing

    def _next(self) -> TextRequest | None:
        """Whose turn it is, where there is room: now the oldest, now the oldest of the group with the fewest rows.

        A group leaves a share of the rows to others, so that many prompts of one body keep nobody waiting.
        """
        rows = Counter(request.group for request, _ in self._running.values())
        most = self.rows - self.rows // SPARE
        able = [each for each in self._waiting if not rows[each.group] or rows[each.group] + each.count <= most]
        first = min(able, key=lambda each: 0 if self._oldest else rows[each.group], default=None)
        if first is None or len(self._running) + first.count > self.rows:
            return None
        self._oldest = not self._oldest
        return first

    def _admit(self, request: TextRequest) -> None:
        """Let the engine take in a request; what is raised here is this request's."""
        try:
            self._begin(request)
        except BaseException as problem:
            request.tell(Failed(as_exception(problem)))

    def _begin(self, request: TextRequest) -> None:
        model, count, ids = request.model, request.count, request.prompt
        decode = self._decodes.setdefault(model.loaded.adapter, model.tokenizer.decode)
        pending, written, observer = request.pending, self._written, request.observer

        def on_token(choice: int, token: int) -> None:
            if choice in pending:
                pending[choice].append(token)
            else:
                pending[choice] = [token]
                written.append((request, choice))

        def on_observed_token(choice: int, token: int) -> None:
            assert observer is not None
            if request.problem is None:
                with self._own_failure(request):
                    request.logprobs.setdefault(choice, []).append(observer.of(choice, token))
                    on_token(choice, token)

        def constraint(prompt: int, tokens: list[int]) -> Allowed:
            try:
                assert request.constraint is not None
                return request.constraint(prompt, tokens)
            except BaseException as problem:
                self._break(request, as_exception(problem))
                return ()  # its text ends here

        limit = model.limit_of(ids, request.options)
        request.numbers = self._engine.add(
            [ids] * count,
            request.options,
            limits=[limit] * count,
            text_of=decode if request.options.stop else None,
            constraint=None if request.constraint is None else constraint,
            observer=observer,
            on_token=on_observed_token if observer is not None else on_token if request.streamed else None,
            walks=range(count),
            adapter=model.loaded.adapter,
            ends=model.loaded.ends,
        )
        for choice, number in enumerate(request.numbers):
            self._running[number] = (request, choice)

    @contextmanager
    def _own_failure(self, request: TextRequest) -> Iterator[None]:
        """What is raised here is this request's: it fails after the step, and the others go on."""
        try:
            yield
        except BaseException as problem:
            self._break(request, as_exception(problem))
        if request.problem is not None:  # its listener's
            self._broken.append(request)

    def _break(self, request: TextRequest, problem: Exception) -> None:
        request.problem = request.problem or problem
        self._broken.append(request)

    def _drop_broken(self) -> None:
        for request in self._broken:
            with self._changed:
                self._drop(request, request.problem or LegatoError("this text could not be written"))
        self._broken.clear()

    def _send_pieces(self) -> None:
        """Send what this step wrote: one piece of each text."""
        for request, choice in self._written:
            tokens = request.pending.pop(choice)
            if request.streamed and request.problem is None:
                logprobs = None if request.observer is None else request.logprobs[choice][-len(tokens) :]
                request.tell(Piece(choice, tokens, logprobs))
        self._broken += [request for request, _ in self._written if request.problem is not None]
        self._written.clear()

    def _collect(self) -> None:
        """Send what has ended."""
        for number in self._engine.done():
            hypotheses = self._engine.take(number)
            if number not in self._running:  # it was cancelled
                continue
            request, choice = self._running[number]
            if request.problem is None:
                with self._own_failure(request):
                    self._end(request, choice, number, hypotheses[0])

    def _end(self, request: TextRequest, choice: int, number: int, hypothesis: Hypothesis) -> None:
        """A text has ended; the last of a request ends that."""
        request.texts[choice] = hypothesis
        check_followed(request.constraint)
        del self._running[number]
        if len(request.texts) == request.count:
            self._ended.append((self._busy, request.count))
            order = range(request.count)
            logprobs = None if request.observer is None else [request.logprobs.get(each, []) for each in order]
            request.tell(Done([request.texts[each] for each in order], logprobs))

    def _seconds_for(self, texts: int) -> float:
        """How long so many texts take, by those that have ended of late while there was work."""
        if len(self._ended) < 2:
            return 1.0
        (first, _), *others = self._ended
        rate = sum(count for _, count in others) / max(others[-1][0] - first, 1e-3)
        return min(texts / rate, LATEST)

    def _drop(self, request: TextRequest, problem: Exception) -> None:
        if request in self._waiting:
            self._waiting.remove(request)
        elif not any(number in self._running for number in request.numbers):
            return  # it is done
        for number in request.numbers:
            self._engine.cancel(number)
            self._running.pop(number, None)
        request.tell(Failed(problem))

    def _fail(self, problem: Exception) -> None:
        """A step went wrong: what was being written is lost, and the next ones have a new engine."""
        with self._changed:
            self._engine.close()
            for request in {id(each): each for each, _ in self._running.values()}.values():
                request.numbers = []  # the next engine counts anew
                request.tell(Failed(problem))
            self._running.clear()
            self._written.clear()
            self._engine = self._new_engine()
