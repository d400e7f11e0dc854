"""What stands before each request in Ray's proxy, and what is said of replicas, without a cluster."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from answers import Command
from cli.conftest import command as command
from legato.errors import ConfigError
from legato.serving.startup import ray_proxy
from legato.serving.startup.ray_proxy import DIED, ProxyMiddleware
from legato.serving.startup.ray_serve import OurLines, actor_options, only_our_lines, reason_in
from legato.serving.startup.replica import together
from tiny_published import gpt2_folder

START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"x-content-type-options", b"nosniff"), (b"x-request-id", b"a"), (b"x-request-id", b"b")],
}


def start(kind: str = "application/json", status: int = 200) -> dict[str, Any]:
    return {**START, "status": status, "headers": [*START["headers"], (b"content-type", kind.encode())]}


def body(text: str, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text.encode(), "more_body": more}


class Client:
    """One that sends a body in parts, and takes what it is sent or nothing."""

    def __init__(self, *parts: bytes, path: str = "/v1/models", takes: bool = True, **headers: str) -> None:
        self.parts, self.takes = list(parts), takes
        self.heard: list[Any] = []
        named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        self.scope: Scope = {"type": "http", "method": "POST", "path": path, "headers": named}

    async def receive(self) -> Any:
        if not self.parts:
            await asyncio.Event().wait()  # it stays, and says no more
        part = self.parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(self.parts)}

    async def send(self, message: Any) -> None:
        if not self.takes and message["type"] == "http.response.body":
            await asyncio.Event().wait()
        self.heard.append(message)

    def ask(self, app: Any, **options: Any) -> Client:
        """Ask an application as it stands behind the proxy."""

        async def asked() -> None:
            middleware = ProxyMiddleware(app, **{"body": 1 << 20, **options})
            await asyncio.wait_for(middleware(self.scope, self.receive, self.send), 30)

        asyncio.run(asked())
        return self

    @property
    def status(self) -> int:
        return int(self.heard[0]["status"])

    @property
    def headers(self) -> list[tuple[str, str]]:
        return [(name.decode(), value.decode()) for name, value in self.heard[0]["headers"]]

    @property
    def text(self) -> str:
        return b"".join(each.get("body", b"") for each in self.heard[1:]).decode()

    def error(self, status: int) -> str:
        assert self.status == status
        assert ("x-content-type-options", "nosniff") in self.headers
        found = json.loads(self.text)["error"]
        assert list(found) == ["message", "type", "param", "code"]
        return str(found["message"])


def replies(*messages: Any) -> Any:
    """An application that says this, and ends."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        for message in messages:
            await send(message)

    return app


def test_an_answer_of_a_replica_goes_through_as_it_is() -> None:
    messages = [start(), body("one", more=True), body("two")]
    client = Client(b"{}", x_request_id="mine").ask(replies(*messages))
    assert client.heard[1:] == messages[1:]
    assert [value for name, value in client.headers if name == "x-request-id"] == ["mine"]


def test_a_request_id_that_is_no_plain_word_is_replaced_for_all() -> None:
    seen = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend(value.decode() for name, value in scope["headers"] if name == b"x-request-id")
        await replies(start(), body(""))(scope, receive, send)

    client = Client(b"", x_request_id="<b>").ask(app)
    assert [value for name, value in client.headers if name == "x-request-id"] == seen
    assert seen[0].isalnum()


@pytest.mark.parametrize(
    "name",
    ["X-Request-Timeout-Seconds", "x-request-disconnect-disabled", "x-session-id", "x-serve-router-a", "serve_model"],
)
def test_what_tells_ray_how_to_do_its_work_is_not_for_clients(name: str) -> None:
    seen = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend(name for name, _ in scope["headers"])
        await replies(start(), body(""))(scope, receive, send)

    client = Client(b"", accept="*/*")
    client.scope["headers"].append((name.encode(), b"?1"))
    client.ask(app)
    assert sorted(seen) == [b"accept", b"x-request-id"]


def test_a_client_that_goes_away_is_no_replica_that_died() -> None:
    class Gone(Client):
        async def receive(self) -> Any:
            return await super().receive() if self.parts else {"type": "http.disconnect"}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    entries: list[Any] = []
    assert Gone(b"{}").ask(app, log=entries.append).heard == []
    assert Gone().ask(app, log=entries.append).heard == []
    assert entries == []


