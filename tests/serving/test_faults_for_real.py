"""`legato serve` as a process: clients vanish, it is killed, the disk is full, nobody reads its log."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import legato
from tiny_published import CHATML, gpt2_folder

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of Unix")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpt2_folder(tmp_path_factory.mktemp("serve") / "tiny", length=512, template=CHATML)


@pytest.fixture(scope="module")
def expected(folder: Path) -> str:
    return legato.load(folder, "cpu").generate("the cat", max_tokens=20)


@contextmanager
def serving(
    folder: Path, *words: object, port: int = 0, error: Any = None, **env: str
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The process, once it answers, and its port."""
    port = port or free_port()

    command = [sys.executable, "-m", "legato", "serve", f"chat={folder}", "--port", str(port), "--device", "cpu"]
    process = subprocess.Popen(
        [*command, *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if error is None else error,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
    )
    try:
        for _ in range(600):
            assert process.poll() is None
            with suppress(OSError):
                if fetch(port, "/ready")[0] == 200:
                    break
            time.sleep(0.1)
        yield process, port
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fetch(port: int, path: str, body: Any = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        sent = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, sent, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def written(port: int) -> str:
    status, answer = fetch(
        port, "/v1/completions", {"model": "chat", "prompt": "the cat", "max_tokens": 20, "temperature": 0}
    )
    assert status == 200, answer
    return str(json.loads(answer)["choices"][0]["text"])


def stream_request(tokens: int) -> bytes:
    body = json.dumps({"model": "chat", "prompt": "the cat", "max_tokens": tokens, "stream": True, "temperature": 0})
    head = "POST /v1/completions HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


async def begin_stream(port: int, tokens: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A stream whose first piece has come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(stream_request(tokens).replace(b"{}", f"127.0.0.1:{port}".encode(), 1))
    await writer.drain()
    await reader.readuntil(b"data: ")
    return reader, writer


def test_many_clients_that_vanish_at_once_leave_nothing_behind(folder: Path, expected: str) -> None:
    async def vanish(port: int) -> None:
        opened = await asyncio.gather(*(begin_stream(port, 400) for _ in range(50)))
        for _, writer in opened:
            writer.transport.abort()  # a reset, as of a machine that is gone

    with serving(folder, "--max-rows", 64, "--no-log") as (process, port):
        files = Path(f"/proc/{process.pid}/fd")
        before = len(list(files.iterdir())) if files.exists() else None
        for _ in range(3):
            asyncio.run(vanish(port))
        for _ in range(600):
            figures = fetch(port, "/metrics")[1]
            if re.search(r"legato_texts_(writing|running)\{.*\} 0\.0", figures) and not re.search(
                r"legato_texts_\w+\{.*\} [1-9]", figures
            ):
                break
            time.sleep(0.1)
        else:
            raise AssertionError(figures)
        assert written(port) == expected
        if before is not None:
            assert len(list(files.iterdir())) <= before + 2


def test_killed_under_load_it_can_be_started_again_at_once(folder: Path, expected: str) -> None:
    broken: list[bool] = []

    def ask(port: int) -> None:
        with suppress(OSError, http.client.HTTPException):
            written_whole = False
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            body = {"model": "chat", "prompt": "the cat", "max_tokens": 400, "stream": True, "temperature": 0, "n": 4}
            connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            written_whole = b"[DONE]" in connection.getresponse().read()
            broken.append(not written_whole)
            return
        broken.append(True)

    with serving(folder, "--no-log") as (process, port):
        clients = [threading.Thread(target=ask, args=(port,)) for _ in range(8)]
        opened = asyncio.run(_opened(port))
        for client in clients:
            client.start()
        process.send_signal(signal.SIGKILL)
        for client in clients:
            client.join(60)
            assert not client.is_alive()  # nobody waits for what will not come
        assert opened
        assert len(broken) == 8
        assert any(broken)
        with serving(folder, "--no-log", port=port) as (_, again):
            assert again == port
            assert written(port) == expected


async def _opened(port: int) -> bool:
    _, writer = await begin_stream(port, 400)
    writer.close()
    return True


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="another process's limits can be set on Linux alone")
def test_it_serves_on_when_the_disk_is_full(folder: Path, expected: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    words = {"HOME": str(home), "TMPDIR": str(home)}
    with open("/dev/full", "wb") as full, serving(folder, error=full, **words) as (process, port):
        before = {each: each.stat().st_size for each in home.rglob("*")}
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))  # from now on no file grows by a byte
        for _ in range(5):
            assert written(port) == expected
        assert fetch(port, "/v1/embeddings", {"model": "chat", "input": ["the cat"] * 20})[0] == 200
        assert fetch(port, "/v1/completions", {"model": "other", "prompt": "x"})[0] == 404
        assert {each: each.stat().st_size for each in home.rglob("*")} == before  # nothing was to be written
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_a_log_that_nobody_reads_stops_no_answer(folder: Path, expected: str) -> None:
    with serving(folder, error=subprocess.PIPE) as (process, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for _ in range(1500):  # lines of some 100 bytes, and a pipe holds 65,536
            connection.request("GET", "/health", headers={"x-request-id": "a" * 64})
            assert connection.getresponse().read()
        assert written(port) == expected
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_a_log_whose_reader_is_gone_stops_no_answer(folder: Path, expected: str) -> None:
    with serving(folder, error=subprocess.PIPE) as (process, port):
        assert process.stderr is not None
        process.stderr.close()
        for _ in range(5):
            assert written(port) == expected
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_readers_that_take_their_time_get_all_and_others_do_not_wait(folder: Path, expected: str) -> None:
    async def read(port: int) -> list[bytes]:
        opened = await asyncio.gather(*(begin_stream(port, 400) for _ in range(8)))
        # While they take nothing, another one is answered.
        assert await asyncio.to_thread(written, port) == expected
        ends = []
        for reader, writer in opened:
            text = b""
            while b"data: [DONE]" not in text:
                part = await reader.read(1 << 16)
                assert part
                text += part
            ends.append(text.partition(b"data: [DONE]")[0])
            writer.close()
        return ends

    with serving(folder, "--max-rows", 9, "--no-log") as (_, port):
        ends = asyncio.run(read(port))
    # Pieces that nobody has taken yet are put together, so each stream is cut in other places.
    streams = [re.sub(rb"\r\n[0-9a-f]+\r\n", b"", each).decode() for each in ends]
    texts = ["".join(map(json.loads, re.findall(r'"text": ?("(?:[^"\\]|\\.)*")', each))) for each in streams]
    assert texts == [texts[0]] * 8
    assert texts[0].startswith(expected)
    assert len(texts[0].split()) == 400
