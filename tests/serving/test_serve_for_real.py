"""`legato serve` as a process: it stops as it should, and what cannot be served is one line."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2 as httpx
import openai
import pytest

import legato
from serving.serving_process import serving
from tiny_published import CHATML, gpt2_folder

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpt2_folder(tmp_path_factory.mktemp("serve") / "tiny", length=512, template=CHATML)


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


ENDLESS = """
import time
from legato.cli import main
from legato.model import Model
from legato.serving import server
server.DRAIN, server.ENDING = 1, 5
Model.embed = lambda self, texts: time.sleep(600)
main()
"""


def test_it_stops_in_the_middle_of_what_takes_too_long(folder: Path) -> None:
    with serving(f"chat={folder}", "--no-log", code=ENDLESS) as (process, address), ThreadPoolExecutor(1) as pool:
        body = {"model": "chat", "input": "the"}
        asked = pool.submit(httpx.post, f"{address}/v1/embeddings", json=body, timeout=60)
        until = time.monotonic() + 60
        while not re.search(r"legato_texts_writing\{.*\} 1\.0", httpx.get(f"{address}/metrics").text):
            assert time.monotonic() < until, "nothing is computed"
        process.send_signal(signal.SIGTERM)
        assert asked.result(60).status_code == 503
        assert process.wait(60) == 1
        assert process.stderr is not None
        said = process.stderr.read().splitlines()
        assert said == ["legato: the server has stopped in the middle of what it computed, which took too long"]


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
