"""CTC's loss as a recorded step has it, against PyTorch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.data.batching.batch import IGNORE
from legato.nn.losses.ctc import ctc_nll, recordable_ctc

ROWS, TOKENS = 4, 4


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 4), st.integers(0, TOKENS - 1))
def test_loss_and_gradient_are_those_of_pytorch(seed: int, frames: int, longest: int, blank: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(ROWS, frames, TOKENS, generator=draw, dtype=torch.double).requires_grad_()
    lengths = torch.randint(1, frames + 1, (ROWS,), generator=draw)
    counts = torch.randint(0, longest + 1, (ROWS,), generator=draw)
    tokens = torch.randint(0, TOKENS - 1, (ROWS, longest), generator=draw)
    tokens = tokens + (tokens >= blank)  # none of them is the blank
    beyond = torch.arange(longest) >= counts[:, None]
    weights = torch.rand(ROWS, generator=draw).double()

    log_probs = logits.log_softmax(-1)
    wanted = F.ctc_loss(
        log_probs.transpose(0, 1),
        tokens.masked_fill(beyond, 0),
        lengths,
        counts,
        blank=blank,
        reduction="none",
        zero_infinity=True,
    )
    found = recordable_ctc(log_probs, lengths, tokens.masked_fill(beyond, blank), counts, blank)
    torch.testing.assert_close(found, wanted)
    ours, theirs = (
        torch.autograd.grad((loss * weights).sum(), logits, retain_graph=True)[0] for loss in (found, wanted)
    )
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("recorded", [True, False])
def test_rows_without_frames_count_for_nothing(recorded: bool) -> None:
    logits = torch.randn(3, 5, 3, generator=torch.Generator().manual_seed(1), requires_grad=True)
    targets = torch.tensor([[0, 1], [IGNORE, IGNORE], [0, IGNORE]])
    lengths = torch.tensor([5, 0, 0])
    if recorded:
        there = targets != IGNORE
        log_probs = logits.log_softmax(-1)
        losses = recordable_ctc(log_probs, lengths, targets.masked_fill(~there, 2), there.sum(1), 2)
    else:
        losses = ctc_nll(logits, lengths, targets, blank=2)
    assert losses[0] > 0
    assert losses[1:].tolist() == [0, 0]
    losses.sum().backward()
    assert logits.grad is not None
    assert logits.grad[0].any()
    assert not logits.grad[1:].any()
