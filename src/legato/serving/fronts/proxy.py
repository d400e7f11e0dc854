"""Requests that a front passes on as they are, to the process that holds the models, and the answers to them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

import h11
from starlette.types import Message, Receive, Scope, Send

from legato.serving.api import error_of

PART: Final = 1 << 16  # bytes that are read at once
HOP: Final = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade", b"expect"))
DROPPED: Final = HOP | {b"transfer-encoding", b"date"}  # of an answer: what this process says itself


class Proxy:
    """An ASGI application that another one answers for, behind a Unix socket."""

    def __init__(self, path: str) -> None:
        self.path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            reader, writer = await asyncio.open_unix_connection(self.path)
        except OSError:
            await error_of(503, "the server is stopping")(scope, receive, send)
            return
        connection = h11.Connection(h11.CLIENT)
        request = asyncio.ensure_future(_send_request(scope, receive, connection, writer))
        answer = asyncio.ensure_future(_pass_answer(reader, connection, send))
        try:
            # The request's end is the client's departure, by which the answer is given up.
            await asyncio.wait([request, answer], return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                answer.result()
        finally:
            for each in (request, answer):
                each.cancel()
            with suppress(OSError):
                writer.close()


async def _send_request(
    scope: Scope, receive: Receive, connection: h11.Connection, writer: asyncio.StreamWriter
) -> None:
    """Send a request; ends when its client has gone."""
    target = scope.get("raw_path") or scope["path"].encode()
    if scope["query_string"]:
        target += b"?" + scope["query_string"]
    headers = [(name, value) for name, value in scope["headers"] if name.lower() not in HOP]
    first = h11.Request(method=scope["method"], target=target, headers=[*headers, (b"connection", b"close")])

    def write(event: Any) -> None:
        if connection.our_state in (h11.IDLE, h11.SEND_BODY):  # the answer may be there before the body is
            writer.write(connection.send(event) or b"")

    write(first)
    while (message := await receive())["type"] != "http.disconnect":
        if body := message.get("body", b""):
            write(h11.Data(data=body))
        if not message.get("more_body", False):
            write(h11.EndOfMessage())
        with suppress(OSError):
            await writer.drain()


async def _pass_answer(reader: asyncio.StreamReader, connection: h11.Connection, send: Send) -> None:
    """Pass an answer on to its end."""
    begun = False
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(PART))
            continue
        if isinstance(event, h11.Response):
            begun = True
            headers = [(name, value) for name, value in event.headers if name not in DROPPED]
            await send({"type": "http.response.start", "status": event.status_code, "headers": headers})
        elif isinstance(event, h11.Data):
            part: Message = {"type": "http.response.body", "body": bytes(event.data), "more_body": True}
            await send(part)
        elif isinstance(event, h11.EndOfMessage):
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        elif isinstance(event, h11.ConnectionClosed):
            if not begun:
                raise ConnectionError("the process that holds the models has closed the connection")
            return
