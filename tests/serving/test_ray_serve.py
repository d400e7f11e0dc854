"""`legato serve --ray` on a cluster of this machine: it answers as one server does, whoever is killed, and ends."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import openai
import pytest

import legato
from legato.model import Model
from legato.serving.startup.ray_proxy import DIED
from tiny_published import CHATML, gpt2_folder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="it looks for Ray's processes where Linux lists them"),
]
KEY = "secret"
HELLO = [{"role": "user", "content": "the cat"}]
LENGTH = 2000  # tokens that the model reads; a text of most of them takes a while
CLUSTER = """
import sys
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1)  # another machine, as far as Ray knows
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("ray.serve")
    return gpt2_folder(tmp_path_factory.mktemp("ray-serve") / "tiny", length=LENGTH, template=CHATML)


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return legato.load(folder, "cpu")


class Server:
    """A process of `legato serve --ray`, once it answers."""

    def __init__(self, process: subprocess.Popen[bytes], address: str, out: Path, err: Path) -> None:
        self.process, self.address, self.out, self.err = process, address, out, err
        self.host = address.removeprefix("http://")
        self.client = openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0, timeout=120)

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self.host, timeout=120)
        given = {"authorization": f"Bearer {KEY}", "content-type": "application/json", **headers}
        connection.request(method, path, None if body is None else json.dumps(body), given)
        return connection.getresponse()

    def stream(self, tokens: int, **options: Any) -> http.client.HTTPResponse:
        body = {"model": "chat", "prompt": "the cat", "max_tokens": tokens, "temperature": 0, "stream": True}
        return self.request("POST", "/v1/completions", {**body, **options})

    def numbers(self, name: str) -> dict[str, float]:
        """A metric's sum over its other labels, by replica."""
        found: dict[str, float] = {}
        for line in self.request("GET", "/metrics").read().decode().splitlines():
            if (series := re.match(rf'{name}\{{.*replica="(\w+)".*\}} (\S+)', line)) is not None:
                found[series[1]] = found.get(series[1], 0.0) + float(series[2])
        return found

    def said(self) -> str:
        return self.err.read_text(encoding="utf-8")


@contextmanager
def serving(home: Path, *words: object, **env: str) -> Iterator[Server]:
    out, err = home / "out.txt", home / "err.txt"
    temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # Ray's sockets are there, whose paths must be short
    command = [sys.executable, "-m", "legato", "serve", *map(str, words), "--ray", "--port", "0", "--device", "cpu"]
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_TMPDIR": temporary, **env},
            start_new_session=True,
        )
    try:

        def address() -> re.Match[str] | None:
            said = err.read_text(encoding="utf-8")
            assert process.poll() is None, said
            return re.search(r"^serving .* at (http://\S+)/v1 by 2 replicas", said, re.MULTILINE)

        yield Server(process, eventually(address, 300)[1], out, err)
    finally:
        below = descendants(process.pid)
        process.terminate()
        try:
            process.wait(60)
        finally:
            for number in [process.pid, *below]:
                kill(number)
            shutil.rmtree(temporary, ignore_errors=True)


def eventually(found: Callable[[], Any], seconds: float = 180.0) -> Any:
    """What it is, as soon as it is something."""
    end = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return value


def kill(number: int) -> None:
    with suppress(ProcessLookupError):  # it has ended
        os.kill(number, signal.SIGKILL)


