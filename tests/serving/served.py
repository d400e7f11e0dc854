"""A studio that is asked without a network, and how a refusal looks."""

from __future__ import annotations

from typing import Any

from fastapi.testclient import TestClient

from legato.serving.app import make_app
from legato.serving.studio import Studio, studio_routes

PORT = 8765
OWN = f"http://127.0.0.1:{PORT}"
QUICK: dict[str, Any] = {"train.steps": 2, "train.samples": 0, "train.tensorboard": "false"}
QUICK |= {"device": "cpu", "model.width": 16}
SCRIPT = "<script>alert(1)</script>"


def client_of(shown: Studio) -> TestClient:
    app = make_app(PORT)
    app.include_router(studio_routes(shown))
    return TestClient(app, base_url=OWN, raise_server_exceptions=False)


def error_of(answer: Any, status: int) -> str:
    """The line that says why a request was refused."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    told = answer.json()
    assert list(told) == ["error"]
    assert "\n" not in told["error"]
    assert "Traceback" not in answer.text
    return str(told["error"])
