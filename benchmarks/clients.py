"""Clients of a server that speaks OpenAI's API: asyncio with plain sockets, in one process or in several.

    answers = asyncio.run(closed_loop(port, "chat", questions, clients=8, seconds=20))
    answers, used = many_closed_loops(Address("localhost", 8000), "chat", Fixed(96, 64, {}), clients=256, seconds=20)

Each client keeps a connection and asks one question after another, streaming and greedily; or questions come at a
rate of their own, whoever still waits (`open_loop`). An answer tells when each piece of its text came. Tokens are
counted afterwards, of the texts and by the model's own tokenizer, so that all servers are counted alike; of a server
elsewhere they are those that it says itself (`usage`). What is sent is read only once an answer is there, so that the
clients take little of the machine.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

HOST = "127.0.0.1"
PASSAGES = Path(__file__).resolve().parent.parent / "docs"
TASKS = ("Explain this in your own words", "Summarise this", "Go on with this text", "What is this about, in detail")


class Question(NamedTuple):
    text: str
    tokens: int  # the most of an answer
    system: str | None = None


class Address(NamedTuple):
    """Where a server is, and how its clients show who they are."""

    host: str
    port: int
    key: str | None = None


class Fixed(NamedTuple):
    """Questions of so many words, answers of so many tokens; `more` goes into each body."""

    words: int
    tokens: int
    more: dict[str, Any]

    def questions(self, seed: int) -> Iterator[Question]:
        return questions(seed, (self.words, self.words), (self.tokens, self.tokens))


@dataclass
class Answer:
    """What became of a question; times are of `time.perf_counter`."""

    begun: float
    pieces: list[tuple[float, str]] = field(default_factory=list)
    ended: float | None = None  # None: it was still being written at the end
    status: int = 0  # 0: there was no answer
    problem: str | None = None
    retry_after: str | None = None
    tokens: int | None = None  # as the server counted them
    raw: list[tuple[float, bytes]] = field(default_factory=list)  # what has come and was not read yet

    @property
    def text(self) -> str:
        return "".join(piece for _, piece in self.pieces)

    @property
    def complete(self) -> bool:
        return self.ended is not None and self.status == 200 and self.problem is None

    def first(self, end: float) -> float:
        """Seconds until the first piece; without one, how long it has waited at `end`."""
        return (self.pieces[0][0] if self.pieces else end) - self.begun

    def latency(self, end: float) -> float:
        return (end if self.ended is None else self.ended) - self.begun


def questions(seed: int, words: tuple[int, int] = (8, 160), tokens: tuple[int, int] = (32, 96)) -> Iterator[Question]:
    """Tasks over passages of this project's documentation, of many lengths; no two begin alike after the task."""
    draw = random.Random(seed)
    text = " ".join(path.read_text("utf-8") for path in sorted(PASSAGES.glob("*.md"))).split()
    while True:
        # As many short as long ones: lengths are even by their logarithm.
        length = round(words[0] * (words[1] / words[0]) ** draw.random())
        start = draw.randrange(len(text) - length)
        passage = " ".join(text[start : start + length])
        yield Question(f"{draw.choice(TASKS)}: {passage}", draw.randint(*tokens))


def body_of(model: str, question: Question, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question.text}]
    if question.system is not None:
        messages.insert(0, {"role": "system", "content": question.system})
    return {
        "model": model,
        "messages": messages,
        "max_tokens": question.tokens,
        "temperature": 0.0,
        "stream": True,
        **more,
    }


class Client:
    """One connection, which is opened again where the server closes it."""

    def __init__(self, server: int | Address) -> None:
        """Of a server at a port of this machine, or elsewhere."""
        self.address = Address(HOST, server) if isinstance(server, int) else server
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, body: dict[str, Any], path: str = "/v1/chat/completions") -> Answer:
        """An answer, or what went wrong; cancelled, it closes the connection, as a client that vanishes does."""
        answer = Answer(time.perf_counter())
        try:
            await self._exchange(path, json.dumps(body).encode(), answer)
        except (OSError, EOFError, ValueError) as problem:
            answer.problem, answer.ended = f"{type(problem).__name__}: {problem}", time.perf_counter()
            self.close()
        except BaseException:
            self.close()
            raise
        return answer

    async def _exchange(self, path: str, payload: bytes, answer: Answer) -> None:
        if self._writer is None:
            host, port, _ = self.address
            self._reader, self._writer = await asyncio.open_connection(host, port, limit=1 << 20)
        assert self._reader is not None
        host, port, key = self.address
        head = f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"
        head += "" if key is None else f"authorization: Bearer {key}\r\n"
        self._writer.write(f"{head}content-length: {len(payload)}\r\n\r\n".encode() + payload)
        await self._writer.drain()
        status, headers = await self._head(self._reader)
        answer.status, answer.retry_after = status, headers.get("retry-after")
        try:
            async for part in _parts(self._reader, headers):
                answer.raw.append((time.perf_counter(), part))
            answer.ended = time.perf_counter()
        finally:
            rest = read_raw(answer)
        if status != 200:
            answer.problem = rest.decode("utf-8", "replace")[:200] or f"status {status}"
        if headers.get("connection", "").lower() == "close":
            self.close()

    async def _head(self, reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines if ": " in line)
        return int(first.split()[1]), headers

    def close(self) -> None:
        if self._writer is not None:
            with suppress(OSError):
                self._writer.close()
        self._reader = self._writer = None


