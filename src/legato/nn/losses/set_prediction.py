"""What is learned from boxes that have no order: each true box is given to one query, and that one learns it.

    C_qj = λ_c F(l_q, c_j) + λ_1 |b_q − b_j|_1 − λ_g GIoU(b_q, b_j)       what it costs query q to take box j
    σ = argmin Σ_j C_σ(j)j  over all σ that give no query two boxes       the bipartite matching, exact
    L = λ_c Σ_q focal(l_q) + Σ_j λ_1 |b_σ(j) − b_j|_1 + λ_g (1 − GIoU(b_σ(j), b_j))

(Carion et al. 2020, "End-to-End Object Detection with Transformers", section 3.1.) Classes are told apart by
sigmoids, and a query that no box is given to has none of them: "nothing" is no class of its own. Most queries see
nothing, so what is right already counts little (focal loss; Lin et al. 2017, equation 5; F, of the cost, is its
difference between yes and no, Zhu et al. 2021):

    focal(l) = −α (1 − p)^γ log p  where it is there,  −(1 − α) p^γ log(1 − p)  where not,  p = sigmoid(l)

The weights λ are those of Zhu et al. 2021: 2, 5 and 2. Sums are divided by the number of boxes in the whole step,
which who trains does. Boxes are (x0, y0, x1, y1) in shares of the picture's sides; |·|_1 is that of their centres
and sizes.

The matching is found on the CPU (Jonker–Volgenant, by SciPy), all costs of a step in one copy: a step of it cannot be
recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from legato.data.batching.batch import IGNORE
from legato.nn.boxes import generalised_iou, to_centre

ALPHA: Final = 0.25
GAMMA: Final = 2.0
CLASS, DISTANCE, OVERLAP = 2.0, 5.0, 2.0  # λ_c, λ_1, λ_g
WORST: Final = 1e6  # what stands for a cost that is not finite


def focal(logits: Tensor, there: Tensor) -> Tensor:
    """The focal loss of each class (…), where `there` (…) is 1 if it is and 0 if it is not.

    >>> round(focal(torch.tensor(0.0), torch.tensor(1.0)).item(), 4)  # .25 · .5² · log 2
    0.0433
    """
    loss = F.binary_cross_entropy_with_logits(logits, there, reduction="none")
    wrong = (torch.sigmoid(logits) - there).abs()  # 1 − p where it is there, p where not
    return torch.where(there > 0, ALPHA, 1 - ALPHA) * wrong**GAMMA * loss


@torch.no_grad()
def matching_costs(logits: Tensor, boxes: Tensor, labels: Tensor, truth: Tensor) -> Tensor:
    """What it costs each of Q queries to take each of N boxes, (B, Q, N); nothing for what fills a row up.

    `logits` (B, Q, C), `boxes` (B, Q, 4), `labels` (B, N), IGNORE for no box, and `truth` (B, N, 4).
    """
    logits, boxes = logits.float(), boxes.float()
    yes, no = focal(logits, torch.ones_like(logits)), focal(logits, torch.zeros_like(logits))
    wanted = labels.clamp(min=0).unsqueeze(1).expand(-1, logits.shape[1], -1)  # (B, Q, N)
    classes = (yes - no).gather(2, wanted)
    distances = torch.cdist(to_centre(boxes), to_centre(truth), p=1)  # (B, Q, N)
    overlaps = generalised_iou(boxes.unsqueeze(2), truth.unsqueeze(1))
    costs = CLASS * classes + DISTANCE * distances - OVERLAP * overlaps
    costs = costs.nan_to_num(WORST, WORST, -WORST)  # a model that has diverged is told so by its loss
    return costs.masked_fill((labels == IGNORE).unsqueeze(1), 0.0)


def match(costs: Sequence[Tensor], labels: Tensor) -> list[Tensor]:
    """The query that each box is given to, (B, N), of each of some costs (B, Q, N); Q where there is none for it.

    Costs of different Q are of different layers, each with a matching of its own.
    """
    from scipy.optimize import linear_sum_assignment

    sizes = [each.shape[1] for each in costs]
    held = torch.cat([*costs, labels.unsqueeze(1).to(costs[0].dtype)], dim=1).cpu().numpy()  # (B, ΣQ + 1, N)
    there = [np.flatnonzero(row[-1] != IGNORE) for row in held]
    made, start = [], 0
    for size in sizes:
        found = np.full(labels.shape, size, dtype=np.int64)
        for row, boxes in enumerate(there):
            queries, chosen = linear_sum_assignment(held[row, start : start + size][:, boxes])  # of (Q, N)
            found[row, boxes[chosen]] = queries
        made.append(torch.from_numpy(found).to(labels.device, non_blocking=True))
        start += size
    return made


def set_loss(
    logits: Tensor, boxes: Tensor, labels: Tensor, truth: Tensor, matched: Tensor, counted: Tensor | None = None
) -> Tensor:
    """L, summed over the batch, of classes (B, Q, C) and boxes (B, Q, 4); `matched` (B, N) says whose each is.

    Rows that are not `counted` (B,) only fill the batch up: that no box is known there does not say that none is.
    """
    logits, boxes = logits.float(), boxes.float()
    rows, queries, _ = logits.shape
    taken = (labels != IGNORE) & (matched < queries)  # (B, N)
    place = matched.where(taken, queries)
    row = torch.arange(rows, device=logits.device).unsqueeze(1).expand_as(place)
    there = F.pad(torch.zeros_like(logits), (0, 0, 0, 1))  # one more query, for what is nobody's
    there[row, place, labels.clamp(min=0)] = 1.0
    classes = focal(logits, there[:, :queries]).sum((1, 2))  # (B,)
    classes = classes if counted is None else classes.where(counted, 0.0)
    own = boxes.gather(1, matched.clamp(max=queries - 1).unsqueeze(-1).expand(-1, -1, 4))  # (B, N, 4)
    distances = (to_centre(own) - to_centre(truth)).abs().sum(-1)
    overlaps = generalised_iou(own, truth)
    each = DISTANCE * distances + OVERLAP * (1 - overlaps)  # (B, N)
    return CLASS * classes.sum() + each.where(taken, 0.0).sum()
