"""Rows that join a state midway and rows that leave it: each goes on as alone, in every model that writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from legato.config import validate
from legato.data.batching.batch import Batch, Inputs
from legato.decoding.sliding import Sliding
from legato.models.base import SequenceModel, Sizes
from legato.nn.kv_cache import KeyValueCache
from legato.registry import MODELS

V = 13
SMALL: dict[str, Any] = {"layers": 2, "width": 12, "heads": 2, "length": 64, "embedding": 6, "dropout": 0.0}
# Every model that writes, and of those that attend what changes the cache or the source.
KINDS: dict[str, dict[str, Any]] = {
    name: {"name": name} for name in MODELS.names() if MODELS.get(name).step is not SequenceModel.step
} | {
    "mistral": {"name": "llama", "family": "mistral", "window": 4, "kv_heads": 1},
    "transformer-rotary": {"name": "transformer", "positions": "rotary", "window": 5},
    "seq2seq-fed": {"name": "seq2seq", "attention": "mlp", "input_feeding": True, "cell": "gru"},
    "whisper-of-keys": {"name": "whisper", "source_length": 50},  # the other looks at states
    "seq2seq-none": {"name": "seq2seq", "attention": "none"},
}
each = pytest.mark.parametrize("kind", KINDS)

PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [6], [5, 3, 5], [8, 9, 7, 9], [2, 7]]
SOURCES = [[3, 8, 1, 4], [9, 2, 6, 5, 11, 1], [10], [4, 4, 12], [1, 2, 3, 4, 5, 6, 7, 8]]


def build(kind: str) -> SequenceModel:
    """In double precision, with weights large enough to have opinions."""
    torch.manual_seed(0)
    model: type[SequenceModel] = MODELS.get(KINDS[kind]["name"])
    known = {name: value for name, value in SMALL.items() if name in model.Config.model_fields}
    made = model(validate(model.Config, {**known, **KINDS[kind]}), Sizes(V)).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made


@dataclass
class Written:
    """A row of a batch: its source, and the tokens so far."""

    source: list[int]
    tokens: list[int]


def source_of(model: SequenceModel, rows: list[list[int]]) -> Inputs:
    """Sources as the model reads them: tokens, or of one that hears a frame for each."""
    tokens = Inputs.of(rows, padding=7)
    if "audio" not in model.processors:
        return tokens
    frames = torch.randn(V, model.config.features, generator=torch.Generator().manual_seed(2)).double()
    return Inputs(values=frames[tokens.token_ids], lengths=tokens.lengths)


def started(model: SequenceModel, rows: list[int], capacity: int = 30) -> tuple[Any, Tensor, list[Written]]:
    """A state that has read these prompts, its logits, and what it holds."""
    inputs = Inputs.of([PROMPTS[row] for row in rows], padding=7)
    memory = None
    if model.is_encoder_decoder:
        memory = model.encode(Batch(inputs, source=source_of(model, [SOURCES[row] for row in rows])))
    state = model.start(len(rows), capacity, memory)
    return state, model.prefill(inputs, state), [Written(SOURCES[row], list(PROMPTS[row])) for row in rows]


def alone(model: SequenceModel, row: Written) -> Tensor:
    """What the whole forward pass over one row says after its last token, (V,)."""
    source = source_of(model, [row.source]) if model.is_encoder_decoder else None
    return model.readout(model(Batch(Inputs(torch.tensor([row.tokens])), source=source)).hidden[0, -1])


def agree(model: SequenceModel, logits: Tensor, rows: list[Written]) -> None:
    expected = torch.stack([alone(model, row) for row in rows])
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-10)
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))


def go_on(model: SequenceModel, state: Any, logits: Tensor, rows: list[Written], steps: int) -> Tensor:
    """Greedily, each row held to what it would say alone."""
    for _ in range(steps):
        chosen = logits.argmax(-1)
        for row, token in zip(rows, chosen.tolist(), strict=True):
            row.tokens.append(token)
        logits = model.step(chosen, state)
        agree(model, logits, rows)
        assert state.lengths.tolist() == [len(row.tokens) for row in rows]
    return logits


@each
@torch.no_grad()
def test_rows_that_join_and_leave_go_on_as_alone(kind: str) -> None:
    model = build(kind)
    state, logits, rows = started(model, [0, 1])
    logits = go_on(model, state, logits, rows, 2)
    for joining, kept in (([2], [0, 1, 2]), ([3, 4], [1, 3, 4]), ([0], [3]), ([1, 2, 4], [0, 2, 3])):
        other, more, others = started(model, joining)
        state.join(other)
        logits, rows = torch.cat([logits, more]), rows + others
        logits = go_on(model, state, logits, rows, 2)
        state.reorder(torch.tensor(kept))
        logits, rows = logits[kept], [rows[row] for row in kept]
        assert state.lengths.tolist() == [len(row.tokens) for row in rows]
        logits = go_on(model, state, logits, rows, 1)


@each
@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0)], ids=["shorter joins", "longer joins"])
@torch.no_grad()
def test_it_is_all_one_which_row_is_longer(kind: str, first: int, second: int) -> None:
    model = build(kind)
    state, logits, rows = started(model, [first])
    logits = go_on(model, state, logits, rows, 3)
    other, more, others = started(model, [second])
    more = go_on(model, other, more, others, 1)
    state.join(other)
    logits = go_on(model, state, torch.cat([logits, more]), rows + others, 3)


@each
@torch.no_grad()
def test_prompts_go_on_behind_a_beginning_that_was_read_once(kind: str) -> None:
    model, beginning = build(kind), PROMPTS[0]
    inputs = Inputs.of([beginning])
    source = source_of(model, [SOURCES[0]])
    memory = model.encode(Batch(inputs, source=source)) if model.is_encoder_decoder else None
    state = model.start(1, 30, memory)
    model.prefill(inputs, state)
    state.reorder(torch.zeros(4, dtype=torch.long))
    logits = model.prefill(Inputs.of(PROMPTS[1:], padding=7), state)
    rows = [Written(SOURCES[0], [*beginning, *prompt]) for prompt in PROMPTS[1:]]
    agree(model, logits, rows)
    if isinstance(state, KeyValueCache):
        model.step(logits.argmax(-1), state)
        state.rewind(len(beginning))
        assert torch.equal(model.prefill(Inputs.of(PROMPTS[1:], padding=7), state), logits)
    logits = go_on(model, state, logits, rows, 2)
    other, more, others = started(model, [0])
    state.join(other)
    logits, rows = go_on(model, state, torch.cat([logits, more]), rows + others, 1), rows + others
    state.reorder(torch.tensor([3, 0, 4, 1]))
    logits, rows = logits[[3, 0, 4, 1]], [rows[row] for row in (3, 0, 4, 1)]
    if isinstance(state, KeyValueCache):
        state.close_holes()
        closed, kept = go_on(model, state, logits, rows, 1), state.kept(0, len(rows[0].tokens))
        assert kept is not None
        assert kept.shape[-2] == len(rows[0].tokens)
        if state.sources is None:
            assert state.open_columns() is not None
            state.rewind(state.length - 1)
        go_on(model, state, closed, rows, 2)


@each
@torch.no_grad()
def test_beams_of_different_widths_join(kind: str) -> None:
    """Rows of one source share it, in groups that are no longer of one size."""
    model = build(kind)
    state, logits, rows = started(model, [0, 3])
    wide = [0, 0, 0, 0, 1, 1, 1, 1]
    state.reorder(torch.tensor(wide))
    other, more, others = started(model, [1, 2, 4])
    narrow = [0, 0, 1, 1, 2, 2]
    other.reorder(torch.tensor(narrow))
    state.join(other)
    rows = [Written(rows[row].source, list(rows[row].tokens)) for row in wide]
    rows += [Written(others[row].source, list(others[row].tokens)) for row in narrow]
    logits = torch.cat([logits[wide], more[narrow]])
    logits = go_on(model, state, logits, rows, 2)
    kept = [1, 0, 9, 8, 13, 13]
    state.reorder(torch.tensor(kept))
    rows = [Written(rows[row].source, list(rows[row].tokens)) for row in kept]
    go_on(model, state, logits[kept], rows, 2)


@each
@torch.no_grad()
def test_each_row_keeps_the_room_that_it_was_given(kind: str) -> None:
    model = build(kind)
    state, logits, rows = started(model, [1], capacity=3)  # two more than its prompt
    other, more, others = started(model, [0], capacity=17)  # ten more
    state.join(other)
    go_on(model, state, torch.cat([logits, more]), rows + others, 10)


@each
@torch.no_grad()
def test_a_second_prompt_and_a_rewind_after_joining(kind: str) -> None:
    model = build(kind)
    state, _, rows = started(model, [0, 1])
    other, _, others = started(model, [2])
    state.join(other)
    rows += others
    more = [[1, 2], [3], [4, 5, 6]]
    logits = model.prefill(Inputs.of(more, padding=7), state)
    for row, new in zip(rows, more, strict=True):
        row.tokens += new
    agree(model, logits, rows)
    if isinstance(state, KeyValueCache):  # a recurrent state keeps no steps unless it is told to
        length = state.length
        once = model.step(torch.tensor([1, 2, 3]), state)
        state.rewind(length)
        assert torch.equal(model.step(torch.tensor([1, 2, 3]), state), once)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral", "transformer"])
@torch.no_grad()
def test_rows_of_one_length_need_no_mask_and_equal_those_that_have_one(kind: str) -> None:
    model = build(kind)
    even, logits, rows = started(model, [3])
    for _ in range(2):
        other, more, others = started(model, [3])
        even.join(other)
        logits, rows = torch.cat([logits, more]), rows + others
    assert even._positions is None
    ragged, _, _ = started(model, [3, 3, 3])
    ragged._become_ragged(ragged._columns())
    for token in range(4):
        both = [model.step(torch.full((3,), token), state) for state in (even, ragged)]
        torch.testing.assert_close(both[0], both[1], rtol=1e-9, atol=1e-10)
        assert torch.equal(both[0].argmax(-1), both[1].argmax(-1))


@torch.no_grad()
def test_columns_that_nobody_has_a_token_in_are_given_back() -> None:
    """A batch may run for ever: what it keeps depends on the rows that are in it."""
    model = build("gpt2")
    state, logits, rows = started(model, [1], capacity=9)
    for _ in range(12):
        other, more, others = started(model, [1], capacity=9)
        state.join(other)
        logits = go_on(model, state, torch.cat([logits, more]), rows + others, 4)
        state.reorder(torch.tensor([1]))
        logits, rows = logits[1:], others
    assert state.length <= state.capacity < 3 * 9


@torch.no_grad()
def test_rows_whose_context_slides_come_and_go() -> None:
    model = build("gpt2")
    sliding = Sliding(model, 8, torch.device("cpu"))

    def run(prompt: list[int], steps: int) -> tuple[Any, Tensor]:
        state = sliding.start(1, 30)
        logits = sliding.prefill(Inputs(torch.tensor([prompt])), state)
        for token in range(steps):
            logits = sliding.step(torch.tensor([token]), state)
        return state, logits

    state, _ = run(PROMPTS[0], 3)
    other, _ = run(PROMPTS[1], 5)
    state.join(other)
    expected = [run(PROMPTS[0], 9)[1], run(PROMPTS[1], 11)[1]]
    for step in range(6):
        logits = sliding.step(torch.tensor([3 + step, 5 + step]), state)
    torch.testing.assert_close(logits, torch.cat(expected), rtol=1e-9, atol=1e-10)
