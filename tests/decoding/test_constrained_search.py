"""Searches that may not write everything: constraints, suppressed tokens, limits of their own."""

from __future__ import annotations

import pytest
from table_model import from_seed
from tiny_searches import EOS, PROMPTS, options, tokens_of

from legato.decoding import search

# Constraints


@pytest.mark.parametrize("kind", ["greedy", "sample", "beam", "beam-sample"])
def test_a_constraint_is_obeyed(kind: str):
    def alternate(prompt: int, tokens: list[int]) -> list[int]:
        return [3, 4] if (len(tokens) + prompt) % 2 else [1, 2]

    for prompt, found in enumerate(search(from_seed(10), PROMPTS, options(kind), eos=EOS, constraint=alternate)):
        for hypothesis in found:
            assert all(token in alternate(prompt, hypothesis.tokens[:i]) for i, token in enumerate(hypothesis.tokens))


@pytest.mark.parametrize("kind", ["greedy", "sample", "beam", "beam-sample"])
def test_a_hypothesis_ends_where_the_constraint_leaves_nothing(kind: str):
    def three_at_most(prompt: int, tokens: list[int]) -> list[int]:
        return [1, 2] if len(tokens) < 3 else []

    for found in search(from_seed(10), PROMPTS, options(kind), eos=EOS, constraint=three_at_most):
        assert [len(h.tokens) for h in found] == [3]
        assert found[0].finished


def test_a_constraint_of_none_changes_nothing():
    free = search(from_seed(10), PROMPTS, options("beam"), eos=EOS, constraint=lambda prompt, tokens: None)
    assert tokens_of(free) == tokens_of(search(from_seed(10), PROMPTS, options("beam"), eos=EOS))


# What is never written, and how much may be


@pytest.mark.parametrize("kind", ["greedy", "sample", "beam", "beam-sample"])
def test_suppressed_tokens_are_never_written(kind: str):
    free = search(from_seed(10), PROMPTS, options(kind), eos=EOS)
    written = {token for found in free for hypothesis in found for token in hypothesis.tokens}
    unwanted = sorted(written)[:2]
    for found in search(from_seed(10), PROMPTS, options(kind), eos=EOS, suppress=unwanted):
        assert not {token for hypothesis in found for token in hypothesis.tokens} & set(unwanted)


@pytest.mark.parametrize("kind", ["greedy", "sample", "beam", "beam-sample"])
def test_tokens_may_be_suppressed_as_the_first_alone(kind: str):
    unwanted, wanted = {EOS, 1, 2}, {3, 4}
    free = search(from_seed(10), PROMPTS, options(kind), eos=EOS)
    assert {token for found in free for hypothesis in found for token in hypothesis.tokens[:1]} & unwanted
    held = search(from_seed(10), PROMPTS, options(kind), eos=EOS, suppress_first=unwanted)
    written = [hypothesis.tokens for found in held for hypothesis in found]
    assert {tokens[0] for tokens in written} <= wanted
    assert {token for tokens in written for token in tokens[1:]} & unwanted


@pytest.mark.parametrize("kind", ["greedy", "sample", "beam", "beam-sample"])
def test_a_limit_of_its_own_gives_a_prompt_what_it_would_get_alone(kind: str):
    limits = [2 + 3 * number for number in range(len(PROMPTS))]
    together = search(from_seed(10), PROMPTS, options(kind, max_tokens=40), eos=EOS, limits=limits)
    for number, (prompt, limit) in enumerate(zip(PROMPTS, limits, strict=True)):
        alone = search(from_seed(10), [prompt], options(kind, max_tokens=limit), eos=EOS)
        assert tokens_of([together[number]]) == tokens_of(alone)
