"""A server on this machine: a port that is free, a browser that opens, an end by Ctrl-C."""

from __future__ import annotations

import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from typing import Final

import uvicorn
from fastapi import FastAPI

from legato.errors import LegatoError
from legato.serving.app import make_app, server_config
from legato.serving.studio import Studio, studio_routes

HOST: Final = "127.0.0.1"  # this machine alone
PORT: Final = 8765
TRIED: Final = 50  # ports, from the one that is asked for


def serve_studio(
    studio: Studio, say: Callable[[str], None], *, port: int = PORT, fragment: str = "", browser: bool = True
) -> None:
    """Serve a studio until Ctrl-C; `fragment` is what the address says of what is to be shown."""
    studio.about()  # a model that cannot be read is told before anything is opened
    opened = open_port(port)
    taken = opened.getsockname()[1]
    if taken != port:
        say(f"port {port} is in use; {taken} is taken instead")
    address = f"http://{HOST}:{taken}/{fragment}"
    app = make_app(taken)
    app.include_router(studio_routes(studio))
    say(f"the studio is at {address} (Ctrl-C stops it)")
    if browser:
        open_browser(address)
    run_server(app, opened)
    say("the studio has stopped")


def run_server(app: FastAPI, opened: socket.socket) -> None:
    """Answer on an open socket until somebody presses Ctrl-C."""
    try:
        uvicorn.Server(server_config(app, "h11")).run(sockets=[opened])
    except KeyboardInterrupt:  # which uvicorn passes on when it has ended
        pass
    finally:
        opened.close()


def open_port(port: int) -> socket.socket:
    """A socket that listens on this machine, at `port` or the next that is free."""
    problem: OSError | None = None
    for number in range(port, min(port + TRIED, 1 << 16)):
        opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            if os.name == "posix":  # a server that has just ended keeps its port for a while
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind((HOST, number))
            opened.listen(128)
            return opened
        except OSError as refused:  # in use, or not for this user
            problem = refused
            opened.close()
    why = problem.strerror if problem is not None else "there is none"
    raise LegatoError(f"no port from {port} on can be opened: {why}; name another with --port")


def open_browser(address: str) -> None:
    """Show an address; nothing where there is no screen, where a browser would take over the terminal."""
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
