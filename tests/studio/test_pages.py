"""Reports in a browser: each view of each kind of model draws, from a file, with no network and without an error.

They need Debian's Chromium (or another), which Playwright drives; without one they are skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from chromium import CHROMIUM, Page, drawn

import legato
from legato.data.audio.feature_extractor import FeatureExtractor
from legato.data.image.image_processor import ImageProcessor
from legato.data.processors import Processors
from legato.folders.loaded import Loaded
from legato.inspect.report import build, trace_views
from legato.inspect.report.build import report_of
from legato.inspect.report.page import Report
from legato.model import Model
from random_models import SMALL, made
from tiny_pictures import pixels, word_tokenizer
from tiny_sounds import RATE, samples_of
from tiny_tasks import tiny

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

TEXT = "a red dog saw a cat and a red dog"
PICTURE, SOUND = pixels("red"), (samples_of("high low", 5), RATE)


def random_model(name: str, task: str) -> Model:
    tokenizer = word_tokenizer()
    module = made(name, tokenizer.size)
    side = SMALL["image"]
    kinds = {"image": ImageProcessor((side, side)), "audio": FeatureExtractor(bins=SMALL["features"])}
    others = {kind: kinds[kind] for kind in module.processors_of(module.config) if kind in kinds}
    loaded = Loaded(Path(name), module, Processors(tokenizer, others=others), task, {})
    return Model(loaded, torch.device("cpu"))


def trained(task: str, folder: Path) -> Model:
    legato.train(task, tiny(task, folder / "data", train__steps=1), out=folder / "run", quiet=True)
    return legato.load(folder / "run", "cpu")


KINDS: dict[str, tuple[Any, Any, set[str]]] = {  # how a model is made, what it reads, the views that it must have
    "lstm": (lambda folder: trained("lm", folder), "the dog runs", {"map", "cells", "gradient"}),
    "gpt2": (lambda _: random_model("gpt2", "lm"), TEXT, {"map", "cells", "attention", "lens", "head", "layers"}),
    "bert": (lambda _: random_model("bert", "mlm"), TEXT, {"map", "attention", "head", "lens", "positions"}),
    "transformer": (lambda _: random_model("transformer", "translation"), TEXT, {"alignment", "attention", "tree"}),
    "seq2seq": (lambda folder: trained("translation", folder), "the dog runs", {"alignment", "cells", "tree"}),
    "captioner": (lambda folder: trained("captioning", folder), PICTURE, {"alignment", "cells"}),
    "vit": (lambda folder: trained("image-classification", folder), PICTURE, {"attention", "map"}),
    "detr": (lambda folder: trained("detection", folder), PICTURE, {"alignment", "positions"}),
    "conformer": (lambda folder: trained("speech", folder), SOUND, {"attention", "map"}),
    "whisper": (lambda _: random_model("whisper", "speech"), SOUND, {"attention", "alignment"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_view_draws_without_a_network_and_without_an_error(kind: str, browser: Any, tmp_path: Path) -> None:
    make, given, wanted = KINDS[kind]
    model = make(tmp_path)
    options = {"written": "a cat"} if kind == "whisper" else {}
    report = report_of(model, given, **options)
    assert wanted <= set(report.views)
    file = tmp_path / "report.html"
    report.write_html(file)
    held = Page(browser)
    page = held.open(file)
    names = page.locator("nav button").count()
    assert names == len(report.views)
    if kind in ("lstm", "captioner"):
        page.keyboard.press("d")  # dark
    for number in range(names):
        page.locator("nav button").nth(number).click()
        held.settle()
        assert page.locator(".problem").count() == 0
        assert all(count > 1 for count in drawn(page))
    held.clean(file)


def test_a_notebook_shows_a_trace_without_an_error(browser: Any, tmp_path: Path) -> None:
    cell = random_model("gpt2", "lm").trace(TEXT)._repr_html_()
    file = tmp_path / "notebook.html"
    file.write_text(f'<!doctype html><meta charset="utf-8"><main><h1>A notebook</h1>{cell}</main>', "utf-8")
    held = Page(browser)
    page = held.open(file)
    shown = page.frames[1]
    shown.wait_for_selector("main h1")
    for number in range(shown.locator("nav button").count()):
        shown.locator("nav button").nth(number).click()
        page.wait_for_timeout(100)
        assert shown.locator(".problem").count() == 0
        assert all(count > 1 for count in drawn(shown))
    held.clean(file)


def test_units_that_are_all_too_large_are_named(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for most in ("MOST_CELLS", "MOST_STATES"):
        monkeypatch.setattr(trace_views, most, 1)
    file = tmp_path / "report.html"
    report_of(random_model("gpt2", "lm"), TEXT).write_html(file)
    held = Page(browser)
    page = held.open(file, "#view=cells")
    held.settle()
    assert "Left out, for their size: decoder.embedded" in (page.locator("main").text_content() or "")
    assert page.locator("main canvas").count() == 0
    held.clean(file)


def test_tokens_that_read_the_same_are_all_told(browser: Any, tmp_path: Path) -> None:
    report = report_of(random_model("gpt2", "lm"), TEXT)
    report.guesses = [[("\ufffd", 0.5), ("\ufffd", 0.3), ("a", 0.2)] for _ in report.guesses]  # bytes of characters
    file = tmp_path / "report.html"
    report.write_html(file)
    held = Page(browser)
    page = held.open(file, "#view=cells&position=1")
    held.settle()
    assert page.locator(".problem").count() == 0
    assert page.locator(".guess").all_text_contents() == ["\ufffd 0.50", "\ufffd 0.30", "a 0.20"]
    held.clean(file)


def test_models_of_one_name_have_each_their_gradient(browser: Any, tmp_path: Path) -> None:
    report = report_of(random_model("gpt2", "lm"), TEXT)
    report.views["gradient"]["lines"] *= 2  # a folder may be called as the cell of another model is
    file = tmp_path / "report.html"
    report.write_html(file)
    held = Page(browser)
    page = held.open(file, "#view=gradient&position=1")
    held.settle()
    assert page.locator(".problem").count() == 0
    assert page.locator("tbody tr").count() == 2
    held.clean(file)


def test_why_a_long_text_has_no_gradient_is_said(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "MOST_TOKENS", 8)
    file = tmp_path / "report.html"
    report_of(random_model("gpt2", "lm"), TEXT).write_html(file)
    held = Page(browser)
    page = held.open(file)
    told = page.locator("nav .absent").all_text_contents()
    assert told == ["no Gradient: the text has 11 tokens, and gradients are drawn of 8 at most"]
    held.clean(file)


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a model that detects boxes."""
    folder = tmp_path_factory.mktemp("boxes")
    report_of(trained("detection", folder), PICTURE).write_html(folder / "report.html")
    return folder / "report.html"


