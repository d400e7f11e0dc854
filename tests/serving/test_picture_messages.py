"""Pictures in a chat: a model that sees answers as `Model.chat` does; whoever does not see says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from fastapi.testclient import TestClient

import legato
from legato.model import Model
from legato.serving.models import Served
from serving.api_client import api_of, coded, data_url, png, refusal_of
from tiny_published import CHATML, gpt2_folder
from tiny_tasks import tiny

RED, BLUE = png(), png((30, 30, 220))
ROUTE = "/v1/chat/completions"


def seen(raw: bytes = RED) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(raw)}}


def asking(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "what colour?"}]}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    home: Path = tmp_path_factory.mktemp("seeing")
    legato.train("visual-chat", tiny("visual-chat", home / "data"), out=home / "run", quiet=True)
    return legato.load(home / "run", "cpu")


@pytest.fixture(scope="module")
def client(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    text = legato.load(gpt2_folder(tmp_path_factory.mktemp("text") / "m", template=CHATML), "cpu")
    served = [Served("sees", model, most_tokens=40), Served("reads", text, most_tokens=40)]
    yield api_of(*served)
    for each in served:
        each.close(drain=False)


def answered(client: TestClient, **body: Any) -> dict[str, Any]:
    answer = client.post(ROUTE, json={"model": "sees", "max_tokens": 6, **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("how", [{"temperature": 0}, {"seed": 3}, {"seed": 3, "temperature": 0.7, "top_p": 0.9}])
@pytest.mark.parametrize("picture", [RED, BLUE], ids=["red", "blue"])
def test_an_answer_is_what_chat_says(client: TestClient, model: Model, how: dict[str, Any], picture: bytes) -> None:
    found = answered(client, messages=asking(seen(picture)), **how)
    options = {"search": "greedy"} if how == {"temperature": 0} else {"search": "sample", **how}
    expected = model.chat("what colour?", image=picture, max_tokens=6, **options)
    (choice,) = found["choices"]
    assert choice["message"] == {"role": "assistant", "content": expected, "refusal": None}
    assert choice["finish_reason"] in ("stop", "length")
    assert found["object"] == "chat.completion"
    assert found["usage"]["prompt_tokens"] == len(model.chat_ids("what colour?", about_picture=True))
    assert found["usage"]["completion_tokens"] <= 6


def test_a_dialogue_goes_on_about_its_picture(client: TestClient, model: Model) -> None:
    said = [{"role": "assistant", "content": "red"}, {"role": "user", "content": "what colour?"}]
    found = answered(client, messages=[*asking(seen()), *said], temperature=0)
    expected = model.chat([{"role": "user", "content": "what colour?"}, *said], image=RED, max_tokens=6)
    assert found["choices"][0]["message"]["content"] == expected


def test_a_stream_has_the_same_text_and_usage(client: TestClient) -> None:
    body = {"messages": asking(seen()), "seed": 2, "n": 2}
    whole = answered(client, **body)
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    answer = client.post(ROUTE, json={"model": "sees", "max_tokens": 6, **body, **stream})
    *lines, last = [line for line in answer.text.split("\n\n") if line]
    assert last == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    for choice in whole["choices"]:
        own = [each["choices"][0] for each in chunks if each["choices"]]
        own = [each for each in own if each["index"] == choice["index"]]
        assert own[0]["delta"]["role"] == "assistant"
        assert "".join(each["delta"].get("content", "") for each in own) == choice["message"]["content"]
        assert own[-1]["finish_reason"] == choice["finish_reason"]
    assert chunks[-1]["usage"] == whole["usage"]


def test_answers_are_the_same_alone_and_among_others(client: TestClient, model: Model) -> None:
    pictures = [png((20 * number, 30, 250 - 20 * number)) for number in range(8)]
    alone = [model.chat("what colour?", image=picture, max_tokens=6) for picture in pictures]
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda raw: answered(client, messages=asking(seen(raw)), temperature=0), pictures)
        assert [each["choices"][0]["message"]["content"] for each in found] == alone


def test_several_greedy_answers_are_one_answer(client: TestClient) -> None:
    found = answered(client, messages=asking(seen()), temperature=0, n=3)
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in found["choices"]}) == 1


def test_openais_client_asks_so(client: TestClient, model: Model) -> None:
    theirs = openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="any", http_client=client, max_retries=0)
    found = theirs.chat.completions.create(model="sees", messages=asking(seen()), temperature=0, max_tokens=6)  # type: ignore[arg-type]
    assert found.choices[0].message.content == model.chat("what colour?", image=RED, max_tokens=6)


def test_a_model_that_sees_answers_texts_alone(client: TestClient, model: Model) -> None:
    found = answered(client, messages=asking(), temperature=0)
    assert found["choices"][0]["message"]["content"] == model.chat("what colour?", max_tokens=6)


TOO_LARGE = png()[:16] + (30_000).to_bytes(4, "big") * 2 + png()[24:]
BAD: list[tuple[list[dict[str, Any]], str]] = [
    (asking({"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}), "not fetched"),
    (asking({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}), "not fetched"),
    (asking({"type": "image_url", "image_url": {"url": "/etc/passwd"}}), "no data: URL"),
    (asking({"type": "image_url", "image_url": {"url": "data:image/png;base64,@@"}}), "no base64"),
    (asking({"type": "image_url", "image_url": {"url": ""}}), "messages.0.content.0.image_url"),
    (asking({"type": "image_url", "image_url": {"url": coded(RED)}}), "no data: URL"),
    (asking(seen(b"no picture")), "no picture"),
    (asking(seen(TOO_LARGE)), "messages.0.content.0.image_url"),
    (asking({"type": "image_url", "image_url": RED.hex()}), "messages.0"),
    (asking({"type": "image_url"}), "messages.0"),
    (asking({"type": "input_audio", "input_audio": {}}), "messages.0"),
    (asking(seen(), seen(BLUE)), "2 pictures"),
    ([*asking(), *asking(seen())], "messages.1.content.0: the picture belongs to what the user says first"),
    ([{"role": "assistant", "content": [seen()]}, *asking()], "belongs to what the user says first"),
    ([{"role": "system", "content": [seen()]}], "belongs to what the user says first"),
]


@pytest.mark.parametrize(("messages", "line"), BAD, ids=[str(number) for number in range(len(BAD))])
def test_what_does_not_fit_is_refused_in_a_line(client: TestClient, messages: Any, line: str) -> None:
    assert line in refusal_of(client.post(ROUTE, json={"model": "sees", "messages": messages}), 400)


def test_a_text_model_is_shown_no_pictures(client: TestClient) -> None:
    line = refusal_of(client.post(ROUTE, json={"model": "reads", "messages": asking(seen())}), 400)
    assert line == "messages.0.content.0: 'reads' reads no pictures; send it text alone"


def test_no_more_is_written_than_the_server_allows(client: TestClient) -> None:
    body = {"model": "sees", "messages": asking(seen()), "max_tokens": 41}
    assert "40 at most" in refusal_of(client.post(ROUTE, json=body), 400)
