"""Figures as people read them: in percent wherever they are printed, as their scorers give them in files and JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from answers import Command
from tiny_reviews import settings, write_reviews
from tiny_runs import read_metrics, words
from tiny_tagged import small as small_tagging


@pytest.fixture
def reviews(command: Command, tmp_path: Path) -> Any:
    """A classifier that has been trained on the command line, and what that printed."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("task: classification\nexpect: {valid.accuracy: {at_least: 0.25, measured: 0.5}}\n")
    done = command("train", recipe, *words(settings(tmp_path, model__layers=1)), f"out={tmp_path}/run")
    assert done.code == 0, done.err
    return done


def kept(folder: Path) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads((folder / "run" / "result.json").read_text())["metrics"]
    return metrics


def test_training_a_classifier_prints_percent_and_keeps_fractions(reviews: Any, tmp_path: Path) -> None:
    accuracy = kept(tmp_path)["valid.accuracy"]
    assert 0.5 < accuracy <= 1
    assert [line for line in read_metrics(tmp_path / "run") if line["kind"] == "valid"][-1]["accuracy"] <= 1
    assert f"valid accuracy: {100 * accuracy:.2f}%\n" in reviews.err
    assert f"expected valid.accuracy ≥ 25%: got {100 * accuracy:.2f}%, reached\n" in reviews.err
    validated = re.findall(r"valid at step \d+: loss [\d.]+  accuracy ([\d.]+)%", reviews.err)
    assert validated
    assert all(float(share) >= 25 for share in validated)


def test_eval_the_card_and_json_of_a_classifier(reviews: Any, command: Command, tmp_path: Path) -> None:
    told = json.loads(command("eval", tmp_path / "run", f"data.test={tmp_path}/valid.tsv", "--json").out)
    assert told["accuracy"] <= 1
    shown = command("eval", tmp_path / "run", f"data.test={tmp_path}/valid.tsv").out
    for name, sign in (("accuracy", "%"), ("f1", "%"), ("macro f1", "%"), ("matthews", "")):
        assert re.search(rf"│ {name} +│ +{100 * told[name.replace(' ', '_')]:.2f}{sign} │", shown), name
    first = told["details"][1]["rows"][0]  # a class: its precision, recall and f1
    numbers = " +│ +".join(f"{100 * share:.2f}%" for share in first[1:4])
    assert re.search(rf"{first[0]} +│ +{numbers}", shown)
    assert f"| accuracy | {100 * told['accuracy']:.2f}% |" in (tmp_path / "run" / "best" / "README.md").read_text()


def test_counts_in_a_column_that_is_called_as_a_figure_stay_counts(command: Command, tmp_path: Path) -> None:
    given = settings(tmp_path, model__layers=1, train__steps=2, train__validate_every=2)
    for name, seed in (("train", 1), ("valid", 2)):
        write_reviews(tmp_path / f"{name}.tsv", 20, seed, labels=("recall", "f1"))
    assert command("train", "classification", *words(given), f"out={tmp_path}/run").code == 0
    shown = command("eval", tmp_path / "run", f"data.test={tmp_path}/valid.tsv").out
    confusion = shown.partition("confusion")[2].partition("scores per class")[0]
    assert sum(map(int, re.findall(r"│ +(\d+)", confusion))) == 20


def test_a_tagger_prints_all_its_shares_on_one_scale(command: Command, tmp_path: Path) -> None:
    given = small_tagging(tmp_path)
    done = command("train", "tagging", *words(given), f"out={tmp_path}/run")
    scores = kept(tmp_path)
    assert scores["valid.accuracy"] <= 1 < scores["valid.f1"]
    assert f"valid f1: {scores['valid.f1']:.2f}%\n" in done.err
    assert f"valid accuracy: {100 * scores['valid.accuracy']:.2f}%\n" in done.err


def test_a_comparison_prints_percent_and_keeps_fractions(command: Command, tmp_path: Path) -> None:
    given = settings(tmp_path, model__layers=1, train__steps=2, train__validate_every=2)
    done = command(
        *("compare", "classification", "model=[elman,lstm]", "seed=[1,2]", "--quiet", f"out={tmp_path}/c"),
        *words(given),
    )
    assert done.code == 0, done.err
    entries = json.loads((tmp_path / "c" / "compare.json").read_text())["entries"]
    for entry in entries:
        mean, spread = entry["valid.accuracy"].values()
        assert 0 <= mean <= 1
        assert f"{100 * mean:.2f}% ± {100 * spread:.2f}%" in " ".join(done.out.split())


def test_recipes_promise_what_training_prints(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    shown = command("recipes").out
    assert "valid.accuracy ≥ 88.5% (measured 89.8%)" in shown
    assert "test.bleu ≥ 38.5 (measured 41.17)" in shown
    assert "test.perplexity ≤ 70 (measured 59.2)" in shown
    assert json.loads(command("recipes", "--json").out)["classification/sst2"]["expect"]["valid.accuracy"] == {
        "at_least": 0.885,
        "measured": 0.898,
    }
