"""The loss of connectionist temporal classification (Graves et al. 2006).

    −log p(y | x) = −log Σ over paths that say y of ∏_t p(path_t | x)

What such paths are, and the search for y, is in decoding/ctc.py.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from legato.data.batching.batch import IGNORE


def ctc_nll(logits: Tensor, lengths: Tensor | None, targets: Tensor, blank: int) -> Tensor:
    """−log p(y | x) of each row, (B,): logits (B, T, V) of which `lengths` (B,) are a row's, targets (B, N) with
    IGNORE behind each row's. 0 where so many frames cannot say the targets."""
    rows, total = logits.shape[:2]
    if lengths is None:
        lengths = torch.full((rows,), total, device=logits.device)
    log_probs = logits.float().log_softmax(-1).transpose(0, 1)  # (T, B, V)
    there = targets != IGNORE
    at = torch.device("cpu") if logits.device.type == "mps" else logits.device  # MPS has no such kernel
    losses = F.ctc_loss(
        log_probs.to(at),
        targets.masked_fill(~there, 0).to(at),
        lengths.to(at),
        there.sum(1).to(at),
        blank=blank,
        reduction="none",
        zero_infinity=True,
    )
    return losses.to(logits.device)
