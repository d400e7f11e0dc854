"""`legato serve` as a process, and clients that were not made for it: OpenAI's own, unchanged, and curl."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import numpy as np
import openai
import pytest
from pydantic import BaseModel, ConfigDict

import legato
from legato.model import Model
from serving.serving_process import serving
from tiny_published import gpt2_folder
from tiny_sounds import encoded, samples_of
from tiny_whisper import whisper_folder

pytestmark = pytest.mark.slow
KEY = "secret"
HELLO: Any = [{"role": "user", "content": "the cat"}]
TEMPLATE = (  # which knows tools, calls of them and what came of those
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "<|im_end|>\n{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] }}"
    "{% for call in m['tool_calls'] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class Place(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Literal["here", "there"]
    floor: int
    open: bool


class Weather(BaseModel):
    """Of a place."""

    model_config = ConfigDict(extra="forbid")

    where: Literal["north", "south"]


WEATHER: Any = openai.pydantic_function_tool(Weather, name="weather")
SPEECH = encoded(samples_of("low high low", 7))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("clients")
    gpt2_folder(home / "chat", length=512, template=TEMPLATE)
    whisper_folder(home / "speech", languages=True)
    return home


@pytest.fixture(scope="module")
def model(home: Path) -> Model:
    return legato.load(home / "chat", "cpu")


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    with serving(home / "chat", home / "speech", "--api-key", KEY, "--no-log") as (_, at):
        yield f"{at}/v1"


@pytest.fixture(scope="module")
def client(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=address, api_key=KEY, max_retries=0)


def chat(client: openai.OpenAI, **more: Any) -> Any:
    return client.chat.completions.create(**{"model": "chat", "messages": HELLO, "max_tokens": 20, **more})


# ── OpenAI's client ───────────────────────────────────────────────────────────────────────────────


def test_it_chats_whole_and_in_a_stream_with_its_usage(client: openai.OpenAI, model: Model) -> None:
    expected = model.chat(HELLO, max_tokens=20)
    whole = chat(client, temperature=0)
    assert whole.choices[0].message.content == expected
    assert whole.usage.prompt_tokens == len(model.chat_ids(HELLO))
    chunks = list(chat(client, temperature=0, stream=True, stream_options={"include_usage": True}))
    assert "".join(each.choices[0].delta.content or "" for each in chunks if each.choices) == expected
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    with client.chat.completions.stream(model="chat", messages=HELLO, max_tokens=20, temperature=0) as stream:
        try:
            final: Any = stream.get_final_completion()
        except openai.LengthFinishReasonError as cut:  # as that client takes it where the limit ends a text
            final = cut.completion
        assert final.choices[0].message.content == expected


def test_what_it_goes_on_from(client: openai.OpenAI, model: Model) -> None:
    told = client.completions.create(
        model="chat", prompt=["the cat", "a dog"], max_tokens=9, temperature=0, echo=True
    )
    assert [each.text for each in told.choices] == [
        prompt + model.generate(prompt, max_tokens=9) for prompt in ("the cat", "a dog")
    ]


def test_several_texts_of_a_seed_are_those_of_generate(client: openai.OpenAI, model: Model) -> None:
    told = chat(client, n=3, seed=5, temperature=0.8, top_p=0.9)
    texts = [each.message.content for each in told.choices]
    how = {"search": "sample", "seed": 5, "temperature": 0.8, "top_p": 0.9, "max_tokens": 20}
    options = legato.decoding.SearchOptions(nbest=3, **how)  # type: ignore[arg-type]
    found = model.hypotheses([model.chat_ids(HELLO)], options)[0]
    assert sorted(texts) == sorted(each.text for each in found)
    assert [each.message.content for each in chat(client, n=3, seed=5, temperature=0.8, top_p=0.9).choices] == texts
    streamed = {0: "", 1: "", 2: ""}
    for chunk in chat(client, n=3, seed=5, temperature=0.8, top_p=0.9, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert list(streamed.values()) == texts


def test_it_stops_where_it_is_told_to(client: openai.OpenAI) -> None:
    whole = chat(client, temperature=0).choices[0].message.content
    stop = whole[len(whole) // 2 : len(whole) // 2 + 2]
    told = chat(client, temperature=0, stop=[stop]).choices[0]
    assert (told.message.content, told.finish_reason) == (whole[: whole.index(stop)], "stop")


def test_tokens_come_with_their_logprobs(client: openai.OpenAI) -> None:
    (choice,) = chat(client, seed=1, logprobs=True, top_logprobs=3).choices
    tokens = choice.logprobs.content
    said = choice.message.content
    assert b"".join(bytes(each.bytes) for each in tokens).decode(errors="replace").startswith(said)
    assert all(each.logprob <= 0 and len(each.top_logprobs) == 3 for each in tokens)
    streamed = [
        each
        for chunk in chat(client, seed=1, logprobs=True, top_logprobs=3, stream=True)
        for each in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else ())
    ]
    assert [each.token for each in streamed] == [each.token for each in tokens]
    (plain,) = client.completions.create(model="chat", prompt="a", max_tokens=4, seed=1, logprobs=2).choices
    assert plain.logprobs is not None
    assert len(plain.logprobs.tokens or ()) == len(plain.logprobs.token_logprobs or ())


def test_an_answer_fits_its_schema_as_json_and_as_an_object(client: openai.OpenAI) -> None:
    schema = Place.model_json_schema()
    named = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": schema}}
    for seed in range(5):
        told = chat(client, seed=seed, max_tokens=60, response_format=named).choices[0]
        jsonschema.validate(json.loads(told.message.content), schema)
        assert told.finish_reason == "stop"
    parsed = client.chat.completions.parse(model="chat", messages=HELLO, response_format=Place, max_tokens=60, seed=1)
    assert isinstance(parsed.choices[0].message.parsed, Place)
    with client.chat.completions.stream(
        model="chat", messages=HELLO, response_format=Place, max_tokens=60, seed=2
    ) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Place)
    anything = chat(client, seed=1, max_tokens=60, response_format={"type": "json_object"})
    assert isinstance(json.loads(anything.choices[0].message.content), dict)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_tool_is_called_and_what_came_of_it_is_answered(client: openai.OpenAI, choice: Any) -> None:
    how = {"tools": [WEATHER], "seed": 3, "max_tokens": 60}
    told = chat(client, tool_choice=choice, **how).choices[0]
    assert (told.finish_reason, told.message.content) == ("tool_calls", None)
    (call,) = told.message.tool_calls
    assert call.function.name == "weather"
    assert Weather.model_validate_json(call.function.arguments)
    came = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    answer = chat(client, messages=[*HELLO, told.message, came], **{**how, "max_tokens": 20})
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.choices[0].message.content is not None
    assert answer.usage.prompt_tokens > chat(client, **{**how, "max_tokens": 1}).usage.prompt_tokens


def test_a_streamed_call_is_the_whole_one(client: openai.OpenAI) -> None:
    how: Any = {"tools": [WEATHER], "tool_choice": "required", "seed": 4, "max_tokens": 60}
    (expected,) = chat(client, **how).choices[0].message.tool_calls
    name, arguments, reason = "", "", None
    for chunk in chat(client, stream=True, **how):
        reason = chunk.choices[0].finish_reason or reason
        assert not chunk.choices[0].delta.content
        for call in chunk.choices[0].delta.tool_calls or ():
            assert call.index == 0
            name += call.function.name or ""
            arguments += call.function.arguments or ""
    assert (name, arguments, reason) == ("weather", expected.function.arguments, "tool_calls")
    with client.chat.completions.stream(model="chat", messages=HELLO, **how) as stream:
        (call,) = stream.get_final_completion().choices[0].message.tool_calls or ()
    assert isinstance(call.function.parsed_arguments, Weather)


def test_texts_become_vectors_as_numbers_and_as_it_asks_for_them_by_itself(
    client: openai.OpenAI, model: Model
) -> None:
    texts = ["the cat", "a dog"]
    expected = model.embed(texts)
    for more in ({}, {"encoding_format": "float"}, {"dimensions": 16}):  # left out, it asks for base64
        told = client.embeddings.create(model="chat", input=texts, **more)  # type: ignore[arg-type]
        assert np.allclose([each.embedding for each in told.data], expected, atol=1e-6)
    ids = [model.prompt_ids(text) for text in texts]
    told = client.embeddings.create(model="chat", input=ids)
    assert np.allclose([each.embedding for each in told.data], expected, atol=1e-6)


def test_it_hears_a_recording(client: openai.OpenAI, home: Path) -> None:
    (expected,) = legato.load(home / "speech", "cpu").predictions([SPEECH])
    said = client.audio.transcriptions.create(model="speech", file=("said.wav", SPEECH))
    assert said.text == expected.answers[0].text


def test_mistakes_are_the_errors_that_it_knows(client: openai.OpenAI, address: str) -> None:
    assert [each.id for each in client.models.list()] == ["chat", "speech"]
    with pytest.raises(openai.NotFoundError, match="did you mean 'chat'"):
        client.completions.create(model="chats", prompt="x")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        chat(client, temperature=3)
    with pytest.raises(openai.BadRequestError, match="the model reads 512"):
        chat(client, messages=[{"role": "user", "content": "the cat " * 2000}])
    with pytest.raises(openai.AuthenticationError, match="the key is not one of"):
        openai.OpenAI(base_url=address, api_key="wrong", max_retries=0).models.list()


# ── curl ──────────────────────────────────────────────────────────────────────────────────────────

curls = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")


def curl(address: str, *words: str) -> str:
    head = ("curl", "--silent", "--show-error", "--max-time", "60", "--header", f"Authorization: Bearer {KEY}")
    ended = subprocess.run([*head, *words[1:], f"{address}/{words[0]}"], capture_output=True, check=True)
    return ended.stdout.decode()


def curl_json(address: str, route: str, body: dict[str, Any], *words: str) -> str:
    return curl(address, route, *words, "--header", "Content-Type: application/json", "--data", json.dumps(body))


@curls
def test_curl_chats_whole_and_line_by_line(address: str, model: Model) -> None:
    body = {"model": "chat", "messages": HELLO, "max_tokens": 20, "temperature": 0}
    expected = model.chat(HELLO, max_tokens=20)
    assert json.loads(curl_json(address, "chat/completions", body))["choices"][0]["message"]["content"] == expected
    *lines, last, _, _ = curl_json(address, "chat/completions", {**body, "stream": True}, "-N").split("\n")
    assert last == "data: [DONE]"
    deltas = [json.loads(line.removeprefix("data: "))["choices"][0]["delta"] for line in lines if line]
    assert "".join(delta.get("content", "") for delta in deltas) == expected


@curls
def test_curl_sends_large_bodies_and_gets_the_status_of_bad_ones(address: str, tmp_path: Path) -> None:
    status = ("--output", str(tmp_path / "answer"), "--write-out", "%{http_code}")
    for route, body, expected in (
        ("completions", "{", "400"),
        ("completions", '{"model": "chat", "prompt": "x", "max_tokens": 1, "user": "%s"}' % ("x" * 10**6), "200"),
        ("completions", " " * (9 << 20), "413"),
        ("nothing", "{}", "404"),
    ):
        (tmp_path / "body").write_text(body)
        sent = ("--header", "Content-Type: application/json", "--data-binary", f"@{tmp_path / 'body'}")
        assert curl(address, route, *status, *sent) == expected, (tmp_path / "answer").read_text()


@curls
def test_curl_embeds(address: str, model: Model) -> None:
    body = {"model": "chat", "input": "the cat", "encoding_format": "base64"}
    coded = json.loads(curl_json(address, "embeddings", body))["data"][0]["embedding"]
    assert np.allclose(np.frombuffer(base64.b64decode(coded), "<f4"), model.embed("the cat"), atol=1e-6)


@curls
def test_curl_sends_a_recording_as_a_form(address: str, home: Path, tmp_path: Path) -> None:
    (expected,) = legato.load(home / "speech", "cpu").predictions([SPEECH])
    (tmp_path / "said.wav").write_bytes(SPEECH)
    form = ("--form", f"file=@{tmp_path / 'said.wav'}", "--form", "model=speech")
    assert json.loads(curl(address, "audio/transcriptions", *form))["text"] == expected.answers[0].text
    text = curl(address, "audio/transcriptions", *form, "--form", "response_format=text")
    assert text.strip() == expected.answers[0].text.strip()
