"""OpenAI's API: what its routes answer, what they refuse, and that a text is what `generate` writes."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

import legato
from legato.errors import ConfigError
from legato.model import Model
from legato.serving.api import ApiOptions, make_api
from legato.serving.app import local_hosts
from legato.serving.models import Served, ServedModels
from legato.serving.scheduler import DeadlineExceeded, Done, Failed, Piece, QueueFull, Scheduler
from legato.serving.server import ServerOptions
from tiny_published import CHATML, gpt2_folder

PORT = 8000
HELLO = [{"role": "user", "content": "the cat"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return legato.load(gpt2_folder(tmp_path_factory.mktemp("served") / "m", template=CHATML), "cpu")


@pytest.fixture
def served(model: Model) -> Iterator[Served]:
    held = Served("tiny", model, rows=4, queue=8, most_tokens=40)
    yield held
    held.close(drain=False)


@pytest.fixture
def client(served: Served) -> TestClient:
    return client_of(served)


def client_of(served: Served, **options: Any) -> TestClient:
    app = make_api(ServedModels([served]), ApiOptions(hosts=local_hosts(PORT), **options))
    return TestClient(app, base_url=f"http://127.0.0.1:{PORT}", raise_server_exceptions=False)


def refusal_of(answer: Any, status: int) -> str:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "\n" not in error["message"]
    assert "Traceback" not in answer.text
    return str(error["message"])


def streamed(answer: Any) -> list[dict[str, Any]]:
    lines = [line for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


# ── texts ─────────────────────────────────────────────────────────────────────────────────────────


def test_models_are_listed(client: TestClient) -> None:
    listed = client.get("/v1/models").json()
    assert [each["id"] for each in listed["data"]] == ["tiny"]
    assert client.get("/v1/models/tiny").json()["object"] == "model"
    assert "did you mean 'tiny'?" in refusal_of(client.get("/v1/models/tinny"), 404)


@pytest.mark.parametrize("how", [{"temperature": 0}, {"seed": 3}, {"seed": 3, "temperature": 0.7, "top_p": 0.9}])
def test_a_chat_is_answered_as_by_chat(client: TestClient, model: Model, how: dict[str, Any]) -> None:
    answer = client.post(
        "/v1/chat/completions", json={"model": "tiny", "messages": HELLO, "max_tokens": 12, **how}
    ).json()
    options = {"search": "greedy"} if how == {"temperature": 0} else {"search": "sample", **how}
    expected = model.chat(HELLO, max_tokens=12, **options)
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": expected, "refusal": None}
    ids = model.chat_ids(HELLO)
    assert answer["usage"]["prompt_tokens"] == len(ids)
    assert answer["usage"]["completion_tokens"] <= 12
    assert choice["finish_reason"] in ("stop", "length")


def test_streamed_pieces_are_the_whole_text(client: TestClient) -> None:
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 20, "seed": 5}
    whole = client.post("/v1/chat/completions", json=body).json()
    chunks = streamed(
        client.post("/v1/chat/completions", json={**body, "stream": True, "stream_options": {"include_usage": True}})
    )
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    text = "".join(each["choices"][0]["delta"].get("content", "") for each in chunks if each["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["usage"] == whole["usage"]
    reasons = [each["choices"][0]["finish_reason"] for each in chunks if each["choices"]]
    assert reasons[-1] == whole["choices"][0]["finish_reason"]
    assert not any(reasons[:-1])
    assert len({each["id"] for each in chunks}) == 1


def test_several_texts_of_several_prompts(client: TestClient, model: Model) -> None:
    body = {"model": "tiny", "prompt": ["the dog", "a cat"], "n": 2, "max_tokens": 8, "seed": 1}
    answer = client.post("/v1/completions", json=body).json()
    expected: list[str] = []
    for prompt in body["prompt"]:  # type: ignore[attr-defined]
        walks = model.generate(prompt, search="sample", nbest=2, seed=1, max_tokens=8)
        ordered = [choice["text"] for choice in answer["choices"][len(expected) : len(expected) + 2]]
        assert sorted(ordered) == sorted(walks)
        expected += ordered
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    chunks = streamed(client.post("/v1/completions", json={**body, "stream": True}))
    texts = ["", "", "", ""]
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == expected


def test_a_prompt_may_be_tokens_and_be_echoed(client: TestClient, model: Model) -> None:
    ids = model.prompt_ids("the mat")
    body = {"model": "tiny", "prompt": ids, "max_tokens": 4, "temperature": 0}
    plain = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    echoed = client.post("/v1/completions", json={**body, "echo": True}).json()["choices"][0]["text"]
    assert plain == model.generate("the mat", max_tokens=4)
    assert echoed == model.tokenizer.decode(ids) + plain


def test_a_stop_string_ends_a_text_and_is_in_no_piece(client: TestClient, model: Model) -> None:
    body = {"model": "tiny", "prompt": "the", "max_tokens": 30, "temperature": 0}
    whole = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    stop = whole[len(whole) // 2 : len(whole) // 2 + 2]
    answer = client.post("/v1/completions", json={**body, "stop": stop}).json()["choices"][0]
    assert answer["text"] == whole[: whole.index(stop)]
    assert answer["finish_reason"] == "stop"
    chunks = streamed(client.post("/v1/completions", json={**body, "stop": [stop], "stream": True}))
    assert "".join(each["choices"][0]["text"] for each in chunks) == answer["text"]


def test_a_text_is_the_same_alone_and_among_others(client: TestClient) -> None:
    def ask(number: int) -> str:
        body = {"model": "tiny", "prompt": f"the cat {number}", "max_tokens": 5 + number, "seed": number}
        answer = client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    alone = [ask(number) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == alone


# ── what is refused ───────────────────────────────────────────────────────────────────────────────

BAD: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages: "),
    ({"messages": [{"content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
    ({"messages": HELLO, "temperature": 3}, "temperature"),
    ({"messages": HELLO, "top_p": 0}, "top_p"),
    ({"messages": HELLO, "n": 0}, "n: "),
    ({"messages": HELLO, "n": 5}, "5 texts were asked for at once"),
    ({"messages": HELLO, "max_tokens": 0}, "max_tokens"),
    ({"messages": HELLO, "max_tokens": 41}, "41 tokens were asked for; this server writes 40 at most"),
    ({"messages": HELLO, "stop": ""}, "stop"),
    ({"messages": HELLO, "frequency_penalty": 1}, "'frequency_penalty' is not done here"),
    ({"messages": HELLO, "tools": [{"type": "function"}]}, "tools.0.function: Field required"),
    ({"messages": HELLO, "temprature": 1}, "there is no parameter 'temprature'"),
    ({"messages": [{"role": "user", "content": None}]}, "messages.0: a message of the user has no content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content: Input should be"),
    ({"messages": [{"role": "user", "content": "the cat " * 60}]}, "tokens, but the model reads 64 at most"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages.0"),
]


@pytest.mark.parametrize(("body", "said"), BAD, ids=lambda given: given if isinstance(given, str) else "")
def test_what_does_not_fit_is_refused(client: TestClient, body: dict[str, Any], said: str) -> None:
    assert said in refusal_of(client.post("/v1/chat/completions", json={"model": "tiny", **body}), 400)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b"null", b"[" * 100_000, b'{"model": 1e999}', b'{"a":' * 5000]
)
def test_a_body_that_is_no_request_is_refused(client: TestClient, body: bytes) -> None:
    for route in ("chat/completions", "completions", "embeddings"):
        headers = {"content-type": "application/json"}
        refusal_of(client.post(f"/v1/{route}", content=body, headers=headers), 400)


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_a_body_that_is_not_sent_as_json_is_told_how(client: TestClient, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    answer = client.post("/v1/completions", content=b'{"model": "tiny", "prompt": "x"}', headers=headers)
    assert refusal_of(answer, 400) == "the body has to be a JSON object, sent with 'content-type: application/json'"


def test_a_refusal_names_the_field_and_no_place_on_the_server(client: TestClient, model: Model) -> None:
    wrong = client.post("/v1/chat/completions", json={"model": "tiny", "messages": HELLO, "temperature": 3})
    assert wrong.json()["error"]["param"] == "temperature"
    for body, field, code in (
        ({"model": "tinny", "prompt": "x"}, "model", "model_not_found"),
        ({"model": "tiny", "prompt": "x", "zork": 1}, "zork", None),
        ({"model": "tiny", "prompt": "the cat " * 60}, "prompt", "context_length_exceeded"),
    ):
        error = client.post("/v1/completions", json=body).json()["error"]
        assert (error["param"], error["code"]) == (field, code)
    for body in (
        {"model": "tiny", "prompt": [10**6]},
        {"model": "tiny", "prompt": "the cat " * 60},
        {"model": "tiny", "prompt": "the", "stream": True, "n": 5},
    ):
        said = refusal_of(client.post("/v1/completions", json=body), 400)
        assert str(model.folder) not in said
        assert "--" not in said


def test_a_body_that_is_too_large_is_refused(served: Served) -> None:
    client = client_of(served, body=100)
    body = {"model": "tiny", "prompt": "x" * 200}
    assert "bytes" in refusal_of(client.post("/v1/completions", json=body), 413)

    def pieces() -> Iterator[bytes]:  # whose length nobody says
        yield b'{"prompt": "'
        for _ in range(50):
            yield b"x" * 10

    assert "100 bytes" in refusal_of(client.post("/v1/completions", content=pieces()), 413)


def test_unknown_models_and_routes(client: TestClient) -> None:
    for name in ("other", "../../etc/passwd", "", "tiny/../tiny"):
        refusal_of(client.post("/v1/completions", json={"model": name, "prompt": "x"}), 404)
    routes = ", ".join(("GET /v1/models", "GET /v1/models/{name}", "POST /v1/chat/completions"))
    line = refusal_of(client.get("/v1/nothing"), 404)
    assert line.startswith("there is no GET /v1/nothing here; there is GET /health, ")
    assert routes in line
    assert line.endswith("POST /v1/audio/transcriptions")
    assert "there is no GET /v1/completions here" in refusal_of(client.get("/v1/completions"), 405)


@pytest.mark.parametrize("key", ["schlüssel", "schlüssel-鍵", " secret", "secret\n", "se\x00cret"])
def test_a_key_that_no_header_holds_is_refused_at_the_start(key: str) -> None:
    with pytest.raises(ConfigError, match=r"^the API key 2 holds what no client can send"):
        ServerOptions(keys=("right", key))


def test_a_key_is_asked_for(served: Served) -> None:
    client = client_of(served, keys=("right", "other"))
    assert "key" in refusal_of(client.get("/v1/models"), 401)
    assert "key" in refusal_of(client.get("/v1/models", headers={"authorization": "Bearer wrong"}), 401)
    for key in ("right", "other"):
        assert client.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == 200
        assert client.get("/v1/models", headers={"authorization": f"bearer  {key}"}).status_code == 200
    for other in ("right", "Basic right", "Bearer", "Bearer "):
        refusal_of(client.get("/v1/models", headers={"authorization": other}), 401)
    assert client.get("/health").status_code == 200


def test_other_hosts_and_origins_are_refused(served: Served) -> None:
    client = client_of(served, origins=frozenset({"https://mine.example"}))
    refusal_of(client.get("/v1/models", headers={"host": "evil.example"}), 403)
    refusal_of(client.get("/v1/models", headers={"origin": "https://evil.example"}), 403)
    assert client.get("/v1/models", headers={"origin": "https://mine.example"}).status_code == 200


def test_health_and_figures_and_a_log_without_texts(served: Served) -> None:
    entries: list[dict[str, Any]] = []
    client = client_of(served, log=entries.append)
    secret = "the cat secret"
    answer = client.post("/v1/completions", json={"model": "tiny", "prompt": secret, "max_tokens": 2})
    assert entries[-1]["status"] == 200
    assert entries[-1]["route"] == "/v1/completions"
    assert answer.headers["x-request-id"] == entries[-1]["id"]
    assert "secret" not in json.dumps(entries)
    metrics = client.get("/metrics").text
    assert 'legato_requests_total{route="/v1/completions",status="200"} 1.0' in metrics
    assert 'legato_texts_writing{model="tiny"} 0.0' in metrics
    assert client.get("/ready").json() == {"ready": True}


# ── vectors ───────────────────────────────────────────────────────────────────────────────────────


def test_texts_are_embedded_as_by_embed(client: TestClient, model: Model) -> None:
    expected = model.embed(["the cat", "a dog"])
    answer = client.post("/v1/embeddings", json={"model": "tiny", "input": ["the cat", "a dog"]}).json()
    assert np.allclose([each["embedding"] for each in answer["data"]], expected, atol=1e-6)
    coded = client.post(
        "/v1/embeddings", json={"model": "tiny", "input": "the cat", "encoding_format": "base64"}
    ).json()
    numbers = np.frombuffer(base64.b64decode(coded["data"][0]["embedding"]), dtype="<f4")
    assert np.allclose(numbers, expected[0], atol=1e-6)
    assert coded["usage"]["prompt_tokens"] > 0
    refusal_of(client.post("/v1/embeddings", json={"model": "tiny", "input": []}), 400)
    refusal_of(client.post("/v1/embeddings", json={"model": "tiny", "input": "x", "dimensions": 3}), 400)


# ── the scheduler ─────────────────────────────────────────────────────────────────────────────────


class Heard:
    def __init__(self) -> None:
        self.events: list[Any] = []
        self.ended = threading.Event()

    def __call__(self, event: Any) -> None:
        self.events.append(event)
        if not isinstance(event, Piece):
            self.ended.set()


def options(**given: Any) -> legato.decoding.SearchOptions:
    return legato.decoding.SearchOptions(**{"max_tokens": 30, **given})


@pytest.mark.parametrize("stop", [(), ("e",)])
def test_what_nobody_streams_comes_in_one_piece(model: Model, stop: tuple[str, ...]) -> None:
    scheduler, streamed, whole, how = Scheduler(model), Heard(), Heard(), options(search="sample", seed=3, stop=stop)
    try:
        scheduler.submit([1, 2], how, streamed)
        scheduler.submit([1, 2], how, whole, streamed=False)
        for each in (streamed, whole):
            assert each.ended.wait(60)
    finally:
        scheduler.close()
    assert [type(event) for event in whole.events] == [Done]
    assert len(streamed.events) > 1
    assert streamed.events[-1].texts[0].tokens == whole.events[0].texts[0].tokens


def test_too_many_are_told_when_to_come_again(model: Model) -> None:
    scheduler = Scheduler(model, rows=1, queue=2)
    try:
        heard = [Heard() for _ in range(30)]
        refused = 0
        for each in heard:
            try:
                scheduler.submit([1, 2], options(), each)
            except QueueFull as problem:
                refused += problem.seconds >= 1
                each.ended.set()
        assert refused
        assert all(each.ended.wait(60) for each in heard)
        done = [each.events[-1] for each in heard if each.events]
        assert len(done) == 30 - refused
        assert all(isinstance(event, Done) for event in done)
    finally:
        scheduler.close()


def test_who_goes_away_makes_room(model: Model) -> None:
    scheduler = Scheduler(model, rows=2, queue=100)
    try:
        gone = [Heard() for _ in range(20)]
        for request in [scheduler.submit([1, 2], options(), each) for each in gone]:
            scheduler.cancel(request)
        assert all(each.ended.wait(60) for each in gone)
        last = Heard()
        scheduler.submit([1, 2], options(max_tokens=3), last)
        assert last.ended.wait(60)
        assert isinstance(last.events[-1], Done)
        while scheduler.load() != (0, 0):
            time.sleep(0.01)
        assert not scheduler._written
        assert not scheduler._engine.done()
    finally:
        scheduler.close()


def test_what_takes_too_long_is_ended(model: Model) -> None:
    scheduler = Scheduler(model, rows=1, queue=100, patience=0.0)
    try:
        heard = Heard()
        scheduler.submit([1, 2], options(), heard)
        assert heard.ended.wait(60)
        assert isinstance(heard.events[-1].problem, DeadlineExceeded)
    finally:
        scheduler.close()


def test_a_step_that_fails_ends_what_was_written_and_nothing_else(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler(model, rows=4, queue=100)
    try:
        broken = Heard()
        with monkeypatch.context() as patch:
            patch.setattr("legato.decoding.engine.Engine.step", lambda self: 1 / 0)
            failed = scheduler.submit([1, 2], options(), broken)
            assert broken.ended.wait(60)
        assert isinstance(broken.events[-1], Failed)
        whole = Heard()
        scheduler.submit([1, 2], options(max_tokens=3), whole)
        scheduler.cancel(failed)  # whose number the next request has
        assert whole.ended.wait(60)
        assert isinstance(whole.events[-1], Done)
    finally:
        scheduler.close()


def test_a_server_that_stops_writes_what_was_asked_for(model: Model) -> None:
    scheduler = Scheduler(model, rows=2, queue=100)
    heard = [Heard() for _ in range(6)]
    for each in heard:
        scheduler.submit([1, 2], options(), each)
    scheduler.close(drain=True)
    assert all(isinstance(each.events[-1], Done) for each in heard)
    with pytest.raises(legato.LegatoError, match="stopping"):
        scheduler.submit([1, 2], options(), Heard())


def test_models_of_one_name_are_refused(served: Served, model: Model, tmp_path: Path) -> None:
    with pytest.raises(legato.LegatoError, match="two models are called 'tiny'"):
        ServedModels([served, Served("tiny", model)])
