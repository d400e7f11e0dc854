"""`legato inspect --html --beside`: gradients of several models in one report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import legato
from legato.inspect.gradients import gradient_through_time
from reports import reports_in

TEXT = "the dog runs and the dog"
QUICK: dict[str, Any] = {"train.steps": 2, "train.samples": 0, "train.tensorboard": "false"}
QUICK |= {"device": "cpu", "model.width": 16}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("beside")
    (folder / "text.txt").write_text("the dog runs and the dog sleeps\n" * 40, encoding="utf-8")
    text = {**QUICK, "data.train": str(folder / "text.txt"), "data.valid_share": 0.3, "tokenizer": "word"}
    text |= {"train.batch_tokens": 64, "data.window": 16, "model.layers": 1}
    for seed, (name, model) in enumerate([("elman", "elman"), ("first", "gru"), ("gru", "gru")]):
        legato.train("lm", {**text, "model": model, "seed": seed}, out=folder / name, quiet=True)
    for name in ("masked", "other"):
        legato.train("mlm", {**text, "model": "bert", "model.heads": 2}, out=folder / name, quiet=True)
    pairs = {"data.train": "toy:language", "data.toy.count": 50, "data.toy.valid_count": 5}
    pairs |= {"model": "seq2seq", "model.layers": 1}
    legato.train("translation", {**QUICK, **pairs}, out=folder / "pairs", quiet=True)
    return folder


def gradients(page: Path) -> dict[str, Any]:
    (told,) = reports_in(page)
    view: dict[str, Any] = told["views"]["gradient"]
    return view


def beside(*folders: Any) -> list[Any]:
    return [word for folder in folders for word in ("--beside", folder)]


def test_two_models_are_drawn_side_by_side(runs: Path, command: Any, tmp_path: Path) -> None:
    page = tmp_path / "two.html"
    answer = command("inspect", runs / "elman", TEXT, "--html", page, *beside(runs / "gru"))
    assert answer.code == 0, answer.err
    assert "<Trace of elman on" in answer.out
    lines = gradients(page)["lines"]
    assert [line["name"] for line in lines] == ["elman", "gru"]
    for line in lines:
        found = gradient_through_time(legato.load(runs / line["name"], "cpu"), TEXT)
        assert line["loss"] == pytest.approx(found.loss, rel=1e-5)
        assert line["tokens"] == list(found.tokens)
    assert [line["factor"] is None for line in lines] == [False, True]


def test_models_of_one_kind_are_called_after_their_folders(runs: Path, command: Any, tmp_path: Path) -> None:
    page = tmp_path / "same.html"
    command("inspect", runs / "gru", TEXT, "--html", page, *beside(runs / "first", runs / "gru", runs / "first"))
    names = [line["name"] for line in gradients(page)["lines"]]
    assert names == ["gru", str(runs / "first"), str(runs / "gru")]  # what is named twice is drawn once
    losses = [line["loss"] for line in gradients(page)["lines"]]
    assert losses[0] == losses[2] != losses[1]


def test_a_folder_that_is_called_as_a_kind_takes_the_place_of_no_other(
    runs: Path, command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs)
    page = tmp_path / "kinds.html"
    command("inspect", "gru", TEXT, "--html", page, *beside("gru", "first"))
    assert [line["name"] for line in gradients(page)["lines"]] == ["gru", "gru/best", "first"]
    command("inspect", "elman", TEXT, "--html", page, *beside("first", "gru"))
    lines = gradients(page)["lines"]
    assert [line["name"] for line in lines] == ["elman", "gru", "gru/best"]
    losses = [gradient_through_time(legato.load(name, "cpu"), TEXT).loss for name in ("first", "gru")]
    assert [line["loss"] for line in lines[1:]] == pytest.approx(losses, rel=1e-5)


def test_a_model_without_such_gradients_is_named(runs: Path, command: Any, tmp_path: Path) -> None:
    page = tmp_path / "left.html"
    command("inspect", runs / "masked", TEXT, "--html", page, *beside(runs / "gru"))
    view = gradients(page)
    assert ([line["name"] for line in view["lines"]], view["left"]) == (["gru"], ["bert"])


@pytest.mark.parametrize(
    ("model", "other", "said"),
    [
        ("gru", "nothing/here", "nothing/here"),
        ("gru", ".", "is no model folder"),
        ("pairs", "gru", "does not predict the next token of what it reads, so there is no gradient to draw others"),
        ("masked", "other", "none of the models predicts the next token, so there is no gradient"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_a_line_and_nothing_is_written(
    runs: Path, command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, other: str, said: str
) -> None:
    monkeypatch.chdir(runs)
    page = tmp_path / "none.html"
    answer = command("inspect", model, TEXT, "--html", page, *beside(other))
    assert (answer.code, answer.err.count("\n")) == (2, 1), answer.err
    assert said in answer.err
    assert not page.exists()


def test_it_is_for_a_page(runs: Path, command: Any) -> None:
    answer = command("inspect", runs / "gru", TEXT, *beside(runs / "first"))
    assert (answer.code, answer.err) == (2, "legato: --beside is for --html; leave it out\n")
