"""The CRF against counting every sequence one by one."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from legato.data.batching.batch import IGNORE
from legato.nn.losses.crf import CRF, FORBIDDEN, best_paths, log_likelihood, tag_probabilities


def score(emissions: Tensor, scores: Tensor, path: tuple[int, ...]) -> float:
    """s(x, y), as the equation has it; emissions (W, C) of one row."""
    count = emissions.shape[-1]
    places, scores = [count, *path, count + 1], scores.detach()
    total = sum(float(scores[a, b]) for a, b in itertools.pairwise(places))
    return total + sum(float(emissions[place, tag]) for place, tag in enumerate(path))


def every(words: int, tags: int) -> list[tuple[int, ...]]:
    return list(itertools.product(range(tags), repeat=words))


def random_crf(tags: int, seed: int = 0, allowed: Tensor | None = None) -> CRF:
    torch.manual_seed(seed)
    crf = CRF(tags, allowed)
    torch.nn.init.normal_(crf.transitions)
    return crf


def some_rules(tags: int) -> Tensor:
    """Tag 1 only after tag 0, never first; tag 2 never last."""
    allowed = torch.ones(tags + 2, tags + 2, dtype=torch.bool)
    allowed[:, 1] = False
    allowed[0, 1] = True
    allowed[2, tags + 1] = False
    return allowed


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 10_000))
def test_log_likelihood_and_best_path_are_those_of_all_sequences_counted(words: int, tags: int, seed: int) -> None:
    crf = random_crf(tags, seed)
    emissions = torch.randn(1, words, tags)
    paths = every(words, tags)
    scores = torch.tensor([score(emissions[0], crf.scores, path) for path in paths])
    for path, value in list(zip(paths, scores, strict=True))[:5]:
        wanted = value - torch.logsumexp(scores, 0)
        torch.testing.assert_close(
            log_likelihood(emissions, crf.scores, torch.tensor([path])), wanted[None], atol=1e-4, rtol=0
        )
    found = best_paths(emissions, crf.scores, torch.tensor([words]))[0]
    assert score(emissions[0], crf.scores, tuple(found)) == pytest.approx(float(scores.max()), abs=1e-4)


def test_rows_of_different_lengths_are_as_if_alone() -> None:
    crf, emissions = random_crf(3), torch.randn(4, 5, 3)
    lengths = [5, 1, 3, 2]
    tags = torch.randint(3, (4, 5))
    for row, length in enumerate(lengths):
        tags[row, length:] = IGNORE
    together = log_likelihood(emissions, crf.scores, tags)
    paths = best_paths(emissions, crf.scores, torch.tensor(lengths))
    chances = tag_probabilities(emissions, crf.scores, torch.tensor(lengths))
    for row, length in enumerate(lengths):
        own = emissions[row : row + 1, :length]
        alone = log_likelihood(own, crf.scores, tags[row : row + 1, :length])
        torch.testing.assert_close(together[row], alone[0])
        assert paths[row] == best_paths(own, crf.scores, torch.tensor([length]))[0]
        torch.testing.assert_close(
            chances[row, :length], tag_probabilities(own, crf.scores, torch.tensor([length]))[0]
        )
        assert not chances[row, length:].any()


def test_padding_gets_no_gradient_and_a_row_of_nothing_counts_nothing() -> None:
    crf, emissions = random_crf(3), torch.randn(3, 4, 3, requires_grad=True)
    tags = torch.tensor([[0, 1, 2, 1], [2, 1, IGNORE, IGNORE], [IGNORE] * 4])
    likelihood = log_likelihood(emissions, crf.scores, tags)
    assert float(likelihood[2].detach()) == 0
    likelihood.sum().backward()
    assert emissions.grad is not None
    assert crf.transitions.grad is not None
    assert not emissions.grad[1, 2:].any()
    assert not emissions.grad[2].any()
    assert torch.isfinite(crf.transitions.grad).all()


def test_what_may_not_follow_is_never_decoded_and_has_no_probability() -> None:
    tags = 3
    allowed = some_rules(tags)
    crf = random_crf(tags, allowed=allowed)
    emissions = 50 * torch.randn(64, 6, tags)
    lengths = torch.randint(1, 7, (64,))
    for path in best_paths(emissions, crf.scores, lengths):
        for before, after in itertools.pairwise([tags, *path, tags + 1]):
            assert allowed[before, after]
    paths = every(4, tags)
    legal = [p for p in paths if all(allowed[a, b] for a, b in itertools.pairwise([tags, *p, tags + 1]))]
    emissions = torch.randn(1, 4, tags)
    likelihoods = log_likelihood(emissions.expand(len(paths), -1, -1), crf.scores, torch.tensor(paths)).exp().detach()
    assert float(likelihoods.sum()) == pytest.approx(1, abs=1e-4)
    assert float(likelihoods[[paths.index(p) for p in legal]].sum()) == pytest.approx(1, abs=1e-4)


def test_gradients_stay_finite_beside_forbidden_scores() -> None:
    crf = random_crf(3, allowed=some_rules(3))
    emissions = torch.randn(2, 40, 3, requires_grad=True)
    tags = torch.tensor([[0, 1] * 20, [2, 0] * 20])
    (-log_likelihood(emissions, crf.scores, tags).sum()).backward()
    assert emissions.grad is not None
    assert crf.transitions.grad is not None
    assert torch.isfinite(emissions.grad).all()
    assert torch.isfinite(crf.transitions.grad).all()
    assert not crf.transitions.grad[1, 1].any()  # forbidden: nothing to learn there


def test_probabilities_are_those_of_all_sequences_counted() -> None:
    crf, emissions = random_crf(3), torch.randn(1, 4, 3)
    paths = every(4, 3)
    chance = torch.tensor([score(emissions[0], crf.scores, path) for path in paths]).softmax(0)
    wanted = torch.zeros(4, 3)
    for path, p in zip(paths, chance, strict=True):
        for place, tag in enumerate(path):
            wanted[place, tag] += p
    torch.testing.assert_close(
        tag_probabilities(emissions, crf.scores, torch.tensor([4]))[0], wanted, atol=1e-4, rtol=0
    )


def test_low_precision_around_it_changes_nothing() -> None:
    crf, emissions, tags = random_crf(3), torch.randn(2, 6, 3), torch.randint(3, (2, 6))
    plain = log_likelihood(emissions, crf.scores, tags)
    with torch.autocast("cpu", torch.bfloat16):
        assert log_likelihood(emissions, crf.scores, tags).dtype == torch.float32
        torch.testing.assert_close(log_likelihood(emissions, crf.scores, tags), plain)


def test_without_scores_the_best_path_is_each_place_alone() -> None:
    emissions = torch.randn(3, 7, 5)
    found = best_paths(emissions, torch.zeros(7, 7), torch.tensor([7, 7, 4]))
    wanted = emissions.argmax(-1).tolist()
    assert found == [wanted[0], wanted[1], wanted[2][:4]]
    assert FORBIDDEN < -1000
