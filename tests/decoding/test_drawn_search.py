"""Random walks and drawn beams: as likely as the model says, and the same for the same seed."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from table_model import from_seed, from_table
from tiny_searches import EOS, PROMPTS, assert_same, options, tokens_of

from legato.decoding import candidates, search


@pytest.mark.parametrize("kind", ["sample", "beam-sample"])
def test_the_same_seed_gives_the_same_text(kind: str):
    first, second = (search(from_seed(6), PROMPTS, options(kind, seed=1), eos=EOS) for _ in range(2))
    assert tokens_of(first) == tokens_of(second)


@pytest.mark.parametrize("kind", ["sample", "beam-sample"])
def test_another_seed_gives_another_text(kind: str):
    first, second = (search(from_seed(6), PROMPTS, options(kind, seed=seed), eos=EOS) for seed in (1, 1000))
    assert tokens_of(first) != tokens_of(second)


PROMPT = st.lists(st.integers(1, 4), min_size=1, max_size=6)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    st.lists(PROMPT, min_size=1, max_size=8),
    st.randoms(use_true_random=False),
    st.sampled_from(["sample", "beam-sample"]),
    st.integers(0, 2**63 - 1),
    st.integers(1, 3),
)
def test_what_is_drawn_depends_on_seed_and_prompt_alone(prompts: list, order: Any, kind: str, seed: int, nbest: int):
    chosen = options(kind, seed=seed, nbest=nbest)
    alone = {tuple(prompt): search(from_seed(6), [prompt], chosen, eos=EOS)[0] for prompt in prompts}
    mixed = [*prompts, *prompts[: len(prompts) // 2]]  # some of them twice
    order.shuffle(mixed)
    for prompt, found in zip(mixed, search(from_seed(6), mixed, chosen, eos=EOS), strict=True):
        assert_same(found, alone[tuple(prompt)])


def test_different_prompts_draw_apart():
    model = from_table(4, {}, otherwise=[0.25] * 4)
    prompts = [[token] for token in range(4)]
    found = tokens_of(search(model, prompts, options("sample"), eos=None))
    assert len({tuple(best[0]) for best in found}) == 4


def test_different_sources_draw_apart_and_the_same_alike():
    model = from_table(4, {}, otherwise=[0.25] * 4)
    sources = [[1, 2], [2, 1], [1, 2]]
    found = tokens_of(search(model, [[1]] * 3, options("sample"), eos=None, sources=sources))
    assert found[0] == found[2] != found[1]


def test_a_longer_limit_only_continues_the_same_walks():
    short = search(from_seed(6), [[1]], options("sample", nbest=3, max_tokens=5), eos=None)[0]
    long = search(from_seed(6), [[1]], options("sample", nbest=3, max_tokens=20), eos=None)[0]
    assert {tuple(h.tokens) for h in short} == {tuple(h.tokens[:5]) for h in long}


def test_drawn_beams_are_distinct():
    for found in search(from_seed(6), PROMPTS, options("beam-sample", beams=5, nbest=5), eos=EOS):
        assert len({tuple(h.tokens) for h in found}) == len(found)


def chi_square(counts: Counter[int], probabilities: list[float]) -> float:
    total = sum(counts.values())
    return sum((counts[i] - total * p) ** 2 / (total * p) for i, p in enumerate(probabilities))


def test_walks_visit_tokens_as_often_as_their_probabilities_say():
    probabilities = [0.1, 0.2, 0.3, 0.4]
    model = from_table(4, {}, otherwise=probabilities)
    [found] = search(model, [[0]], options("sample", nbest=2000, max_tokens=1), eos=None)
    counts = Counter(h.tokens[0] for h in found)
    assert chi_square(counts, probabilities) < 16.3  # three degrees of freedom: exceeded once in a thousand


@pytest.mark.slow
def test_drawn_beams_are_drawn_without_replacement():
    probabilities = [0.1, 0.2, 0.7]
    model = from_table(3, {}, otherwise=probabilities)
    prompts = [list(prompt) for prompt in itertools.islice(itertools.product(range(3), repeat=7), 2000)]
    found = search(model, prompts, options("beam-sample", beams=2, nbest=2, max_tokens=1), eos=None)
    pairs = Counter(frozenset(h.tokens[0] for h in nbest) for nbest in found)
    # Without replacement: p(a, b) = p_a p_b / (1 - p_a) + p_b p_a / (1 - p_b).
    sets = [(0, 1), (0, 2), (1, 2)]
    expected = [
        probabilities[a] * probabilities[b] * (1 / (1 - probabilities[a]) + 1 / (1 - probabilities[b]))
        for a, b in sets
    ]
    counts = Counter({i: pairs[frozenset(pair)] for i, pair in enumerate(sets)})
    assert chi_square(counts, expected) < 13.8  # two degrees of freedom: exceeded once in a thousand


@pytest.mark.parametrize("number", [0.0, 1 - 2**-24])
def test_a_walk_never_takes_an_impossible_token(number: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(candidates, "uniform", lambda seeds, steps: torch.full((len(seeds),), number))
    model = from_table(5, {}, otherwise=[0.0, 0.3, 0.4, 0.3, 0.0])
    [[found]] = search(model, [[1]], options("sample"), eos=None)
    assert found.tokens == [3 if number else 1] * 12


@pytest.mark.parametrize("sharp", [{"temperature": 1e-4}, {"temperature": 1e-40}, {"top_k": 1}, {"min_p": 1.0}])
def test_a_walk_left_one_choice_is_greedy_search(sharp: dict[str, float]):
    walk = search(from_seed(7), PROMPTS, options("sample", **sharp), eos=EOS)
    assert tokens_of(walk) == tokens_of(search(from_seed(7), PROMPTS, options(), eos=EOS))


def test_drawn_beams_near_temperature_zero_are_taken_beams():
    drawn = search(from_seed(7), PROMPTS, options("beam-sample", temperature=1e-4), eos=EOS)
    assert tokens_of(drawn) == tokens_of(search(from_seed(7), PROMPTS, options("beam"), eos=EOS))


def test_walks_of_one_prompt_are_independent():
    [found] = search(from_seed(8), [[1]], options("sample", nbest=8), eos=None)
    assert len({tuple(h.tokens) for h in found}) > 4
