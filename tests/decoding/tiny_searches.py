"""Prompts, options and the lecture's tree, and how what two searches found is compared."""

from __future__ import annotations

from typing import Any

import pytest
from table_model import TableModel, from_table

from legato.decoding import Hypothesis, SearchOptions

EOS, YES, OK = 0, 1, 2

# Sixteen prompts of different lengths over five tokens.
PROMPTS = [[1 + (i * j) % 4 for j in range(1, 2 + i % 6)] for i in range(16)]


def lecture() -> TableModel:
    """The two-word tree: </s>, yes, ok."""
    table = {(): [0.1, 0.5, 0.4], (YES,): [0.3, 0.4, 0.3], (OK,): [0.1, 0.2, 0.7]}
    return from_table(3, table, otherwise=[1.0, 0.0, 0.0])


def options(kind: Any = "greedy", **more: Any) -> SearchOptions:
    return SearchOptions(search=kind, **{"max_tokens": 12, **more})


def tokens_of(found: list[list[Hypothesis]]) -> list[list[list[int]]]:
    return [[hypothesis.tokens for hypothesis in nbest] for nbest in found]


def assert_same(left: list[Hypothesis], right: list[Hypothesis]) -> None:
    assert [h.tokens for h in left] == [h.tokens for h in right]
    assert [h.finished for h in left] == [h.finished for h in right]
    assert [h.score for h in left] == pytest.approx([h.score for h in right], abs=1e-5)