def processes() -> dict[int, tuple[int, str]]:
    """Whose child each process is, and what it is called."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (place / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                found[int(place.name)] = int(parent), (place / "cmdline").read_bytes().decode(errors="replace")
        except OSError:  # it has ended
            continue
    return found


def descendants(top: int) -> dict[int, str]:
    """The processes below one, by their numbers."""
    known, found = processes(), {}
    for number, (_, name) in known.items():
        above = number
        while above in known and above != top:
            above = known[above][0]
        if above == top and number != top:
            found[number] = name
    return found


def replicas_of(server: Server) -> list[int]:
    below = descendants(server.process.pid)
    return [number for number, name in below.items() if name.startswith("ray::ServeReplica")]


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    words = (
        f"chat={folder}",
        "--replicas",
        2,
        "--api-key",
        KEY,
        "--max-rows",
        8,
        "--max-queue",
        8,
        "--max-body",
        65536,
    )
    with serving(tmp_path_factory.mktemp("server"), *words) as found:
        yield found


def test_a_seed_gives_the_text_of_one_server_whichever_replica_writes(server: Server, model: Model) -> None:
    expected = model.chat(HELLO, search="sample", seed=7, max_tokens=20)

    def both_have_written() -> bool:
        told = server.client.chat.completions.create(model="chat", messages=HELLO, seed=7, max_tokens=20)  # type: ignore[call-overload]
        assert told.choices[0].message.content == expected
        return len(server.numbers("legato_requests_total")) == 2

    eventually(both_have_written)


def test_a_stream_comes_piece_by_piece(server: Server, model: Model) -> None:
    answer = server.stream(400)
    assert answer.headers["content-type"].startswith("text/event-stream")
    pieces = []
    while piece := answer.read1():
        pieces.append(piece.decode())
    events = "".join(pieces).split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    text = "".join(json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events[:-2])
    assert text == model.generate("the cat", max_tokens=400)
    assert len(pieces) > 5


def test_rays_own_ports_ask_for_a_token(server: Server) -> None:
    own = next(number for number, name in descendants(server.process.pid).items() if "gcs_server" in name)
    given = dict(
        entry.split("=", 1) for entry in Path(f"/proc/{own}/environ").read_text().split("\0") if "=" in entry
    )
    assert given["RAY_AUTH_MODE"] == "token"
    assert len(given["RAY_AUTH_TOKEN"]) == 64


def test_clients_that_go_away_leave_nothing_behind(server: Server) -> None:
    for _ in range(8):
        answer = server.stream(LENGTH - 10)
        answer.read(10)
        answer.close()
    eventually(lambda: not any(server.numbers("legato_texts_writing").values()))


def test_the_door_is_the_one_of_a_server_alone(server: Server) -> None:
    def refused(status: int, method: str, path: str, body: Any = None, **headers: str) -> str:
        answer = server.request(method, path, body, **headers)
        told = json.loads(answer.read())["error"]
        assert answer.status == status, told
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert len(answer.headers.get_all("x-request-id") or ()) == 1
        return str(told["message"] if isinstance(told, dict) else told)

    assert "the key" in refused(401, "GET", "/v1/models", authorization="Bearer wrong")
    assert "answers to" in refused(403, "GET", "/health", host="evil.example")
    assert "own pages" in refused(403, "GET", "/health", origin="http://evil.example")
    assert "nothing" in refused(404, "GET", "/-/routes")
    assert "did you mean 'chat'" in refused(404, "POST", "/v1/completions", {"model": "chats", "prompt": "x"})
    assert "65,536" in refused(413, "POST", "/v1/completions", {"model": "chat", "prompt": "x" * 70_000})
    assert json.loads(server.request("GET", "/ready", authorization="").read()) == {"ready": True}
    assert "/v1/chat/completions" in json.loads(server.request("GET", "/openapi.json").read())["paths"]
    assert b"<script>" in server.request("GET", "/").read()
    told = server.request("GET", "/health", **{"x-request-id": "one-of-mine"})
    assert told.headers.get_all("x-request-id") == ["one-of-mine"]
    eventually(lambda: '"id": "one-of-mine"' in server.said())


def test_many_clients_at_once_are_each_answered_as_if_alone(server: Server, model: Model) -> None:
    def asked(number: int) -> tuple[int, str, str | None]:
        body = {"model": "chat", "prompt": f"the cat {number}", "max_tokens": 30, "seed": number}
        answer = server.request("POST", "/v1/completions", body)
        return answer.status, answer.read().decode(), answer.headers["retry-after"]

    with ThreadPoolExecutor(60) as pool:
        told = list(pool.map(asked, range(60)))
    refused = [later for status, _, later in told if status == 429]
    assert all(int(later or 0) >= 1 for later in refused)
    right = [(number, text) for number, (status, text, _) in enumerate(told) if status == 200]
    assert len(right) + len(refused) == len(told)
    assert len(right) >= 16
    for number, text in right:
        expected = model.generate(f"the cat {number}", search="sample", seed=number, max_tokens=30)
        assert json.loads(text)["choices"][0]["text"] == expected


def test_texts_that_no_replica_has_room_for_are_refused_with_when_to_come_again(server: Server) -> None:
    held = []  # two replicas have room for 16 texts each, whichever of them is asked
    for _ in range(20):
        answer = server.stream(LENGTH - 10, n=8)
        if answer.status != 200:
            break
        held.append(answer)
    told = answer.read().decode()
    for each in held:
        each.close()
    assert len(held) >= 2
    assert answer.status == 429, told
    assert int(answer.headers["retry-after"]) >= 1
    eventually(lambda: not any(server.numbers("legato_texts_writing").values()))


def test_a_replica_that_is_killed_ends_its_texts_alone_and_is_started_anew(server: Server, model: Model) -> None:
    expected = model.generate("the cat", max_tokens=LENGTH - 10)
    streams = [server.stream(LENGTH - 10) for _ in range(6)]
    before = replicas_of(server)
    assert len(before) == 2
    os.kill(before[0], signal.SIGKILL)
    texts, errors = [], []
    for stream in streams:
        *events, last, rest = stream.read().decode().split("\n\n")
        told = json.loads(last.removeprefix("data: ")) if last != "data: [DONE]" else None
        texts.append("".join(json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events))
        errors.append(told and told["error"]["message"])
        assert rest == ""
    assert {DIED, None} == set(errors)
    for text, error in zip(texts, errors, strict=True):
        assert text == expected if error is None else expected.startswith(text)
    told = server.client.completions.create(
        model="chat", prompt="the cat", temperature=0, max_tokens=20
    )  # the other's
    assert told.choices[0].text == model.generate("the cat", max_tokens=20)
    eventually(lambda: "legato: note: 2 of 2 replicas run" in server.said(), 120)
    assert "legato: note: 1 of 2 replicas run" in server.said()
    after = replicas_of(server)
    assert len(after) == 2
    assert before[0] not in after

    def both_answer() -> bool:
        server.client.models.list()
        return len(server.numbers("legato_requests_total")) == 2

    eventually(both_answer)


def test_what_was_asked_for_is_written_before_all_of_it_stops(server: Server, model: Model) -> None:
    below = descendants(server.process.pid)
    assert len(below) > 5
    stream = server.stream(LENGTH - 10)
    first = stream.read(10).decode()
    server.process.send_signal(signal.SIGTERM)
    text = first + stream.read().decode()
    assert text.endswith("data: [DONE]\n\n")
    pieces = [json.loads(event.removeprefix("data: ")) for event in text.split("\n\n")[:-2]]
    assert "".join(each["choices"][0]["text"] for each in pieces) == model.generate("the cat", max_tokens=LENGTH - 10)
    assert server.process.wait(90) == 0
    assert server.said().endswith("the server has stopped\n")
    assert server.out.read_text() == ""
    assert not [
        line for line in server.said().splitlines() if not line.startswith(("{", "serving", "legato: ", "the"))
    ]
    eventually(lambda: not below.keys() & processes().keys())


def test_a_cluster_of_several_machines_is_used_and_left_as_it_was(folder: Path, tmp_path: Path, model: Model) -> None:
    temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    env = {**os.environ, "RAY_TMPDIR": temporary, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", CLUSTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as cluster:
        assert cluster.stdout is not None
        address = cluster.stdout.readline().strip()
        below = descendants(cluster.pid)
        try:
            with serving(tmp_path, f"chat={folder}", "--replicas", 2, RAY_ADDRESS=address) as server:
                expected = model.generate("the cat", max_tokens=20)

                def both_have_written() -> bool:  # one on each machine
                    told = server.client.completions.create(
                        model="chat", prompt="the cat", temperature=0, max_tokens=20
                    )
                    assert told.choices[0].text == expected
                    return len(server.numbers("legato_requests_total")) == 2

                eventually(both_have_written)
                second = [sys.executable, "-m", "legato", "serve", str(folder), "--ray", "--port", "0"]
                refused = subprocess.run(
                    second, capture_output=True, text=True, env={**env, "RAY_ADDRESS": address}, check=False
                )
                assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
                assert "Ray Serve runs on this cluster already" in refused.stderr
                assert server.client.models.list().data[0].id == "chat"
            assert server.process.returncode == 0
            assert cluster.poll() is None
            left = {name for name in descendants(cluster.pid).values() if name.startswith("ray::Serve")}
            assert not left
            assert below.keys() <= processes().keys()
        finally:
            below = descendants(cluster.pid)
            cluster.communicate()
            for number in below:
                kill(number)
            shutil.rmtree(temporary, ignore_errors=True)


def refusal(*words: object, **env: str) -> str:
    command = [sys.executable, "-m", "legato", "serve", *map(str, words), "--ray", "--device", "cpu"]
    told = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env}, check=False)
    assert (told.returncode, told.stdout) == (2, ""), told.stderr
    # On a busy machine Ray says that a replica takes its time.
    (line,) = [line for line in told.stderr.splitlines(keepends=True) if not line.startswith("legato: note: ")]
    return line


def test_what_cannot_be_served_is_one_line(folder: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert (
            refusal(folder, "--port", port)
            == f"legato: port {port} of 127.0.0.1 is in use; name another with --port\n"
        )
    nobody = f"127.0.0.1:{port}"
    assert f"no cluster of Ray answers at RAY_ADDRESS={nobody}" in refusal(folder, "--port", 0, RAY_ADDRESS=nobody)
    assert "--replicas 999: Ray has" in refusal(folder, "--port", 0, "--replicas", 999)
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    weights = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    told = refusal(broken, "--port", 0)
    assert told.startswith("legato: ")
    assert "model.safetensors is damaged" in told
