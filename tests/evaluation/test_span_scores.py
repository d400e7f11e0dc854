"""SQuAD's scores, against numbers worked by hand; and the threshold, against trying all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.evaluation.qa import best_scores, best_threshold, exact_match, normalised, span_scores, word_f1


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("The  Battle, of Jena!", "battle of jena"),
        ("a cat and an owl", "cat and owl"),
        ("U.S.", "us"),
        ("theatre", "theatre"),  # an article is a whole word
        ("Zürich–Bern", "zürich–bern"),  # only ASCII punctuation goes, as in the published script
        ("The", ""),
    ],
)
def test_answers_are_compared_without_case_punctuation_and_articles(text: str, bare: str) -> None:
    assert normalised(text) == bare


def test_exact_match_is_all_or_nothing() -> None:
    assert exact_match("the October of 1973.", "October of 1973") == 1.0
    assert exact_match("October 1973", "1973") == 0.0


@pytest.mark.parametrize(
    ("answer", "right", "f1"),
    [
        ("October 1973", "1973", 2 * 1 * 0.5 / 1.5),  # all of the right one, half of the answer
        ("cat cat dog", "cat dog dog", 2 / 3),  # a word counts as often as both have it
        ("cat", "dog", 0.0),
        ("", "dog", 0.0),
        ("", "", 1.0),
        ("the", "", 1.0),  # nothing is left of it
    ],
)
def test_f1_of_words(answer: str, right: str, f1: float) -> None:
    assert word_f1(answer, right) == pytest.approx(f1)


def test_the_right_answer_that_fits_best_counts() -> None:
    exact, f1 = best_scores("October 1973", ["1973", "in October 1973"])
    assert exact == 0.0
    assert f1 == pytest.approx(0.8)


def test_where_annotators_disagree_about_there_being_an_answer_there_is_one_as_in_squad_2() -> None:
    assert best_scores("", ["tea", ""]) == (0.0, 0.0)
    assert best_scores("tea", ["tea", ""]) == (1.0, 1.0)
    assert best_scores("", ["the", ""]) == (1.0, 1.0)  # nothing is left of the one that was found


def test_scores_of_answerable_and_unanswerable_questions() -> None:
    scores = span_scores(["tea", "some milk", "", "water"], [["tea"], ["milk"], [""], [""]])
    assert scores == {
        "exact_match": 50.0,
        "f1": pytest.approx(100 * (1 + 2 / 3 + 1 + 0) / 4),
        "answerable_exact_match": 50.0,
        "answerable_f1": pytest.approx(100 * (1 + 2 / 3) / 2),
        "unanswerable_exact_match": 50.0,
    }


def test_where_all_can_be_answered_there_are_two_figures() -> None:
    assert span_scores(["tea"], [["tea"]]) == {"exact_match": 100.0, "f1": 100.0}


def test_the_threshold_parts_those_with_an_answer_from_those_without() -> None:
    assert best_threshold([-4.0, -2.0, 2.0, 3.0], [1, 1, 0, 0], [0, 0, 1, 1]) == 0.0


cases = st.lists(
    st.tuples(st.integers(-5, 5), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 1.0])),
    min_size=1,
    max_size=12,
)


@given(cases)
def test_no_other_threshold_is_better(rows: list[tuple[int, float, float]]) -> None:
    margins, answering, silence = (np.array(column, dtype=float) for column in zip(*rows, strict=True))

    def earned(threshold: float) -> float:
        return float(np.where(margins > threshold, silence, answering).sum())

    found = best_threshold(margins.tolist(), answering.tolist(), silence.tolist())
    assert earned(found) == pytest.approx(max(earned(number / 4) for number in range(-30, 31)))
