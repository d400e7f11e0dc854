"""The studio's routes: the page, what it is of, and the reports and rows that it asks for.

    GET  /                            the page
    GET  /api/studio                  the model, what it reads, whether it writes, the run
    POST /api/inspect                 {"text", "written"?, "prefix"?, "layers"?} → a report's JSON with an id
    GET  /api/reports/ID/arrays/N     the bytes of one of its arrays, deflated
    GET  /api/run?after=N&file=NAME   the run's rows behind byte N of metrics.jsonl

One inspection runs at a time, in a thread of its own, so that the server goes on answering; whoever has left by the
time that it is their turn is passed over. Only files are read, so a run that trains is never disturbed.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import threading
from collections import OrderedDict
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final, Required

from fastapi import APIRouter, Query, Request
from pydantic import ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, Response

from legato.data.processors import TEXT
from legato.errors import DataError, FolderError, LegatoError, is_panic, reason_of
from legato.folders.atomic import OLD
from legato.folders.finding import find_model
from legato.folders.steady import identity
from legato.input_files import path_of
from legato.inspect.decoding_tree import decoding_tree
from legato.inspect.report.build import report_of
from legato.inspect.report.page import Kept, Report, studio_page
from legato.inspect.report.run_view import about_run, read_rows, run_of
from legato.inspect.report.trace_views import map_view
from legato.loading import load
from legato.model import Model
from legato.registry import TASKS
from legato.schema import TypedDict, parse_json, with_config
from legato.serving.app import Refusal, json_response
from legato.tasks.encoder_decoder import beam_options

MAX_TEXT: Final = 8000  # characters of what is read, or written
MAX_BODY: Final = 1 << 18  # bytes of a request
MAX_LAYERS: Final = 1000
MAX_WAITING: Final = 8  # inspections that wait for their turn
REPORTS: Final = 6  # that are kept, the last ones asked for

POLICY: Final = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]+)">')

Layer = Annotated[int, Field(ge=0, le=100_000)]


@with_config(ConfigDict(extra="forbid"))
class Question(TypedDict, total=False):
    """What a page asks to be looked at."""

    text: Required[str]
    written: str | None  # what a model that writes reads back, in place of what it would write
    prefix: str | None  # what that begins with
    layers: Annotated[list[Layer], Field(max_length=MAX_LAYERS)] | None  # left out: all


class Studio:
    """A model, or a run that may have saved none yet, and the last reports of it."""

    def __init__(
        self, place: str | Path, device: str = "auto", *, task: str | None = None, given: str | None = None
    ) -> None:
        """`given` is what somebody named on the command line: of files, the only one that a page may ask for."""
        self.run = run_of(place)
        if self.run is not None:  # where it lies, so that the hub is not asked for one that is gone
            place = path_of(place, error=FolderError).absolute()
        self.place, self.device, self.task, self.given = place, device, task, given
        self._model: Model | None = None
        self._version: tuple[int, ...] | None = None  # of the folder that it was read from
        self._loading = threading.Lock()
        self._reports: OrderedDict[str, Report] = OrderedDict()
        self._keeping = threading.Lock()

    def model(self) -> Model | None:
        """The model; of a run the one that it saved last, None while it has saved none."""
        with self._loading:
            if self.run is None:
                self._model = self._model or self._load()
                return self._model
            try:
                version = identity(find_model(self.place))
            except FolderError:
                if self._model is None and _saved_model(self.run):
                    raise
                return self._model  # none yet, or it is just being exchanged
            if self._model is None or version != self._version:
                self._model, self._version = self._load(), version
            return self._model

    def _load(self) -> Model:
        return load(self.place, self.device).for_task(self.task)

    def about(self) -> dict[str, Any]:
        """What the page has to know before it asks for anything."""
        model = self._model or self.model()
        told: dict[str, Any] = {"model": None, "reads": [], "writes": None, "given": self.given, "most": MAX_TEXT}
        told |= {"run": None if self.run is None else about_run(self.run), "map": None}
        if model is not None:
            module = model.module
            told |= {"reads": _reads(model), "writes": _writes(model), "map": map_view(model.loaded)}
            told["model"] = {"name": module.config.name, "task": model.task, "folder": str(model.folder)}
            told["model"]["parameters"] = sum(parameter.numel() for parameter in module.parameters())
        return told

    def inspect(self, question: Question) -> dict[str, Any]:
        """The JSON of a new report, and the id by which its arrays are asked for."""
        try:
            number, report = self._inspect(question)
        except BaseException as problem:
            if is_panic(problem):  # which is no Exception
                raise LegatoError(reason_of(problem) or "") from None
            raise
        return {"id": number, **report.told()}

    def _inspect(self, question: Question) -> tuple[str, Report]:
        text, written, prefix = question["text"], question.get("written"), question.get("prefix")
        model = self.model()
        if model is None:
            raise Refusal(409, f"{self.run} has not saved a model yet; it does at its first validation")
        self._check(model, text, written, prefix)
        if prefix:
            text, written = _with_prefix(model, text, prefix)
        forced = prefix if prefix and written is not None else None  # a continuation has it in its text already
        report = report_of(model, text, written=written, prefix=forced, layers=question.get("layers"))
        report.trace = None  # which is larger than all that is drawn of it
        number = secrets.token_hex(8)
        with self._keeping:
            self._reports[number] = report
            while len(self._reports) > REPORTS:
                self._reports.popitem(last=False)
        return number, report

    def _check(self, model: Model, text: str, written: str | None, prefix: str | None) -> None:
        for name, value in (("text", text), ("written", written), ("prefix", prefix)):
            if value is not None and len(value) > MAX_TEXT:
                raise Refusal(413, f"{name} has {len(value):,} characters, and {MAX_TEXT:,} are read; shorten it")
        if written is not None and prefix:
            raise DataError("what is written is given whole, so it needs no prefix; leave out one of them")
        if (kinds := _reads(model)) != ["text"] and text != self.given:
            raise DataError(
                f"this model reads {' and '.join(kinds)}, and a page names no files; "
                "name what it is to read on the command line, before --serve"
            )

    def array(self, number: str, index: int) -> Kept:
        """One of a kept report's arrays."""
        with self._keeping:
            report = self._reports.get(number)
            if report is None:
                raise Refusal(404, "this report is no longer kept; look at the text again")
            self._reports.move_to_end(number)
        if not 0 <= index < len(report.arrays):
            raise Refusal(404, f"the report has no array {index}")
        return report.arrays[index]

    def rows(self, after: int, file: str) -> dict[str, Any]:
        if self.run is None:
            raise Refusal(404, f"{self.place} is no run")
        return asdict(read_rows(self.run, after, file))


