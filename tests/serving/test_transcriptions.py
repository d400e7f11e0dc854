"""`/v1/audio/transcriptions`: what OpenAI's client sends as a form, heard by CTC and by Whisper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from fastapi.testclient import TestClient

import legato
from legato.inspect.subtitles import subtitles
from legato.model import Model
from legato.serving.models import Served
from serving.api_client import api_of, png, refusal_of
from tiny_sounds import encoded, samples_of
from tiny_tasks import tiny
from tiny_whisper import whisper_folder

SOUND = encoded(samples_of("low high low", 7))
ROUTE = "/v1/audio/transcriptions"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    home: Path = tmp_path_factory.mktemp("speech")
    for task in ("speech", "tagging", "audio-classification"):
        legato.train(task, tiny(task, home / task), out=home / task / "run", quiet=True)
    whisper_folder(home / "whisper", languages=True)
    places = {"ctc": "speech/run", "whisper": "whisper", "tags": "tagging/run", "sounds": "audio-classification/run"}
    return {name: legato.load(home / place, "cpu") for name, place in places.items()}


@pytest.fixture(scope="module")
def client(models: dict[str, Model]) -> Iterator[TestClient]:
    served = [Served(name, model) for name, model in models.items()]
    yield api_of(*served)
    for each in served:
        each.close(drain=False)


@pytest.fixture(scope="module")
def theirs(client: TestClient) -> openai.OpenAI:
    """OpenAI's client, whose requests stay in the process."""
    return openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="any", http_client=client, max_retries=0)


def sent(client: TestClient, file: bytes = SOUND, **fields: Any) -> Any:
    return client.post(ROUTE, files={"file": ("said.wav", file)}, data={"model": "ctc", **fields})


@pytest.mark.parametrize(("name", "options"), [("ctc", {}), ("whisper", {}), ("whisper", {"language": "de"})])
def test_openais_client_hears_what_predict_does(
    theirs: openai.OpenAI, models: dict[str, Model], name: str, options: dict[str, Any]
) -> None:
    (expected,) = models[name].predictions([SOUND], **options)
    said = theirs.audio.transcriptions.create(model=name, file=("said.wav", SOUND), **options)
    assert said.text == expected.answers[0].text
    as_text = theirs.audio.transcriptions.create(
        model=name, file=("said.wav", SOUND), response_format="text", **options
    )
    assert str(as_text).strip() == said.text.strip()


@pytest.mark.parametrize("name", ["ctc", "whisper"])
def test_times_are_those_of_predict(theirs: openai.OpenAI, models: dict[str, Model], name: str) -> None:
    (expected,) = models[name].predictions([SOUND], timestamps=True)
    words = expected.answers[0].more["words"]
    said: Any = theirs.audio.transcriptions.create(
        model=name,
        file=("said.wav", SOUND),
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
    )
    assert [word.model_dump() for word in said.words] == words
    assert said.text == expected.answers[0].text
    assert said.duration == pytest.approx(len(samples_of("low high low", 7)) / 16_000)
    assert " ".join(segment.text for segment in said.segments) == " ".join(word["word"] for word in words)
    if words:
        assert said.segments[0].start == pytest.approx(words[0]["start"], abs=1e-3)
        assert said.segments[-1].end == pytest.approx(words[-1]["end"], abs=1e-3)
    srt = theirs.audio.transcriptions.create(model=name, file=("said.wav", SOUND), response_format="srt")
    assert str(srt) == subtitles(words)
    vtt = str(theirs.audio.transcriptions.create(model=name, file=("said.wav", SOUND), response_format="vtt"))
    assert vtt.startswith("WEBVTT\n")
    assert vtt.count(" --> ") == str(srt).count(" --> ")
    assert "," not in "".join(line for line in vtt.splitlines() if " --> " in line)


def test_words_are_left_out_where_nobody_asks_for_them(client: TestClient) -> None:
    heard = sent(client, response_format="verbose_json").json()
    assert "words" not in heard
    assert heard["task"] == "transcribe"
    only = sent(client, response_format="verbose_json", **{"timestamp_granularities[]": "word"}).json()
    assert "segments" not in only


def test_what_changes_nothing_may_be_sent(client: TestClient) -> None:
    fields = {"temperature": "0", "prompt": "", "language": "", "stream": "false"}
    assert sent(client, **fields).json() == sent(client).json()


BAD: list[tuple[dict[str, Any], str]] = [
    ({"model": "tags"}, "'tags' is a model for tagging, which writes down no speech"),
    ({"model": "sounds"}, "writes down no speech"),
    ({"language": "de"}, "one language"),
    ({"model": "whisper", "language": "xx"}, "xx"),
    ({"response_format": "diarized_json"}, "response_format: "),
    ({"temperature": "0.7"}, "'temperature' is not done here"),
    ({"prompt": "the names are"}, "'prompt' is not done here"),
    ({"stream": "true"}, "'stream' is not done here"),
    ({"include[]": "logprobs"}, "'include[]' is not done here"),
    ({"timestamp_granularities[]": "letter"}, "timestamp_granularities[]"),
    ({"timestamp_granularities": "word"}, "did you mean 'timestamp_granularities[]'?"),
    ({"file": b"no sound"}, "file is no sound"),
    ({"file": b""}, "file is no sound"),
    ({"file": png()}, "file is no sound"),
    ({"file": SOUND[:-100]}, "cut short"),
]


@pytest.mark.parametrize(("fields", "line"), BAD, ids=[str(number) for number in range(len(BAD))])
def test_what_does_not_fit_is_refused_in_a_line(client: TestClient, fields: dict[str, Any], line: str) -> None:
    assert line in refusal_of(sent(client, **fields), 400)


def test_a_body_that_is_no_form_is_refused(client: TestClient) -> None:
    form = {"content-type": "multipart/form-data; boundary=x"}
    refusal_of(client.post(ROUTE, content=b"nothing of a form", headers=form), 400)
    refusal_of(client.post(ROUTE, content=b"x", headers={"content-type": "multipart/form-data"}), 400)
    refusal_of(client.post(ROUTE, json={"model": "ctc"}), 400)
    refusal_of(client.post(ROUTE, data={"model": "ctc"}), 400)
    refusal_of(client.post(ROUTE, data={"model": "ctc", "file": "/etc/passwd"}), 400)
    refusal_of(client.post(ROUTE, files={"file": SOUND}), 400)
    refusal_of(sent(client, model="../../etc/passwd"), 404)


def test_an_upload_that_is_too_large_is_refused(models: dict[str, Model]) -> None:
    client = api_of(Served("ctc", models["ctc"]), body=1000)
    assert "bytes" in refusal_of(sent(client), 413)

    def pieces() -> Iterator[bytes]:  # whose length nobody says
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        for _ in range(50):
            yield b"x" * 100

    headers = {"content-type": "multipart/form-data; boundary=x"}
    assert "1,000 bytes" in refusal_of(client.post(ROUTE, content=pieces(), headers=headers), 413)


def test_a_sound_that_is_too_long_is_refused(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legato.serving.media.MOST_SECONDS", 0)
    assert "so cut it" in refusal_of(sent(client), 400)


def test_the_form_is_described(client: TestClient) -> None:
    described = client.get("/openapi.json").json()
    body = described["paths"][ROUTE]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    schema = described["components"]["schemas"][body["$ref"].rpartition("/")[2]]
    assert set(schema["required"]) == {"file", "model"}
    assert schema["properties"]["response_format"]["enum"] == ["json", "text", "srt", "verbose_json", "vtt"]
