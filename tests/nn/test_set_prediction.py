"""Set prediction: the matching is the best of all, costs and losses are those worked out by hand."""

from __future__ import annotations

import math
from itertools import permutations

import pytest
import torch
from torch import Tensor

from legato.data.batching.batch import IGNORE
from legato.nn.losses.set_prediction import ALPHA, focal, match, matching_costs, set_loss


def some(rows: int = 3, queries: int = 5, count: int = 3, classes: int = 4) -> tuple[Tensor, ...]:
    """Logits, boxes, labels and true boxes."""
    draw = torch.Generator().manual_seed(3)
    corners = torch.rand(rows, queries + count, 2, 2, generator=draw).sort(2).values.flatten(2)
    logits = torch.randn(rows, queries, classes, generator=draw)
    return logits, corners[:, :queries], torch.randint(classes, (rows, count), generator=draw), corners[:, queries:]


def test_the_focal_loss_is_small_for_what_is_right_already() -> None:
    logits = torch.tensor([0.0, 0.0, 3.0])
    p = 1 / (1 + math.exp(-3))
    wanted = [ALPHA * 0.25 * math.log(2), (1 - ALPHA) * 0.25 * math.log(2), -ALPHA * (1 - p) ** 2 * math.log(p)]
    assert focal(logits, torch.tensor([1.0, 0.0, 1.0])).tolist() == pytest.approx(wanted, rel=1e-5)


def test_a_cost_worked_by_hand() -> None:
    logits, boxes = torch.zeros(1, 1, 2), torch.tensor([[[0.0, 0.0, 0.5, 0.5]]])
    truth, labels = torch.tensor([[[0.5, 0.0, 1.0, 0.5]]]), torch.tensor([[1]])
    classes = (ALPHA - (1 - ALPHA)) * 0.25 * math.log(2)
    # The centres are .5 apart, both boxes together fill the one around them, and they share nothing: GIoU is 0.
    assert matching_costs(logits, boxes, labels, truth).item() == pytest.approx(2 * classes + 5 * 0.5, rel=1e-5)


def test_the_matching_is_the_cheapest_of_all() -> None:
    logits, boxes, labels, truth = some()
    labels[1, 1] = IGNORE  # in the middle: a box that a crop cut off
    labels[2] = IGNORE
    costs = matching_costs(logits, boxes, labels, truth)
    (found,) = match([costs], labels)
    for row in range(2):
        there = (labels[row] != IGNORE).nonzero().flatten().tolist()
        best = min(
            sum(costs[row, q, n].item() for q, n in zip(chosen, there, strict=True))
            for chosen in permutations(range(5), len(there))
        )
        queries = found[row, there].tolist()
        assert len(set(queries)) == len(there)
        assert sum(costs[row, q, n].item() for q, n in zip(queries, there, strict=True)) == pytest.approx(best)
    assert found[1, 1] == 5  # nobody's
    assert found[2].tolist() == [5, 5, 5]


def test_each_layer_is_matched_on_its_own() -> None:
    _, _, labels, _ = some(rows=1, count=2)
    first = torch.tensor([[[0.0, 9.0], [9.0, 0.0]]])
    second = torch.tensor([[[9.0, 9.0], [9.0, 0.0], [0.0, 9.0]]])
    found = match([first, second], labels)
    assert [each.tolist() for each in found] == [[[0, 1]], [[2, 1]]]


def test_more_boxes_than_queries_leave_some_to_nobody() -> None:
    labels = torch.tensor([[0, 0, 0]])
    (found,) = match([torch.tensor([[[3.0, 1.0, 2.0]]])], labels)
    assert found.tolist() == [[1, 0, 1]]
    truth = torch.rand(1, 3, 2, 2).sort(2).values.flatten(2)
    one = set_loss(torch.zeros(1, 1, 1), truth[:, 1:2], labels, truth, found)
    assert one.item() == pytest.approx(2 * ALPHA * 0.25 * math.log(2), rel=1e-4)  # its box is exact


def test_a_loss_worked_by_hand() -> None:
    logits = torch.zeros(1, 2, 2)
    boxes = torch.tensor([[[0.0, 0.0, 0.5, 0.5], [0.2, 0.2, 0.4, 0.4]]])
    truth, labels = torch.tensor([[[0.5, 0.0, 1.0, 0.5], [9.0, 9.0, 9.0, 9.0]]]), torch.tensor([[1, IGNORE]])
    classes = (ALPHA + 3 * (1 - ALPHA)) * 0.25 * math.log(2)  # one of four is there
    loss = set_loss(logits, boxes, labels, truth, torch.tensor([[0, 2]]))
    assert loss.item() == pytest.approx(2 * classes + 5 * 0.5 + 2 * 1, rel=1e-5)


def test_the_order_of_the_boxes_changes_nothing() -> None:
    logits, boxes, labels, truth = some()
    wanted = set_loss(logits, boxes, labels, truth, match([matching_costs(logits, boxes, labels, truth)], labels)[0])
    labels, truth = labels.flip(1), truth.flip(1)
    again = set_loss(logits, boxes, labels, truth, match([matching_costs(logits, boxes, labels, truth)], labels)[0])
    torch.testing.assert_close(wanted, again)


def test_a_model_that_has_diverged_is_matched_all_the_same() -> None:
    logits, boxes, labels, truth = some()
    logits[0, 0] = torch.nan
    costs = matching_costs(logits, boxes, labels, truth)
    assert costs.isfinite().all()
    assert not set_loss(logits, boxes, labels, truth, match([costs], labels)[0]).isfinite()
