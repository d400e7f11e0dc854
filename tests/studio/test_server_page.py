"""The page at `/` of `legato serve` in a browser: it chats, predicts, and shows texts as texts."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

import legato
from legato.serving.api import ApiOptions, make_api
from legato.serving.app import local_hosts
from legato.serving.models import Served, ServedModels
from tiny_published import CHATML, gpt2_folder

SCRIPT = "<img src=x onerror=alert(1)> the cat"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("page")
    texts = "text\tlabel\n" + "a good film\tyes\na bad film\tno\n" * 20
    (folder / "films.tsv").write_text(texts, encoding="utf-8")
    settings = {"data.train": str(folder / "films.tsv"), "train.steps": 2, "model.width": 16, "device": "cpu"}
    settings |= {"data.valid": str(folder / "films.tsv"), "train.tensorboard": "false", "model": "lstm"}
    legato.train("classification", settings, out=folder / "films", quiet=True)
    models = [
        Served("chat", legato.load(gpt2_folder(folder / "chat", template=CHATML), "cpu")),
        Served("films", legato.load(folder / "films", "cpu")),
    ]
    with socket.create_server(("127.0.0.1", 0)) as opened:
        port = opened.getsockname()[1]
        app = make_api(ServedModels(models), ApiOptions(keys=("secret",), hosts=local_hosts(port)))
        config = uvicorn.Config(app, log_config=None, log_level="critical", lifespan="off", ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{port}/"
        server.should_exit = True
        thread.join(30)
    for served in models:
        served.close(drain=False)


def test_a_person_chats_and_predicts(browser: Any, address: str, tmp_path: Path) -> None:
    page = browser.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda problem: problems.append(str(problem)))
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    page.goto(address)
    page.fill("#key", "wrong")
    page.locator("#key").blur()
    page.locator("#about", has_text="key").wait_for()
    page.fill("#key", "secret")
    page.locator("#key").blur()
    page.wait_for_selector("#model option >> nth=1", state="attached")
    page.fill("#tokens", "12")
    page.fill("#text", SCRIPT)
    page.click("#send")
    page.wait_for_selector(".assistant")
    page.wait_for_selector("#send:enabled")
    assert page.locator(".assistant").text_content()
    assert page.locator(".user").text_content() == SCRIPT
    assert page.locator("main img").count() == 0
    page.select_option("#model", "films")
    page.fill("#text", "a good film")
    page.press("#text", "Enter")
    page.wait_for_selector(".assistant")
    assert '"text": "' in page.locator(".assistant").first.text_content()
    page.locator("#text").fill("x" * 9_000_000)
    page.click("#send")
    page.wait_for_selector(".problem")
    assert "bytes" in page.locator(".problem").text_content()
    assert problems == []
