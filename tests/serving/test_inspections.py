"""What the studio's server is asked: one inspection at a time, and every refusal in a line."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import legato
from legato.errors import LegatoError
from legato.inspect.report.build import report_of
from legato.serving import studio
from legato.serving.app import make_app
from legato.serving.studio import MAX_BODY, MAX_TEXT, MAX_WAITING, REPORTS, Studio, studio_routes
from serving.served import PORT, SCRIPT, client_of, error_of


def test_what_the_model_reads_and_writes_is_told(client: TestClient, translator: TestClient, runs: Path) -> None:
    told = client.get("/api/studio").json()
    assert (told["model"]["name"], told["model"]["task"], told["reads"]) == ("lstm", "lm", ["text"])
    assert told["writes"] == "continuation"
    assert told["run"] == {"folder": str(runs / "lstm"), "task": "lm", "model": "lstm", "steps": 2}
    assert told["map"]["root"]["parameters"] == told["model"]["parameters"]
    other = translator.get("/api/studio").json()
    assert (other["model"]["task"], other["writes"], other["run"]["folder"]) == (
        "translation",
        "text",
        str(runs / "pairs"),
    )


@pytest.mark.slow
def test_a_report_and_its_arrays_are_those_of_the_model(client: TestClient, runs: Path) -> None:
    text = f"the dog {SCRIPT}"
    answer = client.post("/api/inspect", json={"text": text, "layers": [0]})
    assert answer.headers["content-type"] == "application/json"  # what is in it is no page
    told = answer.json()
    number = told.pop("id")
    report = report_of(legato.load(runs / "lstm", "cpu"), text, layers=[0])
    assert told == json.loads(json.dumps(report.told()))
    assert told["given"] == text
    assert "".join(told["streams"]["input"]["names"][1:]) == text
    assert len(report.arrays) > 3
    for index, kept in enumerate(report.arrays):
        found = client.get(f"/api/reports/{number}/arrays/{index}")
        assert found.content == kept.blob
        assert found.headers["content-type"] == "application/octet-stream"
        assert "content-encoding" not in found.headers
    for index in (len(report.arrays), -1, 10**30):
        error_of(client.get(f"/api/reports/{number}/arrays/{index}"), 404)
    error_of(client.get(f"/api/reports/{number}/arrays/x"), 400)


def test_of_a_report_that_is_kept_the_trace_is_not(runs: Path) -> None:
    shown = Studio(runs / "lstm", "cpu")
    asked = client_of(shown).post("/api/inspect", json={"text": "dog"})
    assert [(number, report.trace) for number, report in shown._reports.items()] == [(asked.json()["id"], None)]


def test_layers_that_a_model_does_not_have_are_refused(runs: Path) -> None:
    asked = client_of(Studio(runs / "gpt2", "cpu"))
    refused = asked.post("/api/inspect", json={"text": "dog", "layers": [0, 99]})
    assert re.search(r"gpt2.* has the layers 0( to \d)?, and not 99$", error_of(refused, 400))


@pytest.mark.slow
def test_only_the_last_reports_are_kept(client: TestClient) -> None:
    def inspect() -> str:
        return str(client.post("/api/inspect", json={"text": "dog"}).json()["id"])

    first, second, *_ = [inspect() for _ in range(REPORTS)]
    assert client.get(f"/api/reports/{first}/arrays/0").status_code == 200  # asked for, so it is kept longer
    inspect()
    assert client.get(f"/api/reports/{first}/arrays/0").status_code == 200
    assert "no longer kept" in error_of(client.get(f"/api/reports/{second}/arrays/0"), 404)
    error_of(client.get("/api/reports/nonsense/arrays/0"), 404)


@pytest.mark.slow
def test_what_is_written_can_be_given_or_begun(translator: TestClient, client: TestClient, runs: Path) -> None:
    target = legato.load(runs / "pairs", "cpu").loaded.target
    one, two = [target.token(index) for index in range(target.size) if index not in target.special_ids][:2]

    def written(**asked: str) -> list[str]:
        told = translator.post("/api/inspect", json={"text": "dog sees cat", **asked}).json()
        return "".join(told["written"][:-1]).split()

    assert written(written=f"{two} {one}") == [two, one]
    assert [written(prefix=word)[0] for word in (one, two)] == [one, two]
    both = translator.post("/api/inspect", json={"text": "dog sees cat", "written": one, "prefix": one})
    assert "leave out one of them" in error_of(both, 400)
    assert client.post("/api/inspect", json={"text": "the ", "prefix": "dog"}).json()["given"] == "the dog"


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 400, "the request is not valid JSON"),
        (b"{", 400, "the request is not valid JSON"),
        (b"\xff\xfe", 400, "the request is not"),
        (b"null", 400, "the request should"),
        (b"[]", 400, "the request should"),
        (b"{}", 400, "the request lacks 'text'"),
        (b'{"text": 3}', 400, "'text' should be a valid string, not 3"),
        (b'{"text": "a", "layers": "0"}', 400, "'layers' should be a valid list"),
        (b'{"text": "a", "layers": [-1]}', 400, "should be greater than or equal to 0"),
        (b'{"text": "a", "layers": [true]}', 400, "should be a valid integer"),
        (b'{"text": "a", "layers": [' + b"0," * 2000 + b"0]}", 400, "1000 items"),
        (b'{"text": "a", "file": "/etc/passwd"}', 400, "not permitted"),
        (b'{"text": "\\ud800"}', 400, "half a character"),
        (b'{"text": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400, "nested"),
        (b'{"text": ""}', 400, "there is no text to look at; give one"),
        (b'{"text": " \\n "}', 400, "there is no text to look at; give one"),
        (b'{"text": "a", "written": "b"}', 400, "leave out what is written"),
        (
            json.dumps({"text": "a" * (MAX_TEXT + 1)}).encode(),
            413,
            "8,001 characters, and 8,000 are read; shorten it",
        ),
        (json.dumps({"text": "a", "prefix": "a" * (MAX_TEXT + 1)}).encode(), 413, "prefix has 8,001 characters"),
        (b'{"text": "' + b"a" * MAX_BODY + b'"}', 413, "the request has more than 262,144 bytes"),
    ],
)
def test_what_cannot_be_looked_at_is_said_in_a_line(client: TestClient, body: bytes, status: int, said: str) -> None:
    assert said in error_of(client.post("/api/inspect", content=body), status)


def test_a_body_without_an_end_is_refused_when_it_is_too_large(client: TestClient) -> None:
    def parts() -> Iterator[bytes]:
        while True:
            yield b" " * 50_000

    read = 0

    def counted() -> Iterator[bytes]:
        nonlocal read
        for part in parts():
            read += len(part)
            if read > 4 * MAX_BODY:
                return
            yield part

    error_of(client.post("/api/inspect", content=counted()), 413)


def test_a_text_beyond_what_the_model_reads_is_refused(runs: Path) -> None:
    asked = client_of(Studio(runs / "gpt2", "cpu"))
    refused = asked.post("/api/inspect", json={"text": "the dog " * 30})
    assert "reads 16 at most; shorten it" in error_of(refused, 400)


def test_a_page_names_no_files(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Studio(runs / "lstm", "cpu", given="photo.png")
    monkeypatch.setattr(studio, "_reads", lambda model: ["image"])
    asked = client_of(shown)
    assert "a page names no files" in error_of(asked.post("/api/inspect", json={"text": "/etc/passwd"}), 400)
    shown = Studio(runs / "lstm", "cpu", given="the dog")
    assert client_of(shown).post("/api/inspect", json={"text": "the dog"}).status_code == 200
    other = client_of(shown).post("/api/inspect", json={"text": "the dog", "prefix": "2.png"})
    assert "a prefix is for models that read text alone" in error_of(other, 400)


@pytest.mark.parametrize(
    ("problem", "status", "said"),
    [
        (RuntimeError("it broke\nhere"), 500, "this is a fault of ours: RuntimeError: it broke here"),
        (MemoryError(), 400, "there is not enough memory"),
        (LegatoError("do this instead"), 400, "do this instead"),
    ],
)
def test_a_fault_is_a_line_and_no_traceback(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, problem: Exception, status: int, said: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise problem

    monkeypatch.setattr(studio, "report_of", fail)
    assert said in error_of(client.post("/api/inspect", json={"text": "dog"}), status)


@pytest.mark.slow
def test_one_inspection_runs_at_a_time_and_the_page_stays_answering(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most = 0, 0
    begun, go_on = threading.Semaphore(0), threading.Event()

    def slow(*asked: Any, **options: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        begun.release()
        assert go_on.wait(60)
        running -= 1
        return report_of(*asked, **options)

    monkeypatch.setattr(studio, "report_of", slow)
    answers: list[int] = []

    def ask() -> None:
        answers.append(client.post("/api/inspect", json={"text": "dog"}).status_code)

    threads = [threading.Thread(target=ask) for _ in range(MAX_WAITING + 3)]
    for thread in threads:
        thread.start()
    assert begun.acquire(timeout=60)
    assert client.get("/api/studio").status_code == 200
    assert client.get("/").status_code == 200
    while len(answers) < 3:  # those for whom there is no place to wait
        threads[0].join(0.01)
    assert answers == [429] * 3
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert most == 1
    assert sorted(answers) == [200] * MAX_WAITING + [429] * 3


def test_whoever_has_left_is_passed_over(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    monkeypatch.setattr(studio, "report_of", lambda *_, **__: looked.append("at"))
    app = make_app(PORT)
    app.include_router(studio_routes(Studio(runs / "lstm", "cpu")))
    messages = [{"type": "http.request", "body": b'{"text": "dog"}'}, {"type": "http.disconnect"}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/api/inspect", "raw_path": b"", "query_string": b""}
    scope |= {"headers": [(b"host", f"127.0.0.1:{PORT}".encode())], "http_version": "1.1", "scheme": "http"}
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 408
    assert not looked
