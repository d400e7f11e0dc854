"""`legato serve`: the API of models, with its limits, its keys, its metrics and its log.

Errors are OpenAI's, {"error": {"message": …, "type": …}}: one line that says what is wrong. Texts are in no log.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from legato.errors import LONGEST, LegatoError, brief, is_panic, reason_of
from legato.memory import trim
from legato.serving.app import Guard, Refusal, json_response, request_id
from legato.serving.audio_routes import audio_routes
from legato.serving.indexes import ServedIndexes, search_routes
from legato.serving.models import ServedModels
from legato.serving.openai_routes import openai_routes
from legato.serving.page.route import page_route
from legato.serving.predict_routes import predict_routes
from legato.serving.scheduler import DeadlineExceeded, QueueFull, as_exception
from legato.serving.transport.log import writer

OPEN: Final = ("/", "/health", "/ready")  # to everybody, keys or not
BODY: Final = 8 << 20  # bytes
LARGE_BODY: Final = 1 << 20  # bytes from which on what a request has taken is given back to the system at its end
# Of the words that say where in a body something is, pydantic's own names of kinds are left out.
FIELD: Final = re.compile(r"(?!(?:str|int|float|bool|list|dict|text|texts|tokens)$)[a-z_][a-z0-9_]*(?:\[\])?")


@dataclass
class ApiOptions:
    """How a server is guarded."""

    keys: tuple[str, ...] = ()  # one of which a client has to send; none: nobody needs one
    hosts: frozenset[str] | None = None  # by which it may be called; None: any
    origins: frozenset[str] = frozenset()  # pages of others that may ask it
    body: int = BODY
    log: Callable[[dict[str, Any]], None] = field(default=lambda entry: None)


class Metrics:
    """The numbers of /metrics."""

    def __init__(self, models: ServedModels) -> None:
        self.models, self.registry = models, CollectorRegistry()
        self.requests = Counter("legato_requests_total", "Requests", ["route", "status"], registry=self.registry)
        self.seconds = Histogram(
            "legato_request_seconds", "Until an answer is complete", ["route"], registry=self.registry
        )
        self.writing = Gauge("legato_texts_writing", "Texts being written", ["model"], registry=self.registry)
        self.waiting = Gauge("legato_texts_waiting", "Texts that wait", ["model"], registry=self.registry)

    def text(self) -> bytes:
        for served in self.models:
            writing, waiting = served.load()
            self.writing.labels(served.name).set(writing)
            self.waiting.labels(served.name).set(waiting)
        return bytes(generate_latest(self.registry))

    def count(self, route: str, status: int, seconds: float) -> None:
        """A request has been answered."""
        self.requests.labels(route, status).inc()
        self.seconds.labels(route).observe(seconds)

    async def shown(self) -> bytes:
        """What /metrics answers."""
        return await asyncio.to_thread(self.text)


def make_api(
    models: ServedModels,
    options: ApiOptions,
    indexes: ServedIndexes | None = None,
    metrics: Metrics | None = None,
) -> FastAPI:
    """The application; `metrics` are its own unless somebody gathers those of several."""
    app = FastAPI(title="Legato", docs_url=None, redoc_url=None, openapi_url="/openapi.json")
    metrics, indexes = metrics or Metrics(models), indexes or ServedIndexes()
    app.state.ready = True

    @app.get("/health")
    async def health() -> Response:
        return json_response({"status": "ok"})

    @app.get("/ready")
    async def ready() -> Response:
        stopped = [*models.broken, *indexes.broken]
        if stopped:
            return json_response({"ready": False, "stopped": stopped}, 503)
        return json_response({"ready": app.state.ready}, 200 if app.state.ready else 503)

    @app.get("/metrics")
    async def show_metrics() -> Response:
        return Response(await metrics.shown(), media_type=CONTENT_TYPE_LATEST)

    app.include_router(page_route())
    app.include_router(openai_routes(models, indexes))
    app.include_router(search_routes(indexes))
    app.include_router(predict_routes(models))
    app.include_router(audio_routes(models))

    async def respond(request: Request, problem: Exception) -> Response:
        if isinstance(problem, HTTPException) and problem.status_code in (404, 405):
            asked = f"{brief(request.method, 20)} {brief(request.url.path)}"
            problem = HTTPException(problem.status_code, f"there is no {asked} here; there is {_routes_of(app)}")
        return response_to(problem, models)

    guard(app, respond, options, metrics)
    app.add_middleware(Guard, hosts=options.hosts, origins=options.origins, error=error_of)
    return app


def guard(app: FastAPI, respond: Any, options: ApiOptions, metrics: Metrics) -> None:
    """Let `respond` answer whatever goes wrong, and check, count and log what comes."""
    for kind in (LegatoError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, respond)
    app.add_middleware(RequestMiddleware, options=options, metrics=metrics)


def _routes_of(app: FastAPI) -> str:
    """The routes of an application, for whoever asks for another one.

    >>> app = FastAPI()
    >>> _ = app.get("/health")(lambda: None)
    >>> _routes_of(app)
    'GET /health'
    """
    paths = app.openapi()["paths"]  # which FastAPI makes once
    return ", ".join(f"{method.upper()} {path}" for path, methods in paths.items() for method in methods)


class RequestMiddleware:
    """Checks the key and the size of a body, counts, and writes the log; no exception gets out."""

    def __init__(self, app: ASGIApp, options: ApiOptions, metrics: Metrics) -> None:
        self.app, self.options, self.metrics = app, options, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers, begun, status, taken = Headers(scope=scope), time.perf_counter(), 0, 0
        number = request_id(headers)

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = number
            await send(message)

        async def body() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self.options.body:
                raise Refusal(413, f"the body has more than {self.options.body:,} bytes")
            return message

        try:
            self._check(scope, headers)
            await self.app(scope, body, answer)
        except BaseException as problem:
            if status or not (isinstance(problem, Exception) or is_panic(problem)):  # an answer has begun
                if isinstance(problem, asyncio.CancelledError) and not status:
                    status = 499  # as Ray's proxy does where the client has gone
                    if not scope["app"].state.ready:  # its time is over
                        with suppress(Exception):
                            await error_of(503, "the server is stopping")(scope, receive, answer)
                raise
            await response_to(as_exception(problem), self.metrics.models)(scope, receive, answer)
        finally:
            if taken > LARGE_BODY:
                asyncio.get_running_loop().run_in_executor(None, trim)
            seconds = time.perf_counter() - begun
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.count(route, status, seconds)
            self.options.log(
                {
                    "id": number,
                    "method": scope["method"],
                    "route": route,
                    "status": status,
                    "seconds": round(seconds, 4),
                }
            )

    def _check(self, scope: Scope, headers: Headers) -> None:
        if self.options.keys and scope["path"] not in OPEN:
            scheme, _, credentials = headers.get("authorization", "").partition(" ")
            given = credentials.strip().encode() if scheme.lower() == "bearer" else b""
            right = [hmac.compare_digest(given, key.encode()) for key in self.options.keys]  # all, in any case
            if not any(right):
                raise Refusal(401, "the key is not one of this server's; send it as Authorization: Bearer KEY")
        size = headers.get("content-length", "0")
        if size.isdigit() and int(size) > self.options.body:
            raise Refusal(413, f"the body has {int(size):,} bytes; {self.options.body:,} are read")


def response_to(problem: Exception, models: ServedModels) -> Response:
    """What went wrong, with the status that says whose fault it is."""
    status, extra, line, field, code = 500, {}, None, None, None
    if isinstance(problem, HTTPException) and isinstance(problem.__cause__, Refusal | RecursionError):
        problem = problem.__cause__  # FastAPI's word for whatever happens while a body is read
    match problem:
        case QueueFull():
            status, extra, line = 429, {"retry-after": str(problem.seconds)}, str(problem)
        case DeadlineExceeded():
            status, line = 504, str(problem)
        case Refusal():
            status, line, field, code = problem.status, str(problem), problem.field, problem.code
        case RequestValidationError():
            status, (line, field) = 400, _first_mistake(problem)
        case HTTPException():
            status, line = problem.status_code, brief(problem.detail, LONGEST)
        case LegatoError():
            status, line = 400, str(problem)
        case RecursionError():
            status, line = 400, "the body is nested too deeply"
        case ClientDisconnect():
            status, line = 499, "the request broke off"  # for the log: nobody reads this
        case _:
            reason = reason_of(problem)
            if reason is not None:
                status, line = 400, reason
    if line is None:
        line = f"this is a fault of ours: {type(problem).__name__}"
        writer().say(f"legato: {line}: {brief(problem, 300)}")
    answer = error_of(status, models.without_places(line), field, code)
    answer.headers.update(extra)
    return answer


def error_of(status: int, line: str, field: str | None = None, code: str | None = None) -> Response:
    """An error as OpenAI's clients read it; `field` is that of the body which is wrong."""
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return json_response({"error": {"message": line, "type": kind, "param": field, "code": code}}, status)


def _first_mistake(problem: RequestValidationError) -> tuple[str, str | None]:
    """What is wrong first, and in which field."""
    first = problem.errors()[0]
    if first["type"] == "json_invalid":
        return "the body is no JSON", None
    parts = [str(part) for part in first["loc"][1:] if isinstance(part, int) or FIELD.fullmatch(part)]
    if not parts:
        if first["loc"] == ("body",):
            return "the body has to be a JSON object, sent with 'content-type: application/json'", None
        return str(first["msg"]), None
    place = ".".join(parts)
    return f"{place}: {str(first['msg']).removeprefix('Value error, ')}", place
