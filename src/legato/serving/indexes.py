"""Indexes behind the API: passages by `/v1/search`, and chats whose answers cite them.

    {"model": "chat", "messages": […], "index": "docs"}              the last message is the question
    {"model": "chat", "messages": […], "index": {"name": "docs", "top": 3, "filter": {"lang": "en"}}}

An answer has its `sources`, numbered as it cites them; a stream sends them in its last chunk. Only the indexes that
the server was started with can be named: no path comes from a request. Passages reach a model as quotations in the
question's message (retrieval/answers.py); tools cannot be offered beside them, so that no text of a document calls
one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from starlette.responses import Response, StreamingResponse

from legato.errors import ConfigError, FolderError, LegatoError, brief, suggest
from legato.rag import ChatWriter
from legato.retrieval.answers import NO_ANSWER, cited, fitting
from legato.retrieval.index import Index, SearchHit
from legato.serving.app import Refusal, json_response, without_place
from legato.serving.batcher import Batcher
from legato.serving.models import Served
from legato.serving.openai_forms import Answer, ChatForm, Spelling
from legato.serving.transport.bodies import BoundedRoute
from legato.serving.transport.departures import Gone, departure
from legato.serving.transport.text_limits import CODE

MOST_TOP: Final = 100  # passages of one request
MOST_QUERY: Final = 32_768  # characters of a question
Name = Annotated[str, Field(min_length=1, max_length=200)]
Text = Annotated[str, Field(max_length=200)]
Value = Text | bool | int | float
Top = Annotated[int, Field(ge=1, le=MOST_TOP)]
Mode = Literal["hybrid", "vectors", "words"]
FilterField = Annotated[dict[Text, Value | list[Value]], Field(max_length=20)]


class IndexQuery(BaseModel):
    """Which passages: of which index, how many, by what, and with which metadata."""

    model_config = ConfigDict(extra="forbid")

    name: Name
    top: Top = 5
    mode: Mode | None = None
    filter: FilterField = {}


def _named(given: Any) -> Any:
    return {"name": given} if isinstance(given, str) else given


IndexField = Annotated[IndexQuery, BeforeValidator(_named, json_schema_input_type=Name | IndexQuery)]
"""An index by its name alone, or with what is to be looked for."""


class SearchRequest(BaseModel):
    """What is asked for stands beside the index's name, or with it."""

    model_config = ConfigDict(extra="forbid")

    index: IndexField
    query: Annotated[str, Field(max_length=MOST_QUERY)]
    top: Top | None = None
    mode: Mode | None = None
    filter: FilterField | None = None

    @property
    def wanted(self) -> IndexQuery:
        own = {name: getattr(self, name) for name in ("top", "mode", "filter")}
        return self.index.model_copy(update={name: value for name, value in own.items() if value is not None})


class Source(BaseModel):
    """A passage, and where it is from."""

    number: int
    score: float
    ranks: dict[str, int]
    source: str
    title: str
    heading: str
    page: int | None
    start: int
    end: int
    text: str
    metadata: dict[str, Any]


class SearchResponse(BaseModel):
    object: Literal["list"] = "list"
    index: str
    data: list[Source]


class ServedIndexes:
    """By name; a name that none has is refused with the nearest."""

    def __init__(self, indexes: Mapping[str, Index] | None = None) -> None:
        self._by_name = dict(indexes or {})
        # Searched one after another, in a thread of its own: encoders and stores need not be safe in several.
        self._batchers = {name: Batcher(name) for name in self._by_name}

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    async def search(self, query: IndexQuery, question: str, gone: Gone) -> list[SearchHit]:
        name = query.name
        if name not in self._by_name:
            other = suggest(name, self._by_name) if self._by_name else "this server has none: legato serve --index"
            raise Refusal(404, f"there is no index '{brief(name, 80)}'; {other}")
        if len(question) > MOST_QUERY:
            line = f"the question has {len(question):,} characters; an index is searched for {MOST_QUERY:,} at most"
            raise Refusal(400, line, code=CODE)
        index, batcher = self._by_name[name], self._batchers[name]

        def run(questions: list[str]) -> list[list[SearchHit]]:
            try:
                index.refresh()
                if not len(index):  # its last document has left
                    return [[] for _ in questions]
                found = [index.search(each, query.top, mode=query.mode, where=query.filter) for each in questions]
            except FolderError:  # damaged, or its database is down; where it lies is nobody's business
                raise Refusal(503, f"the index '{name}' cannot be read now") from None
            except LegatoError as problem:
                place, told = index.store.place, f"the index '{name}'"
                line = without_place(str(problem), place, told)
                raise ConfigError(told + line.removeprefix(place) if line.startswith(f"{place} ") else line) from None
            return found

        (hits,) = await batcher.outcome(batcher.submit([question], object(), run), gone)
        return list(hits)

    @property
    def broken(self) -> list[str]:
        """The names of those that are searched no more."""
        return [name for name, batcher in self._batchers.items() if batcher.broken]

    def close(self, until: float) -> bool:
        """End all threads, by a moment of the monotonic clock at most; whether they have ended."""
        ended = True
        for name, batcher in self._batchers.items():
            if batcher.close(drain=False, seconds=max(0, until - time.monotonic())):
                self._by_name[name].close()
            else:
                ended = False
        return ended


