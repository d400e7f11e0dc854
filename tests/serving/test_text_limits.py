"""Texts that are too long are refused before anything is computed of them, and long ones hold no short one up."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient

import legato
from legato.data.text.libraries import TooSlow
from legato.errors import DataError
from legato.model import Model
from legato.serving.models import LONG_WORK, Served
from legato.serving.transport.text_limits import CODE, INPUT_TOKENS, TOKEN_CHARACTERS, TextLimits, token_counts
from serving.api_client import api_of, refusal_of
from tiny_tasks import tiny

TOKENS = 600  # that a text may have here


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """Of recurrent networks, which read on without end."""
    home: Path = tmp_path_factory.mktemp("limited")
    changes: dict[str, dict[str, Any]] = {"tagging": {"head.crf": True}, "lm": {}}
    for task, more in changes.items():
        legato.train(task, {**tiny(task, home / f"{task}-data"), **more}, out=home / task, quiet=True)
    return {task: legato.load(home / task, "cpu") for task in changes}


@pytest.fixture
def served(models: dict[str, Model]) -> Iterator[list[Served]]:
    made = [Served(task, model, input_tokens=TOKENS, patience=20.0) for task, model in models.items()]
    yield made
    for each in made:
        each.close(drain=False)


@pytest.fixture
def client(served: list[Served]) -> TestClient:
    return api_of(*served)


LONG = "a " * (TOKENS + 1)
GIANT = "a" * (TOKEN_CHARACTERS * TOKENS + 1)
TOO_LONG: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "a tagger's text": ("predict", {"model": "tagging", "inputs": ["a", LONG]}, "inputs.1", "601 tokens"),
    "its letters": ("predict", {"model": "tagging", "inputs": [GIANT]}, "inputs.0", f"{len(GIANT):,} characters"),
    "beside what is no text": (
        "predict",
        {"model": "tagging", "inputs": ["\ud800", LONG]},
        "inputs.1",
        "601 tokens",
    ),
    "a prompt": ("completions", {"model": "lm", "prompt": ["a", LONG]}, "prompt", "tokens"),
    "its tokens": ("completions", {"model": "lm", "prompt": [5] * (TOKENS + 1)}, "prompt", "601 tokens"),
    "a prompt's letters": ("completions", {"model": "lm", "prompt": GIANT}, "prompt", f"{len(GIANT):,} characters"),
    "a text to embed": ("embeddings", {"model": "lm", "input": ["a", LONG]}, "input.1", "tokens"),
    "tokens to embed": ("embeddings", {"model": "lm", "input": [5] * (TOKENS + 1)}, "input", "601 tokens"),
}


@pytest.mark.parametrize("what", TOO_LONG)
def test_what_is_too_long_is_refused_before_it_is_computed(
    client: TestClient, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    route, body, field, said = TOO_LONG[what]
    for name in ("predictions", "embed", "begin"):
        monkeypatch.setattr(Model, name, None)  # nobody calls it
    headers = {"content-type": "application/json"}
    answer = client.post(f"/v1/{route}", content=json.dumps(body), headers=headers)
    line = refusal_of(answer, 400)
    assert said in line
    assert "but this server reads 600" in line
    assert (answer.json()["error"]["param"], answer.json()["error"]["code"]) == (field, CODE)


class Cutter:
    """Cuts texts into letters, all of a batch before it gives any; counts how often it was asked."""

    def __init__(self, problem: Exception) -> None:
        self.problem, self.calls = problem, 0

    def encode_many(self, texts: list[str]) -> Iterator[str]:
        self.calls += 1
        if "bad" in texts:
            raise self.problem
        yield from texts

    def encode(self, text: str) -> str:
        return next(self.encode_many([text]))


def test_texts_that_cannot_be_cut_are_tried_once_beside_others_and_once_alone() -> None:
    texts, cutter = ["a", "bb", "bad", "cccc"] * 5, Cutter(DataError("this is no text"))
    assert list(token_counts(texts, cast(Any, cutter))) == [1, 2, 3, 4] * 5
    assert cutter.calls == 1 + len(texts)
    slow = Cutter(TooSlow("this takes for ever"))
    with pytest.raises(TooSlow):
        list(token_counts(texts, cast(Any, slow)))
    assert slow.calls == 1


def test_the_bytes_of_a_picture_are_no_tokens_beside_a_text() -> None:
    inputs = ["abc", bytes(51_200), (bytes(51_200), "ab")]
    assert TextLimits(TOKENS).input_lengths(inputs, None, "inputs") == [(3, 0), (0, 100), (2, 100)]


def test_what_just_fits_is_answered(client: TestClient) -> None:
    body = {"model": "tagging", "inputs": ["a " * TOKENS]}
    (prediction,) = client.post("/v1/predict", json=body).json()["predictions"]
    assert len(prediction["answers"][0]["tags"]) == TOKENS


def test_limits_are_said_where_clients_look(client: TestClient, models: dict[str, Model]) -> None:
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    text, pair = schemas["TaggingRequest"]["properties"]["inputs"]["items"]["anyOf"]
    assert text["maxLength"] == pair["items"]["maxLength"] == TOKEN_CHARACTERS * TOKENS
    assert "a text of 600 tokens at most" in str(schemas["TaggingRequest"])
    for card in client.get("/v1/models").json()["data"]:
        assert (card["legato"]["max_input_tokens"], card["legato"]["max_input_characters"]) == (600, 600 * 64)
    assert TextLimits.of(models["lm"].module, None).tokens == INPUT_TOKENS


def test_a_long_text_holds_no_short_one_up(
    client: TestClient, served: list[Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, free, original = threading.Event(), threading.Event(), Model.predictions

    def slow(self: Model, inputs: Any, **options: Any) -> Any:
        if len(inputs[0]) > LONG_WORK[0]:
            begun.set()
            assert free.wait(60)
        return original(self, inputs, **options)

    def predict(text: str) -> Any:
        return client.post("/v1/predict", json={"model": "tagging", "inputs": [text]}).json()["predictions"]

    monkeypatch.setattr(Model, "predictions", slow)
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(predict, "a " * (LONG_WORK[0] + 1))
        try:
            assert begun.wait(60)
            assert predict("a dog")[0]["answers"][0]["words"] == ["a", "dog"]
            assert served[0].load() == (1, 0)
        finally:
            free.set()
        assert len(long.result(60)[0]["answers"][0]["tags"]) == LONG_WORK[0] + 1
