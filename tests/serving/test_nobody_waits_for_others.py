"""What one client sends keeps no other one waiting: neither while it is read, nor by what it asks for."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2 as httpx
import jsonschema
import pytest
from fastapi.testclient import TestClient

import legato
from legato.model import Model
from legato.serving import models as served_models
from legato.serving.api import ApiOptions, make_api
from legato.serving.models import Served, ServedModels
from legato.serving.transport.bodies import MOST_VALUES, check_values
from legato.serving.transport.text_limits import TOKEN_CHARACTERS
from serving.api_client import api_of, listening, refusal_of
from tiny_published import CHATML, gpt2_folder

HELLO = [{"role": "user", "content": "the cat"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return legato.load(gpt2_folder(tmp_path_factory.mktemp("others") / "m", length=256, template=CHATML), "cpu")


@pytest.fixture
def served(model: Model) -> Iterator[Served]:
    one = Served("tiny", model, rows=4, queue=8)
    yield one
    one.close(drain=False)


# ── what is read before a text is written ─────────────────────────────────────────────────────────

HELD: dict[str, tuple[str, str, dict[str, Any]]] = {  # what reads it, the route, and a request that it is read for
    "a schema": (
        "check_constraint",
        "chat/completions",
        {"messages": HELLO, "max_tokens": 20, "response_format": FORMAT},
    ),
    "a dialogue": ("chat_ids", "chat/completions", {"messages": HELLO, "max_tokens": 4}),
    "a prompt": ("prompt_ids", "completions", {"prompt": "held", "max_tokens": 4}),
    "a text to embed": ("embed", "embeddings", {"input": "held"}),  # in its turn: other vectors wait
}


@pytest.mark.parametrize("what", HELD)
def test_others_are_answered_while_a_request_is_read(
    served: Served, model: Model, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, route, body = HELD[what]
    owner: Any = served_models if name == "check_constraint" else Model
    original, begun, released = getattr(owner, name), threading.Event(), threading.Event()

    def held(*given: Any, **more: Any) -> Any:
        if not begun.is_set():
            begun.set()
            assert released.wait(60)
        return original(*given, **more)

    expected = model.generate("the cat", max_tokens=30)
    vector = model.embed("a dog").tolist()
    monkeypatch.setattr(owner, name, held)
    app = make_api(ServedModels([served]), ApiOptions())
    with listening(app) as port, ThreadPoolExecutor(1) as pool, httpx.Client(timeout=60) as client:
        at = f"http://127.0.0.1:{port}"
        first = pool.submit(httpx.post, f"{at}/v1/{route}", json={"model": "tiny", **body})
        try:
            assert begun.wait(60)
            assert client.get(f"{at}/health").status_code == 200
            asked = {"model": "tiny", "prompt": "the cat", "max_tokens": 30, "temperature": 0, "stream": True}
            pieces = [
                json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                for line in client.post(f"{at}/v1/completions", json=asked).text.split("\n\n")
                if line and not line.endswith("[DONE]")
            ]
            assert "".join(pieces) == expected
            if what != "a text to embed":
                made = client.post(f"{at}/v1/embeddings", json={"model": "tiny", "input": "a dog"}).json()
                assert made["data"][0]["embedding"] == pytest.approx(vector, abs=1e-6)
            assert not first.done()
        finally:
            released.set()
        answer = first.result(60)
    assert answer.status_code == 200, answer.text
    if what == "a schema":
        jsonschema.validate(json.loads(answer.json()["choices"][0]["message"]["content"]), SCHEMA)


@pytest.mark.slow
def test_a_schema_that_takes_too_long_is_refused_and_the_next_is_read(served: Served) -> None:
    client = api_of(served)

    def ask(schema: Any) -> Any:
        named = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        body = {"model": "tiny", "messages": HELLO, "max_tokens": 60, "response_format": named}
        return client.post("/v1/chat/completions", json=body)

    line = refusal_of(ask({"type": "integer", "multipleOf": 99999999}), 400)
    assert line.startswith("the JSON schema cannot be used: to read it takes more than 2 s of computing")
    line = refusal_of(ask({"type": "string", "pattern": "^((a{100}){100}){100}$"}), 400)
    assert "a part of it asks for 1,000,000 characters" in line
    jsonschema.validate(json.loads(ask(SCHEMA).json()["choices"][0]["message"]["content"]), SCHEMA)


# ── what would take long to be read ───────────────────────────────────────────────────────────────


def post(client: TestClient, route: str, raw: bytes) -> Any:
    return client.post(f"/v1/{route}", content=raw, headers={"content-type": "application/json"})


@pytest.mark.parametrize("route", ["chat/completions", "completions", "embeddings", "predict", "search"])
def test_a_body_of_very_many_values_is_refused_before_they_are_read(served: Served, route: str) -> None:
    client = api_of(served)
    for value in (b"1", b"[]", b"{}"):
        raw = b'{"model": "tiny", "prompt": [' + value + (b"," + value) * MOST_VALUES + b"]}"
        assert "values; 1,048,576 are read" in refusal_of(post(client, route, raw), 413)


@pytest.mark.parametrize(
    "text", [b"," * MOST_VALUES, b'\\"[{,' * MOST_VALUES, b'\\\\", "' * 1000 + b"[" * MOST_VALUES]
)
def test_what_stands_in_a_text_is_no_value(text: bytes) -> None:
    check_values(b'{"model": "tiny", "prompt": "' + text + b'"}')
    check_values(b'{"model": "tiny", "prompt": "' + text)  # which is no JSON


MANY: dict[str, tuple[str, Callable[[], dict[str, Any]], str]] = {
    "messages": ("chat/completions", lambda: {"messages": HELLO * 5000}, "at most 4096 items"),
    "parts": (
        "chat/completions",
        lambda: {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 2000}]},
        "messages.0.content",
    ),
    "calls": (
        "chat/completions",
        lambda: {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}] * 200}]},
        "at most 128 items",
    ),
    "prompts": ("completions", lambda: {"prompt": ["x"] * 1000}, "there are 1,000 prompts"),
    "kinds of prompts": ("completions", lambda: {"prompt": [[1]] * 1000 + ["x"]}, "prompt.1000: "),
    "numbers and words": ("completions", lambda: {"prompt": [1] * 1000 + ["x"]}, "prompt.1000: "),
    "inputs": ("embeddings", lambda: {"input": ["x"] * 3000}, "there are 3,000 inputs"),
    "kinds of inputs": ("embeddings", lambda: {"input": ["x", *[1] * 1000]}, "input.1: "),
}


@pytest.mark.parametrize("what", MANY)
def test_too_many_of_something_is_refused_with_the_first_mistake(served: Served, what: str) -> None:
    route, body, said = MANY[what]
    assert said in refusal_of(api_of(served).post(f"/v1/{route}", json={"model": "tiny", **body()}), 400)


def test_a_text_far_too_long_is_no_tokens_before_it_is_refused(
    served: Served, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    encode = type(model.tokenizer).encode_with_special_tokens
    monkeypatch.setattr(
        type(model.tokenizer), "encode_template", lambda self, text: read.append(len(text)) or [1] * 300
    )
    monkeypatch.setattr(
        type(model.tokenizer),
        "encode_with_special_tokens",
        lambda self, text, most=None: read.append(len(text)) or encode(self, text, most),
    )
    client, most = api_of(served), TOKEN_CHARACTERS * 256
    for length, said in (
        (most + 1, f"{most + 1:,} characters, but the model reads 256"),
        (most, "tokens, but the m"),
    ):
        long = "x" * length
        for route, body in (
            ("completions", {"prompt": ["a", long]} if length > most else {"prompt": long}),
            ("chat/completions", {"messages": [{"role": "user", "content": long}]}),
        ):
            assert said in refusal_of(client.post(f"/v1/{route}", json={"model": "tiny", **body}), 400)
    assert max(read) < 2 * most
    # What is embedded is cut where it becomes too long.
    made = [
        client.post("/v1/embeddings", json={"model": "tiny", "input": "the cat " * count}).json()["data"][0]
        for count in (most // 8, most)
    ]
    assert made[0]["embedding"] == made[1]["embedding"]
