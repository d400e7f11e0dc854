"""A report's container: numbers as bytes and as halves, JSON that no tag ends, one page."""

from __future__ import annotations

import json
import os
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from legato.errors import DataError
from legato.inspect.report.page import Report, page_of, studio_page
from legato.inspect.report.trace_views import block_means

MODEL: dict[str, str | int] = {"name": "gpt2", "task": "lm", "folder": "x", "parameters": 3}


def unpacked(report: Report, number: int) -> Any:
    kept = report.arrays[number]
    found = np.frombuffer(zlib.decompress(kept.blob), np.uint8 if kept.dtype == "u8" else "<f2").reshape(kept.shape)
    if kept.dtype == "f16":
        return found.astype(np.float32)
    return kept.low + (kept.high - kept.low) * (found / 255.0) ** kept.power


def test_numbers_come_back_as_near_as_a_byte_can_say() -> None:
    report, drawn = Report("", "", MODEL), np.random.default_rng(0)
    values = drawn.uniform(-3, 5, (4, 7)).astype(np.float32)
    np.testing.assert_allclose(unpacked(report, report.whole(values)), values, atol=8 / 255 / 2 + 1e-5)
    np.testing.assert_allclose(unpacked(report, report.signed(values)), values, atol=10 / 255 / 2 + 1e-5)
    np.testing.assert_allclose(unpacked(report, report.halves(values)), values, rtol=1e-3)
    weights = drawn.dirichlet(np.full(50, 0.1), 6).astype(np.float32)
    near = unpacked(report, report.whole(weights, 0, 1, 2.0))
    np.testing.assert_allclose(np.sqrt(near), np.sqrt(weights), atol=1 / 255)


@pytest.mark.parametrize("values", [np.zeros((0, 3)), np.zeros((2, 2)), np.array([np.nan, np.inf, -np.inf, 1.0])])
def test_numbers_that_say_little(values: Any) -> None:
    report = Report("", "", MODEL)
    for keep in (report.whole, report.signed, report.halves):
        assert unpacked(report, keep(values)).shape == values.shape


def test_no_token_ends_the_script_that_holds_it() -> None:
    report = Report("", "</script><script>alert(1)</script><!--", MODEL)
    page = report.html()
    told = re.search(r'<script type="application/json" id="report">(.*?)</script>', page, re.DOTALL)
    assert told is not None
    assert "<" not in told[1]
    assert json.loads(told[1])["given"] == report.given
    assert "alert(1)</script>" not in page


def test_the_page_may_run_no_script_but_its_own_and_names_nobody_outside() -> None:
    page = studio_page()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe-eval" not in policy[1]
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/=]+';", policy[1])
    known = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml", "http://www.w3.org/1998/Math/MathML"}
    named = {
        found for found in re.findall(r"https?://[^\s\"'`)\\]+", page) if not found.startswith("https://svelte.dev")
    }
    assert named <= known | {"http://www.w3.org/1999/xlink", "http://www.w3.org/XML/1998/namespace"}


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"the report cannot be written to .*file.x\.html"):
        Report("", "", MODEL).write_html(tmp_path / "file" / "x.html")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="which is no regular file"):
        Report("", "", MODEL).write_html(tmp_path / "pipe")
    for folder in (".", "..", "/", tmp_path):
        with pytest.raises(DataError, match="which is a folder"):
            Report("", "", MODEL).write_html(folder)


def test_a_page_of_several_reports_keeps_their_arrays_apart() -> None:
    reports = [Report(name, name, MODEL) for name in ("first", "second")]
    for number, report in enumerate(reports):
        report.halves(np.full(3, float(number)))
    page = page_of(reports)
    assert re.findall(r' id="((?:report|blob)[-\d]*)"', page) == ["report", "blob-0", "report-1", "blob-1-0"]
    assert page_of(reports[:1]) == reports[0].html()


def test_block_means_keep_the_mean_of_even_blocks() -> None:
    values = np.random.default_rng(0).random((2, 48, 96)).astype(np.float32)
    small = block_means(values, 24)
    assert small.shape == (2, 24, 24)
    np.testing.assert_allclose(small[1, 3, 5], values[1, 6:8, 20:24].mean(), rtol=1e-5)
    assert block_means(values[:, :5, :7], 24).shape == (2, 5, 7)
