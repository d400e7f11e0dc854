"""Memory of a server under a light mixed load: `python benchmarks/serve.py MODEL --soak 1800` runs this.

Each two seconds a round of requests: a chat that is streamed to its end, one whose client vanishes after a few
pieces, one that has to fit a JSON schema (of ten that differ), embeddings, sampled texts with log-probabilities, and
a request that is refused. What the server holds is read each ten seconds. It rises while the cache of prompts fills
(it is bounded), so the slope is that of the second half.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from contextlib import suppress
from typing import Any

from clients import Client, Question, body_of, questions
from servers import Place, Server

EVERY = 10.0  # seconds between two readings
PAUSE = 2.0


def soak(seconds: float, place: Place) -> dict[str, Any]:
    server = Server("legato", place)
    try:
        server.wait()
        readings, counts = asyncio.run(_load(server, seconds))
    finally:
        server.stop()
    half = [(when, size) for when, size in readings if when >= seconds / 2]
    figures = {
        "first_mib": round(readings[0][1], 1),
        "after_a_tenth_mib": round(next(size for when, size in readings if when >= seconds / 10), 1),
        "middle_mib": round(half[0][1], 1),
        "last_mib": round(readings[-1][1], 1),
        "most_mib": round(max(size for _, size in readings), 1),
        "slope_of_second_half_mib_per_hour": round(3600 * slope(half), 2),
        "requests": dict(counts),
    }
    for key, value in figures.items():
        print(f"{key:36s}{value}")
    return {**figures, "every_minute_mib": [round(size, 1) for _, size in readings[:: round(60 / EVERY)]]}


def slope(points: list[tuple[float, float]]) -> float:
    """Of the straight line nearest to points."""
    x = sum(when for when, _ in points) / len(points)
    y = sum(size for _, size in points) / len(points)
    across = sum((when - x) ** 2 for when, _ in points)
    return sum((when - x) * (size - y) for when, size in points) / across if across else 0.0


async def _load(server: Server, seconds: float) -> tuple[list[tuple[float, float]], dict[str, int]]:
    begun, readings, counts = time.monotonic(), list[tuple[float, float]](), dict[str, int]()
    working = asyncio.create_task(_work(server, counts))
    while (now := time.monotonic() - begun) < seconds:
        readings.append((now, server.resident()))
        print(f"{now:8.0f} s {readings[-1][1]:10,.1f} MiB  {sum(counts.values()):8,d} requests", flush=True)
        await asyncio.sleep(EVERY)
        if working.done():
            break
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working
    return readings, counts


async def _work(server: Server, counts: dict[str, int]) -> None:
    source, draw = questions(11, (8, 120), (8, 32)), random.Random(0)
    for number in itertools.count():
        question = next(source)
        kinds = {
            "streamed": _asked(server, body_of(server.model, question)),
            "vanished": _vanished(server, question),
            "schema": _asked(server, body_of(server.model, question._replace(tokens=40), **_schema(number % 10))),
            "sampled": _asked(
                server,
                body_of(server.model, question, stream=False, temperature=1.0, seed=number, logprobs=True, n=2),
            ),
            "embedded": _asked(server, {"model": server.model, "input": [question.text] * 3}, "/v1/embeddings"),
            "refused": _asked(server, body_of(f"other{draw.randrange(10**9)}", question), refused=True),
        }
        for kind, right in zip(kinds, await asyncio.gather(*kinds.values()), strict=True):
            name = kind if right else f"{kind} failed"
            counts[name] = counts.get(name, 0) + 1
        await asyncio.sleep(PAUSE)


def _schema(number: int) -> dict[str, Any]:
    shape = {
        "type": "object",
        "properties": {f"field{number}": {"type": "string", "maxLength": 10}},
        "required": [f"field{number}"],
        "additionalProperties": False,
    }
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "made", "schema": shape}}}


async def _asked(
    server: Server, body: dict[str, Any], path: str = "/v1/chat/completions", *, refused: bool = False
) -> bool:
    client = Client(server.port)
    answer = await client.ask(body, path)
    client.close()
    return answer.status == 404 if refused else answer.complete


async def _vanished(server: Server, question: Question) -> bool:
    client = Client(server.port)
    with suppress(TimeoutError):
        await asyncio.wait_for(client.ask(body_of(server.model, question._replace(tokens=1000))), 0.7)
        return False
    return True
