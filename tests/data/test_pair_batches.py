"""Batches of pairs: pure functions of the step, full, bounded, and padded on the right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from batches_compared import same
from legato.data.batching.batch import IGNORE, Batch, Inputs, named_tensors
from legato.data.batching.batches import BatchShape
from legato.data.batching.pair_batches import PairBatches, collate_pairs
from legato.errors import DataError

START, EOS = 1, 2
# (source, target) lengths: a source has at least its end, a target may be empty.
LENGTHS = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 19)), min_size=1, max_size=60)
PAD_TO = st.sampled_from([1, 4, 8])


def ids_of(lengths: list[tuple[int, int]]) -> tuple[list[Any], list[Any]]:
    """Each pair's ids tell which pair it is: 10, 11, …"""
    sources = [np.full(source, 10 + row, dtype=np.int32) for row, (source, _) in enumerate(lengths)]
    targets = [np.full(target, 10 + row, dtype=np.int32) for row, (_, target) in enumerate(lengths)]
    return sources, targets


def batches_of(lengths: list[tuple[int, int]], **more: Any) -> PairBatches:
    drawing = {name: more.pop(name) for name in ("draw", "max_length") if name in more}
    shape = BatchShape(**{"batch_tokens": 48, "seed": 0, **more})
    return PairBatches(*ids_of(lengths), shape, start=START, eos=EOS, **drawing)


def epoch_of(batches: PairBatches, epoch: int = 0) -> list[Batch]:
    first = epoch * batches.steps_per_epoch
    return [batches.at(step) for step in range(first, first + batches.steps_per_epoch)]


MIXED = [(1 + i * 7 % 20, i * 11 % 20) for i in range(80)]


# --- the promise of every batcher ------------------------------------------------------------------


@given(lengths=LENGTHS, steps=st.lists(st.integers(0, 200), min_size=1, max_size=8), pad_to=PAD_TO)
@settings(max_examples=40, deadline=None)
def test_a_batch_depends_on_the_step_alone(lengths: list[tuple[int, int]], steps: list[int], pad_to: int) -> None:
    used = batches_of(lengths, pad_to=pad_to)
    for step in [*steps, *reversed(steps)]:
        assert same(used.at(step), batches_of(lengths, pad_to=pad_to).at(step))


@given(lengths=LENGTHS, tokens=st.integers(24, 200), epoch=st.integers(0, 3), pad_to=PAD_TO)
@settings(max_examples=60, deadline=None)
def test_each_pair_comes_exactly_once_an_epoch(
    lengths: list[tuple[int, int]], tokens: int, epoch: int, pad_to: int
) -> None:
    batches = batches_of(lengths, batch_tokens=tokens, pad_to=pad_to)
    seen = sorted(
        int(i) for batch in epoch_of(batches, epoch) if batch.source.ids is not None for i in batch.source.ids[:, 0]
    )
    assert seen == list(range(10, 10 + len(lengths)))


@given(lengths=LENGTHS, tokens=st.integers(24, 200), epoch=st.integers(0, 3), pad_to=PAD_TO)
@settings(max_examples=60, deadline=None)
def test_rows_times_the_wider_side_never_exceed_the_bound(
    lengths: list[tuple[int, int]], tokens: int, epoch: int, pad_to: int
) -> None:
    for batch in epoch_of(batches_of(lengths, batch_tokens=tokens, pad_to=pad_to), epoch):
        assert batch.source.ids is not None
        assert batch.rows * max(batch.inputs.ids.shape[1], batch.source.ids.shape[1]) <= tokens


@given(lengths=LENGTHS, epoch=st.integers(0, 3), pad_to=PAD_TO)
@settings(max_examples=60, deadline=None)
def test_what_is_no_padding_is_the_pair_and_what_is_padding_carries_no_loss(
    lengths: list[tuple[int, int]], epoch: int, pad_to: int
) -> None:
    sources, targets = ids_of(lengths)
    for batch in epoch_of(batches_of(lengths, pad_to=pad_to), epoch):
        assert batch.source.ids is not None
        assert batch.targets is not None
        for row in range(batch.rows):
            source, target = (side[int(batch.source.ids[row, 0]) - 10].tolist() for side in (sources, targets))
            assert batch.source.ids[row].tolist() == source + [0] * (batch.source.ids.shape[1] - len(source))
            padding = batch.inputs.ids.shape[1] - len(target) - 1
            assert batch.inputs.ids[row].tolist() == [START, *target] + [0] * padding
            assert batch.targets[row].tolist() == [*target, EOS] + [IGNORE] * padding


