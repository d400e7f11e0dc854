"""Rows with labels, tags and spans, and their batches."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from legato.data.batching.batch import IGNORE
from legato.data.batching.batches import BatchShape
from legato.data.batching.examples import Example, ExampleBatches, collate_examples, scoring_batches
from legato.errors import DataError


def rows_of(lengths: list[int]) -> list[Example]:
    return [Example([number] * length, label=number) for number, length in enumerate(lengths)]


def test_rows_are_padded_on_the_right() -> None:
    batch = collate_examples([Example([5, 6, 7], [0, 0, 1], label=1), Example([8], [0], label=0)], pad=9)
    assert batch.inputs.ids.tolist() == [[5, 6, 7], [8, 9, 9]]
    assert batch.inputs.segments is not None
    assert batch.inputs.segments.tolist() == [[0, 0, 1], [0, 0, 0]]
    assert batch.inputs.lengths is not None
    assert batch.inputs.lengths.tolist() == [3, 1]
    assert batch.labels is not None
    assert batch.labels.tolist() == [1, 0]
    assert (batch.tokens, batch.read) == (2, 4)


def test_tags_stand_beside_the_words_first_tokens() -> None:
    batch = collate_examples(
        [Example([1, 2, 3], positions=[0, 2], targets=[4, 5]), Example([1], positions=[0], targets=[6])]
    )
    assert batch.positions is not None
    assert batch.positions.tolist() == [[0, 2], [0, 0]]
    assert batch.targets is not None
    assert batch.targets.tolist() == [[4, 5], [6, IGNORE]]
    assert batch.tokens == 3


def test_numbers_and_several_labels_are_floats() -> None:
    assert collate_examples([Example([1], label=0.5)]).labels.dtype == torch.float32  # type: ignore[union-attr]
    several = collate_examples([Example([1], label=[0, 1, 1])]).labels
    assert several is not None
    assert several.tolist() == [[0.0, 1.0, 1.0]]


def test_characters_are_padded_both_ways() -> None:
    rows = [Example([1, 2], characters=np.ones((2, 3))), Example([1], characters=np.ones((1, 5)))]
    characters = collate_examples(rows).inputs.characters
    assert characters is not None
    assert characters.shape == (2, 2, 5)
    assert characters.sum() == 6 + 5


@pytest.mark.slow
@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(30, 90), st.booleans())
def test_an_epoch_holds_every_row_once(lengths: list[int], limit: int, alike: bool) -> None:
    batches = ExampleBatches(rows_of(lengths), BatchShape(batch_tokens=limit, seed=1, fixed_shape=alike))
    for epoch in range(2):
        seen: list[int] = []
        for step in range(batches.steps_per_epoch):
            batch = batches.at(epoch * batches.steps_per_epoch + step)
            assert batch.inputs.ids.numel() <= limit
            assert batch.labels is not None
            seen += batch.labels[batch.labels != IGNORE].tolist()
            assert batch.tokens == (batch.labels != IGNORE).sum()
        assert sorted(seen) == list(range(len(lengths)))


def test_batches_of_so_many_rows() -> None:
    batches = ExampleBatches(rows_of([3, 9, 4, 8, 2]), BatchShape(batch_tokens=1, batch_rows=2, seed=0))
    assert sorted(batches.at(step).rows for step in range(batches.steps_per_epoch)) == [1, 2, 2]


def test_a_batch_depends_on_its_step_alone() -> None:
    one, two = (ExampleBatches(rows_of([1, 5, 3, 2, 8, 1, 1]), BatchShape(batch_tokens=8, seed=3)) for _ in range(2))
    later = one.at(9)
    assert torch.equal(later.inputs.ids, two.at(9).inputs.ids)
    assert torch.equal(one.at(0).inputs.ids, two.at(0).inputs.ids)


def test_rows_that_fill_a_batch_up_teach_nothing() -> None:
    rows = [Example([1, 2], label=0.5), Example([1], label=1.5), Example([3], label=2.5)]
    batches = ExampleBatches(rows, BatchShape(batch_tokens=100, batch_rows=4, seed=0, fixed_shape=True))
    batch = batches.at(0)
    assert batch.rows == 4
    assert batch.labels is not None
    assert int(batch.labels.isnan().sum()) == 1
    assert batch.tokens == 3


def test_no_batch_is_wider_than_the_longest_row() -> None:
    rows = rows_of([3, 9, 10, 17, 20])
    batches = ExampleBatches(rows, BatchShape(batch_tokens=40, seed=0, pad_to=8, fixed_shape=True))
    widths = {batches.at(step).inputs.ids.shape[1] for step in range(batches.steps_per_epoch)}
    assert widths == {16, 20}  # not 24: a model may have no more places than the longest row needs


def test_scoring_meets_every_row_once() -> None:
    rows = rows_of([4, 1, 9, 2, 2])
    met = [number for numbers, batch in scoring_batches(rows, batch_tokens=9) for number in numbers]
    assert sorted(met) == [0, 1, 2, 3, 4]


def test_a_row_beyond_the_batch_is_named() -> None:
    with pytest.raises(DataError, match=r"row 2: 12 tokens, more than train.batch_tokens=10"):
        ExampleBatches(rows_of([3, 12]), BatchShape(batch_tokens=10, seed=0))
