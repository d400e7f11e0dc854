"""The scores of the recurrent models' attention, and the weights made of them: by hand, masked, in pieces."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from legato.nn import attention
from legato.nn.attention import MLP, SCORES, Bilinear, Dot, Score, weigh

B, T, S, D = 3, 5, 4, 6


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def double(numbers: Any) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def close(left: Any, right: Any) -> None:
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-10)


# Two queries of width 2 and three places of the memory.
QUERIES = double([[[1.0, 2.0], [0.5, -1.0]]])
MEMORY = double([[[3.0, 1.0], [-1.0, 4.0], [2.0, 0.0]]])


def scores_of(score: Score, query: Tensor = QUERIES, memory: Tensor = MEMORY) -> Tensor:
    return score.double()(query, score.keys(memory))


# --- by hand ---------------------------------------------------------------------------------------


def test_the_dot_score_is_the_product_of_query_and_memory() -> None:
    # 1·3 + 2·1, 1·(-1) + 2·4, 1·2 + 2·0; then with 0.5 and -1.
    close(scores_of(Dot(2, 2, 9)), double([[[5.0, 7.0, 2.0], [0.5, -4.5, 1.0]]]))


def test_the_bilinear_score_has_a_matrix_between_query_and_memory() -> None:
    score = Bilinear(2, 2, 9)
    with torch.no_grad():
        score.weight.weight.copy_(double([[1.0, 2.0], [0.0, -1.0]]))
    # W m is (5, -1), (7, -4), (2, 0).
    close(scores_of(score), double([[[3.0, -1.0, 2.0], [3.5, 7.5, 1.0]]]))


def test_the_bilinear_score_joins_two_widths() -> None:
    score = Bilinear(2, 3, 9)
    with torch.no_grad():
        score.weight.weight.copy_(double([[1.0, 0.0, 2.0], [0.0, 1.0, -1.0]]))
    # W m = (1 + 2·3, 2 - 3) = (7, -1); q · W m = 7 - 2 and 3.5 + 1.
    close(scores_of(score, memory=double([[[1.0, 2.0, 3.0]]])), double([[[5.0], [4.5]]]))


def test_the_mlp_score_is_a_small_network_of_both() -> None:
    score = MLP(2, 2, 1)
    with torch.no_grad():
        score.query.weight.copy_(double([[0.5, 0.25]]))
        score.query.bias.copy_(double([0.125]))
        score.memory.weight.copy_(double([[-0.5, 0.25]]))
        score.energy.weight.copy_(double([[2.0]]))
    # W q + b is 0.5 + 0.5 + 0.125 and 0.25 - 0.25 + 0.125; U m is -1.25, 1.5, -1.
    expected = [[2 * math.tanh(q + m) for m in (-1.25, 1.5, -1.0)] for q in (1.125, 0.125)]
    close(scores_of(score), double([expected]))


def test_the_dot_score_refuses_two_widths() -> None:
    with pytest.raises(ValueError, match="one width, not 4 and 6"):
        Dot(4, 6, 8)


# --- the weights -----------------------------------------------------------------------------------


def test_the_lectures_scores_give_the_lectures_weights() -> None:
    weights = weigh(double([112.0, 96.0, 16.0, 8.0]) / math.sqrt(64))
    assert [round(weight, 3) for weight in weights.tolist()] == [0.881, 0.119, 0.0, 0.0]


def test_a_mask_shares_the_weight_among_what_is_left() -> None:
    scores = double([[1.0, 2.0, 50.0], [3.0, 3.0, -50.0]])
    weights = weigh(scores, torch.tensor([True, True, False]))
    share = 1 / (1 + math.e)
    close(weights, double([[share, 1 - share, 0.0], [0.5, 0.5, 0.0]]))


def test_where_there_is_nothing_to_look_at_the_weights_are_zero_and_so_are_the_gradients() -> None:
    scores = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    weights = weigh(scores, torch.tensor([[False, False, False], [True, True, False]]))
    assert not weights[0].any()
    weights.pow(2).sum().backward()
    assert scores.grad is not None
    assert not scores.grad[0].any()
    assert scores.grad.isfinite().all()


def test_masked_weights_pass_no_gradient_to_what_is_masked() -> None:
    scores = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    weigh(scores, torch.tensor([True, False, True])).pow(2).sum().backward()
    assert scores.grad is not None
    assert not scores.grad[:, 1].any()
    assert scores.grad[:, 0].all()


# --- every score -----------------------------------------------------------------------------------


def random_score(name: str) -> tuple[Score, Tensor, Tensor]:
    score = SCORES[name](D, D, 7).double()
    return score, torch.randn(B, T, D, dtype=torch.float64), torch.randn(B, S, D, dtype=torch.float64)


@pytest.mark.parametrize("name", SCORES)
def test_all_queries_at_once_equal_one_query_at_a_time(name: str) -> None:
    score, query, memory = random_score(name)
    keys = score.keys(memory)
    alone = [score(query[:, t : t + 1], keys) for t in range(T)]
    close(score(query, keys), torch.cat(alone, 1))


@pytest.mark.parametrize("name", SCORES)
def test_a_row_is_scored_against_its_own_memory(name: str) -> None:
    score, query, memory = random_score(name)
    together = score(query, score.keys(memory))
    for row in range(B):
        one = slice(row, row + 1)
        close(together[one], score(query[one], score.keys(memory[one])))


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_large_mlp_score_in_pieces_equals_the_whole_in_values_and_gradients(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    score, query, memory = random_score("mlp")
    whole, pieces = [], []
    for found, largest in ((whole, 2**27), (pieces, steps * B * S * 7)):
        monkeypatch.setattr(attention, "LARGEST", largest)
        score.zero_grad()
        inputs = [query.clone().requires_grad_(), memory.clone().requires_grad_()]
        result = score(inputs[0], score.keys(inputs[1]))
        result.pow(2).sum().backward()
        found += [result.detach(), *(x.grad for x in inputs), *(p.grad.clone() for p in score.parameters())]
    assert len(whole) == 7
    close(pieces, whole)