def test_what_looks_without_writing_are_queries(browser: Any, boxes: Path) -> None:
    held = Page(browser)
    page = held.open(boxes, "#view=alignment")
    held.settle()
    assert page.locator(".about").text_content() == "Where a decoder looks for each query."
    assert page.locator("main canvas").get_attribute("aria-label") == "Where in the picture each query looks"
    held.clean(boxes)


def saved_svg(page: Any, label: str, place: Path) -> str:
    with page.expect_download() as saving:
        figure = page.locator("figure", has=page.get_by_label(label))
        figure.get_by_role("button", name="SVG").click()
    saving.value.save_as(place)
    return place.read_text(encoding="utf-8")


def test_rows_and_columns_of_a_grid_count_from_1(browser: Any, boxes: Path) -> None:
    held = Page(browser)
    page = held.open(boxes, "#view=positions")
    held.settle()
    for what in ("column", "row"):
        section = page.locator("section", has=page.get_by_label(f"The waves of each {what}"))
        section.locator("canvas").hover(position={"x": 42, "y": 24})
        assert (section.locator(".told").text_content() or "").strip().startswith("(1, 0) ")
    held.clean(boxes)


def test_the_chosen_patch_has_a_frame_of_two_tones(browser: Any, boxes: Path, tmp_path: Path) -> None:
    held = Page(browser)
    page = held.open(boxes, "#view=positions")
    held.settle()
    for label in ("The chosen patch alone", "For each patch a small picture"):
        drawn_frame = saved_svg(page, label, tmp_path / "grid.svg")
        assert all(f'stroke="{tone}"' in drawn_frame for tone in ("#1d2129", "#fbfaf7"))  # ink and paper
    held.clean(boxes)


def test_what_a_text_says_is_never_run(browser: Any, tmp_path: Path) -> None:
    report = report_of(random_model("gpt2", "lm"), TEXT)
    nasty = ["<script>window.ran = 1</script>", "</script><img src=x onerror='window.ran = 1'>", "\u2028&amp;"]
    names = list(report.streams["input"]["names"])
    report.streams["input"]["names"] = [*nasty, *names[len(nasty) :]]
    report.given = nasty[1]
    report.written = [*nasty, *(report.written or [])[len(nasty) :]]
    report.guesses = [[(nasty[0], 0.5), (nasty[1], 0.5)] for _ in report.guesses]
    file = tmp_path / "report.html"
    report.write_html(file)
    held = Page(browser)
    page = held.open(file)
    for number in range(page.locator("nav button").count()):
        page.locator("nav button").nth(number).click()
        held.settle()
    assert page.evaluate("window.ran") is None
    assert page.locator("header .given").text_content() == nasty[1]
    held.clean(file)


@pytest.mark.parametrize(
    "address", ["#view=nothing&head=-1", "#%%%=%&position=99999999999", "#view=attention&head=999"]
)
def test_an_address_with_nonsense_in_it(address: str, browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    report_of(random_model("gpt2", "lm"), TEXT).write_html(file)
    held = Page(browser)
    page = held.open(file, address)
    held.settle()
    assert page.locator(".problem").count() == 0
    held.clean(file)


def test_what_is_chosen_is_in_the_address_and_opens_again(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    report_of(random_model("gpt2", "lm"), TEXT).write_html(file)
    held = Page(browser)
    page = held.open(file, "#view=attention")
    held.settle()
    page.locator("main canvas").first.click(position={"x": 160, "y": 20})
    held.settle()
    assert "layer=decoder.0.attention.weights" in page.url
    again = Page(browser)
    other = again.open(file, page.url[page.url.index("#") :])
    again.settle()
    assert other.locator("main h2").first.text_content() == "decoder.0.attention.weights, head 0"
    again.clean(file)


def test_a_picture_is_saved_as_png_and_as_svg(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    report_of(random_model("gpt2", "lm"), TEXT).write_html(file)
    held = Page(browser)
    page = held.open(file, "#view=attention")
    held.settle()
    for name, begins in (("PNG", b"\x89PNG"), ("SVG", b"<svg ")):
        with page.expect_download() as saving:
            page.get_by_role("button", name=name).first.click()
        saving.value.save_as(tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(begins)
    held.clean(file)


def test_a_page_without_a_report_says_what_writes_one(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    Report("", "", {"name": "nothing", "task": "lm", "folder": "", "parameters": 0}).write_html(file)
    held = Page(browser)
    held.page.goto(f"file://{file}")
    held.page.wait_for_selector(".problem")
    assert held.problems == []
