"""Boxes in a picture: their two forms, and how much of two boxes is shared.

    corners    (x0, y0, x1, y1), x to the right and y downwards, x0 ≤ x1 and y0 ≤ y1
    centre     (cx, cy, w, h) = ((x0 + x1) / 2, (y0 + y1) / 2, x1 − x0, y1 − y0)

    IoU(a, b)  = |a ∩ b| / |a ∪ b|
    GIoU(a, b) = IoU(a, b) − (|c| − |a ∪ b|) / |c|,   c the smallest box around both     (Rezatofighi et al. 2019)

IoU is from 0 to 1. GIoU is from -1 to 1, and differs still between boxes that do not touch: it falls with the gap
between them, so that a loss of 1 − GIoU has a slope there. All are tensors (..., 4), in pixels or in shares of the
picture; leading dimensions broadcast, so that N boxes and M are compared each with each by

    iou(boxes[:, None], others[None])                                                            # (N, M)
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

EPSILON: Final = 1e-7  # the least area that is divided by: boxes without extent share nothing


def to_corners(boxes: Tensor) -> Tensor:
    """(cx, cy, w, h) as (x0, y0, x1, y1).

    >>> to_corners(torch.tensor([5.0, 5.0, 4.0, 2.0])).tolist()
    [3.0, 4.0, 7.0, 6.0]
    """
    centre, size = boxes[..., :2], boxes[..., 2:]
    return torch.cat((centre - size / 2, centre + size / 2), dim=-1)  # (..., 4)


def to_centre(boxes: Tensor) -> Tensor:
    """(x0, y0, x1, y1) as (cx, cy, w, h).

    >>> to_centre(torch.tensor([3.0, 4.0, 7.0, 6.0])).tolist()
    [5.0, 5.0, 4.0, 2.0]
    """
    first, last = boxes[..., :2], boxes[..., 2:]
    return torch.cat(((first + last) / 2, last - first), dim=-1)  # (..., 4)


def area(boxes: Tensor) -> Tensor:
    """The areas (...) of boxes by their corners (..., 4); 0 of one that is inside out."""
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)


def iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Intersection over union (...) of boxes by their corners (..., 4).

    >>> round(iou(torch.tensor([0.0, 0.0, 2.0, 2.0]), torch.tensor([1.0, 1.0, 3.0, 3.0])).item(), 4)
    0.1429
    """
    overlap, union = _overlap_and_union(boxes, others)
    return overlap / union.clamp(min=EPSILON)


def generalised_iou(boxes: Tensor, others: Tensor) -> Tensor:
    """GIoU (...) of boxes by their corners (..., 4).

    >>> round(generalised_iou(torch.tensor([0.0, 0.0, 1.0, 1.0]), torch.tensor([2.0, 0.0, 3.0, 1.0])).item(), 4)
    -0.3333
    """
    overlap, union = _overlap_and_union(boxes, others)
    first, last = torch.minimum(boxes[..., :2], others[..., :2]), torch.maximum(boxes[..., 2:], others[..., 2:])
    around = area(torch.cat((first, last), dim=-1))
    return overlap / union.clamp(min=EPSILON) - (around - union) / around.clamp(min=EPSILON)


def _overlap_and_union(boxes: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    first, last = torch.maximum(boxes[..., :2], others[..., :2]), torch.minimum(boxes[..., 2:], others[..., 2:])
    overlap = area(torch.cat((first, last), dim=-1))
    return overlap, area(boxes) + area(others) - overlap
