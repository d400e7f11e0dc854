"""Steps that close nothing, and who leaves the batch when: what was written is the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from table_model import TableModel, from_seed
from tiny_searches import assert_same, options

from legato.decoding import search
from legato.decoding.frontier import Frontier, Hypothesis, Step
from legato.decoding.options import SearchOptions

PROMPTS = [[1], [2, 3], [4], [3, 1, 2], [2]]
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "ends late": {"min_tokens": 4},
    "beam": {"kind": "beam", "beams": 3, "nbest": 2},
    "drawn": {"kind": "sample", "seed": 3},
    "drawn walks": {"kind": "sample", "nbest": 3, "temperature": 1.2, "seed": 5},
    "penalised": {"repetition_penalty": 1.3},
}


def found(model: TableModel, how: SearchOptions, **more: Any) -> list[list[Hypothesis]]:
    return search(model, PROMPTS, how, eos=0, limits=[9, 3, 12, 7, 1], **more)


@pytest.mark.parametrize("given", WAYS.values(), ids=WAYS)
def test_a_step_that_closes_nothing_is_what_the_plain_way_makes(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, how = from_seed(2), options(max_tokens=12, **given)
    told: list[list[tuple[int, int]]] = [[], []]
    quick = found(model, how, on_token=lambda row, token: told[0].append((row, token)))
    monkeypatch.setattr(Frontier, "advance_open", lambda *_: False)
    plain = found(model, how, on_token=lambda row, token: told[1].append((row, token)))
    for left, right in zip(quick, plain, strict=True):
        assert_same(left, right)
    assert told[0] == told[1]


@pytest.mark.parametrize("given", WAYS.values(), ids=WAYS)
def test_who_leaves_at_once_changes_nothing_for_the_others(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, how = from_seed(2), options(max_tokens=12, **given)
    at_once = found(model, how)
    plain = Frontier.shrink
    monkeypatch.setattr(Frontier, "shrink", lambda self, at_once=False: plain(self))
    later = found(model, how)
    for left, right in zip(at_once, later, strict=True):
        assert_same(left, right)


def test_who_stays_stays_in_place_and_the_last_fill_the_gaps() -> None:
    frontier = Frontier(np.full(6, 9), options("beam", beams=2), [0], 5, None)
    frontier.steps.append(Step(np.arange(12), np.arange(12), np.zeros(12, dtype=np.float32)))
    assert frontier.shrink(at_once=True) is None
    frontier.done[[1, 4]] = True
    assert frontier.shrink() is None  # two of six are not half of them
    order = frontier.shrink(at_once=True)
    assert order is not None
    assert order.tolist() == [0, 5, 2, 3] == frontier.groups.tolist()
    assert frontier.steps[-1].parents.tolist() == [0, 1, 10, 11, 4, 5, 6, 7]
