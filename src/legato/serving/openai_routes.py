"""OpenAI's API, for models that write and models that embed: what its own clients speak, unchanged."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from legato.decoding.emitter import Generated
from legato.errors import ConfigError, LegatoError
from legato.serving.app import json_response
from legato.serving.indexes import CitedChatForm, ServedIndexes, ground, no_answer
from legato.serving.models import Served, ServedModels
from legato.serving.openai_forms import Answer, ChatForm, CompletionForm, Form, Spelling, sse
from legato.serving.openai_types import (
    ChatCompletionRequest,
    CompletionRequest,
    EmbeddingsRequest,
    GenerationRequest,
    one_or_many,
)
from legato.serving.page.route import about_model
from legato.serving.picture_messages import answer_about_picture, pictures_in
from legato.serving.scheduler import Done, Failed, Piece
from legato.serving.texts.event_queue import EventQueue
from legato.serving.texts.text_stream import TextStream
from legato.serving.tool_calls import Tool, read_calls
from legato.serving.transport.bodies import BoundedRoute
from legato.serving.transport.departures import departure, settled

MOST_PROMPTS: Final = 128
MOST_EMBEDDED: Final = 2048


def openai_routes(models: ServedModels, indexes: ServedIndexes) -> APIRouter:
    router = APIRouter(prefix="/v1", route_class=BoundedRoute)

    @router.get("/models")
    async def list_models() -> Response:
        return json_response({"object": "list", "data": [_card(served) for served in models]})

    @router.get("/models/{name:path}")
    async def model_card(name: str) -> Response:
        return json_response(_card(models[name]))

    add_text_routes(router, models, indexes)

    @router.post("/embeddings")
    async def embed(body: EmbeddingsRequest, request: Request) -> Response:
        body.refuse_unsupported()
        return json_response(await _embed(models[body.model], body, request))

    return router


def add_text_routes(router: APIRouter, models: ServedModels, indexes: ServedIndexes) -> None:
    """The routes that write texts, which a front process has, too."""

    @router.post("/chat/completions")
    async def chat(body: ChatCompletionRequest, request: Request) -> Response:
        body.refuse_unsupported()
        served = models[body.model]
        most = body.max_completion_tokens or body.max_tokens
        if body.index is not None and (body.offered_tools or pictures_in(body.messages)):
            raise ConfigError("'index' goes with texts alone: leave out tools and pictures")
        if pictures_in(body.messages):
            return await answer_about_picture(served, body, most, request, ChatForm(body.model))
        messages, tools = [message.plain() for message in body.messages], body.offered_tools
        count = sum(len(message["content"]) for message in messages)
        served.prompt_limits.check_characters(count, "the prompt", "messages")
        form = ChatForm(body.model, Spelling(served.model.tokenizer))
        if body.index is not None:
            room = most or served.most_tokens
            grounded = await ground(indexes, body.index, served, messages, room, departure(request))
            messages, form = grounded.messages, CitedChatForm(body.model, grounded.hits, form.spelling)
            if not grounded.hits:
                return no_answer(form, bool(body.stream), sse)
        offered = [tool.model_dump(exclude_none=True) for tool in tools]
        ids = await asyncio.to_thread(served.model.chat_ids, messages, tools=offered)
        return await _generate(served, body, [ids], most, request, form, tools, field="messages")

    @router.post("/completions")
    async def complete(body: CompletionRequest, request: Request) -> Response:
        body.refuse_unsupported()
        served, prompts = models[body.model], body.prompts
        if body.logprobs is not None and body.echo:
            raise ConfigError("'logprobs' are those of what is written; leave out 'echo'")
        if not 1 <= len(prompts) <= MOST_PROMPTS:
            raise ConfigError(f"there are {len(prompts):,} prompts; 1 to {MOST_PROMPTS} are answered at once")
        _check_prompts(served, prompts)
        ids = await asyncio.to_thread(lambda: [served.model.prompt_ids(prompt) for prompt in prompts])
        echoed = await asyncio.to_thread(
            lambda: [_text_of(served, prompt) if body.echo else "" for prompt in prompts]
        )
        form = CompletionForm(body.model, echoed, body.n or 1, Spelling(served.model.tokenizer))
        return await _generate(served, body, ids, body.max_tokens, request, form)


def _card(served: Served) -> dict[str, Any]:
    card = {"id": served.name, "object": "model", "created": served.created, "owned_by": "legato"}
    card["legato"] = about_model(served)
    return card if served.base is None else {**card, "parent": served.base.name}


def _text_of(served: Served, prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else served.model.tokenizer.decode(served.model.prompt_ids(prompt))


# ── texts ─────────────────────────────────────────────────────────────────────────────────────────


async def _generate(
    served: Served,
    body: GenerationRequest,
    prompts: list[list[int]],
    most: int | None,
    request: Request,
    form: Form,
    tools: Sequence[Tool] = (),
    field: str = "prompt",
) -> Response:
    """Let each prompt be continued, and answer at the end or as it is written."""
    for ids in prompts:
        served.prompt_limits.check_tokens(len(ids), "the prompt", field)
    served.model.check_generates()
    most = served.most_tokens if most is None else most
    if most > served.most_tokens:
        raise ConfigError(f"{most:,} tokens were asked for; this server writes {served.most_tokens:,} at most")
    options, events = body.search(most), EventQueue()
    how: dict[str, Any] = {"count": body.n or 1, "top_logprobs": body.top, "streamed": bool(body.stream)}
    requests: list[Any] = []
    try:
        for number, ids in enumerate(prompts):
            requests.append(await served.submit(ids, options, events.listener(number), group=events, **how))
    except BaseException:
        for each in requests:
            served.cancel(each)
        raise
    read = sum(map(len, prompts))
    if body.stream:
        with_usage = body.stream_options is not None and body.stream_options.include_usage
        lines = _stream(served, requests, events, form, read if with_usage else None, tools)
        return StreamingResponse(lines, media_type="text/event-stream")
    done: dict[int, Done] = {}
    try:
        while len(done) < len(requests):
            for number, event in await _next_events(events, request):
                if isinstance(event, Failed):
                    raise event.problem
                if isinstance(event, Done):
                    done[number] = event
    finally:
        for each in requests:
            served.cancel(each)  # of what is done nothing is left

    def answers() -> list[Answer]:
        finished = served.model.finished
        return [
            answer
            for number, each in enumerate(requests)
            for answer in _answers(
                done[number], [finished(each.prompt, text, options) for text in done[number].texts], tools
            )
        ]

    written = sum(len(text.tokens) for each in done.values() for text in each.texts)
    return json_response(form.whole(await asyncio.to_thread(answers), _usage(read, written)))


def _answers(done: Done, texts: Sequence[Generated], tools: Sequence[Tool]) -> list[Answer]:
    """The texts of a request, and the calls in them where there are tools."""
    answers = []
    for choice, text in enumerate(texts):
        said, calls = read_calls(text.text, tools) if tools else (text.text, [])
        logprobs = None if done.logprobs is None else done.logprobs[choice]
        answers.append(Answer(said, "tool_calls" if calls else _reason(text), logprobs, calls))
    return answers


def _check_prompts(served: Served, prompts: Sequence[str | list[int]]) -> None:
    """Refuse what is far too long before it is cut into tokens, or looked at one by one."""
    for prompt in prompts:
        if isinstance(prompt, str):
            served.prompt_limits.check_characters(len(prompt), "the prompt", "prompt")
        else:
            served.prompt_limits.check_tokens(len(prompt), "the prompt", "prompt")


async def _next_events(events: EventQueue, request: Request) -> list[Any]:
    """What comes next; a client that has gone ends the wait."""
    waiting = asyncio.ensure_future(events.next_events())
    try:
        await settled(waiting, departure(request))
        return waiting.result()
    finally:
        waiting.cancel()


async def _stream(
    served: Served,
    requests: Sequence[Any],
    events: EventQueue,
    form: Form,
    read: int | None,
    tools: Sequence[Tool],
) -> AsyncIterator[str]:
    """Server-sent events; a client that reads no further cancels what is not written yet."""
    model, options, count = served.model, requests[0].options, requests[0].count
    streams = [
        TextStream(model.tokenizer, each.prompt, options.stop, tools=bool(tools))
        for each in requests
        for _ in range(count)
    ]
    unfinished, written, said = len(requests), 0, [""] * len(streams)
    try:
        for choice in range(len(streams)):
            if (first := form.first(choice)) is not None:
                yield sse(first)
        while unfinished:
            lines: list[str] = []
            for number, event in await events.next_events():
                try:
                    if isinstance(event, Failed):
                        raise event.problem
                    if isinstance(event, Piece):
                        choice = number * count + event.choice
                        text, logprobs = streams[choice].push(event.tokens, event.logprobs)
                        if text:
                            lines.append(form.line(choice, text, logprobs))
                        continue
                    unfinished -= 1
                    own = streams[number * count : (number + 1) * count]
                    texts = [
                        model.finished(requests[number].prompt, text, options, _text_of_stream(stream, text.tokens))
                        for stream, text in zip(own, event.texts, strict=True)
                    ]
                    for place, answer in enumerate(_answers(event, texts, tools)):
                        written += len(texts[place].tokens)
                        said[number * count + place] = answer.text
                        lines += _last_lines(form, number * count + place, answer, own[place])
                except asyncio.CancelledError:
                    raise
                except BaseException as problem:
                    yield "".join([*lines, sse({"error": openai_error(problem, served)})])
                    return
            if lines:
                yield "".join(lines)
        if (sources := form.sources(said)) is not None:
            yield sse(sources)
        if read is not None:
            yield sse(form.last(_usage(read, written)))
        yield "data: [DONE]\n\n"
    finally:
        for each in requests:
            served.cancel(each)


def _text_of_stream(stream: TextStream, tokens: Sequence[int]) -> str | None:
    """The text of these tokens, where they are those of the stream."""
    text = stream.finish()
    return text if stream.count == len(tokens) else None


def _last_lines(form: Form, choice: int, answer: Answer, stream: TextStream) -> list[str]:
    """What is still to send of a text that has ended."""
    lines = [sse(form.calls(choice, answer.calls))] if answer.calls else []
    rest = "" if answer.calls else answer.text[stream.sent :]
    logprobs = None if answer.logprobs is None else list(answer.logprobs[stream.sent_logprobs :])
    if rest:
        lines.append(form.line(choice, rest, logprobs))
        logprobs = None if logprobs is None else []
    return [*lines, sse(form.piece(choice, "", answer.reason, logprobs or None))]


def _reason(text: Any) -> str:
    return "stop" if text.finished else "length"


def _usage(read: int, written: int) -> dict[str, int]:
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def openai_error(problem: BaseException, served: Served) -> dict[str, Any]:
    """What went wrong, as OpenAI's clients read it."""
    ours = not isinstance(problem, LegatoError)
    said = "this is a fault of ours" if ours else served.without_places(str(problem))
    kind = "server_error" if ours else "invalid_request_error"
    return {"message": said, "type": kind, "param": None, "code": None}


# ── vectors ───────────────────────────────────────────────────────────────────────────────────────


async def _embed(served: Served, body: EmbeddingsRequest, request: Request) -> dict[str, Any]:
    many = one_or_many(body.input)
    if not 1 <= len(many) <= MOST_EMBEDDED:
        raise ConfigError(f"there are {len(many):,} inputs; 1 to {MOST_EMBEDDED:,} are embedded at once")
    for each in many:
        if not isinstance(each, str):
            served.input_limits.check_tokens(len(each), "an input", "input")
    texts = await asyncio.to_thread(lambda: [_text_of(served, each) for each in many])
    vectors, read = await served.embed(texts, departure(request))
    if body.dimensions is not None and body.dimensions != vectors.shape[1]:
        raise ConfigError(f"'dimensions' is {body.dimensions:,}; {served.name} has vectors of {vectors.shape[1]:,}")
    data = [
        {"object": "embedding", "index": index, "embedding": _coded(vector, body.encoding_format)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": read, "total_tokens": read}
    return {"object": "list", "data": data, "model": served.name, "usage": usage}


def _coded(vector: Any, how: str | None) -> Any:
    if how == "base64":
        return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode("ascii")
    return [float(number) for number in vector]
