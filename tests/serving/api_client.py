"""Models behind the API of `legato serve`, and what its tests ask of them."""

from __future__ import annotations

import base64
import io
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient
from PIL import Image

from legato.serving.api import ApiOptions, make_api
from legato.serving.app import local_hosts, server_config
from legato.serving.models import Served, ServedModels
from legato.serving.server import Protocol

PORT = 8000


def api_of(*served: Served, **options: Any) -> TestClient:
    app = make_api(ServedModels(list(served)), ApiOptions(hosts=local_hosts(PORT), **options))
    return TestClient(app, base_url=f"http://127.0.0.1:{PORT}", raise_server_exceptions=False)


@contextmanager
def listening(app: FastAPI, opened: socket.socket | None = None) -> Iterator[Any]:
    """A server in a thread of this process, for clients that come at the same time; its port, or its path."""
    with opened or socket.create_server(("127.0.0.1", 0)) as opened:
        running = uvicorn.Server(server_config(app, Protocol))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [opened]}, daemon=True)
        thread.start()
        while not running.started:
            time.sleep(0.01)
        yield opened.getsockname() if opened.family == socket.AF_UNIX else opened.getsockname()[1]
        running.should_exit = True
        thread.join(30)


def refusal_of(answer: Any, status: int) -> str:
    """The line that a request is refused with."""
    assert answer.status_code == status, answer.text
    line = answer.json()["error"]["message"]
    assert "\n" not in line
    assert "Traceback" not in answer.text
    return str(line)


def png(colour: tuple[int, int, int] = (220, 30, 30), side: int = 8) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(file, "PNG")
    return file.getvalue()


def coded(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def data_url(raw: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{coded(raw)}"
