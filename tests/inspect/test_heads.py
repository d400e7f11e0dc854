"""What heads do, on weights that are made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from legato.data.positions import Positions
from legato.inspect.heads import alignment_error_rate, followers, head_measures
from legato.inspect.trace import Captured, Trace

TOKENS = ("a", "b", "c", "a", "b", "c")


def traced(weights: np.ndarray, axes: tuple[str, ...] = ("head", "position", "seen")) -> Trace:
    captured = Captured(weights.astype(np.float32), axes, "input")
    places = {"input": Positions("token", TOKENS), "source": Positions("token", TOKENS[:4])}
    return Trace({"name": "made"}, {"decoder.0.attention.weights": captured}, places, [])


def rows(looks: list[int]) -> np.ndarray:
    return np.eye(len(TOKENS))[looks]


def test_each_rule_has_its_head() -> None:
    even = np.tril(np.ones((6, 6)))
    even /= even.sum(-1, keepdims=True)
    heads = [rows([0, 0, 1, 2, 3, 4]), rows([0] * 6), rows([0, 0, 0, 1, 2, 3]), even, np.eye(6)]
    previous, sink, induction, wide, itself = head_measures(traced(np.stack(heads)))
    assert (previous.previous, sink.first, induction.induction, itself.itself) == (1, 1, 1, 1)
    assert previous.induction == 0
    assert previous.entropy == itself.entropy == 0
    assert previous.distance == pytest.approx(5 / 6)
    assert sink.distance == pytest.approx(2.5)
    assert itself.distance == 0
    assert wide.entropy == pytest.approx(np.mean([math.log(count) for count in range(1, 7)]), rel=1e-5)
    assert [each.head for each in (previous, sink, induction)] == [0, 1, 2]


def test_what_looks_at_another_sequence_has_an_entropy_alone() -> None:
    weights = np.full((6, 4), 0.25)
    (found,) = head_measures(traced(weights, ("position", "source")))
    assert found.entropy == pytest.approx(math.log(4))
    assert found.distance is None
    assert found.induction is None


def test_followers_are_what_came_after_the_same_token() -> None:
    assert followers(TOKENS) == {3: [1], 4: [2], 5: [3]}
    assert followers(["a", "a"]) == {}
    assert followers([]) == {}


def test_alignments_are_scored_as_usual() -> None:
    sure = [(0, 0), (1, 1)]
    assert alignment_error_rate(sure, sure) == 0
    assert alignment_error_rate([(0, 1)], sure) == 1
    assert alignment_error_rate([*sure, (2, 1)], sure, possible=[(2, 1)]) == 0
    assert alignment_error_rate([], []) == 0
