"""`legato inspect --serve` as a process, and its page in a browser: it starts, follows a run, and stops."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import legato
from tiny_runs import small, snapshot

pytestmark = pytest.mark.slow
SCRIPT = "<script>document.title='taken'</script>"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("for-real")
    settings = small(home, train__steps=12)
    with (home / "train.txt").open("a") as file:
        file.write(f"{SCRIPT}\n" * 20)
    legato.train("lm", settings, out=home / "run", quiet=True)
    return home / "run"


@contextmanager
def serving(place: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and its address."""
    command = [
        sys.executable,
        "-m",
        "legato",
        "inspect",
        str(place),
        "--serve",
        "--no-browser",
        "--device",
        "cpu",
        *words,
    ]

    def default_signals() -> None:  # tests may run in the background, where interrupts are ignored
        signal.signal(signal.SIGINT, signal.default_int_handler)

    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=default_signals,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdout is not None
        address = None
        while address is None:
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr else ""
            address = re.search(r"the studio is at (http://127\.0\.0\.1:\d+)/", line)
        yield process, address[1]
    finally:
        process.kill()
        process.wait()


def fetched(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return json.loads(answer.read())


def test_it_starts_takes_the_next_port_and_stops_and_only_reads(run: Path) -> None:
    before = snapshot(run)
    with serving(run) as (first, one), serving(run, "--port", one.rpartition(":")[2]) as (second, other):
        assert one != other
        assert fetched(f"{other}/api/studio")["model"]["name"] == "lstm"
        assert fetched(f"{one}/api/run")["rows"] == [json.loads(line) for line in (run / "metrics.jsonl").open()]
        for process in (first, second):
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
            assert (process.returncode, err) == (0, "")
            assert out.endswith("the studio has stopped\n")
    assert snapshot(run) == before


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
def test_a_page_looks_inside_and_follows_a_run(run: Path, tmp_path: Path) -> None:
    api = pytest.importorskip("playwright.sync_api")
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    model = copy / "best"
    shutil.move(model, tmp_path / "best")
    shutil.rmtree(copy / "last")
    with serving(copy) as (_, address), api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda problem: said.append(str(problem)))
        page.on("request", lambda request: said.append(request.url) if not request.url.startswith(address) else None)
        page.goto(address)
        page.get_by_text("The run has saved no model yet").wait_for()
        last = page.locator('[data-figure="loss"] [data-series="train"]')
        rows = [json.loads(line) for line in (copy / "metrics.jsonl").open()]
        trained = [row for row in rows if row["kind"] == "train"]
        page.wait_for_function(
            "wanted => document.querySelector('[data-series=train]')?.innerText === wanted",
            arg=str(trained[-1]["loss"]),
        )

        row = {
            "step": 13,
            "kind": "train",
            "loss": 1.2345678901234567,
            "lr": 5e-324,
            "norm": 1e300,
            "tokens_per_second": 1.5,
        }
        with (copy / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.write(json.dumps({"step": 13, "kind": "valid", "loss": 2.5}) + "\n")
            file.write(json.dumps({"step": 13, "kind": "samples", "texts": ["<img src=x onerror=alert(1)>"]}) + "\n")
        page.get_by_text("<img src=x").wait_for()  # as text
        for figure in ("loss", "lr", "norm", "tokens_per_second"):
            shown = page.locator(f'[data-figure="{figure}"] [data-series="train"]').inner_text()
            assert float(shown) == row[figure]

        canvas = page.locator("canvas").first
        box = canvas.bounding_box()
        assert box is not None
        steps = set()
        for x in range(60, int(box["width"]) - 12, 23):  # what is under the pointer is what the file has
            page.mouse.move(box["x"] + x, box["y"] + 50)
            page.wait_for_timeout(20)
            step = int(page.locator('[data-figure="loss"] .quiet').first.inner_text().removeprefix("step "))
            wanted = next((each["loss"] for each in [*trained, row] if each["step"] == step), None)
            assert (float(last.inner_text()) if last.count() else None) == wanted
            steps.add(step)
        assert len(steps) > 8

        shutil.move(tmp_path / "best", model)
        page.get_by_label("text to look at").fill(SCRIPT)
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Cells and gates").click()
        page.locator(".token").first.wait_for()
        assert "".join(page.locator(".token > span").all_inner_texts()[1:]) == SCRIPT
        assert page.title() == "lstm · Legato"
        assert "text=%3Cscript" in page.url
        page.goto(f"{address}/#view=cells&text=+&unit=zzz&layers=x")  # nonsense in the address
        page.reload()
        page.get_by_role("alert").wait_for()
        browser.close()
    errors = [line for line in said if "400 (Bad Request)" not in line]
    assert errors == []
