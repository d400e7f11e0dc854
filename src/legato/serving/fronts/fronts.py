"""Several processes that take HTTP for one that holds the models: parsing, templates and texts do not hold it up.

A front listens at the server's port, with the others (`SO_REUSEPORT`: Linux gives each a share of the connections).
What asks for texts it reads, checks and cuts into tokens itself; these go to this process over a socket of their own
(`channel.py`), and the tokens that the engine writes come back once a step. All else it passes on as it is, to this
process's own API behind a Unix socket (`proxy.py`). So each answer is as it would be without fronts.

A front that dies loses its connections, and another one takes its place. At the end the fronts end first.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from legato.errors import ConfigError
from legato.serving.api import ApiOptions, Metrics
from legato.serving.fronts.channel import Channel, packed, packed_event
from legato.serving.fronts.front_models import ServedFacts
from legato.serving.models import ServedModels
from legato.serving.scheduler import Event, Piece, as_exception
from legato.serving.texts.event_queue import running_mailbox
from legato.serving.transport.log import writer

MAX_FRONTS: Final = 4  # chosen by themselves
PROCESSORS: Final = 4  # of the machine, for each of these
RESTART_S: Final = 1.0  # before another one takes the place of a front that has died
END_S: Final = 2.0  # that a front has to end, beside what is still written


@dataclass(frozen=True)
class FrontSettings:
    """What a front is told first."""

    models: list[ServedFacts]
    keys: tuple[str, ...]
    hosts: frozenset[str] | None
    origins: frozenset[str]
    body: int
    log: bool
    path: str  # of the Unix socket
    switch_s: float


def front_count(requested: int | None, models: ServedModels) -> int:
    """How many fronts a server has; by itself it has some where the models run on CUDA."""
    others = [served.name for served in models if not _writes_texts(served)]
    if requested and (sys.platform != "linux" or others):
        why = f"'{others[0]}' does not" if others else "here several cannot share a port"
        raise ConfigError(f"--fronts is for models that continue texts, on Linux: {why}; leave it out")
    if requested is not None:
        return requested
    able = sys.platform == "linux" and not others and any(s.model.device.type == "cuda" for s in models)
    return min(MAX_FRONTS, (os.cpu_count() or 1) // PROCESSORS) if able else 0


def _writes_texts(served: Any) -> bool:
    return bool(served.model.generates and served.model.loaded.processors.has_text)


class FrontLink:
    """What this process does for one front."""

    def __init__(self, models: ServedModels, metrics: Metrics, ready: asyncio.Event) -> None:
        self._models, self._metrics, self._ready = models, metrics, ready
        self._running: dict[int, tuple[Any, Any]] = {}  # by its numbers: the model and the request
        self._outgoing: list[tuple[str, int, Any]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, opened: socket.socket, settings: bytes) -> None:
        """Do what it asks for, until it ends; first it hears its settings."""
        self._channel = Channel(*await asyncio.open_connection(sock=opened))
        self._mailbox = running_mailbox()
        self._channel.send_raw(settings)
        try:
            while (message := await self._channel.receive()) is not None:
                kind, *rest = message
                if kind == "submit":
                    task = asyncio.ensure_future(self._submit(*rest))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                elif kind == "cancel":
                    self._cancel(*rest)
                elif kind == "count":
                    self._metrics.count(*rest)
                else:
                    self._ready.set()
        finally:
            self._channel.close()
            for number in list(self._running):
                self._cancel(number)

    async def _submit(self, number: int, name: str, prompt: list[int], options: Any, how: dict[str, Any]) -> None:
        listener = partial(self._mailbox.post, self, number)
        how["group"] = (id(self), how["group"])
        served = self._models[name]
        self._running[number] = served, None
        try:
            request = await served.submit(prompt, options, listener, **how)
        except Exception as problem:
            self._running.pop(number, None)
            self._send("answer", number, packed(as_exception(problem)))
            return
        if number in self._running:
            self._running[number] = served, request
        else:  # while a schema was read it has ended, or its client has gone
            served.cancel(request)
        self._send("answer", number, None)

    def _cancel(self, number: int) -> None:
        served, request = self._running.pop(number, (None, None))
        if request is not None:
            served.cancel(request)

    def put(self, number: int, event: Event) -> None:
        """An event of the mailbox."""
        if not isinstance(event, Piece):
            self._running.pop(number, None)
        self._send("event", number, packed_event(event))

    def _send(self, kind: str, number: int, what: Any) -> None:
        """With all else that is to be sent in this turn of the loop."""
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append((kind, number, what))

    def _flush(self) -> None:
        self._channel.send(self._outgoing)
        self._outgoing = []


class Fronts:
    """The fronts of a server, from its start to its end."""

    def __init__(
        self,
        models: ServedModels,
        metrics: Metrics,
        sockets: list[socket.socket],
        options: ApiOptions,
        log: bool,
        switch_s: float,
    ) -> None:
        self._models, self._metrics, self._sockets = models, metrics, sockets
        self._folder = Path(tempfile.mkdtemp(prefix="legato-"))  # which this user alone may enter
        self.path = str(self._folder / "api")
        facts = [ServedFacts.of(served) for served in models]
        guards = (options.keys, options.hosts, options.origins, options.body)
        self._settings = pickle.dumps(FrontSettings(facts, *guards, log, self.path, switch_s))
        self._processes: dict[int, subprocess.Popen[bytes]] = {}  # by their places
        self._ready = [asyncio.Event() for _ in sockets]
        self._ending = False

    def open(self) -> socket.socket:
        """The socket of this process's own API."""
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        opened.bind(self.path)
        opened.listen(1024)
        return opened

    async def start(self, announce: Callable[[], None]) -> None:
        """Start them, and say so once all are ready."""
        self._loops = [asyncio.ensure_future(self._keep(place)) for place in range(len(self._sockets))]
        self._waiting = asyncio.ensure_future(self._announce(announce))

    async def _announce(self, announce: Callable[[], None]) -> None:
        for ready in self._ready:
            await ready.wait()
        announce()

    async def _keep(self, place: int) -> None:
        """Have a front at a socket, and another one where it dies."""
        ready = self._ready[place]
        while not self._ending:
            ours, theirs = socket.socketpair()
            numbers = (theirs.fileno(), self._sockets[place].fileno())
            command = [sys.executable, "-m", "legato.serving.fronts.front", *map(str, numbers)]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=numbers)
            self._processes[place] = process
            theirs.close()
            await FrontLink(self._models, self._metrics, ready).serve(ours, self._settings)
            await asyncio.to_thread(_end, process)
            if self._stopping():
                return
            if not ready.is_set():
                writer().say("legato: a front does not start; --fronts 0 serves without them")
                signal.raise_signal(signal.SIGTERM)
                return
            writer().say("legato: a front has ended; another one takes its place")
            await asyncio.sleep(RESTART_S)

    def _stopping(self) -> bool:
        return self._ending

    async def stop(self, seconds: float) -> None:
        """Let them take in nothing more, and end once what was asked for is answered."""
        self._ending = True
        self._waiting.cancel()
        for opened in self._sockets:
            opened.close()
        for process in self._processes.values():
            with suppress(OSError):
                process.send_signal(signal.SIGTERM)
        await asyncio.wait(self._loops, timeout=seconds + END_S)

    def close(self) -> None:
        for process in self._processes.values():
            with suppress(OSError):
                process.kill()
        for opened in self._sockets:
            opened.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process that has closed its channel."""
    until = time.monotonic() + END_S
    while process.poll() is None:
        if time.monotonic() > until:
            process.kill()
        time.sleep(0.02)
