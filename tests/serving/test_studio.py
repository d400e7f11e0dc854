"""The studio's server: it answers its own page and nobody else, one inspection at a time, and only reads a run."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import legato
from legato.errors import LegatoError
from legato.inspect.report.build import report_of
from legato.inspect.report.page import studio_page
from legato.serving import local, studio
from legato.serving.app import make_app
from legato.serving.studio import MAX_BODY, MAX_TEXT, MAX_WAITING, REPORTS, Studio, studio_routes

PORT = 8765
OWN = f"http://127.0.0.1:{PORT}"
QUICK: dict[str, Any] = {"train.steps": 2, "train.tensorboard": "false", "device": "cpu", "model.width": 16}
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    (folder / "text.txt").write_text(f"the dog runs {SCRIPT} and sleeps\n" * 40, encoding="utf-8")
    text = {"data.train": str(folder / "text.txt"), "data.valid_share": 0.3, "tokenizer": "char"}
    text |= {"train.batch_tokens": 64, "data.window": 16, "model": "lstm"}
    legato.train("lm", {**QUICK, **text}, out=folder / "lstm", quiet=True)
    legato.train("lm", {**QUICK, **text, "model": "gpt2", "model.heads": 2}, out=folder / "gpt2", quiet=True)
    pairs = {"data.train": "toy:language", "data.toy.count": 50, "model": "seq2seq", "model.layers": 1}
    legato.train("translation", {**QUICK, **pairs}, out=folder / "pairs", quiet=True)
    return folder


def client_of(shown: Studio) -> TestClient:
    app = make_app(PORT)
    app.include_router(studio_routes(shown))
    return TestClient(app, base_url=OWN, raise_server_exceptions=False)


@pytest.fixture
def client(runs: Path) -> Iterator[TestClient]:
    """Of a language model, a run's."""
    with client_of(Studio(runs / "lstm", "cpu")) as found:
        yield found


@pytest.fixture
def translator(runs: Path) -> TestClient:
    return client_of(Studio(runs / "pairs" / "best", "cpu"))


