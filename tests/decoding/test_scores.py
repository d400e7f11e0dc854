"""What shapes a distribution, against sets and numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from legato.decoding import SearchOptions, filter_scores
from legato.decoding import scores as scores_module
from legato.decoding.scores import best, min_p, normalise, repetition_penalty, temperature, top_k, top_p


def logits_of(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities]).log()


def kept(logits: Tensor) -> list[int]:
    return torch.nonzero(logits[0] > -torch.inf).flatten().tolist()


def test_temperature_raises_probabilities_to_its_inverse():
    result = temperature(logits_of(0.5, 0.3, 0.2), 0.5).softmax(-1)
    squares = torch.tensor([[0.25, 0.09, 0.04]])
    torch.testing.assert_close(result, squares / squares.sum())


@pytest.mark.parametrize("value", [1e-3, 1e-30, 1e-300])
def test_a_temperature_near_zero_leaves_the_best_token_alone(value: float):
    result = temperature(logits_of(0.3, 0.5, 0.2), value).softmax(-1)
    torch.testing.assert_close(result, torch.tensor([[0.0, 1.0, 0.0]]))


def test_top_k_keeps_the_k_most_probable():
    assert kept(top_k(logits_of(0.1, 0.4, 0.2, 0.3), 2)) == [1, 3]


def test_top_k_keeps_k_even_among_equals():
    assert kept(top_k(torch.zeros(1, 6), 2)) == [0, 1]


@pytest.mark.parametrize("k", [0, 4, 9])
def test_top_k_of_none_or_of_all_changes_nothing(k: int):
    logits = logits_of(0.1, 0.4, 0.2, 0.3)
    assert torch.equal(top_k(logits, k), logits)


@pytest.mark.parametrize(("p", "tokens"), [(0.3, [1]), (0.5, [1, 3]), (0.75, [1, 2, 3]), (1.0, [0, 1, 2, 3])])
def test_top_p_keeps_the_smallest_set_that_reaches_p(p: float, tokens: list[int]):
    assert kept(top_p(logits_of(0.1, 0.4, 0.2, 0.3), p)) == tokens


def test_top_p_keeps_the_most_probable_token_however_small_p_is():
    assert kept(top_p(logits_of(0.1, 0.4, 0.2, 0.3), 1e-6)) == [1]


@pytest.mark.parametrize("sharpness", [0.1, 2.0, 8.0])
def test_top_p_is_the_same_when_only_the_head_is_sorted(sharpness: float, monkeypatch: pytest.MonkeyPatch):
    logits = sharpness * torch.randn(4, 500, generator=torch.Generator().manual_seed(0))
    whole = top_p(logits, 0.8)
    monkeypatch.setattr(scores_module, "HEADS", (20, 100))
    assert torch.equal(top_p(logits, 0.8), whole)


def test_min_p_keeps_what_is_near_enough_to_the_best():
    assert kept(min_p(logits_of(0.05, 0.5, 0.15, 0.3), 0.25)) == [1, 2, 3]


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits_of_seen_tokens():
    logits = torch.tensor([[2.0, -2.0, 2.0, -2.0]])
    seen = torch.tensor([[True, True, False, False]])
    assert torch.equal(repetition_penalty(logits, seen, 2.0), torch.tensor([[1.0, -4.0, 2.0, -2.0]]))


def test_filters_apply_in_order_temperature_before_top_p():
    logits = logits_of(0.5, 0.3, 0.2)
    # Sharpened to squares, the first token alone has 0.25 / 0.38 of the mass.
    options = SearchOptions(search="sample", temperature=0.5, top_p=0.65)
    assert kept(filter_scores(logits, options)) == [0]


def test_filters_left_at_their_defaults_change_nothing():
    logits = torch.randn(2, 7)
    seen = torch.ones(2, 7, dtype=torch.bool)
    assert torch.equal(filter_scores(logits, SearchOptions(search="sample"), seen), logits)


def test_a_penalty_of_one_is_an_average_and_of_zero_a_sum():
    assert normalise(-6.0, 3, 1.0) == -2.0
    assert normalise(-6.0, 3, 0.0) == -6.0
    assert math.isclose(normalise(-6.0, 4, 0.5), -3.0)


@given(
    st.lists(st.lists(st.sampled_from([-math.inf, -1.0, 0.0, 0.5, 2.0]), min_size=7, max_size=7), min_size=1),
    st.integers(1, 9),
)
def test_the_best_are_in_order_of_score_then_index(rows: list[list[float]], k: int):
    values, indices = best(torch.tensor(rows), k)
    for row, some, where in zip(rows, values.tolist(), indices.tolist(), strict=True):
        order = sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]
        # Which of the forbidden come last is nobody's concern.
        finite = [i for i in order if row[i] > -math.inf]
        assert some == [row[i] for i in order]
        assert where[: len(finite)] == finite
