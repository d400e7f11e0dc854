"""Clients that go away: what they asked for is dropped as soon as the connection says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request

from legato.serving.app import Refusal

Gone = Callable[[], Awaitable[None]]
"""Ends when the client of a request has gone away."""


def departure(request: Request) -> Gone:
    """When the client of a request goes away, whose body has been read."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return gone


async def settled(answer: asyncio.Future[Any], gone: Gone, seconds: float | None = None) -> None:
    """Wait until there is an answer, or no more than some seconds; refused once the client has gone."""
    leaving = asyncio.ensure_future(gone())
    try:
        await asyncio.wait([answer, leaving], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done() and leaving.done():
            leaving.result()
            raise Refusal(499, "the client has gone")
    finally:
        leaving.cancel()
