"""The recurrent encoder–decoder while it writes: its state, and the search over it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from legato.data.batching.batch import Batch, Inputs
from legato.decoding import SearchOptions, search
from legato.nn.state import SharedMemory
from tiny_seq2seq import (
    PROMPTS,
    SOURCES,
    Kind,
    all_logits,
    attentive_kinds,
    build,
    close,
    every_kind,
    few_kinds,
    logits_of,
    memory_of,
    padded,
    started,
    tokens,
)

# --- generation ------------------------------------------------------------------------------------


@every_kind
def test_cached_logits_equal_uncached_ones_for_ragged_prompts(kind: Kind) -> None:
    model = build(kind)
    state, logits = started(model)
    rows = [list(prompt) for prompt in PROMPTS]
    for new in tokens(3, 4, seed=3):
        close(logits, all_logits(model, SOURCES, rows))
        with torch.no_grad():
            logits = model.step(new, state)
        for row, token in zip(rows, new.tolist(), strict=True):
            row.append(token)
    close(logits, all_logits(model, SOURCES, rows))


@every_kind
def test_a_second_ragged_prefill_goes_on_after_the_first(kind: Kind) -> None:
    model = build(kind)
    state, _ = started(model)
    more = [[1, 2], [3, 4, 5, 6], [2], [9, 9, 9]]
    with torch.no_grad():
        logits = model.prefill(padded(more), state)
    close(logits, all_logits(model, SOURCES, [a + b for a, b in zip(PROMPTS, more, strict=True)]))


ORDERS = {
    "a beam each": [0, 0, 1, 1, 2, 2, 3, 3],
    "a beam each, some gone": [3, 3, 3, 1, 1, 1],
    "as it was": [0, 1, 2, 3],
    "swapped": [2, 0, 3, 1],
    "unequal": [2, 0, 0, 3, 2],
    "one left": [1],
}


def reordered(kind: Kind, rows: list[int]) -> None:
    model = build(kind)
    state, _ = started(model)
    state.reorder(torch.tensor(rows))
    new = tokens(1, len(rows), seed=5)[0]
    with torch.no_grad():
        logits = model.step(new, state)
    after = [[*PROMPTS[row], token] for row, token in zip(rows, new.tolist(), strict=True)]
    close(logits, all_logits(model, [SOURCES[row] for row in rows], after))


@pytest.mark.parametrize("order", ORDERS)
@few_kinds
def test_reordering_picks_rows_that_may_repeat_vanish_and_multiply(kind: Kind, order: str) -> None:
    reordered(kind, ORDERS[order])


@every_kind
def test_every_kind_reorders(kind: Kind) -> None:
    reordered(kind, ORDERS["a beam each, some gone"])


@few_kinds
def test_a_beam_that_widens_mixes_shrinks_and_falls_apart_stays_right(kind: Kind) -> None:
    model = build(kind)
    state, _ = started(model)
    sources, rows = [list(source) for source in SOURCES], [list(prompt) for prompt in PROMPTS]
    orders = [
        [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3],  # three hypotheses a sentence
        [2, 0, 0, 3, 4, 5, 8, 8, 6, 11, 10, 9],  # they change places
        [0, 2, 1, 9, 9, 9],  # two sentences are done
        [5, 0],  # unequal no more: one hypothesis each
        [1, 1, 0],  # as no search does
        [0, 1, 2, 2, 1, 0],
    ]
    for number, order in enumerate(orders):
        state.reorder(torch.tensor(order))
        sources, rows = [sources[row] for row in order], [list(rows[row]) for row in order]
        new = tokens(1, len(order), seed=number)[0]
        with torch.no_grad():
            logits = model.step(new, state)
        for row, token in zip(rows, new.tolist(), strict=True):
            row.append(token)
        close(logits, all_logits(model, sources, rows))


@attentive_kinds
def test_a_prefill_of_a_widened_beam_looks_at_the_right_sentences(kind: Kind) -> None:
    model, order = build(kind), [0, 0, 1, 1, 2, 2, 3, 3]
    state, _ = started(model)
    state.reorder(torch.tensor(order))
    more = [[1, 2], [3], [4, 5, 6], [7], [8], [9, 10], [11], [12, 0, 1]]
    with torch.no_grad():
        logits = model.prefill(padded(more), state)
    rows = [[*PROMPTS[row], *new] for row, new in zip(order, more, strict=True)]
    close(logits, all_logits(model, [SOURCES[row] for row in order], rows))


def test_hypotheses_of_a_sentence_share_its_memory() -> None:
    memory = SharedMemory([torch.randn(3, 4, 5), torch.randn(3, 4, 5)], None)
    states = memory.tensors[0]
    memory.reorder([0, 0, 1, 1, 2, 2])
    memory.reorder([1, 0, 2, 2, 5, 4])
    assert memory.tensors[0] is states
    assert memory.beams == 2


def test_the_memory_of_sentences_that_are_done_is_dropped() -> None:
    memory = SharedMemory([torch.randn(3, 4, 5), torch.randn(3, 4, 5)], torch.ones(3, 4, dtype=torch.bool))
    states = memory.tensors[0]
    memory.reorder([0, 0, 1, 1, 2, 2])
    memory.reorder([4, 5, 0, 1])
    assert memory.inside is not None
    assert torch.equal(memory.tensors[0], states[[2, 0]])
    assert (len(memory.tensors[1]), len(memory.inside), memory.beams) == (2, 2, 2)


@every_kind
def test_rewinding_gives_the_same_logits_again(kind: Kind) -> None:
    model, words = build(kind), tokens(3, 4, seed=4)
    state, _ = started(model, keep=3)
    start = state.length
    with torch.no_grad():
        once = [model.step(word, state) for word in words]
        state.rewind(start)
        again = [model.step(word, state) for word in words]
    close(again, once)


@few_kinds
def test_rewinding_after_reordering_keeps_the_new_rows(kind: Kind) -> None:
    model, order = build(kind), [3, 3, 1, 0]
    state, _ = started(model, keep=3)
    start = state.length
    with torch.no_grad():
        model.step(tokens(1, 4)[0], state)
        state.reorder(torch.tensor(order))
        state.rewind(start)
        logits = model.step(torch.tensor([1, 2, 3, 4]), state)
    rows = [[*PROMPTS[row], i + 1] for i, row in enumerate(order)]
    close(logits, all_logits(model, [SOURCES[row] for row in order], rows))


def test_a_state_cannot_go_back_further_than_it_keeps() -> None:
    model = build()
    state, _ = started(model, keep=1)
    with torch.no_grad():
        for word in tokens(2, 4):
            model.step(word, state)
    with pytest.raises(ValueError, match="cannot go back from 7 to 5"):
        state.rewind(5)


def test_the_state_counts_columns() -> None:
    model = build()
    state, _ = started(model)
    assert state.length == 5
    with torch.no_grad():
        model.step(tokens(1, 4)[0], state)
    assert state.length == 6


def test_starting_without_a_memory_says_that_one_is_needed() -> None:
    with pytest.raises(ValueError, match="reads a source"):
        build().start(4, 50)


def test_starting_with_too_few_memories_is_refused() -> None:
    model = build()
    with pytest.raises(ValueError, match="there are 4 for 5"):
        model.start(5, 50, memory_of(model))


def test_a_batch_without_a_source_is_refused() -> None:
    with pytest.raises(ValueError, match="reads a source"):
        build()(Batch(Inputs(tokens(2, 3))))


# --- the search ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["greedy", "beam", "sample", "beam-sample"])
@few_kinds
def test_searching_sources_together_equals_searching_each_alone(kind: Kind, how: Any) -> None:
    model = build(kind)
    together = search(model, PROMPTS, SearchOptions(search=how, max_tokens=8), eos=0, memory=memory_of(model))
    for row, prompt in enumerate(PROMPTS):
        options = SearchOptions(search=how, max_tokens=8)
        alone = search(model, [prompt], options, eos=0, memory=memory_of(model, [SOURCES[row]]))[0]
        assert [h.tokens for h in together[row]] == [h.tokens for h in alone]
        assert [h.logprob for h in together[row]] == pytest.approx([h.logprob for h in alone], abs=1e-5)


@few_kinds
def test_a_beam_of_one_is_greedy_search(kind: Kind) -> None:
    model = build(kind)
    memory = memory_of(model)
    greedy = search(model, PROMPTS, SearchOptions(max_tokens=8), eos=0, memory=memory)
    beam = search(model, PROMPTS, SearchOptions(search="beam", beams=1, max_tokens=8), eos=0, memory=memory)
    assert [[h.tokens for h in found] for found in beam] == [[h.tokens for h in found] for found in greedy]


@few_kinds
def test_greedy_search_follows_the_largest_logit(kind: Kind) -> None:
    model, row = build(kind), list(PROMPTS[0])
    found = search(model, [row], SearchOptions(max_tokens=8), eos=None, memory=memory_of(model, SOURCES[:1]))[0][0]
    for token in found.tokens:
        assert token == int(logits_of(model, SOURCES[0], row).argmax())
        row.append(token)
