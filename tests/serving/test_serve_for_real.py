"""`legato serve` as a process: OpenAI's own client talks to it, clients go away, and it stops as it should."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest

import legato
from tiny_published import CHATML, gpt2_folder

pytestmark = pytest.mark.slow
HELLO = [{"role": "user", "content": "the cat"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpt2_folder(tmp_path_factory.mktemp("serve") / "tiny", length=512, template=CHATML)


@contextmanager
def serving(*words: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and its address."""
    command = [sys.executable, "-m", "legato", "serve", *map(str, words), "--port", "0", "--device", "cpu"]

    def default_signals() -> None:  # tests may run in the background, where interrupts are ignored
        signal.signal(signal.SIGINT, signal.default_int_handler)

    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=default_signals,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stderr is not None
        said, address = "", None
        while address is None:
            line = process.stderr.readline()
            said += line
            assert line, said
            address = re.search(r" at (http://\S+)/v1", line)
        yield process, address[1]
    finally:
        process.kill()
        process.wait()


def test_openais_client_talks_to_it(folder: Path) -> None:
    model = legato.load(folder, "cpu")
    with serving(f"chat={folder}", "--api-key", "secret") as (_, address):
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="secret", max_retries=0)
        assert [each.id for each in client.models.list()] == ["chat"]
        expected = model.chat(HELLO, max_tokens=20)
        told = client.chat.completions.create(model="chat", messages=HELLO, max_tokens=20, temperature=0)  # type: ignore[call-overload]
        assert told.choices[0].message.content == expected
        pieces = client.chat.completions.create(  # type: ignore[call-overload]
            model="chat", messages=HELLO, max_tokens=20, temperature=0, stream=True
        )
        assert "".join(each.choices[0].delta.content or "" for each in pieces) == expected
        vectors = client.embeddings.create(model="chat", input=["the cat"])
        assert len(vectors.data[0].embedding) == 16
        with pytest.raises(openai.NotFoundError, match="did you mean 'chat'"):
            client.completions.create(model="chats", prompt="x")
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{address}/v1", api_key="wrong", max_retries=0).models.list()


def test_clients_that_vanish_leave_nothing_behind(folder: Path) -> None:
    with serving(f"chat={folder}", "--max-rows", 8, "--no-log") as (_, address):
        place = address.removeprefix("http://")
        host, _, port = place.partition(":")
        body = b'{"model": "chat", "prompt": "the cat", "max_tokens": 400, "stream": true}'
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {place}\r\nContent-Type: application/json\r\n"
        for _ in range(40):
            with socket.create_connection((host, int(port)), 30) as opened:
                opened.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                opened.recv(100)
        for _ in range(600):
            with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
                told = answer.read().decode()
            if 'writing{model="chat"} 0.0' in told and 'waiting{model="chat"} 0.0' in told:
                break
            time.sleep(0.1)
        else:
            raise AssertionError(told)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_was_asked_for_is_written_before_it_stops(folder: Path, number: int) -> None:
    with serving(f"chat={folder}") as (process, address):
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="x", max_retries=0)
        pieces = client.completions.create(model="chat", prompt="the", max_tokens=300, stream=True, temperature=0)
        first = next(iter(pieces))
        process.send_signal(number)
        text = first.choices[0].text + "".join(each.choices[0].text for each in pieces)
        assert text == legato.load(folder, "cpu").generate("the", max_tokens=300)
        assert process.wait(60) == 0


def test_a_port_in_use_is_one_line(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "legato", "serve", str(folder), "--port", str(port), "--device", "cpu"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.strip().splitlines()[-1] == (
        f"legato: port {port} of 127.0.0.1 is in use; name another with --port"
    )


def test_it_can_be_tried_without_serving(folder: Path) -> None:
    command = [sys.executable, "-m", "legato", "serve", f"a={folder}", str(folder), "--check", "--device", "cpu"]
    ended = subprocess.run([*command, "--port", "0"], capture_output=True, text=True, check=False)
    assert ended.returncode == 0
    assert re.search(r"a, tiny would be served at http://127\.0\.0\.1:\d+/v1", ended.stderr)
