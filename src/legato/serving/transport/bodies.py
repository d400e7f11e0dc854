"""Bodies that would keep everybody waiting: JSON of very many values, each looked at while nobody else is.

A picture or a long text is one value, whatever its size. So what is bounded beside a body's bytes is how many values
it can have, which its punctuation says before any is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from legato.serving.app import Refusal

MOST_VALUES: Final = 1 << 20
TEXT: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # possessive: as many steps as bytes
BEGINS: Final = (b",", b"[", b"{")  # each value but the first has one of these before it


class BoundedRoute(APIRoute):
    """A route that reads no JSON of more values than that."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            check_values(await request.body())
            return await handle(request)

        return bounded


def check_values(body: bytes) -> None:
    """
    >>> check_values(b'{"input": [1, 2]}')
    """
    count = sum(map(body.count, BEGINS))
    if count > MOST_VALUES:  # some of it in texts, it may be
        count = sum(map(TEXT.sub(b"", body).count, BEGINS))
    if count > MOST_VALUES:
        raise Refusal(413, f"the body has some {count:,} values; {MOST_VALUES:,} are read")
