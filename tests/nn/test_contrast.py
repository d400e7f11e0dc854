"""Losses of vectors: worked by hand, and pair by pair."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from legato.nn.losses.contrast import contrast, cosent, cosines, text_keys


def test_a_batch_worked_by_hand() -> None:
    vectors = torch.tensor([[[1.0, 0.0], [2.0, 0.0]], [[0.0, 3.0], [0.0, 1.0]]])  # each its own partner's direction
    keys = torch.tensor([[0, 1], [2, 3]])
    assert contrast(vectors, keys, scale=1.0).tolist() == pytest.approx([math.log(1 + math.exp(-1))] * 2)


def test_a_partner_that_comes_twice_is_no_negative() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(3, 2, 4)
    vectors[2, 1] = vectors[0, 1]
    keys = torch.tensor([[0, 7], [1, 8], [2, 7]])
    found = contrast(vectors, keys)
    alone = contrast(vectors[:2], keys[:2])
    assert found[0] == pytest.approx(alone[0].item(), rel=1e-5)
    # … and of two rows with one first text, neither's partner is a negative of the other's.
    keys = torch.tensor([[0, 7], [1, 8], [0, 9]])
    assert contrast(vectors, keys)[0] == pytest.approx(alone[0].item(), rel=1e-5)


def test_negatives_of_their_own_count_for_all() -> None:
    torch.manual_seed(0)
    vectors, keys = torch.randn(4, 3, 8), torch.arange(12).view(4, 3)
    units = torch.nn.functional.normalize(vectors, dim=-1)
    scores = 20 * units[:, 0] @ torch.cat([units[:, 1], units[:, 2]]).t()  # (4, 8)
    expected = -scores.log_softmax(1)[torch.arange(4), torch.arange(4)]
    assert torch.allclose(contrast(vectors, keys), expected, atol=1e-5)


def test_the_symmetric_loss_is_the_mean_of_both_ways() -> None:
    torch.manual_seed(0)
    vectors, keys = torch.randn(5, 2, 8), torch.arange(10).view(5, 2)
    both = (contrast(vectors, keys) + contrast(vectors.flip(1), keys.flip(1))) / 2
    assert torch.allclose(contrast(vectors, keys, symmetric=True), both, atol=1e-5)


def test_cosent_is_the_sum_over_all_pairs_in_the_wrong_order() -> None:
    torch.manual_seed(0)
    vectors, scores = torch.randn(6, 2, 8), torch.rand(6)
    found = [torch.cosine_similarity(left, right, dim=0).item() for left, right in vectors]
    assert cosines(vectors).tolist() == pytest.approx(found, rel=1e-5)
    total = 1 + sum(math.exp(20 * (found[j] - found[i])) for i in range(6) for j in range(6) if scores[i] > scores[j])
    assert cosent(cosines(vectors), scores) == pytest.approx(math.log(total), rel=1e-5)


def test_the_right_order_costs_nothing() -> None:
    scores = torch.tensor([0.0, 1.0, 2.0, 2.0])
    assert cosent(torch.tensor([-1.0, 0.0, 1.0, 0.9]), scores, scale=1000.0) == 0
    assert cosent(torch.tensor([0.3, 0.1, 0.2, 0.2]), scores) > 1
    assert cosent(torch.tensor([0.3, 0.1]), torch.tensor([1.0, 1.0])) == 0  # equals say nothing


@given(st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=2, max_size=40))
def test_a_key_is_the_same_for_the_same_tokens_only(rows: list[list[int]]) -> None:
    keys = text_keys(torch.tensor(rows)).tolist()
    assert len(set(keys)) == len({tuple(row) for row in rows})
    assert len(dict(zip(keys, map(tuple, rows), strict=True))) == len(set(keys))


def test_gradients_are_finite_where_vectors_are_one_and_the_same() -> None:
    vectors = torch.ones(3, 2, 4, requires_grad=True)
    (
        contrast(vectors, torch.zeros(3, 2, dtype=torch.long)).sum() + cosent(cosines(vectors), torch.arange(3.0))
    ).backward()
    assert vectors.grad is not None
    assert vectors.grad.isfinite().all()