async def _parts(reader: asyncio.StreamReader, headers: dict[str, str]) -> Any:
    """The parts of a body as they come."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        buffer = b""
        while True:
            parts: list[bytes] = []
            begin, ended = 0, False
            while (line := buffer.find(b"\r\n", begin)) >= 0:
                size = int(buffer[begin:line], 16)
                if len(buffer) < line + size + 4:
                    break
                parts.append(buffer[line + 2 : line + 2 + size])
                begin, ended = line + size + 4, not size
            buffer = buffer[begin:]
            if parts:
                yield b"".join(parts)
            if ended:
                return
            if not (more := await reader.read(1 << 16)):
                raise EOFError("the answer broke off")
            buffer += more
    elif "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
    else:
        while part := await reader.read(1 << 16):
            yield part


def read_raw(answer: Answer) -> bytes:
    """Read the events of what has come; give what is no whole event."""
    rest = b""
    for now, part in answer.raw:
        *events, rest = (rest + part).split(b"\n\n")
        for event in events:
            _read_event(event.strip(), now, answer)
    answer.raw.clear()
    return rest


def _read_event(event: bytes, now: float, answer: Answer) -> None:
    if not event.startswith(b"data:") or event.endswith(b"[DONE]"):
        return
    told = json.loads(event[5:])
    if "error" in told:
        answer.problem = str(told["error"])[:200]
        return
    if usage := told.get("usage"):
        answer.tokens = usage["completion_tokens"]
    for choice in told.get("choices", ()):
        if text := choice["delta"].get("content"):
            answer.pieces.append((now, text))


async def closed_loop(
    server: int | Address,
    model: str,
    asked: Iterable[Question],
    *,
    clients: int,
    seconds: float,
    requests: int | None = None,
    **more: Any,
) -> list[Answer]:
    """Clients that each ask again once they are answered, for so long; what is unanswered then is given up."""
    source, answers = iter(asked), list[Answer]()
    end = time.perf_counter() + seconds

    async def work() -> None:
        client, left = Client(server), requests
        try:
            while left != 0 and (remaining := end - time.perf_counter()) > 0:
                left = None if left is None else left - 1
                answers.append(await asked_until(client, body_of(model, next(source), **more), remaining))
        finally:
            client.close()

    await asyncio.gather(*(work() for _ in range(clients)))
    return answers


async def asked_until(client: Client, body: dict[str, Any], seconds: float) -> Answer:
    """An answer; after so many seconds what has come of it."""
    kept: list[Answer] = []
    task = asyncio.ensure_future(_kept(client, body, kept))
    await asyncio.wait([task], timeout=seconds)
    if not task.done():
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    return kept[0]


async def _kept(client: Client, body: dict[str, Any], kept: list[Answer]) -> None:
    """As `ask`, but what has come is there when it is cancelled, too."""
    kept.append(Answer(time.perf_counter()))
    try:
        await client._exchange("/v1/chat/completions", json.dumps(body).encode(), kept[0])
    except (OSError, EOFError, ValueError) as problem:
        kept[0].problem, kept[0].ended = f"{type(problem).__name__}: {problem}", time.perf_counter()
        client.close()
    except asyncio.CancelledError:
        client.close()
        raise


def many_closed_loops(
    address: Address, model: str, fixed: Fixed, *, clients: int, seconds: float, seed: int = 0, processes: int = 1
) -> tuple[list[Answer], float]:
    """The answers of `closed_loop` with clients in several processes, and the processor's seconds that these took."""
    shares = [clients // processes + (number < clients % processes) for number in range(processes)]
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        pool.map(time.sleep, [0.2] * processes, chunksize=1)  # each has started
        jobs = [(address, model, fixed, share, seconds, seed + n) for n, share in enumerate(shares) if share]
        parts = pool.starmap(_closed_loop, jobs, chunksize=1)
    return [answer for answers, _ in parts for answer in answers], sum(used for _, used in parts)


def _closed_loop(
    address: Address, model: str, fixed: Fixed, clients: int, seconds: float, seed: int
) -> tuple[list[Answer], float]:
    own = time.process_time()
    loop = closed_loop(address, model, fixed.questions(seed), clients=clients, seconds=seconds, **fixed.more)
    return asyncio.run(loop), time.process_time() - own


def client_processes(clients: int) -> int:
    """How many processes clients need, so that none is slower than the server: half of the processors at most."""
    return max(1, min(clients // 16, (os.cpu_count() or 2) // 2))


async def open_loop(port: int, model: str, asked: Iterable[Question], *, rate: float, seconds: float) -> list[Answer]:
    """Questions that come `rate` times a second each over a connection of its own; all are awaited."""
    source, draw, running = iter(asked), random.Random(0), list[asyncio.Task[Answer]]()

    async def one(question: Question) -> Answer:
        client = Client(port)
        try:
            return await client.ask(body_of(model, question))
        finally:
            client.close()

    begun, due = time.perf_counter(), 0.0
    while due < seconds:
        await asyncio.sleep(max(0.0, begun + due - time.perf_counter()))
        running.append(asyncio.create_task(one(next(source))))
        due += draw.expovariate(rate)
    return list(await asyncio.gather(*running))


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest rank; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