@given(lengths=LENGTHS, pad_to=PAD_TO)
@settings(max_examples=60, deadline=None)
def test_lengths_and_counts_leave_padding_out(lengths: list[tuple[int, int]], pad_to: int) -> None:
    for batch in epoch_of(batches_of(lengths, pad_to=pad_to)):
        assert batch.source.ids is not None
        own = [lengths[int(i) - 10] for i in batch.source.ids[:, 0]]
        widths = batch.source.ids.shape[1], batch.inputs.ids.shape[1]
        for tensor, width, expected in zip(
            (batch.source.lengths, batch.inputs.lengths),
            widths,
            ([s for s, _ in own], [t + 1 for _, t in own]),
            strict=True,
        ):
            assert width % pad_to == 0
            assert expected == ([width] * batch.rows if tensor is None else tensor.tolist())
            assert (tensor is None) == (min(expected) == width)
        assert batch.tokens == sum(t + 1 for _, t in own) == int((batch.targets != IGNORE).sum())
        assert batch.read == batch.tokens + sum(s for s, _ in own)


def test_another_seed_gives_other_batches() -> None:
    assert not all(map(same, epoch_of(batches_of(MIXED)), epoch_of(batches_of(MIXED, seed=1))))


def test_batches_come_in_another_order_each_epoch() -> None:
    batches = batches_of(MIXED)
    shapes = [[batch.inputs.ids.shape for batch in epoch_of(batches, epoch)] for epoch in (0, 1)]
    assert shapes[0] != shapes[1]
    assert sorted(shapes[0]) == sorted(shapes[1])


def test_pairs_of_equal_lengths_change_company_between_epochs() -> None:
    batches = batches_of([(5, 5)] * 40)
    company = [
        {
            frozenset(batch.source.ids[:, 0].tolist())
            for batch in epoch_of(batches, epoch)
            if batch.source.ids is not None
        }
        for epoch in (0, 1)
    ]
    assert company[0] != company[1]


def test_pairs_that_are_padded_alike_change_company_too() -> None:
    batches = batches_of([(1 + i % 8, 3) for i in range(40)], pad_to=8)
    company = [
        {
            frozenset(batch.source.ids[:, 0].tolist())
            for batch in epoch_of(batches, epoch)
            if batch.source.ids is not None
        }
        for epoch in (0, 1)
    ]
    assert company[0] != company[1]


def test_pairs_of_like_lengths_are_batched_together() -> None:
    draw = np.random.default_rng(0)
    lengths = [
        (int(n), max(0, int(n) + int(d))) for n, d in zip(*draw.integers((5, -3), (40, 4), (2000, 2)).T, strict=True)
    ]
    batches = epoch_of(batches_of(lengths, batch_tokens=1024))
    held = sum(batch.read for batch in batches)
    room = sum(
        batch.inputs.ids.numel() + batch.source.ids.numel() for batch in batches if batch.source.ids is not None
    )
    assert held / room > 0.9


def test_ids_are_what_an_embedding_takes() -> None:
    batch = batches_of(MIXED).at(0)
    assert batch.source.ids is not None
    assert batch.targets is not None
    assert {batch.inputs.ids.dtype, batch.targets.dtype, batch.source.ids.dtype} == {torch.int64}
    assert batch.inputs.ids.is_contiguous()
    assert batch.targets.is_contiguous()
    assert batch.source.ids.is_contiguous()


@pytest.mark.parametrize("largest", [9, 70_000])
def test_ids_of_any_size_survive(largest: int) -> None:
    batch = PairBatches([[largest]], [[largest]], BatchShape(batch_tokens=9, seed=0), start=START, eos=EOS).at(0)
    assert (batch.source.ids.tolist(), batch.inputs.ids.tolist()) == ([[largest]], [[START, largest]])  # type: ignore[union-attr]


def test_the_nominal_size_of_a_step_is_the_bound() -> None:
    assert batches_of(MIXED, batch_tokens=77).tokens_per_step == 77


# --- fresh ids -------------------------------------------------------------------------------------


def test_drawn_ids_take_the_place_of_stored_ones() -> None:
    def draw(pairs: Any, epoch: int, side: str) -> tuple[Any, Any]:
        lengths = pairs % 3 + 1  # of another length than the stored
        return np.repeat(pairs + (1000 if side == "source" else 2000), lengths), lengths

    batch = batches_of([(4, 4)] * 12, batch_tokens=1000, draw=draw).at(2)
    assert batch.source.ids is not None
    assert sorted(batch.source.ids[:, 0].tolist()) == list(range(1000, 1012))
    for row in range(12):
        pair = int(batch.source.ids[row, 0]) - 1000
        assert batch.source.ids[row][batch.source.ids[row] > 0].tolist() == [1000 + pair] * (pair % 3 + 1)
        assert batch.inputs.ids[row][batch.inputs.ids[row] > 0].tolist() == [START] + [2000 + pair] * (pair % 3 + 1)


