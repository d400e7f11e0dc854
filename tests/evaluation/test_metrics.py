"""What tasks say of their figures: one scale in print, whatever the scale they are kept on."""

from __future__ import annotations

import pytest

from legato.evaluation.metrics import Metric, metric_of, metrics, printed_scores
from legato.registry import TASKS
from legato.runs.config import find_recipe, list_recipes

SHARES = ("accuracy", "f1", "bleu", "chrf", "spearman", "pearson", "matthews", "exact", "precision", "recall", "mrr")


@pytest.mark.parametrize("task", TASKS.names())
def test_every_task_prints_shares_scores_and_correlations_in_percent(task: str) -> None:
    for metric in TASKS.get(task).metrics:
        if any(share in metric.name.split("_") for share in SHARES):
            assert metric.unit, metric.name
            assert metric.better == "up", metric.name
        if "loss" in metric.name or "perplexity" in metric.name:
            assert (metric.unit, metric.better) == ("", "down"), metric.name


@pytest.mark.parametrize("task", TASKS.names())
def test_every_task_shows_something_beside_the_loss(task: str) -> None:
    shown = [metric.name for metric in TASKS.get(task).metrics if metric.headline]
    assert "loss" in shown
    assert len(shown) > 1


def test_an_accuracy_and_an_f1_of_two_tasks_read_alike() -> None:
    kept = {"classification": {"accuracy": 0.875, "f1": 0.9}, "tagging": {"accuracy": 0.875, "f1": 90.0}}
    printed = [printed_scores(TASKS.get(task).metrics, scores) for task, scores in kept.items()]
    assert printed[0] == printed[1] == {"accuracy": "87.50%", "f1": "90.00%"}


def test_numbers_counts_texts_and_what_is_not_finite_print_as_they_are() -> None:
    scores = {"loss": 1.25, "tokens": 12345, "signature": "a|b", "accuracy": None, "valid.more_of_it": 2.0}
    assert printed_scores(metrics("accuracy", unit="fraction"), scores) == {
        "loss": "1.2500",
        "tokens": "12,345",
        "signature": "a|b",
        "accuracy": "not finite",
        "valid more of it": "2.0000",
    }


def test_points_are_on_the_scale_of_percent_without_its_sign() -> None:
    figures = {"bleu": 41.2, "wer": 41.2, "matthews": 0.412, "f1": 0.412}
    known = [metric for task in ("translation", "speech", "classification") for metric in TASKS.get(task).metrics]
    printed = {name: metric_of(known, name).text(value) for name, value in figures.items()}
    assert printed == {"bleu": "41.20", "wer": "41.20%", "matthews": "41.20", "f1": "41.20%"}


def test_a_figure_that_depends_on_the_search_says_which() -> None:
    known = metrics("bleu", "bleu_*", unit="percent", decoded=True, points=True)
    assert printed_scores(known, {"loss": 2, "bleu_de": 30.0}, search="greedy") == {
        "loss": "2",
        "bleu de (greedy)": "30.00",
    }
    split = {"valid.bleu": 30.0, "valid.search": "beam 4", "test.bleu": 31.0, "test.search": "greedy"}
    assert printed_scores(known, split) == {"valid bleu (beam 4)": "30.00", "test bleu (greedy)": "31.00"}


def test_a_pattern_names_metrics_and_what_nobody_names_is_a_plain_number() -> None:
    known = (Metric("bleu", "percent"), Metric("bleu_*", "percent", "up"))
    assert metric_of(known, "test.bleu_en-de").better == "up"
    assert metric_of(known, "valid.bleu") is known[0]
    assert metric_of(known, "minutes") == Metric("minutes")


@pytest.mark.parametrize("name", list_recipes())
def test_what_recipes_expect_is_on_the_scale_that_files_hold(name: str) -> None:
    recipe = find_recipe(name) or {}
    for figure, bound in recipe.get("expect", {}).items():
        metric = metric_of(TASKS.get(recipe["task"]).metrics, figure)
        if metric.unit:
            least = 1 if metric.better == "down" else 15  # of errors there may be few
            assert least <= metric.printed(bound.get("at_least", bound.get("at_most"))) <= 100, (figure, bound)
