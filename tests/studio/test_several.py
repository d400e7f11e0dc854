"""Pages of several things in a browser: runs beside one another, and inputs of which one is chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chromium import CHROMIUM, Page, drawn

import legato
from legato.inspect.report.comparison import comparison_report
from legato.inspect.report.predictions import PredictionPage
from tiny_runs import small
from tiny_tasks import tiny

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

TEXTS = ["a dog runs", "a man sings </script><b>"]


def every_view_draws(held: Page, page: Any) -> None:
    for number in range(page.locator("nav button").count()):
        page.locator("nav button").nth(number).click()
        held.settle()
        assert page.locator(".problem").count() == 0
        assert all(count > 1 for count in drawn(page))


def test_runs_lie_beside_one_another(browser: Any, tmp_path: Path) -> None:
    settings = {**small(tmp_path, train__steps=8), "model": ["elman", "lstm"], "train.samples": 1}
    comparison = legato.compare("lm", settings, seed=[1, 2], out=tmp_path / "c", quiet=True)
    file = tmp_path / "c.html"
    comparison_report(comparison).write_html(file)
    held = Page(browser)
    page = held.open(file)
    held.settle()
    assert page.locator("main h1").text_content() == "Runs"
    loss = page.locator("[data-figure='train.loss'] [data-series]")
    assert loss.count() == 4
    assert page.locator("pre.sample").count() == 4
    page.get_by_label("lstm, seed 2").uncheck()
    assert loss.count() == 3
    page.get_by_role("combobox", name="over").select_option("tokens")
    page.get_by_label("logarithmic").check()
    held.settle()
    assert "x.without=3" in page.url
    assert "x.over=tokens" in page.url
    every_view_draws(held, page)
    page.keyboard.press("1")
    assert page.locator("main h2").all_text_contents() == ["elman", "lstm"]
    assert page.locator("main .head span").all_text_contents() == [
        "part",
        "class",
        "parameters",
        "",
    ]  # nothing was read
    held.clean(file)


def test_runs_of_one_name_are_drawn_each(browser: Any, tmp_path: Path) -> None:
    settings = {**small(tmp_path, train__steps=2), "model": ["elman", "lstm"], "train.samples": 1}
    report = comparison_report(legato.compare("lm", settings, out=tmp_path / "c", quiet=True))
    for run in report.views["runs"]["runs"]:
        run["name"] = "elman"
    file = tmp_path / "c.html"
    report.write_html(file)
    held = Page(browser)
    page = held.open(file)
    held.settle()
    assert page.locator(".problem").count() == 0
    assert page.locator("[data-figure='train.loss'] [data-series]").count() == 2
    assert page.locator("pre.sample").count() == 2
    assert "so their last ones may differ" in (page.locator("main .caption").text_content() or "")
    held.clean(file)


@pytest.mark.parametrize("task", ["translation", "parsing"])
def test_one_of_several_inputs_is_chosen(task: str, browser: Any, tmp_path: Path) -> None:
    legato.train(task, tiny(task, tmp_path / "data"), out=tmp_path / "run", quiet=True)
    model, file = legato.load(tmp_path / "run", "cpu"), tmp_path / "p.html"
    PredictionPage(model, file).add(TEXTS, model.predictions(TEXTS))
    held = Page(browser)
    page = held.open(file)
    held.settle()
    first = {"translation": "Alignment", "parsing": "Decoding"}[task]
    assert page.locator("main h1").text_content() == first
    chooser = page.locator("header select")
    assert chooser.locator("option").all_text_contents() == TEXTS
    chooser.select_option("1")
    held.settle()
    assert "input=1" in page.url
    every_view_draws(held, page)
    again = Page(browser)
    other = again.open(file, "#input=1")
    again.settle()
    assert other.locator("header select").input_value() == "1"
    assert "input=7" in again.open(file, "#input=7").url  # which is none: the first is shown
    assert other.locator("header select").input_value() == "0"
    held.clean(file)
    again.clean(file)
