"""Thousands of broken requests to a server: each is answered with one line or a closed connection, never with a 5xx.

LEGATO_FUZZ_REQUESTS=10000 python -m pytest tests/serving/test_fuzzed_requests.py -m slow
"""

from __future__ import annotations

import json
import os
import random
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

import legato
from legato.serving.api import ApiOptions, make_api
from legato.serving.models import Served, ServedModels
from serving.api_client import listening
from tiny_published import CHATML, gpt2_folder

pytestmark = pytest.mark.slow
COUNT: Final = int(os.environ.get("LEGATO_FUZZ_REQUESTS", "600"))
SEED: Final = int(os.environ.get("LEGATO_FUZZ_SEED", "0"))
CHAT: Final[dict[str, Any]] = {"model": "tiny", "messages": [{"role": "user", "content": "the cat"}], "max_tokens": 8}
BODIES: Final[dict[str, dict[str, Any]]] = {
    "/v1/chat/completions": {
        **CHAT,
        "temperature": 0.5,
        "n": 1,
        "stop": ["x"],
        "seed": 1,
        "stream": False,
        "logprobs": True,
        "top_logprobs": 2,
        "stream_options": {"include_usage": True},
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "boolean"}}},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": "none",
    },
    "/v1/completions": {
        "model": "tiny",
        "prompt": ["the", "a"],
        "max_tokens": 3,
        "echo": True,
        "top_p": 0.5,
        "top_k": 3,
    },
    "/v1/embeddings": {"model": "tiny", "input": ["the cat"], "encoding_format": "base64"},
    "/v1/predict": {"model": "tiny", "inputs": ["a"]},
    "/v1/search": {"index": "none", "query": "x"},
    "/v1/audio/transcriptions": {"model": "tiny", "file": "x"},
    "/v1/models": {},
    "/v1/models/tiny": {},
    "/metrics": {},
    "/": {},
}
ODD: Final[list[Any]] = [
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        1e308,
        -1e308,
        10**30,
        -(10**400),
        0.5,
        float("nan"),
        float("inf"),
        "",
        "x",
        "\x00",
    ),
    *("\ud800", "\u202e", "the cat " * 400, "<script>", "../../etc/passwd", "tiny\n", "data:image/png;base64,AAAA"),
    *([], {}, [[]], [None], [1, 2], [-1], [10**9], [""], [{}], {"type": "x"}, {"$ref": "#"}, {"a": {"a": {"a": []}}}),
    *({"type": "string", "pattern": "("}, {"role": "user"}, {"role": "user", "content": [{"type": "text"}]}),
]


@contextmanager
def server(folder: Path) -> Iterator[int]:
    """A server in a thread; its port."""
    served = Served("tiny", legato.load(folder, "cpu"), rows=8, queue=8, patience=20.0, most_tokens=16)
    app = make_api(ServedModels([served]), ApiOptions(hosts=None, body=1 << 18))
    with listening(app) as port:
        yield port
    served.close(drain=False)


def mutated(value: Any, dice: random.Random) -> Any:
    """A value with one thing in it changed, dropped, doubled or added."""
    if isinstance(value, dict) and value and dice.random() < 0.8:
        key = dice.choice(list(value))
        changed = dict(value)
        match dice.randrange(5):
            case 0:
                del changed[key]
            case 1:
                changed[dice.choice(["x", "", "\x00", "model", "messages", "__class__", key + " "])] = dice.choice(
                    ODD
                )
            case _:
                changed[key] = mutated(value[key], dice)
        return changed
    if isinstance(value, list) and value and dice.random() < 0.6:
        place = dice.randrange(len(value))
        return [*value[:place], mutated(value[place], dice), *value[place:]] * dice.choice([1, 1, 1, 40])
    return dice.choice(ODD)


def body_of(route: str, dice: random.Random) -> bytes:
    body: Any = BODIES[route]
    for _ in range(dice.choice([0, 0, 1, 1, 2, 4])):
        body = mutated(body, dice)
    text = json.dumps(body, ensure_ascii=dice.random() < 0.5)
    match dice.randrange(14):
        case 0:
            text = text[: dice.randrange(len(text) + 1)]
        case 1:
            depth = dice.choice([50, 1000, 100_000])
            text = text[:-1] + ', "x": ' * (len(text) > 2) + "[" * depth + "]" * depth + "}"
        case 2:
            text = text.replace('"model"', '"model": "other", "model"')  # twice
        case 3:
            text = text.replace("3", dice.choice(["NaN", "Infinity", "1e999", "-0", "3" * 5000, "03"]))
        case 4:
            text = text.replace("the", dice.choice(["\\ud800", "\\udc00\\ud800", "\\u0000", "\\x", "\ufeff"]))
        case 5:
            text = dice.choice(["", "null", "[]", '"x"', "0", "{}", "{", "\x00", " " * 10_000])
    raw = text.encode("utf-8", "surrogatepass")
    if dice.random() < 0.1:
        places = [dice.randrange(len(raw)) for _ in range(3)] if raw else []
        for place in places:
            raw = raw[:place] + bytes([dice.randrange(256)]) + raw[place + 1 :]
    if dice.random() < 0.05:
        raw = raw.decode("utf-8", "replace").encode(dice.choice(["utf-16", "utf-32", "utf-8-sig", "utf-7"]))
    return raw


