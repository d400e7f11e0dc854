"""Rare words that are hidden now and then."""

from __future__ import annotations

import torch

from legato.data.batching.batches import BatchShape
from legato.data.batching.examples import Example, ExampleBatches, RareWords

UNKNOWN = 1


def batches(share: float) -> tuple[ExampleBatches, RareWords]:
    rows = [Example([2, 3, 4 + n], positions=[0, 1, 2], targets=[0, 0, 1]) for n in range(40)]  # the third is rare
    plain = ExampleBatches(rows, BatchShape(batch_tokens=30, seed=3))
    return plain, RareWords(plain, rows, 64, UNKNOWN, share=share, seed=3)


def test_only_rare_words_are_hidden_and_only_sometimes() -> None:
    plain, hidden = batches(0.5)
    changed = 0
    for step in range(2 * plain.steps_per_epoch):
        before, after = plain.at(step), hidden.at(step)
        different = before.inputs.token_ids != after.inputs.token_ids
        assert (before.inputs.token_ids[different] >= 4).all()
        assert (after.inputs.token_ids[different] == UNKNOWN).all()
        assert before.targets is not None
        assert after.targets is not None
        assert torch.equal(before.targets, after.targets)
        changed += int(different.sum())
    assert 20 < changed < 60


def test_a_batch_is_a_function_of_its_step() -> None:
    first, second = batches(0.5)[1], batches(0.5)[1]
    for step in (7, 2, 7):
        assert torch.equal(first.at(step).inputs.ids, second.at(step).inputs.ids)
    assert not torch.equal(first.at(2).inputs.ids, first.at(2 + first.steps_per_epoch).inputs.ids)


def test_all_of_them_may_be_hidden() -> None:
    plain, hidden = batches(1.0)
    assert (hidden.at(0).inputs.ids < 4).all()
    assert hidden.tokens_per_step == plain.tokens_per_step
