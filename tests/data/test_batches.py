"""Batches as pure functions of the step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from batches_compared import same
from legato.data.batching.batch import IGNORE, Batch, named_tensors
from legato.data.batching.batches import BatchShape, Streams, Windows, WindowShape, mix_seed
from legato.data.batching.examples import Example, ExampleBatches, collate_examples, next_tokens
from legato.errors import DataError

TEXT = np.arange(1000, dtype=np.int32)  # every token tells its place

# Sequences of 2 to 12 tokens, each with a first token of its own.
SEQUENCES = [([1000 + i, *range(1, 2 + i % 11)], 1 + i % 2) for i in range(60)]


def streams(seed: int = 0, forget: float = 0.0, **more: Any) -> Streams:
    shape = WindowShape(**{"rows": 4, "window": 10, "seed": seed, **more})
    return Streams(TEXT, shape, forget=forget)


def windows(seed: int = 0, **more: Any) -> Windows:
    return Windows(TEXT, WindowShape(**{"rows": 4, "window": 10, "seed": seed, **more}))


def rows(seed: int = 0, **more: Any) -> ExampleBatches:
    return ExampleBatches(next_tokens(SEQUENCES), BatchShape(**{"batch_tokens": 40, "seed": seed, **more}))


MAKERS: dict[str, Callable[..., Any]] = {"streams": streams, "windows": windows, "rows": rows}
CUTTERS = {"streams": Streams, "windows": Windows}


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return MAKERS[request.param]


def epoch_of(batches: Any, epoch: int = 0) -> list[Batch]:
    first = epoch * batches.steps_per_epoch
    return [batches.at(step) for step in range(first, first + batches.steps_per_epoch)]


# --- what all of them promise ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", MAKERS)
@given(steps=st.lists(st.integers(0, 200), min_size=1, max_size=8), seed=st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_a_batch_depends_on_the_step_alone(kind: str, steps: list[int], seed: int) -> None:
    more = {"forget": 0.3} if kind == "streams" else {}
    used = MAKERS[kind](seed, **more)
    for step in steps:  # in whatever order
        assert same(used.at(step), MAKERS[kind](seed, **more).at(step))


def test_another_seed_gives_other_batches(make: Callable[..., Any]) -> None:
    assert not all(same(a, b) for a, b in zip(epoch_of(make(0)), epoch_of(make(1)), strict=True))


def test_epochs_differ(make: Callable[..., Any]) -> None:
    batches = make()
    pairs = zip(epoch_of(batches, 0), epoch_of(batches, 1), strict=True)
    assert not all(torch.equal(a.inputs.ids, b.inputs.ids) for a, b in pairs)


def test_targets_are_the_inputs_moved_by_one(make: Callable[..., Any]) -> None:
    for batch in epoch_of(make()):
        counted = batch.targets[:, :-1] != IGNORE
        if batch.inputs.lengths is not None:  # behind a row's last input there is only padding
            counted &= torch.arange(1, batch.inputs.ids.shape[1]) < batch.inputs.lengths.unsqueeze(1)
        assert torch.equal(batch.targets[:, :-1][counted], batch.inputs.ids[:, 1:][counted])


def test_a_batch_knows_how_many_targets_count(make: Callable[..., Any]) -> None:
    for batch in epoch_of(make()):
        assert batch.tokens == int((batch.targets != IGNORE).sum())


def test_ids_are_what_an_embedding_takes(make: Callable[..., Any]) -> None:
    batch = make().at(0)
    assert batch.inputs.ids.dtype == batch.targets.dtype == torch.int64


# --- streams and windows ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CUTTERS)
@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
def test_ids_of_any_integer_type_give_the_same_batches(kind: str, dtype: Any) -> None:
    shape = WindowShape(rows=4, window=10, seed=0)
    assert same(CUTTERS[kind](TEXT.astype(dtype), shape).at(3), CUTTERS[kind](TEXT, shape).at(3))


@pytest.mark.parametrize("kind", CUTTERS)
def test_a_text_shorter_than_one_batch_is_refused_with_the_numbers(kind: str) -> None:
    with pytest.raises(DataError, match=r"data\.train=a\.txt holds 1,000 tokens, fewer than one batch of 8 × 200"):
        CUTTERS[kind](TEXT, WindowShape(rows=8, window=200, seed=0, name="data.train=a.txt"))


@pytest.mark.parametrize("kind", CUTTERS)
def test_a_text_of_exactly_one_batch_is_enough(kind: str) -> None:
    batches = CUTTERS[kind](TEXT, WindowShape(rows=10, window=100, seed=0))
    assert batches.steps_per_epoch == 1
    assert batches.at(0).inputs.ids.shape == (10, 100)


@pytest.mark.parametrize("kind", CUTTERS)
@given(size=st.integers(2, 300), count=st.integers(1, 5), window=st.integers(1, 20), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_a_token_is_read_at_most_once_an_epoch_and_nearly_all_are(
    kind: str, size: int, count: int, window: int, seed: int
) -> None:
    if size < count * window:
        return
    batches = CUTTERS[kind](TEXT[:size], WindowShape(rows=count, window=window, seed=seed))
    seen = Counter(int(i) for batch in epoch_of(batches) for i in batch.inputs.ids.flatten())
    assert set(seen.values()) == {1}
    # What is left over is less than one more step, and for windows one more window.
    assert len(seen) > size - count * window - window


@pytest.mark.parametrize("kind", CUTTERS)
def test_every_token_is_read_in_the_course_of_some_epochs(kind: str) -> None:
    batches = CUTTERS[kind](TEXT, WindowShape(rows=7, window=13, seed=0))
    seen = {int(i) for epoch in range(10) for batch in epoch_of(batches, epoch) for i in batch.inputs.ids.flatten()}
    assert seen == set(range(1000))


@pytest.mark.slow
@given(count=st.integers(1, 6), window=st.integers(1, 30), seed=st.integers(0, 99), epoch=st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_every_row_of_a_stream_goes_on_where_the_batch_before_ended(
    count: int, window: int, seed: int, epoch: int
) -> None:
    batches = Streams(TEXT, WindowShape(rows=count, window=window, seed=seed))
    for before, after in pairwise(epoch_of(batches, epoch)):
        assert before.targets is not None
        assert torch.equal(after.inputs.token_ids[:, 0], before.targets[:, -1])


def test_a_stream_is_fresh_at_the_start_of_each_epoch_only() -> None:
    batches = streams()
    fresh = [batches.at(step).reset_all for step in range(2 * batches.steps_per_epoch)]
    assert [step for step, is_fresh in enumerate(fresh) if is_fresh] == [0, batches.steps_per_epoch]


def test_every_window_is_fresh() -> None:
    assert all(batch.reset_all for batch in epoch_of(windows()))


def test_the_text_is_a_ring() -> None:
    batches = streams()
    follows = set()
    for step in range(10 * batches.steps_per_epoch):
        batch = batches.at(step)
        assert batch.targets is not None
        follows |= set(zip(batch.inputs.ids.flatten().tolist(), batch.targets.flatten().tolist(), strict=True))
    assert (999, 0) in follows
    assert all(b == (a + 1) % 1000 for a, b in follows)


def test_no_row_forgets_unless_asked() -> None:
    assert all(batch.keep_state is None for batch in epoch_of(streams()))


def test_rows_forget_as_often_as_asked() -> None:
    batches = streams(forget=0.25)
    kept = [batches.at(step).keep_state for step in range(500)]
    forgotten = sum(0 if keep is None else int((~keep).sum()) for keep in kept)
    assert forgotten / (500 * 4) == pytest.approx(0.25, abs=0.04)


def test_which_row_forgets_is_drawn_from_seed_and_step_alone() -> None:
    # Another text, another epoch length: the draw at a step stays.
    other = Streams(TEXT[:300], WindowShape(rows=4, window=10, seed=0), forget=0.25)
    for step in range(50):
        here, there = streams(forget=0.25).at(step).keep_state, other.at(step).keep_state
        assert (here is None and there is None) or torch.equal(here, there)


def test_windows_come_in_another_order_than_the_text() -> None:
    firsts = [int(batch.inputs.ids[0, 0]) for batch in epoch_of(windows())]
    assert firsts != sorted(firsts)


# --- rows ------------------------------------------------------------------------------------------

LENGTHS = st.lists(st.integers(2, 30), min_size=1, max_size=40)


def sequences_of(lengths: list[int]) -> list[Example]:
    return next_tokens(([row + 1] * length, 0) for row, length in enumerate(lengths))


@given(lengths=LENGTHS, tokens=st.integers(29, 120), epoch=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_a_batch_of_rows_holds_at_most_batch_tokens_with_its_padding(
    lengths: list[int], tokens: int, epoch: int
) -> None:
    batches = ExampleBatches(sequences_of(lengths), BatchShape(batch_tokens=tokens, seed=0))
    assert all(batch.inputs.ids.numel() <= tokens for batch in epoch_of(batches, epoch))


@given(lengths=LENGTHS, tokens=st.integers(29, 120), epoch=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_each_row_comes_exactly_once_an_epoch(lengths: list[int], tokens: int, epoch: int) -> None:
    batches = ExampleBatches(sequences_of(lengths), BatchShape(batch_tokens=tokens, seed=0))
    seen = sorted(int(i) for batch in epoch_of(batches, epoch) for i in batch.inputs.ids[:, 0])
    assert seen == list(range(1, len(lengths) + 1))


def test_rows_of_like_length_are_batched_together() -> None:
    lengths = [batch.inputs.lengths for batch in epoch_of(rows(batch_tokens=60)) if batch.inputs.lengths is not None]
    assert all(int(each.max() - each.min()) <= 3 for each in lengths)


def test_rows_of_equal_length_change_company_between_epochs() -> None:
    batches = ExampleBatches(sequences_of([5] * 40), BatchShape(batch_tokens=32, seed=0))
    company = [{frozenset(batch.inputs.ids[:, 0].tolist()) for batch in epoch_of(batches, epoch)} for epoch in (0, 1)]
    assert company[0] != company[1]


def test_no_rows_are_refused() -> None:
    with pytest.raises(DataError, match=r"a\.txt holds no rows"):
        ExampleBatches([], BatchShape(batch_tokens=10, seed=0, name="a.txt"))


def test_a_row_without_anything_to_predict_is_named() -> None:
    with pytest.raises(DataError, match=r"a\.txt, row 2: a sequence needs at least two tokens"):
        next_tokens([([1, 2], 0), ([1], 0)], "a.txt")


def test_a_row_longer_than_a_batch_is_refused_with_the_numbers() -> None:
    with pytest.raises(DataError, match=r"row 1: 11 tokens, more than train\.batch_tokens=10"):
        ExampleBatches(sequences_of([12]), BatchShape(batch_tokens=10, seed=0))


# --- collating -------------------------------------------------------------------------------------


def test_the_targets_of_a_prompt_are_ignored() -> None:
    batch = collate_examples(next_tokens([([5, 6, 7, 8, 9], 3)]))
    assert batch.inputs.ids.tolist() == [[5, 6, 7, 8]]
    # The prompt's last token predicts the first of the answer.
    assert batch.targets is not None
    assert batch.targets.tolist() == [[IGNORE, IGNORE, 8, 9]]
    assert batch.tokens == 2


@pytest.mark.parametrize("prompt", [0, 1])
def test_without_a_prompt_every_token_but_the_first_is_a_target(prompt: int) -> None:
    batch = collate_examples(next_tokens([([5, 6, 7], prompt)]))
    assert batch.targets is not None
    assert batch.targets.tolist() == [[6, 7]]


def test_padding_stands_on_the_right_and_is_ignored() -> None:
    batch = collate_examples(next_tokens([([5, 6], 0), ([1, 2, 3, 4], 0)]))
    assert batch.inputs.ids.tolist() == [[5, 0, 0], [1, 2, 3]]
    assert batch.targets is not None
    assert batch.targets.tolist() == [[6, IGNORE, IGNORE], [2, 3, 4]]
    assert batch.inputs.lengths is not None
    assert batch.inputs.lengths.tolist() == [1, 3]


def test_full_rows_have_no_lengths() -> None:
    assert collate_examples(next_tokens([([5, 6], 0), ([1, 2], 0)])).inputs.lengths is None


# --- splitting -------------------------------------------------------------------------------------


@given(count=st.integers(1, 12), parts=st.integers(1, 15), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_splitting_keeps_all_rows_in_order_and_every_token(count: int, parts: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    whole = collate_examples(
        next_tokens([([row + 1] * int(draw.integers(2, 9)), int(draw.integers(0, 3))) for row in range(count)])
    )
    whole.keep_state = torch.from_numpy(draw.random(count) < 0.5)
    pieces = whole.split(parts)
    assert len(pieces) <= parts
    for name, tensor in named_tensors(whole).items():
        assert torch.equal(torch.cat([named_tensors(piece)[name] for piece in pieces]), tensor)
    assert sum(piece.tokens for piece in pieces) == whole.tokens


def test_the_parts_of_a_batch_are_as_fresh_as_the_whole() -> None:
    assert all(not part.reset_all for part in streams().at(1).split(2))
    assert all(part.reset_all for part in streams().at(0).split(2))


def test_a_split_into_one_is_the_batch_itself() -> None:
    batch = streams().at(0)
    assert batch.split(1) == [batch]


# --- seeds -----------------------------------------------------------------------------------------


def test_a_seed_made_of_parts_is_the_same_in_every_process() -> None:
    # Written down: a run may be resumed by another process, under another version of Python.
    assert mix_seed(0, "streams", 3) == 5790259486521719185


@pytest.mark.slow
@given(st.integers(), st.text(max_size=5))
def test_a_seed_made_of_parts_fits_any_generator(number: int, word: str) -> None:
    assert 0 <= mix_seed(number, word) < 2**63
