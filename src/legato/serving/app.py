"""The application that everything served is mounted on, and the guard before it.

    app = make_app(8765)
    app.include_router(studio_routes(studio))

Any page that a browser shows can make it ask a server on this machine. So only requests that name this server are
answered: a `Host` of this machine with the server's port (a foreign name that leads here is refused: DNS rebinding),
and an `Origin`, where there is one, that is the server's own. Nothing allows another origin to read an answer.

Whatever goes wrong is one line of JSON, {"error": …}: 4xx for what was asked, 5xx for a fault of ours.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from h11 import LocalProtocolError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from legato.errors import LegatoError, brief, reason_of
from legato.schema import to_json
from legato.serving.transport.log import writer

NAMES: Final = ("localhost", "127.0.0.1", "[::1]")  # of this machine, as its own browser calls it
HEADERS: Final[Mapping[str, str]] = {  # where a route sets none of its own
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
}


class Refusal(LegatoError):
    """A request that is not answered: the HTTP status that says so, the field that is wrong, OpenAI's word for it."""

    def __init__(self, status: int, message: str, field: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.field, self.code = status, field, code


def make_app(port: int) -> FastAPI:
    """An application with no routes, for a server that listens on `port` of this machine alone."""
    app = FastAPI(title="Legato", openapi_url=None, docs_url=None, redoc_url=None)
    app.add_exception_handler(LegatoError, _refused)
    app.add_exception_handler(HTTPException, _no_route)
    app.add_exception_handler(RequestValidationError, _misread)
    app.add_middleware(Guard, hosts=local_hosts(port))
    return app


def server_config(app: FastAPI, http: Any, **more: Any) -> uvicorn.Config:
    """How uvicorn serves an application: `http` is the connections' protocol, and logs are ours."""
    return uvicorn.Config(
        app,
        http=http,
        loop="asyncio",  # not uvloop, which other packages bring
        log_config=None,
        log_level="critical",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        **more,
    )


def json_response(value: Any, status: int = 200) -> Response:
    """JSON that every browser reads: numbers that are not finite are null."""
    return Response(to_json(value), status, media_type="application/json")


def error_response(status: int, line: str) -> Response:
    return json_response({"error": line}, status)


def request_id(headers: Headers) -> str:
    """What a request is called in the log: as its client calls it, where that is a plain word."""
    given = headers.get("x-request-id", "")[:64]
    return given if given.isascii() and given.replace("-", "").isalnum() else secrets.token_hex(8)


def without_place(line: str, place: str, name: str) -> str:
    """A message in which a place goes by its name; a bare word, which says of no place, is left as it is.

    >>> without_place("/a/b knows no tools, /a/bc does", "/a/b", "chat")
    'chat knows no tools, /a/bc does'
    """
    if "/" not in place:
        return line
    return re.sub(rf"(?<![\w./-]){re.escape(place)}(?![\w-])", lambda _: name, line)


def local_hosts(port: int) -> frozenset[str]:
    """What a client on this machine calls a server on `port`."""
    named = frozenset(f"{name}:{port}" for name in NAMES)
    return named | frozenset(NAMES) if port == 80 else named  # which browsers leave out


class Guard:
    """Refuses who does not name this server, adds the headers, and lets no exception out.

    `hosts` are its names, None: any will do, for a server that others may ask. `origins` are pages of others that may
    ask it, too; they may not read answers by that alone.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: frozenset[str] | None,
        origins: frozenset[str] = frozenset(),
        error: Callable[[int, str], Response] = error_response,
    ) -> None:
        self.app, self.hosts, self.origins, self.error = app, hosts, origins, error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # there is nothing else here
            return await self.app(scope, receive, send)
        begun, given = False, Headers(scope=scope)
        ambiguous = "content-length" in given and "transfer-encoding" in given

        async def answer(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if ambiguous:  # where the next request begins, a proxy before this may see otherwise
                    headers["connection"] = "close"
            with suppress(LocalProtocolError):  # the request broke off, and nobody reads an answer
                await send(message)

        refusal = self.refusal(given)
        if refusal is not None:
            return await self.error(403, refusal)(scope, receive, answer)
        if ambiguous:  # RFC 9112, 6.3: it ought to be handled as an error
            line = "the request has both Content-Length and Transfer-Encoding; send one of them"
            return await self.error(400, line)(scope, receive, answer)
        try:
            await self.app(scope, receive, answer)
        except Exception as problem:
            if begun:
                raise
            await self._explained(problem)(scope, receive, answer)

    def refusal(self, headers: Headers) -> str | None:
        """Why a request with these headers is not answered; None: it is."""
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or (self.hosts is not None and hosts[0].lower() not in self.hosts):
            return f"this server answers to {' and '.join(sorted(self.hosts or ()))} only"
        own = {f"http://{hosts[0].lower()}", *self.origins}
        if origins and (len(origins) != 1 or origins[0].lower() not in own):
            return "this server answers its own pages only"
        return None

    def _explained(self, problem: Exception) -> Response:
        reason = reason_of(problem)
        if reason is not None:
            return self.error(400, reason)
        line = f"this is a fault of ours: {type(problem).__name__}: {brief(problem, 300)}"
        writer().say(f"legato: {line}")
        return self.error(500, line)


async def _refused(request: Request, problem: Exception) -> Response:
    return error_response(problem.status if isinstance(problem, Refusal) else 400, str(problem))


async def _no_route(request: Request, problem: Exception) -> Response:
    status = problem.status_code if isinstance(problem, HTTPException) else 500
    said = {404: f"there is nothing at {brief(request.url.path)}", 405: f"{request.method} is not for this address"}
    return error_response(status, said.get(status, brief(problem, 200)))


async def _misread(request: Request, problem: Exception) -> Response:
    """What of the address does not fit: its first mistake."""
    assert isinstance(problem, RequestValidationError)
    first = problem.errors()[0]
    return error_response(400, f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg']}")
