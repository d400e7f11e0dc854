"""Whether Hugging Face's hub answers, seen before its libraries wait for it.

They ask again and again where it does not, for half a minute and more, before they look into their caches.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies

PATIENCE: Final = 3.0  # seconds in which the hub's computer takes a connection, its name looked up


def answers(endpoint: str) -> bool:
    """Whether something takes connections there; behind a proxy nobody can tell, and it is taken to."""
    if getproxies():
        return True
    place = urlsplit(endpoint)
    port = place.port or {"http": 80}.get(place.scheme, 443)
    connected = threading.Event()

    def connect() -> None:
        with suppress(OSError), socket.create_connection((place.hostname, port), PATIENCE):
            connected.set()

    looking = threading.Thread(target=connect, daemon=True)  # looking up a name has no time limit of its own
    looking.start()
    looking.join(PATIENCE)
    return connected.is_set()


@contextmanager
def offline_where_unreachable() -> Iterator[None]:
    """Inside, Hugging Face's libraries look into their caches alone where the hub does not answer."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or answers(constants.ENDPOINT):
        yield
        return
    switches: list[Any] = [constants]
    if "datasets" in sys.modules:  # it has a switch of its own
        switches.append(sys.modules["datasets"].config)
    for switch in switches:
        switch.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for switch in switches:
            switch.HF_HUB_OFFLINE = False
