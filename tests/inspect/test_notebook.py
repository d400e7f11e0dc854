"""A trace as the output of a notebook's cell: one frame that holds all it needs, whatever a text says."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from read_reports import told_in
from tiny_models import HEADS

from legato.data.positions import Positions
from legato.errors import LegatoError
from legato.inspect.report.build import notebook_html, trace_report
from legato.inspect.trace import Captured, Trace
from legato.model import Model

TEXT = "the dog runs and the cat sleeps"
TRAINING_TEXT = f"{TEXT}\n" * 40
RUNS: dict[str, dict[str, Any]] = {"gpt2": {"task": "lm", "model": "gpt2", "model.layers": 2, **HEADS}}
NASTY = (
    "</script><script>alert(1)</script>",
    '"></iframe><img src="http://evil.example/x.png" onerror=alert(2)>',
    "'><!--",
    "&lt;/script&gt;&quot;",
    "<!--report-->",
    "\u2028",
)


class Tags(HTMLParser):
    """The tags of a text, with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def frame_of(cell: str | None) -> str:
    """The page inside of a cell's output, which is one frame and nothing else."""
    assert cell is not None
    ((tag, attributes),) = Tags(cell).found
    assert tag == "iframe"
    assert set(attributes) == {"sandbox", "style", "srcdoc"}
    assert "allow-same-origin" not in (attributes["sandbox"] or "")  # it cannot reach the notebook
    return attributes["srcdoc"] or ""


def test_a_trace_shows_itself_as_a_page_in_a_frame(models: dict[str, Model]) -> None:
    trace = models["gpt2"].trace(TEXT)
    page = frame_of(trace._repr_html_())
    assert page == trace_report(trace).html()
    told = told_in(page)
    assert set(told["views"]) == {"attention", "cells", "head"}
    assert told["streams"]["input"]["names"] == list(trace.positions["input"].names)
    assert len(re.findall(r'<script type="text/plain" id="blob-\d+">', page)) == len(told["arrays"])


def test_a_part_of_a_trace_shows_that_part(models: dict[str, Model]) -> None:
    some = models["gpt2"].trace(TEXT, only="hidden")
    assert set(told_in(frame_of(some._repr_html_()))["views"]) == {"cells"}
    with pytest.raises(LegatoError, match="has nothing of that name"):
        models["gpt2"].trace(TEXT, only="nothing")


def test_what_was_loaded_from_a_file_is_shown_as_text(models: dict[str, Model], tmp_path: Path) -> None:
    models["gpt2"].trace(TEXT).save(tmp_path / "t")
    trace = Trace.load(tmp_path / "t")
    assert trace._repr_html_() is None
    assert notebook_html(trace) == models["gpt2"].trace(TEXT)._repr_html_()


def nasty_trace() -> Trace:
    count = len(NASTY)
    weights = np.full((1, count, count), 1 / count, dtype=np.float32)
    tensors = {
        "decoder.0.attention.weights": Captured(weights, ("head", "position", "seen"), "input"),
        "decoder.0.hidden": Captured(weights[0], ("position", "unit"), "input"),
    }
    about: dict[str, str | int] = {"name": NASTY[0], "task": "lm", "folder": NASTY[1], "parameters": 1}
    guesses = [[(token, 0.5)] for token in NASTY]
    return Trace(about, tensors, {"input": Positions("token", NASTY)}, guesses, list(NASTY))


def test_no_token_ends_the_frame_or_a_script_in_it() -> None:
    page = frame_of(notebook_html(nasty_trace()))
    told = told_in(page)
    assert tuple(told["streams"]["input"]["names"]) == tuple(told["written"]) == NASTY
    assert (told["model"]["name"], told["model"]["folder"]) == NASTY[:2]
    tags = [tag for tag, _ in Tags(page).found]
    assert tags.count("script") == 1 + 1 + len(told["arrays"])  # the studio's own, the report, and its arrays
    assert "img" not in tags
    assert "iframe" not in tags


@pytest.mark.parametrize("nasty", [True, False])
def test_the_page_asks_for_nothing_outside(models: dict[str, Model], nasty: bool) -> None:
    trace = nasty_trace() if nasty else models["gpt2"].trace(TEXT)
    page = frame_of(notebook_html(trace))
    for tag, attributes in Tags(page).found:
        assert not {"src", "href", "srcset", "data", "action"} & set(attributes), tag
    policy = next(each["content"] or "" for _, each in Tags(page).found if each.get("http-equiv"))
    assert "default-src 'none'" in policy
    assert not re.search(r"url\((?!data:)|@import", re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL))