def search_routes(indexes: ServedIndexes) -> APIRouter:
    router = APIRouter(prefix="/v1", route_class=BoundedRoute)

    @router.post("/search", response_model=SearchResponse)
    async def search(body: SearchRequest, request: Request) -> Response:
        """The passages of an index that fit a question, best first."""
        hits = await indexes.search(body.wanted, body.query, departure(request))
        return json_response({"object": "list", "index": body.index.name, "data": sources_of(hits)})

    return router


def sources_of(hits: Sequence[SearchHit]) -> list[dict[str, Any]]:
    return [{"number": number, **hit.as_json()} for number, hit in enumerate(hits, start=1)]


# ── chats ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Grounded:
    """A dialogue whose last question stands behind its sources."""

    messages: list[dict[str, Any]]
    hits: list[SearchHit]


async def ground(
    indexes: ServedIndexes,
    query: IndexQuery,
    served: Served,
    messages: list[dict[str, Any]],
    most: int,
    gone: Gone,
) -> Grounded:
    """Search for what a dialogue asks last, and put the passages before it, as many as the model can read."""
    if messages[-1]["role"] != "user":
        raise ConfigError("'index' needs a question: the last message has to be the user's")
    question, writer = messages[-1]["content"], ChatWriter(served.model)
    hits = await indexes.search(query, question, gone)
    own = [message["content"] for message in messages if message["role"] == "system"]
    between = [message for message in messages[:-1] if message["role"] != "system"]

    def dialogue(asked: list[dict[str, str]]) -> list[dict[str, Any]]:
        system, last = asked
        return [{"role": "system", "content": "\n\n".join([*own, system["content"]])}, *between, last]

    if not hits:
        return Grounded(messages, [])

    def fits(asked: list[dict[str, str]]) -> bool:
        return writer.fits(dialogue(asked), most)

    asked, kept = await asyncio.to_thread(fitting, question, hits, writer.special_tokens, fits)
    return Grounded(dialogue(asked), kept)


class CitedChatForm(ChatForm):
    """`chat.completion` with the `sources`, and which of them each choice cites; in a stream they come last."""

    def __init__(self, model: str, hits: Sequence[SearchHit], spelling: Spelling | None = None) -> None:
        super().__init__(model, spelling)
        self.hits = list(hits)

    def whole(self, answers: Sequence[Any], usage: dict[str, int]) -> dict[str, Any]:
        texts = [Answer(*answer).text for answer in answers]
        return {**super().whole(answers, usage), **self._cited(texts)}

    def sources(self, texts: Sequence[str]) -> dict[str, Any] | None:
        return {**self.about, "object": "chat.completion.chunk", "choices": [], **self._cited(texts)}

    def _cited(self, texts: Sequence[str]) -> dict[str, Any]:
        found = [cited("", text.strip(), self.hits) for text in texts]
        citations = [
            {"index": n, "numbers": one.citations, "by": one.cited_by, "answered": one.answered}
            for n, one in enumerate(found)
        ]
        return {"sources": sources_of(self.hits), "citations": citations}


def no_answer(form: CitedChatForm, stream: bool, line: Any) -> Response:
    """What is said where no passage fits; no model is asked."""
    if not stream:
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        return json_response(form.whole([Answer(NO_ANSWER, "stop")], usage))

    async def lines() -> AsyncIterator[str]:
        for each in (
            form.first(0),
            form.piece(0, NO_ANSWER, None),
            form.piece(0, "", "stop"),
            form.sources([NO_ANSWER]),
        ):
            yield line(each)
        yield "data: [DONE]\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")
