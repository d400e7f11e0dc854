"""Settings of each row as numbers: what they leave of logits is what each search's own options leave."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from legato.decoding import SearchOptions
from legato.decoding.candidates import Chooser
from legato.decoding.row_settings import Level, RowSettings, level_of
from legato.decoding.scores import filter_scores

V = 50
DRAWN = st.fixed_dictionaries(
    {"search": st.just("sample")},
    optional={
        "temperature": st.floats(0.05, 5),
        "top_k": st.integers(0, V + 3),
        "top_p": st.floats(0.05, 1),
        "min_p": st.floats(0, 1),
        "repetition_penalty": st.floats(0.5, 2),
    },
)
ANY = st.one_of(DRAWN, st.just({}), st.fixed_dictionaries({"repetition_penalty": st.floats(0.5, 2)}))


@given(st.lists(DRAWN, min_size=1, max_size=6), st.integers(0, 999))
def test_filters_leave_each_row_what_its_own_options_do(many: list[dict[str, Any]], seed: int) -> None:
    options = [SearchOptions(**{**each, "repetition_penalty": 1.0}) for each in many]
    logits = 3 * torch.randn(len(options), V, generator=torch.Generator().manual_seed(seed))
    found = RowSettings(options).filtered(logits).softmax(-1)
    expected = torch.cat(
        [filter_scores(row[None], own).softmax(-1) for row, own in zip(logits, options, strict=True)]
    )
    # Where a mass reaches its bound within rounding, one token more or less may be left.
    apart = ((found > 0) != (expected > 0)).sum(-1)
    assert (apart <= 1).all()
    same = apart == 0
    torch.testing.assert_close(found[same], expected[same], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("p", [1e-20, 1e-46, 5e-324])
def test_the_best_token_is_left_however_small_top_p_is(p: float) -> None:
    options, logits = SearchOptions(search="sample", top_p=p), torch.randn(3, V)
    for found in (RowSettings([options] * 3).filtered(logits), filter_scores(logits, options)):
        assert torch.equal(found.argmax(-1), logits.argmax(-1))
        assert torch.equal((found > -torch.inf).sum(-1), torch.ones(3, dtype=torch.long))


@given(st.lists(ANY, min_size=1, max_size=6), st.integers(0, 999))
def test_each_row_takes_the_token_it_takes_alone(many: list[dict[str, Any]], seed: int) -> None:
    options = [SearchOptions(**each) for each in many]
    draw = torch.Generator().manual_seed(seed)
    count = len(options)
    logits = 3 * torch.randn(count, V, generator=draw)
    seen = torch.rand(count, V, generator=draw) < 0.3
    seeds, steps = torch.randint(-(2**62), 2**62, (count,), generator=draw), torch.arange(count)
    rows = RowSettings(options)
    lane = Chooser(SearchOptions(search="sample"), [0], [7])
    for level in (rows.level, Level.PENALISED):  # what can do more than is needed does the same
        found = lane(logits.clone(), torch.zeros(count, 1), steps, seeds, seen, rows=rows, level=level)
        for n, own in enumerate(options):
            one = slice(n, n + 1)
            marked = seen[one] if own.repetition_penalty != 1 else None
            alone = Chooser(own, [0], [7])(logits[one].clone(), torch.zeros(1, 1), steps[one], seeds[one], marked)
            if own.drawn and found[0, n] != alone[0, 0]:  # a number that falls on a border
                left = filter_scores(logits[one], own, marked).softmax(-1)
                assert left[0, int(found[0, n])] > 0
                continue
            torch.testing.assert_close(found[:, one], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("how", "level"),
    [
        ({}, Level.TAKEN),
        ({"search": "sample", "temperature": 0.3}, Level.DRAWN),
        ({"search": "sample", "top_p": 0.9}, Level.FILTERED),
        ({"repetition_penalty": 1.1}, Level.PENALISED),
    ],
)
def test_a_row_asks_for_no_more_than_it_needs(how: dict[str, Any], level: Level) -> None:
    assert level_of(SearchOptions(**how)) == level


def test_rows_have_the_settings_of_whoever_is_in_them() -> None:
    rows = RowSettings([SearchOptions()] * 4)
    warm = SearchOptions(search="sample", temperature=0.5, top_k=3)
    rows.place(torch.tensor([2, 0]), RowSettings([warm, SearchOptions(repetition_penalty=1.5)]))
    assert rows.temperature.tolist() == [0, 0, 0.5, 0]
    assert rows.top_k.tolist() == [0, 0, 3, 0]
    assert rows.levels.tolist() == [Level.PENALISED, Level.TAKEN, Level.FILTERED, Level.TAKEN]
    other = RowSettings([SearchOptions()] * 4)
    other.adopt(rows)
    rows.place(torch.tensor([2]), RowSettings([SearchOptions()]))
    assert other.temperature.tolist() == [0, 0, 0.5, 0]
    assert other.level == Level.PENALISED
