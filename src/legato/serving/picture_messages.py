"""Pictures in the messages of a chat, for models that see: `image_url` parts, as OpenAI's clients send them.

A picture is a data: URL; no address is ever fetched. As in training, a dialogue is about one picture, which stands
before what the user says first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from fastapi import Request
from starlette.responses import Response, StreamingResponse

from legato.decoding.emitter import Generated
from legato.errors import ConfigError
from legato.registry import TASKS
from legato.schema import to_json
from legato.serving.app import json_response
from legato.serving.media import picture_of
from legato.serving.models import Served
from legato.serving.openai_types import ChatCompletionRequest, Message, PicturePart
from legato.serving.transport.departures import departure


class ChatForm(Protocol):
    """How an answer is written down, whole or as a stream."""

    def whole(self, texts: Sequence[tuple[str, str]], usage: dict[str, int]) -> dict[str, Any]: ...

    def first(self, choice: int) -> dict[str, Any] | None: ...

    def piece(self, choice: int, text: str, reason: str | None) -> dict[str, Any]: ...

    def last(self, usage: dict[str, int]) -> dict[str, Any]: ...


def pictures_in(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """The pictures of a dialogue, each with where it stands."""
    return [
        (part.image_url.url, f"messages.{number}.content.{place}.image_url")
        for number, message in enumerate(messages)
        if isinstance(message.content, list)
        for place, part in enumerate(message.content)
        if isinstance(part, PicturePart)
    ]


async def answer_about_picture(
    served: Served, chat: ChatCompletionRequest, most: int | None, request: Request, form: ChatForm
) -> Response:
    """The answer to a dialogue with a picture in it; a stream has it in one piece."""
    picture = await asyncio.to_thread(_checked_picture, served, chat.messages)
    if chat.offered_tools or chat.top is not None or chat.schema_text is not None:
        raise ConfigError("tools, logprobs and response_format are for dialogues without a picture; leave them out")
    most = served.most_tokens if most is None else most
    if most > served.most_tokens:
        raise ConfigError(f"{most:,} tokens were asked for; this server writes {served.most_tokens:,} at most")
    options, count = chat.search(most), chat.n or 1
    samples = options.search == "sample"
    if samples:
        options = options.model_copy(update={"nbest": count})
    messages = [message.plain() for message in chat.messages]
    served.prompt_limits.check_characters(sum(len(each["content"]) for each in messages), "the dialogue", "messages")
    ids = await asyncio.to_thread(served.model.chat_ids, messages, about_picture=True)
    served.prompt_limits.check_tokens(len(ids), "the dialogue", "messages")
    answers = await served.talk(ids, picture, options, departure(request))
    answers = answers if samples else answers[:1] * count
    tokens = sum(len(answer.tokens) for answer in answers)
    usage = {"prompt_tokens": len(ids), "completion_tokens": tokens, "total_tokens": len(ids) + tokens}
    if not chat.stream:
        return json_response(form.whole([(answer.text, _reason(answer)) for answer in answers], usage))
    with_usage = chat.stream_options is not None and chat.stream_options.include_usage
    lines = _streamed(answers, form, usage if with_usage else None)
    return StreamingResponse(lines, media_type="text/event-stream")


def _checked_picture(served: Served, messages: Sequence[Message]) -> bytes:
    """The one picture of a dialogue, for a model that sees."""
    (url, where), *others = pictures_in(messages)
    place = where.removesuffix(".image_url")
    if not served.model.generates or "image" not in TASKS.get(served.model.task).processors:
        raise ConfigError(f"{place}: '{served.name}' reads no pictures; send it text alone")
    if others:
        raise ConfigError(f"there are {len(others) + 1} pictures; a dialogue here is about one")
    first = next((number for number, message in enumerate(messages) if message.role == "user"), None)
    if not where.startswith(f"messages.{first}."):
        raise ConfigError(f"{place}: the picture belongs to what the user says first; move it there")
    if url[:5].lower() != "data:":
        raise ConfigError(f"{where} is no data: URL; addresses are not fetched here, nor files of the server read")
    return picture_of(url, where)


async def _streamed(answers: Sequence[Generated], form: ChatForm, usage: dict[str, int] | None) -> AsyncIterator[str]:
    """Server-sent events."""
    for choice, answer in enumerate(answers):
        for event in (
            form.first(choice),
            form.piece(choice, answer.text, None),
            form.piece(choice, "", _reason(answer)),
        ):
            if event is not None:
                yield f"data: {to_json(event, ensure_ascii=False)}\n\n"
    if usage is not None:
        yield f"data: {to_json(form.last(usage), ensure_ascii=False)}\n\n"
    yield "data: [DONE]\n\n"


def _reason(answer: Generated) -> str:
    return "stop" if answer.finished else "length"