def _saved_model(run: Path) -> bool:
    return any((run / f"{mark}{name}").exists() for name in ("best", "last") for mark in ("", OLD))


def _with_prefix(model: Model, text: str, prefix: str) -> tuple[str, str | None]:
    """What is read, and written, where writing is made to begin with a prefix: a text is continued from behind it."""
    kind = _writes(model)
    if kind is None:
        raise DataError(f"{model.folder} writes nothing; leave out the prefix")
    if kind == "continuation":
        if _reads(model) != ["text"]:  # behind the name of a file, it would name another
            raise DataError("a prefix is for models that read text alone; leave it out")
        return text + prefix, None
    width = beam_options(model.about).width
    tree = decoding_tree(model, text, width=width, candidates=0, prefix=prefix)
    return text, tree.hypotheses[0].text


def _reads(model: Model) -> list[str]:
    return ["text" if kind == TEXT else kind for kind in TASKS.get(model.task).processors]


def _writes(model: Model) -> str | None:
    """`text` of what it reads, its `continuation`, or nothing."""
    module = model.module
    if module.is_encoder_decoder:
        return "text"
    return "continuation" if module.can_generate and module.has_readout else None


def studio_routes(studio: Studio) -> APIRouter:
    """The routes of one studio."""
    routes = APIRouter()
    page = studio_page()
    policy = POLICY.search(page)
    assert policy is not None, "the page has no policy"
    headers = {"content-security-policy": f"{policy[1]}; frame-ancestors 'none'"}
    turn, waiting = asyncio.Lock(), 0

    @routes.get("/")
    def show_page() -> Response:
        return HTMLResponse(page, headers=headers)

    @routes.get("/api/studio")
    def tell_about() -> Response:
        return json_response(studio.about())

    @routes.post("/api/inspect")
    async def inspect(request: Request) -> Response:
        nonlocal waiting
        question = parse_json(await _body(request), Question, "the request", error=DataError)
        if waiting >= MAX_WAITING:
            raise Refusal(429, f"{waiting} others wait to be looked at; try again when they are done")
        waiting += 1
        try:
            async with turn:
                if await request.is_disconnected():  # reloaded meanwhile, say
                    raise Refusal(408, "nobody waits for this any longer")
                return await run_in_threadpool(lambda: json_response(studio.inspect(question)))
        finally:
            waiting -= 1

    @routes.get("/api/reports/{number}/arrays/{index}")
    def give_array(number: str, index: int) -> Response:
        return Response(studio.array(number, index).blob, media_type="application/octet-stream")

    @routes.get("/api/run")
    def give_rows(after: Annotated[int, Query(ge=0)] = 0, file: str = "") -> Response:
        return json_response(studio.rows(after, file))

    return routes


async def _body(request: Request) -> bytes:
    """A request's body, if it is no larger than such a request can be."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY:
            raise Refusal(413, f"the request has more than {MAX_BODY:,} bytes")
        parts.append(part)
    return b"".join(parts)