def drawing(pairs: Any, epoch: int, side: str) -> tuple[Any, Any]:
    """Ids that tell their pair, 10, 11, …, in numbers from 1 to 40 that are drawn for pair, epoch and side."""
    lengths = np.array([np.random.default_rng([int(p), epoch, side == "source"]).integers(1, 41) for p in pairs])
    return np.repeat(pairs + 10, lengths), lengths


@pytest.mark.slow
@given(count=st.integers(1, 40), steps=st.lists(st.integers(0, 90), min_size=1, max_size=4), pad_to=PAD_TO)
@settings(max_examples=20, deadline=None)
def test_a_batch_of_drawn_ids_depends_on_the_step_alone(count: int, steps: list[int], pad_to: int) -> None:
    settings = {"batch_tokens": 100, "draw": drawing, "pad_to": pad_to}
    used = batches_of([(4, 4)] * count, **settings)
    for step in [*steps, *reversed(steps)]:
        assert same(used.at(step), batches_of([(4, 4)] * count, **settings).at(step))


@given(count=st.integers(1, 60), epoch=st.integers(0, 3), tokens=st.integers(48, 200))
@settings(max_examples=20, deadline=None)
def test_each_pair_comes_exactly_once_an_epoch_however_it_is_drawn(count: int, epoch: int, tokens: int) -> None:
    batches = batches_of([(4, 4)] * count, batch_tokens=tokens, draw=drawing)
    seen = sorted(
        int(i) for batch in epoch_of(batches, epoch) if batch.source.ids is not None for i in batch.source.ids[:, 0]
    )
    assert seen == list(range(10, 10 + count))


def test_the_first_epochs_draw_keeps_the_bound() -> None:
    for batch in epoch_of(batches_of([(4, 4)] * 300, batch_tokens=400, draw=drawing)):
        assert batch.source.ids is not None
        assert batch.rows * max(batch.inputs.ids.shape[1], batch.source.ids.shape[1]) <= 400


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_drawn_rows_of_like_lengths_are_batched_together(epoch: int) -> None:
    batches = epoch_of(batches_of([(4, 4)] * 600, batch_tokens=400, draw=drawing), epoch)
    widest = [
        max(batch.inputs.ids.shape[1], batch.source.ids.shape[1]) for batch in batches if batch.source.ids is not None
    ]
    for batch, width in zip(batches, widest, strict=True):
        assert batch.source.ids is not None
        longer = torch.maximum((batch.source.ids > 0).sum(1), (batch.inputs.ids > 0).sum(1))
        assert width - int(longer.min()) <= 9  # of 1 to 41


def test_a_row_drawn_longer_than_a_batch_is_a_batch() -> None:
    batches = batches_of([(4, 4)] * 20, batch_tokens=10, draw=drawing)
    assert batches.steps_per_epoch == 20


def test_a_side_that_is_not_drawn_stays_as_stored() -> None:
    def draw(pairs: Any, epoch: int, side: str) -> tuple[Any, Any] | None:
        return (pairs + 1000, np.ones_like(pairs)) if side == "target" else None

    batch, stored = batches_of([(4, 4)] * 6, draw=draw).at(0), batches_of([(4, 4)] * 6).at(0)
    assert torch.equal(batch.source.ids, stored.source.ids)  # type: ignore[arg-type]
    assert batch.inputs.ids.shape[1] == 2


def test_drawn_targets_may_all_be_empty() -> None:
    def draw(pairs: Any, epoch: int, side: str) -> tuple[Any, Any] | None:
        return (np.zeros(0, dtype=np.int32), np.zeros_like(pairs)) if side == "target" else None

    batch = batches_of([(4, 4)] * 2, draw=draw).at(0)
    assert (batch.inputs.ids.tolist(), batch.targets.tolist()) == ([[START]] * 2, [[EOS]] * 2)  # type: ignore[union-attr]


@pytest.mark.parametrize(("longest", "drawn"), [(None, [1, 2, 3]), (3, [1, 2, 3]), (2, [1, 2, 4])])
def test_what_is_drawn_longer_than_a_model_takes_stays_as_stored(longest: int | None, drawn: list[int]) -> None:
    def draw(pairs: Any, epoch: int, side: str) -> tuple[Any, Any]:
        lengths = pairs + (1 if side == "source" else 0)
        return np.repeat(pairs + 1000, lengths), lengths

    batch = batches_of([(4, 3)] * 3, draw=draw, max_length=longest).at(0)
    assert batch.source.ids is not None
    for counts, rows in (
        ((batch.source.ids > 0).sum(1), batch.source.ids),
        ((batch.inputs.ids > 0).sum(1), batch.inputs.ids),
    ):
        assert sorted(counts.tolist()) == drawn
        assert set(rows[counts == 4].flatten().tolist()) <= {START, 12}