def test_a_replica_that_dies_before_its_answer_leaves_an_error() -> None:
    entries: list[Any] = []
    client = Client(b"{}", x_request_id="mine").ask(replies(), log=entries.append)
    assert client.error(503) == DIED
    assert ("retry-after", "1") in client.headers
    assert entries == [{"id": "mine", "method": "POST", "route": "other", "status": 503}]

    async def raising(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("<secret>")

    assert Client(b"{}").ask(raising).error(503) == DIED


def test_a_replica_that_dies_within_a_stream_leaves_an_error_as_its_last_event() -> None:
    client = Client(b"{}").ask(replies(start("text/event-stream; charset=utf-8"), body("data: 1\n\n", more=True)))
    first, last, rest = client.text.split("\n\n")
    assert (first, rest) == ("data: 1", "")
    assert json.loads(last.removeprefix("data: "))["error"] == {
        "message": DIED,
        "type": "server_error",
        "param": None,
        "code": None,
    }
    assert not client.heard[-1].get("more_body")


def test_any_other_answer_that_breaks_off_is_not_made_whole() -> None:
    client = Client(b"{}").ask(replies(start(), body('{"id": ', more=True)))
    assert client.heard[-1]["more_body"]


@pytest.mark.parametrize(("status", "ours"), [(404, 503), (408, 504), (500, 503), (503, 503)])
def test_rays_own_pages_are_errors_of_ours(status: int, ours: int) -> None:
    page = {"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]}
    told = Client(b"{}").ask(replies(page, body("Path '/' not found. Ping http://.../-/routes"))).error(ours)
    assert "Ping" not in told


def test_rays_own_routes_are_nobodys_business() -> None:
    client = Client(b"", path="/-/routes").ask(replies(start(), body('{"/": "legato"}')))
    assert client.error(404) == "there is nothing at this address"


def test_a_body_that_is_too_large_or_late_is_refused_before_it_is_kept() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":  # as Ray's proxy reads on, whatever is asked for
            pass

    large = Client(*[b"x" * 1000] * 100).ask(app, body=5000)
    assert large.error(413) == "the body has more than 5,000 bytes"
    assert len(large.parts) == 94
    late = Client(b"x", b"y")
    late.parts.insert(1, b"")
    slow = late.receive

    async def receive() -> Any:
        if len(late.parts) < 3:
            await asyncio.Event().wait()
        return await slow()

    late.receive = receive  # type: ignore[method-assign]
    assert late.ask(app, read=0.05).error(408) == "the request did not come in time"


def test_an_answer_that_nobody_takes_ends() -> None:
    ended = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send(start("text/event-stream"))
        gone = asyncio.ensure_future(receive())
        while not gone.done():
            await send(body("data: 1\n\n", more=True))
            await asyncio.sleep(0)
        ended.append(gone.result()["type"])

    client = Client(b"", takes=False).ask(app, stall=0.05)
    assert ended == ["http.disconnect"]
    assert len(client.heard) == 1


@pytest.mark.slow
def test_the_proxy_is_told_by_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ray_proxy.BODY, "77")
    monkeypatch.setenv(ray_proxy.LOG, "")
    (found,) = ray_proxy.middlewares()
    assert found.cls is ProxyMiddleware
    assert found.kwargs["body"] == 77
    code = "import sys, legato.serving.startup.ray_proxy; sys.exit('torch' in sys.modules)"  # it starts with less
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ── the command's side ────────────────────────────────────────────────────────────────────────────


def test_replicas_share_the_cores_or_take_a_gpu_each() -> None:
    machines = [{"CPU": 8.0}, {"CPU": 4.0, "GPU": 2.0}]
    assert actor_options(machines, 1, "cpu") == {"num_cpus": 8, "num_gpus": 0}
    assert actor_options(machines, 2, "cpu") == {"num_cpus": 4, "num_gpus": 0}
    assert actor_options(machines, 12, "cpu") == {"num_cpus": 1, "num_gpus": 0}
    assert actor_options(machines, 2, "auto") == actor_options(machines, 2, "cuda") == {"num_cpus": 0, "num_gpus": 1}
    for count, device in ((13, "cpu"), (3, "auto"), (1, "cuda:1")):
        with pytest.raises(ConfigError, match=r"cores|GPUs|write --device cuda"):
            actor_options(machines, count, device)


def test_why_no_replica_starts_is_its_own_line_where_it_has_one() -> None:
    page = "The deployment failed to start 1 times in a row.\n  File x, line 3\n"
    assert reason_in(f"{page}legato.errors.LegatoError: x is damaged: it is short\n") == "x is damaged: it is short"
    assert reason_in(f"{page}The actor died.\n") == "no replica starts: The actor died."


def test_of_what_ray_repeats_only_the_replicas_log_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    err = io.StringIO()
    stream = OurLines(err)
    for line in (
        "(ServeReplica:legato:api pid=7) WARNING 2026 -- something of Ray's",
        "(ServeController pid=8, ip=10.0.0.2) {",
        "(raylet) A worker died",
        "(autoscaler +1s) Tip: use `ray status`",
        "legato: note: one of ours (raylet) here",
    ):
        print(line, file=stream)
    print('(ServeReplica:legato:api pid=7, ip=10.0.0.2) {"id": "1"}', file=stream, end="")
    assert err.getvalue() == "legato: note: one of ours (raylet) here\n"
    with only_our_lines():
        print("(raylet) A worker died")
        print("(ProxyActor pid=3) legato: this is a fault of ours", file=sys.stderr)
        ray_proxy.writer().say("{}")
        ray_proxy.writer().close()
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == ["legato: this is a fault of ours", "{}"]


def test_numbers_of_replicas_stand_side_by_side() -> None:
    text = b'# HELP x_total X\n# TYPE x_total counter\nx_total{route="a\\"b"} 2.0\n'
    assert together([("two", text), ("one", text)]).decode().splitlines() == [
        "# HELP x_total X",
        "# TYPE x_total counter",
        'x_total{replica="one",route="a\\"b"} 2.0',
        'x_total{replica="two",route="a\\"b"} 2.0',
    ]
    assert together([]) == b""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--replicas", "2"), "legato: --replicas is for --ray; add that, or leave it out\n"),
        (("--ray", "--replicas", "0"), "Input should be greater than or equal to 1"),
        (("--ray", "--replicas", "many"), "unable to parse string as an integer"),
    ],
)
def test_replicas_that_cannot_be_are_refused(
    command: Command, words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    told = command("serve", tmp_path, *words)
    assert (told.code, told.err.count("\n")) == (2, 1)
    assert said in told.err


def test_whoever_lacks_ray_is_told(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    told = command("serve", gpt2_folder(tmp_path / "tiny"), "--ray")
    assert (told.code, told.err) == (2, 'legato: ray is not installed; it comes with: pip install "legato-nn[ray]"\n')
