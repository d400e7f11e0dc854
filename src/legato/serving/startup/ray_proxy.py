"""What stands before each request in Ray's proxy, which takes HTTP for the replicas.

Ray calls `middlewares` in the process of each of its proxies (ray_serve.py names it in their environment). What Ray
does otherwise than a server of ours is put right here: its pages of plain text are errors as OpenAI's clients read
them; a replica that dies leaves an error, before an answer or within a stream; a body comes within its size and in
time; an answer that nobody takes ends; and there is one request id, the one that the replica has in its log.

Keys, hosts and origins are the replicas' to check, so that no secret is in an environment.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from legato.schema import to_json
from legato.serving.app import HEADERS, Refusal, json_response, request_id
from legato.serving.transport.connections import READ, STALL
from legato.serving.transport.log import writer

BODY: Final = "LEGATO_RAY_BODY"  # bytes of a request; what starts the proxies sets it
LOG: Final = "LEGATO_RAY_LOG"  # whether what no replica can log is logged here
OURS: Final = "x-content-type-options"  # which an answer of a replica has, and none of Ray's own
RAYS: Final = (b"x-request-timeout", b"x-request-disconnect", b"x-serve-", b"x-session-id", b"serve_")  # by which a
# client would set how long Ray waits for it, and who answers it.
GONE: Final[Message] = {"type": "http.disconnect"}
DIED: Final = "the replica that this request was on has died; nothing was kept of it, ask again"
REFUSALS: Final = {  # what Ray's own answers mean
    404: Refusal(503, "the server is starting or stopping"),
    408: Refusal(504, "this took longer than the server waits"),
}


def middlewares() -> list[Middleware]:
    log: Callable[[dict[str, Any]], None] = writer() if os.environ.get(LOG) else lambda entry: None
    return [Middleware(ProxyMiddleware, body=int(os.environ[BODY]), log=log)]


class ProxyMiddleware:
    def __init__(
        self,
        app: ASGIApp,
        body: int,
        log: Callable[[dict[str, Any]], None] = lambda entry: None,
        read: float = READ,
        stall: float = STALL,
    ) -> None:
        self.app, self.body, self.log, self.read, self.stall = app, body, log, read, stall

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = [(name, value) for name, value in scope["headers"] if not name.lower().startswith(RAYS)]
        scope = {**scope, "headers": headers}
        number = request_id(Headers(scope=scope))
        MutableHeaders(scope=scope)["x-request-id"] = number  # so that Ray gives it none of its own
        exchange = Exchange(self, number, receive, send)
        if scope["path"].startswith("/-/"):  # Ray's own, which names what is served to everybody
            exchange.refusal = Refusal(404, "there is nothing at this address")
        else:
            with suppress(Exception):  # Ray's log has it, and the client hears of it below
                await self.app(scope, exchange.receive, exchange.send)
        refusal = await exchange.finish()
        if refusal is not None:
            self.log({"id": number, "method": scope["method"], "route": "other", "status": refusal.status})


class Exchange:
    """A request, as far as it has come, and its answer, as far as that has gone."""

    def __init__(self, options: ProxyMiddleware, number: str, receive: Receive, send: Send) -> None:
        self.options, self.number, self._receive, self._send = options, number, receive, send
        self._until = asyncio.get_running_loop().time() + options.read
        self._stalled = asyncio.get_running_loop().create_future()
        self._taken, self._whole = 0, False  # bytes of the body, and whether it is there
        self._begun = self._ended = self._streamed = False  # of a replica's answer
        self._foreign = 0  # the status of Ray's own
        self._gone = False  # the client
        self.refusal: Refusal | None = None

    async def receive(self) -> Message:
        """The next part of the body, then that the client has gone; that it has, too, where it is refused."""
        if self.refusal is not None:
            return GONE
        if self._whole:
            return await self._disconnected()
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            self.refusal = Refusal(408, "the request did not come in time")
            return GONE
        self._gone = message["type"] == "http.disconnect"
        self._taken += len(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        if self._taken > self.options.body:
            self.refusal = Refusal(413, f"the body has more than {self.options.body:,} bytes")
            return GONE
        return message

    async def _disconnected(self) -> Message:
        """Wait for the client to go, or to take nothing more for too long."""
        waiting = asyncio.ensure_future(self._receive())
        try:
            await asyncio.wait([waiting, self._stalled], return_when=asyncio.FIRST_COMPLETED)
            self._gone = waiting.done()
            return waiting.result() if waiting.done() else GONE
        finally:
            waiting.cancel()

    async def send(self, message: Message) -> None:
        """Pass a replica's answer on; one of Ray's own is kept back, and so is whatever nobody takes."""
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            if OURS not in headers:
                self._foreign = message["status"]
                return
            headers["x-request-id"] = self.number  # once: Ray adds it to the replica's
            self._begun, self._streamed = True, headers.get("content-type", "").startswith("text/event-stream")
        if self._foreign or self._stalled.done():
            return
        self._ended = message["type"] == "http.response.body" and not message.get("more_body", False)
        try:
            async with asyncio.timeout(self.options.stall):
                await self._send(message)
        except TimeoutError:
            self._stalled.set_result(None)  # so that Ray's proxy cancels it

    async def finish(self) -> Refusal | None:
        """Say what there is to say where no replica has, or not to its end; with it, what is wrong."""
        if self._ended or self._gone or self._stalled.done():
            return None
        refusal = self.refusal or REFUSALS.get(self._foreign) or Refusal(503, DIED)
        if not self._begun:
            answer = _answer(refusal)
            answer.headers["x-request-id"] = self.number
            await self._send(
                {"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers}
            )
            await self._send({"type": "http.response.body", "body": answer.body})
        elif self._streamed:
            await self._send({"type": "http.response.body", "body": f"data: {to_json(_error(refusal))}\n\n".encode()})
        return refusal  # any other answer that has begun breaks off, as its length says


def _error(refusal: Refusal) -> dict[str, Any]:
    kinds = {404: "not_found_error"}
    kind = kinds.get(refusal.status, "server_error" if refusal.status >= 500 else "invalid_request_error")
    return {"error": {"message": str(refusal), "type": kind, "param": None, "code": None}}


def _answer(refusal: Refusal) -> Response:
    answer = json_response(_error(refusal), refusal.status)
    for name, value in HEADERS.items():
        answer.headers.setdefault(name, value)
    if refusal.status == 503:
        answer.headers["retry-after"] = "1"
    return answer