def error_of(answer: Any, status: int) -> str:
    """The line that says why a request was refused."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    told = answer.json()
    assert list(told) == ["error"]
    assert "\n" not in told["error"]
    assert "Traceback" not in answer.text
    return str(told["error"])


# ── who is answered ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["/", "/api/studio", "/api/run", "/nothing"])
def test_every_answer_has_the_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert not [name for name in headers if name.startswith("access-control")]


def test_the_page_is_served_with_its_own_policy(client: TestClient) -> None:
    answer = client.get("/")
    assert answer.text == studio_page()
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    found = re.search(r'Content-Security-Policy" content="([^"]+)"', answer.text)
    assert found is not None
    assert answer.headers["content-security-policy"] == f"{found[1]}; frame-ancestors 'none'"


@pytest.mark.parametrize("host", [f"localhost:{PORT}", f"LocalHost:{PORT}", f"127.0.0.1:{PORT}", f"[::1]:{PORT}"])
def test_names_of_this_machine_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/api/studio", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", f"evil.example:{PORT}", f"localhost.evil.example:{PORT}", f"evil.example@127.0.0.1:{PORT}"),
        *(
            "127.0.0.1",
            "localhost",
            f"127.0.0.1:{PORT + 1}",
            f"127.0.0.2:{PORT}",
            f"0.0.0.0:{PORT}",
            "",
            ":",
            "[::1]",
        ),
    ],
)
@pytest.mark.parametrize("path", ["/", "/api/studio"])
def test_other_hosts_are_refused(client: TestClient, host: str, path: str) -> None:
    assert "answers to" in error_of(client.get(path, headers={"host": host}), 403)


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "", f"https://127.0.0.1:{PORT}", f"http://localhost:{PORT}", "http://127.0.0.1"],
)
def test_other_origins_are_refused(client: TestClient, origin: str) -> None:
    asked = client.post("/api/inspect", json={"text": "the dog"}, headers={"origin": origin})
    assert error_of(asked, 403) == "this server answers its own pages only"
    error_of(client.get("/api/run", headers={"origin": origin}), 403)


def test_its_own_page_may_ask_and_others_may_not_even_ask_whether_they_may(client: TestClient) -> None:
    assert client.get("/api/studio", headers={"origin": OWN}).status_code == 200
    preflight = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    error_of(client.options("/api/inspect", headers=preflight), 403)
    error_of(client.options("/api/inspect", headers={"origin": OWN}), 405)


@pytest.mark.parametrize(
    "path",
    [
        *("/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/..%2f..%2fetc/passwd", "//etc/passwd", "/etc/passwd"),
        *(
            "/studio.html",
            "/static/x",
            "/docs",
            "/openapi.json",
            "/redoc",
            "/api",
            "/api/",
            "/api/reports/",
            "/index.html",
        ),
        *("/api/reports/../studio/arrays/0", "/api/reports/%2e%2e/arrays/0", "/favicon.ico"),
    ],
)
def test_nothing_else_is_served(client: TestClient, path: str) -> None:
    raw = client.build_request("GET", OWN)
    raw.url = raw.url.copy_with(raw_path=path.encode())  # as it is, with its dots
    error_of(client.send(raw), 404)


@pytest.mark.parametrize(("method", "path"), [("POST", "/"), ("DELETE", "/api/studio"), ("GET", "/api/inspect")])
def test_other_methods_are_refused(client: TestClient, method: str, path: str) -> None:
    assert "is not for this address" in error_of(client.request(method, path), 405)


# ── what is told ──────────────────────────────────────────────────────────────────────────────────


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


def test_only_the_last_reports_are_kept(client: TestClient) -> None:
    def inspect() -> str:
        return str(client.post("/api/inspect", json={"text": "dog"}).json()["id"])

    first, second, *_ = [inspect() for _ in range(REPORTS)]
    assert client.get(f"/api/reports/{first}/arrays/0").status_code == 200  # asked for, so it is kept longer
    inspect()
    assert client.get(f"/api/reports/{first}/arrays/0").status_code == 200
    assert "no longer kept" in error_of(client.get(f"/api/reports/{second}/arrays/0"), 404)
    error_of(client.get("/api/reports/nonsense/arrays/0"), 404)


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


# ── one at a time ─────────────────────────────────────────────────────────────────────────────────


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


# ── a run ─────────────────────────────────────────────────────────────────────────────────────────


def test_rows_come_as_the_file_grows(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("task: lm\nmodel: {name: lstm}\ntrain: {steps: 50}\n")
    asked = client_of(Studio(tmp_path, "cpu"))
    file = tmp_path / "metrics.jsonl"

    def rows(after: int = 0, name: str = "") -> Any:
        return asked.get("/api/run", params={"after": after, "file": name}).json()

    assert rows() == {"rows": [], "file": "", "begin": 0, "after": 0, "more": False}
    file.write_text(
        '{"step": 1, "kind": "train", "loss": 2.5000000000000004, "lr": 5.138277969773952e-11}\n{"step": 2, "ki'
    )
    first = rows()
    assert first["rows"] == [{"step": 1, "kind": "train", "loss": 2.5000000000000004, "lr": 5.138277969773952e-11}]
    assert rows(first["after"], first["file"])["rows"] == []
    with file.open("a") as more:
        more.write('nd": "valid", "loss": NaN, "note": "x", "ok": true}\nnonsense\n{"kind": "train"}\n')
        more.write('{"step": 2, "kind": "samples", "texts": ["<script>", "b"]}\n')
    second = rows(first["after"], first["file"])
    assert second["rows"] == [
        {"step": 2, "kind": "valid", "loss": None},
        {"step": 2, "kind": "samples", "texts": ["<script>", "b"]},
    ]
    assert second["after"] == file.stat().st_size
    fresh = tmp_path / "fresh"  # as a run does that is taken up again
    fresh.write_text('{"step": 1, "kind": "train", "loss": 9}\n' + " " * 500 + "\n")
    fresh.replace(file)
    again = rows(second["after"], second["file"])
    assert (again["begin"], again["rows"]) == (0, [{"step": 1, "kind": "train", "loss": 9}])
    file.write_text("")  # shorter than it was
    assert rows(again["after"], again["file"])["rows"] == []
    for wrong in ("-1", "x", ""):
        error_of(asked.get("/api/run", params={"after": wrong}), 400)


def test_a_run_without_a_model_is_followed_until_it_has_one(runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(runs / "lstm" / "config.yaml", run)
    shown = Studio(run, "cpu")
    asked = client_of(shown)
    told = asked.get("/api/studio").json()
    assert (told["model"], told["reads"], told["run"]["model"]) == (None, [], "lstm")
    refused = asked.post("/api/inspect", json={"text": "dog"})
    assert "has not saved a model yet; it does at its first validation" in error_of(refused, 409)
    shutil.copytree(runs / "lstm" / "best", run / "best")
    assert asked.get("/api/studio").json()["model"]["name"] == "lstm"
    assert asked.post("/api/inspect", json={"text": "dog"}).status_code == 200


def test_a_better_model_takes_the_place_of_the_last_one(runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs / "lstm", run)
    shown = Studio(run, "cpu")
    before = shown.model()
    assert shown.model() is before
    shutil.rmtree(run / "last")
    (run / "best").rename(tmp_path / "old")
    assert shown.model() is before  # it is just being exchanged
    shutil.copytree(tmp_path / "old", run / "best")
    assert shown.model() is not before


def test_what_is_no_run_has_no_rows(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "lstm" / "best", tmp_path / "model")
    asked = client_of(Studio(tmp_path / "model", "cpu"))
    assert asked.get("/api/studio").json()["run"] is None
    assert "is no run" in error_of(asked.get("/api/run"), 404)


def test_a_folder_that_is_no_model_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    with pytest.raises(LegatoError, match="is no model folder"):
        local.serve_studio(Studio(tmp_path, "cpu"), print, browser=False)


# ── starting ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said, where the server ends at once."""
    said: list[str] = []
    monkeypatch.setattr(local, "run_server", lambda app, opened: opened.close())
    monkeypatch.setattr(local, "open_browser", lambda address: said.append(f"browser {address}"))
    return said


