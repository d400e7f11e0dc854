"""OpenAI's API, for models that write and models that embed: what its own clients speak, unchanged."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from legato.decoding import SearchOptions
from legato.decoding.constraints import check_constraint
from legato.decoding.logprobs import TokenLogprob
from legato.errors import ConfigError, LegatoError
from legato.serving.app import json_response
from legato.serving.indexes import CitedChatForm, ServedIndexes, ground, no_answer
from legato.serving.models import Served, ServedModels
from legato.serving.openai_forms import Answer, ChatForm, CompletionForm, Form, Spelling
from legato.serving.openai_types import (
    ChatCompletionRequest,
    CompletionRequest,
    EmbeddingsRequest,
    GenerationRequest,
    one_or_many,
)
from legato.serving.page.route import about_model
from legato.serving.picture_messages import answer_about_picture, pictures_in
from legato.serving.scheduler import Done, Event, Failed, Piece, QueueFull, TextRequest
from legato.serving.tool_calls import BEGIN, Tool, may_begin, read_calls
from legato.serving.transport.bodies import BoundedRoute
from legato.serving.transport.departures import departure, settled

MOST_PROMPTS: Final = 128
MOST_EMBEDDED: Final = 2048
MOST_SCHEMAS: Final = 64  # that wait to be read


def openai_routes(models: ServedModels, indexes: ServedIndexes) -> APIRouter:
    router = APIRouter(prefix="/v1", route_class=BoundedRoute)

    @router.get("/models")
    async def list_models() -> Response:
        return json_response({"object": "list", "data": [_card(served) for served in models]})

    @router.get("/models/{name:path}")
    async def model_card(name: str) -> Response:
        return json_response(_card(models[name]))

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
                return no_answer(form, bool(body.stream), _sse)
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

    @router.post("/embeddings")
    async def embed(body: EmbeddingsRequest, request: Request) -> Response:
        body.refuse_unsupported()
        return json_response(await _embed(models[body.model], body, request))

    return router


def _card(served: Served) -> dict[str, Any]:
    card = {"id": served.name, "object": "model", "created": served.created, "owned_by": "legato"}
    card["legato"] = about_model(served)
    return card if served.base is None else {**card, "parent": served.base.name}


def _text_of(served: Served, prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else served.model.tokenizer.decode(served.model.prompt_ids(prompt))


# ── texts ─────────────────────────────────────────────────────────────────────────────────────────


class _Mailbox:
    """Events for a loop's queues. It is woken once for all that come until it looks: a step of 64 texts has 64."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._events = ref(loop), deque[tuple[_EventQueue, int, Event]]()
        self._woken = False

    def post(self, queue: _EventQueue, number: int, event: Event) -> None:
        """Any thread may; who is late wakes the loop once too often, and nobody is forgotten."""
        self._events.append((queue, number, event))
        loop = self._loop()
        if not self._woken and loop is not None:
            self._woken = True
            with suppress(RuntimeError):  # the server has stopped
                loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._woken = False
        while self._events:
            queue, number, event = self._events.popleft()
            queue.queue.put_nowait((number, event))


_MAILBOXES: WeakKeyDictionary[asyncio.AbstractEventLoop, _Mailbox] = WeakKeyDictionary()


class _EventQueue:
    """The events of several requests, in the order in which they come; a thread may put them."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._mailbox = _MAILBOXES.setdefault(loop, _Mailbox(loop))
        self.queue: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()

    def listener(self, number: int) -> Any:
        return partial(self._mailbox.post, self, number)

    async def next_events(self) -> list[tuple[int, Event]]:
        """All that have come, one at least; of pieces of a text that came meanwhile one is made."""
        events = [await self.queue.get()]
        while not self.queue.empty():
            events.append(self.queue.get_nowait())
        return _joined(events)


def _joined(events: list[tuple[int, Event]]) -> list[tuple[int, Event]]:
    """The same events, where pieces of a text that follow one another are one."""
    joined: list[tuple[int, Event]] = []
    last: dict[tuple[int, int], int] = {}  # by text, where its last piece stands
    for number, event in events:
        if not isinstance(event, Piece):
            last.clear()
            joined.append((number, event))
            continue
        place = last.setdefault((number, event.choice), len(joined))
        if place == len(joined):
            joined.append((number, event))
            continue
        before = joined[place][1]
        assert isinstance(before, Piece)
        tokens = None if event.tokens is None else [*(before.tokens or ()), *event.tokens]
        joined[place] = number, Piece(event.choice, before.text + event.text, tokens)
    return joined


class _SchemaReader:
    """Where schemas are read, which takes a while: nobody waits for it but those whose requests have one."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "legato-schemas")
        self._waiting = 0

    async def read(self, options: SearchOptions, submit: Callable[[], TextRequest]) -> TextRequest:
        if self._waiting >= MOST_SCHEMAS:
            raise QueueFull(self._waiting, self._waiting)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._submit, options, submit)
        finally:
            self._waiting -= 1

    def _submit(self, options: SearchOptions, submit: Callable[[], TextRequest]) -> TextRequest:
        check_constraint(options)
        return submit()


