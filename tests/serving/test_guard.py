"""The studio's server answers its own page and nobody else, and serves nothing else."""

from __future__ import annotations

import re

import pytest
from fastapi.testclient import TestClient

from legato.inspect.report.page import studio_page
from serving.served import OWN, PORT, error_of


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
