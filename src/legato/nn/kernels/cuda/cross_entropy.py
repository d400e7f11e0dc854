"""The loss of a chunk's logits and its gradient in their place, in one kernel (`nn/losses/vocabulary.py`)."""

# mypy: allow-untyped-defs, allow-incomplete-defs, disable-error-code="import-not-found,untyped-decorator"
from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK: Final = 4096  # logits that a program looks at together
WARPS: Final = 8


@triton.jit
def replace_by_gradient(
    logits, apart, targets, losses, rows, vocabulary, padded, smoothing, ignored, SMOOTHED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A row's losses, smoothed and plain, and p - (1 - ε) 1_y - ε / V in the place of its logits.

    A row is read twice: for the largest logit and the sum of what lies below it, then to be replaced.
    """
    row = tl.program_id(0).to(tl.int64)
    logits += row * apart
    target = tl.load(targets + row)
    counted = target != ignored
    right = tl.load(logits + tl.maximum(target, 0)).to(tl.float32)
    each = tl.arange(0, BLOCK)
    largest = tl.full((), float("-inf"), tl.float32)
    below = tl.zeros((BLOCK,), tl.float32)
    evenly = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, vocabulary, BLOCK):
        at = start + each
        z = tl.load(logits + at, mask=at < vocabulary, other=float("-inf"), eviction_policy="evict_last")
        z = z.to(tl.float32)
        higher = tl.maximum(largest, tl.max(z, 0))
        below = below * tl.exp(largest - higher) + tl.exp(z - higher)
        largest = higher
        if SMOOTHED:
            evenly += tl.where(at < vocabulary, z, 0.0)
    norm = largest + tl.log(tl.sum(below, 0))
    plain = tl.where(counted, norm - right, 0.0)
    smoothed = plain
    if SMOOTHED:
        other = tl.where(counted, norm - tl.sum(evenly, 0) / vocabulary, 0.0)
        smoothed = (1.0 - smoothing) * plain + smoothing * other
    tl.store(losses + row, smoothed)
    tl.store(losses + rows + row, plain)
    tl.debug_barrier()  # the right logit is read by all before one writes over it
    for start in range(0, padded, BLOCK):
        at = start + each
        real = at < vocabulary
        z = tl.load(logits + at, mask=real, other=float("-inf"), eviction_policy="evict_first").to(tl.float32)
        slope = tl.exp(z - norm) - tl.where(at == target, 1.0 - smoothing, 0.0)
        if SMOOTHED:
            slope -= tl.where(real, smoothing / vocabulary, 0.0)
        tl.store(logits + at, slope.to(logits.dtype.element_ty), mask=at < padded)


def losses_and_gradient(logits: Tensor, targets: Tensor, vocabulary: int, smoothing: float, ignored: int) -> Tensor:
    """The two losses (2,) of logits (n, V padded), which become the smoothed one's gradient, ignored rows too."""
    rows, padded = logits.shape
    assert logits.stride(1) == 1
    losses = torch.empty(2, rows, dtype=torch.float32, device=logits.device)
    replace_by_gradient[(rows,)](
        logits, logits.stride(0), targets, losses, rows, vocabulary, padded, smoothing, ignored,
        SMOOTHED=smoothing > 0.0, BLOCK=min(BLOCK, triton.next_power_of_2(padded)), num_warps=WARPS,
    )  # fmt: skip
    return losses.sum(1)
