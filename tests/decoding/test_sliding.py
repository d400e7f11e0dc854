"""A context that slides: nothing changes while it is not full, and then the last half of it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from table_model import TableModel, TableState, from_seed
from torch import Tensor

from legato.data.batching.batch import Inputs
from legato.decoding import SearchOptions, search
from legato.decoding.sliding import Sliding

LONGEST = 8


class Short(TableModel):
    """A table that takes `LONGEST` tokens and no more, padding included."""

    def start(self, rows: int, capacity: int, memory: object = None) -> TableState:
        assert capacity <= LONGEST
        return super().start(rows, capacity, memory)

    def prefill(self, inputs: Inputs, state: TableState) -> Tensor:
        assert inputs.token_ids.shape[1] <= LONGEST
        return super().prefill(inputs, state)


def short(seed: int, order: int = LONGEST) -> tuple[Short, Sliding]:
    plain = from_seed(seed, order=order, vocabulary=6)
    model = Short(6, plain.probabilities)
    return model, Sliding(model, LONGEST, torch.device("cpu"))


def written(model: Any, prompts: Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
    return [found[0].tokens for found in search(model, prompts, SearchOptions(**options), eos=0)]


def by_hand(model: TableModel, prompt: Sequence[int], count: int) -> list[int]:
    """Greedy search that forgets as `Sliding` says it does."""
    context, tokens = list(prompt)[-LONGEST:], []
    while len(tokens) < count:
        weights = [*model.probabilities(tuple(context))]
        token = max(range(1, len(weights)), key=weights.__getitem__)  # 0 ends
        tokens.append(token)
        context.append(token)
        if len(context) > LONGEST:
            context = context[-LONGEST // 2 :]
    return tokens


@pytest.mark.parametrize("search_by", ["greedy", "sample", "beam"])
def test_nothing_changes_while_the_context_is_not_full(search_by: str) -> None:
    for seed in range(20):
        model, sliding = short(seed)
        prompts, options = [[1, 2, 3], [4]], {"search": search_by, "max_tokens": LONGEST - 3}
        assert written(sliding, prompts, **options) == written(model, prompts, **options)


@pytest.mark.slow
@pytest.mark.parametrize("prompt", [[1], [1, 2, 3], [3] * LONGEST, [1, 2, 3, 4, 5] * 9])
def test_a_full_context_goes_on_from_its_last_half(prompt: list[int]) -> None:
    for seed in range(30):
        model, sliding = short(seed)
        assert written(sliding, [prompt], max_tokens=40, min_tokens=40) == [by_hand(model, prompt, 40)]


@pytest.mark.slow
@pytest.mark.parametrize("search_by", ["greedy", "sample", "beam", "beam-sample"])
def test_a_model_that_looks_back_a_little_never_notices(search_by: str) -> None:
    for seed in range(6):
        plain = from_seed(seed, order=2, vocabulary=6)
        _, sliding = short(seed, order=2)
        prompts = [[1, 2, 3, 4, 5, 1, 2], [4], [2, 3]]
        options = {"search": search_by, "max_tokens": 50, "min_tokens": 30}
        assert written(sliding, prompts, **options) == written(plain, prompts, **options)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3 * LONGEST), min_size=2, max_size=5),
    st.sampled_from(["greedy", "sample", "beam", "beam-sample"]),
    st.integers(0, 5),
)
def test_a_row_slides_when_it_is_full_itself(prompts: list[list[int]], search_by: str, seed: int) -> None:
    _, sliding = short(seed)
    options = {"search": search_by, "max_tokens": 30, "min_tokens": 25, "seed": seed}
    alone = [written(sliding, [prompt], **options)[0] for prompt in prompts]
    assert written(sliding, prompts, **options) == alone


def test_a_context_of_one_token_is_enough() -> None:
    plain = from_seed(3, order=1, vocabulary=6)
    sliding = Sliding(plain, 1, torch.device("cpu"))
    assert written(sliding, [[1, 2]], max_tokens=20) == written(plain, [[1, 2]], max_tokens=20)


def test_rewinding_forgets_the_last_tokens() -> None:
    _, sliding = short(1)
    state = sliding.start(2, 100)
    first = sliding.prefill(Inputs.of([[1, 2], [3, 4]]), state)
    sliding.step(torch.tensor([5, 5]), state)
    state.rewind(2)
    assert state.rows == [[1, 2], [3, 4]]
    assert torch.equal(sliding.model.logits(state.inner), first)  # type: ignore[attr-defined]
