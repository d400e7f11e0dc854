"""Scores of vectors: correlations, how well partners are found, and the nearest lines."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.evaluation.embedding import correlations, cosines, furthest, nearest, retrieval, unit


def test_correlations_worked_by_hand() -> None:
    found = correlations([0.1, 0.4, 0.2, 0.9], [1.0, 2.0, 3.0, 4.0])
    assert found["spearman"] == pytest.approx(0.8)
    assert found["pearson"] == pytest.approx(np.corrcoef([0.1, 0.4, 0.2, 0.9], [1, 2, 3, 4])[0, 1])
    assert correlations([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) == {"spearman": 0.0, "pearson": 0.0}
    assert correlations([1.0], [2.0])["spearman"] == 0.0


def test_a_vector_of_zeros_has_no_direction() -> None:
    assert cosines(np.zeros((1, 3)), np.ones((1, 3))).tolist() == [0.0]


def test_partners_are_ranked_among_all() -> None:
    left = np.eye(3)
    right = np.array([[1.0, 0, 0], [1.0, 0.5, 0], [0, 0, 1.0]])
    # The second row's partner is the second best for it: none is nearer; for the first row the own one is.
    found = retrieval(left, right, ["a", "b", "c"])
    assert found == {"accuracy": 1.0, "mrr": 1.0}
    worse = retrieval(left, right[[1, 0, 2]], ["b", "a", "c"])
    assert worse["accuracy"] == pytest.approx(1 / 3)
    assert worse["mrr"] == pytest.approx((1 / 2 + 1 / 3 + 1) / 3)


def test_a_text_that_stands_twice_is_one_answer() -> None:
    left, right = np.eye(2)[[0, 0]], np.eye(2)[[0, 0]]
    assert retrieval(left, right, ["a", "a"])["accuracy"] == 1.0
    assert retrieval(left, right, ["a", "b"])["accuracy"] == 0.0  # vectors that are all alike find nothing


@given(st.integers(1, 30), st.integers(1, 8), st.integers(0, 10**6))
def test_the_nearest_lines_are_those_of_a_full_sort(lines: int, count: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    held = draw.integers(-1, 2, (lines, 3)).astype(np.float32)  # with many ties
    queries = draw.integers(-1, 2, (5, 3)).astype(np.float32)
    numbers, scores = nearest(queries, held, count)
    full = queries @ held.T
    expected = np.argsort(-full, axis=1, kind="stable")[:, :count]
    assert np.array_equal(numbers, expected)
    assert np.array_equal(scores, np.take_along_axis(full, expected, 1))


def test_the_furthest_off_come_first() -> None:
    assert furthest(np.array([0.1, 0.9, 0.5, 0.6]), [1.0, 0.0, 2.0, 3.0], 2) == [1, 0]
    assert unit(np.array([[3.0, 4.0]])).tolist() == [[0.6, 0.8]]
