"""A front: `python -m legato.serving.fronts.front CHANNEL SOCKET`, which `fronts.py` starts with two open sockets."""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from legato.serving.api import ApiOptions, error_of, guard, response_to
from legato.serving.app import Guard, server_config
from legato.serving.fronts.channel import LENGTH, Channel
from legato.serving.fronts.front_models import Engines, front_models
from legato.serving.fronts.fronts import FrontSettings
from legato.serving.fronts.proxy import Proxy
from legato.serving.indexes import ServedIndexes
from legato.serving.models import ServedModels
from legato.serving.openai_routes import add_text_routes
from legato.serving.server import DRAIN, GracefulServer, Protocol, allow_files
from legato.serving.transport.bodies import BoundedRoute
from legato.serving.transport.log import writer

OWN: Final = ("/v1/chat/completions", "/v1/completions")
# What a chat with pictures or from an index has in its body; a name that is spelt in escapes may be either.
OTHERS: Final = re.compile(rb'"(?:index|image_url)"|\\u00[2-7]')


@dataclass(frozen=True)
class FrontMetrics:
    """What a front counts, the process with the models counts for it."""

    models: ServedModels
    count: Callable[[str, int, float], None]


class Dispatcher:
    """Gives a request to this process, or passes it on."""

    def __init__(self, own: Any, proxy: Proxy, body: int) -> None:
        self.own, self.proxy, self.body = own, proxy, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] != "POST" or scope["path"] not in OWN:
            await self.proxy(scope, receive, send)
            return
        messages, body = await self._read(scope, receive)
        passes_on = OTHERS.search(body) is not None
        messages.reverse()

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        await (self.proxy if passes_on else self.own)(scope, replay, send)

    async def _read(self, scope: Scope, receive: Receive) -> tuple[list[Message], bytes]:
        """A body, or the beginning of one that is too long."""
        size = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        messages: list[Message] = []
        taken = 0
        while not size.isdigit() or int(size) <= self.body:
            messages.append(message := await receive())
            taken += len(message.get("body", b""))
            if not message.get("more_body", False) or taken > self.body:
                break
        return messages, b"".join([message.get("body", b"") for message in messages])


def front_api(settings: FrontSettings, engines: Engines) -> tuple[FastAPI, Any]:
    """The application of a front, and what stands before it."""
    app = FastAPI(title="Legato", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.ready = True
    models = front_models(settings.models, engines)
    router = APIRouter(prefix="/v1", route_class=BoundedRoute)
    add_text_routes(router, models, ServedIndexes())
    app.include_router(router)

    async def respond(request: Request, problem: Exception) -> Response:
        return response_to(problem, models)

    options = ApiOptions(settings.keys, settings.hosts, settings.origins, settings.body)
    if settings.log:
        options.log = writer()
    metrics: Any = FrontMetrics(models, engines.count)
    guard(app, respond, options, metrics)
    dispatcher = Dispatcher(app, Proxy(settings.path), options.body)
    return app, Guard(dispatcher, options.hosts, options.origins, error_of)


class _FrontServer(GracefulServer):
    """Speaks with the process that holds the models, and does not outlive it."""

    channel: socket.socket
    settings: FrontSettings

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        channel = Channel(*await asyncio.open_connection(sock=self.channel))
        engines = Engines(channel)
        self.app, self.config.loaded_app = front_api(self.settings, engines)
        self._listening = asyncio.ensure_future(engines.listen())
        self._listening.add_done_callback(lambda task: None if task.cancelled() else os._exit(1))
        await super().startup(sockets)
        channel.send(("ready",))


def main(channel: int, opened: int) -> None:
    """Answer until the process that holds the models says that it is enough, or has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which a terminal sends to all
    spoken, listening = socket.socket(fileno=channel), socket.socket(fileno=opened)
    (length,) = LENGTH.unpack(_exactly(spoken, LENGTH.size))
    settings: FrontSettings = pickle.loads(_exactly(spoken, length))
    allow_files()
    sys.setswitchinterval(settings.switch_s)
    server = _FrontServer(server_config(FastAPI(), Protocol, timeout_graceful_shutdown=DRAIN))
    server.app, server.channel, server.settings = server.config.app, spoken, settings
    server.run(sockets=[listening])
    writer().close()
    os._exit(0)


def _exactly(opened: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = opened.recv(size - len(parts))
        if not part:
            os._exit(1)  # there is no server any longer
        parts += part
    return bytes(parts)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