HEADERS: Final = [
    *(
        "Content-Type: text/plain",
        "Content-Type: multipart/form-data",
        "Content-Type: multipart/form-data; boundary=",
    ),
    *(
        "Content-Type: application/x-www-form-urlencoded",
        "Content-Type: application/json; charset=utf-16",
        "Expect: 100",
    ),
    *(
        "Content-Encoding: gzip",
        "Authorization: Bearer \xff",
        "Authorization: " + "x" * 5000,
        "X-Request-Id: a\tb\xe9",
    ),
    *("Origin: null", "Origin: https://evil.example", "Host: other.example", "Accept: nothing/*", "Range: bytes=0-1"),
    *(
        "Cookie: " + "a=b;" * 500,
        "Upgrade: websocket",
        "Connection: upgrade",
        "Transfer-Encoding: gzip",
        "X: " + "y" * 70_000,
    ),
]


def request_of(dice: random.Random) -> bytes:
    """The bytes of a request, or of what begins like one."""
    route = dice.choice([*BODIES, *list(BODIES)[:3] * 4])
    raw = body_of(route, dice)
    method = (
        ("POST" if BODIES[route] else "GET")
        if dice.random() < 0.9
        else dice.choice(["GET", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "", "x y"])
    )
    if dice.random() < 0.1:
        route = dice.choice(
            [route + "/", route + "?a=%00", "//" + route, "/v1/../" + route, "/v1/models/%2e%2e%2fx", "/\xff"]
        )
    headers = ["Host: 127.0.0.1", "Connection: close"]
    if dice.random() < 0.85:
        headers.append("Content-Type: application/json")
    headers += dice.sample(HEADERS, dice.choice([0, 0, 0, 1, 2]))
    match dice.randrange(10):
        case 0:
            length = dice.choice([-1, 0, 10**18, len(raw) + 1, max(0, len(raw) - 1), "x", "1e3"])
            headers.append(f"Content-Length: {length}")
        case 1:
            headers.append("Transfer-Encoding: chunked")
            size = dice.choice([f"{len(raw):x}", "ffffffff", "-1", "zz"])
            end = dice.choice([b"\r\n0\r\n\r\n", b"", b"\r\n5\r\nab"])  # whole, or cut short
            raw = size.encode() + b"\r\n" + raw + end
        case _:
            headers.append(f"Content-Length: {len(raw)}")
    head = "\r\n".join([f"{method} {route} HTTP/1.1", *headers, "", ""])
    return head.encode("latin-1", "replace") + raw


def answer_to(port: int, raw: bytes) -> bytes:
    """What comes back until the server closes; nothing where it closes at once, or waits for more."""
    with socket.create_connection(("127.0.0.1", port), 30) as opened:
        received = b""
        try:
            opened.sendall(raw)
            opened.shutdown(socket.SHUT_WR)
            while piece := opened.recv(1 << 16):
                received += piece
        except OSError:
            pass  # it did not read to the end
        return received


def test_broken_requests_are_answered_and_leave_nothing_behind(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    dice, statuses = random.Random(SEED), Counter[str]()
    whole = json.dumps({"model": "tiny", "prompt": "the cat", "max_tokens": 5, "temperature": 0}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(whole)}\r\n"
    good = f"{head}Content-Type: application/json\r\n\r\n".encode() + whole
    with server(gpt2_folder(tmp_path / "tiny", template=CHATML)) as port:
        expected = answer_to(port, good).partition(b'"choices"')[2]
        for number in range(COUNT):
            raw = request_of(dice)
            answer = answer_to(port, raw)
            status = answer[9:12].decode("latin-1")
            statuses[status] += 1
            assert status == "" or (status.isdigit() and int(status) < 500), (number, raw[:2000], answer[:2000])
            assert b"Traceback" not in answer
            if number % 200 == 0:
                assert answer_to(port, good).partition(b'"choices"')[2] == expected
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert "fault of ours" not in said
    print(dict(sorted(statuses.items())))
    assert statuses["200"] > COUNT // 20
    assert statuses["400"] > COUNT // 20
