"""Boxes: two forms of the same, and overlaps worked by hand."""

from __future__ import annotations

import pytest
import torch

from legato.nn.boxes import area, generalised_iou, iou, to_centre, to_corners

A = torch.tensor([0.0, 0.0, 2.0, 2.0])
CASES = [
    # the other box, IoU with A, GIoU with A
    ([0, 0, 2, 2], 1.0, 1.0),  # itself
    ([1, 1, 3, 3], 1 / 7, 1 / 7 - 2 / 9),  # a corner of 1 of 4 + 4 - 1; 9 around both
    ([0, 0, 1, 2], 0.5, 0.5),  # inside: nothing around both but the larger
    ([0, 0, 4, 4], 4 / 16, 4 / 16),
    ([2, 0, 4, 2], 0.0, 0.0),  # side by side: together they are the box around both
    ([4, 0, 6, 2], 0.0, -4 / 12),  # a gap as wide as each
    ([4, 4, 6, 6], 0.0, -28 / 36),  # apart in both directions
    ([1, 1, 1, 1], 0.0, 0.0),  # a point inside
]


def test_a_box_is_the_same_in_either_form() -> None:
    corners = torch.tensor([[3.0, 4.0, 7.0, 6.0], [0.0, 0.0, 1.0, 10.0]])
    centre = torch.tensor([[5.0, 5.0, 4.0, 2.0], [0.5, 5.0, 1.0, 10.0]])
    torch.testing.assert_close(to_centre(corners), centre)
    torch.testing.assert_close(to_corners(centre), corners)


def test_areas_are_width_times_height_and_never_negative() -> None:
    boxes = torch.tensor([[3.0, 4.0, 7.0, 6.0], [1.0, 1.0, 1.0, 5.0], [5.0, 5.0, 1.0, 1.0], [5.0, 0.0, 1.0, 3.0]])
    assert area(boxes).tolist() == [8.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(("other", "plain", "generalised"), CASES)
def test_overlaps_worked_by_hand(other: list[float], plain: float, generalised: float) -> None:
    box = torch.tensor(other, dtype=torch.float32)
    for first, second in ((A, box), (box, A)):
        assert iou(first, second).item() == pytest.approx(plain, abs=1e-6)
        assert generalised_iou(first, second).item() == pytest.approx(generalised, abs=1e-6)


def test_overlaps_do_not_depend_on_the_scale() -> None:
    others = torch.tensor([case[0] for case in CASES[:-1]], dtype=torch.float32)
    for measure in (iou, generalised_iou):
        torch.testing.assert_close(measure(A / 100, others / 100), measure(A, others), atol=1e-5, rtol=0)


def test_boxes_are_compared_each_with_each_by_broadcasting() -> None:
    generator = torch.Generator().manual_seed(0)
    boxes, others = (to_corners(torch.rand(3, n, 4, generator=generator)) for n in (5, 2))  # a batch of three
    for measure in (iou, generalised_iou):
        table = measure(boxes[:, :, None], others[:, None])  # (3, 5, 2)
        assert table.shape == (3, 5, 2)
        for row in range(3):
            for place in range(5):
                for other in range(2):
                    torch.testing.assert_close(
                        table[row, place, other], measure(boxes[row, place], others[row, other])
                    )


def test_generalised_iou_draws_boxes_together_that_do_not_touch() -> None:
    box = torch.tensor([4.0, 0.0, 6.0, 2.0], requires_grad=True)
    generalised_iou(box, A).backward()
    assert box.grad is not None
    assert box.grad[0] < 0  # to the left, where A is, GIoU grows


def test_points_in_one_place_have_finite_slopes() -> None:
    box = torch.zeros(4, requires_grad=True)
    (iou(box, torch.zeros(4)) + generalised_iou(box, torch.zeros(4))).backward()
    assert box.grad is not None
    assert torch.isfinite(box.grad).all()
