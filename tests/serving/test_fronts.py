"""Fronts: what they answer is what the process with the models would, and they end and begin anew as one server."""

from __future__ import annotations

import asyncio
import json
import pickle
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

import legato
from legato.errors import ConfigError, LegatoError
from legato.model import Model
from legato.serving.api import ApiOptions, Metrics, make_api
from legato.serving.app import Refusal
from legato.serving.fronts.channel import Channel, packed, unpacked
from legato.serving.fronts.front import Dispatcher, front_api
from legato.serving.fronts.front_models import Engines, ServedFacts
from legato.serving.fronts.fronts import FrontLink, FrontSettings, front_count
from legato.serving.fronts.proxy import Proxy
from legato.serving.models import Served, ServedModels
from legato.serving.scheduler import DeadlineExceeded, QueueFull
from serving.api_client import api_of, listening
from serving.serving_process import serving
from tiny_published import CHATML, gpt2_folder

JSON = {"content-type": "application/json"}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "the cat"}], "max_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return legato.load(gpt2_folder(tmp_path_factory.mktemp("fronts") / "m", template=CHATML), "cpu")


@pytest.fixture
def served(model: Model) -> Iterator[Served]:
    held = Served("tiny", model, rows=4, queue=2, most_tokens=40)
    yield held
    held.close(drain=False)


def by_a_front(
    served: Served, ask: Callable[[httpx.AsyncClient], Awaitable[Any]], metrics: Metrics | None = None
) -> Any:
    """What a front answers that shares this process's loop with the models."""
    models = ServedModels([served])

    async def run() -> Any:
        ours, theirs = socket.socketpair()
        guards: Any = ((), None, frozenset(), 1 << 20)
        settings = FrontSettings([ServedFacts.of(each) for each in models], *guards, False, "", 0.005)
        link = FrontLink(models, metrics or Metrics(models), asyncio.Event())
        linked = asyncio.ensure_future(link.serve(ours, pickle.dumps(settings)))
        channel = Channel(*await asyncio.open_connection(sock=theirs))
        engines = Engines(channel)
        _, app = front_api(await channel.receive(), engines)
        listening = asyncio.ensure_future(engines.listen())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            answer = await ask(client)
        channel.close()
        await asyncio.gather(linked, listening)
        return answer

    return asyncio.run(run())


