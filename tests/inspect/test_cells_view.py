"""Units at each position: what a report holds of them, what it leaves out, and that it says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from read_reports import array, told_in

from legato.data.positions import Positions
from legato.inspect.report import trace_views
from legato.inspect.report.build import trace_report
from legato.inspect.report.page import Report, studio_page
from legato.inspect.report.trace_views import MOST_CELLS, MOST_STATES, cells_view
from legato.inspect.trace import Captured, Trace

COUNT = 10
GATES = ("forget_gate", "input_gate", "candidate", "output_gate", "cell")


def traced(widths: dict[str, int], count: int = COUNT, **more: Captured) -> Trace:
    """A trace of random numbers: names of tensors, and how many units each has."""
    draw = np.random.default_rng(0)
    tensors = {
        name: Captured(_drawn(draw, name, (count, width)), ("position", "unit"), "input")
        for name, width in widths.items()
    }
    names = tuple(f"w{number} " for number in range(count))
    return Trace({"name": "made"}, {**tensors, **more}, {"input": Positions("token", names)}, [])


def _drawn(draw: Any, name: str, shape: tuple[int, int]) -> Any:
    found = draw.random(shape) if name.endswith("gate") else draw.standard_normal(shape)
    return found.astype(np.float32)


def view_of(trace: Trace) -> tuple[Report, dict[str, Any]]:
    report = Report.of_trace(trace, "")
    view = cells_view(report, trace)
    assert view is not None
    return report, view


def sizes(view: dict[str, Any], *, recurs: bool) -> int:
    return sum(COUNT * each["units"] for each in view["tensors"] if trace_views._recurs(each["name"]) == recurs)


LSTM = {f"lstm.{layer}.{part}": 16 for layer in range(2) for part in (*GATES, "hidden")}
BLOCKS = {f"decoder.{layer}.{part}": 16 for layer in range(3) for part in ("hidden", "feedforward.units")}


def test_of_a_small_input_all_units_are_there_and_their_numbers_are_the_traces() -> None:
    trace = traced(LSTM)
    report, view = view_of(trace)
    assert view["left"] == []
    assert {each["name"] for each in view["tensors"]} == set(LSTM)
    for each in view["tensors"]:
        values = trace[each["name"]].values
        shown = array(report, each["values"])
        assert each["units"] == shown.shape[1]
        assert (each["scales"] is None) == each["name"].endswith("gate")  # gates are shares, states have two signs
        scales = 1.0 if each["scales"] is None else array(report, each["scales"])
        np.testing.assert_allclose(shown * scales, values, atol=np.max(scales) * 2 / 255)
        if each["scales"] is not None:
            assert scales == pytest.approx(np.abs(values).max(0), rel=1e-3)


def test_what_does_not_fit_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_views, "MOST_CELLS", 7 * COUNT * 16)
    monkeypatch.setattr(trace_views, "MOST_STATES", COUNT * 16)
    _, view = view_of(traced(LSTM))
    kept = {each["name"] for each in view["tensors"]}
    assert kept | set(view["left"]) == set(LSTM)
    assert not kept & set(view["left"])
    first = [f"lstm.0.{part}" for part in GATES]
    assert [each["name"] for each in view["tensors"]][:5] == first  # layers in their order, gates before states
    assert (sizes(view, recurs=True), sizes(view, recurs=False)) == (7 * COUNT * 16, COUNT * 16)
    assert "lstm.1.hidden" in view["left"]


def test_gates_leave_room_for_states_and_states_for_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_views, "MOST_STATES", 0)
    _, view = view_of(traced(LSTM))
    assert [name.rsplit(".", 1)[-1] for name in view["left"]] == ["hidden", "hidden"]
    monkeypatch.setattr(trace_views, "MOST_STATES", MOST_STATES)
    monkeypatch.setattr(trace_views, "MOST_CELLS", 0)
    _, view = view_of(traced(LSTM))
    assert {each["name"] for each in view["tensors"]} == {"lstm.0.hidden", "lstm.1.hidden"}


def test_hidden_states_come_before_the_units_inside_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_views, "MOST_STATES", 4 * COUNT * 16)
    _, view = view_of(traced(BLOCKS))
    names = [each["name"] for each in view["tensors"]]
    assert names == ["decoder.0.hidden", "decoder.1.hidden", "decoder.2.hidden", "decoder.0.feedforward.units"]
    assert view["left"] == ["decoder.1.feedforward.units", "decoder.2.feedforward.units"]


def test_one_that_is_too_large_keeps_no_other_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_views, "MOST_STATES", COUNT * 16)
    _, view = view_of(traced({"a.0.hidden": 17, "b.0.hidden": 16}))
    assert ([each["name"] for each in view["tensors"]], view["left"]) == (["b.0.hidden"], ["a.0.hidden"])


def test_where_nothing_fits_all_of_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_views, "MOST_STATES", 1)
    _, view = view_of(traced(BLOCKS))
    assert view["tensors"] == []
    assert set(view["left"]) == set(BLOCKS)
    weights = Captured(np.ones((1, COUNT, COUNT), np.float32), ("head", "position", "seen"), "input")
    trace = traced({}, weights=weights)
    assert cells_view(Report.of_trace(trace, ""), trace) is None  # it has no units at all


def test_a_file_is_never_larger_than_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random numbers do not become shorter, and three bytes are written as four letters."""
    most, others = 40_000, 20_000
    monkeypatch.setattr(trace_views, "MOST_CELLS", most)
    monkeypatch.setattr(trace_views, "MOST_STATES", others)
    empty = len(studio_page())
    added = []
    for layers in (4, 40):
        widths = {f"lstm.{layer}.{part}": 100 for layer in range(layers) for part in (*GATES, "hidden")}
        page = trace_report(traced(widths, count=50)).html()
        named = sum(map(len, widths))
        added.append(len(page) - empty - 8 * named)  # each is named, kept or not
        view = told_in(page)["views"]["cells"]
        assert len(view["tensors"]) + len(view["left"]) == len(widths)
    assert max(added) < 4 / 3 * (most + others) * 1.02 + 8000
    assert added[1] < 1.2 * added[0]


def test_a_report_of_units_stays_below_a_dozen_megabytes() -> None:
    assert 4 / 3 * (MOST_CELLS + MOST_STATES) < 12 << 20
