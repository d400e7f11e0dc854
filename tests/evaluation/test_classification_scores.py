"""Scores of classes, labels and numbers: scikit-learn's and SciPy's, and what went wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from legato.data.formats.labels import Labels
from legato.evaluation.classification import (
    Baseline,
    classification_details,
    classification_scores,
    probabilities,
)

TWO = Labels("classes", ["no", "yes"])
THREE = Labels("classes", ["a", "b", "c"])
TAGS = Labels("multilabel", ["x", "y"])


def certain(guesses: list[int], classes: int) -> Any:
    return np.eye(classes)[guesses] * 0.8 + 0.2 / classes


def test_probabilities_are_what_the_outputs_say() -> None:
    np.testing.assert_allclose(probabilities("classes", np.array([[0.0, np.log(3.0)]])), [[0.25, 0.75]])
    np.testing.assert_allclose(probabilities("multilabel", np.array([[0.0, np.log(3.0)]])), [[0.5, 0.75]])
    np.testing.assert_allclose(probabilities("regression", np.array([[2.5], [-1.0]])), [2.5, -1.0])
    assert np.isfinite(probabilities("multilabel", np.array([[-1e4, 1e4]]))).all()


def test_scores_of_two_classes_by_hand() -> None:
    # 2 yes found, 1 missed, 1 false alarm, 2 no found: precision = recall = 2/3.
    scores = classification_scores(TWO, certain([1, 1, 0, 1, 0, 0], 2), [1, 1, 1, 0, 0, 0])
    assert scores["accuracy"] == pytest.approx(4 / 6)
    assert scores["f1"] == pytest.approx(2 / 3)
    assert scores["matthews"] == pytest.approx((2 * 2 - 1 * 1) / np.sqrt(3 * 3 * 3 * 3))
    assert scores["f1_signature"].startswith("f1:positive=yes|macro_f1:classes=2|zero_division:0|scikit-learn:")


def test_a_class_that_is_never_seen_counts_as_zero() -> None:
    scores = classification_scores(THREE, certain([0, 1], 3), [0, 1])
    assert scores["macro_f1"] == pytest.approx(2 / 3)
    assert "f1" not in scores


def test_scores_of_several_labels_by_hand() -> None:
    found = np.array([[0.9, 0.5], [0.2, 0.7], [0.4, 0.1]])  # from a half on a text has a label
    scores = classification_scores(TAGS, found, [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    assert scores["exact"] == pytest.approx(2 / 3)
    assert scores["micro_f1"] == pytest.approx(2 * 2 / (3 + 2))
    assert scores["macro_f1"] == pytest.approx((1 + 2 / 3) / 2)


def test_correlations_of_values_and_of_ranks() -> None:
    scores = classification_scores(Labels("regression"), np.array([1.0, 2.0, 30.0]), [1.0, 2.0, 3.0])
    assert scores["spearman"] == pytest.approx(1.0)
    assert 0.8 < scores["pearson"] < 1.0


@pytest.mark.parametrize("found", [[2.0, 2.0, 2.0], [1.0, 2.0, 3.0]])
def test_what_never_changes_correlates_with_nothing(found: list[float]) -> None:
    wanted = [1.0, 2.0, 3.0] if len(set(found)) == 1 else [2.0, 2.0, 2.0]
    scores = classification_scores(Labels("regression"), np.array(found), wanted)
    assert scores["spearman"] == scores["pearson"] == 0.0


def test_details_name_confusions_classes_and_worst_errors() -> None:
    found = np.array([[0.9, 0.1], [0.3, 0.7], [0.05, 0.95]])
    details = classification_details(TWO, found, [0, 0, 0], ["fine", "odd", "worst"], ["line 1", "line 2", "line 3"])
    confusion, classes, worst = details
    assert confusion[1:] == (["true \\ guessed", "no", "yes"], [["no", 1, 2], ["yes", 0, 0]])
    assert classes[2][0] == ["no", 1.0, pytest.approx(1 / 3), pytest.approx(0.5), 3]
    assert worst[0] == "worst errors, 2 of 2"
    assert [row[3:] for row in worst[2]] == [["worst", "line 3"], ["odd", "line 2"]]


def test_many_classes_show_the_confusions_that_come_most() -> None:
    labels = Labels("classes", [f"c{n}" for n in range(30)])
    guesses = [1, 1, 2, 3]
    title, columns, rows = classification_details(labels, certain(guesses, 30), [0, 0, 0, 3], ["t"] * 4, ["p"] * 4)[0]
    assert title == "most frequent confusions"
    assert columns == ["true", "guessed", "texts"]
    assert rows == [["c0", "c1", 2], ["c0", "c2", 1]]


def test_details_of_labels_and_of_numbers() -> None:
    found = np.array([[0.9, 0.1], [0.2, 0.6]])
    _, worst = classification_details(TAGS, found, [[0.0, 0.0], [0.0, 1.0]], ["one", "two"], ["line 1", "line 2"])
    assert worst[2] == [["x", "no", 0.9, "one", "line 1"]]
    (values,) = classification_details(Labels("regression"), np.array([1.0, 5.0]), [1.5, 2.0], ["a", "b"], ["1", "2"])
    assert [row[3] for row in values[2]] == ["b", "a"]


@pytest.mark.parametrize(
    ("labels", "wanted", "figure"),
    [
        (TWO, [0, 1] * 8, "baseline_accuracy"),
        (THREE, [0, 2] * 8, "baseline_accuracy"),  # of one class there is no example
        (TAGS, [[0.0, 1.0], [1.0, 0.0]] * 8, "baseline_micro_f1"),
        (Labels("regression"), [0.5, 4.5] * 8, "baseline_spearman"),
    ],
)
def test_the_plain_model_learns_what_words_tell(labels: Labels, wanted: list[Any], figure: str) -> None:
    texts = [f"a {'sad' if n % 2 else 'merry'} story number {n}" for n in range(16)]
    scores = Baseline(labels, texts, wanted).scores(texts, wanted)
    assert scores[figure] > 0.8
    assert all(isinstance(value, float) for value in scores.values())