def without_ids(text: str) -> Any:
    """Chunks, or an answer, without what differs from one to the next."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    return [{key: value for key, value in event.items() if key not in ("id", "created")} for event in events]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", CHAT),
        ("chat/completions", {**CHAT, "temperature": 1, "seed": 3, "n": 2, "stop": ["e"]}),
        ("chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2}),
        ("chat/completions", {**CHAT, "response_format": {"type": "json_object"}, "max_tokens": 30}),
        ("completions", {"model": "tiny", "prompt": ["the", "a cat"], "echo": True, "temperature": 0}),
        ("chat/completions", {**CHAT, "model": "tinny"}),
        ("chat/completions", {**CHAT, "max_tokens": 1000}),
        ("chat/completions", {**CHAT, "logit_bias": {"5": 1}}),
        ("completions", {"model": "tiny", "prompt": "the " * 3000}),
        ("completions", {"model": "tiny", "prompt": "the", "n": 100}),
        ("completions", {"model": "tiny", "prompt": [1, 10**6]}),
    ],
)
def test_a_front_answers_as_the_server_does(served: Served, path: str, body: dict[str, Any]) -> None:
    async def ask(client: httpx.AsyncClient) -> Any:
        return await client.post(f"/v1/{path}", json=body)

    expected, answer = api_of(served).post(f"/v1/{path}", json=body), by_a_front(served, ask)
    assert (answer.status_code, without_ids(answer.text)) == (expected.status_code, without_ids(expected.text))


@pytest.mark.parametrize("more", [{}, {"logprobs": True}, {"n": 2, "seed": 3, "temperature": 1}])
def test_a_stream_of_a_front_holds_the_whole_text(served: Served, more: dict[str, Any]) -> None:
    body = {**CHAT, **more}

    async def ask(client: httpx.AsyncClient) -> Any:
        return await client.post("/v1/chat/completions", json={**body, "stream": True})

    whole = api_of(served).post("/v1/chat/completions", json=body).json()["choices"]
    texts, reasons = dict.fromkeys(range(len(whole)), ""), {}
    for event in without_ids(by_a_front(served, ask).text):
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
        reasons[choice["index"]] = choice["finish_reason"]
    assert texts == {each["index"]: each["message"]["content"] for each in whole}
    assert reasons == {each["index"]: each["finish_reason"] for each in whole}


def test_too_many_are_refused_and_all_are_counted(served: Served) -> None:
    metrics = Metrics(ServedModels([served]))

    async def ask(client: httpx.AsyncClient) -> Any:
        return await asyncio.gather(
            *(client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 40}) for _ in range(12))
        )

    answers = by_a_front(served, ask, metrics)
    refused = [answer for answer in answers if answer.status_code == 429]
    assert {answer.status_code for answer in answers} == {200, 429}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    counted = f'route="/v1/chat/completions",status="429"}} {len(refused)}.0'
    assert counted in metrics.text().decode()


def test_a_client_that_goes_away_makes_room(served: Served) -> None:
    async def ask(client: httpx.AsyncClient) -> Any:
        asked = asyncio.ensure_future(client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 40}))
        while not served.scheduler().load()[0]:
            await asyncio.sleep(0)
        asked.cancel()
        with suppress(asyncio.CancelledError):
            await asked
        while served.load() != (0, 0):
            await asyncio.sleep(0.01)

    by_a_front(served, ask)


@pytest.mark.parametrize(
    "problem",
    [
        QueueFull(3, 7.0),
        DeadlineExceeded("late"),
        Refusal(404, "none", "model", "x"),
        LegatoError("no"),
        ValueError("a"),
    ],
)
def test_what_went_wrong_reads_the_same_in_a_front(problem: Exception) -> None:
    same = unpacked(pickle.loads(pickle.dumps(packed(problem))))
    assert (type(same).__name__, str(same)) == (type(problem).__name__, str(problem))
    assert vars(same) == vars(problem)


def test_what_a_front_does_not_do_itself_it_passes_on(served: Served, tmp_path: Path) -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("this is for the process with the models")

    async def ask(path: str) -> list[Any]:
        app = Dispatcher(refuse, Proxy(path), 1 << 20)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            asked = {**CHAT, "index": "docs"}
            escaped = json.dumps(asked).replace("ind", "\\u0069nd")
            return [
                await client.get("/v1/models"),
                await client.get("/v1/models/tinny?x=1"),
                await client.post("/v1/chat/completions", json=asked),
                await client.post("/v1/chat/completions", content=escaped, headers=JSON),
                await client.post("/v1/embeddings", json={"model": "tiny", "input": "x y"}),
            ]

    app = make_api(ServedModels([served]), ApiOptions())
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as opened:
        opened.bind(path := str(tmp_path / "api"))
        opened.listen()
        with listening(app, opened):
            answers = asyncio.run(ask(path))
    assert [answer.status_code for answer in answers] == [200, 404, 404, 404, 200]
    assert "did you mean 'tiny'?" in answers[1].text
    assert "there is no index 'docs'" in answers[2].text
    (gone,) = asyncio.run(ask_once(path))
    assert gone.status_code == 503


async def ask_once(path: str) -> list[Any]:
    app = Dispatcher(None, Proxy(path + ".gone"), 1 << 20)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
        return [await client.get("/v1/models")]


def test_a_server_has_fronts_where_it_is_told_or_on_cuda(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    models = ServedModels([served])
    assert front_count(None, models) == 0
    assert front_count(3, models) == 3
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(ConfigError, match="on Linux"):
        front_count(1, models)


@pytest.mark.slow
def test_a_server_with_fronts_ends_as_one(tmp_path: Path) -> None:
    folder = gpt2_folder(tmp_path / "m", template=CHATML)
    with serving(f"tiny={folder}", "--fronts", "1", "--no-log") as (process, address):
        body = {**CHAT, "max_tokens": 400, "stream": True, "temperature": 1, "seed": 1}
        with httpx.stream("POST", f"{address}/v1/chat/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert process.wait(30) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{address}/health", timeout=5)
