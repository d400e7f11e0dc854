"""OpenAI's API: schemas, tools, log-probabilities, and all of it under load: each text as `generate` writes it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient

import legato
from legato.data.batching.batch import Batch, Inputs
from legato.decoding import SearchOptions
from legato.model import Model
from legato.serving.models import Served
from legato.serving.tool_calls import Function, Tool, read_calls
from serving.api_client import api_of, refusal_of
from tiny_published import CHATML, gpt2_folder

HELLO = [{"role": "user", "content": "the cat"}]
TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool.function.name }} {% endfor %}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] }}"
    "{% for call in m['tool_calls'] %}{{ call.function.name }}({{ call.function.arguments.where }}){% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PLACE = {
    "type": "object",
    "properties": {"where": {"enum": ["here", "there"]}},
    "required": ["where"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "of a place", "parameters": PLACE}}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": PLACE}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = gpt2_folder(tmp_path_factory.mktemp("options") / "m", length=256, template=TEMPLATE)
    return legato.load(folder, "cpu")


@pytest.fixture
def client(model: Model) -> Iterator[TestClient]:
    served = Served("tiny", model, rows=8, queue=64, most_tokens=200)
    yield api_of(served)
    served.close(drain=False)


def chat(client: TestClient, **body: Any) -> dict[str, Any]:
    answer = client.post("/v1/chat/completions", json={"model": "tiny", "messages": HELLO, "max_tokens": 60, **body})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def complete(client: TestClient, **body: Any) -> dict[str, Any]:
    answer = client.post("/v1/completions", json={"model": "tiny", "prompt": "the cat", "max_tokens": 12, **body})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def streamed(client: TestClient, route: str = "chat/completions", **body: Any) -> list[dict[str, Any]]:
    base = {"model": "tiny", "max_tokens": 60, "stream": True}
    base |= {"messages": HELLO} if route.startswith("chat") else {"prompt": "the cat"}
    lines = client.post(f"/v1/{route}", json={**base, **body}).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


# ── schemas ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", [{"temperature": 0}, {"seed": 3}])
def test_an_answer_fits_its_schema_and_is_what_generate_writes(
    client: TestClient, model: Model, how: dict[str, Any]
) -> None:
    (choice,) = chat(client, response_format=SCHEMA, **how)["choices"]
    jsonschema.validate(json.loads(choice["message"]["content"]), PLACE)
    assert choice["finish_reason"] == "stop"
    search = {} if how == {"temperature": 0} else {"search": "sample", **how}
    assert choice["message"]["content"] == model.chat(HELLO, max_tokens=60, json_schema=PLACE, **search)


def test_a_text_that_is_cut_is_whole_json(client: TestClient) -> None:
    objects = {"type": "json_object"}
    for most in (3, 5, 8, 20, 50):
        for number in range(3):
            (choice,) = chat(client, response_format=objects, max_tokens=most, seed=number)["choices"]
            assert isinstance(json.loads(choice["message"]["content"]), dict)
            assert choice["finish_reason"] == "stop"


def test_schemas_that_cannot_be_fitted_are_refused(client: TestClient) -> None:
    def refusal(schema: Any, most: int = 60) -> str:
        named = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        body = {"model": "tiny", "messages": HELLO, "max_tokens": most, "response_format": named}
        return refusal_of(client.post("/v1/chat/completions", json=body), 400)

    assert "3 tokens are too few for this schema; it takes" in refusal(PLACE, 3)
    assert "the JSON schema cannot be used: Invalid type: strin" in refusal({"type": "strin"})
    assert "the JSON schema cannot be used" in refusal({"type": "string", "pattern": "("})
    assert "488,900 characters" in refusal({"enum": [f"v{number}" for number in range(50_000)]})
    assert "response_format.json_schema" in refusal("no object")
    assert chat(client)["choices"]  # and goes on


def test_a_schema_for_one_is_none_for_others(client: TestClient, model: Model) -> None:
    plain = [model.generate(f"the cat {n}", search="sample", seed=n, max_tokens=30) for n in range(4)]

    def ask(number: int) -> str:
        if number % 2:
            return str(chat(client, response_format=SCHEMA, seed=number)["choices"][0]["message"]["content"])
        number //= 2
        return str(complete(client, prompt=f"the cat {number}", seed=number, max_tokens=30)["choices"][0]["text"])

    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(ask, range(8)))
    assert texts[::2] == plain
    for text in texts[1::2]:
        jsonschema.validate(json.loads(text), PLACE)


# ── tools ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"weather", "clock"}),
        ({"type": "function", "function": {"name": "weather"}}, {"weather"}),
        ({"type": "function", "function": {"name": "clock"}}, {"clock"}),
    ],
)
def test_a_call_that_has_to_be_made_fits_its_tool(client: TestClient, choice: Any, names: set[str]) -> None:
    for number in range(4):
        (answer,) = chat(client, tools=[WEATHER, CLOCK], tool_choice=choice, seed=number)["choices"]
        (call,) = answer["message"]["tool_calls"]
        assert answer["finish_reason"] == "tool_calls"
        assert answer["message"]["content"] is None
        assert call["function"]["name"] in names
        assert call["id"].startswith("call_")
        arguments = json.loads(call["function"]["arguments"])
        jsonschema.validate(arguments, PLACE if call["function"]["name"] == "weather" else {"type": "object"})


def test_a_call_is_streamed_as_a_call(client: TestClient) -> None:
    body = {"tools": [WEATHER], "tool_choice": "required", "seed": 2}
    (whole,) = chat(client, **body)["choices"]
    chunks = streamed(client, **body)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    (called,) = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
    assert called[0]["index"] == 0
    assert called[0]["function"] == whole["message"]["tool_calls"][0]["function"]
    assert not any(delta.get("content") for delta in deltas)
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_tools_may_be_left_alone(client: TestClient, model: Model) -> None:
    without = chat(client, seed=1)["choices"]
    assert chat(client, seed=1, tools=[WEATHER], tool_choice="none")["choices"] == without
    free = chat(client, seed=1, tools=[WEATHER], tool_choice="auto")["choices"][0]
    ids = model.chat_ids(HELLO, tools=[WEATHER])
    assert ids != model.chat_ids(HELLO)
    options = SearchOptions(search="sample", seed=1, max_tokens=60)
    assert free["message"]["content"] == model.hypotheses([ids], options)[0][0].text
    text = "".join(
        chunk["choices"][0]["delta"].get("content", "")
        for chunk in streamed(client, seed=1, tools=[WEATHER], tool_choice="auto")
    )
    assert text == free["message"]["content"]


def test_what_a_tool_gave_is_read(client: TestClient, model: Model) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"where": "here"}'}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    read = model.tokenizer.decode(model.chat_ids(_plain(messages), tools=[WEATHER]))
    assert "weather(here)" in read
    assert "rain" in read
    answer = chat(client, messages=messages, tools=[WEATHER], temperature=0)
    assert answer["usage"]["prompt_tokens"] == len(model.chat_ids(_plain(messages), tools=[WEATHER]))


def _plain(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    from legato.serving.openai_types import Message

    return [Message.model_validate(message).plain() for message in messages]


def test_tools_that_do_not_fit_are_refused(client: TestClient, tmp_path_factory: pytest.TempPathFactory) -> None:
    def refusal(asked: TestClient = client, **body: Any) -> str:
        return refusal_of(asked.post("/v1/chat/completions", json={"model": "tiny", "messages": HELLO, **body}), 400)

    named = {"type": "function", "function": {"name": "wether"}}
    assert "there is no tool 'wether'; did you mean 'weather'?" in refusal(tools=[WEATHER], tool_choice=named)
    assert "there are no tools" in refusal(tool_choice="required")
    assert "tool_choice" in refusal(tools=[WEATHER], tool_choice="sometimes")
    assert "tools.0.function.name" in refusal(tools=[{"type": "function", "function": {"name": "../x y"}}])
    assert "tools" in refusal(tools=[WEATHER] * 129)
    other = legato.load(gpt2_folder(tmp_path_factory.mktemp("no") / "m", template=CHATML), "cpu")
    served = Served("tiny", other)
    assert "knows no tools; ask without them" in refusal(api_of(served), tools=[WEATHER])
    served.close(drain=False)


CALL = '{"name": "weather", "arguments": {"where": "here"}}'


@pytest.mark.parametrize(
    ("text", "said", "calls"),
    [
        (f"<tool_call>\n{CALL}\n</tool_call>", "", 1),
        (f"Let me see. <tool_call>{CALL}</tool_call> <tool_call>{CALL}</tool_call>", "Let me see.", 2),
        (CALL, "", 1),
        ('{"name": "other", "arguments": {}}', '{"name": "other", "arguments": {}}', 0),
        ("<tool_call>{broken}</tool_call>", "<tool_call>{broken}</tool_call>", 0),
        ("just words", "just words", 0),
        ("{" * 5000, "{" * 5000, 0),
    ],
)
def test_calls_are_read_from_a_text(text: str, said: str, calls: int) -> None:
    got = read_calls(text, [Tool(type="function", function=Function(name="weather"))])
    assert (got[0], len(got[1])) == (said, calls)
    assert all(json.loads(call["function"]["arguments"]) == {"where": "here"} for call in got[1])


# ── log-probabilities ─────────────────────────────────────────────────────────────────────────────


def expected_logprobs(model: Model, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """(T, V) of the model run plainly over everything at once."""
    batch = Batch(inputs=Inputs(torch.tensor([[*prompt, *tokens]])))
    with torch.inference_mode():
        logits = model.module.eval().readout(model.module(batch).hidden)[0]
    return logits[len(prompt) - 1 : -1].log_softmax(-1)


@pytest.mark.parametrize("how", [{"temperature": 0}, {"seed": 5, "temperature": 0.6, "top_p": 0.8}])
def test_logprobs_are_the_models_own(client: TestClient, model: Model, how: dict[str, Any]) -> None:
    body = {"logprobs": 4, "max_tokens": 9, **how}
    (choice,) = complete(client, **body)["choices"]
    held, prompt = choice["logprobs"], model.prompt_ids("the cat")
    options = (
        SearchOptions(max_tokens=9)
        if how == {"temperature": 0}
        else SearchOptions(search="sample", max_tokens=9, **how)
    )
    tokens = model.hypotheses([prompt], options)[0][0].tokens
    expected = expected_logprobs(model, prompt, tokens)
    assert len(held["token_logprobs"]) >= len(tokens)  # and the end token's
    for place, token in enumerate(tokens):
        assert held["token_logprobs"][place] == pytest.approx(float(expected[place, token]), abs=1e-4)
        best = sorted(held["top_logprobs"][place].values(), reverse=True)
        assert best == pytest.approx(expected[place].topk(len(best)).values.tolist(), abs=1e-4)
    assert "".join(held["tokens"][: len(tokens)]) == choice["text"]
    assert held["text_offset"][:2] == [0, len(held["tokens"][0])]


def test_logprobs_of_a_chat_whole_and_streamed(client: TestClient, model: Model) -> None:
    body = {"logprobs": True, "top_logprobs": 3, "max_tokens": 10, "seed": 4}
    choice = chat(client, **body)["choices"][0]
    content = choice["logprobs"]["content"]
    prompt = model.chat_ids(HELLO)
    options = SearchOptions(search="sample", seed=4, max_tokens=10)
    tokens = model.hypotheses([prompt], options)[0][0].tokens
    expected = expected_logprobs(model, prompt, tokens)
    for place, token in enumerate(tokens):
        assert content[place]["logprob"] == pytest.approx(float(expected[place, token]), abs=1e-4)
        assert len(content[place]["top_logprobs"]) == 3
        assert len({other["token"] for other in content[place]["top_logprobs"]}) == 3
    told = b"".join(bytes(each["bytes"]) for each in content[: len(tokens)])  # a character may be of several tokens
    assert told.decode(errors="replace") == choice["message"]["content"]
    pieces = [
        token
        for chunk in streamed(client, **body)
        for token in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert [each["token"] for each in pieces] == [each["token"] for each in content]
    assert [each["logprob"] for each in pieces] == pytest.approx([each["logprob"] for each in content], abs=1e-4)
    plain = chat(client, logprobs=False, max_tokens=4)["choices"][0]
    assert plain["logprobs"] is None


def test_logprobs_that_do_not_fit_are_refused(client: TestClient) -> None:
    def refusal(route: str, **body: Any) -> str:
        base: dict[str, Any] = {"messages": HELLO} if route == "chat/completions" else {"prompt": "x"}
        return refusal_of(client.post(f"/v1/{route}", json={"model": "tiny", **base, **body}), 400)

    assert "'top_logprobs' needs 'logprobs'" in refusal("chat/completions", top_logprobs=2)
    assert "top_logprobs" in refusal("chat/completions", logprobs=True, top_logprobs=21)
    assert "logprobs" in refusal("completions", logprobs=6)
    assert "leave out 'echo'" in refusal("completions", logprobs=1, echo=True)


# ── what is not OpenAI's client's ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("tokens", [[10**9], [-1], [[1], [10**9]], [1, 10**30]])
def test_tokens_that_a_model_does_not_have_are_refused(client: TestClient, tokens: Any) -> None:
    for route, name in (("embeddings", "input"), ("completions", "prompt")):
        body = {"model": "tiny", name: tokens}
        assert "is no token of" in refusal_of(client.post(f"/v1/{route}", json=body), 400)


def test_vectors_are_the_same_as_numbers_and_in_base64(client: TestClient) -> None:
    body = {"model": "tiny", "input": ["the cat", "a dog"]}
    numbers = client.post("/v1/embeddings", json=body).json()["data"]
    coded = client.post("/v1/embeddings", json={**body, "encoding_format": "base64"}).json()["data"]
    for plain, packed in zip(numbers, coded, strict=True):
        assert np.frombuffer(base64.b64decode(packed["embedding"]), "<f4").tolist() == plain["embedding"]


def test_pictures_for_a_model_that_reads_text_are_refused(client: TestClient) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    body = {"model": "tiny", "messages": [{"role": "user", "content": [picture]}]}
    assert "reads no pictures" in refusal_of(client.post("/v1/chat/completions", json=body), 400)


def test_the_page_asks_only_this_server_and_needs_no_key(model: Model) -> None:
    served = Served("tiny", model)
    page = api_of(served, keys=("secret",)).get("/")
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"(src|href)=|https?://|innerHTML", page.text)
    assert api_of(served).get("/v1/models").json()["data"][0]["legato"] == {
        "task": "lm",
        "use": "chat",
        "input": "a text",
        "member": None,
        "max_input_tokens": model.module.max_length,
        "max_input_characters": 64 * model.module.max_length,
    }
    served.close(drain=False)


# ── all of it at once ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_every_text_is_generates_under_a_mixed_load(client: TestClient, model: Model) -> None:
    options: list[dict[str, Any]] = [
        {"temperature": 0},
        {"seed": 1, "n": 2},
        {"seed": 2, "temperature": 1.7, "top_k": 20},
        {"seed": 3, "top_p": 0.5, "stop": ["a"]},
        {"seed": 4, "min_p": 0.1, "repetition_penalty": 1.3},
        {"seed": 5, "stream": True, "stream_options": {"include_usage": True}},
        {"seed": 6, "logprobs": 2},
        {"temperature": 0, "echo": True},
    ]

    def ask(number: int) -> list[str]:
        given = options[number % len(options)]
        prompt = f"the dog {number}"
        if given.get("stream"):
            chunks = streamed(client, "completions", **{**given, "prompt": prompt, "max_tokens": 20})
            assert chunks[-1]["usage"]["completion_tokens"] <= 20
            return ["".join(choice["text"] for chunk in chunks for choice in chunk["choices"])]
        answer = complete(client, **{**given, "prompt": prompt, "max_tokens": 20})
        return [choice["text"] for choice in answer["choices"]]

    def generated(number: int) -> list[str]:
        given = dict(options[number % len(options)])
        prompt = f"the dog {number}"
        echo = prompt if given.pop("echo", False) else ""
        for name in ("stream", "stream_options", "logprobs"):
            given.pop(name, None)
        if given.get("temperature") == 0:
            return [echo + model.generate(prompt, max_tokens=20)]
        count = given.pop("n", 1)
        written = model.generate(prompt, search="sample", max_tokens=20, nbest=count, **given)
        return sorted([written] if isinstance(written, str) else written)

    with ThreadPoolExecutor(12) as pool:
        texts = list(pool.map(ask, range(32)))
    for number, each in enumerate(texts):
        assert sorted(each) == generated(number), options[number % len(options)]