def test_a_port_in_use_is_left_for_the_next(runs: Path, served: list[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        local.serve_studio(Studio(runs / "lstm", "cpu"), served.append, port=port, fragment="#text=a")
    found = re.match(rf"port {port} is in use; (\d+) is taken instead", served[0])
    assert found is not None
    assert served[1] == f"the studio is at http://127.0.0.1:{found[1]}/#text=a (Ctrl-C stops it)"
    assert served[2] == f"browser http://127.0.0.1:{found[1]}/#text=a"


def test_where_no_port_is_free_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "TRIED", 1)
    with local.open_port(18_000) as taken, pytest.raises(LegatoError, match=r"no port from .* in use; name another"):
        local.open_port(taken.getsockname()[1])


def test_the_server_listens_on_this_machine_alone() -> None:
    with local.open_port(18_000) as opened:
        assert opened.getsockname()[0] == "127.0.0.1"


def test_the_command_opens_a_studio_with_what_is_asked(
    runs: Path, served: list[str], command: Callable[..., Any]
) -> None:
    told = command(
        "inspect", runs / "lstm", "the dog & co", "--serve", "--layers", "0", "--device", "cpu", "--no-browser"
    )
    assert told.code == 0
    assert "/#text=the+dog+%26+co&layers=0 (Ctrl-C stops it)\nthe studio has stopped\n" in told.out
    assert not served
    command("inspect", runs / "lstm", "--serve", "--device", "cpu")
    assert len(served) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--serve", "--json"), "--json goes without --serve; leave it out"),
        (("--serve", "--html", "x.html"), "--html goes without --serve"),
        (("--serve", "--layers", "x"), "numbers from 0 with commas"),
        (("--serve", "--port", "0"), "port"),
        (("--serve", "--port", "99999"), "port"),
        (("dog", "--port", "80"), "--port is for --serve; leave it out"),
        (("dog", "--no-browser"), "--no-browser is for --serve; leave it out"),
        ((), "TEXT"),
    ],
)
def test_words_that_do_not_go_together_are_refused(
    runs: Path, command: Callable[..., Any], words: tuple[str, ...], said: str
) -> None:
    answer = command("inspect", runs / "lstm", *words)
    assert answer.code == 2
    assert said in answer.err
    assert answer.err.count("\n") == 1


def test_whoever_lacks_the_extra_is_told(
    runs: Path, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("legato.serving")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    answer = command("inspect", runs / "lstm", "--serve")
    assert (answer.code, answer.err) == (
        2,
        "legato: uvicorn is not installed; it comes with: pip install '.[serve]'\n",
    )