_SCHEMAS: Final = _SchemaReader()


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
    scheduler, count = served.scheduler(), body.n or 1
    most = served.most_tokens if most is None else most
    if most > served.most_tokens:
        raise ConfigError(f"{most:,} tokens were asked for; this server writes {served.most_tokens:,} at most")
    options, events = body.search(most), _EventQueue()
    requests: list[TextRequest] = []
    try:
        for number, ids in enumerate(prompts):
            listener, top = events.listener(number), body.top
            how: dict[str, Any] = {
                "count": count,
                "top_logprobs": top,
                "streamed": bool(body.stream),
                "group": events,
            }
            submit = partial(scheduler.submit, ids, options, listener, model=served.model, **how)
            requests.append(submit() if options.json_schema is None else await _SCHEMAS.read(options, submit))
    except BaseException:
        for each in requests:
            scheduler.cancel(each)
        raise
    read = sum(map(len, prompts))
    if body.stream:
        with_usage = body.stream_options is not None and body.stream_options.include_usage
        lines = _stream(served, requests, events, form, count, read if with_usage else None, tools)
        return StreamingResponse(lines, media_type="text/event-stream")
    done: list[Done | None] = [None] * len(prompts)
    try:
        while None in done:
            number, event = await _next(events, request)
            if isinstance(event, Failed):
                raise event.problem
            if isinstance(event, Done):
                done[number] = event
    finally:
        for each in requests:
            scheduler.cancel(each)  # of what is done nothing is left
    answers = [answer for each in done if each is not None for answer in _answers(each, tools)]
    written = sum(len(text.tokens) for each in done if each is not None for text in each.texts)
    return json_response(form.whole(answers, _usage(read, written)))


def _answers(done: Done, tools: Sequence[Tool]) -> list[Answer]:
    """The texts of a request, and the calls in them where there are tools."""
    answers = []
    for choice, text in enumerate(done.texts):
        said, calls = read_calls(text.text, tools) if tools else (text.text, [])
        tokens = None if done.tokens is None else done.tokens[choice]
        answers.append(Answer(said, "tool_calls" if calls else _reason(text), tokens, calls))
    return answers


def _check_prompts(served: Served, prompts: Sequence[str | list[int]]) -> None:
    """Refuse what is far too long before it is cut into tokens, or looked at one by one."""
    for prompt in prompts:
        if isinstance(prompt, str):
            served.prompt_limits.check_characters(len(prompt), "the prompt", "prompt")
        else:
            served.prompt_limits.check_tokens(len(prompt), "the prompt", "prompt")


async def _next(events: _EventQueue, request: Request) -> tuple[int, Event]:
    """The next event; a client that has gone ends the wait."""
    waiting = asyncio.ensure_future(events.queue.get())
    try:
        await settled(waiting, departure(request))
        return waiting.result()
    finally:
        waiting.cancel()


async def _stream(
    served: Served,
    requests: list[TextRequest],
    events: _EventQueue,
    form: Form,
    count: int,
    read: int | None,
    tools: Sequence[Tool],
) -> AsyncIterator[str]:
    """Server-sent events; whoever reads no further cancels what is not written yet."""
    left, written, streamed = len(requests), 0, [_StreamedText(bool(tools)) for _ in range(len(requests) * count)]
    try:
        for choice in range(len(requests) * count):
            if (first := form.first(choice)) is not None:
                yield _sse(first)
        while left:
            lines: list[str] = []
            for number, event in await events.next_events():
                if isinstance(event, Failed):
                    yield "".join([*lines, _sse({"error": openai_error(event.problem, served)})])
                    return
                if isinstance(event, Piece):
                    choice = number * count + event.choice
                    text, tokens = streamed[choice].push(event)
                    if text:
                        lines.append(_sse(form.piece(choice, text, None, tokens)))
                    continue
                left -= 1
                for place, answer in enumerate(_answers(event, tools)):
                    choice = number * count + place
                    written += len(event.texts[place].tokens)
                    lines += _last_lines(form, choice, answer, streamed[choice])
            if lines:
                yield "".join(lines)
        if (sources := form.sources()) is not None:
            yield _sse(sources)
        if read is not None:
            yield _sse(form.last(_usage(read, written)))
        yield "data: [DONE]\n\n"
    finally:
        for each in requests:
            served.scheduler().cancel(each)


def _last_lines(form: Form, choice: int, answer: Answer, streamed: _StreamedText) -> list[str]:
    """What is left to tell of a text that has ended."""
    lines = [_sse(form.calls(choice, answer.calls))] if answer.calls else []
    rest = "" if answer.calls else answer.text[streamed.sent :]
    tokens = None if answer.logprobs is None else list(answer.logprobs[streamed.tokens :])
    if rest:
        lines.append(_sse(form.piece(choice, rest, None, tokens)))
        tokens = None if tokens is None else []
    return [*lines, _sse(form.piece(choice, "", answer.reason, tokens or None))]


class _StreamedText:
    """What a client has seen of a text; where there are tools, what may be a call of one is held back."""

    def __init__(self, tools: bool) -> None:
        self._tools, self._text = tools, ""
        self._pending: list[TokenLogprob] | None = None
        self.sent, self.tokens = 0, 0  # characters, and tokens that were sent

    def push(self, piece: Piece) -> tuple[str, list[TokenLogprob] | None]:
        """What to send now, and of which tokens."""
        self._text += piece.text
        if piece.tokens is not None:
            self._pending = [*(self._pending or ()), *piece.tokens]
        safe = len(self._text) if not self._tools else _no_call_in(self._text)
        if safe <= self.sent:
            return "", None
        text, tokens, self._pending = self._text[self.sent : safe], self._pending, None
        self.sent = safe
        self.tokens += len(tokens or ())
        return text, tokens


def _no_call_in(text: str) -> int:
    """How many characters of a text are certainly not of a call of a tool."""
    if not text.strip() or may_begin(text):
        return 0
    place = text.find(BEGIN)
    if place >= 0:
        return len(text[:place].rstrip())
    begun = max((n for n in range(1, len(BEGIN)) if text.endswith(BEGIN[:n])), default=0)
    return len(text[: len(text) - begun].rstrip())


def _sse(event: dict[str, Any]) -> str:
    return f"data: {json.dumps(event, ensure_ascii=False)}\n\n"


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
