"""The best spans of a text: where an answer begins and ends.

score(i, j) = s_i + e_j,    i ≤ j < i + max_length,    both inside the context
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def best_spans(
    starts: Tensor, ends: Tensor, inside: Tensor, max_length: int, count: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """The `count` best spans of each row, best first: scores, first and last places, (B, N) each.

    `starts` and `ends` are scores of each place (B, T), `inside` is True where an answer may lie. What is no span has
    the score -inf. All spans of one length are scored side by side, so this takes T · max_length sums a row.
    """
    low = float("-inf")
    starts = starts.float().masked_fill(~inside, low)
    ends = ends.float().masked_fill(~inside, low)
    width = starts.shape[1]
    max_length = min(max_length, width)
    shifted = F.pad(ends, (0, max_length - 1), value=low).unfold(1, width, 1)  # (B, length, T): e at i + length - 1
    scores = starts.unsqueeze(1) + shifted  # (B, max_length, T)
    best, where = scores.flatten(1).topk(min(count, max_length * width), dim=1)
    first = where % width
    return best, first, first + torch.div(where, width, rounding_mode="floor")
