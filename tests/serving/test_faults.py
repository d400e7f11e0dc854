"""What goes wrong around a server: a listener raises, a log cannot be written, clients are slow or silent."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import legato
from legato.data.text.tokenizers import StreamDecoder
from legato.decoding import SearchOptions
from legato.decoding.engine import Engine
from legato.model import Model
from legato.serving import server as server_module
from legato.serving.api import ApiOptions, make_api
from legato.serving.app import Refusal
from legato.serving.models import Served, ServedModels
from legato.serving.scheduler import Done, Event, Failed, QueueFull, Scheduler, TextRequest
from legato.serving.server import listen, run
from legato.serving.transport.connections import connection_class
from legato.serving.transport.log import LogWriter, writer
from serving.api_client import api_of, refusal_of
from tiny_published import CHATML, gpt2_folder

GREEDY = SearchOptions(search="greedy", max_tokens=12)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return legato.load(gpt2_folder(tmp_path_factory.mktemp("faults") / "m", length=512, template=CHATML), "cpu")


@pytest.fixture
def scheduler(model: Model) -> Iterator[Scheduler]:
    held = Scheduler(model, rows=4, queue=4)
    yield held
    held.close(drain=False)


class Waiting:
    """Listens to a request until its end."""

    def __init__(self, raises_at: int | None = None) -> None:
        self.events: list[Event] = []
        self.raises_at, self._ended = raises_at, threading.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Done | Failed):
            self._ended.set()
        if self.raises_at is not None and len(self.events) == self.raises_at:
            raise RuntimeError("a listener is broken")

    def end(self) -> Event:
        assert self._ended.wait(60)
        return self.events[-1]


# ── one request among others ──────────────────────────────────────────────────────────────────────


def test_a_listener_that_raises_fails_alone(scheduler: Scheduler, model: Model) -> None:
    prompt = model.prompt_ids("the cat")
    broken, others = Waiting(raises_at=2), [Waiting() for _ in range(3)]
    for each in (others[0], broken, *others[1:]):
        scheduler.submit(prompt, GREEDY, each)
    failed = broken.end()
    assert isinstance(failed, Failed)
    assert "a listener is broken" in str(failed.problem)
    for each in others:
        done = each.end()
        assert isinstance(done, Done)
        assert model.finished(prompt, done.texts[0], GREEDY).text == model.generate("the cat", max_tokens=12)
    assert scheduler.load() == (0, 0)


def test_a_listener_that_always_raises_leaves_the_engine_open(scheduler: Scheduler, model: Model) -> None:
    def broken(event: Event) -> None:
        raise RuntimeError("never again")

    engine, prompt, later = scheduler._engine, model.prompt_ids("the cat"), Waiting()
    scheduler.submit(prompt, GREEDY, broken, count=2)
    scheduler.submit(prompt, GREEDY, later)
    assert isinstance(later.end(), Done)
    assert scheduler._engine is engine
    wait_until(lambda: scheduler.load() == (0, 0))


class PanicException(BaseException):
    """What a library written in Rust raises."""


@pytest.mark.parametrize("kind", [ValueError, PanicException])
def test_a_constraint_that_raises_fails_alone(
    scheduler: Scheduler, model: Model, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def constraint(prompt: int, tokens: list[int]) -> None:
        if len(tokens) == 3:
            raise kind("a grammar is broken")

    prompt, bad, good = model.prompt_ids("the cat"), Waiting(), Waiting()
    monkeypatch.setattr("legato.serving.scheduler.constraint_of", lambda *given: constraint)
    scheduler.submit(prompt, GREEDY, bad)
    monkeypatch.setattr("legato.serving.scheduler.constraint_of", lambda *given: None)
    scheduler.submit(prompt, GREEDY, good)
    failed, done = bad.end(), good.end()
    assert isinstance(failed, Failed)
    assert "a grammar is broken" in str(failed.problem)
    assert isinstance(done, Done)
    assert model.finished(prompt, done.texts[0], GREEDY).text == model.generate("the cat", max_tokens=12)


def test_a_panic_ends_the_thread_and_says_so_to_everybody(
    model: Model, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def panic(self: Any) -> None:
        raise PanicException("index out of bounds")

    monkeypatch.setattr(Engine, "step", panic)
    served, heard = Served("tiny", model, rows=1), [Waiting(), Waiting()]
    client = api_of(served)
    assert client.get("/ready").status_code == 200
    for each in heard:
        with suppress(Refusal):  # the first may have ended the thread by now
            served.scheduler().submit(model.prompt_ids("the"), GREEDY, each)
    for each in [each for each in heard if each.events] or heard[:1]:
        failed = each.end()
        assert isinstance(failed, Failed)
        assert "has stopped by a fault of ours" in str(failed.problem)
    wait_until(lambda: served.broken)
    body = {"model": "tiny", "prompt": "the", "max_tokens": 4}
    assert "has stopped by a fault of ours" in refusal_of(client.post("/v1/completions", json=body), 503)
    assert client.get("/ready").json() == {"ready": False, "stopped": ["tiny"]}
    writer().close(10)
    assert "has stopped: PanicException('index out of bounds')" in capfd.readouterr().err


def test_a_panic_while_a_request_is_read_is_its_own(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(self: Any, *given: Any) -> None:
        raise PanicException("a tokenizer is broken")

    served = Served("tiny", model)
    with monkeypatch.context() as patch:
        patch.setattr(Model, "prompt_ids", panic)
        answer = api_of(served).post("/v1/completions", json={"model": "tiny", "prompt": "the"})
        assert "a library broke off over this input" in refusal_of(answer, 400)
    served.close(drain=False)


def test_many_prompts_of_one_body_leave_rows_to_others(
    scheduler: Scheduler, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, begun, free, step = model.prompt_ids("the cat"), threading.Event(), threading.Event(), Engine.step

    def held(self: Engine) -> Any:
        begun.set()
        assert free.wait(60)
        return step(self)

    monkeypatch.setattr(Engine, "step", held)
    order: list[str] = []
    scheduler.queue = 16
    first, many, other = Waiting(), [Waiting() for _ in range(6)], Waiting()

    def note(name: str, waiting: Waiting) -> Callable[[Event], None]:
        def listen(event: Event) -> None:
            order.extend([name] * isinstance(event, Done))
            waiting(event)

        return listen

    try:
        scheduler.submit(prompt, GREEDY, first)
        assert begun.wait(60)  # all others come before anything is written of them
        for each in many:
            scheduler.submit(prompt, GREEDY, note("many", each), group="a body")
        scheduler.submit(prompt, SearchOptions(search="greedy", max_tokens=1), note("other", other), group="other")
    finally:
        free.set()
    for each in (first, *many, other):
        assert isinstance(each.end(), Done)
    assert order[0] == "other"


def test_prompts_of_one_body_have_their_turn_beside_single_ones(model: Model) -> None:
    scheduler = Scheduler(model, rows=8)
    scheduler.close()  # nothing is written: only whose turn it is matters

    def request(group: object) -> TextRequest:
        return TextRequest(model, [0], GREEDY, 1, lambda event: None, 0.0, group=group)

    scheduler._running[0] = (request("a body"), 0)
    scheduler._waiting.extend(request("a body") for _ in range(3))
    admitted = []
    for _ in range(6):
        scheduler._waiting.append(request(object()))  # there is always another one
        turn = scheduler._next()
        assert turn is not None
        scheduler._waiting.remove(turn)
        admitted.append(turn.group)
    assert admitted.count("a body") == 3


def test_a_server_that_is_to_stop_ends_whatever_it_is_doing(monkeypatch: pytest.MonkeyPatch) -> None:
    given_up = threading.Event()
    monkeypatch.setattr(server_module, "give_up", given_up.set)
    with server_module.ending(30) as stop:
        stop.set()
    with server_module.ending(30):
        pass  # nobody asked for its end
    assert not given_up.wait(0.1)
    with server_module.ending(0.05) as stop:
        stop.set()
        assert given_up.wait(30)


def test_a_full_queue_says_how_long_it_takes_by_what_ends(model: Model) -> None:
    scheduler = Scheduler(model, rows=1, queue=2)
    try:
        scheduler._ended.extend((float(second), 2) for second in range(5))  # two texts a second
        assert scheduler._seconds_for(20) == pytest.approx(10)
        assert scheduler._seconds_for(10**6) == 60
        prompt, long = model.prompt_ids("the"), SearchOptions(search="greedy", max_tokens=400)
        for _ in range(3):
            scheduler.submit(prompt, long, Waiting())
        with pytest.raises(QueueFull) as refused:
            scheduler.submit(prompt, long, Waiting())
        assert 1 <= refused.value.seconds <= 60
    finally:
        scheduler.close(drain=False)


def test_only_a_prompts_end_counts_for_what_is_streamed_after_it(model: Model) -> None:
    tokenizer = model.tokenizer
    prompt, text = tokenizer.encode("the cat sat on the mat, and the dog sat on the cat " * 20), "é the dog — sat"
    decoder = StreamDecoder(tokenizer, after=prompt)
    pieces = [decoder.push(each) for each in tokenizer.encode(text)]
    whole = tokenizer.decode([*prompt, *tokenizer.encode(text)])
    assert "".join(pieces) + decoder.finish() == whole[len(tokenizer.decode(prompt)) :]


# ── the log ───────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def standard_error(number: int) -> Iterator[None]:
    before = sys.stderr
    with os.fdopen(number, "w", closefd=False) as sys.stderr:
        try:
            yield
        finally:
            sys.stderr = before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
def test_a_full_disk_under_the_log_is_counted() -> None:
    with open("/dev/full", "wb", buffering=0) as full, standard_error(full.fileno()):
        log = LogWriter()
        for number in range(20):
            log({"id": number})
        log.close(10)
    assert log.lost == 20


def test_a_log_that_nobody_reads_keeps_nobody_waiting() -> None:
    read, write = os.pipe()
    try:
        with standard_error(write):
            log = LogWriter(lines=50)
            begun = time.monotonic()
            for _ in range(2000):
                log.say("x" * 200)  # far more than a pipe holds
            log.close(0.1)
            assert time.monotonic() - begun < 30
            assert log.lost > 1000
    finally:
        os.close(read)  # which ends the thread's write
        log.close(10)
        os.close(write)


# ── connections ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def address(model: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """Of a server in this process, whose patience is short."""
    monkeypatch.setattr(server_module, "Protocol", connection_class(read=0.5, stall=0.5))
    opened = listen("127.0.0.1", 0)
    served = Served("tiny", model, rows=4, queue=8, most_tokens=400)
    app = make_api(ServedModels([served]), ApiOptions())
    stop: list[Any] = []
    original = server_module._Server.run

    def running(self: Any, sockets: Any) -> None:
        stop.append(self)
        original(self, sockets=sockets)

    monkeypatch.setattr(server_module._Server, "run", running)
    thread = threading.Thread(target=run, args=(app, opened), daemon=True)
    thread.start()
    yield opened.getsockname()
    stop[0].should_exit = True
    thread.join(30)
    served.close(drain=False)


def wait_until(right: Any, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not right():
        assert time.monotonic() < end
        time.sleep(0.02)


def head(body: bytes, more: str = "") -> bytes:
    about = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{more}"
    return f"{about}Content-Length: {len(body)}\r\n\r\n".encode()


def everything(opened: socket.socket) -> bytes:
    """What comes until the other side closes."""
    read = b""
    with suppress(ConnectionResetError):
        while part := opened.recv(1 << 16):
            read += part
    return read


BODY = b'{"model": "tiny", "prompt": "the cat", "max_tokens": 4, "temperature": 0}'


@pytest.mark.parametrize("sent", [b"", b"POST /v1/completions HT", head(BODY) + BODY[:10]])
def test_who_sends_too_slowly_is_let_go(address: tuple[str, int], sent: bytes) -> None:
    with socket.create_connection(address, 30) as opened:
        opened.sendall(sent)
        assert everything(opened).startswith(b"HTTP/1.1 408 ")


def test_a_connection_is_kept_and_requests_may_come_before_the_answers(address: tuple[str, int]) -> None:
    with socket.create_connection(address, 30) as opened:
        opened.sendall((head(BODY) + BODY) * 2 + head(BODY, "Connection: close\r\n") + BODY)
        answers = everything(opened)
    assert answers.count(b"HTTP/1.1 200 OK") == 3
    assert answers.count(b'"text_completion"') == 3
    assert b"HTTP/1.1 408" not in answers


@pytest.mark.parametrize("host", ["x", "evil.example"])
def test_a_length_beside_chunks_is_refused_and_ends_the_connection(address: tuple[str, int], host: str) -> None:
    raw = head(BODY, "Transfer-Encoding: chunked\r\n").replace(b"Host: x", f"Host: {host}".encode())
    with socket.create_connection(address, 30) as opened:
        opened.sendall(raw + b"0\r\n\r\n" + head(BODY) + BODY)  # which a proxy may have taken for the body
        answers = everything(opened)
    assert answers.count(b"HTTP/1.1 ") == 1
    assert answers.startswith(b"HTTP/1.1 400 ")
    assert b"both Content-Length and Transfer-Encoding" in answers


@pytest.mark.slow
def test_a_long_answer_outlives_the_time_that_a_request_has_to_come(address: tuple[str, int]) -> None:
    body = b'{"model": "tiny", "prompt": "the cat", "max_tokens": 400, "temperature": 0, "n": 4, "stream": true}'
    with socket.create_connection(address, 30) as opened:
        opened.sendall(head(body, "Connection: close\r\n") + body)
        assert everything(opened).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_who_takes_nothing_of_an_answer_loses_the_connection() -> None:
    dropped = asyncio.run(_stalled())
    assert dropped


async def _stalled() -> bool:
    """Whether a connection on which nothing is taken is ended, and one on which something is, is not."""
    import uvicorn

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not gone.is_set():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0.001)

    gone = asyncio.Event()
    opened = listen("127.0.0.1", 0)
    config = uvicorn.Config(app, http=connection_class(stall=0.3), log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    running = asyncio.create_task(server._serve(sockets=[opened]))
    while not server.started:
        await asyncio.sleep(0.01)
    _, writer = await asyncio.open_connection(*opened.getsockname(), limit=1024)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await writer.drain()
    for _ in range(500):
        await asyncio.sleep(0.02)
        if server.server_state.total_requests or not server.server_state.connections:
            break
    ended = not server.server_state.connections
    writer.close()
    gone.set()
    server.should_exit = server.force_exit = True
    await asyncio.wait([running], timeout=10)
    opened.close()
    return ended
