"""A server of models: its socket, its signals and its end."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from fastapi import FastAPI

from legato.errors import ConfigError, LegatoError
from legato.serving.api import BODY, ApiOptions, Metrics, make_api
from legato.serving.app import local_hosts, server_config
from legato.serving.indexes import ServedIndexes
from legato.serving.models import ServedModels
from legato.serving.transport.connections import connection_class
from legato.serving.transport.log import writer

if TYPE_CHECKING:  # which import this
    from legato.serving.fronts.fronts import Fronts

Protocol: Final = connection_class()
LOCAL: Final = ("127.0.0.1", "localhost", "::1")
KEY: Final = re.compile(r"[!-~](?:[ -~]*[!-~])?")  # that every client sends alike in a header
SWITCH: Final = 0.0005  # seconds after which threads of Python take turns: those that write texts and that send them
DRAIN: Final = 30  # seconds that texts being written have when the server is to stop
ENDING: Final = 5  # seconds that all else has then, before the process ends in the middle of it

_giving_up = threading.Lock()


@dataclass(frozen=True)
class ServerOptions:
    """Where a server listens, who may ask it, and what it writes down."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0 takes a free one
    keys: tuple[str, ...] = ()
    origins: frozenset[str] = frozenset()
    body: int = BODY
    log: bool = True
    check: bool = False  # nothing is answered: it stops once everything is ready
    fronts: int | None = None  # processes that take HTTP; None: as many as fit the models

    def __post_init__(self) -> None:
        for number, key in enumerate(self.keys, start=1):
            if not KEY.fullmatch(key):
                which = "" if len(self.keys) == 1 else f" {number}"
                raise ConfigError(
                    f"the API key{which} holds what no client can send in a header (characters beyond ASCII, control "
                    "characters, spaces at its ends); choose one of letters and digits"
                )

    def guards(self, port: int) -> ApiOptions:
        """How the API behind the port that was taken is guarded."""
        hosts = local_hosts(port) if self.host in LOCAL else None
        log = writer() if self.log else lambda entry: None
        return ApiOptions(self.keys, hosts, self.origins, self.body, log)

    def address(self, port: int) -> str:
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{shown}:{port}/v1"

    def announce(self, say: Callable[[str], None], names: Iterable[str], address: str) -> None:
        """Say what is served and where; also who may ask, where that is everybody."""
        with suppress(OSError):  # a full disk behind standard error is no reason not to serve
            say(f"serving {', '.join(names)} at {address} (Ctrl-C stops it)")
            if self.host not in LOCAL and not self.keys:
                say("legato: note: other machines may ask, and nobody needs a key; --api-key asks for one")


def serve(models: ServedModels, indexes: ServedIndexes, options: ServerOptions, say: Callable[[str], None]) -> None:
    """Answer until SIGTERM or Ctrl-C; then what was asked for is written, and nothing more is taken in."""
    from legato.serving.fronts.fronts import Fronts, front_count

    count = front_count(options.fronts, models)
    opened = listen(options.host, options.port)
    for served in models:
        served.warm_up()
    port = opened.getsockname()[1]
    names = [*(served.name for served in models), *(f"index {name}" for name in indexes)]
    if options.check:
        opened.close()
        say(f"{', '.join(names)} would be served at {options.address(port)}")
        return
    announce = partial(options.announce, say, names, options.address(port))
    guards, metrics = options.guards(port), Metrics(models)
    fronts = None
    if count:
        opened.close()
        sockets = [listen(options.host, port, shared=True) for _ in range(count)]
        fronts = Fronts(models, metrics, sockets, guards, options.log, SWITCH)
        opened = fronts.open()
    else:
        announce()
    with ending(DRAIN + ENDING) as stop:
        try:
            run(make_api(models, guards, indexes, metrics), opened, stop, fronts, announce)
        finally:  # what was asked for is written, or its time is over
            if fronts is not None:
                fronts.close()
            until = time.monotonic() + ENDING
            ended = [models.close(drain=False, until=until), indexes.close(until)]
            if not all(ended):
                give_up()
    end_log("the server has stopped")


@contextmanager
def ending(seconds: float) -> Iterator[threading.Event]:
    """An event that says that the server is to stop: so many seconds later the process ends, whatever it is doing.

    A thread that computes cannot be interrupted, and the end of the interpreter waits for some of them.
    """
    stop, ended = threading.Event(), threading.Event()

    def watch() -> None:
        stop.wait()
        if not ended.wait(seconds):
            give_up()

    threading.Thread(target=watch, name="legato-end", daemon=True).start()
    try:
        yield stop
    finally:
        ended.set()
        stop.set()


def give_up() -> None:
    """End the process in the middle of what it computes; a second thread that would waits for that."""
    _giving_up.acquire()  # for ever
    end_log("legato: the server has stopped in the middle of what it computed, which took too long")
    os._exit(1)


def end_log(line: str) -> None:
    """The last line; by the log's thread, since nobody may read on."""
    lines = writer()
    lines.say(line)
    lines.close()


def allow_files() -> None:
    """As many connections as the system lets this process have: often it begins with fewer."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def run(
    app: FastAPI,
    opened: socket.socket,
    stop: threading.Event | None = None,
    fronts: Fronts | None = None,
    announce: Callable[[], None] = lambda: None,
) -> None:
    """Answer until a signal comes, which sets `stop`; with fronts `announce` is called once they are ready."""
    allow_files()
    sys.setswitchinterval(SWITCH)
    server = _Server(server_config(app, Protocol, timeout_graceful_shutdown=DRAIN))
    server.app, server.stop, server.fronts, server.announce = app, stop, fronts, announce
    try:
        server.run(sockets=[opened])
    finally:
        opened.close()


class GracefulServer(uvicorn.Server):
    """Says that it is not ready once it is to stop, and then ends by itself: uvicorn's would end by the signal."""

    app: Any = None
    stop: threading.Event | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # which alone hears of signals
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.app.state.ready = False
        if self.stop is not None:
            self.stop.set()
        super().handle_exit(sig, frame)


class _Server(GracefulServer):
    """Starts its fronts, and outlives them."""

    fronts: Fronts | None = None
    announce: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.fronts is not None:
            await self.fronts.start(self.announce)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.fronts is not None:
            await self.fronts.stop(DRAIN)
        await super().shutdown(sockets)


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A socket at an address, or a line that says why there is none; several that are `shared` may be at one."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as problem:
        raise LegatoError(f"there is no address '{host}' here: {getattr(problem, 'strerror', problem)}") from None
    family, kind, protocol, _, address = found[0]
    opened = socket.socket(
        family, kind, protocol
    )  # which has to be told: asyncio turns Nagle's delay off for TCP alone
    try:
        if sys.platform != "win32":
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        opened.bind(address)
        opened.listen(1024)
    except OSError as problem:
        opened.close()
        why = "is in use" if problem.errno == errno.EADDRINUSE else f"cannot be opened: {problem.strerror}"
        raise LegatoError(f"port {port} of {host} {why}; name another with --port") from None
    return opened
