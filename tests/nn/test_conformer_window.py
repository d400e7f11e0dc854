"""What a frame of the Conformer looks at: those near it that are no padding."""

from __future__ import annotations

import pytest
import torch

from legato.nn.capture import record
from legato.nn.conformer import ConformerStack
from legato.nn.feedforward import BlockShape

T, D = 9, 16
SHAPE = BlockShape(D, 4, 24, activation="silu")


def looked_at(window: int | None, lengths: torch.Tensor | None) -> torch.Tensor:
    """Which frames the heads of a layer look at, (B, H, T, T)."""
    torch.manual_seed(0)
    stack = ConformerStack("encoder", 1, SHAPE, 3, window=window).eval()
    with record() as trace:
        stack(torch.randn(3, T, D), lengths)
    return trace["encoder.0.attention.weights"][0] > 0


def near(window: int | None) -> torch.Tensor:
    """Place by place, (T, T)."""
    return torch.tensor([[window is None or -window < i - j < window for j in range(T)] for i in range(T)])


@pytest.mark.parametrize("window", [1, 2, 3, T - 1, T, T + 1, None])
def test_a_frame_looks_at_all_those_near_it_and_at_no_other(window: int | None) -> None:
    assert torch.equal(looked_at(window, None), near(window).expand(3, 4, T, T))


@pytest.mark.parametrize("window", [1, 2, 3, T - 1, T, None])
def test_padding_is_looked_at_by_none_but_itself(window: int | None) -> None:
    lengths = torch.tensor([T, 4, 1])
    found = looked_at(window, lengths)
    for row, length in enumerate(lengths.tolist()):
        wanted = near(window)
        wanted[:, length:] = False
        assert torch.equal(found[row, :, :length], wanted[:length].expand(4, -1, -1))
        if window is not None and window < T:
            wanted |= torch.eye(T, dtype=torch.bool)  # what is too far from every frame has itself
            assert torch.equal(found[row], wanted.expand(4, -1, -1))


@pytest.mark.parametrize("window", [2, None])
@pytest.mark.parametrize("recorded", [True, False])
def test_rows_without_a_frame_break_nothing(window: int | None, recorded: bool) -> None:
    """They fill up a batch."""
    torch.manual_seed(0)
    stack = ConformerStack("encoder", 2, SHAPE, 3, window=window)
    x = torch.randn(2, T, D, requires_grad=True)
    if recorded:
        with record():
            states = stack(x, torch.tensor([T, 0]))
    else:
        states = stack(x, torch.tensor([T, 0]))
    assert states.isfinite().all()
    states[0].square().mul(torch.arange(D)).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert x.grad[0].any()
    assert not x.grad[1].any()
    assert all(p.grad is None or p.grad.isfinite().all() for p in stack.parameters())
