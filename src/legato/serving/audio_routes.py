"""`POST /v1/audio/transcriptions`: OpenAI's route for what is said in a recording, as its clients send it: a form."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Form, Request, UploadFile
from starlette.responses import PlainTextResponse, Response

from legato.errors import ConfigError, brief, suggest
from legato.inspect.subtitles import subtitles
from legato.registry import TASKS, require_extra
from legato.schema import TypedDict
from legato.serving.app import json_response
from legato.serving.media import checked_sound, seconds_of
from legato.serving.models import ServedModels
from legato.serving.transport.departures import departure

ResponseFormat = Literal["json", "text", "srt", "verbose_json", "vtt"]
TIMED: Final = ("srt", "vtt", "verbose_json")
READ: Final = ("file", "model", "language", "response_format", "timestamp_granularities[]")
NEUTRAL: Final = {  # what else OpenAI's clients send, and what says that nothing is asked for
    "prompt": ("",),
    "temperature": ("", "0", "0.0"),
    "stream": ("", "false", "False"),
    "chunking_strategy": ("", "auto"),
}


class Segment(TypedDict):
    id: int
    start: float
    end: float
    text: str


class Transcription(TypedDict, total=False):
    """What is said; with `verbose_json` also when."""

    text: str
    task: str
    language: str
    duration: float
    segments: list[Segment]
    words: list[dict[str, Any]]


def audio_routes(models: ServedModels) -> APIRouter:
    require_extra("serve", "python_multipart")  # of which FastAPI says in several lines that it is missing
    router = APIRouter(prefix="/v1")

    @router.post("/audio/transcriptions", response_model=Transcription)
    async def transcribe(
        request: Request,
        file: UploadFile,
        model: Annotated[str, Form()],
        language: Annotated[str | None, Form()] = None,
        response_format: Annotated[ResponseFormat, Form()] = "json",
        granularities: Annotated[
            list[Literal["word", "segment"]] | None, Form(alias="timestamp_granularities[]")
        ] = None,
    ) -> Response:
        """What is said in a recording, in words: as JSON, as plain text, or as subtitles."""
        _refuse_others(await request.form())
        served = models[model]
        declared = TASKS.get(served.model.task).Options
        if declared is None or "timestamps" not in declared.model_fields:
            raise ConfigError(f"'{served.name}' is a model for {served.model.task}, which writes down no speech")
        raw = await file.read()
        await asyncio.to_thread(checked_sound, raw, "file")
        options: dict[str, Any] = {"language": language} if language else {}
        if response_format in TIMED:
            options["timestamps"] = True
        (prediction,) = await served.predict([raw], options, departure(request))
        if "problem" in prediction:
            raise ConfigError(prediction["problem"])
        answer = prediction["answers"][0]
        if response_format == "json":
            return json_response({"text": answer["text"]})
        if response_format == "text":
            return PlainTextResponse(f"{answer['text']}\n")
        if response_format == "srt":
            return PlainTextResponse(subtitles(answer["words"]))
        if response_format == "vtt":
            return PlainTextResponse(as_vtt(answer["words"]), media_type="text/vtt")
        about = {"task": "transcribe", "language": language or "unknown", "duration": seconds_of(raw, "file")}
        return json_response({**about, "text": answer["text"], **_timed(answer["words"], granularities)})

    return router


def _refuse_others(form: Mapping[str, Any]) -> None:
    """Refuse what would change the answer and is not done here."""
    for name, value in form.items():
        if name in READ or value in NEUTRAL.get(name, ()):
            continue
        if name in NEUTRAL or name.startswith("include"):
            raise ConfigError(f"'{name}' is not done here; leave it out")
        raise ConfigError(f"there is no parameter '{brief(name)}'; {suggest(name, READ)}")


def as_vtt(words: Sequence[Mapping[str, Any]]) -> str:
    """Words with their times as WebVTT has them.

    >>> print(as_vtt([{"word": "go", "start": 0.5, "end": 1.0}]), end="")
    WEBVTT
    <BLANKLINE>
    00:00:00.500 --> 00:00:01.000
    go
    """
    return "".join(["WEBVTT\n", *(f"\n{start} --> {end}\n{text}\n" for start, end, text in _cues(words))])


def _cues(words: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """The subtitles that words make: from when, until when (00:00:01.500), and the text."""
    blocks = [block.split("\n", 2) for block in subtitles(words).strip().split("\n\n") if block]
    return [(*times.replace(",", ".").split(" --> "), text) for _, times, text in blocks]  # type: ignore[misc]


def _timed(words: Sequence[Mapping[str, Any]], granularities: Sequence[str] | None) -> dict[str, Any]:
    """What was said when: segments, which are subtitles, and words."""
    times: dict[str, Any] = {}
    if granularities is None or "segment" in granularities:
        times["segments"] = [
            {"id": number, "start": _seconds(start), "end": _seconds(end), "text": text}
            for number, (start, end, text) in enumerate(_cues(words))
        ]
    if granularities is not None and "word" in granularities:
        times["words"] = list(words)
    return times


def _seconds(time: str) -> float:
    hours, minutes, seconds = time.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
