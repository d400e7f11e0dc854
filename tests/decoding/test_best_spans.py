"""The best spans, against all spans one by one."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from legato.decoding.spans import best_spans


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 12), st.integers(1, 6))
def test_no_span_is_better_than_the_best(seed: int, width: int, longest: int, count: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    starts, ends = torch.randn(3, width, generator=draw), torch.randn(3, width, generator=draw)
    inside = torch.rand(3, width, generator=draw) < 0.7
    scores, first, last = best_spans(starts, ends, inside, longest, count)
    for row in range(3):
        every = [
            (float(starts[row, i] + ends[row, j]), i, j)
            for i in range(width)
            for j in range(i, min(i + longest, width))
            if inside[row, i] and inside[row, j]
        ]
        wanted = sorted(every, reverse=True)[:count]
        found = [
            (float(score), int(i), int(j))
            for score, i, j in zip(scores[row], first[row], last[row], strict=True)
            if score > float("-inf")
        ]
        assert found == wanted


def test_a_row_without_a_context_has_no_span() -> None:
    scores, _, _ = best_spans(torch.zeros(1, 4), torch.zeros(1, 4), torch.zeros(1, 4, dtype=torch.bool), 2)
    assert scores.isinf().all()