# --- what is wrong with it -------------------------------------------------------------------------


def test_no_pairs_are_refused() -> None:
    with pytest.raises(DataError, match=r"a\.tsv holds no pairs"):
        batches_of([], name="a.tsv")


def test_a_source_without_tokens_is_named() -> None:
    with pytest.raises(DataError, match=r"a\.tsv, pair 2: the source has no tokens"):
        batches_of([(1, 1), (0, 1)], name="a.tsv")


@pytest.mark.parametrize("pair", [(11, 1), (1, 10)])
def test_a_pair_longer_than_a_batch_is_named_with_the_numbers(pair: tuple[int, int]) -> None:
    with pytest.raises(DataError, match=r"a\.tsv, pair 2: 11 tokens on one side, more than train\.batch_tokens=10"):
        batches_of([(1, 1), pair], name="a.tsv", batch_tokens=10)


# --- collating -------------------------------------------------------------------------------------


def test_collated_pairs_are_padded_on_the_right() -> None:
    batch = collate_pairs([[5, 6], [7]], [[8], [9, 10]], START, EOS)
    assert batch.source.ids is not None
    assert batch.targets is not None
    assert batch.source.ids.tolist() == [[5, 6], [7, 0]]
    assert batch.inputs.ids.tolist() == [[START, 8, 0], [START, 9, 10]]
    assert batch.targets.tolist() == [[8, EOS, IGNORE], [9, 10, EOS]]
    assert (batch.tokens, batch.read) == (5, 8)


def test_full_rows_have_no_lengths() -> None:
    batch = collate_pairs([[5], [6]], [[7], [8]], START, EOS)
    assert batch.inputs.lengths is None
    assert batch.source.lengths is None


def test_collating_keeps_the_order_of_rows() -> None:
    assert Inputs.of([[3, 3], [4], [5, 5, 5]]).token_ids[:, 0].tolist() == [3, 4, 5]


def test_collated_sources_have_lengths_where_they_differ() -> None:
    source = Inputs.of([[3, 3], [4]])
    assert source.token_ids.tolist() == [[3, 3], [4, 0]]
    assert source.lengths is not None
    assert source.lengths.tolist() == [2, 1]
    assert Inputs.of([[3], [4]]).lengths is None


def test_a_batch_of_pairs_is_split_by_rows() -> None:
    whole = batches_of(MIXED, batch_tokens=200).at(0)
    pieces = whole.split(3)
    for name, tensor in named_tensors(whole).items():
        assert torch.equal(torch.cat([named_tensors(piece)[name] for piece in pieces]), tensor)
    assert sum(piece.tokens for piece in pieces) == whole.tokens


# --- batches alike ---------------------------------------------------------------------------------


def rows_of(batch: Batch) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The pairs that a batch holds, without padding; rows of nothing left out."""
    assert batch.source.ids is not None
    assert batch.source.lengths is not None
    assert batch.targets is not None
    found = []
    for source, size, target in zip(batch.source.ids, batch.source.lengths, batch.targets, strict=True):
        real = target[target != IGNORE]
        if len(real):
            found.append((tuple(source[:size].tolist()), tuple(real.tolist())))
    assert len(set(found)) == len(found)
    return set(found)


def test_batches_alike_hold_the_same_pairs_in_few_shapes() -> None:
    drawn = np.random.default_rng(3)
    sides = [[drawn.integers(1, 5000, size=size) for size in drawn.integers(2, 40, size=600)] for _ in range(2)]
    shapes_of = [BatchShape(batch_tokens=512, seed=1, pad_to=8, fixed_shape=fixed) for fixed in (False, True)]
    plain, alike = (PairBatches(*sides, shape, start=0, eos=0) for shape in shapes_of)
    assert plain.steps_per_epoch == alike.steps_per_epoch
    shapes = set()
    for step in range(alike.steps_per_epoch):
        batch, before = alike.at(step), plain.at(step)
        assert batch.fixed_shape
        assert batch.source.ids is not None
        assert batch.source.ids.shape == batch.inputs.ids.shape
        assert batch.inputs.ids.numel() <= 512
        assert batch.tokens == before.tokens
        assert batch.read == before.read
        filled = replace(before, source=replace(before.source, lengths=_lengths(before)))
        assert rows_of(batch) == rows_of(filled)
        shapes.add(tuple(batch.inputs.ids.shape))
    assert len(shapes) <= 5  # widths 8, 16, …, 40


def _lengths(batch: Batch) -> Tensor:
    assert batch.source.ids is not None
    return (
        torch.full((batch.rows,), batch.source.ids.shape[1]) if batch.source.lengths is None else batch.source.lengths
    )
